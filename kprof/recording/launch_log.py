"""The launches of one rank: their numbers, sizes and regions.

Every kernel launch adds a row, so this is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kprof.capture.manifest import MAX_TEXT, Launch
from kprof.capture.printable import utf8
from kprof.errors import RecorderError
from kprof.recording.region_ids import RegionIds
from kprof.recording.wanted import EVERYTHING, Wanted
from kprof.regions import RegionsLike, RegionTable

if TYPE_CHECKING:
    from kprof.recording.ledger import Ledger


class _Counts(dict[str, int]):
    """How many launches of each kernel there were; raises RecorderError for a name that no kernel
    has."""

    def __missing__(self, kernel: object) -> int:
        if not isinstance(kernel, str):
            raise RecorderError(f"launch of {kernel!r}: the name of a kernel is text")
        if len(utf8(kernel)) > MAX_TEXT:
            raise RecorderError(
                f"launch of {kernel[:20]!r}...: the name of a kernel has at most {MAX_TEXT} "
                f"characters, and this one has {len(kernel)}"
            )
        return 0


class LaunchLog:
    """Launches in order, until they are in a part that is final.

    `num_added` counts all that were added, `num_outside` those that `is_wanted` left out.
    Raises RegionError for bad regions, RecorderError for bad names of kernels.
    """

    def __init__(self, regions: RegionsLike, wanted: Wanted = EVERYTHING) -> None:
        self.region_ids = RegionIds()
        self.num_added = self.num_outside = 0
        self.ledger: Ledger | None = None
        # So many of those that were added are forgotten.
        self._num_done = 0
        self._default_regions = RegionTable.of(regions)
        # The regions that the last launch passed and their table: the next launch mostly passes the
        # same.
        self._latest: tuple[RegionsLike, int] = (
            None,
            self.region_ids.table_idx(self._default_regions),
        )
        self._rows: list[Launch] = []
        self._num_of_kernel = _Counts()
        self.wanted = wanted

    @property
    def so_far(self) -> tuple[int, int]:
        """How many launches were added, and the number above all of theirs."""
        return self.num_added, self.region_ids.num_launches

    def is_wanted(self, kernel: str) -> bool:
        """Whether to record the next launch of this kernel. Counts it if not."""
        if not self.wanted.has_window:
            return True
        ordinal = self._num_of_kernel[kernel]
        if self.wanted.has_call(ordinal):
            return True
        self._num_of_kernel[kernel] = ordinal + 1
        self.num_outside += 1
        return False

    def add(
        self, kernel: str, regions: RegionsLike, num_blocks: int, threads_per_block: int
    ) -> Launch:
        """Add a launch; it takes the next number.

        Whatever is wrong with it is raised before anything is added.
        """
        ordinal = self._num_of_kernel[kernel]
        latest, table_idx = self._latest
        if regions is not latest:
            table_idx = self._table_idx(regions)
        self._num_of_kernel[kernel] = ordinal + 1
        if type(kernel) is not str or not kernel.isascii():
            kernel = utf8(kernel)
        number = self.region_ids.add_launch(table_idx)
        row = Launch(number, kernel, ordinal, num_blocks, threads_per_block)
        self._rows.append(row)
        self.num_added += 1
        if self.ledger is not None:
            self.ledger.note_launch(row, table_idx, self.region_ids)
        return row

    def note_captured(self, row: Launch) -> None:
        """A launch will be replayed."""
        if self.ledger is not None:
            self.ledger.note_captured(row, self.region_ids.table_of_launch[row.launch])

    def _table_idx(self, regions: RegionsLike) -> int:
        table = self._default_regions if regions is None else RegionTable.of(regions)
        table_idx = self.region_ids.table_idx(table)
        # The contents of a path or a list may differ next time.
        if regions is None or regions is table:
            self._latest = regions, table_idx
        return table_idx

    def waiting(self, end: int | None = None) -> list[Launch]:
        """Launches that are in no part yet: all, or those among the first `end` that were added."""
        return self._rows[: None if end is None else end - self._num_done]

    def forget(self, end: int) -> None:
        """The first `end` launches are in parts now, or nobody wants them."""
        del self._rows[: end - self._num_done]
        self._num_done = end
        if self.ledger is not None:
            self.ledger.forget(end)
