"""All findings of a summary, with their places in the trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kprof.analysis.calls import launch_starts
from kprof.analysis.findings import words
from kprof.analysis.findings.arrival import arrival_of
from kprof.analysis.findings.doubt import Doubt, DoubtKind
from kprof.analysis.findings.doubts import doubts_of
from kprof.analysis.findings.explanation import Explanation, explain_summary
from kprof.analysis.findings.finding import Finding, Kind, RestsOn
from kprof.analysis.findings.found import Findings, Rest, limit_in_front
from kprof.analysis.findings.kinds import all_kinds, resting_on
from kprof.analysis.findings.limits import Limit, LimitKind
from kprof.analysis.findings.parts import waits_of
from kprof.analysis.findings.places import place_of, place_of_design
from kprof.analysis.findings.rest import rate_of, rest_of
from kprof.analysis.findings.thresholds import LEAST_BLOCKS, TO_SPARE
from kprof.analysis.hung import without_hung_calls
from kprof.analysis.metric import memo
from kprof.analysis.placement import Placement
from kprof.analysis.replay import load
from kprof.analysis.summary import Summary
from kprof.analysis.warmup import steady_part
from kprof.analysis.wording import counted, duration, members
from kprof.capture.losses import why_empty
from kprof.errors import CallTooLargeError

_OF_ALL_BLOCKS: Final = frozenset({LimitKind.FEW_BLOCKS, LimitKind.WAVES})


@memo
def find(summary: Summary) -> Findings:
    """Everything that can be said about a run.

    Works on every trace: what cannot be said is a doubt, and the findings that rest on it are left
    out.
    """
    doubts = doubts_of(summary)
    if summary.trace.is_empty():
        why = why_empty(summary.trace.manifest, summary.trace.ranks)
        why = why or "nothing was recorded, or the selection leaves nothing"
        empty = f"The capture holds no events: {why}"
        return Findings(tuple(d for d in doubts if d.is_grave), (), Rest(empty, 0.0))
    others = without_hung_calls(summary)
    if others is None:
        return Findings(tuple(doubts), (), Rest("No call was recorded that did not hang", 0.0))
    return _find_among(others, doubts)


def _find_among(summary: Summary, doubts: list[Doubt]) -> Findings:
    undermined = frozenset[RestsOn]().union(*(doubt.undermines for doubt in doubts))
    taken_out = resting_on(undermined)
    if all(RestsOn.TIMES not in kind.rests_on for kind in set(all_kinds()) - taken_out):
        return _by_count(summary, doubts, taken_out)
    try:
        explanation = explain_summary(summary, taken_out)
    except CallTooLargeError as error:
        if sample := some_blocks(summary):
            return _find_among(sample[0], [sample[1], *doubts])
        doubt = Doubt(
            DoubtKind.NOT_REPLAYED,
            f"Gains cannot be computed: {error.reason}",
            error.remedy,
            frozenset({RestsOn.TIMES}),
            is_grave=True,
        )
        return _by_count(summary, [doubt, *doubts], taken_out)
    limits = _known_limits(summary, explanation.limits, taken_out)
    explanation = replace(explanation, limits=limits)
    recorded = frozenset(info.rank for info in summary.trace.ranks if info.is_recorded)
    findings = [
        _looked_up(summary, finding.kind.among(finding, recorded))
        for finding in explanation.findings
        if finding.kind not in taken_out
    ]
    # What may gain nothing stands below what surely gains something.
    findings.sort(key=lambda finding: finding.interval_ns[0] <= 0)
    is_across = RestsOn.COMMON_CLOCK not in undermined
    rest = rest_of(summary, explanation, findings, is_across_ranks=is_across)
    design = limit_in_front(rest, findings)
    if design is not None:
        where_ns, tracks = place_of_design(summary, design, explanation.ordinals)
        design = replace(design, where_ns=where_ns, tracks=tracks)
    return Findings(
        (*doubts, *_of_sample(explanation)),
        tuple(_in_trace(summary, explanation, findings)),
        rest,
        explanation.ordinals,
        explanation.num_calls,
        explanation.total_ns,
        design,
    )


def _looked_up(summary: Summary, finding: Finding) -> Finding:
    """A finding with what tables know beyond the replay."""
    is_on_gpu = any(info.target in ("cuda", "hip") for info in summary.trace.ranks)
    rate, arrival = rate_of(summary, finding.region), arrival_of(summary, finding)
    known = replace(finding, is_on_gpu=is_on_gpu, rate=rate, arrival=arrival)
    return finding.kind.looked_up(summary, known)


def _in_trace(
    summary: Summary, explanation: Explanation, findings: Sequence[Finding]
) -> Iterator[Finding]:
    """Findings with their ids, places, waits and proofs."""
    steady = steady_part(summary)[0]
    least = float("inf")
    for finding, waits in zip(_named(summary, findings), waits_of(steady, findings), strict=True):
        where_ns, tracks = place_of(_on_one_clock(summary, finding), finding, explanation.ordinals)
        yield replace(
            finding,
            waits=waits,
            where_ns=where_ns,
            tracks=tracks,
            evidence=_gains(finding, explanation),
            warm_up=explanation.warm_up,
            # One that gains less than a later one hides that.
            is_hidden=least < finding.gain_ns and not finding.is_by_design,
            verified=summary.trace.verified.get(finding.id),
        )
        least = min(least, finding.gain_ns)


def _on_one_clock(summary: Summary, finding: Finding) -> Summary:
    """The part of a run in which a stretch of time means something: one rank, if clocks differ."""
    if summary.trace.is_on_one_clock:
        return summary
    return summary.select(ranks=(finding.ranks or (summary.trace.ranks[0].rank,))[:1])


def _known_limits(
    summary: Summary, limits: tuple[Limit, ...], taken_out: frozenset[Kind]
) -> tuple[Limit, ...]:
    """Without any where all threads of a rank take turns on one core: there, what waits in a rank
    waits for its turn. Without those about the number of blocks, where not all are known."""
    if all(info.target == "cpu" and info.num_cores for info in summary.trace.manifest.ranks):
        return ()
    hidden = _OF_ALL_BLOCKS if resting_on(frozenset({RestsOn.ALL_BLOCKS})) <= taken_out else ()
    return tuple(limit for limit in limits if limit.kind not in hidden)


def _by_count(summary: Summary, doubts: list[Doubt], taken_out: frozenset[Kind]) -> Findings:
    """What counts alone say, where times are in doubt."""
    kinds = [kind for kind in all_kinds() if kind not in taken_out]
    found = []
    counted_ones = [finding for kind in kinds for finding in kind.counted(summary)]
    for finding in _named(summary, counted_ones):
        where_ns, tracks = place_of(summary, finding, finding.calls)
        found.append(replace(finding, where_ns=where_ns, tracks=tracks))
    num_calls = int(launch_starts(summary)["ordinal"].nunique())
    is_one = len([info for info in summary.trace.ranks if info.is_recorded]) == 1
    places = "blocks" if is_one else "ranks"
    said = "" if found else f"All {places} have about as many events in every region"
    if any(doubt.kind is DoubtKind.ONE_BLOCK for doubt in doubts):
        said = "The one block has no other to compare its counts with"
    if not any(kind.counts_items for kind in kinds):
        said = "This recording allows no other conclusion"
    return Findings(tuple(doubts), tuple(found), Rest(said, 0.0), num_calls=num_calls)


def _named(summary: Summary, findings: Sequence[Finding]) -> list[Finding]:
    """Every finding with the hosts or the rail that it is about, and its id: its kind and its
    place, numbered where two would be the same."""
    placement = Placement.of(info for info in summary.trace.ranks if info.is_recorded)
    seen: Counter[str] = Counter()
    named = []
    for finding in findings:
        name = f"{finding.kind.name}/{words.key(finding)}"
        seen[name] += 1
        number = "" if seen[name] == 1 else f"-{seen[name]}"
        named.append(replace(_placed(placement, finding), id=name + number))
    return named


def _placed(placement: Placement, finding: Finding) -> Finding:
    if finding.links:
        rail = placement.rail_of_links(finding.links)
        return replace(finding, rail=rail, host_links=placement.host_links(finding.links))
    hosts, rail = placement.hosts_of(finding.ranks), placement.rail_of(finding.ranks)
    return replace(finding, hosts=hosts, rail=rail)


def _gains(finding: Finding, explanation: Explanation) -> tuple[dict[str, float], ...]:
    """What every call would gain: the proof of a finding."""
    pairs = zip(explanation.ordinals, finding.gains_ns, strict=True)
    return tuple({"call": ordinal, "gain_ns": gain} for ordinal, gain in pairs)


def _of_sample(explanation: Explanation) -> Iterator[Doubt]:
    """Which calls were looked at, where not all were."""
    if explanation.warm_up:
        yield Doubt(
            DoubtKind.WARM_UP,
            f"{members('Call', explanation.warm_up)} took much longer than "
            f"{_others(explanation)}: a warm-up, excluded from findings and efficiency",
            "call the kernel once with a null buffer before the calls that count; tables and "
            "figures include every call, --launches selects",
            evidence={"calls": list(explanation.warm_up)},
        )
    looked_at, steady = len(explanation.ordinals), explanation.num_calls - len(explanation.warm_up)
    if looked_at < steady:
        yield Doubt(
            DoubtKind.SAMPLED_CALLS,
            f"Of {counted(steady, 'call', 'calls')} {looked_at} were replayed, typical and slow "
            f"ones, {duration(explanation.total_ns)} together",
            "select launches (--launches) to look at others",
            evidence={"calls": list(explanation.ordinals), "of_calls": steady},
        )


def _others(explanation: Explanation) -> str:
    """What calls of a warm-up are compared with: a kernel may begin in the middle of a run."""
    is_at_begin = explanation.warm_up == tuple(range(len(explanation.warm_up)))
    return "the others" if is_at_begin else "later calls of the same kernels"


def some_blocks(summary: Summary) -> tuple[Summary, Doubt] | None:
    """The part of a run with as many blocks as can be replayed, evenly spread over their numbers,
    and the doubt that says so.

    None where not even two fit, and where blocks were selected already.
    """
    if summary.trace.selection.blocks is not None:
        return None
    table = summary.frame(
        """SELECT block, sum(events) / (SELECT count(DISTINCT ordinal) FROM spans_of_launches)
            AS events FROM tracks GROUP BY block ORDER BY block"""
    )
    share = TO_SPARE * load.MAX_SPANS_OF_CALL / max(1.0, float(table["events"].sum()))
    wanted = int(share * len(table))
    if not LEAST_BLOCKS <= wanted < len(table):
        return None
    rows = np.linspace(0, len(table) - 1, wanted).round().astype(int)
    blocks = [int(block) for block in table["block"].iloc[np.unique(rows)].tolist()]
    return summary.select(blocks=blocks), Doubt(
        DoubtKind.NOT_REPLAYED,
        f"A call has more events than are replayed: {counted(len(blocks), 'block', 'blocks')} of "
        f"{len(table):,} stand for all; waits for other blocks keep their length",
        "select ranks that exchange data, or blocks (--ranks, --blocks), to look at others",
        frozenset({RestsOn.ALL_BLOCKS}),
        is_grave=True,
        evidence={"blocks": blocks, "of_blocks": len(table)},
    )
