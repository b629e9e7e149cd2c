"""The wait ribbon: for whom the blocks of each row wait, over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from kprof.analysis.barriers import last_to_enter_sql
from kprof.analysis.summary import CLOSED_SPANS, WAIT, Summary, Table
from kprof.analysis.timeline import Focus, bin_width, launches_within, parts_sql

# The culprit of a wait that names no rank, such as a lock.
NOBODY: Final = -1
# A cell keeps so many culprits, those that most of its tracks wait for.
MOST_CULPRITS: Final = 3
# A smaller share of a row's tracks than this cannot be seen.
_LEAST_SHARE: Final = 0.002


@dataclass(frozen=True)
class Ribbon:
    """For whom rows wait, over the bins of `over`, each `bin_ns` long.

    `rows` are (rank, block); the block is -1 where a row is a whole rank. `culprits` (int32) and
    `shares` (float32) have the shape rows x bins x MOST_CULPRITS: the ranks that most of a row's
    tracks wait for, the most first, NOBODY where a wait names none, and the share of its tracks, 0
    where there are fewer culprits. `present` (float32, rows x bins) is the share of the row's
    tracks that run. `worst` are the ranks that others wait for, the one with most of their time
    first.
    """

    over: Focus
    bin_ns: int
    rows: tuple[tuple[int, int], ...]
    culprits: npt.NDArray[np.int32]
    shares: npt.NDArray[np.float32]
    present: npt.NDArray[np.float32]
    worst: tuple[int, ...] = ()

    def cells(self) -> Table:
        """A row per culprit of a cell: rank, block, bin, culprit, share."""
        row, at, which = np.nonzero(self.shares)
        places = np.array(self.rows, dtype=np.int64).reshape(-1, 2)
        return pd.DataFrame(
            {
                "rank": places[row, 0],
                "block": places[row, 1],
                "bin": at,
                "culprit": self.culprits[row, at, which],
                "share": self.shares[row, at, which],
            }
        )


def ribbon(
    summary: Summary, over: Focus, num_bins: int = 500, blocks_of: int | None = None
) -> Ribbon:
    """For whom every rank waits, or every block of the rank `blocks_of`.

    Where a wait names no rank, and its region is a barrier of all ranks, they wait for the last one
    to enter. On unaligned clocks every rank has its own time axis.
    """
    of_rank = "true" if blocks_of is None else f"rank = {int(blocks_of)}"
    row = "rank, -1 AS block" if blocks_of is None else "rank, block"
    width, launches = bin_width(over, num_bins), launches_within(summary, over)
    tracks = summary.frame(
        f"""SELECT {row}, count(DISTINCT (block, warp)) AS tracks FROM tracks
        WHERE {of_rank} AND {launches} GROUP BY ALL ORDER BY ALL"""
    )
    rows = [(int(rank), int(block)) for rank, block, _ in tracks.itertuples(index=False)]
    number = {place: i for i, place in enumerate(rows)}
    shape = len(rows), num_bins
    culprits = np.full((*shape, MOST_CULPRITS), NOBODY, dtype=np.int32)
    shares = np.zeros((*shape, MOST_CULPRITS), dtype=np.float32)
    present = np.zeros(shape, dtype=np.float32)
    full = (width * tracks["tracks"]).tolist()
    there = f"SELECT {row}, 0 AS culprit, first_ns AS start_ns, last_ns AS end_ns FROM tracks"
    spans = _parts(summary, over, f"{there} WHERE {of_rank} AND {launches}", width)
    for place, _, filled in _filled(spans, shape[1], width):
        present[number[place]] = np.minimum(1.0, filled.sum(axis=0) / full[number[place]])
    waits = _waits_sql(summary, of_rank, launches, row)
    for place, found, filled in _filled(_parts(summary, over, waits, width), shape[1], width):
        if place not in number:
            continue  # damaged statistics of a file hide its rows from some queries
        share = np.minimum(1.0, filled / full[number[place]])
        kept = _most(share)
        most = np.take_along_axis(share, kept, axis=0)
        culprits[number[place], :, : len(kept)] = found[kept].T
        shares[number[place], :, : len(kept)] = np.where(most < _LEAST_SHARE, 0.0, most).T
    worst = _worst(np.array([rank for rank, _ in rows]), culprits, shares)
    return Ribbon(over, width, tuple(rows), culprits, shares, present, worst)


def _worst(
    ranks: npt.NDArray[Any], culprits: npt.NDArray[np.int32], shares: npt.NDArray[np.float32]
) -> tuple[int, ...]:
    """The culprits of other ranks' waits, by their time."""
    is_of_other = (shares > 0) & (culprits != NOBODY) & (culprits != ranks.reshape(-1, 1, 1))
    time = np.bincount(culprits[is_of_other], shares[is_of_other])
    order = np.argsort(-time, kind="stable")
    return tuple(int(rank) for rank in order if time[rank] > 0)


def _most(share: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Of each bin the culprits with the largest shares (MOST_CULPRITS at most, x bins), the largest
    first; of equal ones the lower rank."""
    left, found = share.copy(), []
    for _ in range(min(MOST_CULPRITS, len(share))):
        most = left.argmax(axis=0)
        found.append(most)
        left[most, np.arange(share.shape[1])] = -1.0
    return np.array(found)


def _waits_sql(summary: Summary, of_rank: str, launches: str, row: str) -> str:
    """SQL of the waits: rank, block, culprit, start_ns, end_ns."""
    spans = f"FROM events WHERE {CLOSED_SPANS} AND {WAIT} AND {of_rank} AND {launches}"
    columns = f"{row}, CAST(coalesce(peer, {{}}) AS INTEGER) AS culprit, start_ns, end_ns"
    if not len(summary.frame(f"SELECT 1 {spans} AND category = 'sync' AND peer IS NULL LIMIT 1")):
        return f"SELECT {columns.format(NOBODY)} {spans}"
    last = last_to_enter_sql(summary, launches)
    return f"""SELECT {columns.format(f"last_rank, {NOBODY}")}
        FROM (SELECT * {spans}) LEFT JOIN ({last}) USING (event_id)"""


def _parts(summary: Summary, over: Focus, spans: str, width: int) -> Table:
    return summary.frame(
        f"""WITH {parts_sql(over, spans, "rank, block, culprit", width)}
        SELECT rank, block, culprit, bin, CAST(sum(part) AS DOUBLE) AS part,
            CAST(sum(ups) AS DOUBLE) AS ups, CAST(sum(downs) AS DOUBLE) AS downs
        FROM parts GROUP BY ALL ORDER BY ALL"""
    )


def _filled(
    parts: Table, num_bins: int, width: int
) -> Iterator[tuple[tuple[int, int], npt.NDArray[Any], npt.NDArray[Any]]]:
    """Per row its culprits, and how many ns of each bin the waits for each fill, together."""
    for place, its in parts.groupby(["rank", "block"], sort=False):
        found, which = np.unique(its["culprit"].to_numpy(), return_inverse=True)
        # What ends with the window may begin a bin beyond it.
        shape = len(found), num_bins + 1
        at = which * shape[1] + np.minimum(its["bin"].to_numpy(), num_bins)
        part, ups, downs = (
            np.bincount(at, its[column].to_numpy(), shape[0] * shape[1]).reshape(shape)
            for column in ("part", "ups", "downs")
        )
        whole = np.cumsum(ups - downs, axis=1) - ups
        rank, block = (int(str(number)) for number in place)
        yield (rank, block), found, (part + width * whole)[:, :num_bins]
