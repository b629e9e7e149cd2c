"""A metric is one decorated function from a Summary to a table.

    @metric(one_clock="launch skew")
    def launch_skew(summary: Summary) -> pd.DataFrame: ...

That is enough: the report computes it, and JSON has it under its name. `one_clock` names what needs
aligned clocks, if anything does. On unaligned clocks the function then raises ClockError, and the
report says why the table is missing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from kprof.analysis.summary import Summary, Table

_P = ParamSpec("_P")
_T = TypeVar("_T")
METRICS: Final[dict[str, Callable[[Summary], Table]]] = {}


def metric(
    name: str = "", one_clock: str = ""
) -> Callable[
    [Callable[Concatenate[Summary, _P], Table]],
    Callable[Concatenate[Summary, _P], Table],
]:
    """Make a function a metric, named like the function or `name`.

    Its tables are computed once per summary.
    """

    def decorate(
        function: Callable[Concatenate[Summary, _P], Table],
    ) -> Callable[Concatenate[Summary, _P], Table]:
        remembered = memo(function)

        @functools.wraps(function)
        def checked(summary: Summary, /, *args: _P.args, **kwargs: _P.kwargs) -> Table:
            if one_clock:
                summary.trace.require_alignment(one_clock)
            return remembered(summary, *args, **kwargs)

        key = name or function.__name__
        assert key not in METRICS, f"two metrics are called {key}"
        # All other parameters of a metric have defaults.
        METRICS[key] = checked
        return checked

    return decorate


def memo(
    function: Callable[Concatenate[Summary, _P], _T],
) -> Callable[Concatenate[Summary, _P], _T]:
    """Cache the results of a function of a summary (and of hashable values).

    Callers get copies of tables.
    """

    @functools.wraps(function)
    def remembered(summary: Summary, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        key: Any = (function, args, tuple(sorted(kwargs.items())))
        if key not in summary.results:
            summary.results[key] = function(summary, *args, **kwargs)
        value = summary.results[key]
        return cast(_T, value.copy()) if hasattr(value, "copy") else cast(_T, value)

    return remembered
