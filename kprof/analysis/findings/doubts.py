"""Can the numbers be trusted? A doubt is a banner above the findings.

What rests on what it doubts is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from msgspec import structs

from kprof.analysis.barriers import barrier_waits
from kprof.analysis.findings.doubt import (
    Doubt,
    DoubtKind,
    nothing_to_compare,
    one_call,
    part_of_launches,
)
from kprof.analysis.findings.finding import RestsOn
from kprof.analysis.findings.thresholds import BEYOND_USE, BUSY_CORE_SHARE, HARMLESS_LOSS
from kprof.analysis.flow_sums import calls_paired
from kprof.analysis.summary import WAIT, Summary
from kprof.analysis.waiting import late_sender, unmatched_flows
from kprof.analysis.wording import counted, duration, listed, members, percent
from kprof.capture.manifest import RankInfo
from kprof.regions import Category

_WAITING: Final = frozenset({Category.WAIT, Category.SYNC})
_COMMON_CLOCK: Final = frozenset({RestsOn.COMMON_CLOCK})
# So many losses are in a doubt's sentence.
_MAX_QUOTED: Final = 3


def doubts_of(summary: Summary) -> list[Doubt]:
    """All doubts about a recording, the grave ones first."""
    found = [doubt for rule in _RULES if (doubt := rule(summary)) is not None]
    return sorted(found, key=lambda doubt: not doubt.is_grave)


def _hung(summary: Summary) -> Doubt | None:
    """Grave where kernels waited, or the workload did not end by itself."""
    manifest = summary.trace.manifest
    hang = manifest.hang
    if hang is None:
        return None
    has_gone_on = not hang.num_open and manifest.exit_code == 0
    went_on = ", and then the run went on" if has_gone_on else ""
    by_kernel: dict[str, list[int]] = defaultdict(list)
    for call in hang.calls:
        by_kernel[call.kernel].append(call.ordinal)
    calls = [f"{members('call', sorted(of))} of {name}" for name, of in by_kernel.items()]
    left_out = f"; findings leave out {listed(calls)}" if calls else ""
    # It may have hung for longer: nobody writes when it was killed, or moved again.
    still = f"had stood still for {duration(hang.idle_s * 1e9)} when that was reported"
    return Doubt(
        DoubtKind.HUNG,
        f"The run hung, and {still}: {hang.sentence}{went_on}",
        f"run kprof hang RUN: it lists every open wait and where every rank stands{left_out}",
        is_grave=bool(calls) or bool(manifest.exit_code),
        ranks=tuple(dict.fromkeys(rank for rank, _ in hang.shown)),
        evidence=structs.asdict(hang),
    )


def _lost_events(summary: Summary) -> Doubt | None:
    infos = summary.trace.ranks
    lost = {info.rank: info.counts.dropped for info in infos if info.counts.dropped}
    if not lost:
        return None
    recorded = sum(info.counts.recorded for info in infos)
    share = sum(lost.values()) / (recorded + sum(lost.values()))
    worst = max(
        c.dropped / (c.recorded + c.dropped) for c in (i.counts for i in infos) if c.dropped
    )
    needed = summary.trace.manifest.needed_arena_size
    size = f"--arena-size {needed}" if needed else "a larger --arena-size"
    undermined = frozenset[RestsOn]()
    if worst >= BEYOND_USE:
        undermined = frozenset(RestsOn)
    elif share >= HARMLESS_LOSS:
        undermined = frozenset({RestsOn.ALL_EVENTS})
    return Doubt(
        DoubtKind.LOST_EVENTS,
        f"{members('Rank', lost)} lost {counted(sum(lost.values()), 'event', 'events')}, "
        f"{percent(share)} of all: counts and sums are too low",
        f"record again with {size}, or with fewer regions",
        undermined,
        is_grave=bool(undermined),
        ranks=tuple(lost),
        evidence={"dropped": lost, "share": share, "needed_arena_size": needed},
    )


def _missing_ranks(summary: Summary) -> Doubt | None:
    manifest = summary.trace.manifest
    missing = manifest.missing_ranks
    if not missing:
        return None
    return Doubt(
        DoubtKind.MISSING_RANKS,
        f"{members('Rank', missing)} of {manifest.world_size} left no events: only "
        f"waits for {'it' if len(missing) == 1 else 'them'} are known",
        "look at the workload's own output for why a rank ended early, and record again",
        is_grave=True,
        ranks=tuple(missing),
        evidence={"missing_ranks": list(missing), "world_size": manifest.world_size},
    )


def _lost_launches(summary: Summary) -> Doubt | None:
    """Launches of which the rank's files hold less than it made, or nothing."""
    manifest = summary.trace.manifest
    cut_short = {info.rank: info.cut_short for info in summary.trace.ranks if info.cut_short}
    said = [f"rank {rank} is cut short: {why}" for rank, why in cut_short.items()]
    said += manifest.messages
    if not said:
        return None
    more = f"; and {len(said) - _MAX_QUOTED:,} more" if len(said) > _MAX_QUOTED else ""
    return Doubt(
        DoubtKind.LOST_LAUNCHES,
        f"The capture does not hold all that ran: {'; '.join(said[:_MAX_QUOTED])}{more}",
        "`kprof info` lists all that is missing; let every process end by itself, record again",
        ranks=tuple(cut_short),
        evidence={"cut_short": cut_short, "messages": list(manifest.messages)},
    )


def _open_spans(summary: Summary) -> Doubt | None:
    opened = {info.rank: info.counts.open for info in summary.trace.ranks if info.counts.open}
    if not opened:
        return None
    return Doubt(
        DoubtKind.OPEN_SPANS,
        f"{counted(sum(opened.values()), 'span', 'spans')} on {members('rank', opened)} never "
        "ended; excluded from all statistics",
        "look at the open spans in the trace: they show what blocks did when the recording stopped",
        ranks=tuple(opened),
        evidence={"open": opened},
    )


_UNREADABLE: Final = {
    "saturated": "spans longer than a record can hold",
    "clamped": "payload values that did not fit their field",
    "unknown_region": "events of undeclared regions",
    "torn_chunks": "chunks that were being written when the arena was read",
}


def _unreadable(summary: Summary) -> Doubt | None:
    infos = summary.trace.ranks
    sums = {kind: sum(getattr(info.counts, kind) for info in infos) for kind in _UNREADABLE}
    present = {kind: count for kind, count in sums.items() if count}
    if not present:
        return None
    listed = ", ".join(f"{count} {_UNREADABLE[kind]}" for kind, count in present.items())
    return Doubt(
        DoubtKind.UNREADABLE,
        f"The capture holds {listed}",
        "widen the payload field, declare the region, or flush after the kernel has ended",
        evidence=present,
    )


def _unaligned(summary: Summary) -> Doubt | None:
    trace = summary.trace
    if trace.is_on_one_clock:
        return None
    reason = trace.manifest.alignment_note or "the recording has no clock calibration"
    return Doubt(
        DoubtKind.UNALIGNED_CLOCKS,
        f"The ranks have no common clock ({reason}): only durations are compared",
        "record with clock calibration to see what one rank costs the others",
        _COMMON_CLOCK,
        is_grave=True,
    )


def _weak_clocks(summary: Summary) -> Doubt | None:
    """Clocks that were calibrated once, or not around all launches."""
    notes = summary.trace.alignment.notes if summary.trace.alignment else ()
    if not notes:
        return None
    return Doubt(
        DoubtKind.WEAK_CLOCKS,
        ". ".join(notes),
        "align the clocks before and after all launches",
        evidence={"notes": list(notes)},
    )


def _causality(summary: Summary) -> Doubt | None:
    """Waits that ended before their send began."""
    if not summary.trace.is_on_one_clock:
        return None
    table = late_sender(summary)
    bad = table[table["violations"] > 0]
    if bad.empty:
        return None
    count, beyond = int(bad["violations"].sum()), int(bad["violations_beyond_bound"].sum())
    return Doubt(
        DoubtKind.CAUSALITY,
        f"{count:,} of {int(table['flows'].sum()):,} waits ended before their send began, "
        f"{beyond:,} of them by more than the clock error of "
        f"{duration(float(bad['bound_ns'].max()))}",
        "calibrate closer to the run; if that does not help, check that no slot is used twice in "
        "one launch",
        _COMMON_CLOCK if beyond else frozenset(),
        is_grave=bool(beyond),
        ranks=tuple(sorted({*bad["src"].astype(int), *bad["dst"].astype(int)})),
        evidence={"violations": count, "violations_beyond_bound": beyond},
    )


def _shared_cores(summary: Summary) -> Doubt | None:
    """While one rank runs, another on its core does not: that looks like waiting or lateness."""
    hosts: dict[str, list[RankInfo]] = defaultdict(list)
    for info in summary.trace.manifest.ranks:
        if info.target == "cpu" and info.num_cores:
            hosts[info.host].append(info)
    crowded = [ranks for ranks in hosts.values() if len(ranks) > ranks[0].num_cores]
    if not crowded:
        return _blocks_take_turns(summary) or _busy_cores(summary)
    ranks = max(crowded, key=lambda ranks: len(ranks) / ranks[0].num_cores)
    cores = ranks[0].num_cores
    fact = f"{len(ranks)} ranks share {counted(cores, 'core', 'cores')}"
    return _scheduled(fact, "run as many ranks as there are cores, or run on GPUs,", ranks, cores)


def _busy_cores(summary: Summary) -> Doubt | None:
    """Other programs took the cores of ranks meanwhile."""
    ranks = [info for info in summary.trace.ranks if _core_wait(info) > BUSY_CORE_SHARE]
    if not ranks:
        return None
    worst = max(ranks, key=_core_wait)
    fact = f"Rank {worst.rank} spent {percent(_core_wait(worst))} of its time waiting for a core"
    return _scheduled(fact, "stop what else runs here, or run on GPUs,", ranks, worst.num_cores)


def _core_wait(info: RankInfo) -> float:
    """The share of the time that it was ready to run in which others had its core; 0 where it has
    no events, because no time of theirs can be wrong."""
    if not info.counts.recorded:
        return 0.0
    return info.waited_for_core_ns / max(info.ran_ns + info.waited_for_core_ns, 1)


def _scheduled(fact: str, remedy: str, ranks: Sequence[RankInfo], cores: int) -> Doubt:
    return Doubt(
        DoubtKind.SHARED_CORES,
        f"{fact}: timings reflect OS scheduling; only counts are reliable",
        f"{remedy} for meaningful times",
        frozenset({RestsOn.TIMES}),
        is_grave=True,
        ranks=tuple(info.rank for info in ranks),
        evidence={"ranks": len(ranks), "cores": cores},
    )


def _blocks_take_turns(summary: Summary) -> Doubt | None:
    """Of one rank on a CPU only blocks could be compared, and these run on one core in turn."""
    infos = summary.trace.manifest.ranks
    if len(infos) != 1 or infos[0].target != "cpu" or not infos[0].num_cores:
        return None
    tracks, blocks = summary.row(
        "SELECT count(DISTINCT (block, warp)), count(DISTINCT block) FROM tracks"
    )
    if tracks < 2:
        return None
    who = "blocks of the one rank" if blocks > 1 else "warps of the one block"
    fact = f"The {who} take turns on one core"
    return _scheduled(fact, "run on a GPU", infos, 1)


def _guessed(summary: Summary) -> Doubt | None:
    """What an import had to guess; the number of a launch's blocks always is."""
    guesses = summary.trace.manifest.guesses
    if not guesses:
        return None
    return Doubt(
        DoubtKind.GUESSED_METADATA,
        f"Guessed at import: {'; '.join(guesses)}",
        "import again with a regions file (--regions) that says what the names are",
        frozenset({RestsOn.ALL_BLOCKS}),
        evidence={"guesses": list(guesses)},
    )


def _sampled_flows(summary: Summary) -> Doubt | None:
    """Captures with more events than are paired: which part the sums over flows are of."""
    if not summary.trace.is_on_one_clock or not summary.trace.regions.flows:
        return None
    paired = calls_paired(summary)
    if paired.is_all:
        return None
    return Doubt(
        DoubtKind.SAMPLED_FLOWS,
        f"Sends and waits were paired in {len(paired.ordinals)} of {paired.of_calls} calls, "
        "evenly spread: sums of late senders and transfers cover only these",
        "select launches (--launches) to look at others; all other numbers cover the whole run",
        evidence={"calls": list(paired.ordinals), "of_calls": paired.of_calls},
    )


def _unmatched(summary: Summary) -> Doubt | None:
    """Sends and waits that found no partner."""
    if not calls_paired(summary).is_all:
        return None
    table = unmatched_flows(summary)
    sends, waits = (int(table[name].sum()) for name in ("unmatched_sends", "unmatched_waits"))
    if sends == 0 and waits == 0:
        return None
    return Doubt(
        DoubtKind.UNMATCHED_FLOWS,
        f"{counted(sends, 'send', 'sends')} released no recorded wait, and "
        f"{counted(waits, 'wait has', 'waits have')} no recorded send",
        "expected if one span stands for several sends; "
        "else check that both sides record the same slot",
        evidence={"rows": table.to_dict("records")},
    )


def _no_waits(summary: Summary) -> Doubt | None:
    """Without waits, or without flows, no rank delays another in a replay."""
    trace = summary.trace
    if summary.frame(f"SELECT 1 FROM named_cells WHERE {WAIT} LIMIT 1").empty:
        if declared := [r.name for r in trace.regions.regions if r.category in _WAITING]:
            return Doubt(
                DoubtKind.NO_WAITS,
                f"No wait was recorded, and {listed(declared[:_MAX_QUOTED])} could have been: "
                "a block that waits looks idle",
                "expected of a kernel that never waits; else record its waits to see who "
                "waited and for whom",
                frozenset({RestsOn.WAITS}),
            )
        if _is_of_whole_programs(summary):
            return None
        return Doubt(
            DoubtKind.NO_WAITS,
            "No region of category wait or sync was recorded: kprof cannot tell who waited for "
            "whom",
            "put a region of category wait around the loops that poll",
        )
    if len(trace.ranks) > 1 and not trace.regions.flows and not _meets_only(summary):
        return Doubt(
            DoubtKind.NO_FLOWS,
            "No FLOW joins sends with waits: kprof cannot tell what one rank costs the others",
            "declare FLOW(send, wait) in the regions file; both need peer and slot",
            _COMMON_CLOCK,
        )
    return None


def _is_of_whole_programs(summary: Summary) -> bool:
    """Whether one rank has nothing but spans of whole kernels, as --inductor makes them: nobody
    could put a region into those."""
    if len(summary.trace.ranks) > 1:
        return False
    named = summary.frame("""SELECT bool_and(region = kernel) AS is_whole FROM
        (SELECT DISTINCT region, kernel FROM named_cells JOIN launches USING (rank, launch))""")
    return bool(named["is_whole"].eq(True).all())


def _meets_only(summary: Summary) -> bool:
    """Whether barriers of all ranks join them, and no rank waits for anything else."""
    if any(region.category is Category.WAIT for region in summary.trace.regions.regions):
        return False
    return bool((barrier_waits(summary)["scope"] == "world").any())


_RULES: Final = (
    _hung,
    _shared_cores,
    _lost_events,
    _missing_ranks,
    _lost_launches,
    _unaligned,
    _causality,
    _weak_clocks,
    _open_spans,
    _unreadable,
    _guessed,
    nothing_to_compare,
    part_of_launches,
    one_call,
    _no_waits,
    _sampled_flows,
    _unmatched,
)
