"""Bars that a run must clear, for CI: `load_balance<0.8` fails the run when its load balance is
below 0.8.

    EXPRESSION = METRIC OPERATOR NUMBER [UNIT]
    OPERATOR   = <  <=  >  >=  ==
    UNIT       = ns us ms s (for times)  % (for shares)  nothing (for counts)

An expression says what is not acceptable. It is parsed, never evaluated as code.

Of a comparison (`kprof diff`) there is `slower`, or `slower>5%` for calls and launches that take
over 5 % longer.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from kprof.analysis import DoubtKind
from kprof.analysis.comparison import CALL, LAUNCH
from kprof.analysis.equivalence import Measure
from kprof.errors import ClockError, SelectionError
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


class Quantity(Enum):
    """What a number counts: its units, and what a message calls them."""

    TIME = ("ns", "us", "ms", "s"), "ns, us, ms or s"
    SHARE = ("%",), "no unit or %"
    COUNT = (), "no unit"


@dataclass(frozen=True)
class MissedBar:
    """An expression that was true, the value that made it true, and the limit that it names."""

    expression: str
    metric: str
    value: float
    limit: float
    quantity: Quantity

    @property
    def sentence(self) -> str:
        """`load_balance is 62 %, the limit is 80 %: --fail-on load_balance<0.8`"""
        value, limit = _pair_in_words(self.value, self.limit, self.quantity)
        return f"{self.metric} is {value}, the limit is {limit}: --fail-on {self.expression}"


def _pair_in_words(value: float, limit: float, quantity: Quantity) -> tuple[str, str]:
    """Both with their unit, and with as many digits as it takes to tell them apart."""
    digits = next(
        (n for n in range(3, 16) if value == limit or f"{value:.{n}g}" != f"{limit:.{n}g}"), 16
    )
    value_text, limit_text = (_in_words(number, quantity, digits) for number in (value, limit))
    return value_text, limit_text


def _in_words(number: float, quantity: Quantity, digits: int) -> str:
    if quantity is Quantity.COUNT:
        return f"{number:,.0f}" if number == round(number) else f"{number:g}"
    unit = "%"
    if quantity is Quantity.TIME:
        unit = next((u for u in ("s", "ms", "us") if abs(number) >= _UNITS[u]), "ns")
    return f"{number / _UNITS[unit]:.{digits}g} {unit}"


@dataclass(frozen=True)
class _Metric:
    """How to read a metric from a report.

    `table` is the table it needs; a refusal names it.
    """

    read: Callable[[Report], float]
    table: str
    quantity: Quantity = Quantity.SHARE


def metric_names() -> list[str]:
    """The names of all metrics."""
    return sorted(_METRICS)


def check_expressions(expressions: Sequence[str], *, of_diff: bool = False) -> None:
    """Raise SelectionError like `check_bars`, or `check_diff`, before a report is computed."""
    for expression in expressions:
        (_slower_limit if of_diff else _parse)(expression)


def check_bars(report: Report, expressions: Sequence[str]) -> list[MissedBar]:
    """The expressions that are true: the bars that the run misses.

    Raises SelectionError for an expression that does not parse or an unknown metric, and ClockError
    if a metric needs aligned clocks and they are not.
    """
    parsed = [(expression, *_parse(expression)) for expression in expressions]
    missed = []
    for expression, name, is_missed, limit in parsed:
        metric = _METRICS[name]
        if metric.table in report.refused:
            raise ClockError(f"--fail-on {name}: {report.refused[metric.table]}")
        if is_missed(value := float(metric.read(report)), limit):
            missed.append(MissedBar(expression.strip(), name, value, limit, metric.quantity))
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
        raise SelectionError(f"unknown metric {name!r}; known: {', '.join(metric_names())}")
    units, wanted = metric.quantity.value
    if unit and unit not in units:
        raise SelectionError(f"{expression!r}: {name} takes {wanted}, not {unit}")
    return name, _OPERATORS[sign], float(number) * _UNITS[unit]


def _worst(table: str, column: str, of: str, quantity: Quantity, default: float = 0.0) -> _Metric:
    """The sum or the extreme of a column; `default` without rows."""

    def read(report: Report) -> float:
        rows = report.tables.get(table)
        return default if rows is None or rows.empty else float(rows[column].agg(of))

    return _Metric(read, table, quantity)


def _efficiency(column: str, table: str = "efficiency") -> _Metric:
    return _worst(table, column, "min", Quantity.SHARE, default=1.0)


def _max_blame_share(report: Report) -> float:
    """The wait for the rank that is waited for most, as a share of all attributed wait."""
    per_peer = report.blame_matrix.sum(axis=0)
    total = float(per_peer.sum())
    return float(per_peer.max()) / total if total else 0.0


def _gain(report: Report) -> float:
    """What the headline says that could be saved, as a share of the calls: by the first finding,
    or at most by another design where the headline is about the design."""
    design = report.found.design
    shares = [finding.share for finding in report.findings]
    return max([*shares, design.share if design else 0.0], default=0.0)


def _p95_call(report: Report) -> float:
    """The exact nearest-rank percentile of all calls but those of a warm-up."""
    # Findings and efficiency may leave out different ones.
    said = [doubt for doubt in report.found.doubts if doubt.kind is DoubtKind.WARM_UP]
    warm_up = {*report.warm_up, *(call for doubt in said for call in doubt.evidence["calls"])}
    calls = [call for call in report.rows("calls") if call["ordinal"] not in warm_up]
    lengths: list[float] = sorted(call["length_ns"] for call in calls)
    return lengths[-(-95 * len(lengths) // 100) - 1] if lengths else 0.0


_METRICS: Final[dict[str, _Metric]] = {
    "parallel_efficiency": _efficiency("parallel_efficiency"),
    "load_balance": _efficiency("load_balance"),
    "communication_efficiency": _efficiency("communication_efficiency"),
    # Of the least balanced rank. The overall figure hides it unless that rank is the slowest.
    "rank_load_balance": _efficiency("load_balance", "rank_efficiency"),
    "wait_share": _worst("waits_by_region", "share", "sum", Quantity.SHARE),
    "max_blame_share": _Metric(_max_blame_share, "blame_matrix"),
    "max_skew": _worst("launch_skew", "skew_ns", "max", Quantity.TIME),
    "run_time": _Metric(lambda report: report.run_time_ns, "run_time", Quantity.TIME),
    "violations": _worst("late_sender", "violations", "sum", Quantity.COUNT),
    "dropped": _Metric(
        lambda report: sum(info.counts.dropped for info in report.manifest.ranks),
        "quality",
        Quantity.COUNT,
    ),
    "missing_ranks": _Metric(
        lambda report: len(report.manifest.missing_ranks), "quality", Quantity.COUNT
    ),
    "gain": _Metric(_gain, "what_if"),
    # What the costliest limit of the design costs at most, headline or not.
    "design_cost": _Metric(
        lambda report: max((limit.share for limit in report.found.rest.limits), default=0.0),
        "what_if",
    ),
    "explained": _Metric(lambda report: report.found.rest.explained, "what_if"),
    "unexplained": _Metric(lambda report: report.found.rest.unexplained or 0.0, "what_if"),
    "p95_call": _Metric(_p95_call, "calls", Quantity.TIME),
    # One that is how the kernel was written is there in every run.
    "findings": _Metric(
        lambda report: sum(not finding.is_by_design for finding in report.findings),
        "findings",
        Quantity.COUNT,
    ),
    "doubts": _Metric(
        lambda report: sum(doubt.is_grave for doubt in report.found.doubts),
        "doubts",
        Quantity.COUNT,
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
    most = slower.sort_values("change_share", ascending=False, kind="stable")
    rows = most.drop_duplicates(["level", "kernel"]).sort_index().to_dict("records")
    return [
        MissedBar(
            expression.strip(),
            _what_changed(row),
            float(row["change_share"]),
            limit,
            Quantity.SHARE,
        )
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
        return f"the slowdown of a call ({row['measure']})"
    return f"the slowdown of a launch of {row['kernel'] or 'the kernel'} ({row['measure']})"
