"""Caches in a summary the tables that several analyses use."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from kprof.analysis.summary import Summary

_P = ParamSpec("_P")
_T = TypeVar("_T")


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
