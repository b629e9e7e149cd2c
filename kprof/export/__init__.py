"""Writing a Trace as a file for trace viewers: Perfetto's own format, and Chrome JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from kprof.errors import ExportError, UnknownFormatError
from kprof.export import table
from kprof.export.model import By, ExportSummary, OverlayLine, OverlaySlice
from kprof.trace.limits import MAX_SLICES

if TYPE_CHECKING:
    from kprof.export.links import PinnedTrack
    from kprof.export.model import Writer
    from kprof.trace import Trace

__all__ = [
    "SUFFIXES",
    "By",
    "ExportSummary",
    "OverlayLine",
    "OverlaySlice",
    "check_suffix",
    "write",
]

SUFFIXES: Final = (".pftrace", ".pftrace.gz", ".json", ".json.gz", *table.SUFFIXES)


def write(
    trace: Trace,
    path: str | Path,
    *,
    force: bool = False,
    max_slices: int | None = MAX_SLICES,
    lines: Sequence[OverlayLine] = (),
    torch_traces: Sequence[Path] = (),
    by: By = By.BLOCK,
    pinned: Iterable[PinnedTrack] = (),
    progress: Callable[[float], None] | None = None,
) -> ExportSummary:
    """Write the trace's selected events to `path`; the suffix names the format (SUFFIXES).

    Times in the file are aligned nanoseconds minus `summary.origin_ns`: the first event is at 1 us.
    If there are more than `max_slices` events, short neighbours are merged until the rest fits, and
    a notice says so; None keeps everything. `lines`, such as findings, are drawn above the blocks
    of their ranks. `torch_traces` are files of the PyTorch profiler, one per rank; kernels that
    both saw align its clock with the device clock. `by` selects a rank's tracks; tracks to be
    `pinned` have names of their own. A table (.csv, .parquet) has the events alone, at the trace's
    times. Raises OutputExistsError, or ExportError for an unknown suffix, a profiler file that does
    not fit, or a disk that refuses. No partial file remains.
    """
    from kprof.capture.output import replacing
    from kprof.export.grouping import grouping
    from kprof.export.kineto import read_overlays
    from kprof.export.notices import notices
    from kprof.export.pipeline import run

    if table.is_table(path := Path(path)):
        return table.write_table(trace, path, force=force)
    make_writer = _writer_for(path)
    if max_slices is not None and max_slices < 1:
        raise ExportError(f"max_slices is {max_slices}; give a number above 0")
    torch_lines, torch_notices = read_overlays(trace, torch_traces)
    tracks = replace(grouping(trace, by), pinned=frozenset(pinned))
    say = progress or (lambda _share: None)
    with replacing(path, force=force) as file:
        tally = run(trace, make_writer(file), max_slices, say, (*lines, *torch_lines), tracks)
    return ExportSummary(
        path=path,
        num_slices=tally.num_slices,
        num_flows=tally.num_flows,
        num_tracks=tally.num_tracks,
        size_bytes=path.stat().st_size,
        notices=notices(trace, tally) + torch_notices,
        origin_ns=tally.origin_ns,
        last_ns=tally.last_ns,
        num_merged=tally.num_merged,
    )


def check_suffix(path: Path) -> None:
    """Refuse a name that says no format, before the work is done. Raises UnknownFormatError."""
    if not table.is_table(path):
        _writer_for(path)


def _writer_for(path: Path) -> Callable[[IO[bytes]], Writer]:
    name = path.name.removesuffix(".gz")
    if name.endswith(".pftrace"):
        from kprof.export.perfetto import PerfettoWriter

        return PerfettoWriter
    if name.endswith(".json"):
        from kprof.export.chrome import ChromeWriter

        return ChromeWriter
    raise UnknownFormatError(
        f"{path}: kprof does not write this format; use one of {', '.join(SUFFIXES)}"
    )
