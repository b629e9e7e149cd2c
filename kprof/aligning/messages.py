"""What the events of a capture say about its clocks: a wait ends no earlier than its send began,
and nobody leaves a collective before all have entered it.

Which events belong together is known without clocks: sends and waits by kprof.trace.flows, and
collectives by their name, their launch and their order in a track. A launch is itself a collective
where its kernel has the name.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kprof.capture.database import sql_text
from kprof.capture.directory import EVENT_OPEN, Capture
from kprof.clocks.limits import Limits, RankClock
from kprof.on_use import pd
from kprof.trace import Trace
from kprof.trace.flows.ends import flow_pairs

# Kernels in which every rank waits for all. A send or a broadcast says less.
COLLECTIVES: Final = tuple(
    f"{library}*Kernel_{name}*"
    for library in ("nccl", "rccl")
    for name in ("AllReduce", "AllGather", "ReduceScatter", "AllToAll")
)
# With more ranks, a collective limits a rank against so many only: those at a distance of 1, 2, 4.
_ALL_PAIRS_OF: Final = 64


class Messages:
    """The limits that the events of a capture give, on the clocks of its ranks."""

    def __init__(self, capture: Capture) -> None:
        unaligned = msgspec.structs.replace(capture.manifest, alignment=None)
        self._trace = Trace.open(
            Capture(capture.path, unaligned, capture.checksums, capture.left_out)
        )
        self._trace.require_events()
        self.notes: list[str] = []

    def clocks(self) -> dict[int, RankClock]:
        """The clock of every rank with events. The unit of an imported one is what all its times
        are multiples of."""
        _, rows = self._trace.rows(
            "SELECT rank, min(start_ns), max(start_ns + duration_ns) FROM raw_events GROUP BY rank"
        )
        ends = {rank: (first, last) for rank, first, last in rows}
        found = {}
        for info in self._trace.manifest.ranks:
            if info.rank in ends:
                step_ns = info.clock.step_ns
                if info.target == "imported":
                    step_ns = self._step_ns(info.rank)
                error_ns = info.cycle_clock.error_ns if info.cycle_clock else 0.0
                found[info.rank] = RankClock(*ends[info.rank], step_ns, error_ns)
        return found

    def _step_ns(self, rank: int) -> float:
        query = f"SELECT start_ns, duration_ns FROM raw_events WHERE rank = {rank}"
        start_ns, duration_ns = self._trace.arrays(query).values()
        step_ns = int(np.gcd.reduce(np.r_[start_ns - start_ns[0], duration_ns]))
        self.notes.append(f"rank {rank}: all its times are multiples of {max(1, step_ns)} ns")
        return float(max(1, step_ns))

    def of_flows(self) -> list[Limits]:
        """From sends and the waits that they released on another rank."""
        found = []
        for table in flow_pairs(self._trace, self._trace.flow_sides):
            columns = ("src", "dst", "send_start_ns", "wait_end_ns", "wait_event_id")
            src, dst, *times = (table[name] for name in columns)
            for before, after in np.unique(np.stack([src, dst])[:, src != dst], axis=1).T.tolist():
                rows = (src == before) & (dst == after)
                found.append(Limits(before, after, *(each[rows] for each in times)))
        return found

    def of_collectives(self, patterns: Sequence[str]) -> list[Limits]:
        """From events and launches with a name like one of `patterns` (with wildcards)."""
        regions = [each.name for each in self._trace.regions.regions]
        kernels = {each.kernel for info in self._trace.manifest.ranks for each in info.launches}
        found = []
        for column, names in (("region", regions), ("kernel", sorted(kernels))):
            for name in names:
                if any(fnmatch.fnmatchcase(name.lower(), each.lower()) for each in patterns):
                    found += self._of_collective(column, name)
        return found

    def _of_collective(self, column: str, name: str) -> list[Limits]:
        calls = self._calls(column, name)
        counts = Counter(calls["rank"])
        if len({*counts.values()}) > 1:
            (least, few), (most, many) = counts.most_common()[-1], counts.most_common(1)[0]
            self.notes.append(
                f"{name} is not used: rank {least} has {few:,} calls of it and rank {most} {many:,}"
            )
            return []
        keys = ["kernel", "ordinal", "nth"]
        columns = ["begin_ns", "end_ns", "event_id"]
        by_rank: dict[int, NDArray[np.int64]] = {
            rank: calls[calls["rank"] == rank].sort_values(keys)[columns].to_numpy(np.int64).T
            for rank in sorted(counts)
        }
        return [Limits(a, b, by_rank[a][0], *by_rank[b][1:]) for a, b in _partners([*by_rank])]

    def _calls(self, column: str, name: str) -> pd.DataFrame:
        """When every rank entered and left each call: its earliest start and its latest end."""
        nth = "row_number() OVER (PARTITION BY rank, launch, block, warp ORDER BY start_ns)"
        return self._trace.frame(
            f"""SELECT rank, kernel, ordinal, nth, min(start_ns) AS begin_ns,
                max(end_ns) AS end_ns, arg_max(event_id, end_ns) AS event_id
            FROM (SELECT *, {nth if column == "region" else "0"} AS nth FROM events
                WHERE {column} = {sql_text(name)} AND flags & {EVENT_OPEN} = 0)
            GROUP BY rank, kernel, ordinal, nth"""
        )

    def names_of(self, event_ids: Sequence[int]) -> list[str]:
        """What events are called, for a sentence."""
        rows = self._trace.frame(
            "SELECT rank, region, kernel, ordinal, block FROM events "
            f"WHERE event_id IN ({', '.join(map(str, event_ids)) or 'NULL'}) ORDER BY rank"
        )
        return [
            f"{row.region} of rank {row.rank} in block {row.block} of {row.kernel} {row.ordinal}"
            for row in rows.itertuples()
        ]


def _partners(ranks: Sequence[int]) -> Iterator[tuple[int, int]]:
    count = len(ranks)
    distances = [*range(1, count)]
    if count > _ALL_PAIRS_OF:
        powers = [1 << i for i in range(count.bit_length()) if 1 << i < count]
        distances = [*powers, *(count - each for each in powers)]
    for i, rank in enumerate(ranks):
        for distance in distances:
            yield rank, ranks[(i + distance) % count]
