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
from typing import IO, Final

import numpy as np
from numpy.typing import NDArray

from kprof.export.source import Piece, Source
from kprof.trace.flows.ends import FlowEnds
from kprof.trace.flows.pairing import Ends

# Every bucket has two open files; a process may open about a thousand.
_MAX_BUCKETS: Final = 200


def spooled_ends(ends: FlowEnds, num_buckets: int, folder: Path) -> Iterator[tuple[Ends, Ends]]:
    """Yields sends and waits bucket by bucket, after one scan of all events."""
    buckets = range(min(num_buckets, _MAX_BUCKETS))
    files = [[folder / f"{bucket}.{side}" for bucket in buckets] for side in ("sends", "waits")]
    row = np.dtype(np.void)
    with contextlib.ExitStack() as stack:
        opened = [[stack.enter_context(file.open("wb")) for file in side] for side in files]
        for batch in ends.batches():
            for of_side, of_buckets in zip(batch, opened, strict=True):
                columns = of_side.columns()
                row = np.dtype([(name, column.dtype) for name, column in columns.items()])
                _scatter(np.rec.fromarrays(list(columns.values()), dtype=row), of_buckets)
    for of_bucket in zip(*files, strict=True) if row.names else ():
        sends, waits = (_columns(np.fromfile(file, row)) for file in of_bucket)
        for file in of_bucket:
            file.unlink()
        yield sends, waits


def _columns(rows: NDArray[np.void]) -> Ends:
    return Ends(**{name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names or ()})


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
