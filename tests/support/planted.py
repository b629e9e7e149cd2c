"""Synthetic runs of an all-to-all with a known cause of stalls, to test the analyses.

A small discrete simulation: ranks send tokens to each other, block b receives from source b %
ranks, works on the tokens and reduces. All times are simulated nanoseconds, so the true cause is
known.

    trace = simulate(Plant(num_ranks=8, tokens_of={3: 3.0}))      # rank 3 sends three times the tokens
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kprof.regions import RegionTable, parse_regions
from kprof.trace import Trace
from synthetic import TraceBuilder, events_of, trace_of

REGIONS_TEXT: Final = """
REGION(R_COUNT,       "dispatch/count",        compute)
REGION(R_SEND,        "dispatch/send",         send,    peer:8, slot:24)
REGION(R_WAIT_TOKEN,  "dispatch/wait-token",   wait,    peer:8, slot:24)
REGION(R_COPY,        "dispatch/copy",         compute)
REGION(R_LOCK,        "dispatch/lock",         sync)
REGION(R_ADD,         "dispatch/add",          compute)
REGION(R_BARRIER,     "barrier",               sync)
REGION(R_EXPERT,      "expert",                compute)
FLOW(R_SEND, R_WAIT_TOKEN)
"""


@dataclass(frozen=True)
class Plant:
    """A run and what is wrong with it; by default nothing. Factors are relative, times in ns."""

    num_ranks: int = 8
    num_blocks: int = 16
    num_launches: int = 2
    tokens_per_pair: int = 8
    seed: int = 0
    noise: float = 0.05
    clock_error_ns: float = 0.0
    tokens_of: Mapping[int, float] = field(default_factory=dict)
    speed_of: Mapping[int, float] = field(default_factory=dict)
    start_late_ns: Mapping[int, int] = field(default_factory=dict)
    send_late_ns: Mapping[int, int] = field(default_factory=dict)
    transfer_ns: int = 500
    slow_link: tuple[int, int, int] | None = None
    has_barrier: bool = False
    barrier_late_ns: Mapping[int, int] = field(default_factory=dict)
    slow_blocks: Mapping[tuple[int, int], float] = field(default_factory=dict)
    heavy_blocks: Mapping[tuple[int, int], float] = field(default_factory=dict)
    lock_hold_ns: int = 0
    dropped: Mapping[int, int] = field(default_factory=dict)
    is_aligned: bool = True


# Runs in which others wait for one rank, and that rank.
CULPRITS: Final = {
    "items": (Plant(tokens_of={3: 3.0}, tokens_per_pair=12), 3),
    "late-sends": (Plant(send_late_ns={5: 9000}), 5),
    "items-and-late-sends": (Plant(tokens_of={3: 3.0}, send_late_ns={3: 9000}), 3),
    "slow": (Plant(speed_of={6: 3.0}), 6),
    "late-start": (Plant(start_late_ns={2: 20_000}), 2),
    "late-at-a-barrier": (Plant(has_barrier=True, barrier_late_ns={1: 15_000}), 1),
    "late-start-and-barrier": (Plant(start_late_ns={7: 20_000}, has_barrier=True), 7),
    "slow-link": (Plant(slow_link=(4, 0, 30_000)), 4),
    "four-ranks": (Plant(num_ranks=4, send_late_ns={0: 9000}), 0),
    "many-ranks": (Plant(num_ranks=24, num_blocks=24, send_late_ns={17: 9000}), 17),
}

SEND_NS: Final = 400
COPY_NS: Final = 700
EXPERT_NS: Final = 6000
COUNT_NS: Final = 1500


def simulate(plant: Plant) -> Trace:
    """The trace of the simulated run."""
    return _Simulation(plant).run()


class _Simulation:
    def __init__(self, plant: Plant) -> None:
        self.plant = plant
        self.random = np.random.default_rng(plant.seed)
        self.regions: RegionTable = parse_regions(REGIONS_TEXT)
        self.ids = {region.name: region.id for region in self.regions.regions}
        self.rows: list[tuple[int, ...]] = []
        self.free = np.zeros((plant.num_ranks, plant.num_blocks), dtype=np.int64)
        self.launch = 0
        worst = plant.clock_error_ns
        self.offsets = self.random.uniform(-worst, worst, plant.num_ranks)
        self.offsets[0] = 0.0

    def run(self) -> Trace:
        plant = self.plant
        start = 1000
        for launch in range(plant.num_launches):
            self.launch = launch
            jitter = self.random.integers(0, 300, plant.num_ranks)
            for rank in range(plant.num_ranks):
                self.free[rank] = start + jitter[rank] + plant.start_late_ns.get(rank, 0)
            self._launch()
            start = int(self.free.max()) + 20_000
        return self._trace()

    def _launch(self) -> None:
        plant = self.plant
        counts = self._token_counts()
        for rank in range(plant.num_ranks):
            for block in range(plant.num_blocks):
                self._do(rank, block, "dispatch/count", COUNT_NS)
                self.free[rank, block] += plant.send_late_ns.get(rank, 0)
        arrivals = self._send(counts)
        self._receive(counts, arrivals)
        if plant.has_barrier:
            self._barrier()
        for rank in range(plant.num_ranks):
            for block in range(plant.num_blocks):
                self._do(rank, block, "expert", EXPERT_NS)

    def _token_counts(self) -> np.ndarray:
        """Tokens by (source, destination)."""
        plant = self.plant
        factors = np.array([plant.tokens_of.get(rank, 1.0) for rank in range(plant.num_ranks)])
        mean = plant.tokens_per_pair * factors[:, None] * np.ones(plant.num_ranks)
        spread = self.random.integers(-1, 2, mean.shape)
        return np.maximum(0, np.rint(mean).astype(int) + spread)

    def _send(self, counts: np.ndarray) -> dict[tuple[int, int, int], int]:
        """Every rank divides its tokens among its blocks, with destinations interleaved. Returns arrival times."""
        plant = self.plant
        arrivals = {}
        for src in range(plant.num_ranks):
            # Like a real kernel, start with the next rank, or all ranks would send to rank 0 first.
            tokens = [
                ((src + shift) % plant.num_ranks, slot)
                for slot in range(int(counts[src].max(initial=0)))
                for shift in range(plant.num_ranks)
                if slot < counts[src, (src + shift) % plant.num_ranks]
            ]
            for i, (dst, slot) in enumerate(tokens):
                block = i % plant.num_blocks
                self._do(src, block, "dispatch/send", SEND_NS, dst, slot)
                link = plant.slow_link
                on_its_way = link[2] if link and link[:2] == (src, dst) else plant.transfer_ns
                arrivals[src, dst, slot] = int(self.free[src, block]) + on_its_way
        return arrivals

    def _receive(self, counts: np.ndarray, arrivals: Mapping[tuple[int, int, int], int]) -> None:
        for rank in range(self.plant.num_ranks):
            lock_free = 0
            for block, items in self._assignments(rank, counts).items():
                for src, slot in items:
                    self._wait(rank, block, src, slot, arrivals[src, rank, slot])
                    self._do(rank, block, "dispatch/copy", COPY_NS)
            if self.plant.lock_hold_ns:
                for block in sorted(range(self.plant.num_blocks), key=lambda b: self.free[rank, b]):
                    lock_free = self._locked_add(rank, block, lock_free)

    def _assignments(self, rank: int, counts: np.ndarray) -> dict[int, list[tuple[int, int]]]:
        """Block b serves source b % ranks."""
        plant = self.plant
        blocks = range(plant.num_blocks)
        items: dict[int, list[tuple[int, int]]] = {block: [] for block in blocks}
        for src in range(plant.num_ranks):
            serving = [b for b in blocks if b % plant.num_ranks == src % len(blocks)] or list(
                blocks
            )
            for slot in range(int(counts[src, rank])):
                items[serving[slot % len(serving)]].append((src, slot))
        for (heavy_rank, block), factor in plant.heavy_blocks.items():
            if heavy_rank == rank:
                self._add_work(rank, block, int(len(items[block]) * (factor - 1)))
        return items

    def _add_work(self, rank: int, block: int, num_items: int) -> None:
        for _ in range(num_items):
            self._do(rank, block, "dispatch/copy", COPY_NS)

    def _wait(self, rank: int, block: int, src: int, slot: int, arrival: int) -> None:
        duration = max(40, arrival - int(self.free[rank, block]))
        self._record(rank, block, "dispatch/wait-token", duration, src, slot)

    def _locked_add(self, rank: int, block: int, lock_free: int) -> int:
        waiting = max(30, lock_free - int(self.free[rank, block]))
        self._record(rank, block, "dispatch/lock", waiting)
        self._do(rank, block, "dispatch/add", self.plant.lock_hold_ns)
        return int(self.free[rank, block])

    def _barrier(self) -> None:
        """A barrier of all ranks. A rank may be late because of work that no region covers."""
        for rank, late in self.plant.barrier_late_ns.items():
            self.free[rank] += late
        leave = int(self.free.max()) + 200
        for rank in range(self.plant.num_ranks):
            for block in range(self.plant.num_blocks):
                self._record(rank, block, "barrier", leave - int(self.free[rank, block]))

    def _do(
        self,
        rank: int,
        block: int,
        region: str,
        mean_ns: int,
        peer: int = 0,
        slot: int = 0,
    ) -> None:
        noise = abs(1 + self.plant.noise * self.random.standard_normal())
        slowness = self.plant.speed_of.get(rank, 1.0) * self.plant.slow_blocks.get(
            (rank, block), 1.0
        )
        self._record(rank, block, region, int(mean_ns * noise * slowness), peer, slot)

    def _record(
        self, rank: int, block: int, region: str, duration_ns: int, peer: int = 0, slot: int = 0
    ) -> None:
        start = int(self.free[rank, block])
        local = start + round(float(self.offsets[rank]))
        payload = peer | slot << 8
        self.rows.append(
            (rank, self.launch, block, -1, self.ids[region], 0, local, duration_ns, payload, block)
        )
        self.free[rank, block] = start + duration_ns

    def _trace(self) -> Trace:
        plant = self.plant
        builder = TraceBuilder(
            self.regions,
            plant.num_ranks,
            bound_ns=max(1.0, plant.clock_error_ns),
            is_aligned=plant.is_aligned,
        )
        for launch in range(plant.num_launches):
            builder.launch(launch, "all_to_all", plant.num_blocks)
        return trace_of(
            builder, events_of(np.array(self.rows, dtype=np.int64).reshape(-1, 10).T), plant.dropped
        )
