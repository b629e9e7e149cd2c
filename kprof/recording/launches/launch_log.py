"""The launches of one rank: their numbers, sizes and regions.

Every kernel launch adds a row of bytes, and nothing else that grows with the run. What does not
change from one launch of a kernel to the next is checked and looked up once, in its `Plan`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import numpy as np

from kprof.capture import journal as journals
from kprof.capture.journal import Journal
from kprof.capture.manifest import MAX_TEXT, Launch
from kprof.capture.printable import utf8
from kprof.errors import RecorderError
from kprof.rank_memory import (
    LAUNCH,
    LAUNCH_BYTES,
    NUM_RECENT,
    NUM_ROWS,
    RECENT_BYTES,
    ROWS_BYTES,
    pack_launch,
    pack_recent,
)
from kprof.recording.launches.launch_buffer import sizes_of
from kprof.recording.launches.region_ids import RegionIds
from kprof.recording.launches.wanted import EVERYTHING, Wanted
from kprof.regions import RegionsLike, RegionTable

# A workload whose grids depend on its data makes ever new plans.
_MAX_PLANS: Final = 4096

Sizes = tuple[int, int, int]


class Ledger(Protocol):
    """Where rows outlive the process."""

    def rows(self, number: int) -> memoryview:
        """Room for NUM_ROWS rows."""

    def forget(self, end: int) -> None:
        """The launches below number `end` are in parts."""


class Kernel:
    """A kernel of the rank: `num_launches` counts its launches, recorded or not."""

    __slots__ = ("name", "num_launches")

    def __init__(self, name: str) -> None:
        self.name, self.num_launches = name, 0


class Plan:
    """What the launches of a kernel with the same sizes and regions have in common.

    `idx` numbers the pairs of a kernel and the table of its regions, from 0.
    """

    __slots__ = (
        "idx",
        "kernel",
        "num_blocks",
        "num_tracks",
        "regions",
        "table_idx",
        "threads_per_block",
        "tracks_per_block",
    )

    def __init__(
        self, kernel: Kernel, regions: RegionsLike, table_idx: int, idx: int, sizes: Sizes
    ) -> None:
        self.kernel, self.regions, self.table_idx, self.idx = kernel, regions, table_idx, idx
        self.num_blocks, self.threads_per_block, self.tracks_per_block = sizes
        self.num_tracks = self.num_blocks * self.tracks_per_block


class LaunchLog:
    """Launches in order, until they are in a part that is final.

    The launches below number `end` were added. `num_outside` counts those that `is_wanted` left
    out, `num_left_out` those of `num_calls_left_out` calls that found no room. The first one was
    added at `first_launch_s` on the monotonic clock; 0.0 before. With a `ledger`, rows outlive the
    process; `recent` holds the last NUM_RECENT of them. The `journal` and `introducers` get to know
    of a kernel with its regions before rows name it.
    """

    __slots__ = ("__dict__", "_latest", "end", "recent", "region_ids")

    def __init__(self, regions: RegionsLike, wanted: Wanted = EVERYTHING) -> None:
        self.region_ids = RegionIds()
        self.wanted = wanted
        self.end = self.num_outside = 0
        self.num_left_out = self.num_calls_left_out = 0
        self.first_launch_s = 0.0
        self.ledger: Ledger | None = None
        self.journal: Journal | None = None
        self._num_tables_told = 0
        self.introducers: list[Callable[[int, str, int, RegionIds], None]] = []
        self.recent = memoryview(bytearray(NUM_RECENT * RECENT_BYTES))
        self.plans: dict[tuple[str, int, int, int], Plan] = {}
        self._default_regions = RegionTable.of(regions)
        self.region_ids.table_idx(self._default_regions)
        self._kernels: dict[str, Kernel] = {}
        self._names: dict[tuple[str, int], int] = {}
        self.region_ids.fetch = lambda tables, begin: self._fetch_tables(tables, begin)
        # Rows by their first number; launches go to the last.
        self._segments: deque[tuple[int, memoryview]] = deque()
        self._latest = -NUM_ROWS, memoryview(b"")
        # A signal handler may launch kernels, too.
        self._adding_rows, self._planning = threading.Lock(), threading.RLock()
        # Launches below these numbers are forgotten, and were before that.
        self._num_done = self._num_done_before = 0

    def plan(
        self,
        kernel: str,
        num_blocks: int,
        threads_per_block: int,
        tracks_per_block: int,
        regions: RegionsLike = None,
    ) -> Plan:
        """The plan of launches with these blocks, threads per block and tracks per block.

        Raises RegionError for bad regions, RecorderError for bad sizes and names of kernels, before
        anything is counted.
        """
        sizes = num_blocks, threads_per_block, tracks_per_block
        whole_sizes = sizes_of(kernel, *sizes)
        table = self._default_regions if regions is None else RegionTable.of(regions)
        # Threads make their first launches at the same moment.
        with self._planning:
            entry = self._kernel(kernel)
            table_idx = self.region_ids.table_idx(table)
            self._kernels[kernel] = entry
            idx = self._introduce(entry.name, table_idx)
        plan = Plan(entry, regions, table_idx, idx, whole_sizes)
        # The contents of a path or a list may differ next time.
        if regions is None or regions is table:
            if len(self.plans) >= _MAX_PLANS:
                self.plans.clear()
            self.plans[(kernel, *sizes)] = plan
        return plan

    def is_wanted(self, plan: Plan) -> bool:
        """Whether the window of calls has the next launch of this plan. Counts it if not."""
        if self.wanted.has_call(plan.kernel.num_launches):
            return True
        plan.kernel.num_launches += 1
        self.num_outside += 1
        return False

    def leave_out(self, plan: Plan) -> None:
        """No arena has room for the call of the next launch of this plan. Counts it: the ordinals
        of other ranks, which left out other calls, name the same launches."""
        plan.kernel.num_launches += 1
        self.num_left_out += 1

    def add(self, plan: Plan) -> int:
        """Add a launch; returns its number."""
        ids, kernel = self.region_ids, plan.kernel
        # Without a call in between: other threads launch it, too.
        number, ordinal = ids.num_launches, kernel.num_launches
        ids.num_launches = end = number + 1
        kernel.num_launches = ordinal + 1
        first, rows = self._latest
        row = number - first
        if not 0 <= row < NUM_ROWS:
            row, rows = self._room_for(number)
        pack_launch(
            rows,
            row * LAUNCH_BYTES,
            plan.idx,
            plan.table_idx,
            ordinal,
            plan.num_blocks,
            plan.threads_per_block,
            end,
        )
        recent = number % NUM_RECENT * RECENT_BYTES
        pack_recent(self.recent, recent, plan.idx, plan.num_blocks, ordinal, end)
        if end > self.end:
            self.end = end
        return number

    def row(self, number: int, plan: Plan) -> Launch:
        """The launch that was just added."""
        kernel, sizes = plan.kernel, (plan.num_blocks, plan.threads_per_block)
        return Launch(number, kernel.name, kernel.num_launches - 1, *sizes)

    def waiting(self, end: int | None = None) -> list[Launch]:
        """Launches that are in no part yet: all, or those below number `end`."""
        end = self.end if end is None else end
        names = [name for name, _ in self._names]
        return [
            Launch(number_plus_1 - 1, names[idx], ordinal, num_blocks, threads_per_block)
            for rows in self._rows(self._num_done, end)
            for idx, _, ordinal, num_blocks, threads_per_block, number_plus_1 in rows.tolist()
        ]

    def _rows(self, begin: int, end: int) -> Iterator[np.ndarray]:
        """The rows of launches from `begin` to `end`, as far as they are there."""
        for first, memory in list(self._segments):
            rows = np.frombuffer(memory, LAUNCH)[max(0, begin - first) : max(0, end - first)]
            # Somebody may use rows again that are forgotten meanwhile.
            number = rows["number_plus_1"] - 1
            yield rows[(number >= first) & (number < first + NUM_ROWS)]

    def _fetch_tables(self, table_of_launch: dict[int, int], begin: int) -> int:
        """See `RegionIds.fetch`. A thread that is launching may not have stored its row yet."""
        for rows in self._rows(begin, self.end):
            numbers = (rows["number_plus_1"] - 1).tolist()
            table_of_launch.update(zip(numbers, rows["table"].tolist(), strict=True))
        begin = max(begin, self._num_done_before)
        while begin in table_of_launch:
            begin += 1
        return begin

    def forget(self, end: int) -> None:
        """The launches below number `end` are in parts now, or nobody wants them."""
        # Captured ones are replayed later.
        _ = self.region_ids.table_of_launch
        self._num_done_before, self._num_done = self._num_done, end
        while len(self._segments) > 1 and self._segments[0][0] + NUM_ROWS <= end:
            self._segments.popleft()
        if self.ledger is not None:
            self.ledger.forget(end)

    def _kernel(self, name: str) -> Kernel:
        if not isinstance(name, str):
            raise RecorderError(f"launch of {name!r}: the name of a kernel is text")
        if name in self._kernels:
            return self._kernels[name]
        if len(text := utf8(name)) > MAX_TEXT:
            raise RecorderError(
                f"launch of {name[:20]!r}...: the name of a kernel has at most {MAX_TEXT} "
                f"characters, and this one has {len(name)}"
            )
        return Kernel(text)

    def _introduce(self, name: str, table_idx: int) -> int:
        """The number of a kernel with these regions, which rows name."""
        is_new = (name, table_idx) not in self._names
        idx = self._names.setdefault((name, table_idx), len(self._names))
        if is_new and self.journal is not None:
            self._tell_of_kernel(self.journal, idx, name, table_idx)
        for introduce in self.introducers if is_new else ():
            introduce(idx, name, table_idx, self.region_ids)
        return idx

    def _tell_of_kernel(self, journal: Journal, idx: int, name: str, table_idx: int) -> None:
        ids, first = self.region_ids, self._num_tables_told
        self._num_tables_told = max(first, table_idx + 1)
        for each in range(first, table_idx + 1):
            journal.say(journals.Table(ids.table(each)))
        journal.say(journals.Kernel(name, ids.table_as_merged(table_idx), idx))

    def _room_for(self, number: int) -> tuple[int, memoryview]:
        """Where the row of launch `number` lies."""
        with self._adding_rows:
            segment, row = divmod(number, NUM_ROWS)
            self.first_launch_s = self.first_launch_s or time.monotonic()
            for first, rows in self._segments:
                if first == segment * NUM_ROWS:
                    return row, rows
            rows = (
                memoryview(bytearray(ROWS_BYTES))
                if self.ledger is None
                else self.ledger.rows(segment)
            )
            self._latest = segment * NUM_ROWS, rows
            self._segments.append(self._latest)
            return row, rows
