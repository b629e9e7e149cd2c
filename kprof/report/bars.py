"""Bars that a run must clear, for CI: `load_balance<0.8` fails the run when its load balance is
below 0.8.

    EXPRESSION = METRIC OPERATOR NUMBER [UNIT]
    OPERATOR   = <  <=  >  >=  ==
    UNIT       = ns us ms s (for times)  % (for shares)

An expression says what is not acceptable. It is parsed, never evaluated as code.

Of a comparison (`kprof diff`) there is `slower`, or `slower>5%` for calls and launches that take
over 5 % longer.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kprof.analysis.comparison import CALL, LAUNCH
from kprof.analysis.equivalence import Measure
from kprof.errors import ClockError, SelectionError

if TYPE_CHECKING:
    from kprof.report.difference import DiffReport
    from kprof.report.model import Report

_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}
_UNITS: Final = {"": 1.0, "%": 0.01, "ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_EXPRESSION: Final = re.compile(
    r"^\s*([A-Za-z_][\w.]*)\s*(<=|>=|==|<|>)\s*"
    r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)\s*(%|ns|us|ms|s)?\s*$"
)


_SLOWER: Final = re.compile(r"^\s*slower\s*(?:>\s*([0-9]+(?:\.[0-9]*)?)\s*%)?\s*$")


@dataclass(frozen=True)
class MissedBar:
    """An expression that was true, and the value that made it true."""

    expression: str
    metric: str
    value: float

    @property
    def sentence(self) -> str:
        """`load_balance is 0.62: --fail-on load_balance<0.8`"""
        return f"{self.metric} is {self.value:.6g}: --fail-on {self.expression}"


@dataclass(frozen=True)
class _Metric:
    """How to read a metric from a report.

    `table` is the table it needs; a refusal names it.
    """

    read: Callable[[Report], float]
    table: str
    is_time: bool = False


def metric_names() -> list[str]:
    """The names of all metrics."""
    return sorted(_METRICS)


def check_expressions(expressions: Sequence[str]) -> None:
    """Raise SelectionError like `check_bars`, without a report: before one is computed."""
    for expression in expressions:
        _parse(expression)


def check_bars(report: Report, expressions: Sequence[str]) -> list[MissedBar]:
    """The expressions that are true: the bars that the run misses.

    Raises SelectionError for an expression that does not parse or an unknown metric, and ClockError
    if a metric needs aligned clocks and they are not.
    """
    parsed = [(expression, *_parse(expression)) for expression in expressions]
    missed = []
    for expression, name, compare, limit in parsed:
        value = _value(report, name)
        if compare(value, limit):
            missed.append(MissedBar(expression.strip(), name, value))
    return missed


def _parse(expression: str) -> tuple[str, Callable[[float, float], bool], float]:
    match = _EXPRESSION.match(expression)
    if match is None:
        raise SelectionError(
            f"cannot read {expression!r}: write METRIC OPERATOR NUMBER, for example "
            "load_balance<0.8 or max_skew>50us"
        )
    name, sign, number, unit = match.groups(default="")
    metric = _METRICS.get(name)
    if metric is None:
        raise SelectionError(f"no metric is called {name!r}; known: {', '.join(metric_names())}")
    if unit and metric.is_time == (unit == "%"):
        wanted = "ns, us, ms or s" if metric.is_time else "no unit or %"
        raise SelectionError(f"{expression!r}: {name} takes {wanted}, not {unit}")
    return name, _OPERATORS[sign], float(number) * _UNITS[unit]


def _value(report: Report, name: str) -> float:
    metric = _METRICS[name]
    if metric.table in report.refused:
        raise ClockError(f"--fail-on {name}: {report.refused[metric.table]}")
    return metric.read(report)


def _efficiency(column: str) -> _Metric:
    def read(report: Report) -> float:
        table = report.tables.get("efficiency")
        return float(table[column].iloc[0]) if table is not None and len(table) else 1.0

    return _Metric(read, "efficiency")


def _rank_load_balance(report: Report) -> float:
    """The load balance of the least balanced rank. The overall figure hides it unless that rank is
    the slowest."""
    table = report.tables["rank_efficiency"]
    return float(table["load_balance"].min()) if len(table) else 1.0


def _wait_share(report: Report) -> float:
    return float(report.tables["waits_by_region"]["share"].sum())


def _max_blame_share(report: Report) -> float:
    """The wait for the rank that is waited for most, as a share of all attributed wait."""
    per_peer = report.blame_matrix.sum(axis=0)
    total = float(per_peer.sum())
    return float(per_peer.max()) / total if total else 0.0


def _max_skew(report: Report) -> float:
    table = report.tables.get("launch_skew")
    return float(table["skew_ns"].max()) if table is not None and len(table) else 0.0


def _violations(report: Report) -> float:
    table = report.tables.get("late_sender")
    return float(table["violations"].sum()) if table is not None else 0.0


def _lost(report: Report) -> float:
    return float(sum(info.counts.dropped for info in report.manifest.ranks))


def _gain(report: Report) -> float:
    """What the first finding would save, as a share of the calls."""
    return max((finding.share or 0.0 for finding in report.findings), default=0.0)


def _p95_call(report: Report) -> float:
    """The exact nearest-rank percentile of all calls."""
    lengths = sorted(report.tables["calls"]["length_ns"].tolist())
    return float(lengths[-(-95 * len(lengths) // 100) - 1]) if lengths else 0.0


_METRICS: Final[dict[str, _Metric]] = {
    "parallel_efficiency": _efficiency("parallel_efficiency"),
    "load_balance": _Metric(_efficiency("load_balance").read, "efficiency"),
    "communication_efficiency": _efficiency("communication_efficiency"),
    "rank_load_balance": _Metric(_rank_load_balance, "rank_efficiency"),
    "wait_share": _Metric(_wait_share, "waits_by_region"),
    "max_blame_share": _Metric(_max_blame_share, "blame_matrix"),
    "max_skew": _Metric(_max_skew, "launch_skew", is_time=True),
    "run_time": _Metric(lambda report: report.run_time_ns, "run_time", is_time=True),
    "violations": _Metric(_violations, "late_sender"),
    "dropped": _Metric(_lost, "quality"),
    "missing_ranks": _Metric(lambda report: float(len(report.manifest.missing_ranks)), "quality"),
    "gain": _Metric(_gain, "what_if"),
    "explained": _Metric(lambda report: report.found.rest.explained, "what_if"),
    "unexplained": _Metric(lambda report: report.found.rest.unexplained or 0.0, "what_if"),
    "p95_call": _Metric(_p95_call, "calls", is_time=True),
    "findings": _Metric(lambda report: float(len(report.findings)), "findings"),
    "doubts": _Metric(
        lambda report: float(sum(doubt.is_grave for doubt in report.found.doubts)), "doubts"
    ),
}


def check_diff(report: DiffReport, expressions: Sequence[str]) -> list[MissedBar]:
    """The calls and launches whose mean or median became slower, beyond noise, by more than an
    expression allows.

    Raises SelectionError unless an expression is `slower` or like `slower>5%`.
    """
    limits = {expression: _slower_limit(expression) for expression in expressions}
    table = report.table
    is_slower = (table["verdict"] == "slower") & table["level"].isin([CALL, LAUNCH])
    slower = table[is_slower & table["measure"].isin([Measure.MEAN.value, Measure.MEDIAN.value])]
    # One entry per call or kernel: the measure that changed more.
    most = slower.sort_values("change_share", ascending=False)
    rows = most.drop_duplicates(["level", "kernel"]).sort_index().to_dict("records")
    return [
        MissedBar(expression, _what_changed(row), float(row["change_share"]))
        for expression, limit in limits.items()
        for row in rows
        if row["change_share"] > limit
    ]


def _slower_limit(expression: str) -> float:
    match = _SLOWER.match(expression)
    if match is None:
        raise SelectionError(
            f"--fail-on {expression!r} does not parse; write slower, or slower>5% to allow 5 %"
        )
    return float(match[1] or 0) / 100


def _what_changed(row: dict[Any, Any]) -> str:
    if row["level"] == CALL:
        return "the change of a call"
    return f"the change of a launch of {row['kernel'] or 'the kernel'}"
