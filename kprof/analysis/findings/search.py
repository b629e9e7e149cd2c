"""All findings of a summary, in words and with their places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from kprof.analysis.explain import (
    ExplainedFinding,
    FindingKind,
    Limit,
    LimitKind,
    TraceExplanation,
    When,
    explain_summary,
)
from kprof.analysis.findings import words
from kprof.analysis.findings.counts import uneven_blocks, uneven_ranks
from kprof.analysis.findings.doubts import doubts_of
from kprof.analysis.findings.made_of import rate_of
from kprof.analysis.findings.model import (
    DesignCost,
    Doubt,
    DoubtKind,
    Finding,
    Findings,
    Rest,
    limit_in_front,
)
from kprof.analysis.findings.numbers import with_counted_factor
from kprof.analysis.findings.particulars import particulars_of, precise
from kprof.analysis.findings.places import place_of, place_of_design
from kprof.analysis.findings.rest import rest_of
from kprof.analysis.findings.sampled_blocks import some_blocks
from kprof.analysis.findings.waits import waits_of
from kprof.analysis.hung import without_hung_calls
from kprof.analysis.memo import memo
from kprof.analysis.skew import launch_starts
from kprof.analysis.summary import Summary
from kprof.analysis.warmup import steady_part
from kprof.analysis.wording import counted, duration, members
from kprof.capture.losses import why_empty
from kprof.errors import SelectionError

# Where ranks have no clock in common each is replayed by itself; of more it takes long.
_MOST_RANKS = 8
_OF_ALL_BLOCKS = frozenset({LimitKind.FEW_BLOCKS, LimitKind.WAVES})
_BY_COUNT = frozenset({FindingKind.UNEVEN_WORK, FindingKind.UNEVEN_BLOCKS})


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
    taken_out = frozenset[FindingKind]().union(*(doubt.takes_out for doubt in doubts))
    if set(FindingKind) - taken_out <= _BY_COUNT:
        return _by_count(summary, doubts, taken_out)
    try:
        if not summary.trace.is_on_one_clock:
            return _rank_by_rank(summary, doubts, taken_out)
        explanation = explain_summary(summary, taken_out)
    except SelectionError as error:
        if sample := some_blocks(summary):
            return _find_among(sample[0], [sample[1], *doubts])
        return _by_count(summary, [_not_replayed(error), *doubts], taken_out)
    limits = _known_limits(summary, explanation.limits, taken_out)
    explanation = replace(explanation, limits=limits)
    causes = [
        with_counted_factor(summary, _of_all(summary, cause))
        for cause in explanation.findings
        if cause.kind not in taken_out
    ]
    if not causes and _has_no_flows(doubts):
        by_itself = _rank_by_rank(summary, doubts, taken_out)
        if by_itself.findings:
            return by_itself
    rest = rest_of(summary, explanation, causes)
    limit = limit_in_front(rest, causes)
    return Findings(
        (*doubts, *_of_sample(explanation)),
        tuple(_in_words(summary, explanation, causes)),
        rest,
        explanation.ordinals,
        explanation.num_calls,
        explanation.total_ns,
        None
        if limit is None
        else DesignCost(limit, *place_of_design(summary, limit, explanation.ordinals)),
    )


def _in_words(
    summary: Summary, explanation: TraceExplanation, causes: list[ExplainedFinding]
) -> list[Finding]:
    found: list[Finding] = []
    steady = steady_part(summary)[0]
    total = duration(explanation.total_ns)
    if explanation.warm_up:
        total += f", which is without {members('call', explanation.warm_up)}, a warm-up"
    for cause, name, waits in zip(causes, _names(causes), waits_of(steady, causes), strict=True):
        where_ns, tracks = place_of(summary, cause, explanation.ordinals)
        found.append(
            Finding(
                id=name,
                cause=cause,
                sentence=precise(summary, cause, len(explanation.ordinals)),
                details=(
                    *_order(cause, found),
                    *words.details(cause, waits, total, rate_of(summary, cause.region)),
                    *particulars_of(summary, cause),
                ),
                advice=words.advice(summary, cause),
                waits=waits,
                where_ns=where_ns,
                tracks=tracks,
                evidence=_gains(cause, explanation),
            )
        )
    return found


def _order(cause: ExplainedFinding, before: list[Finding]) -> tuple[str, ...]:
    """Why a finding comes after one that gains less: that one hides it."""
    if all((finding.gain_ns or 0.0) >= cause.gain_ns for finding in before):
        return ()
    alone = duration(max(0.0, cause.alone_ns))
    return (f"Mend what stands above it first: by itself it gains {alone}",)


def _rank_by_rank(
    summary: Summary, doubts: list[Doubt], taken_out: frozenset[FindingKind]
) -> Findings:
    """What each rank would gain by itself, and what counts say: ranks have no clock in common, or
    nothing joins their sends and waits."""
    found = list(_by_count(summary, doubts, taken_out).findings)
    ranks = [info.rank for info in summary.trace.ranks]
    for rank in ranks[:_MOST_RANKS]:
        own = summary.select(ranks=(rank,))
        explanation = explain_summary(own, taken_out)
        kept = [cause for cause in explanation.findings if cause.kind not in taken_out]
        its = [with_counted_factor(own, replace(cause, ranks=(rank,))) for cause in kept]
        found += _in_words(own, explanation, its)
    found = _alike(found)
    names = _names([finding.cause for finding in found])
    named = tuple(replace(f, id=name) for f, name in zip(found, names, strict=True))
    said = "" if found else "No rank by itself has anything that would make its calls shorter"
    return Findings(tuple(doubts), named, Rest(said, 0.0))


def _known_limits(
    summary: Summary, limits: tuple[Limit, ...], taken_out: frozenset[FindingKind]
) -> tuple[Limit, ...]:
    """Without any where all threads of a rank take turns on one core: there, what waits in a rank
    waits for its turn. Without those about the number of blocks, where not all are known."""
    if all(info.target == "cpu" and info.num_cores for info in summary.trace.manifest.ranks):
        return ()
    hidden = _OF_ALL_BLOCKS if FindingKind.UNEVEN_BLOCKS in taken_out else ()
    return tuple(limit for limit in limits if limit.kind not in hidden)


def _has_no_flows(doubts: list[Doubt]) -> bool:
    """Whether waits take as long in every replay, so that no other rank gets faster."""
    return any(doubt.kind is DoubtKind.NO_FLOWS for doubt in doubts)


def _alike(found: list[Finding]) -> list[Finding]:
    """Counts first, then by gain. What several ranks have alike, in the same calls if not in all,
    is one finding, that of the rank with the largest gain, which names them all."""
    groups: dict[object, list[Finding]] = {}
    for finding in sorted(found, key=lambda finding: (finding.is_timed, -(finding.gain_ns or 0.0))):
        cause = finding.cause
        is_own = cause.ranks if not finding.is_timed else ()
        calls = () if cause.when is When.ALWAYS else cause.costly_calls
        key = cause.kind, cause.blocks, cause.region, is_own, calls
        groups.setdefault(key, []).append(finding)
    united = []
    for first, *others in groups.values():
        ranks = tuple(sorted({rank for f in (first, *others) for rank in f.cause.ranks}))
        cause = replace(first.cause, ranks=ranks, places=())
        text = words.sentence(cause, len(first.cause.gains_ns)) if others else first.sentence
        united.append(replace(first, cause=cause, sentence=text))
    return united


def _by_count(summary: Summary, doubts: list[Doubt], taken_out: frozenset[FindingKind]) -> Findings:
    """What counts alone say, where times are in doubt."""
    found = []
    is_one = len([info for info in summary.trace.ranks if info.is_recorded]) == 1
    look, places = (uneven_blocks, "blocks") if is_one else (uneven_ranks, "ranks")
    uneven = look(summary) if FindingKind.UNEVEN_WORK not in taken_out else []
    names = _names([cause for cause, _ in uneven])
    for (cause, evidence), name in zip(uneven, names, strict=True):
        where_ns, tracks = place_of(summary, cause, cause.calls)
        finding = Finding(
            id=name,
            cause=cause,
            sentence=words.count_sentence(cause),
            details=words.count_details(cause, evidence),
            advice=words.advice(summary, cause),
            is_timed=False,
            where_ns=where_ns,
            tracks=tracks,
            evidence=tuple(evidence),
        )
        found.append(finding)
    num_calls = int(launch_starts(summary)["ordinal"].nunique())
    said = "" if found else f"All {places} have about as many events in every region"
    if any(doubt.kind is DoubtKind.ONE_BLOCK for doubt in doubts):
        said = "The one block has no other to compare its counts with"
    if FindingKind.UNEVEN_WORK in taken_out:
        said = "Nothing else can be said about this recording"
    return Findings(tuple(doubts), tuple(found), Rest(said, 0.0), num_calls=num_calls)


def _not_replayed(error: SelectionError) -> Doubt:
    reason, _, remedy = str(error).partition("; ")
    return Doubt(
        DoubtKind.NOT_REPLAYED,
        f"No gain can be worked out: {reason}",
        remedy,
        frozenset(FindingKind) - _BY_COUNT,
        is_grave=True,
    )


def _of_all(summary: Summary, cause: ExplainedFinding) -> ExplainedFinding:
    """What all ranks have is no rank's; of one rank, its calls are compared, and not the rank."""
    everybody = {info.rank for info in summary.trace.ranks if info.is_recorded}
    if len(everybody) == 1 and cause.kind is FindingKind.SLOW and not cause.blocks:
        return replace(cause, kind=FindingKind.SLOW_CALL)
    is_all = len(everybody) > 1 and set(cause.ranks) == everybody
    is_place = bool(cause.blocks or cause.places) or cause.kind is FindingKind.LATE_START
    return replace(cause, ranks=()) if is_all and not is_place else cause


def _names(causes: list[ExplainedFinding]) -> list[str]:
    """An id for every finding: its kind and its place, numbered where two would be the same."""
    seen: Counter[str] = Counter()
    names = []
    for cause in causes:
        name = f"{cause.kind.value}/{words.key(cause)}"
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return names


def _gains(cause: ExplainedFinding, explanation: TraceExplanation) -> tuple[dict[str, float], ...]:
    """What every call would gain: the proof of a finding."""
    pairs = zip(explanation.ordinals, cause.gains_ns, strict=True)
    return tuple({"call": ordinal, "gain_ns": gain} for ordinal, gain in pairs)


def _of_sample(explanation: TraceExplanation) -> Iterator[Doubt]:
    """Which calls were looked at, where not all were."""
    if explanation.warm_up:
        yield Doubt(
            DoubtKind.WARM_UP,
            f"{members('Call', explanation.warm_up)} took much longer than "
            f"{_others(explanation)}: a warm-up, left out of findings and efficiency",
            "call the kernel once with a null buffer before the calls that count; tables and "
            "pictures hold every call, --launches chooses",
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


def _others(explanation: TraceExplanation) -> str:
    """What calls of a warm-up are compared with: a kernel may begin in the middle of a run."""
    is_at_begin = explanation.warm_up == tuple(range(len(explanation.warm_up)))
    return "the others" if is_at_begin else "later calls of the same kernels"
