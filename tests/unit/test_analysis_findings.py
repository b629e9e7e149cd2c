"""Findings name the planted cause, and say nothing when nothing is wrong."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from kprof import analysis, report
from kprof.analysis import Finding, Severity, Summary
from kprof.analysis.rules import ordered
from kprof.analysis.rules.causes import with_causes
from kprof.analysis.rules.outliers import counts_that_stand_out, medians_of_others
from kprof.capture.directory import event_schema
from kprof.capture.manifest import ArenaUse, EventCounts
from kprof.trace import Trace
from planted import Plant, simulate
from synthetic import TraceBuilder

PAIR = """
REGION(R_SEND, "send", send, peer:8, slot:24)
REGION(R_WAIT, "wait", wait, peer:8, slot:24)
REGION(R_WORK, "work", compute)
FLOW(R_SEND, R_WAIT)
"""


def of_kind(found: list[Finding], kind: str) -> list[Finding]:
    return [finding for finding in found if finding.kind == kind]


@pytest.mark.parametrize("seed", range(5))
def test_a_balanced_run_has_no_findings(seed: int) -> None:
    assert analysis.findings(Summary.of(simulate(Plant(seed=seed)))) == []


def test_a_rank_that_sends_three_times_the_tokens_is_named_with_the_blocks_that_serve_it() -> None:
    rank, blocks = analysis.findings(Summary.of(simulate(Plant(tokens_of={3: 3.0}))))[:2]
    assert (rank.kind, rank.ranks, rank.region) == ("uneven_work", (3,), "dispatch/send")
    assert rank.evidence["ratio"] == pytest.approx(3.0, abs=0.2)
    assert "rank 3 sends 3.0x the tokens of the median rank" in rank.sentence
    assert blocks.blocks == (3, 11)
    assert blocks.evidence["peer"] == 3
    assert blocks.explained_by == rank.id
    assert "blocks 3, 11 of ranks 0-7" in blocks.sentence
    assert "they serve rank 3" in blocks.sentence


def test_more_work_for_the_blocks_of_a_rank_is_not_blamed_on_its_late_start() -> None:
    def finding(name: str, kind: str, cost_ns: float, blocks: tuple[int, ...] = ()) -> Finding:
        evidence = {"peer": 3} if blocks else {}
        return Finding(
            name,
            kind,
            Severity.MAJOR,
            "",
            "",
            cost_ns,
            ranks=(3,),
            blocks=blocks,
            evidence=evidence,
        )

    late, work = finding("late", "launch_skew", 200.0), finding("work", "uneven_work", 50.0)
    blocks = finding("blocks", "uneven_work", 100.0, blocks=(3, 7))
    by_id = {found.id: found for found in with_causes([late, work, blocks])}
    assert (by_id["blocks"].explained_by, by_id["work"].cost_ns) == ("work", 100.0)
    alone = {found.id: found for found in with_causes([late, blocks])}
    assert alone["blocks"].explained_by is None


def test_places_are_listed_and_the_ranks_left_off_are_counted() -> None:
    from kprof.analysis.rules.uneven import _places_in_words

    assert (
        _places_in_words({0: [3, 7], 1: [3, 7], 2: [4]})
        == "blocks 3, 7 of ranks 0, 1 and block 4 of rank 2"
    )
    many = {0: [0], 1: [1], 2: [2], 3: [9, 11], 4: [9, 11]}
    assert _places_in_words(many).startswith("blocks 9, 11 of ranks 3, 4; block 0 of rank 0; ")
    assert _places_in_words(many).endswith(" and blocks of 1 more rank")
    many |= {5: [5], 6: [6]}
    assert _places_in_words(many).endswith(" and blocks of 3 more ranks")


def test_clocks_calibrated_once_are_said() -> None:
    trace = simulate(Plant())
    assert trace.alignment is not None
    notes = ("calibrated once; call align twice",)
    alignment = msgspec.structs.replace(trace.alignment, notes=notes)
    manifest = msgspec.structs.replace(trace.manifest, alignment=alignment)
    source = trace.sql("SELECT * FROM raw_events")
    found = analysis.findings(
        Summary.of(Trace.from_table(manifest, source.select(event_schema().names)))
    )
    weak = next(finding for finding in found if finding.id == "uncalibrated-clocks/weak-0")
    assert (weak.sentence, weak.remedy) == ("calibrated once", "call align twice")


def test_unaligned_clocks_do_not_hide_uneven_work() -> None:
    found = analysis.findings(Summary.of(simulate(Plant(tokens_of={3: 3.0}, is_aligned=False))))
    assert found[0].ranks == (3,)
    assert len(of_kind(found, "uncalibrated_clocks")) == 1
    assert of_kind(found, "launch_skew") == []


def test_a_rank_that_starts_late_is_skew_and_explains_the_waits_for_it() -> None:
    found = analysis.findings(Summary.of(simulate(Plant(start_late_ns={5: 60_000}))))
    assert (found[0].kind, found[0].ranks) == ("launch_skew", (5,))
    assert found[0].evidence["worst_delay_ns"] == pytest.approx(60_000, abs=400)
    (late,) = of_kind(found, "late_sender")
    assert (late.ranks, late.explained_by) == ((5,), "launch-skew/rank-5")


def test_a_launch_that_only_follows_a_long_one_is_no_start_skew() -> None:
    """Rank 1 works longer in kernel a, so its kernel b starts later: b's skew is a's doing."""
    build = TraceBuilder(PAIR, 3)
    build.launch(0, "a")
    build.launch(1, "b")
    for rank in range(3):
        end = 900 if rank == 1 else 300
        build.span(rank=rank, launch=0, region="work", start_ns=0, duration_ns=end)
        build.span(rank=rank, launch=1, region="work", start_ns=end + 10, duration_ns=100)
    trace = build.trace()
    assert analysis.launch_skew(Summary.of(trace)).set_index("kernel")["skew_ns"]["b"] == 600
    assert of_kind(analysis.findings(Summary.of(trace)), "launch_skew") == []


def test_a_rank_whose_sends_are_late_is_a_late_sender_without_skew() -> None:
    found = analysis.findings(Summary.of(simulate(Plant(send_late_ns={2: 30_000}))))
    assert (found[0].kind, found[0].ranks, found[0].region) == (
        "late_sender",
        (2,),
        "dispatch/wait-token",
    )
    assert found[0].evidence["waiting_ranks"] == [0, 1, 3, 4, 5, 6, 7]
    assert "ranks 0, 1, 3-7 spent" in found[0].sentence
    assert of_kind(found, "launch_skew") == []


def test_a_heavy_block_is_named_with_its_rank() -> None:
    found = analysis.findings(Summary.of(simulate(Plant(heavy_blocks={(4, 7): 4.0}))))
    (uneven,) = of_kind(found, "uneven_work")
    assert (uneven.ranks, uneven.blocks, uneven.region) == ((4,), (7,), "dispatch/copy")


def few_items(heavy: set[tuple[int, int]]) -> TraceBuilder:
    """Eight ranks of 16 blocks with one piece of work each, three on (rank, block) in `heavy`: no rank tells alone."""
    build = TraceBuilder('REGION(R, "copy", compute)', 8)
    for rank in range(8):
        for block in range(16):
            for i in range(3 if (rank, block) in heavy else 1):
                build.span(
                    rank=rank, block=block, region="copy", start_ns=1000 * i, duration_ns=900
                )
    return build


def test_blocks_with_little_more_on_every_rank_are_named() -> None:
    heavy = {(rank, block) for rank in range(8) for block in (3, 11)}
    (uneven,) = of_kind(analysis.findings(Summary.of(few_items(heavy).trace())), "uneven_work")
    assert (uneven.ranks, uneven.blocks) == (tuple(range(8)), (3, 11))


def test_blocks_with_little_more_on_one_rank_are_chance() -> None:
    found = analysis.findings(Summary.of(few_items({(5, 3), (2, 11), (7, 4)}).trace()))
    assert of_kind(found, "uneven_work") == []


def test_a_slow_first_call_is_left_out_and_said_so() -> None:
    build = TraceBuilder(PAIR, 2)
    for launch in range(4):
        build.launch(launch, "kernel")
        length = 9000 if launch == 0 else 1000
        for rank in range(2):
            start = launch * 20_000 + (8000 if rank == 1 and launch == 0 else 0)
            build.span(rank=rank, launch=launch, region="work", start_ns=start, duration_ns=length)
    found = analysis.findings(Summary.of(build.trace()))
    assert [finding.kind for finding in found] == ["warm_up"]
    assert found[0].evidence["ratio"] == pytest.approx(17.0)


def two_kernels(items_per_block: int) -> TraceBuilder:
    """Kernel "even" keeps 16 blocks busy; in "few" that follows, 4 of 16 have all the work, so many items each."""
    build = TraceBuilder(PAIR, 2)
    build.launch(0, "even", num_blocks=16)
    build.launch(1, "few", num_blocks=16)
    for rank in range(2):
        for block in range(16):
            build.span(rank=rank, block=block, region="work", start_ns=0, duration_ns=40_000)
        for block in range(4):
            for item in range(items_per_block):
                length_ns = 60_000 // items_per_block
                build.span(
                    rank=rank,
                    launch=1,
                    block=block,
                    region="work",
                    start_ns=50_000 + item * length_ns,
                    duration_ns=length_ns,
                )
    return build


def test_blocks_that_are_idle_in_one_kernel_of_several_are_found() -> None:
    (finding,) = of_kind(analysis.findings(Summary.of(two_kernels(12).trace())), "idle_blocks")
    assert "75 % of the blocks of ranks 0, 1 do nothing in few: 4 of 16 blocks" in finding.sentence
    assert finding.region == "work"
    assert finding.cost_ns == pytest.approx(0.75 * 60_000)
    assert finding.where_ns == (50_000, 110_000)


def test_an_item_that_cannot_be_split_is_no_reason_to_use_more_blocks() -> None:
    assert of_kind(analysis.findings(Summary.of(two_kernels(1).trace())), "idle_blocks") == []
    (halved,) = of_kind(analysis.findings(Summary.of(two_kernels(2).trace())), "idle_blocks")
    assert halved.cost_ns == pytest.approx(0.5 * 60_000)


def lossy(counts: EventCounts, **options: object) -> Trace:
    import msgspec

    build = TraceBuilder(PAIR, 2, **options)  # type: ignore[arg-type]
    build.span(rank=0, region="work", start_ns=0, duration_ns=10)
    manifest = build.manifest()
    ranks = tuple(msgspec.structs.replace(info, counts=counts) for info in manifest.ranks)
    return Trace.from_table(msgspec.structs.replace(manifest, ranks=ranks), build.table())


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (EventCounts(recorded=90, dropped=10), "dropped 20 events (10 % of all)"),
        (EventCounts(recorded=90, open=1), "begun and never ended"),
        (EventCounts(recorded=90, saturated=2), "4 spans longer than a record can say"),
        (EventCounts(recorded=90, clamped=1), "2 payload values that did not fit"),
        (EventCounts(recorded=90, unknown_region=1), "2 events of undeclared regions"),
        (EventCounts(recorded=90, torn_chunks=1), "2 chunks that were being written"),
    ],
)
def test_each_loss_has_its_sentence(counts: EventCounts, words: str) -> None:
    (finding,) = analysis.findings(Summary.of(lossy(counts)))
    assert finding.kind == "lossy_capture"
    assert words in finding.sentence


def test_lost_events_say_which_arena_would_have_held_them() -> None:
    trace = lossy(EventCounts(recorded=90, dropped=10))
    manifest = trace.manifest
    infos = [
        msgspec.structs.replace(info, arena=ArenaUse(1 << 20, 1 << 20, (64 << 20) + 1))
        for info in manifest.ranks
    ]
    bigger = msgspec.structs.replace(manifest, ranks=tuple(infos))
    (finding,) = analysis.findings(
        Summary.of(Trace.from_table(bigger, event_schema().empty_table()))
    )
    assert "with --arena-size 65MiB, which would have held all" in finding.remedy


def test_a_missing_rank_is_named() -> None:
    (finding,) = analysis.findings(Summary.of(lossy(EventCounts(), missing_ranks=(1,))))
    assert (finding.id, finding.ranks) == ("lossy-capture/missing-ranks", (1,))


def test_violated_causality_is_counted_and_shown() -> None:
    build = TraceBuilder(PAIR, 2, bound_ns=10.0)
    build.span(rank=0, region="send", start_ns=500, duration_ns=5, peer=1, slot=0)
    build.span(rank=1, region="wait", start_ns=0, duration_ns=100, peer=0, slot=0)
    (finding,) = of_kind(analysis.findings(Summary.of(build.trace())), "uncalibrated_clocks")
    assert finding.severity is Severity.MAJOR
    assert finding.evidence == {"violations": 1, "violations_beyond_bound": 1}


def test_unmatched_flows_are_counted() -> None:
    build = TraceBuilder(PAIR, 2)
    build.span(rank=0, region="send", start_ns=0, duration_ns=5, peer=1, slot=0)
    (finding,) = analysis.findings(Summary.of(build.trace()))
    assert "1 of 1 send released no recorded wait" in finding.sentence


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_no_events_at_all(num_ranks: int) -> None:
    assert analysis.findings(Summary.of(TraceBuilder(PAIR, num_ranks).trace())) == []


def test_one_rank_one_block() -> None:
    assert analysis.findings(Summary.of(simulate(Plant(num_ranks=1, num_blocks=1)))) == []


def test_two_ranks_are_measured_against_each_other() -> None:
    found = analysis.findings(Summary.of(simulate(Plant(num_ranks=2, tokens_of={1: 3.0}))))
    assert found[0].ranks == (1,)


def test_findings_do_not_depend_on_the_seed_of_a_run_but_on_its_cause() -> None:
    plant = Plant(tokens_of={6: 3.0})
    names = {
        analysis.findings(Summary.of(simulate(replace(plant, seed=seed))))[0].id
        for seed in range(4)
    }
    assert names == {"uneven-work/rank-6"}


def test_medians_of_others_on_paper() -> None:
    import numpy as np

    assert medians_of_others(np.array([1.0, 5.0])).tolist() == [5.0, 1.0]
    assert medians_of_others(np.array([1, 2, 3, 10])).tolist() == [3.0, 3.0, 2.0, 2.0]
    assert np.isnan(medians_of_others(np.array([4.0]))).all()


def test_counts_must_beat_chance_to_stand_out() -> None:
    import pandas as pd

    assert counts_that_stand_out(pd.Series([4, 4, 7, 4])).empty  # 1.75x, but 1.5 sigmas
    assert counts_that_stand_out(pd.Series([400, 400, 700, 400])).to_dict() == {2: 1.75}
    assert counts_that_stand_out(pd.Series([400, 400, 560, 400])).empty  # certain, but only 1.4x


@pytest.mark.parametrize(
    ("plant", "kind", "ranks", "region"),
    [
        (Plant(transfer_ns=12_000), "exposed_transfer", tuple(range(8)), "dispatch/wait-token"),
        (Plant(slow_link=(2, 5, 12_000)), "exposed_transfer", (2, 5), "dispatch/wait-token"),
        (Plant(credit_wait_ns={4: 6000}), "back_pressure", (4,), "dispatch/wait-credit"),
        (Plant(has_barrier=True, barrier_late_ns={6: 20_000}), "barrier_wait", (6,), "barrier"),
        (Plant(lock_hold_ns=1000), "lock_contention", tuple(range(8)), "dispatch/lock"),
        (Plant(speed_of={1: 2.5}), "uneven_speed", (1,), None),
        (Plant(slow_blocks={(3, 9): 3.0}), "uneven_speed", (3,), None),
        (Plant(tail_ns={(7, 2): 15_000}), "tail", (7,), None),
        (Plant(idle_blocks=8), "idle_blocks", tuple(range(8)), None),
        (
            Plant(is_waiting_in_rank_order=True, stagger_ns=2500, tokens_per_pair=48),
            "serialised_waits",
            tuple(range(8)),
            "dispatch/wait-token",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_planted_cause_is_the_first_finding(
    plant: Plant, kind: str, ranks: tuple[int, ...], region: str | None
) -> None:
    found = analysis.findings(Summary.of(simulate(plant)))
    assert (found[0].kind, found[0].ranks) == (kind, ranks)
    if region is not None:
        assert found[0].region == region
    assert found[0].cost_ns > 0
    assert found[0].share > 0
    assert found[0].explained_by is None


def test_a_late_sender_says_what_would_be_gained() -> None:
    late = analysis.findings(Summary.of(simulate(Plant(send_late_ns={2: 30_000}))))[0]
    assert late.evidence["gain_share"] == pytest.approx(30_000 / 43_700, abs=0.05)
    assert "If only rank 2 were like the median rank, a call would end" in late.sentence


def test_all_ids_are_different_and_causes_exist() -> None:
    plant = Plant(tokens_of={3: 3.0}, start_late_ns={5: 30_000}, slow_blocks={(1, 4): 3.0})
    found = analysis.findings(Summary.of(simulate(plant)))
    ids = [finding.id for finding in found]
    assert len(set(ids)) == len(ids)
    assert {finding.explained_by for finding in found if finding.explained_by} <= set(ids)


def test_a_capture_that_lost_too_much_says_so_first() -> None:
    plant = Plant(num_ranks=4, tokens_of={1: 4.0}, dropped={2: 100_000}, seed=3)
    trace = simulate(plant)
    found = analysis.findings(Summary.of(trace))
    assert (found[0].kind, found[0].severity, found[0].ranks) == (
        "lossy_capture",
        Severity.CRITICAL,
        (2,),
    )
    assert "what is left only" in found[0].sentence
    assert found[1].kind == "uneven_work"
    assert report.build(trace).verdict.startswith("Rank 2 dropped 100,000 events")


def test_few_lost_events_do_not_hide_the_cause() -> None:
    found = analysis.findings(
        Summary.of(simulate(Plant(num_ranks=4, tokens_of={1: 4.0}, dropped={2: 3}, seed=3)))
    )
    assert found[0].kind == "uneven_work"
    assert any(finding.kind == "lossy_capture" for finding in found)


def on_cpu(trace: Trace, num_cores: int) -> Trace:
    ranks = tuple(
        msgspec.structs.replace(info, target="cpu", num_cores=num_cores)
        for info in trace.manifest.ranks
    )
    manifest = msgspec.structs.replace(trace.manifest, ranks=ranks)
    columns = ", ".join(event_schema().names)
    return Trace.from_table(manifest, trace.sql(f"SELECT {columns} FROM raw_events"))


def test_ranks_that_share_cores_make_times_doubtful_and_counts_not() -> None:
    plant = Plant(
        num_ranks=8, tokens_of={3: 3.0}, speed_of={6: 3.0}, start_late_ns={6: 60_000}, seed=2
    )
    found = analysis.findings(Summary.of(on_cpu(simulate(plant), 2)))
    assert (found[0].kind, found[0].ranks) == ("uneven_work", (3,))
    kinds = [finding.kind for finding in found]
    assert kinds.index("oversubscribed") < kinds.index("launch_skew")
    note = found[kinds.index("oversubscribed")]
    assert note.sentence.startswith("8 ranks share 2 cores")
    times = [finding for finding in found if finding.kind in ("launch_skew", "uneven_speed")]
    assert {finding.severity for finding in times} == {Severity.MINOR}


@pytest.mark.parametrize("num_cores", [0, 8, 64])
def test_ranks_with_cores_of_their_own_are_not_doubted(num_cores: int) -> None:
    trace = on_cpu(simulate(Plant(num_ranks=8, start_late_ns={6: 60_000}, seed=2)), num_cores)
    found = analysis.findings(Summary.of(trace))
    assert found[0].kind == "launch_skew"
    assert found[0].severity is Severity.CRITICAL
    assert "oversubscribed" not in {finding.kind for finding in found}


COUNTS_REGIONS = """
REGION(R_SEND,   "rows/send",   send, peer:8, slot:24)
REGION(R_COUNT,  "counts/send", send, peer:8, slot:24)
REGION(R_WAIT,   "rows/wait",   wait, peer:8, slot:24)
REGION(R_COUNTS, "counts/wait", wait, peer:8, slot:24)
FLOW(R_SEND, R_WAIT)
FLOW(R_COUNT, R_COUNTS)
"""


def counts_behind_rows(slow_rows: bool) -> Trace:
    """All pairs of 4 ranks; counts from 0 to 1 take 900 ns instead of 50, and rows there too where `slow_rows`."""
    build = TraceBuilder(COUNTS_REGIONS, 4)
    for src, dst in ((a, b) for a in range(4) for b in range(4) if a != b):
        is_slow = (src, dst) == (0, 1)
        for send, wait, slow in (
            ("rows/send", "rows/wait", slow_rows),
            ("counts/send", "counts/wait", True),
        ):
            block = dst if send == "rows/send" else 4 + dst
            build.span(
                rank=src, block=block, region=send, start_ns=0, duration_ns=10, peer=dst, slot=0
            )
            late = 900 if is_slow and slow else 50
            block = 8 + src if send == "rows/send" else 12 + src
            build.span(
                rank=dst, block=block, region=wait, start_ns=0, duration_ns=late, peer=src, slot=0
            )
    return build.trace()


def test_a_store_queued_behind_others_is_not_blamed_on_the_link() -> None:
    queued = next(
        f
        for f in analysis.findings(Summary.of(counts_behind_rows(False)))
        if f.kind == "exposed_transfer"
    )
    assert (queued.ranks, queued.region) == ((0, 1), "counts/wait")
    assert "queued behind other stores" in queued.sentence
    assert "rows/wait" in queued.sentence
    slow = next(
        f
        for f in analysis.findings(Summary.of(counts_behind_rows(True)))
        if f.kind == "exposed_transfer"
    )
    assert slow.ranks == (0, 1)
    assert "look at the link" in slow.remedy


def transfers(slow_sources: tuple[int, ...]) -> Trace:
    """Ranks wait 1 us for all data, rank 0 10 us for that of some; what rank 3 sends to it, one block receives."""
    build = TraceBuilder(PAIR, 4)
    for src in range(4):
        for dst in {0, 1, 2, 3} - {src}:
            wait_ns = 10_000 if dst == 0 and src in slow_sources else 1000
            for slot in range(9):
                is_one_block = (src, dst) == (3, 0)
                block = 0 if is_one_block else 1 + 9 * src + slot
                at = 20_000 * slot if is_one_block else 0
                build.span(
                    rank=src,
                    block=60 + 9 * dst + slot,
                    region="send",
                    start_ns=at,
                    duration_ns=500,
                    peer=dst,
                    slot=slot,
                )
                build.span(
                    rank=dst,
                    block=block,
                    region="wait",
                    start_ns=at,
                    duration_ns=wait_ns,
                    peer=src,
                    slot=slot,
                )
    return build.trace()


def test_a_link_like_the_others_into_its_rank_is_not_called_slow() -> None:
    (slow,) = of_kind(analysis.findings(Summary.of(transfers((3,)))), "exposed_transfer")
    assert slow.id == "exposed-transfer/3-0/wait"
    alike = of_kind(analysis.findings(Summary.of(transfers((1, 2, 3)))), "exposed_transfer")
    assert [finding.id for finding in alike if "-0/" in finding.id] == []


def test_a_sample_of_calls_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = simulate(Plant(num_ranks=2, num_launches=10, seed=1))
    whole = analysis.late_sender(Summary.of(trace))["flows"].sum()
    monkeypatch.setattr("kprof.analysis.flow_sums.MAX_EVENTS_PAIRED", 10)
    ends = int(analysis.unmatched_flows(Summary.of(trace))[["sends", "waits"]].sum().sum())
    monkeypatch.setattr("kprof.analysis.flow_sums._EVENTS_SAMPLED", ends * 3 // 10)
    sampled = simulate(Plant(num_ranks=2, num_launches=10, seed=1))
    found = {finding.kind: finding for finding in analysis.findings(Summary.of(sampled))}
    assert "paired in 3 of 10 calls" in found["sampled_flows"].sentence
    assert found["sampled_flows"].evidence["calls"] == [1, 5, 8]
    assert analysis.late_sender(Summary.of(sampled))["flows"].sum() == pytest.approx(
        0.3 * whole, rel=0.1
    )
    assert "lossy_capture" not in found


def test_clocks_of_their_own_are_said_before_what_is_not_critical() -> None:
    clocks = Finding("uncalibrated-clocks", "uncalibrated_clocks", Severity.NOTE, "", "")
    others = [
        Finding(severity.value, "tail", severity, "", "", cost_ns=1.0)
        for severity in (Severity.MINOR, Severity.CRITICAL, Severity.MAJOR)
    ]
    order = [finding.id for finding in ordered([*others, clocks])]
    assert order == ["critical", "uncalibrated-clocks", "major", "minor"]


def test_one_very_slow_block_makes_no_slow_rank() -> None:
    found = analysis.findings(Summary.of(simulate(Plant(slow_blocks={(3, 9): 60.0}))))
    slow = of_kind(found, "uneven_speed")
    assert [(finding.id, finding.blocks) for finding in slow] == [
        ("uneven-speed/blocks-of-rank-3", (9,))
    ]
    assert "block 9 of rank 3 took" in slow[0].sentence


def one_block_of(num_processors: int, work_ns: int) -> Trace:
    """Two ranks, one block each, that works and then waits for 2 us, in each of three calls."""
    builder = TraceBuilder(PAIR, 2)
    for launch in range(3):
        builder.launch(launch, "copy_all", 1)
        for rank in range(2):
            begin = launch * 200_000
            builder.span(
                rank=rank, region="work", start_ns=begin, duration_ns=work_ns, launch=launch
            )
            builder.span(
                rank=rank,
                region="wait",
                start_ns=begin + work_ns,
                duration_ns=2000,
                launch=launch,
                peer=1 - rank,
                slot=launch,
            )
    manifest = builder.manifest()
    ranks = tuple(
        msgspec.structs.replace(info, num_processors=num_processors) for info in manifest.ranks
    )
    return Trace.from_table(msgspec.structs.replace(manifest, ranks=ranks), builder.table())


def test_one_block_on_a_large_gpu_is_found() -> None:
    found = analysis.findings(Summary.of(one_block_of(132, 60_000)))[0]
    assert (found.kind, found.ranks) == ("idle_processors", (0, 1))
    assert found.sentence == (
        "copy_all runs in 1 block on a GPU of 132 SMs (CUs), and each works for 60.0 us a launch, 97 % of its time"
    )
    assert found.cost_ns == pytest.approx(3 * 60_000 * 131 / 132)


@pytest.mark.parametrize(
    ("num_processors", "work_ns"), [(0, 60_000), (3, 60_000), (132, 5000)], ids=str
)
def test_few_blocks_are_nothing_to_speak_of(num_processors: int, work_ns: int) -> None:
    """The processors are not known, or not many more than blocks, or the launch is short: latency is all."""
    found = analysis.findings(Summary.of(one_block_of(num_processors, work_ns)))
    assert "idle_processors" not in {finding.kind for finding in found}
