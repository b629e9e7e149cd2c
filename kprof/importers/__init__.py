"""Other people's events as captures: then every analysis, report and export works on them.

classic    the buffer of a hand-written helper: a count, then four int64 per event
chrome     Chrome trace files of kernel events, with a given tick
tables     plain CSV or Parquet
"""

from __future__ import annotations

from kprof.importers.chrome import import_chrome
from kprof.importers.classic import import_classic
from kprof.importers.foreign import ImportSummary
from kprof.importers.tables import import_table

__all__ = ["ImportSummary", "import_chrome", "import_classic", "import_table"]
