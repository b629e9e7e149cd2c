"""Tables that several analyses and rules start from are worked out once per trace."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from kprof.trace import Trace

_P = ParamSpec("_P")
_T = TypeVar("_T")
# A trace does not change, so what was worked out for it stays true as long as it lives.
_KNOWN: weakref.WeakKeyDictionary[Trace, dict[Any, Any]] = weakref.WeakKeyDictionary()


def once_per_trace(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Remember the results of a function of a trace (and of hashable values); tables are handed out as copies."""

    @functools.wraps(function)
    def remembered(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        trace, *rest = args
        known = _KNOWN.setdefault(cast("Trace", trace), {})
        key = (function.__module__, function.__name__, tuple(rest), tuple(sorted(kwargs.items())))
        if key not in known:
            known[key] = function(*args, **kwargs)
        value = known[key]
        return cast(_T, value.copy()) if hasattr(value, "copy") else cast(_T, value)

    return remembered
