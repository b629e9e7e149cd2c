"""The rest: what the calls are made of that no finding would take away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kprof.analysis.dependencies.critical_path import critical_regions
from kprof.analysis.explain import ExplainedFinding, TraceExplanation
from kprof.analysis.findings.made_of import ingredients
from kprof.analysis.findings.model import Rest, limit_in_front
from kprof.analysis.warmup import steady_efficiency
from kprof.analysis.wording import duration, listed, percent
from kprof.errors import SelectionError

if TYPE_CHECKING:
    from kprof.analysis.summary import Summary

_IS_LITTLE: Final = 0.05
_MOST_NAMED: Final = 3
_LEAST_NAMED: Final = 0.1


def rest_of(
    summary: Summary, explanation: TraceExplanation, causes: Sequence[ExplainedFinding]
) -> Rest:
    """How much the findings explain together, and what is left; needs the ranks on one clock."""
    explained = min(1.0, sum(cause.share for cause in causes))
    table = steady_efficiency(summary)
    useful = float(table["parallel_efficiency"].iloc[0]) if len(table) else 1.0
    unexplained = max(0.0, 1.0 - explained - useful)
    made_of = _made_of(summary)
    parts = ingredients(summary, made_of)
    rest = Rest("", explained, useful, unexplained, explanation.limits, made_of, parts)
    is_design = limit_in_front(rest, causes) is not None
    if causes:
        text = _after_findings(rest, explanation.total_ns)
    elif is_design and rest.is_busy:
        text = f"Nothing else stands out: the blocks in use work {percent(useful)} of the time"
    elif is_design:
        text = f"No single rank, block, link or call stands out beside that{_path(made_of)}"
    elif rest.is_busy:
        text = f"Nothing stands out: blocks do useful work {percent(useful)} of the time"
    else:
        text = f"No single rank, block, link or call is to blame{_path(made_of)}"
    return replace(rest, sentence=text)


def _after_findings(rest: Rest, total_ns: float) -> str:
    unexplained = rest.unexplained or 0.0
    together = f"Together the findings explain {percent(rest.explained)} of {duration(total_ns)}"
    if unexplained < _IS_LITTLE:
        return f"{together}, and little else is lost"
    work = f"{percent(rest.useful or 0.0)} is useful work"
    left = f"{percent(unexplained)} stays unexplained"
    return f"{together}, {work}, {left}{_path(rest.made_of)}"


def typical_call_of(made_of: tuple[tuple[str, float], ...]) -> str:
    """The largest parts of the critical path, or nothing where no part is large."""
    named = [
        f"{percent(share)} {what}" for what, share in made_of[:_MOST_NAMED] if share >= _LEAST_NAMED
    ]
    return f"a typical call is {listed(named)}" if named else ""


def _path(made_of: tuple[tuple[str, float], ...]) -> str:
    made = typical_call_of(made_of)
    return f": {made}" if made else ""


def _made_of(summary: Summary) -> tuple[tuple[str, float], ...]:
    """Regions on the critical path of the call of median length.

    Nothing where that is too large to walk.
    """
    try:
        table = critical_regions(summary)
    except SelectionError:
        return ()
    shares = table.groupby("region")["share"].sum().sort_values(ascending=False)
    return tuple((str(region), float(share)) for region, share in shares.items())
