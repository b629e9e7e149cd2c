"""The one recorder of a process, where several threads ask for it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from kprof.devices import apart, captures, gpu
from kprof.errors import CaptureError, NoRoomError
from kprof.recording.endings import complaints
from kprof.recording.rank import process, saver
from kprof.recording.rank.null_recorder import NullRecorder
from kprof.recording.rank.recorder import Recorder

WITH_NUMBER = gpu.with_number


class Opened(NullRecorder):
    """Says which thread made it, and with how much memory."""

    rank = 0
    most_bytes = 1 << 62

    def __init__(self, *arguments: object, arena_bytes: int, **options: object) -> None:
        if arena_bytes > self.most_bytes:
            raise NoRoomError("no room")
        self.place = options["rank"], options["world_size"]
        self.arena_bytes = arena_bytes
        self.notes: list[str] = []
        self.thread = threading.current_thread()

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def under_kprof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Opened]:
    """As in a workload whose GPU is another one's."""
    complaints.complain_once.cache_clear()
    monkeypatch.setenv(process.RECORD_DIR_VARIABLE, str(tmp_path))
    monkeypatch.setattr(process, "Recorder", Opened)
    monkeypatch.setattr(process, "_process_recorder", None)
    monkeypatch.setattr(process.lifetime, "end_well_on_signals", lambda: None)
    monkeypatch.setattr(process.saver, "start", lambda: None)
    monkeypatch.setattr(gpu, "is_capturing", lambda: False)
    monkeypatch.setattr(gpu, "with_number", lambda _: "cuda:0")
    monkeypatch.setattr(apart.gpu, "make_current", lambda _: None)
    monkeypatch.setattr(Opened, "most_bytes", 1 << 62)
    return Opened


def test_a_recorder_of_a_gpu_is_made_on_a_thread_of_its_own(
    under_kprof: type[Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the workload has set for torch is set for its thread, and graphs that others capture do not fail of it."""
    relaxed: list[threading.Thread] = []
    monkeypatch.setattr(
        apart.gpu, "ignore_captures", lambda: relaxed.append(threading.current_thread())
    )
    recorder = process.recorder(rank=0, device="cuda")
    assert isinstance(recorder, under_kprof)
    assert recorder.thread is not threading.current_thread()
    assert relaxed == [recorder.thread]


@pytest.mark.parametrize(
    "error",
    [
        OSError(24, "Too many open files"),
        RuntimeError("can't start new thread"),
        ImportError("failed to map segment from shared object"),
        MemoryError("no memory"),
        NoRoomError("no room"),
    ],
)
def test_limits_of_the_process_end_no_workload(
    error: Exception,
    under_kprof: type[Opened],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(under_kprof, "__init__", refuse)
    assert not process.recorder(rank=0, device="cuda").is_recording
    assert f"rank 0 records nothing: {error}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("No CUDA GPUs are available"),
        AssertionError("Torch not compiled with CUDA enabled"),
        ImportError("No module named 'torch'"),
    ],
)
def test_a_gpu_that_is_not_there_ends_no_workload(
    error: Exception,
    under_kprof: type[Opened],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is refused, also in later calls, and after a recorder of the CPU target."""

    def refuse() -> int:
        raise error

    monkeypatch.setattr(gpu, "ignore_captures", lambda: None)
    cuda = SimpleNamespace(current_device=refuse)
    monkeypatch.setattr(gpu, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(gpu, "with_number", WITH_NUMBER)
    monkeypatch.setattr(under_kprof, "most_bytes", 0)
    for _ in range(2):
        assert not process.recorder(rank=0, device="cuda").is_recording
    assert "rank 0 records nothing: no room" in capsys.readouterr().err
    on_cpu = NullRecorder()
    on_cpu.device = "cpu"
    monkeypatch.setattr(process, "_process_recorder", on_cpu)
    assert not process.recorder(rank=0, device="cuda").is_recording
    said = capsys.readouterr().err
    assert "what runs on cuda is not recorded" in said
    assert "this one cpu; name it at first: kprof.recorder(device=" in said


def test_a_timeout_of_the_workloads_is_its_own(
    under_kprof: type[Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its signal handler may raise one while a recorder opens."""

    def interrupted(*_: object, **__: object) -> None:
        raise TimeoutError("30 s are over")

    monkeypatch.setattr(under_kprof, "__init__", interrupted)
    with pytest.raises(TimeoutError, match="30 s"):
        process.recorder(rank=0, device="cuda")


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), RuntimeError("no thread")])
def test_nothing_listens_where_a_limit_refuses_it(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise error

    monkeypatch.setattr(saver, "_saver", None)
    monkeypatch.setattr(saver, "_Saver", refuse)
    saver.start()
    assert saver.signal_here() == 0


def test_a_process_that_may_not_look_any_more_leaves_its_arenas_to_kprof() -> None:
    """It has become another user, say."""

    def refuse() -> bool:
        raise PermissionError

    recorder = SimpleNamespace(
        _ledger=SimpleNamespace(is_whole=True), _directory=SimpleNamespace(is_dir=refuse)
    )
    assert Recorder._outlives(recorder, CaptureError("no leave"))  # type: ignore[arg-type]


def test_no_recorder_is_made_while_a_graph_is_captured(
    under_kprof: type[Opened], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Launches in the graph are not recorded, which is said once; later ones are."""
    monkeypatch.setattr(gpu, "is_capturing", lambda: True)
    for _ in range(2):
        assert not isinstance(process.recorder(rank=0, device="cuda"), under_kprof)
    assert capsys.readouterr().err.count("launch once before the capture") == 1
    monkeypatch.setattr(gpu, "is_capturing", lambda: False)
    assert isinstance(process.recorder(rank=0, device="cuda"), under_kprof)


class Graphs:
    """Stands for torch.cuda.CUDAGraph, of which every capture fails."""

    def capture_begin(self, pool: object = None) -> None:
        pass

    def capture_end(self) -> None:
        raise RuntimeError("the capture has failed")


def test_no_recorder_is_made_while_another_thread_captures(
    under_kprof: type[Opened], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Opening one waits for the device, and the capture would fail of it, in any mode."""
    complaints.complain_once.cache_clear()
    monkeypatch.setattr(gpu, "is_capturing", lambda: False)
    for _ in range(2):
        captures.watch(Graphs)
    graph = Graphs()
    graph.capture_begin(pool=3)
    for _ in range(2):
        assert not isinstance(process.recorder(rank=0, device="cuda"), under_kprof)
    assert capsys.readouterr().err.count("while another thread captures a graph") == 1
    with pytest.raises(RuntimeError, match="the capture has failed"):
        graph.capture_end()
    assert isinstance(process.recorder(rank=0, device="cuda"), under_kprof)


class TorchDevice:
    def __str__(self) -> str:
        return "cuda:0"


def test_kernels_of_another_gpu_do_not_get_it(
    under_kprof: type[Opened], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its memory is a fault there, which would end the program."""
    complaints.complain_once.cache_clear()
    monkeypatch.setattr(under_kprof, "device", "cuda:0")
    monkeypatch.setattr(gpu, "with_number", lambda name: name if ":" in name else "cuda:0")
    first = process.recorder(rank=0, device="cuda:0")
    for device in ("cuda:1", "cuda:1", "cuda:0", "cuda", "cpu", TorchDevice()):
        found = process.recorder(rank=0, device=device)  # type: ignore[arg-type]
        assert (found is first) == (device != "cuda:1")
    said = "kprof: what runs on cuda:1 is not recorded: a process records one device, this one"
    assert capsys.readouterr().err == f"{said} cuda:0\n"


def test_an_arena_is_as_large_as_there_is_memory(
    under_kprof: type[Opened], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(process.ARENA_BYTES_VARIABLE, str(512 << 20))
    monkeypatch.setattr(under_kprof, "most_bytes", 200 << 20)
    recorder = process.recorder(rank=0, device="cuda")
    assert isinstance(recorder, under_kprof)
    assert recorder.arena_bytes == 128 << 20
    text = "no room for an arena of 512 MiB on cuda; it has 128 MiB"
    assert recorder.notes == [text]
    assert f"kprof: rank 0: {text}\n" in capsys.readouterr().err


def test_threads_that_ask_at_once_share_a_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    found = []

    def ask() -> None:
        found.append(process.recorder(rank=0))

    other = threading.Thread(target=ask)

    class Opening(NullRecorder):
        def __init__(self, *arguments: object, **options: object) -> None:
            opened.append(self)
            if len(opened) == 1:
                # Without a lock the other thread opens one before the first is there.
                other.start()
                other.join(0.2)

    monkeypatch.setenv(process.RECORD_DIR_VARIABLE, str(tmp_path))
    monkeypatch.setattr(process, "Recorder", Opening)
    monkeypatch.setattr(process, "_process_recorder", None)
    monkeypatch.setattr(process.lifetime, "end_well_on_signals", lambda: None)
    monkeypatch.setattr(process.saver, "start", lambda: None)
    ask()
    other.join()
    assert found == opened * 2


@pytest.fixture
def launched(under_kprof: type[Opened], monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nobody has told this process its rank, and torch.distributed has begun as the third of four."""
    for name in (*process._RANK_VARIABLES, *process._WORLD_SIZE_VARIABLES, "RAY_RAYLET_PID"):
        monkeypatch.delenv(name, raising=False)
    begun = {"is_available": True, "is_initialized": True, "get_rank": 2, "get_world_size": 4}
    dist = SimpleNamespace(**{name: lambda value=value: value for name, value in begun.items()})
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    return monkeypatch


@pytest.mark.parametrize(
    ("is_begun", "said", "expected"),
    [
        # As in actors of Ray, which no launcher gives a number; also where Ray itself runs under Slurm.
        (True, {}, (2, 4)),
        # What torchrun says comes first.
        (True, {"RANK": "5", "WORLD_SIZE": "8"}, (5, 8)),
        (False, {}, (1, 2)),
        # Ray hands down the place of whoever started it.
        (False, {"RAY_RAYLET_PID": "4711"}, (0, 1)),
    ],
)
def test_who_tells_a_rank_its_place(
    launched: pytest.MonkeyPatch, is_begun: bool, said: dict[str, str], expected: tuple[int, int]
) -> None:
    launched.setattr(sys.modules["torch.distributed"], "is_initialized", lambda: is_begun)
    for name, value in ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"} | said).items():
        launched.setenv(name, value)
    recorder = process.recorder()
    assert isinstance(recorder, Opened)
    assert recorder.place == expected
