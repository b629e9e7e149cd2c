"""Where two recordings differ: what takes longer or less long than before, and in which calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, Final

from kprof.analysis.calls import launch_starts
from kprof.analysis.findings import Finding, explain_growth, explain_trace
from kprof.analysis.findings.explanation import explain_summary
from kprof.analysis.findings.facts import GrownRegion
from kprof.analysis.findings.growth import growth_detail, growth_sentence, measured
from kprof.analysis.findings.longer_path import PathPart, measured_ns, path_parts
from kprof.analysis.findings.thresholds import LEAST_GAIN
from kprof.analysis.replay.load import calls_to_replay
from kprof.analysis.summary import Summary
from kprof.errors import SelectionError

# Of the finding, in JSON.
_FIELDS: Final = (
    "kind",
    "ranks",
    "blocks",
    "places",
    "links",
    "region",
    "calls",
    "when",
    "period",
    "gain_ns",
    "interval_ns",
    "share",
    "factor",
    "gains_ns",
    "costly_calls",
    "alone_ns",
)


class Way(str, Enum):
    """Whether a place takes longer now, or took longer before."""

    SLOWER = "slower"
    FASTER = "faster"


@dataclass(frozen=True)
class Change:
    """A place that changed, as a finding about the side that takes longer there: its calls and its
    gain are of that side, `factor` is how many times as long as on the other in the replay, which
    leaves waiting out. `measured` is what the tables have; None where they do not show it."""

    way: Way
    finding: Finding
    sentence: str
    measured: GrownRegion | None = None

    @property
    def detail(self) -> str:
        """What a block took on both sides; empty if not measured."""
        if self.measured is None:
            return ""
        return growth_detail(self.measured, is_gone=self.way is Way.FASTER)

    @property
    def text(self) -> str:
        """The sentence and, if measured, the detail as another one."""
        return f"{self.sentence}. {self.detail}" if self.detail else self.sentence

    def row(self) -> dict[str, Any]:
        """The fields of the finding, the way, the sentence and what was measured, for JSON."""
        return {
            "way": self.way.value,
            "sentence": self.sentence,
            "detail": self.detail,
            "measured": self.measured and asdict(self.measured),
            **{name: getattr(self.finding, name) for name in _FIELDS},
            "kind": self.finding.kind.name,
        }


def changes_of(before: Summary, after: Summary) -> tuple[Change, ...]:
    """Places that take longer on one side, the costliest first.

    What those on one side cost is never more than the measured difference and what those on the
    other make up for. Nothing where ranks are not on one clock, calls are too large to be replayed,
    or no kernel is on both sides: places of other kernels are others.
    """
    if not (before.trace.is_on_one_clock and after.trace.is_on_one_clock):
        return ()
    if not _kernels(before) & _kernels(after):
        return ()
    try:
        sides = _longer(Way.SLOWER, before, after), _longer(Way.FASTER, after, before)
    except SelectionError:
        return ()
    grown_ns = measured_ns(before, after)
    costs_ns = [_costs_ns(changes) for changes in sides]
    slower = _at_most(sides[0], max(0.0, grown_ns) + costs_ns[1])
    faster = _at_most(sides[1], max(0.0, -grown_ns) + costs_ns[0])
    return (*slower, *faster)


def parts_of(changes: Sequence[Change], before: Summary, after: Summary) -> tuple[PathPart, ...]:
    """What calls have more of on their critical path, of what no place explains."""
    if not (before.trace.is_on_one_clock and after.trace.is_on_one_clock):
        return ()
    of_both = {way: _costs_ns([c for c in changes if c.way is way]) for way in Way}
    explained_ns = of_both[Way.SLOWER] - of_both[Way.FASTER]
    left_ns = measured_ns(before, after) - explained_ns
    regions = frozenset(c.finding.region for c in changes if c.finding.region)
    return path_parts(before, after, left_ns, regions)


def _kernels(summary: Summary) -> set[str]:
    return set(launch_starts(summary)["kernel"])


def _costs_ns(changes: Sequence[Change]) -> float:
    """What they cost per call that was replayed."""
    return sum(c.finding.gain_ns / max(1, len(c.finding.gains_ns)) for c in changes)


def _at_most(changes: Sequence[Change], most_ns: float) -> list[Change]:
    """Changes that cost no more than that together, without those that then cost too little."""
    costs_ns = _costs_ns(changes)
    if costs_ns <= most_ns:
        return list(changes)
    scaled = [_scaled(change, most_ns / costs_ns) for change in changes]
    return [change for change in scaled if change.finding.share >= LEAST_GAIN]


def _scaled(change: Change, part: float) -> Change:
    finding = change.finding
    low, high = finding.interval_ns
    scaled = replace(
        finding,
        share=part * finding.share,
        gain_ns=part * finding.gain_ns,
        gains_ns=tuple(part * gain for gain in finding.gains_ns),
        interval_ns=(part * low, part * high),
    )
    text = growth_sentence(scaled, change.measured, is_gone=change.way is Way.FASTER)
    return replace(change, finding=scaled, sentence=text)


def slower_than(earlier: Summary, summary: Summary) -> tuple[Change, ...]:
    """Places that take longer than in an earlier recording, the costliest first.

    Raises ClockError where ranks are not on one clock, and SelectionError where the recordings have
    no kernel in common, or calls are too large to be replayed.
    """
    for one in (earlier, summary):
        one.trace.require_alignment("a comparison with an earlier recording")
    if not _kernels(earlier) & _kernels(summary):
        raise SelectionError("the earlier recording has no kernel of this one; give another")
    return tuple(_longer(Way.SLOWER, earlier, summary))


def _longer(way: Way, shorter: Summary, longer: Summary) -> list[Change]:
    """What takes longer on one side than on the other."""
    replayed = calls_to_replay(shorter)
    there = shorter, replayed.ordinals if replayed else ()
    found = []
    for finding in explain_growth(shorter, longer).findings:
        seen = measured(finding, (longer, finding.calls), there)
        text = growth_sentence(finding, seen, is_gone=way is Way.FASTER)
        found.append(Change(way, finding, text, seen))
    return found


def causes_of(
    changes: Sequence[Change],
    parts: Sequence[PathPart],
    base: Sequence[Summary],
    candidate: Sequence[Summary],
) -> tuple[str, ...]:
    """What changed in sentences: places and parts of the critical path, the costliest first, then
    what stands out on one side only and is none of them. Of that no saving is said: it would be of
    one recording, and not of the difference."""
    costs = [(c.finding.share, f"{c.way.value.capitalize()}: {c.text}") for c in changes]
    for part in parts:
        way = Way.SLOWER if part.change_ns > 0 else Way.FASTER
        costs.append((part.share, f"{way.value.capitalize()}: {part.sentence}"))
    texts = [text for _, text in sorted(costs, key=lambda cost: -cost[0])]
    sides = [_standing_out(runs) for runs in (base, candidate)]
    for name, way, here, there in (
        ("New", Way.SLOWER, sides[1], sides[0]),
        ("Gone", Way.FASTER, sides[0], sides[1]),
    ):
        is_explained = any(change.way is way for change in changes)
        # Numbers of items are seen within one recording: no change of lengths explains them.
        texts += [
            f"{name}: {finding.fact}"
            for key, finding in here.items()
            if key not in there and not (is_explained and not finding.kind.counts_items)
        ]
    return tuple(texts)


def _standing_out(runs: Sequence[Summary]) -> dict[tuple[object, ...], Finding]:
    """All findings of a side, by their subject."""
    explanations = (
        # What was replayed of a repeat need not stay in memory.
        explain_summary(summary) if summary is runs[0] else explain_trace(summary.trace)
        for summary in runs
        if summary.trace.is_on_one_clock
    )
    return {
        (f.kind, f.ranks, f.blocks, f.links, f.region): f
        for explanation in explanations
        for f in explanation.findings
    }
