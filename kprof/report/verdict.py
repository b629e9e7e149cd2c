"""The verdict: the first thing that a reader of a report sees, and often the only one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kprof import analysis
from kprof.analysis import Severity
from kprof.analysis.wording import duration, members

if TYPE_CHECKING:
    from kprof.analysis import Finding, Summary

_SEVERE: Final = (Severity.CRITICAL, Severity.MAJOR)
_NO_WAITS: Final = "No region of category wait or sync was recorded, so nothing can be said about who waited for whom."


@dataclass(frozen=True)
class Verdict:
    """Whole sentences, and what would help against what the first one says; empty where it is nothing bad."""

    text: str
    remedy: str = ""


def verdict_of(summary: Summary, found: Sequence[Finding], num_events: int) -> Verdict:
    """The costliest finding, or that there is none; then what makes it doubtful.

    A capture that is beyond use comes before all that it seems to say.
    """
    if num_events == 0:
        return Verdict(
            "The capture holds no events: nothing was recorded, or the selection leaves nothing."
        )
    doubts = [finding for finding in found if finding.cost_ns == 0 and finding.severity in _SEVERE]
    costly = [finding for finding in found if finding.cost_ns > 0]
    if doubts and (not costly or doubts[0].severity is Severity.CRITICAL):
        return Verdict(_as_sentence(doubts[0].sentence), doubts[0].remedy)
    caveats = [f"Mind that {doubts[0].sentence}."] if doubts else []
    if len(analysis.waits(summary, "region")) == 0:
        caveats.append(_NO_WAITS)
    if not costly:
        return Verdict(" ".join([_nothing_found(summary), *caveats]))
    return Verdict(" ".join([_as_sentence(costly[0].sentence), *caveats]), costly[0].remedy)


def _as_sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _nothing_found(summary: Summary) -> str:
    balance = analysis.imbalance(summary, "rank")["work_ns"]
    ranks = members("rank", [info.rank for info in summary.trace.ranks])
    if len(balance) == 1:
        return f"Nothing stands out on {ranks}: work {duration(balance.iloc[0])}."
    spread = f"work per rank {duration(balance.min())} to {duration(balance.max())}"
    return f"Nothing stands out on {ranks}: {spread}."
