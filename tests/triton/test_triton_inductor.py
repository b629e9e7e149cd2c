"""`kprof record --inductor`: kernels of torch.compile, in the interpreter as a whole, and piecewise for a GPU."""

from __future__ import annotations

import ast
import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from needed import interpreter_fails, require_triton
from typer.testing import CliRunner

require_triton()

import torch  # noqa: E402
import triton  # noqa: E402

from in_process import run_kprof  # noqa: E402
from kprof.errors import TargetError  # noqa: E402
from kprof.recording.arenas.turns import Room  # noqa: E402
from kprof.recording.endings import complaints  # noqa: E402
from kprof.recording.launcher.record import session  # noqa: E402
from kprof.recording.launches.launch_buffer import NULL_BUFFER, LaunchBuffer  # noqa: E402
from kprof.recording.rank import process  # noqa: E402
from kprof.recording.rank.null_recorder import NullRecorder  # noqa: E402
from kprof.recording.rank.recorder import Recorder  # noqa: E402
from kprof.recording.retention.drainer import Drainer  # noqa: E402
from kprof.recording.retention.retention import Retention  # noqa: E402
from kprof.regions import RegionTable  # noqa: E402
from kprof.trace import Trace  # noqa: E402
from kprof.triton import inductor  # noqa: E402
from kprof.triton.buffer import words_of  # noqa: E402
from kprof.triton.inductor import STARTUP_DIR, check_torch, wrap_launcher  # noqa: E402
from kprof.triton.instrument import WORDS  # noqa: E402
from kprof_cli.main import app  # noqa: E402

WORKLOAD = Path(__file__).parent / "compiled_by_torch.py"


def this_torch() -> str:
    return str(torch.__version__)


def require_tested_torch() -> None:
    try:
        check_torch(this_torch())
    except TargetError as error:
        pytest.skip(str(error))


def test_every_program_of_a_compiled_function_has_a_span(tmp_path: Path) -> None:
    """64 x 100 numbers, three calls; the workload compares with float64. The configuration decides the programs."""
    require_tested_torch()
    if reason := interpreter_fails():
        pytest.skip(reason)
    path = tmp_path / "run.kprof"
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    answer = run_kprof(
        ["record", "--inductor", "-o", path, "--", "python", WORKLOAD],
        environment=os.environ | {"TRITON_INTERPRET": "1"} | cache,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    launches = Trace.open(path).frame(
        """SELECT kernel, region, launch, count(*) AS n, count(DISTINCT block) AS blocks,
                  max(block) + 1 AS programs
           FROM events GROUP BY ALL ORDER BY launch"""
    )
    assert len(launches) == 3
    assert set(launches["kernel"]) == set(launches["region"])
    assert set(launches["kernel"]) == {"triton_poi_fused_add_mul_relu_0"}
    assert (launches["n"] == launches["blocks"]).all()
    assert (launches["n"] == launches["programs"]).all()
    assert launches["n"].min() > 1


@pytest.mark.parametrize(
    ("options", "kept"),
    [((), (True, 0.05)), (("--drain",), (True, 1.0)), (("--arena-size", "1MiB"), (False, 1.0))],
)
def test_events_are_written_in_a_share_of_the_time_unless_asked_for(
    tmp_path: Path, options: tuple[str, ...], kept: tuple[bool, float]
) -> None:
    require_tested_torch()
    command = ["python", "-c", "import os; print(os.environ['KPROF_RETENTION'])"]
    answer = run_kprof(
        ["record", "--inductor", *options, "-o", tmp_path / "run.kprof", "--", *command]
    )
    assert answer.returncode == 0, answer.stderr
    retention = json.loads(answer.stdout)
    assert (retention["drain"], retention["drain_share"]) == kept


@pytest.mark.parametrize("version", ["2.10.0", "2.14.0+cu130", "3.0.0"])
def test_a_torch_that_was_not_tested_is_refused(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        TargetError, match=r"--inductor is tested with torch 2\.11, 2\.13, and this is torch"
    ):
        check_torch(version)
    monkeypatch.setenv("KPROF_TORCH_ANY_VERSION", "1")
    check_torch(version)


def test_the_command_refuses_it_before_the_workload_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inductor, "TESTED_TORCH", ("2.1",))
    touched = tmp_path / "touched"
    output = ["-o", str(tmp_path / "run.kprof")]
    result = CliRunner().invoke(app, ["record", "--inductor", *output, "--", "touch", str(touched)])
    assert isinstance(result.exception, TargetError)
    assert "--inductor is tested with torch 2.1, and this is torch" in str(result.exception)
    assert not touched.exists()


@pytest.mark.parametrize(
    ("options", "device", "code"),
    [
        (["--inductor"], "cuda:99", 0),
        (["--inductor"], "cuda", 0),
        (["--inductor", "--strict"], "cuda:99", 1),
        ([], "cuda:99", 1),
    ],
)
def test_a_recorder_that_is_refused_does_not_change_the_exit_code(
    tmp_path: Path, options: list[str], device: str, code: int
) -> None:
    """Later calls get the same one."""
    output = ["-o", tmp_path / "run.kprof"]
    program = f"import kprof; kprof.recorder(device={device!r}); kprof.recorder(device={device!r})"
    no_gpu = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    answer = run_kprof(
        ["record", *options, *output, "--", "python", "-c", program],
        environment=os.environ | no_gpu,
    )
    assert answer.returncode == code, answer.stderr
    assert "there is no capture: rank 0 records nothing: there is no device" in answer.stderr


def test_a_process_that_is_left_behind_does_not_change_the_exit_code(tmp_path: Path) -> None:
    """A server that a program has started, say. It may record, so what it needs for that is kept."""
    output = ["-o", tmp_path / "run.kprof"]
    command = ["sh", "-c", "sleep 600 > /dev/null 2>&1 & echo $!"]
    answer = run_kprof(["record", "--inductor", *output, "--", *command])
    left = int(answer.stdout)
    os.kill(left, signal.SIGKILL)
    assert answer.returncode == 0, answer.stderr
    assert f"but something may still record (process {left}): when that has ended" in answer.stderr
    assert "call kprof.recorder()" not in answer.stderr


@pytest.mark.parametrize("code", [0, 3])
def test_a_program_that_removes_the_recording_keeps_its_exit_code(
    tmp_path: Path, code: int
) -> None:
    output = tmp_path / "run.kprof"
    command = ["sh", "-c", f"rm -r {output}.unfinished; exit {code}"]
    answer = run_kprof(["record", "--inductor", "-o", output, "--", *command])
    assert answer.returncode == code, answer.stderr
    assert "was removed while the workload ran" in answer.stderr


@pytest.mark.parametrize(
    ("options", "ends_with", "code"),
    [([], 3, 3), (["--inductor"], 0, 0)],
)
def test_a_capture_that_cannot_be_finished_does_not_hide_the_exit_code(
    tmp_path: Path, options: list[str], ends_with: int, code: int
) -> None:
    path = tmp_path / "run.kprof"
    program = f"import kprof; kprof.recorder(); open({str(path)!r}, 'w'); exit({ends_with})"
    answer = run_kprof(["record", *options, "-o", path, "--", "python", "-c", program])
    assert answer.returncode == code, answer.stderr
    assert "the ranks' files are kept in" in answer.stderr


def test_a_process_that_ends_after_the_program_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of multiprocessing do."""
    monkeypatch.setattr("kprof.recording.launcher.record._LATE_TIMEOUT_S", 600.0)
    output = ["-o", tmp_path / "run.kprof"]
    command = ["sh", "-c", "sleep 2 > /dev/null 2>&1 &"]
    answer = run_kprof(["record", "--inductor", *output, "--", *command])
    assert answer.returncode == 0, answer.stderr
    assert "may still record" not in answer.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("hidden", "prints"),
    [
        ("VALUE = 'the other one'\n", "the other one"),
        (None, "none"),
        # As `ddtrace-run` and others hand over to the next one.
        (
            "import sys\nsys.path.remove(sys.path[0])\ndel sys.modules['sitecustomize']\n"
            "import sitecustomize\nsitecustomize.VALUE += ', chained'\n",
            "the next one, chained",
        ),
    ],
)
def test_python_is_as_without_our_sitecustomize(
    tmp_path: Path, hidden: str | None, prints: str
) -> None:
    """Whoever imports sitecustomize gets the one that ours hides, or none."""
    for name, text in (("first", hidden), ("next", "VALUE = 'the next one'\n" if hidden else None)):
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "sitecustomize.py").write_text(text)
    program = (
        "import sys\n"
        "try:\n    from sitecustomize import VALUE\n"
        "except ImportError:\n    VALUE = 'none'\n"
        "print(VALUE, sys.path, sep='\\n')"
    )
    hers = [str(tmp_path / "first"), str(tmp_path / "next")]
    printed = []
    for paths, record_dir in (
        (hers, {}),
        ([str(STARTUP_DIR), *hers], {}),
        ([str(STARTUP_DIR), *hers], {"KPROF_RECORD_DIR": str(tmp_path)}),
    ):
        answer = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": os.pathsep.join(paths), **record_dir},
            capture_output=True,
            text=True,
            check=True,
        )
        assert answer.stderr == ""
        printed.append(answer.stdout)
    assert printed[0].startswith(f"{prints}\n")
    assert printed[1:] == [printed[0]] * 2


def test_our_sitecustomize_is_for_any_python_3() -> None:
    """A workload may start a Python of its system, for which an error here would be a line on stderr."""
    tree = ast.parse((STARTUP_DIR / "sitecustomize.py").read_text(), feature_version=(3, 6))
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert "__future__" not in imported
    evaluated = [
        node
        for part in ast.walk(tree)
        for name in ("annotation", "returns")
        if (node := getattr(part, name, None)) is not None
    ]
    assert evaluated
    assert all(isinstance(node, ast.Name | ast.Constant) for node in evaluated)


def test_a_launch_function_that_was_taken_early_is_wrapped_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """max-autotune takes a kernel's, and calls it a hundred times to time the kernel."""
    calls: list[str] = []

    class Early:
        def run(self, *, stream: int) -> None:
            calls.append(f"launch on {stream}")

    def wrap_all(module: Any) -> None:
        calls.append("wrapped")
        original = module.CachingAutotuner.run

        def run(tuner: Any, *, stream: int) -> None:
            calls.append("ours")
            original(tuner, stream=stream)

        module.CachingAutotuner.run = run

    monkeypatch.setattr(inductor, "wrap_launcher", wrap_all)
    text = (STARTUP_DIR / "sitecustomize.py").read_text().partition('\nif "KPROF_RECORD_DIR"')[0]
    scope: dict[str, Any] = {"__file__": "sitecustomize.py"}
    exec(text, scope)
    scope["_wrap"](SimpleNamespace(CachingAutotuner=Early))
    taken = Early().run
    for _ in range(3):
        taken(stream=7)
    assert calls == ["wrapped", *["ours", "launch on 7"] * 3]


class Launched:
    """What Inductor launched, and what we launched; steps of ours that should fail."""

    def __init__(self) -> None:
        self.by: list[tuple[str, tuple[Any, ...]]] = []
        self.failing: set[str] = set()

    def step(self, name: str) -> None:
        if name in self.failing:
            raise RuntimeError(f"{name} failed\nand more lines")


class Result:
    """What Inductor compiled, with a launcher of the same form as in torch."""

    def __init__(self, tuner: Tuner) -> None:
        self._tuner = tuner

    def make_launcher(self) -> Any:
        launched, who = self._tuner.all, self._tuner.name
        if who == "copy":
            launched.step("load")

        def runner(x: int, y: int, z: int, *rest: Any) -> None:
            if who == "copy":
                launched.step("launch")
            launched.by.append((who, (x, y, z, *rest)))

        scope = {"runner": runner}
        exec("def launcher(x, n, stream):\n    runner(n, 2, 1, stream, x, n)", scope)
        scope["launcher"].config = SimpleNamespace()  # type: ignore[attr-defined]
        scope["launcher"].store_cubin = False  # type: ignore[attr-defined]
        return scope["launcher"]


class Tuner:
    """As much of a CachingAutotuner as decides who launches."""

    name = "Inductor"

    def __init__(self, launched: Launched, *, num_launchers: int = 1, **meta: object) -> None:
        import inductor_kernel

        self.all = launched
        self.launchers = [Result(self).make_launcher() for _ in range(num_launchers)]
        self.inductor_meta = meta
        self.triton_interpret = False
        self.device_props = SimpleNamespace(type="cuda")
        self.triton_meta: dict[str, Any] = {"signature": {"x": "*fp32"}, "device": 0}
        self.filename = None
        self.fn = inductor_kernel.doubled.fn

    def _precompile_config(self, config: object) -> Result:
        self.all.step("compile")
        assert hasattr(triton, "compile")
        assert list(self.triton_meta["signature"])[1:] == list(WORDS)
        assert self.fn.arg_names[-4:] == list(WORDS)
        self.name = "copy"
        return Result(self)

    def run(self, *args: Any, stream: int, benchmark_run: bool = False) -> None:
        if len(self.launchers) > 1:
            self.launchers = self.launchers[:1]
        self.launchers[0](*args, stream=stream)


class FakeRecorder(NullRecorder):
    """Records nothing, but hands out buffers."""

    is_recording = True

    def __init__(self, launched: Launched) -> None:
        self._all = launched
        self.sizes: list[int] = []
        self.is_paused = False

    def launch(self, kernel: str, *arguments: Any, **sizes: Any) -> LaunchBuffer:
        self._all.step("recorder.launch")
        if self.is_paused:
            return NULL_BUFFER
        self.sizes.append(sizes["num_blocks"])
        assert sizes["shares_chunks"]
        return LaunchBuffer(1 << 40, len(self.sizes), 100, 1, 64, 32, 32)


@pytest.fixture
def launched() -> Launched:
    return Launched()


@pytest.fixture
def recorder(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> FakeRecorder:
    recorder = FakeRecorder(launched)

    def opened(device: str) -> FakeRecorder:
        launched.step("recorder")
        return process._for_kernels_on(device, recorder)

    real_source, real_words = inductor._with_source, inductor.words_of

    def source(tuner: Tuner) -> Any:
        launched.step("source")
        return real_source(tuner)

    def words(launch: LaunchBuffer) -> Any:
        launched.step("words")
        return real_words(launch)

    monkeypatch.setattr(inductor, "process_recorder", opened)
    monkeypatch.setattr(inductor, "_with_source", source)
    monkeypatch.setattr(inductor, "words_of", words)
    monkeypatch.setattr(inductor, "is_capturing", lambda: False)
    return recorder


@pytest.fixture
def tuners(monkeypatch: pytest.MonkeyPatch, recorder: FakeRecorder) -> Any:
    """The class, wrapped; its own run comes back after the test."""
    require_tested_torch()
    monkeypatch.setattr(Tuner, "run", Tuner.run)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    for name in ("capture_begin", "capture_end", "replay"):
        monkeypatch.setattr(torch.cuda.CUDAGraph, name, getattr(torch.cuda.CUDAGraph, name))
    wrap_launcher(SimpleNamespace(CachingAutotuner=Tuner))  # type: ignore[arg-type]
    return Tuner


def test_a_launch_is_inductors_with_four_numbers_more(
    tuners: Any, launched: Launched, recorder: FakeRecorder
) -> None:
    tuner = tuners(launched)
    for _ in range(2):
        tuner.run("x", 3, stream=7)
    assert recorder.sizes == [6, 6]
    expected = [words_of(LaunchBuffer(1 << 40, n, 100, 1, 64, 32, 32)) for n in (1, 2)]
    assert launched.by == [("copy", (3, 2, 1, 7, "x", 3, *words)) for words in expected]


STEPS = ("recorder", "source", "compile", "load", "recorder.launch", "words", "launch")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("launches_before", [0, 2])
def test_whatever_of_ours_fails_inductor_launches_the_kernel(
    tuners: Any,
    launched: Launched,
    step: str,
    launches_before: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tuner = tuners(launched)
    for _ in range(launches_before):
        tuner.run("x", 3, stream=7)
    launched.by.clear()
    launched.failing.add(step)
    for _ in range(2):
        tuner.run("x", 3, stream=7)
    # Once the copy is there, nothing makes it again.
    is_past = launches_before > 0 and step in STEPS[:4]
    assert [by for by, _ in launched.by] == ["copy" if is_past else "Inductor"] * 2
    if not is_past:
        assert launched.by == [("Inductor", (3, 2, 1, 7, "x", 3))] * 2
    line = f"kprof: triton_poi_fused_doubled_0 of torch.compile is not recorded: {step} failed\n"
    assert capsys.readouterr().err == ("" if is_past else line)


def test_inductor_launches_its_own_function_where_a_launcher_names_it() -> None:
    """Launchers that are not static pass the compiled function and its metadata."""
    calls: list[tuple[Any, ...]] = []

    def runner(*arguments: Any) -> None:
        calls.append(arguments)

    scope = {"runner": runner, "function": "theirs", "metadata": "their metadata"}
    launcher = FunctionType((lambda: None).__code__, scope)
    inductor._runner(launcher)(1, 2, 3, 7, "ours", "our metadata", None, "x", "n")
    assert calls == [(1, 2, 3, 7, "theirs", "their metadata", None, "x", "n")]


def test_nothing_of_ours_happens_while_a_graph_is_captured(
    tuners: Any,
    launched: Launched,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The copy is made at the first launch that is not captured; a line says what is missing."""
    complaints.complain_once.cache_clear()
    launched.failing |= set(STEPS)
    tuner = tuners(launched)
    monkeypatch.setattr(inductor, "is_capturing", lambda: True)
    tuner.run("x", 3, stream=7)
    launched.failing.clear()
    monkeypatch.setattr(inductor, "is_capturing", lambda: False)
    tuner.run("x", 3, stream=7)
    monkeypatch.setattr(inductor, "is_capturing", lambda: True)
    tuner.run("x", 3, stream=7)
    assert [by for by, _ in launched.by] == ["Inductor", "copy", "copy"]
    assert capsys.readouterr().err == (
        "kprof: kernels of torch.compile that are launched for the first time while a graph is "
        "captured are not recorded in it; launch everything once before\n"
    )


def test_runs_of_the_tuner_are_left_alone(
    tuners: Any, launched: Launched, recorder: FakeRecorder
) -> None:
    tuner = tuners(launched)
    tuner.run("x", 3, stream=7, benchmark_run=True)
    tuner.run("x", 3, stream=7)
    tuner.run("x", 3, stream=7, benchmark_run=True)
    tuner.run("x", 3, stream=7)
    assert [by for by, _ in launched.by] == ["Inductor", "copy"] * 2
    candidate = tuners(launched)
    candidate.fn = SimpleNamespace(__name__="triton_", fn=None)
    candidate.run("x", 3, stream=7)
    assert launched.by[-1][0] == "Inductor"


def test_kernels_whose_functions_have_one_name_are_recorded_under_their_own(
    tuners: Any,
    launched: Launched,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without unique_kernel_names; candidates have no name."""
    for name in ("Placeholder.DESCRIPTIVE_NAME", "triton_poi_fused_mul_7"):
        tuner = tuners(launched, kernel_name=name)
        monkeypatch.setattr(tuner, "fn", SimpleNamespace(__name__="triton_", fn=None))
        tuner.run("x", 3, stream=7)
    # There is no source: what would have been recorded is named.
    said = capsys.readouterr().err
    assert said == (
        "kprof: triton_poi_fused_mul_7 of torch.compile is not recorded: its source is not known\n"
    )


def test_a_launch_that_is_not_recorded_is_inductors(
    tuners: Any, launched: Launched, recorder: FakeRecorder
) -> None:
    tuner = tuners(launched)
    for is_paused in (False, True, False):
        recorder.is_paused = is_paused
        tuner.run("x", 3, stream=7)
    assert [by for by, _ in launched.by] == ["copy", "Inductor", "copy"]


@pytest.mark.parametrize(
    "meta", [{"num_launchers": 3}, {"num_launchers": 0}, {"coordinate_descent_tuning": True}]
)
def test_a_kernel_is_tuned_by_inductor_before_it_is_recorded(
    tuners: Any, launched: Launched, meta: dict[str, Any]
) -> None:
    tuner = tuners(launched, **meta)
    if not tuner.launchers:
        # Inductor compiles the kernel at its first launch.
        made = Result(tuner).make_launcher()
        original = Tuner.run.__wrapped__  # type: ignore[attr-defined]
        tuner.launchers = [made]
        original(tuner, "x", 3, stream=7)
    else:
        tuner.run("x", 3, stream=7)
    tuner.run("x", 3, stream=7)
    assert [by for by, _ in launched.by] == ["Inductor", "copy"]


def test_a_kernel_that_is_tuned_again_is_recorded_again(tuners: Any, launched: Launched) -> None:
    """As Inductor does where a second graph has the same kernel."""
    tuner = tuners(launched)
    tuner.run("x", 3, stream=7)
    tuner.launchers = [Result(tuner).make_launcher() for _ in range(2)]
    for _ in range(2):
        tuner.run("x", 3, stream=7)
    assert [by for by, _ in launched.by] == ["copy", "Inductor", "copy"]


def test_kernels_that_cpp_launches_are_named_once(
    tuners: Any, launched: Launched, capsys: pytest.CaptureFixture[str]
) -> None:
    """Inductor launches them once from Python, and keeps the code of that launch."""
    complaints.complain_once.cache_clear()
    for _ in range(2):
        tuner = tuners(launched)
        tuner.launchers[0].store_cubin = True
        tuner.run("x", 3, stream=7)
    assert [by for by, _ in launched.by] == ["Inductor"] * 2
    assert capsys.readouterr().err == (
        "kprof: kernels of torch.compile that C++ launches (cpp_wrapper, AOTInductor) are not "
        "recorded\n"
    )


@pytest.mark.parametrize("recorded", ["cuda:1", "cpu"])
def test_a_gpu_that_the_recorder_is_not_for_is_left_alone(
    recorded: str,
    tuners: Any,
    launched: Launched,
    recorder: FakeRecorder,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A second one; or all of them, where a program has called kprof.recorder() before."""
    complaints.complain_once.cache_clear()
    recorder.device = recorded
    for device in (1, 0, 0):
        tuner = tuners(launched)
        tuner.triton_meta = {**tuner.triton_meta, "device": device}
        tuner.run("x", 3, stream=7)
    first = "copy" if recorded == "cuda:1" else "Inductor"
    assert [by for by, _ in launched.by] == [first, "Inductor", "Inductor"]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == (1 if recorded == "cuda:1" else 2)
    assert f"not recorded: a process records one device, this one {recorded}" in said[-1]


class FakeGraph:
    """A graph that notes what happens to it and to the recorder."""

    calls: ClassVar[list[str]] = []

    def capture_begin(self, pool: object = None) -> None:
        self.calls.append(f"begin {pool}")

    def capture_end(self) -> None:
        self.calls.append("end")

    def replay(self) -> None:
        self.calls.append("replay")


def test_no_copy_is_made_while_another_thread_captures(
    launched: Launched, recorder: FakeRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading it would make that capture fail. It is made afterwards, also of a capture that has failed."""
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    for name in ("capture_begin", "capture_end", "replay"):
        monkeypatch.setattr(FakeGraph, name, getattr(FakeGraph, name))

    def fail(_: FakeGraph) -> None:
        raise RuntimeError("the capture has failed")

    monkeypatch.setattr(FakeGraph, "capture_end", fail)
    copies, tuner, graph = inductor._Copies(), Tuner(launched), FakeGraph()
    inductor._announce_replays(FakeGraph, copies)
    own = tuner.launchers
    graph.capture_begin()
    copies.take_over(tuner)
    assert tuner.launchers is own
    with pytest.raises(RuntimeError, match="the capture has failed"):
        graph.capture_end()
    copies.take_over(tuner)
    assert tuner.launchers is not own


class FakeGraphRecorder(NullRecorder):
    """Fails where it is told to."""

    failing: ClassVar[set[str]] = set()

    def _step(self, name: str) -> None:
        FakeGraph.calls.append(name)
        if name in self.failing:
            raise RuntimeError(f"{name} failed")

    def note_capture(self, *, is_end: bool) -> Any:
        self._step("capture ends" if is_end else "capture begins")
        return (
            Room(3, FakeGraph.calls.append, FakeGraph.calls.append, lambda: None)
            if is_end
            else None
        )

    def note_replay(self, graph: int = 0, room: Any = None) -> None:
        self._step(f"note {room and room.idx}")

    def note_replayed(self, graph: int, room: Any, *, was_ready: bool) -> None:
        self._step(f"replayed {room and room.idx}, {was_ready}")
        if room is not None:
            room.is_ready = True


@pytest.mark.parametrize(
    "failing", ["", "capture begins", "capture ends", "note 3", "replayed 3, False"]
)
def test_the_recorder_hears_of_captures_and_replays(
    failing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this order; and graphs are captured and replayed, whatever of ours fails."""
    monkeypatch.setattr(FakeGraph, "calls", [])
    monkeypatch.setattr(FakeGraphRecorder, "failing", {failing})
    for name in ("capture_begin", "capture_end", "replay"):
        monkeypatch.setattr(FakeGraph, name, getattr(FakeGraph, name))
    copies = inductor._Copies()
    inductor._announce_replays(FakeGraph, copies)
    early, graph = FakeGraph(), FakeGraph()
    early.capture_begin()
    early.capture_end()
    copies.recorder = FakeGraphRecorder()
    graph.capture_begin(pool=3)
    graph.capture_end()
    for each in (graph, graph, early):
        each.replay()
    room = "None" if failing == "capture ends" else "3"
    before = [["begin None", "end"], ["begin 3", "capture begins", "capture ends", "end"]]
    replays = [
        [f"note {room}", "replay", f"replayed {room}, False"],
        ["replay", "replayed 3, True"] if room == "3" else ["note None", "replay", "replayed None, False"],
        ["note None", "replay", "replayed None, False"],
    ]  # fmt: skip
    expected = [*itertools.chain.from_iterable(before + replays)]
    if failing in replays[0]:
        # Nothing of ours after that.
        last = expected.index(failing)
        expected = expected[: last + 1] + ["replay"] * expected[last + 1 :].count("replay")
    assert FakeGraph.calls == expected
    has_failed = failing in replays[0]
    said = f"kprof: graphs may lose events: {failing} failed\n" if has_failed else ""
    assert capsys.readouterr().err == said


# The first kernel begins calls. The last launches reserve nothing.
GRIDS = [("a", 64), ("b", 1800), ("b", 1), ("a", 64), ("b", 70_000), ("b", 0)] * 40
# Between launches, an arena is emptied, a launch captured, or a step ends.
OTHERS = [("look", 0)] * 8 + [("capture", 0), ("step", 0)]


def random_grids(seed: int) -> list[tuple[str, int]]:
    """400 launches with OTHERS among them, from some number on."""
    source = random.Random(seed)
    grids = source.choices(GRIDS[:4] * 20 + GRIDS[:6], k=400)
    for _ in range(6):
        grids.insert(source.randrange(60, len(grids)), source.choice(OTHERS))
    return grids


def launched_words(
    directory: Path, retention: Retention, grids: list[tuple[str, int]], *, at_once: bool
) -> tuple[list[Any], int]:
    """What launches on `grids` get, None where they are left out; and how many went the short way."""
    num_long = num_launches = 0
    regions = SimpleNamespace(table=RegionTable.of(["work"]))
    recorder = Recorder(
        directory, rank=0, world_size=1, regions=["work"], arena_bytes=1 << 20, retention=retention
    )
    turns, drainer = recorder._turns, recorder._drainer
    address = turns.active.address
    long_way = recorder.launch

    def launch(*arguments: Any, **more: Any) -> Any:
        nonlocal num_long
        num_long += 1
        return long_way(*arguments, **more)

    recorder.launch = launch  # type: ignore[method-assign]
    copies = {name: inductor._Copy(None, name, regions, recorder) for name in "ab"}  # type: ignore[arg-type]
    every: list[Any] = []
    others = {
        "look": drainer.look if drainer else recorder.flush,
        "capture": lambda: long_way("captured", regions.table, num_blocks=64, is_replayed=True),
        "step": recorder.step,
    }
    for name, num_blocks in grids:
        if name in others:
            others[name]()
            continue
        num_launches += 1
        whole = copies[name].of(num_blocks)
        if not at_once:
            # Nothing is known of earlier launches.
            whole.made = None, 0, (0, 0, 0, 0)
        words = recorder.launch_whole(whole, None)
        every.append(words and (words[0] - address, *words[1:]))
    log = recorder._launches
    kernels = {kernel.name: kernel.num_launches for kernel in log._kernels.values()}
    left_out = log.num_left_out, log.num_calls_left_out, turns.is_left_out
    accounts = [list(arena.account) for arena in turns.arenas]
    every.append((kernels, left_out, log.waiting(), accounts, list(recorder._numbers[:3])))
    if drainer is not None:
        every.append((drainer.calls_of_any.kernel, drainer._num_at_call, drainer._num_of_call))
    recorder.close()
    return every, num_launches - num_long


@pytest.mark.parametrize("retention", [Retention(), Retention(drain=True)])
@pytest.mark.parametrize("grids", [GRIDS, *map(random_grids, range(2))])
def test_a_launch_is_the_same_the_short_way(
    tmp_path: Path,
    retention: Retention,
    grids: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No thread empties arenas meanwhile, so that with `drain` calls are left out."""
    monkeypatch.setattr(Drainer, "_run", lambda _: None)
    with session(tmp_path / "short.kprof") as directory:
        short, num_short = launched_words(directory, retention, grids, at_once=True)
    with session(tmp_path / "long.kprof") as directory:
        long, none = launched_words(directory, retention, grids, at_once=False)
    assert none == 0
    assert num_short > 0
    assert short == long
    assert (None in short) is retention.drain


def runner_on(recorder: Recorder, name: str) -> tuple[Any, list[Any]]:
    """Our runner of a kernel, and whose launches it makes."""
    regions: Any = SimpleNamespace(table=RegionTable.of(["work"]))
    by: list[Any] = []
    copy = inductor._Copy(None, name, regions, recorder)
    runners = (lambda *_: by.append("copy")), (lambda *_: by.append("Inductor"))
    return inductor._runner_of(copy, *runners, by.append), by


@pytest.fixture
def draining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """A recorder that drains, though no thread empties its arenas."""
    monkeypatch.setattr(Drainer, "_run", lambda _: None)
    with session(tmp_path / "run.kprof") as directory:
        recorder = Recorder(directory, rank=0, world_size=1, retention=Retention(drain=True))
        yield recorder
        recorder.close()


@pytest.mark.parametrize("is_left_out", [False, True])
def test_a_call_begins_the_short_way(draining: Recorder, *, is_left_out: bool) -> None:
    """What `launch` touches is in no cache of a program that does more than launch."""
    runners = [runner_on(draining, name) for name in ("first", "second")]
    for run, _ in runners:
        run(64, 1, 1, 0)
    draining.launch = None  # type: ignore[assignment, method-assign]
    if is_left_out:
        draining._turns.free.clear()
        draining._turns.leave_out(True)
    for run, _ in runners * 3:
        run(64, 1, 1, 0)
    assert [by[1:] for _, by in runners] == [["Inductor" if is_left_out else "copy"] * 3] * 2
    log = draining._launches
    assert (log.num_calls_left_out, log.num_left_out) == ((3, 6) if is_left_out else (0, 0))


def test_a_call_is_recorded_where_an_arena_took_its_turn(draining: Recorder) -> None:
    """Within the call before, which was left out; no other arena is free."""
    draining.launch("first", num_blocks=1)
    run, by = runner_on(draining, "second")
    draining._turns.leave_out(True)
    assert draining._turns.switch(1)
    run(64, 1, 1, 0)
    assert draining._drainer is not None
    draining._drainer.calls_of_any.num_more = 0
    run(64, 1, 1, 0)
    assert by == ["Inductor", "copy"]


def test_a_launch_notes_the_stream_that_it_is_given(draining: Recorder) -> None:
    """An arena is emptied once the launches on all streams have ended that use it."""
    for name in ("first", "second"):
        run, by = runner_on(draining, name)
        for stream in (7, 8):
            run(64, 1, 1, stream)
    assert by == ["copy", "copy"]
    # The long way asks for torch's current stream, which the CPU has none of.
    assert draining._turns.streams == {8}


def test_a_captured_launch_is_recorded_though_its_call_is_left_out(draining: Recorder) -> None:
    """Replays of the graph belong to other calls."""
    draining.launch("first", num_blocks=1)
    run, by = runner_on(draining, "second")
    for is_left_out, is_captured in ((False, False), (True, False), (True, True)):
        draining._turns.leave_out(is_left_out)
        draining._is_capturing = lambda is_captured=is_captured: is_captured
        run(64, 1, 1, 0)
    assert by == ["copy", "Inductor", "copy"]
    draining._is_capturing = bool
