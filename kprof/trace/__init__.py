"""Reading: all ranks of a capture on one clock, as views for SQL, or a selected part of them.

`trace.py` has the Trace: the events (`events.py`, `views.py` has the SQL) and the flows, for which
`flows/` joins sends with the waits that they released. `selection.py` parses what users select.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kprof.trace.trace import Trace

__all__ = ["Trace"]


def __getattr__(name: str) -> Any:
    # The command line parses selections before it needs DuckDB and numpy, so those load on use.
    if name == "Trace":
        from kprof.trace.trace import Trace

        return Trace
    raise AttributeError(f"module 'kprof.trace' has no attribute {name!r}")
