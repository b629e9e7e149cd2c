"""Delays in Triton kernels: spans of the region and the programs that are named last longer, and without them no code."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from needed import interpreter_fails, require_triton

require_triton()

import delayed_kernel  # noqa: E402
import ptx_machine  # noqa: E402
import triton  # noqa: E402
from code_samples import SAMPLES, a_buffer  # noqa: E402
from compiled import Code, Pointer, compile_for  # noqa: E402
from delayed_kernel import CALLS, ITEMS, PROGRAMS, TICK_NS, exchange, regions  # noqa: E402

import kprof.triton as kp  # noqa: E402
from benchmarks.verified.__main__ import finding_at  # noqa: E402
from kprof import proof  # noqa: E402
from kprof.abi import NUM_DELAYED_BLOCKS as LAST  # noqa: E402
from kprof.analysis import Summary  # noqa: E402
from kprof.analysis.findings import experiment  # noqa: E402
from kprof.capture.verified import read_verified  # noqa: E402
from kprof.devices.build import DELAYS_VARIABLE  # noqa: E402
from kprof.recording.launcher.record import RecordRequest, record, session  # noqa: E402
from kprof.recording.launches.delays import Delays  # noqa: E402
from kprof.recording.rank.recorder import Recorder  # noqa: E402
from kprof.trace import Trace  # noqa: E402
from kprof.triton import delays  # noqa: E402
from kprof.triton.buffer import build_of, takes_delays  # noqa: E402

DELAY_NS = 64 * TICK_NS
WITHOUT_END = 1 << 31
ALL = ((0, WITHOUT_END),)
BEYOND = LAST + 8
CLOCK = {"sm_90": r"%globaltimer", "gfx942": r"^s_memrealtime"}
BARRIER = {"sm_90": r"\bbar\.", "gfx942": r"^s_barrier"}


@pytest.fixture
def with_delays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(DELAYS_VARIABLE, "{}")
    takes_delays.cache_clear()
    yield
    monkeypatch.undo()
    takes_delays.cache_clear()


def spans(
    folder: Path, delays: Delays, monkeypatch: pytest.MonkeyPatch, at_most: int | None = None
) -> set[tuple[str, int, int]]:
    """Where spans of two launches of compiled code last as long as a delay: region, launch, block."""
    code = compile_for("sm_90", exchange, ITEMS, a_buffer(regions), AT_MOST=at_most)
    monkeypatch.setattr(ptx_machine, "time", delayed_kernel.ticking())
    with session(folder / "run.kprof") as directory:
        recorder = Recorder(directory, rank=0, world_size=1, arena_bytes=1 << 20, delays=delays)
        for _ in range(2):
            buffer = kp.buffer("exchange", PROGRAMS, regions, recorder=recorder)
            assert buffer is not None
            arguments = [ITEMS, *buffer[:4], 0, 0]
            ptx_machine.run(code.compiled.asm["ptx"], (PROGRAMS, 1, 1), arguments)
            ptx_machine.run(code.compiled.asm["ptx"], (1, 1, 1), arguments, first=BEYOND)
        recorder.close()
    events = Trace.open(folder / "run.kprof").frame(
        "SELECT region, launch, block, duration_ns FROM events"
    )
    assert len(events) == 2 * (PROGRAMS + 1) * (ITEMS + 2)
    # The clock ticks when it is read: what is not delayed takes a few ticks.
    is_long = events["duration_ns"] >= DELAY_NS
    assert (events["duration_ns"][~is_long] <= 10 * TICK_NS).all()
    return set(events[is_long][["region", "launch", "block"]].itertuples(index=False, name=None))


@pytest.mark.usefixtures("with_delays")
@pytest.mark.parametrize("at_most", [None, 61])
def test_spans_last_longer_where_they_are_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_most: int | None
) -> None:
    """In compiled code. A span around those that are delayed lasts longer, too."""
    delays = Delays("pack", DELAY_NS, {0: ((1, 2), (BEYOND, BEYOND + 1))})
    assert spans(tmp_path, delays, monkeypatch, at_most) == {
        (region, launch, block)
        for region in ("pack", "reduce")
        for launch in range(2)
        for block in (1, BEYOND)
    }


@pytest.mark.usefixtures("with_delays")
def test_every_second_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = spans(tmp_path, Delays("reduce", DELAY_NS, {0: ALL}, every=2), monkeypatch)
    assert found == {("reduce", 0, block) for block in (*range(PROGRAMS), BEYOND)}


@pytest.mark.usefixtures("with_delays")
@pytest.mark.parametrize(
    "delays",
    [
        pytest.param(Delays("pack", 0.0, {0: ALL}), id="of no length"),
        pytest.param(Delays("pack", DELAY_NS, {1: ALL}), id="of another rank"),
        pytest.param(Delays("ready", DELAY_NS, {0: ALL}), id="of a mark"),
        pytest.param(Delays("pack", DELAY_NS, {0: ((3, LAST),)}), id="of blocks in between"),
    ],
)
def test_nothing_is_delayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delays: Delays
) -> None:
    assert not spans(tmp_path, delays, monkeypatch)


def sample(target: str, name: str) -> Code:
    given = SAMPLES[name]
    arguments = (*given.before, a_buffer(given.regions), *given.after)
    return compile_for(target, given.kernel, *arguments, **given.constants)


def count(code: Code, patterns: dict[str, str]) -> int:
    """Lines of PTX, or instructions for AMD: reading SASS takes a tool more."""
    text = code.compiled.asm["ptx"].splitlines() if code.is_nvidia else code.instructions
    return sum(1 for line in text if re.search(patterns[code.target], line))


@pytest.mark.parametrize("name", ["copy", "matmul in one chunk", "one_shot"])
@pytest.mark.parametrize("target", CLOCK)
def test_a_span_ends_with_a_loop_on_the_clock_and_no_barrier(
    target: str, name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    plain = sample(target, name)
    request.getfixturevalue("with_delays")
    delayed = sample(target, name)
    assert count(delayed, CLOCK) == count(plain, CLOCK) + 2 * SAMPLES[name].num_events
    assert count(delayed, BARRIER) == count(plain, BARRIER)


def test_partitions_of_a_gluon_kernel_take_delays(request: pytest.FixtureRequest) -> None:
    import gluon_kernels

    def compiled() -> Code:
        prof = a_buffer(gluon_kernels.regions)
        arguments = Pointer("i32"), 100, prof
        return compile_for("sm_90", gluon_kernels.handed_over, *arguments, num_warps=4)

    plain = compiled()
    request.getfixturevalue("with_delays")
    delayed = compiled()
    assert count(delayed, CLOCK) == count(plain, CLOCK) + 2 * 2
    assert count(delayed, BARRIER) == count(plain, BARRIER)


@pytest.mark.parametrize("target", CLOCK)
def test_without_delays_the_code_is_as_if_there_were_none(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before LLVM, which does not always order the operands for AMD alike."""
    # What another checkout of these sources left in Triton's cache names that one's files.
    monkeypatch.setattr(triton.knobs.compilation, "always_compile", True)
    expected = sample(target, "copy").compiled.asm["ttgir"]
    monkeypatch.delattr(delays, "delay_of")
    monkeypatch.delattr(delays, "delay_end")
    assert sample(target, "copy").compiled.asm["ttgir"] == expected


def test_builds_with_delays_and_without_share_no_code(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    plain = a_buffer(regions).build.value
    request.getfixturevalue("with_delays")
    delayed = a_buffer(regions).build.value
    assert delayed != plain
    assert build_of(delayed).takes_delays
    assert not build_of(plain).takes_delays


def test_verify_runs_the_kernel_with_delays_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Triton's interpreter, whose programs run one after the other: a call has the delays of both."""
    if reason := interpreter_fails():
        pytest.skip(reason)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(experiment, "_SIZES", (0.0, 0.8))
    command, run = (sys.executable, delayed_kernel.__file__), tmp_path / "run.kprof"
    record(RecordRequest(command, run, is_quiet=True))
    summary = Summary.of(Trace.open(run))
    finding = finding_at(summary, "pack", 0, 1, gain_ns=100.0 * TICK_NS)
    tried = experiment.experiment_of(summary, finding, least_effect=-10.0)
    assert tried.blocks == {0: ((0, 1), (2, 3))}
    kept = proof.verify(proof.Proof(finding, tried, command, None, 2), run)
    assert read_verified(run) == {finding.id: kept}
    assert kept.num_calls == CALLS
    assert kept.call_ns[1] - kept.call_ns[0] >= 2 * ITEMS * tried.delays_ns[1]
