"""What a capture keeps of a hang: a note in its manifest, and the waits and announced spans that
never ended as open spans among the events.

A kernel records a span when it ends, so what its blocks did while it hung is in none of its
records. hang.json has it: this adds an event for each wait, and each announced span, of which the
rank has no record.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from kprof.capture.directory import (
    EVENT_OPEN,
    event_schema,
    events_file_name,
    rank_file_name,
    write_rank_info,
)
from kprof.capture.manifest import HangNote, HungCall, RankInfo, RegionLosses
from kprof.capture.parts import append_events
from kprof.capture.rank_summary import summary_file_name, write_summary
from kprof.clocks.offset import ticks_to_ns
from kprof.errors import CaptureError, CorruptCaptureError
from kprof.hangs.report import HANG_NAME, Hang, Waiting, read_hang

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

# Kernels tell of a wait when it has lasted so long (wait_lines.h), so two waits of one track that
# were told begin further apart.
_APART_NS: Final = 50_000
_APART: Final = "apart_ns"
_COLUMNS: Final = ["launch", "block", "warp", "region", "start_ns", "hw_id"]


def keep_hang(
    directory: Path, infos: Sequence[RankInfo], world_size: int
) -> tuple[tuple[RankInfo, ...], HangNote | None]:
    """Add the open spans of a hang to the events of the ranks; returns their infos with these, and
    the note for the manifest, None where the run did not hang. Where a file cannot be written, its
    rank stays as it is.
    """
    try:
        hang = read_hang(directory)
    except CorruptCaptureError:
        return tuple(infos), None
    if hang is None:
        return tuple(infos), None
    kept = tuple(_with_open_spans(directory, info, hang, world_size) for info in infos)
    num_open = sum(a.counts.open - b.counts.open for a, b in zip(kept, infos, strict=True))
    calls = dict.fromkeys(HungCall(wait.kernel, wait.ordinal) for wait in hang.waits)
    note = HangNote(hang.idle_s, hang.diagnosis, hang.kind, tuple(calls), num_open, hang.shown)
    return kept, note


def unseen_waits(directory: Path, infos: Sequence[RankInfo]) -> tuple[str, ...]:
    """A sentence for each rank whose open waits a hang has and the capture has not."""
    try:
        hang = read_hang(directory)
    except CorruptCaptureError:
        return ()
    known = {info.rank for info in infos if info.clock.ticks_per_second}
    counts = Counter(wait.rank for wait in hang.waits if wait.rank not in known) if hang else {}
    return tuple(
        f"rank {rank}: {f'{count} waits' if count > 1 else 'a wait'} that never ended "
        f"{'are' if count > 1 else 'is'} in {HANG_NAME} alone: the rank ended before it had saved "
        "anything, so nobody knows its clock"
        for rank, count in sorted(counts.items())
    )


def _with_open_spans(directory: Path, info: RankInfo, hang: Hang, world_size: int) -> RankInfo:
    """The rank with its waits that never ended."""
    import pyarrow as pa

    waits = [wait for wait in hang.waits if wait.rank == info.rank and wait.start_ticks]
    spans = [span for span in hang.spans if span.rank == info.rank]
    if not waits + spans or not info.clock.ticks_per_second:
        return info
    try:
        rows = _rows(info, waits, spans, hang.idle_s)
        return _added(directory, info, rows, world_size)
    except (CaptureError, OSError, pa.ArrowException):
        # A full disk: the capture is worth more than these.
        return info


def _added(
    directory: Path, info: RankInfo, rows: list[dict[str, int]], world_size: int
) -> RankInfo:
    """Add those that are not recorded to the rank's file; raises CaptureError."""
    recorded = _recorded(directory, info.rank, sorted({row["launch"] for row in rows}))
    rows = [_with_processor(row, recorded) for row in rows if not _is_recorded(row, recorded)]
    if not rows:
        return info
    counted = _counted(info, rows)
    append_events(directory, counted, _table(rows))
    with contextlib.suppress(CaptureError):
        if (directory / rank_file_name(info.rank)).exists():
            write_rank_info(directory, counted)
        if (directory / summary_file_name(info.rank)).exists():
            write_summary(directory, counted, world_size)
    return counted


def _rows(
    info: RankInfo, waits: Iterable[Waiting], spans: Iterable[Waiting], idle_s: float
) -> list[dict[str, int]]:
    """An event for each of them. It lasts until the hang was told of: from the latest of them on,
    nothing moved for `idle_s`."""
    rate = info.clock.ticks_per_second
    ids = {region.name: region.id for region in info.regions.regions}
    rows = [
        {
            "rank": info.rank,
            "launch": each.launch,
            "block": each.block,
            "warp": each.warp,
            "region": ids[each.region],
            "flags": EVENT_OPEN,
            "start_ns": int(ticks_to_ns(np.array([each.start_ticks], np.int64), rate)[0]),
            "payload": each.payload,
            "hw_id": 0,
            _APART: apart_ns,
        }
        # What is announced begins as its record does.
        for found, apart_ns in ((waits, _APART_NS), (spans, 1))
        for each in found
        if each.region in ids
    ]
    seen_ns = max((row["start_ns"] for row in rows), default=0) + round(idle_s * 1e9)
    return [row | {"duration_ns": seen_ns - row["start_ns"]} for row in rows]


def _recorded(directory: Path, rank: int, launches: list[int]) -> pd.DataFrame:
    import pyarrow.parquet as pq

    path = directory / events_file_name(rank)
    chosen = pq.read_table(path, columns=_COLUMNS, filters=[("launch", "in", launches)])
    found: pd.DataFrame = chosen.to_pandas()
    return found


def _of_track(row: dict[str, int], recorded: pd.DataFrame) -> Any:
    return (
        (recorded["launch"] == row["launch"])
        & (recorded["block"] == row["block"])
        & (recorded["warp"] == row["warp"])
    )


def _is_recorded(row: dict[str, int], recorded: pd.DataFrame) -> bool:
    """Whether the rank has recorded that span: it has ended."""
    is_same = _of_track(row, recorded) & (recorded["region"] == row["region"])
    away_ns = (recorded["start_ns"] - row["start_ns"]).abs()
    return bool((is_same & (away_ns < row[_APART])).any())


def _with_processor(row: dict[str, int], recorded: pd.DataFrame) -> dict[str, int]:
    """With the processor that the rest of its track ran on."""
    its = recorded.loc[_of_track(row, recorded), "hw_id"]
    return row | {"hw_id": int(its.iloc[-1])} if len(its) else row


def _counted(info: RankInfo, rows: Sequence[dict[str, int]]) -> RankInfo:
    """The rank's counts with these open spans."""
    counts = msgspec.structs.replace(
        info.counts, recorded=info.counts.recorded + len(rows), open=info.counts.open + len(rows)
    )
    losses = {each.region: each for each in info.losses}
    for row in rows:
        name = info.regions[row["region"]].name
        so_far = losses.get(name, RegionLosses(name))
        losses[name] = msgspec.structs.replace(so_far, open=so_far.open + 1)
    return msgspec.structs.replace(info, counts=counts, losses=tuple(losses.values()))


def _table(rows: list[dict[str, int]]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist(rows, schema=event_schema())
