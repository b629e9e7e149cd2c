"""One space of region ids for all launches of a rank, whatever tables kernels have."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from msgspec.structs import replace

from kprof.regions import MergedTables, Region, RegionTable, merge_tables

# One thread launches and another may decode: both add tables.
_adding: Final = threading.Lock()


@dataclass(slots=True)
class RegionIds:
    """Maps (region table of the launch, id in the record) to one id space that only ever grows at
    its end.

    Unknown ids become tables of their own, added like any other: events that were written keep
    their ids whatever comes later. Damaged memory may hold any number of them, so that from the
    256th on they share one region.

    `num_launches` numbers are taken. Other threads take some, too: call nothing in between.
    """

    num_launches: int = 0
    # Adds launches from this number on; returns the first one that is not there yet. A function,
    # so that a copy of this has it, too.
    fetch: Callable[[dict[int, int], int], int] = lambda _, begin: begin
    _table_of_launch: dict[int, int] = field(default_factory=dict)
    _num_fetched: int = 0
    _tables: list[RegionTable] = field(default_factory=list)
    _as_merged: list[RegionTable] = field(default_factory=list)
    # By table and id in the record: the name of the region that stands for it.
    _unknown: dict[tuple[int, int], str] = field(default_factory=dict)
    _id_of_name: dict[str, int] = field(default_factory=dict)
    _united: MergedTables = field(default_factory=lambda: merge_tables([]))

    @property
    def table_of_launch(self) -> dict[int, int]:
        """The index of the table of every launch that events may come of."""
        self._num_fetched = self.fetch(self._table_of_launch, self._num_fetched)
        return self._table_of_launch

    def stay(self) -> None:
        """This is a copy: later launches are none of its own."""
        _ = self.table_of_launch
        self.fetch = lambda _, begin: begin

    def table_idx(self, table: RegionTable) -> int:
        """The index of `table`, added when it is new.

        Raises RegionError when there are too many regions.
        """
        if table not in self._tables:
            with _adding:
                self._united = merge_tables([*self._tables, table])
                self._tables.append(table)
                self._as_merged.append(_as_merged(table, self._united))
        return self._tables.index(table)

    def table(self, table_idx: int) -> RegionTable:
        """The table of that index."""
        return self._tables[table_idx]

    def table_as_merged(self, table_idx: int) -> RegionTable:
        """The same with the names that its regions have among all."""
        return self._as_merged[table_idx]

    def add_launch(self, table_idx: int) -> int:
        """The number of one more launch, whose regions are those of the table."""
        number = self.num_launches
        self.num_launches = number + 1
        self._table_of_launch[number] = table_idx
        return number

    def forget(self, end: int, captured: Collection[int]) -> None:
        """No event will come of launches before number `end`, except those that were captured."""
        tables = self.table_of_launch
        for number in list(tables):
            if number < end and number not in captured:
                del tables[number]

    def merged(self) -> RegionTable:
        """All regions, the unknown ones included."""
        return self._united.table

    def translate(
        self, launches: np.ndarray, region_ids: np.ndarray, places: np.ndarray | None = None
    ) -> tuple[np.ndarray, int]:
        """Merged ids for records of the given launches, and how many of them were unknown.

        `places` has the index in `launches` of each record; without it, launches has one for each.
        """
        if not self._tables:
            self.table_idx(RegionTable())
        id_maps = self._united.id_maps
        width = max(len(id_map) for id_map in id_maps) + 1
        lookup = np.zeros((len(id_maps), width), dtype=np.uint16)
        for table_idx, id_map in enumerate(id_maps):
            lookup[table_idx, : len(id_map)] = id_map
        table_idxs = self._tables_of(launches)
        local_ids = np.minimum(region_ids, width - 1)
        # Mostly there is one table, and a lookup in one dimension is the faster one.
        if len(table_idxs) and (table_idxs == table_idxs[0]).all():
            merged = lookup[table_idxs[0]][local_ids]
            table_idxs = np.broadcast_to(table_idxs[0], len(region_ids))
        else:
            table_idxs = table_idxs if places is None else table_idxs[places]
            merged = lookup[table_idxs, local_ids]
        unknown = np.flatnonzero(merged == 0)
        if len(unknown):
            keys, inverse = np.unique(
                (table_idxs[unknown].astype(np.int64) << 16) | region_ids[unknown].astype(np.int64),
                return_inverse=True,
            )
            ids = self._unknown_ids([(key >> 16, key & 0xFFFF) for key in keys.tolist()])
            merged[unknown] = np.array(ids, dtype=np.uint16)[inverse]
        return merged, len(unknown)

    def unknown_ids(self) -> list[int]:
        """The merged ids that stand for ids which no table declares."""
        return sorted(set(self._id_of_name.values()))

    def _tables_of(self, launches: np.ndarray) -> np.ndarray:
        if len(self._tables) == 1:
            return np.zeros(len(launches), dtype=np.intp)
        numbers, inverse = np.unique(launches, return_inverse=True)
        tables = self.table_of_launch
        idxs = np.array([tables.get(number, 0) for number in numbers.tolist()], dtype=np.intp)
        return idxs[inverse]

    def _unknown_ids(self, keys: Sequence[tuple[int, int]]) -> list[int]:
        """The merged ids of unknown (table, id in the record).

        The new ones of them make one table.
        """
        for key in keys:
            if key not in self._unknown:
                is_one_too_many = len(self._unknown) >= _MAX_UNKNOWN
                self._unknown[key] = _OTHER_UNKNOWN if is_one_too_many else _unknown_name(*key)
        names = dict.fromkeys(self._unknown[key] for key in keys)
        if new := [name for name in names if name not in self._id_of_name]:
            table = RegionTable(tuple(Region(i, name) for i, name in enumerate(new, start=1)))
            table_idx = self.table_idx(table)
            ids = self._united.id_maps[table_idx]
            self._id_of_name |= dict(zip(new, ids[1:], strict=True))
        return [self._id_of_name[self._unknown[key]] for key in keys]

    def name(self, launches: Sequence[int], local_id: int) -> str:
        """The name of records of `local_id`: "a or b or 7 others" where launches disagree."""
        tables = self.table_of_launch
        idxs = {tables[launch]: None for launch in launches} or {0: None}
        names = list(dict.fromkeys(self._name_in_table(idx, local_id) for idx in idxs))
        if len(names) > _MOST_NAMES:
            names[_MOST_NAMES - 1 :] = [f"{len(names) - _MOST_NAMES + 1} others"]
        return " or ".join(names)

    def _name_in_table(self, table_idx: int, local_id: int) -> str:
        table = self._tables[table_idx] if self._tables else RegionTable()
        if 0 < local_id <= len(table):
            return self._as_merged[table_idx][local_id].name
        return _unknown_name(table_idx, local_id)


_MAX_UNKNOWN: Final = 255
_MOST_NAMES: Final = 3
_OTHER_UNKNOWN: Final = "other unknown regions"


def _unknown_name(table_idx: int, local_id: int) -> str:
    return f"unknown region {local_id} of table {table_idx}"


def _as_merged(table: RegionTable, united: MergedTables) -> RegionTable:
    """The last of the tables that were merged, with the merged names."""
    id_map = united.id_maps[-1]
    regions = tuple(
        replace(region, name=united.table[id_map[region.id]].name) for region in table.regions
    )
    return replace(table, regions=regions)
