"""However `record` and `recover` are interrupted, at whatever step: no event is lost, and none is there twice."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import killed_state
import pytest
from killed_state import EMITTED, SIZES

from faults import fail_at, kill_at, without_faults
from kprof import private
from kprof.capture.directory import Capture
from kprof.capture.names import SAID_NAME, unfinished_of
from kprof.capture.set_aside import set_aside
from kprof.capture.shared_memory import make_memory, memory_of, remove_garbage, remove_memory
from kprof.errors import WorkloadError
from kprof.recording.finishing.outcome import Outcome
from kprof.recording.finishing.recover import recover
from kprof.recording.finishing.salvage import leave_to_another
from kprof.recording.launcher import record as recording
from kprof.recording.rank import process
from kprof.recording.rank.recorder import Recorder
from replayed import emitted, library

__all__ = ["library"]
# Ctrl-C ends everything: between two changes it leaves the same files wherever it comes. SIGTERM ends kprof without a
# handler, as SIGKILL does: see kill_at. An error may be dropped, so it
# comes at what reads, too.
FAULTS = {
    "Ctrl-C": KeyboardInterrupt(),
    "a disk that refuses": OSError(errno.EIO, os.strerror(errno.EIO)),
}
# Of all steps every tenth is tried, another one with each fault; `make soak` tries them all.
STRIDE = int(os.environ.get("KPROF_TEST_STRIDE", "10"))


class Left:
    """What ranks have left, to be put into recordings again and again."""

    def __init__(self, folder: Path, library: ctypes.CDLL, *options: str) -> None:
        made = folder / "made"
        made.mkdir(parents=True)
        make_memory(made)
        command = [sys.executable, killed_state.__file__, library._name, str(made), *options]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        assert subprocess.run(command, env=environment, check=False).returncode == -9
        memory = memory_of(made)
        assert memory is not None
        self.files = [path for path in made.iterdir() if path.name != SAID_NAME]
        self.in_memory = Path(shutil.copytree(memory, folder / "memory"))
        remove_memory(made)

    def put_into(self, directory: Path) -> None:
        for path in self.files:
            shutil.copyfile(path, directory / path.name)
        memory = memory_of(directory)
        assert memory is not None
        for path in self.in_memory.glob("rank-*"):
            shutil.copyfile(path, memory / path.name)


@pytest.fixture(scope="module")
def killed(library: ctypes.CDLL, tmp_path_factory: pytest.TempPathFactory) -> Left:
    return Left(tmp_path_factory.mktemp("killed"), library)


@pytest.fixture(scope="module")
def ended(library: ctypes.CDLL, tmp_path_factory: pytest.TempPathFactory) -> Left:
    return Left(tmp_path_factory.mktemp("ended"), library, "close")


def check_that_all_is_there(capture: Capture, what: str) -> None:
    found = {info.rank: info.counts.recorded for info in capture.manifest.ranks}
    assert found == EMITTED, what
    assert not any(info.counts.dropped for info in capture.manifest.ranks), what


def recover_whatever_is_left(output: Path, what: str) -> None:
    """As a user would: the output, or what `kprof recover` makes of the rest."""
    directory = unfinished_of(output)
    if not output.exists():
        assert directory.exists(), what
        recover(directory, output)
    check_that_all_is_there(Capture.open(output), what)
    shutil.rmtree(output)
    shutil.rmtree(directory, ignore_errors=True)
    remove_garbage()
    assert list(private.memory_root().iterdir()) == [], what


def at_every_step(
    begin: Callable[[], Callable[[], object]], check: Callable[[str], None], *, reads: bool
) -> int:
    """Call what `begin` returns with each fault at each step (see STRIDE), and `check` what is left. Returns how
    many steps there are, of all faults together."""
    num_all = 0
    for first, (name, fault) in enumerate(FAULTS.items()):
        only_changes = not reads or isinstance(fault, KeyboardInterrupt)
        num_steps, _ = fail_at(-1, None, begin(), only_changes)
        check("no fault")
        for step in range(first % STRIDE, num_steps, STRIDE):
            _, where = fail_at(step, fault, begin(), only_changes)
            check(f"{name} at step {step}: {where}")
        num_all += num_steps
    first = step = len(FAULTS) % STRIDE
    while kill_at(step, signal.SIGTERM, begin()):
        check(f"SIGTERM at step {step}")
        step += STRIDE
    check("no SIGTERM")
    assert step > first
    return num_all


@pytest.fixture
def memory(killed: Left, ended: Left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A /dev/shm of the test's own, once there is what ranks leave."""
    folder = tmp_path / "shm"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(private, "_MEMORY_DIR", folder)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(
    ("how", "is_beside"), [("killed", False), ("killed", True), ("ended", False)]
)
def test_recover_can_be_interrupted_at_every_step(
    tmp_path: Path, how: str, is_beside: bool, request: pytest.FixtureRequest
) -> None:
    left: Left = request.getfixturevalue(how)
    output = tmp_path / "run.kprof"
    other = tmp_path / "other"
    other.mkdir()
    goal = other / "run.kprof" if is_beside else output

    def begin() -> Callable[[], object]:
        directory = unfinished_of(output)
        directory.mkdir()
        assert make_memory(directory) == ""
        left.put_into(directory)
        return lambda: recover(directory, goal)

    num_left: list[int] = []

    def check(what: str) -> None:
        if goal.exists() and is_beside:
            goal.rename(output)
        # The copy that a killed one works on goes with the next command; before it is marked, with the next recover.
        remove_garbage()
        left_over = list(other.iterdir())
        assert all(path.name.endswith(".tmp") for path in left_over), what
        assert not left_over or what.startswith("SIGTERM"), what
        num_left.append(len(left_over))
        if is_beside and not output.exists():
            recover(unfinished_of(output), goal)
            goal.rename(output)
            assert not list(other.iterdir()), what
        recover_whatever_is_left(output, what)

    assert at_every_step(begin, check, reads=how == "killed" and not is_beside) > 30
    # Few of all steps: before the copy has its memory, and while it is removed.
    assert sum(num_left) < len(num_left) / 4


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("how", ["killed", "ended"])
def test_record_can_be_interrupted_at_every_step(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """From the end of the workload on: before, nothing is recorded yet, or its ranks do the work."""
    left: Left = request.getfixturevalue(how)
    output = tmp_path / "run.kprof"
    finish: list[Callable[[], object]] = []

    def play(*_: object, **_options: object) -> Outcome:
        with without_faults():
            left.put_into(unfinished_of(output))
        return Outcome(137, False, 1.0)

    monkeypatch.setattr(recording, "run_once", play)

    def begin() -> Callable[[], object]:
        finish.clear()
        asked = recording.RecordRequest((sys.executable, "-c", ""), output)
        return lambda: recording.record(asked)

    def check(what: str) -> None:
        if not output.exists() and not (unfinished_of(output) / "rank-00001.live").exists():
            # Nothing was recorded yet.
            shutil.rmtree(unfinished_of(output), ignore_errors=True)
            remove_garbage()
            return
        recover_whatever_is_left(output, what)

    assert at_every_step(begin, check, reads=False) > 30


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("is_handled", [False, True])
def test_a_rank_that_closes_can_be_stopped_at_every_step(
    tmp_path: Path, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, is_handled: bool
) -> None:
    """By SIGTERM, to which kprof's own handler listens, or by one that ends the process there and then."""
    output = tmp_path / "run.kprof"
    monkeypatch.setenv(process.RECORD_DIR_VARIABLE, str(unfinished_of(output)))
    monkeypatch.setenv(process.ARENA_BYTES_VARIABLE, str(killed_state.ARENA_BYTES))

    def rank() -> None:
        with without_faults():
            recorder = process.recorder(rank=0, world_size=1)
            assert isinstance(recorder, Recorder)
            killed_state.launch_all(library, recorder, 0)
            if not is_handled:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            recorder.close()
        except SystemExit:
            # As the exit handlers do, to which the signal's handler leaves it.
            recorder.close_at_exit()
            raise

    step = -1
    is_stopped = True
    while is_stopped:
        step += 1
        directory = unfinished_of(output)
        directory.mkdir()
        assert make_memory(directory) == ""
        is_stopped = kill_at(step, signal.SIGTERM, rank, is_handled=is_handled)
        capture = recover(directory)
        found = {
            info.rank: info.counts.recorded for info in Capture.open(capture.path).manifest.ranks
        }
        assert found == {0: EMITTED[0]}, f"SIGTERM at step {step}"
        shutil.rmtree(capture.path)
        remove_garbage()
    assert step > 3


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("has_successor", [False, True])
def test_setting_aside_can_be_interrupted_at_every_step(
    tmp_path: Path, killed: Left, has_successor: bool
) -> None:
    """A process takes the rank, or the disk refuses what it holds. Whoever is killed leaves two recordings."""
    output = tmp_path / "run.kprof"

    def begin() -> Callable[[], object]:
        directory = unfinished_of(output)
        directory.mkdir()
        assert make_memory(directory) == ""
        killed.put_into(directory)
        parts = sorted(directory.glob("part-00000-*"))
        if has_successor:
            return lambda: set_aside(directory, 0, parts)
        return lambda: set_aside(directory, 0, saved=leave_to_another(directory, 0))

    def check(what: str) -> None:
        found = dict.fromkeys(EMITTED, 0)
        for directory in sorted(tmp_path.glob("*.unfinished")):
            if not any(directory.glob("rank-*.live")):
                # Killed before anything was in it.
                shutil.rmtree(directory)
                continue
            try:
                capture = recover(directory)
            except WorkloadError:
                shutil.rmtree(directory)
                continue
            for info in Capture.open(capture.path).manifest.ranks:
                found[info.rank] += info.counts.recorded
            shutil.rmtree(capture.path)
        if has_successor and what.startswith("SIGTERM"):
            # What was saved may have moved before the arenas, which have it, too.
            found[0] = min(found[0], EMITTED[0])
        assert found == EMITTED, what
        remove_garbage()
        assert list(private.memory_root().iterdir()) == [], what

    assert at_every_step(begin, check, reads=True) > 15


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_part_is_not_overwritten_and_is_named(
    tmp_path: Path, number: int, killed: Left
) -> None:
    directory = tmp_path / "run.kprof.unfinished"
    directory.mkdir()
    make_memory(directory)
    killed.put_into(directory)
    part = directory / f"part-00000-0000{number}.parquet"
    part.write_bytes(part.read_bytes()[:-9])
    capture = recover(directory)
    found = {info.rank: info for info in capture.manifest.ranks}
    lost = emitted(["run_marks"], [SIZES[0][number]])
    assert found[0].counts.recorded == EMITTED[0] - lost
    assert found[0].cut_short.endswith("what was in its damaged files is lost")
    assert found[1].counts.recorded == EMITTED[1]
    assert found[1].cut_short.endswith("no launch is lost")
    assert f"rank 0: {part.name} is damaged" in " ".join(capture.manifest.messages)
