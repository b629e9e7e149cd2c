"""Flows of large traces by way of temporary files, so that all events are read once and never held.

    events  ──one scan──>  buckets of sends and waits  ──pair──>  files by piece of the export, read at its turn

Everything that could meet falls into the same bucket: it is chosen by source, destination, call and slot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from kprof.capture.directory import EVENT_OPEN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kprof.export.source import Piece, Source
    from kprof.regions import FlowRule

# One side of a flow: times in file time.
END: Final = np.dtype(
    [
        ("src", "<i4"),
        ("dst", "<i4"),
        ("ordinal", "<i4"),
        ("block", "<i4"),
        ("slot", "<i8"),
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("event_id", "<i8"),
    ]
)
# Every bucket has two open files, and a process may have about a thousand.
_MAX_BUCKETS: Final = 200


def spooled_ends(
    source: Source, num_buckets: int, folder: Path
) -> Iterator[tuple[NDArray[np.void], NDArray[np.void]]]:
    """Sends and waits of one bucket after the other, as rows of END."""
    num_buckets = min(num_buckets, _MAX_BUCKETS)
    for rule in source.trace.regions.flows:
        _spool(source, rule, num_buckets, folder)
        for bucket in range(num_buckets):
            files = [_bucket_file(folder, side, bucket) for side in ("sends", "waits")]
            sends, waits = (np.fromfile(file, END) for file in files)
            for file in files:
                file.unlink()
            yield sends, waits


def _spool(source: Source, rule: FlowRule, num_buckets: int, folder: Path) -> None:
    """One scan of the events of a rule."""
    query = f"""
        SELECT region_id, rank, peer, ordinal, block, slot, event_id,
            start_ns - {source.origin_ns} AS start_ns, end_ns - {source.origin_ns} AS end_ns
        FROM events WHERE region_id IN ({rule.send}, {rule.wait}) AND flags & {EVENT_OPEN} = 0
            AND peer IS NOT NULL AND slot IS NOT NULL"""
    with contextlib.ExitStack() as stack:
        sends, waits = (
            [
                stack.enter_context(_bucket_file(folder, side, bucket).open("wb"))
                for bucket in range(num_buckets)
            ]
            for side in ("sends", "waits")
        )
        for batch in source.trace.batches(query):
            columns = {name: _numpy(batch.column(name)) for name in batch.schema.names}
            is_send = columns["region_id"] == rule.send
            _scatter(_rows(columns, is_send, "rank", "peer"), sends)
            _scatter(_rows(columns, ~is_send, "peer", "rank"), waits)


def _rows(
    columns: dict[str, NDArray[Any]], which: NDArray[np.bool_], src: str, dst: str
) -> NDArray[np.void]:
    rows = np.empty(int(np.count_nonzero(which)), END)
    rows["src"], rows["dst"] = columns[src][which], columns[dst][which]
    for name in ("ordinal", "block", "slot", "start_ns", "end_ns", "event_id"):
        rows[name] = columns[name][which]
    return rows


def _scatter(rows: NDArray[np.void], files: Sequence[IO[bytes]]) -> None:
    """Append each row to the file of its bucket."""
    # Any mixture would do, as long as both sides of a flow agree.
    mixed = rows["slot"] * 1_000_003 + rows["ordinal"] * 8191 + rows["src"] * 131 + rows["dst"]
    bucket = mixed % len(files)
    order = np.argsort(bucket, kind="stable")
    ends = np.cumsum(np.bincount(bucket, minlength=len(files)))
    for file, part in zip(files, np.split(order, ends[:-1]), strict=True):
        rows[part].tofile(file)


def _bucket_file(folder: Path, side: str, bucket: int) -> Path:
    return folder / f"{bucket}.{side}"


def _numpy(column: Any) -> NDArray[Any]:
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values


@dataclass(frozen=True)
class PieceFiles:
    """Temporary files: what leaves and what reaches each piece, by rank and first block of the piece."""

    folder: Path
    first_blocks: dict[int, NDArray[np.int64]]

    @staticmethod
    def of(source: Source, folder: Path) -> PieceFiles:
        """No rows yet."""
        ranks = {key.rank for key in source.keys}
        first_blocks = {
            rank: np.array([piece.first_block for piece in source.pieces(rank)], dtype=np.int64)
            for rank in ranks
        }
        return PieceFiles(folder, first_blocks)

    def append(
        self, direction: str, rank: NDArray[Any], block: NDArray[Any], rows: NDArray[np.void]
    ) -> None:
        """Append rows to the files of the pieces in which their blocks are."""
        for of_rank, first_blocks in self.first_blocks.items():
            own = np.flatnonzero(rank == of_rank)
            piece = np.searchsorted(first_blocks, block[own], side="right") - 1
            order = np.argsort(piece, kind="stable")
            ends = np.cumsum(np.bincount(piece, minlength=len(first_blocks)))
            for first_block, part in zip(
                first_blocks.tolist(), np.split(own[order], ends[:-1]), strict=True
            ):
                with self._file(direction, of_rank, first_block).open("ab") as file:
                    rows[part].tofile(file)

    def read(self, direction: str, piece: Piece, dtype: np.dtype[np.void]) -> NDArray[np.void]:
        """What was appended for a piece."""
        file = self._file(direction, piece.rank, piece.first_block)
        return np.fromfile(file, dtype) if file.exists() else np.zeros(0, dtype)

    def _file(self, direction: str, rank: int, first_block: int) -> Path:
        return self.folder / f"{rank}.{first_block}.{direction}"
