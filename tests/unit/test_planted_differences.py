"""Twenty pairs of runs with one planted difference: diff names it first, and never oversells it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from kprof import report as reports
from kprof.capture.manifest import RankInfo
from kprof.report.changes import Way
from kprof.trace import Trace
from simulation import Cause, Kind, Scenario, Sizes, simulate
from simulation.program import Program, ProgramWriter
from simulation.run import Run
from simulation.topologies import TOPOLOGIES, Load

CALLS = 12
SIZES = Sizes(4, 6, 4)
ALWAYS = (1.0,) * CALLS
PATH = tuple((call % 4, 3 * call % 6) for call in range(CALLS))
Writer = Callable[[Sizes, Load], Program]


def steps(*, barrier: bool = False, lock: bool = False, ahead: bool = True) -> Writer:
    """Ranks send to the next one ahead of their work or after it, and add what they get."""

    def write(sizes: Sizes, _load: Load) -> Program:
        program = ProgramWriter(sizes.num_ranks)
        for rank in range(sizes.num_ranks):
            for block in range(sizes.num_blocks):
                track = program.track(rank, block)
                for step in range(sizes.items):
                    slot = block + step * sizes.num_blocks
                    if not ahead:
                        track.work("work")
                    track.send((rank + 1) % sizes.num_ranks, slot)
                    if ahead:
                        track.work("work")
                    track.wait((rank - 1) % sizes.num_ranks, slot)
                    for number in range(3 * barrier):
                        track.barrier((step, number))
                    if lock:
                        track.locked(rank, "add")
                    else:
                        track.work("add")
        return program.program()

    return write


def pipe(room: int) -> Writer:
    """A warp loads for one that works, with room for so many items; without room, one does both."""

    def write(sizes: Sizes, _load: Load) -> Program:
        program = ProgramWriter(sizes.num_ranks)
        for rank in range(sizes.num_ranks):
            for block in range(sizes.num_blocks):
                loads = program.track(rank, block, 0)
                works = program.track(rank, block, 1) if room else loads
                for item in range(12):
                    slot = block << 12 | item
                    if room and item >= room:
                        loads.wait(rank, slot - room, "wait-room")
                    loads.work("load", 1_800)
                    if room:
                        loads.send(rank, slot, "put")
                        works.wait(rank, slot, "take")
                    works.work("work", 2_000)
                    if room and item + room < 12:
                        works.send(rank, slot, "free")
                works.work("finish")
        return program.program()

    return write


VARIANTS = {
    "steps": steps(),
    "barriers of steps": steps(barrier=True),
    "locks of steps": steps(lock=True),
    "late sends": steps(ahead=False),
    "room for 4": pipe(4),
    "room for 1": pipe(1),
    "one warp": pipe(0),
}


@dataclass(frozen=True)
class Pair:
    """A program, what is planted in it, and how the sentence about that begins. With `variant` the candidate is
    that program. `names` are those of its regions there, whose kernel is then another one, too. A cause that
    `is_in_parts` has their shares together."""

    program: str
    said: str
    cause: Cause | None = None
    variant: str = ""
    names: tuple[tuple[str, str], ...] = ()
    is_in_parts: bool = False


def planted(kind: Kind, amount: float, weights: tuple[float, ...] = ALWAYS, **at: object) -> Cause:
    return Cause(kind, amount, weights, **at)  # type: ignore[arg-type]


OCCASIONAL = tuple(float(call % 4 == 1) for call in range(CALLS))
GROWING = tuple(call / (CALLS - 1) for call in range(CALLS))
TWICE = planted(Kind.SLOW, 1.0, region="work")
OTHER_NAMES = (("work", "gemm"), ("prepare", "set-up"), ("send", "push"), ("wait", "poll"))
PAIRS = {
    "slow rank": Pair("ring", "Rank 2 ", planted(Kind.SLOW, 1.0, ranks=(2,))),
    "slow block": Pair("halo", "Block 5 of rank 1 ", planted(Kind.SLOW, 1.5, ranks=(1,), blocks=(5,))),
    "slow region": Pair("halo", "work of all ranks ", TWICE),
    "slow link": Pair("ring", "Transfers from rank 0 to rank 1 ", planted(Kind.SLOW_LINK, 20_000, link=(0, 1))),
    "broken port": Pair("all_to_all", "Transfers from rank 1 ", planted(Kind.SLOW_LINK, 5_000, link=(1, -1))),
    "longer lock": Pair("locks", "add of all ranks ", planted(Kind.SLOW, 2.0, region="add")),
    "late at barriers": Pair("barriers", "work of rank 3 ", planted(Kind.DELAY, 4_000, ranks=(3,), region="work")),
    "moving straggler": Pair("barriers", "work of one block, a different one", planted(Kind.DELAY, 6_000, path=PATH)),
    "rare items": Pair("pipeline", "work of all ranks ", planted(Kind.SLOW_ITEMS, 4.0, every=4, region="work")),
    "rare items of a rank": Pair("halo", "work of rank 1 ",
        planted(Kind.SLOW_ITEMS, 5.0, every=4, ranks=(1,), region="work")),
    "host gap": Pair("ring", "Rank 1 starts later", planted(Kind.LATE_START, 8_000, ranks=(1,))),
    "pause": Pair("halo", "All ranks have longer gaps", planted(Kind.IDLE_GAP, 4_000, region="work")),
    "some calls": Pair("tree", "Rank 1 ", planted(Kind.SLOW, 2.0, OCCASIONAL, ranks=(1,))),
    "more with every call": Pair("ring", "Rank 1 ", planted(Kind.SLOW, 2.0, GROWING, ranks=(1,))),
    "new lock": Pair("steps", "lock takes ", variant="locks of steps"),
    "new barriers": Pair("steps", "barrier takes ", variant="barriers of steps"),
    "lost overlap of sends": Pair("steps", "wait takes ", variant="late sends", is_in_parts=True),
    "lost overlap of loads": Pair("room for 4", "load takes ", variant="room for 1", is_in_parts=True),
    "variant: one warp does both": Pair("room for 4", "fetch (before: load", variant="one warp",
        names=(("load", "fetch"), ("work", "work"), ("finish", "finish"))),
    "variant: slower product": Pair("halo", "gemm (before: work", TWICE, variant="halo", names=OTHER_NAMES),
}  # fmt: skip


def trace_of(run: Run, names: tuple[tuple[str, str], ...]) -> Trace:
    """The run as a trace, with other names of regions and another kernel."""
    trace = run.trace()
    if not names:
        return trace
    table, manifest = run._table(), trace.manifest
    renamed = dict(names)

    def other(info: RankInfo) -> RankInfo:
        regions = tuple(
            replace(region, name=renamed.get(region.name, region.name))
            for region in info.regions.regions
        )
        launches = tuple(replace(launch, kernel="kernel/variant") for launch in info.launches)
        return replace(info, regions=replace(info.regions, regions=regions), launches=launches)

    ranks = tuple(other(info) for info in manifest.ranks)
    return Trace.from_table(replace(manifest, ranks=ranks), table)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_diff_names_what_is_planted_first_and_never_more_than_was_measured(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, write in VARIANTS.items():
        monkeypatch.setitem(TOPOLOGIES, key, write)
    pair = PAIRS[name]
    causes = () if pair.cause is None else (pair.cause,)
    noise = {"noise": 0.05, "travel_ns": 3_000 if pair.program == "steps" else 500}
    before = Scenario(pair.program, SIZES, CALLS, seed=1, **noise)  # type: ignore[arg-type]
    now = Scenario(pair.variant or pair.program, SIZES, CALLS, causes, seed=2, **noise)  # type: ignore[arg-type]
    # The truth: the same run without what is planted.
    without = Scenario(pair.program, SIZES, CALLS, seed=2, **noise)  # type: ignore[arg-type]
    base, candidate, undone = (simulate(one) for one in (before, now, without))
    sums = [sum(run.lengths_ns) for run in (base, candidate, undone)]
    truth, measured = 1 - sums[2] / sums[1], 1 - sums[0] / sums[1]
    report = reports.build_diff([base.trace()], [trace_of(candidate, pair.names)])
    assert report.causes, f"silent: {measured:.1%}"
    assert report.causes[0].startswith(f"Slower: {pair.said}"), report.causes
    slower = [change.finding.share for change in report.changes if change.way is Way.SLOWER]
    faster = [change.finding.share for change in report.changes if change.way is Way.FASTER]
    slower += [part.share for part in report.parts if part.change_ns > 0]
    assert not faster, report.causes
    assert sum(slower) <= measured + 1e-9
    said = sum(slower) if pair.is_in_parts else max(slower)
    assert said == pytest.approx(truth, abs=0.02), report.causes
    assert truth > 0.05
