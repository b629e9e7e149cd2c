"""A workload that launches kernels of 2 x 50 events and then ends as it is told: see
test_lifetimes.py for the endings.

lifetimes.py ENDING [FIFO]      says "ready" through the FIFO where the test has to act
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

import kprof
from kprof.devices.build import BuildOptions, load_library
from kprof.devices.targets import target_of_device

EVENTS_PER_LAUNCH = 100
modules_at_end: set[str] = set()
# The tests of the GPU ask for "cuda".
DEVICE = os.environ.get("LIFETIMES_DEVICE", "cpu")
LIBRARY = load_library(Path(__file__).with_suffix(".hip"), BuildOptions(target_of_device(DEVICE)))


def say_what_was_imported() -> None:
    """Runs after kprof's own exit handler: many modules cannot be imported at that time."""
    late = sorted(set(sys.modules) - modules_at_end)
    if modules_at_end and late:
        print(f"imported at exit: {late}", file=sys.stderr)


def launch(recorder, times=3, hanging=None) -> None:
    for _ in range(times):
        buffer = recorder.launch("emit", num_blocks=2, threads_per_block=64)
        LIBRARY.emit_events(EVENTS_PER_LAUNCH // 2, hanging, buffer.packed())


def launched(**options):
    recorder = kprof.recorder(["event", "wait"], device=DEVICE, **options)
    launch(recorder)
    # Registered after kprof's own exit handler, so it runs before.
    atexit.register(lambda: modules_at_end.update(sys.modules))
    return recorder


def say_ready() -> None:
    with Path(sys.argv[2]).open("w") as fifo:
        fifo.write(f"{os.getpid()}\n")


def returns() -> None:
    launched()


def raises() -> None:
    launched()
    raise RuntimeError("the workload's own")


def exits() -> None:
    launched()
    sys.exit(3)


def exits_in_a_thread() -> None:
    launched()
    thread = threading.Thread(target=sys.exit, args=(3,))
    thread.start()
    thread.join()


def exits_at_once() -> None:
    launched().flush()
    launch(kprof.recorder(), 2)
    os._exit(5)


def gets(number: int) -> None:
    launched()
    os.kill(os.getpid(), number)
    signal.pause()


def sigterm() -> None:
    gets(signal.SIGTERM)


def sigint() -> None:
    gets(signal.SIGINT)


def sighup() -> None:
    gets(signal.SIGHUP)


def sigkill() -> None:
    gets(signal.SIGKILL)


def killed_in_a_launch() -> None:
    recorder = launched()
    is_hanging = two_words()

    def kill() -> None:
        while is_hanging.tolist() != [1, 1]:
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    launch(recorder, 1, hanging=ctypes.c_void_p(is_hanging.ctypes.data))


def closes_and_launches() -> None:
    launched().close()


def forks() -> None:
    recorder = launched()
    child = os.fork()
    if child == 0:
        # What the child inherits is off; it ends as Python programs end, with exit handlers.
        launch(recorder, 5)
        sys.exit(0)
    launch(recorder, 1)
    os.waitpid(child, 0)


def forks_and_asks_again() -> None:
    recorder = launched()
    child = os.fork()
    if child == 0:
        launch(kprof.recorder(["event", "wait"]), 5)
        sys.exit(0)
    os.waitpid(child, 0)
    launch(recorder, 1)


def child_with_a_rank() -> None:
    launch(kprof.recorder(["event", "wait"], rank=1, world_size=2), 2)


def multiprocessing_child(method: str) -> None:
    recorder = launched(rank=0, world_size=2)
    child = multiprocessing.get_context(method).Process(target=child_with_a_rank)
    child.start()
    child.join()
    launch(recorder, 1)
    sys.exit(child.exitcode)


def multiprocessing_fork() -> None:
    multiprocessing_child("fork")


def multiprocessing_spawn() -> None:
    multiprocessing_child("spawn")


def is_told_as_a_child() -> None:
    sys.exit(-subprocess.run([sys.executable, __file__, "sigterm"]).returncode)


def child_that_waits(ready) -> None:
    child_with_a_rank()
    ready.set()
    signal.pause()


def terminates_its_child() -> None:
    recorder = launched(rank=0, world_size=2)
    ready = multiprocessing.Event()
    child = multiprocessing.Process(target=child_that_waits, args=(ready,))
    child.start()
    ready.wait()
    child.terminate()
    child.join()
    launch(recorder, 1)
    sys.exit(-child.exitcode)


def terminates_a_child_that_begins() -> None:
    """The signal comes while Python still prepares the child, in a hook that runs before kprof's."""
    os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
    recorder = launched()
    child = os.fork()
    if child == 0:
        os._exit(0)
    _, status = os.waitpid(child, 0)
    launch(recorder, 1)
    sys.exit(-os.waitstatus_to_exitcode(status))


def executes() -> None:
    launched()
    os.execv(sys.executable, [sys.executable, __file__, "returns"])


def flushes_and_executes() -> None:
    recorder = launched()
    recorder.flush()
    launch(recorder, 1)
    os.execv(sys.executable, [sys.executable, __file__, "returns"])


def launches_from_a_thread_at_exit() -> None:
    recorder = launched()
    first = threading.Event()

    def work() -> None:
        while True:
            launch(recorder, 1)
            first.set()

    threading.Thread(target=work, name="worker", daemon=True).start()
    first.wait()


def closes_descriptors() -> None:
    reopened: list[int] = []
    # Registered before kprof's own exit handler, so it runs after: raises if kprof closed one.
    atexit.register(lambda: [os.fstat(number) for number in reopened])
    recorder = launched()
    os.closerange(3, 1 << 16)
    reopened += [os.open(os.devnull, os.O_RDONLY) for _ in range(64)]
    launch(recorder, 1)


def fills_the_disk() -> None:
    launched()
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    sys.exit(7)


def starts_with_a_full_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    launched()
    sys.exit(7)


def flushes_onto_a_full_disk() -> None:
    recorder = launched()
    recorder.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    launch(recorder, 1)
    recorder.flush()
    launch(recorder, 1)


def removes_the_directory() -> None:
    launched()
    shutil.rmtree(os.environ["KPROF_RECORD_DIR"])
    sys.exit(7)


def two_with_one_rank() -> None:
    launched()
    subprocess.run([sys.executable, __file__, "returns"], check=True)


def one_after_the_other() -> None:
    for _ in range(2):
        subprocess.run([sys.executable, __file__, "returns"], check=True)


def goes_to_the_background() -> None:
    """The child has a recorder before its parent ends, and records on when SIGUSR1 comes."""
    # Its threads must not get it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    reading, writing = os.pipe()
    if os.fork() > 0:
        os.close(writing)
        assert os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    os.setsid()
    parent = os.getppid()
    recorder = launched()
    os.write(writing, b"x")
    while os.getppid() == parent:
        os.sched_yield()
    say_ready()
    signal.sigwait([signal.SIGUSR1])
    launch(recorder, 1)


def waits() -> None:
    launched()
    say_ready()
    signal.pause()


def flushes_and_waits() -> None:
    recorder = launched()
    recorder.flush()
    launch(recorder, 2)
    recorder.flush()
    launch(recorder, 1)
    say_ready()
    signal.pause()


def hangs() -> None:
    recorder = launched()
    is_hanging = two_words()

    def say_when_hanging() -> None:
        while is_hanging.tolist() != [1, 1]:
            os.sched_yield()
        say_ready()

    threading.Thread(target=say_when_hanging, daemon=True).start()
    launch(recorder, 1, hanging=ctypes.c_void_p(is_hanging.ctypes.data))
    if DEVICE != "cpu":
        import torch

        torch.cuda.synchronize()


def two_words() -> np.ndarray:
    """Memory that the kernel can write, too."""
    if DEVICE == "cpu":
        return np.zeros(2, np.uint32)
    import torch

    return torch.zeros(2, dtype=torch.int32, pin_memory=True).numpy()


def launcher() -> None:
    """Like torchrun: ranks in sessions of their own, which nobody stops when this process is killed."""
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "waits", sys.argv[2]],
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2"},
            start_new_session=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        rank.wait()


def collects_garbage() -> None:
    """A recorder of one's own that nobody holds and nobody closes."""
    import gc

    from kprof.recording.rank.recorder import Recorder

    directory = Path(os.environ["KPROF_RECORD_DIR"])
    launch(Recorder(directory, rank=0, world_size=1, regions=["event", "wait"]))
    gc.collect()


if __name__ == "__main__":
    atexit.register(say_what_was_imported)
    globals()[sys.argv[1]]()
