"""Reading: all ranks of a capture on one clock, as views for SQL, with the part of it that was selected.

`trace.py` has the Trace, `views.py` the SQL behind it, `flows/` joins sends with the waits that they released,
`selection.py` reads what users select.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kprof.trace.trace import Trace

__all__ = ["Trace"]


def __getattr__(name: str) -> Any:
    # The command line parses selections before it needs DuckDB and numpy: a trace loads when it is used.
    if name == "Trace":
        from kprof.trace.trace import Trace

        return Trace
    raise AttributeError(f"module 'kprof.trace' has no attribute {name!r}")
