"""The launches of one rank: their numbers, sizes and regions. Every kernel launch adds one, so adding is cheap."""

from __future__ import annotations

from kprof.capture.manifest import Launch
from kprof.recording.region_ids import RegionIds
from kprof.regions import RegionsLike, RegionTable


class LaunchLog:
    """Launches in their order; `num_kept` of them are in parts that stay. Raises RegionError for bad regions."""

    def __init__(self, regions: RegionsLike) -> None:
        self.region_ids = RegionIds()
        self.num_kept = 0
        self._default_regions = RegionTable.of(regions)
        # What the launch before passed, and the number of its table: mostly the next launch passes the same.
        self._latest: tuple[RegionsLike, int] = (
            None,
            self.region_ids.table_idx(self._default_regions),
        )
        # The fields of manifest.Launch, which are cheaper to keep.
        self._rows: list[tuple[int, str, int, int, int]] = []
        self._num_of_kernel: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self, kernel: str, regions: RegionsLike, num_blocks: int, threads_per_block: int
    ) -> int:
        """The number of this launch."""
        number = len(self._rows)
        ordinal = self._num_of_kernel.get(kernel, 0)
        self._num_of_kernel[kernel] = ordinal + 1
        latest, table_idx = self._latest
        if regions is not latest:
            table_idx = self._table_idx(regions)
        self.region_ids.table_of_launch[number] = table_idx
        self._rows.append((number, kernel, ordinal, num_blocks, threads_per_block))
        return number

    def _table_idx(self, regions: RegionsLike) -> int:
        table = self._default_regions if regions is None else RegionTable.of(regions)
        table_idx = self.region_ids.table_idx(table)
        # A path or a list may mean something else next time.
        if regions is None or regions is table:
            self._latest = regions, table_idx
        return table_idx

    def launches(self, begin: int, end: int) -> tuple[Launch, ...]:
        """Launches begin .. end - 1."""
        return tuple(Launch(*fields) for fields in self._rows[begin:end])
