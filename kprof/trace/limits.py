"""Sizes of a trace beyond which kprof leaves out, unless asked, what would take too long."""

from __future__ import annotations

from typing import Final

# A browser takes about 18 s and 1.9 GB for 5 million slices.
MAX_SLICES: Final = 2_000_000
# The trace inside a report page: about 15 bytes a slice, so a page grows by a few megabytes.
MAX_SLICES_IN_PAGE: Final = 200_000
# Beyond that, writing the trace into the page takes longer than the rest of the report.
MAX_EVENTS_IN_PAGE: Final = 2_000_000
# `kprof record` ends at once: beyond that it leaves findings to `kprof report`.
MAX_EVENTS_AFTER_RECORDING: Final = 2_000_000
# Searching this many for findings takes 8 s on one core. Exports of more draw no findings.
MAX_EVENTS_TO_DRAW_FINDINGS: Final = 5_000_000
# Counting flows takes seconds: beyond that `kprof info` leaves it to `kprof report`.
MAX_EVENTS_TO_CHECK_FLOWS: Final = 5_000_000
