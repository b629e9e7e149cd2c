"""What is said of a run: what pays first, doubts as banners that take findings out, and the rest."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import msgspec
import pytest

from kprof import analysis
from kprof.analysis import Doubt, DoubtKind, Findings, Summary
from kprof.analysis.findings import Limit, LimitKind, Rest
from kprof.analysis.findings.counts import counts_that_stand_out
from kprof.capture.manifest import ArenaUse, EventCounts
from kprof.trace import Trace
from planted import Plant, simulate
from synthetic import TraceBuilder, with_rank_fields, with_ranks

pytestmark = pytest.mark.slow

PAIR = """
REGION(R_SEND, "send", send, peer:8, slot:24)
REGION(R_WAIT, "wait", wait, peer:8, slot:24)
REGION(R_WORK, "work", compute)
FLOW(R_SEND, R_WAIT)
"""


def found_in(trace: Trace) -> Findings:
    return analysis.find(Summary.of(trace))


def doubt(found: Findings, kind: DoubtKind) -> Doubt:
    return next(doubt for doubt in found.doubts if doubt.kind is kind)


def kinds(found: Findings) -> set[DoubtKind]:
    return {doubt.kind for doubt in found.doubts}


@pytest.mark.parametrize("seed", range(3))
def test_a_balanced_run_has_no_findings_and_no_doubts(seed: int) -> None:
    found = found_in(simulate(Plant(seed=seed)))
    assert (found.findings, found.doubts) == ((), ())
    assert found.headline.startswith("Nothing stands out: blocks do useful work 8")
    assert found.advice == ""


@pytest.mark.parametrize(
    ("plant", "kind", "ranks", "blocks"),
    [
        (Plant(tokens_of={3: 3.0}), "uneven_work", (3,), ()),
        (Plant(num_ranks=2, tokens_of={1: 3.0}), "uneven_work", (1,), ()),
        (Plant(start_late_ns={5: 60_000}), "late_start", (5,), ()),
        (Plant(send_late_ns={2: 30_000}), "idle_gap", (2,), ()),
        (Plant(heavy_blocks={(4, 7): 4.0}), "uneven_work", (4,), (7,)),
        (Plant(slow_blocks={(3, 9): 10.0}), "slow", (3,), (9,)),
    ],
)
def test_the_planted_cause_comes_first(
    plant: Plant, kind: str, ranks: tuple[int, ...], blocks: tuple[int, ...]
) -> None:
    found = found_in(simulate(plant))
    first = found.findings[0]
    assert (first.kind.name, first.ranks, first.blocks) == (kind, ranks, blocks)
    assert found.headline == first.sentence
    assert len(first.sentence.split()) <= 25
    assert sum(finding.gain_ns for finding in found.findings) <= found.total_ns


def test_waits_stand_under_their_cause_and_only_once() -> None:
    summary = Summary.of(simulate(Plant(send_late_ns={2: 30_000, 6: 20_000})))
    found = analysis.find(summary)
    waits = [wait for finding in found.findings for wait in finding.waits]
    peers = [(wait.region, peer) for wait in waits for peer in wait.peers]
    assert {peer for _, peer in peers} == {2, 6}
    assert len(peers) == len(set(peers))
    blamed = analysis.blame(summary)
    is_foreign = blamed["rank"] != blamed["peer"]
    expected = blamed[is_foreign & blamed["peer"].isin([2, 6])]["wait_ns"].sum()
    assert sum(wait.wait_ns for wait in waits) == expected


def lossy(counts: EventCounts, **options: object) -> Trace:
    build = TraceBuilder(PAIR, 2, **options)  # type: ignore[arg-type]
    build.span(0, "work", 0, 10)
    return build.trace({"counts": counts})


@pytest.mark.parametrize(
    ("counts", "kind", "words"),
    [
        (EventCounts(recorded=90, dropped=10), DoubtKind.LOST_EVENTS, "lost 20 events, 10 % of"),
        (EventCounts(recorded=90, open=1), DoubtKind.OPEN_SPANS, "never ended"),
        (EventCounts(recorded=90, saturated=2), DoubtKind.UNREADABLE, "4 spans longer than a"),
        (EventCounts(recorded=90, clamped=1), DoubtKind.UNREADABLE, "2 payload values that did"),
        (EventCounts(recorded=90, unknown_region=1), DoubtKind.UNREADABLE, "of undeclared regions"),
        (EventCounts(recorded=90, torn_chunks=1), DoubtKind.UNREADABLE, "2 chunks that were being"),
    ],
)
def test_each_loss_has_its_sentence(counts: EventCounts, kind: DoubtKind, words: str) -> None:
    assert words in doubt(found_in(lossy(counts)), kind).sentence


def test_lost_events_say_which_arena_would_have_held_them() -> None:
    trace = lossy(EventCounts(recorded=90, dropped=10))
    bigger = with_rank_fields(trace, arena=ArenaUse(1 << 20, 1 << 20, (64 << 20) + 1))
    assert "with --arena-size 65MiB" in doubt(found_in(bigger), DoubtKind.LOST_EVENTS).remedy


def test_launches_that_were_lost_are_a_doubt() -> None:
    build = TraceBuilder(PAIR, 2)
    build.span(0, "work", 0, 10)
    first, second = build.manifest().ranks
    ranks = msgspec.structs.replace(first, cut_short="it never ended"), second
    found = found_in(build.trace(ranks=ranks, messages=("lost 1", "lost 2", "lost 3")))
    lost = doubt(found, DoubtKind.LOST_LAUNCHES)
    assert "rank 0 is cut short: it never ended; lost 1; lost 2; and 1 more" in lost.sentence
    assert lost.ranks == (0,)
    assert lost.evidence["messages"] == ["lost 1", "lost 2", "lost 3"]


def test_a_missing_rank_is_named() -> None:
    missing = doubt(found_in(lossy(EventCounts(), missing_ranks=(1,))), DoubtKind.MISSING_RANKS)
    assert missing.ranks == (1,)
    assert missing.is_grave


@pytest.mark.parametrize(("dropped", "said"), [(100_000, []), (3, [(1,)])])
def test_too_many_lost_events_leave_nothing_else_to_say(
    dropped: int, said: list[tuple[int, ...]]
) -> None:
    plant = Plant(num_ranks=4, tokens_of={1: 4.0}, dropped={2: dropped}, seed=3)
    found = found_in(simulate(plant))
    assert [finding.ranks for finding in found.findings] == said
    assert doubt(found, DoubtKind.LOST_EVENTS).is_grave == (not said)
    assert ("no other conclusion" in found.headline) == (not said)


def test_violated_causality_takes_out_what_compares_clocks() -> None:
    build = TraceBuilder(PAIR, 2, bound_ns=10.0)
    build.span(0, "send", 500, 5, peer=1, slot=0)
    build.span(1, "wait", 0, 100, peer=0, slot=0)
    found = found_in(build.trace())
    violated = doubt(found, DoubtKind.CAUSALITY)
    assert violated.is_grave
    assert violated.evidence == {"violations": 1, "violations_beyond_bound": 1}
    assert violated.takes_out == {"late_start", "slow_transfer"}
    assert not violated.takes_out & {finding.kind.name for finding in found.findings}


def test_unmatched_flows_are_counted() -> None:
    build = TraceBuilder(PAIR, 2)
    build.span(0, "send", 0, 5, peer=1, slot=0)
    said = doubt(found_in(build.trace()), DoubtKind.UNMATCHED_FLOWS).sentence
    assert said == "1 send released no recorded wait, and 0 waits have no recorded send"


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_no_events_at_all(num_ranks: int) -> None:
    found = found_in(TraceBuilder(PAIR, num_ranks).trace())
    assert found.headline.startswith("The capture holds no events")


@pytest.mark.parametrize(("missing", "is_said"), [((), False), ((1,), True)])
def test_a_workload_of_one_rank_lacks_no_other(missing: tuple[int, ...], is_said: bool) -> None:
    build = TraceBuilder('REGION(R_COPY, "copy", compute)', 1 + len(missing), missing_ranks=missing)
    for block in range(3):
        build.span(0, "copy", 0, 10, block=block)
    assert (DoubtKind.ONE_RANK in kinds(found_in(build.trace()))) is is_said


def test_one_rank_whose_warps_wait_for_each_other_lacks_no_other() -> None:
    regions = """
    REGION(R_FILL, "fill", send, slot:8)
    REGION(R_FULL, "full", wait, slot:8)
    FLOW_IN_BLOCK(R_FILL, R_FULL)"""
    build = TraceBuilder(regions, 2, missing_ranks=(1,))
    for block in range(3):
        for region, warp in (("fill", 0), ("full", 1)):
            build.span(0, region, warp, 10, block=block, warp=warp, slot=0)
    assert DoubtKind.ONE_RANK not in kinds(found_in(build.trace()))


def test_without_flows_it_is_said_what_cannot_be_known() -> None:
    regions = 'REGION(R_WAIT, "wait", wait, peer:8)\nREGION(R_WORK, "work", compute)'
    build = TraceBuilder(regions, 2)
    for rank in range(2):
        build.span(rank, "work", 0, 10)
        build.span(rank, "wait", 10, 10, peer=1 - rank)
    found = found_in(build.trace())
    assert DoubtKind.NO_FLOWS in kinds(found)
    assert "what ranks cost each other is not known" in found.rest.sentence


@pytest.mark.parametrize("apart_ns", [0, 300])
def test_ranks_that_only_meet_in_a_barrier_need_no_flows(apart_ns: int) -> None:
    build = TraceBuilder('REGION(R_MEET, "meet", sync)\nREGION(R_WORK, "work", compute)', 2)
    for rank in range(2):
        build.span(rank, "work", 0, 100 + 300 * rank)
        build.span(rank, "meet", 100 + 300 * rank, 300 * (1 - rank) + 20 + apart_ns * rank)
    assert (DoubtKind.NO_FLOWS in kinds(found_in(build.trace()))) == bool(apart_ns)


def test_ranks_without_one_clock_are_compared_by_durations() -> None:
    found = found_in(simulate(Plant(tokens_of={3: 3.0}, is_aligned=False)))
    assert doubt(found, DoubtKind.UNALIGNED_CLOCKS).is_grave
    first = found.findings[0]
    assert (first.kind.name, first.ranks, first.is_timed) == ("uneven_work", (3,), True)


def on_cpu(trace: Trace, num_cores: int) -> Trace:
    return with_rank_fields(trace, target="cpu", num_cores=num_cores)


def test_ranks_that_share_cores_are_judged_by_counts_alone() -> None:
    plant = Plant(
        num_ranks=8, tokens_of={3: 3.0}, speed_of={6: 3.0}, start_late_ns={6: 60_000}, seed=2
    )
    found = found_in(on_cpu(simulate(plant), 2))
    (uneven,) = found.findings
    assert (uneven.kind.name, uneven.ranks) == ("uneven_work", (3,))
    assert (uneven.gain_ns, uneven.share, uneven.is_timed) == (0.0, 0.0, False)
    assert "% of the run" not in uneven.sentence
    assert found.headline.startswith("Rank 3 has 2.9x as much to do")
    shared = doubt(found, DoubtKind.SHARED_CORES)
    assert shared.sentence.startswith("8 ranks share 2 cores")
    assert shared.is_grave


def test_ranks_whose_cores_others_had_are_judged_by_counts_alone() -> None:
    """A recording on a loaded machine must not name what the scheduler did."""
    trace = on_cpu(simulate(Plant(num_ranks=8, start_late_ns={6: 60_000}, seed=2)), 8)
    quiet, loaded = (waiting_for_core(trace, share) for share in (0.04, 0.3))
    assert found_in(quiet).findings[0].kind.name == "late_start"
    found = found_in(loaded)
    assert found.findings == ()
    busy = doubt(found, DoubtKind.SHARED_CORES)
    assert busy.sentence.startswith("Rank 2 spent 30 % of its time waiting for a core: ")


def waiting_for_core(trace: Trace, share: float) -> Trace:
    infos = list(trace.manifest.ranks)
    times = {"ran_ns": round(1e9 * (1 - share)), "waited_for_core_ns": round(1e9 * share)}
    infos[2] = msgspec.structs.replace(infos[2], **times)
    return with_ranks(trace, infos)


@pytest.mark.parametrize("num_cores", [0, 8, 64])
def test_ranks_with_cores_of_their_own_are_not_doubted(num_cores: int) -> None:
    trace = on_cpu(simulate(Plant(num_ranks=8, start_late_ns={6: 60_000}, seed=2)), num_cores)
    found = found_in(trace)
    assert found.findings[0].kind.name == "late_start"
    assert found.doubts == ()


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_advice_fits_the_device(target: str) -> None:
    trace = with_rank_fields(simulate(Plant(speed_of={4: 3.0})), target=target)
    for finding in found_in(trace).findings:
        assert ("power" in finding.advice) <= (target == "cuda")
        assert not (finding.blocks and "clocks" in finding.advice)


def test_a_sample_of_calls_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    plant = Plant(num_ranks=2, num_launches=10, seed=1)
    whole = Summary.of(simulate(plant))
    flows = analysis.late_sender(whole)["flows"].sum()
    ends = int(analysis.unmatched_flows(whole)[["sends", "waits"]].sum().sum())
    monkeypatch.setattr("kprof.analysis.flow_sums.MAX_EVENTS_PAIRED", 10)
    monkeypatch.setattr("kprof.analysis.flow_sums._EVENTS_SAMPLED", ends * 3 // 10)
    monkeypatch.setattr("kprof.analysis.replay.load.MAX_SPANS", whole.trace.num_events() // 3)
    sampled = Summary.of(simulate(plant))
    found = analysis.find(sampled)
    paired = doubt(found, DoubtKind.SAMPLED_FLOWS)
    assert "paired in 3 of 10 calls" in paired.sentence
    assert paired.evidence["calls"] == [1, 5, 8]
    assert analysis.late_sender(sampled)["flows"].sum() == pytest.approx(0.3 * flows, rel=0.1)
    replayed = doubt(found, DoubtKind.SAMPLED_CALLS)
    assert replayed.sentence.startswith("Of 10 calls 3 were replayed")
    assert len(replayed.evidence["calls"]) == 3


def test_a_call_too_large_to_replay_leaves_what_counts_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kprof.analysis.replay.load.MAX_SPANS_OF_CALL", 100)
    found = found_in(simulate(Plant(num_ranks=4, tokens_of={1: 4.0})))
    said = doubt(found, DoubtKind.NOT_REPLAYED)
    assert "events, more than the 100 that are replayed" in said.sentence
    assert said.remedy.startswith("select ranks")
    assert [(f.ranks, f.is_timed) for f in found.findings] == [((1,), False)]


def test_of_a_call_too_large_to_replay_some_blocks_stand_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = simulate(Plant(num_ranks=4, speed_of={2: 3.0}))
    monkeypatch.setattr("kprof.analysis.replay.load.MAX_SPANS_OF_CALL", trace.num_events() // 4)
    found = found_in(trace)
    sampled = doubt(found, DoubtKind.NOT_REPLAYED)
    blocks = sampled.evidence["blocks"]
    assert sampled.evidence["of_blocks"] == 16
    assert (len(blocks), blocks[0], blocks[-1]) == (6, 0, 15)
    assert "6 blocks of 16 stand for all" in sampled.sentence
    assert (found.findings[0].kind.name, found.findings[0].ranks) == ("slow", (2,))
    assert found.findings[0].is_timed


def test_of_few_events_no_part_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = Summary.of(simulate(Plant(num_ranks=2, tokens_of={1: 3.0})))
    monkeypatch.setattr(Trace, "select", None)
    assert analysis.find(summary).findings


def test_a_sample_reads_only_its_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = simulate(Plant(num_ranks=2, num_launches=6, tokens_of={1: 3.0}))
    monkeypatch.setattr("kprof.analysis.replay.load.MAX_SPANS", trace.num_events() // 3)
    found = found_in(trace)
    assert len(found.calls) == 2
    assert found.findings[0].ranks == (1,)
    # The whole trace was not asked which send released which wait.
    assert not trace._has_flows


def test_few_blocks_that_work_long_are_a_limit_and_short_ones_are_not() -> None:
    """On a GPU of 132 SMs; few are fewer than a third."""
    for num_blocks, work_ns, is_said in (
        (1, 60_000, True),
        (1, 2_000, False),
        (43, 60_000, True),
        (44, 60_000, False),
    ):
        build = TraceBuilder(PAIR, 1)
        for launch, block in product(range(3), range(num_blocks)):
            if block == 0:
                build.launch(launch, "serial", num_blocks=num_blocks)
            build.span(0, "work", 100_000 * launch, work_ns, launch=launch, block=block)  # fmt: skip
        found = found_in(build.trace({"num_processors": 132}))
        limits = {limit.kind: limit.share for limit in found.rest.limits}
        assert (LimitKind.FEW_BLOCKS in limits) == is_said
        if is_said:
            assert limits[LimitKind.FEW_BLOCKS] == pytest.approx(1 - num_blocks / 132)
            assert " all the work, and " in found.headline


def test_a_design_that_costs_more_than_what_stands_out_is_the_headline() -> None:
    lock = Limit(LimitKind.LOCK, "lock/acquire", 300.0, 0.3)
    transfers = Limit(LimitKind.TRANSFERS, None, 900.0, 0.9)
    found = found_in(simulate(Plant(heavy_blocks={(4, 7): 4.0})))
    share = found.findings[0].share
    assert share is not None
    for limit in (lock, replace(lock, share=share + 0.1), transfers):
        changed = replace(found, rest=replace(found.rest, limits=(limit,)))
        is_first = limit.kind is LimitKind.LOCK and limit.share > share
        assert ("lock/acquire" in changed.headline) == is_first
    idle = Findings((), (), Rest("nobody is to blame", 0.0, 0.2, 0.8, (transfers,)))
    assert idle.headline.startswith(
        "Blocks wait while data is in flight; changing this alone would save up to 90 %"
    )
    busy = Findings((), (), Rest("all are busy", 0.0, 0.9, 0.1, (transfers,)))
    assert busy.headline == "all are busy"


def test_random_routing_alone_does_not_stand_out() -> None:
    import pandas as pd

    assert counts_that_stand_out(pd.Series([4, 5, 6, 9])).empty
    assert counts_that_stand_out(pd.Series([100, 100, 100, 300])).index.tolist() == [3]


def worker_with_holes(regions: str) -> Trace:
    """Two ranks, of which one does nothing for a while in the middle of every call."""
    build = TraceBuilder(regions, 2)
    for call in range(6):
        build.launch(call, "worker")
        for rank in range(2):
            hole = 40_000 if rank == 1 else 100
            for start, name in ((0, "load"), (10_100 + hole, "store")):
                at = 200_000 * call + start
                build.span(rank, name, at, 10_000, launch=call)
    return build.trace()


def test_a_hole_is_no_idle_gap_where_waits_are_not_recorded() -> None:
    work = 'REGION(R_LOAD, "load", recv)\nREGION(R_STORE, "store", compute)\n'
    without_waits = found_in(worker_with_holes(work))
    assert without_waits.findings[0].kind.name == "idle_gap"
    switched_off = found_in(worker_with_holes(work + 'REGION(R_WAIT, "load/wait", wait)'))
    assert "idle_gap" not in {finding.kind.name for finding in switched_off.findings}
    said = doubt(switched_off, DoubtKind.NO_WAITS).sentence
    assert said == (
        "No wait was recorded, and load/wait could have been: a block that waits looks idle"
    )


def test_ranks_that_are_slow_in_different_calls_are_not_named_together() -> None:
    """Also without a common clock: a rank is compared with the others call by call."""
    calls_of = {0: (3, 6), 1: (9, 11, 13)}
    build = TraceBuilder('REGION(R_COPY, "copy", compute)', 2, is_aligned=False)
    for call, rank, block in product(range(16), (0, 1), range(4)):
        build.launch(call, "kernel", 4)
        longer = 4 if call in calls_of[rank] else 1
        length_ns = (10_000 + 37 * ((7 * call + 3 * block + rank) % 5)) * longer
        at = {"launch": call, "rank": rank, "block": block, "start_ns": 1_000_000 * call}
        build.span(region="copy", duration_ns=length_ns, **at)
    found = found_in(build.trace()).findings
    slow = {each.ranks: each for each in found if each.kind.name == "slow"}
    assert {ranks: each.calls for ranks, each in slow.items()} == {
        (rank,): calls for rank, calls in calls_of.items()
    }
    assert "in 2 of 16 calls" in slow[0,].sentence
    assert "In calls 9, 11, 13" in slow[1,].details
