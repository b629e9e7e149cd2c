"""Reading: all ranks of a capture on one clock, as views for SQL, with the part of it that was selected.

`trace.py` has the Trace, `views.py` the SQL behind it, `flows/` joins sends with the waits that they released,
`selection.py` reads what users select.
"""

from __future__ import annotations

from kprof.trace.trace import Trace

__all__ = ["Trace"]
