"""The rest: what the calls are made of that no finding would take away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kprof.analysis.dependencies.critical_path import critical_regions
from kprof.analysis.explain import ExplainedFinding
from kprof.analysis.findings.model import Rest
from kprof.analysis.warmup import steady_efficiency
from kprof.analysis.wording import duration, listed, percent
from kprof.errors import SelectionError

if TYPE_CHECKING:
    from kprof.analysis.summary import Summary

# From this part of their time on blocks are busy enough that nothing has to be explained.
_IS_BUSY: Final = 0.8
_MOST_NAMED: Final = 3
_LEAST_NAMED: Final = 0.1


def rest_of(summary: Summary, causes: Sequence[ExplainedFinding], total_ns: float) -> Rest:
    """How much the findings explain together, and what is left; needs the ranks on one clock."""
    explained = min(1.0, sum(cause.share for cause in causes))
    table = steady_efficiency(summary)
    useful = float(table["parallel_efficiency"].iloc[0]) if len(table) else 1.0
    unexplained = max(0.0, 1.0 - explained - useful)
    made_of = _made_of(summary)
    if causes:
        text = _after_findings(explained, unexplained, total_ns, made_of)
    elif useful >= _IS_BUSY:
        text = f"Nothing stands out: blocks do useful work {percent(useful)} of the time"
    else:
        text = "No single rank, block, link or call is to blame" + _path(made_of)
    return Rest(text, explained, useful, unexplained, made_of)


def _after_findings(
    explained: float, unexplained: float, total_ns: float, made_of: tuple[tuple[str, float], ...]
) -> str:
    together = f"Together the findings would save {percent(explained)} of {duration(total_ns)}"
    if unexplained < 0.05:
        return f"{together}; no more than that is lost"
    return f"{together}; {percent(unexplained)} is lost to nothing that they name{_path(made_of)}"


def _path(made_of: tuple[tuple[str, float], ...]) -> str:
    named = [
        f"{percent(share)} {what}" for what, share in made_of[:_MOST_NAMED] if share >= _LEAST_NAMED
    ]
    return f": a typical call is {listed(named)}" if named else ""


def _made_of(summary: Summary) -> tuple[tuple[str, float], ...]:
    """Regions on the critical path of the call of median length; nothing where that is too large to walk."""
    try:
        table = critical_regions(summary)
    except SelectionError:
        return ()
    shares = table.groupby("region")["share"].sum().sort_values(ascending=False)
    return tuple((str(region), float(share)) for region, share in shares.items())
