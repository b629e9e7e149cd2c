"""Programs that know nothing of kprof, or little: with kprof around them they print the same and end the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import both_ways
import on_gpus
from kprof.trace import Trace
from on_gpus import Program

pytestmark = pytest.mark.slow
EVENTS = ["--inductor"]


@pytest.mark.parametrize("how", ["exit", "reexec", "thread", "told", "deaf", "late"])
def test_a_program_ends_in_its_own_way(tmp_path: Path, how: str) -> None:
    """Its one launch is in the capture, however it ends; a program that re-executes itself is a second one."""
    before = both_ways.plain("ends.py", how)
    output = tmp_path / "run.kprof"
    after = both_ways.recorded_here(output, EVENTS, "ends.py", how)
    # As a shell says it of a child.
    assert before.exit_code is not None
    expected = before.exit_code if before.exit_code >= 0 else 128 - before.exit_code
    assert (after.exit_code, after.lines) == (expected, before.lines), after.error
    num_launches = Trace.open(output).frame("SELECT count(*) AS n FROM launches")["n"][0]
    assert num_launches == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_a_data_loader_has_its_workers(tmp_path: Path, how: str) -> None:
    """What it loads is known: every start of a worker imports torch anew."""
    after = both_ways.recorded_here(tmp_path / "run.kprof", EVENTS, "forking.py", how)
    assert after.exit_code == 0, after.error
    batches = [float(sum(i * i for i in range(at, at + 5))) for at in range(0, 40, 5)]
    assert after.lines == (f"batches {batches}",) * 2


def test_two_ranks_of_ddp(tmp_path: Path) -> None:
    output = tmp_path / "run.kprof"
    before = both_ways.plain("ddp.py")
    after = both_ways.recorded_here(output, EVENTS, "ddp.py")
    assert before.exit_code == after.exit_code == 0, after.error
    assert after.lines == before.lines
    assert [rank.rank for rank in Trace.open(output).ranks] == [0, 1]


@pytest.mark.native
def test_an_extension_that_torch_builds(tmp_path: Path) -> None:
    """Once only: it takes a minute, and what it computes is known."""
    after = both_ways.recorded_here(tmp_path / "run.kprof", EVENTS, "extension.py", str(tmp_path))
    assert after.exit_code == 0, after.error
    assert after.lines == ("value [0.0, 2.0, 4.0, 6.0]",)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What Inductor compiles for every program, such as headers, it compiles once."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", ["cond", "scan", "autograd", "rng"])
def test_a_compiled_program_computes_the_same(
    tmp_path: Path, how: str, cache: dict[str, str]
) -> None:
    """On the CPU: with branches chosen by values, loops, a backward pass, and random numbers."""
    before = both_ways.plain("compiled_cpu.py", how, **cache)
    after = both_ways.recorded_here(tmp_path / "run.kprof", EVENTS, "compiled_cpu.py", how, **cache)
    # Who records compiled kernels wants the program's exit code, though nothing of it is Triton.
    assert before.exit_code == after.exit_code == 0, before.error + after.error
    assert after.lines == before.lines
    assert len(after.lines) == 1
    assert "without creating a kprof recorder" in after.error


@pytest.mark.gpu
@pytest.mark.parametrize("way", on_gpus.WAYS)
@pytest.mark.parametrize("program", on_gpus.PROGRAMS, ids=lambda program: program.name)
def test_a_program_on_a_gpu_prints_the_same(tmp_path: Path, program: Program, way: str) -> None:
    if not program.is_here:
        pytest.skip(f"needs {program.needs}")
    arguments = (program.file, *program.arguments)
    # What Inductor measures decides how kernels add up: both runs have what the first one found.
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    before = both_ways.plain(*arguments, **cache)
    assert before.exit_code == 0, before.error[-3000:]
    output = tmp_path / "run.kprof"
    options = on_gpus.WAYS[way]
    after = both_ways.recorded(output, options, *arguments, *program.with_spans, **cache)
    assert (after.exit_code, after.lines) == (0, before.lines), after.error[-3000:]
    assert "Traceback" not in after.error
    print(after.error[-2000:], file=sys.stderr)


@pytest.mark.gpu
@pytest.mark.parametrize("arena_mib", on_gpus.OVERFLOW_ARENAS_MIB)
@pytest.mark.parametrize("arguments", [(), ("claimed",)])
def test_an_arena_of_any_size_may_overflow(
    tmp_path: Path, arena_mib: int, arguments: tuple[str, ...]
) -> None:
    """Twelve launches of 200,000 programs with an event each: 2.3 GiB."""
    output = tmp_path / "run.kprof"
    options = ["--arena-size", f"{arena_mib}MiB"]
    programs, launches = on_gpus.OVERFLOW_PROGRAMS, on_gpus.OVERFLOW_LAUNCHES
    numbers = (str(programs), str(launches))
    ended = both_ways.recorded(output, options, "overflow.py", *numbers, *arguments)
    assert (ended.exit_code, ended.lines) == (0, ("right: True",)), ended.error[-3000:]
    counts = Trace.open(output).ranks[0].counts
    assert counts.recorded + counts.dropped == launches * programs
    assert counts.torn_chunks == counts.stray_chunks == counts.torn_records == 0
    assert (counts.dropped == 0) == (arena_mib >= on_gpus.OVERFLOW_FITS_MIB)
