"""Where two recordings differ: what takes longer or less long than before, and in which calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final

from kprof.analysis.calls import launch_starts
from kprof.analysis.findings import Finding, explain_growth, explain_trace
from kprof.analysis.findings.facts import Measured
from kprof.analysis.findings.growth import growth_detail, growth_sentence, measured
from kprof.analysis.replay.load import calls_to_replay
from kprof.analysis.summary import Summary
from kprof.errors import SelectionError
from kprof.trace import Trace

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
    measured: Measured | None = None

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


def changes_of(base: Sequence[Trace], candidate: Sequence[Trace]) -> tuple[Change, ...]:
    """Places that take longer on one side, the costliest first; of repeats the first is looked at.

    Nothing where ranks are not on one clock, or calls are too large to be replayed.
    """
    before, after = Summary.of(base[0]), Summary.of(candidate[0])
    if not (before.trace.is_on_one_clock and after.trace.is_on_one_clock):
        return ()
    try:
        return (*_longer(Way.SLOWER, before, after), *_longer(Way.FASTER, after, before))
    except SelectionError:
        return ()


def slower_than(earlier: Summary, summary: Summary) -> tuple[Change, ...]:
    """Places that take longer than in an earlier recording, the costliest first.

    Raises ClockError where ranks are not on one clock, and SelectionError where the recordings have
    no kernel in common, or calls are too large to be replayed.
    """
    for one in (earlier, summary):
        one.trace.require_alignment("a comparison with an earlier recording")
    kernels = [set(launch_starts(one)["kernel"]) for one in (earlier, summary)]
    if not kernels[0] & kernels[1]:
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
    changes: Sequence[Change], base: Sequence[Trace], candidate: Sequence[Trace]
) -> tuple[str, ...]:
    """What changed in sentences: places, then what stands out on one side only and is none of
    them."""
    texts = [f"{change.way.value.capitalize()}: {change.text}" for change in changes]
    sides = [_standing_out(traces) for traces in (base, candidate)]
    for name, way, here, there in (
        ("New", Way.SLOWER, sides[1], sides[0]),
        ("Gone", Way.FASTER, sides[0], sides[1]),
    ):
        is_explained = any(change.way is way for change in changes)
        # Numbers of items are seen within one recording: no change of lengths explains them.
        texts += [
            f"{name}: {finding.sentence}"
            for key, finding in here.items()
            if key not in there and not (is_explained and not finding.kind.counts_items)
        ]
    return tuple(texts)


def _standing_out(traces: Sequence[Trace]) -> dict[tuple[object, ...], Finding]:
    """All findings of a side, by their subject."""
    return {
        (f.kind, f.ranks, f.blocks, f.links, f.region): f
        for explanation in map(explain_trace, [t for t in traces if t.is_on_one_clock])
        for f in explanation.findings
    }
