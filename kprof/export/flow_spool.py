"""Flows of large traces, joined through temporary files: all events are read once and never held in
memory.

    events  ──one scan──>  buckets of sends and waits  ──pair──>  files by piece of the export

A send and its wait are in the same bucket: source, destination, epoch and slot choose it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import numpy as np

from kprof.trace.flows.pairing import Ends

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kprof.export.source import Piece, Source
    from kprof.trace.flows.ends import FlowEnds

# A row of Ends, as written.
_END: Final = np.dtype(
    [
        ("rule", "<i2"),
        ("src", "<i4"),
        ("dst", "<i4"),
        ("epoch", "<i8"),
        ("slot", "<i8"),
        ("turn", "<i4"),
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("event_id", "<i8"),
        ("launch", "<i4"),
        ("block", "<i4"),
        ("warp", "<i2"),
        ("is_selected", "?"),
    ]
)
# Every bucket has two open files; a process may open about a thousand.
_MAX_BUCKETS: Final = 200


def spooled_ends(ends: FlowEnds, num_buckets: int, folder: Path) -> Iterator[tuple[Ends, Ends]]:
    """Yields sends and waits bucket by bucket, after one scan of all events."""
    num_buckets = min(num_buckets, _MAX_BUCKETS)
    _spool(ends, num_buckets, folder)
    for bucket in range(num_buckets):
        files = [_bucket_file(folder, side, bucket) for side in ("sends", "waits")]
        sends, waits = (_columns(np.fromfile(file, _END)) for file in files)
        for file in files:
            file.unlink()
        yield sends, waits


def _spool(ends: FlowEnds, num_buckets: int, folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        files = [
            [
                stack.enter_context(_bucket_file(folder, side, bucket).open("wb"))
                for bucket in range(num_buckets)
            ]
            for side in ("sends", "waits")
        ]
        for batch in ends.batches():
            for of_side, of_buckets in zip(batch, files, strict=True):
                _scatter(_rows(of_side), of_buckets)


def _rows(ends: Ends) -> NDArray[np.void]:
    return np.rec.fromarrays([getattr(ends, name) for name in _END.names or ()], dtype=_END)


def _columns(rows: NDArray[np.void]) -> Ends:
    return Ends(**{name: np.ascontiguousarray(rows[name]) for name in _END.names or ()})


def _scatter(rows: NDArray[np.void], files: Sequence[IO[bytes]]) -> None:
    """Append each row to the file of its bucket."""
    # Any hash will do, as long as both sides of a flow agree.
    place = rows["src"].astype(np.int64) * 131 + rows["dst"]
    mixed = rows["slot"] * 1_000_003 + rows["epoch"].astype(np.int64) * 8191 + place
    bucket = mixed % len(files)
    order = np.argsort(bucket, kind="stable")
    ends = np.cumsum(np.bincount(bucket, minlength=len(files)))
    for file, part in zip(files, np.split(order, ends[:-1]), strict=True):
        rows[part].tofile(file)


def _bucket_file(folder: Path, side: str, bucket: int) -> Path:
    return folder / f"{bucket}.{side}"


@dataclass(frozen=True)
class PieceFiles:
    """Temporary files: the departures and arrivals of each piece, by its rank and first block."""

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
        self,
        direction: str,
        rank: NDArray[np.generic],
        block: NDArray[np.generic],
        rows: NDArray[np.void],
    ) -> None:
        """Append rows to the files of the pieces that have their blocks."""
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
        """The rows that were appended for a piece."""
        file = self._file(direction, piece.rank, piece.first_block)
        return np.fromfile(file, dtype) if file.exists() else np.zeros(0, dtype)

    def _file(self, direction: str, rank: int, first_block: int) -> Path:
        return self.folder / f"{rank}.{first_block}.{direction}"
