"""What a capture keeps of a hang: a note in its manifest, and the waits and announced spans that
never ended as open spans among the events.

A kernel records a span when it ends, so what its blocks did while it hung is in none of its
records. hang.json has it: this adds an event for each wait, and each announced span, of which the
rank has no record.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from kprof.capture.checks import EVENT_BOUNDS
from kprof.capture.directory import EVENT_OPEN, event_schema, write_rank_info
from kprof.capture.journal import Ended, said
from kprof.capture.manifest import HangNote, HungCall, RankInfo, RegionLosses
from kprof.capture.names import events_file_name, summary_file_name
from kprof.capture.parts import append_events
from kprof.capture.rank_summary import write_summary
from kprof.clocks.offset import ticks_to_ns
from kprof.errors import CaptureError, CorruptCaptureError
from kprof.hangs.report import HANG_NAME, Hang, read_hang
from kprof.on_use import pa, pd, pq

# Kernels tell of a wait when it has lasted so long (wait_lines.h): its record lasts longer, and two
# waits of one track that were told begin further apart. Shorter ones may come right before it.
_APART_NS: Final = 50_000
_TRACK: Final = ["launch", "block", "warp"]
_COLUMNS: Final = [*_TRACK, "region", "start_ns", "duration_ns", "hw_id"]


def keep_hang(
    directory: Path, infos: Sequence[RankInfo], world_size: int
) -> tuple[tuple[RankInfo, ...], HangNote | None]:
    """Add the open spans of a hang to the events of the ranks; returns their infos with these, and
    the note for the manifest, None where the run did not hang. Where a file cannot be written, its
    rank stays as it is.
    """
    hang = _hang_of(directory)
    if hang is None:
        return tuple(infos), None
    kept = tuple(_with_open_spans(directory, info, hang, world_size) for info in infos)
    num_open = sum(a.counts.open - b.counts.open for a, b in zip(kept, infos, strict=True))
    calls = dict.fromkeys(HungCall(wait.kernel, wait.ordinal) for wait in hang.waits)
    note = HangNote(hang.idle_s, hang.diagnosis, hang.kind, tuple(calls), num_open, hang.shown)
    return kept, note


def _hang_of(directory: Path) -> Hang | None:
    """None where the run did not hang, or nobody can read how."""
    with contextlib.suppress(CorruptCaptureError):
        return read_hang(directory)
    return None


def unseen_waits(directory: Path, infos: Sequence[RankInfo]) -> tuple[str, ...]:
    """A sentence for each rank whose open waits a hang has and the capture has not."""
    hang = _hang_of(directory)
    known = {info.rank for info in infos if info.clock.ticks_per_second}
    counts = Counter(wait.rank for wait in hang.waits if wait.rank not in known) if hang else {}
    return tuple(
        f"rank {rank}: {f'{count} waits' if count > 1 else 'a wait'} that never ended "
        f"{'are' if count > 1 else 'is'} in {HANG_NAME} alone: the rank ended before it had saved "
        "anything, so nobody knows its clock"
        for rank, count in sorted(counts.items())
    )


def _with_open_spans(directory: Path, info: RankInfo, hang: Hang, world_size: int) -> RankInfo:
    """The rank with its waits and announced spans that never ended, where it has no record of
    them."""
    if not info.clock.ticks_per_second:
        return info
    try:
        rows = _events(info, hang)
        if not rows.empty:
            rows = _unrecorded(rows, _recorded(directory, info.rank, rows))
        if rows.empty:
            return info
        counted = _counted(info, rows)
        schema = event_schema()
        table = pa.Table.from_pandas(rows[schema.names], schema, preserve_index=False)
        append_events(directory, counted, table)
    except (CaptureError, OSError, OverflowError, pa.ArrowException):
        # A full disk, or a damaged hang.json: the capture is worth more than these.
        return info
    # The events are in the file: what says more of them may be as it was.
    with contextlib.suppress(CaptureError, OSError, pa.ArrowException):
        if said(directory, info.rank, Ended):
            write_rank_info(directory, counted)
        if (directory / summary_file_name(info.rank)).exists():
            write_summary(directory, counted, world_size)
    return counted


def _events(info: RankInfo, hang: Hang) -> pd.DataFrame:
    """An event for each of them. It lasts until the hang was told of: from the latest of them on,
    nothing moved for `idle_s`. `apart_ns` is how far its record can be from it, which then lasts
    so long, too: clocks may differ by half of that."""
    ids = {region.name: region.id for region in info.regions.regions}
    waits = [wait for wait in hang.waits if wait.start_ticks]
    found = [
        {name: getattr(each, name) for name in ("rank", *_TRACK, "start_ticks", "payload")}
        | {"region": ids[each.region], "flags": EVENT_OPEN, "apart_ns": apart_ns}
        # What is announced begins as its record does.
        for spans, apart_ns in ((waits, _APART_NS), (hang.spans, 1))
        for each in spans
        if each.rank == info.rank and each.region in ids
    ]
    rows = pd.DataFrame(found)
    if found:
        ticks = rows["start_ticks"].to_numpy(np.int64)
        rows["start_ns"] = ticks_to_ns(ticks, info.clock.ticks_per_second)
        rows = _within(rows, "start_ns")
        seen_ns = rows["start_ns"].max() + round(hang.idle_s * 1e9)
        rows = _within(rows.assign(duration_ns=seen_ns - rows["start_ns"]), "duration_ns")
    return rows


def _within(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Without damaged lines: one of them would make nobody read the file."""
    return rows[rows[column].between(*EVENT_BOUNDS[column])]


def _recorded(directory: Path, rank: int, rows: pd.DataFrame) -> pd.DataFrame:
    """What the rank has recorded in the launches of these events."""
    launches = rows["launch"].unique().tolist()
    filters = [("launch", "in", launches)]
    path = directory / events_file_name(rank)
    return pq.read_table(path, columns=_COLUMNS, filters=filters).to_pandas()


def _unrecorded(rows: pd.DataFrame, recorded: pd.DataFrame) -> pd.DataFrame:
    """The events of which there is no record: those have not ended. With the processor that the
    rest of their track ran on."""
    both = rows.reset_index().merge(recorded, on=_TRACK, suffixes=("", "_of_record"))
    away_ns = both["start_ns_of_record"] - both["start_ns"]
    is_there = (away_ns.abs() < both["apart_ns"]) & (
        away_ns + both["duration_ns_of_record"] >= both["apart_ns"] // 2
    )
    is_same = is_there & (both["region_of_record"] == both["region"])
    processors = recorded.drop_duplicates(_TRACK, keep="last")[[*_TRACK, "hw_id"]]
    still_open = rows.drop(both.loc[is_same, "index"].unique())
    found = still_open.merge(processors, on=_TRACK, how="left")
    return found.fillna({"hw_id": 0})


def _counted(info: RankInfo, rows: pd.DataFrame) -> RankInfo:
    """The rank's counts with these open spans."""
    counts = msgspec.structs.replace(
        info.counts, recorded=info.counts.recorded + len(rows), open=info.counts.open + len(rows)
    )
    losses = {each.region: each for each in info.losses}
    for region, num_open in Counter(rows["region"].tolist()).items():
        name = info.regions[region].name
        so_far = losses.get(name, RegionLosses(name))
        losses[name] = msgspec.structs.replace(so_far, open=so_far.open + num_open)
    return msgspec.structs.replace(info, counts=counts, losses=tuple(losses.values()))
