"""`kprof record --inductor`: kernels of torch.compile, in the interpreter as a whole, and piecewise for a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from needed import interpreter_fails, require_triton
from typer.testing import CliRunner

require_triton()

from compiled import Pointer, compile_for  # noqa: E402

import kprof.triton as kp  # noqa: E402
from kprof.errors import TargetError  # noqa: E402
from kprof.recording.launch_buffer import LaunchBuffer  # noqa: E402
from kprof.trace import Trace  # noqa: E402
from kprof.triton import inductor  # noqa: E402
from kprof.triton.inductor import STARTUP_DIR, check_torch, wrap_launcher  # noqa: E402
from kprof_cli.main import app  # noqa: E402

WORKLOAD = Path(__file__).parent / "compiled_by_torch.py"


def this_torch() -> str:
    import torch

    return str(torch.__version__)


def require_tested_torch() -> None:
    try:
        check_torch(this_torch())
    except TargetError as error:
        pytest.skip(str(error))


def test_every_program_of_a_compiled_function_has_a_span(tmp_path: Path) -> None:
    """64 x 100 numbers, three calls; the workload compares with float64.

    The configuration decides the programs.
    """
    require_tested_torch()
    if reason := interpreter_fails():
        pytest.skip(reason)
    path = tmp_path / "run.kprof"
    command = ["-m", "kprof_cli", "record", "--inductor", "-o", str(path), "--", "python"]
    answer = subprocess.run(
        [sys.executable, *command, str(WORKLOAD)],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
        check=False,
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


@pytest.mark.parametrize("version", ["2.10.0", "2.14.0+cu130", "3.0.0"])
def test_a_torch_that_was_not_tested_is_refused(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        TargetError, match=r"--inductor is tested with torch 2\.11 and 2\.13, and this is torch"
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


def test_a_sitecustomize_that_ours_hides_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the other one')\n")
    paths = os.pathsep.join([str(STARTUP_DIR), str(tmp_path)])
    for record_dir in ({}, {"KPROF_RECORD_DIR": str(tmp_path)}):
        answer = subprocess.run(
            [sys.executable, "-c", "print('the program')"],
            env={"PYTHONPATH": paths, **record_dir},
            capture_output=True,
            text=True,
            check=True,
        )
        assert answer.stdout.split("\n")[:2] == ["the other one", "the program"]


class Tuner:
    """As much of a CachingAutotuner as decides who launches."""

    def __init__(self, *, num_launchers: int = 1, **meta: object) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.launchers = [object()] * num_launchers
        self.inductor_meta = meta
        self.triton_interpret = False
        self.triton_meta = {"signature": {}}
        self.filename = None
        self.fn = SimpleNamespace(__name__="triton_poi_fused_0", fn=None)

    def run(self, *args: Any, stream: int, benchmark_run: bool = False) -> str:
        self.launched.append((*args, stream))
        return f"by Inductor, benchmark_run={benchmark_run}"


@pytest.fixture
def tuners(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class, wrapped; its own run comes back after the test."""
    require_tested_torch()
    monkeypatch.setattr(Tuner, "run", Tuner.run)
    wrap_launcher(SimpleNamespace(CachingAutotuner=Tuner))  # type: ignore[arg-type]
    return Tuner


def test_a_kernel_that_cannot_be_instrumented_is_launched_by_inductor(
    tuners: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tuner = tuners()
    for _ in range(2):
        assert tuner.run("x", stream=7) == "by Inductor, benchmark_run=False"
    assert tuner.launched == [("x", 7)] * 2
    line = "kprof: triton_poi_fused_0 of torch.compile is not recorded: its source is not known\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    "meta", [{"num_launchers": 3}, {"num_launchers": 0}, {"coordinate_descent_tuning": True}]
)
def test_a_kernel_is_tuned_by_inductor_before_it_is_recorded(
    tuners: Any, meta: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours: list[object] = []
    monkeypatch.setattr(inductor, "_instrumented", ours.append)
    monkeypatch.setattr(inductor._Launches, "_launch_compiled", lambda *_: None)
    tuner = tuners(**meta)
    assert tuner.run("x", stream=7) == "by Inductor, benchmark_run=False"
    assert not ours
    assert tuner.run("x", stream=7) is None
    assert ours == [tuner]
    assert tuner.run("x", stream=7, benchmark_run=True) == "by Inductor, benchmark_run=True"


def test_a_launch_takes_over_what_inductor_has_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid, the configuration, the options, and the types of numbers."""
    require_tested_torch()
    import inductor_kernel
    from torch._inductor.runtime import triton_heuristics

    tuner = inductor_kernel.doubled
    config = tuner.configs[0]

    def launcher(in_ptr0, out_ptr0, ks0, scale, xnumel, stream):  # type: ignore[no-untyped-def]
        raise AssertionError("ours is launched")

    launcher.config = config  # type: ignore[attr-defined]
    tuner.launchers = [launcher]
    copy = inductor._instrumented(tuner)
    seen: dict[str, Any] = {}

    def launch_on(_: object, grid: tuple[int, ...]) -> Any:
        return lambda **arguments: seen.update(arguments, grid=grid)

    monkeypatch.setattr(type(copy), "__getitem__", launch_on)
    launches = inductor._Launches(triton_heuristics)
    pointers = Pointer(), Pointer()
    launches._launch_compiled(tuner, copy, (*pointers, 3, 0.1, 4000))
    block = config.kwargs["XBLOCK"]
    assert seen.pop("grid") == (-(-4000 // block), 1, 1)
    expected = {"in_ptr0": pointers[0], "ks0": 3, "scale": 0.1, "xnumel": 4000, "XBLOCK": block}
    assert seen | expected == seen
    assert (seen["num_warps"], seen["num_stages"]) == (config.num_warps, config.num_stages)

    prof = kp.pack(LaunchBuffer(1 << 40, 5, 100, 1, 64, 32, 32), copy.regions)
    code = compile_for("sm_90", copy.kernel, **seen, kprof_buffer=prof)
    signature = code.compiled.src.signature
    assert (signature["ks0"], signature["scale"], signature["xnumel"]) == ("i64", "fp64", "i32")
