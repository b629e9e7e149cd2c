"""What a capture says about itself: the structs of `manifest.json` and of the files that it is made of.

Plain data. JSON is decoded into them with types checked and nothing evaluated; reading and writing is in directory.py.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kprof.regions import RegionTable

FORMAT_VERSION: Final = 1


class Launch(msgspec.Struct, frozen=True):
    """One kernel launch. `launch` is unique within the rank; `ordinal` counts the launches of this kernel, from 0."""

    launch: int
    kernel: str
    ordinal: int
    num_blocks: int = 0
    threads_per_block: int = 0


class ClockInfo(msgspec.Struct, frozen=True):
    """The clock that a rank's device read."""

    source: str
    ticks_per_second: float
    step_ns: float


class CycleClock(msgspec.Struct, frozen=True):
    """The processors' cycle counters, where kernels recorded with them, as put on the rank's clock.

    `error_ns` is how far any anchor lies from the fitted line: what a start may be wrong by.
    """

    cycles_per_second: float
    error_ns: float


class ProbeCost(msgspec.Struct, frozen=True):
    """What recording costs on this device, measured when the recorder was created.

    `pair_ns` is what a profile_start and profile_stop add to a track; `empty_span_ns` is what a span around nothing
    shows. Medians over `num_pairs` pairs of each of `num_tracks` tracks that record at once.
    """

    pair_ns: float
    empty_span_ns: float
    num_pairs: int
    num_tracks: int
    cycles_per_second: float
    took_ms: float = 0.0


class ArenaUse(msgspec.Struct, frozen=True):
    """How full the arena became. `needed_bytes` is the size that would have held everything."""

    size_bytes: int
    used_bytes: int
    needed_bytes: int


class EventCounts(msgspec.Struct, frozen=True):
    """What was recorded and what was not. `recorded + dropped` is what the kernels emitted."""

    recorded: int = 0
    dropped: int = 0
    open: int = 0
    saturated: int = 0
    clamped: int = 0
    unknown_region: int = 0
    torn_chunks: int = 0


class RegionLosses(msgspec.Struct, frozen=True):
    """Records of one region and rank that did not fit the arena or say less than they should.

    `region` is "a or b" where launches with different region tables dropped records of one id.
    """

    region: str
    open: int = 0
    saturated: int = 0
    clamped: int = 0
    unknown_region: int = 0
    dropped: int = 0


class RankInfo(msgspec.Struct, frozen=True):
    """One rank of a recording, as its recorder saw itself.

    `num_cores` are the CPU cores that it may run on, `num_processors` the SMs (CUs) of its GPU; 0 where not known.
    """

    rank: int
    host: str = ""
    pid: int = 0
    target: str = ""
    device: str = ""
    arch: str = ""
    num_cores: int = 0
    num_processors: int = 0
    clock: ClockInfo = ClockInfo("unknown", 1e9, 1.0)
    arena: ArenaUse = ArenaUse(0, 0, 0)
    counts: EventCounts = EventCounts()
    regions: RegionTable = RegionTable()
    launches: tuple[Launch, ...] = ()
    notes: tuple[str, ...] = ()
    losses: tuple[RegionLosses, ...] = ()
    probe: ProbeCost | None = None
    cycle_clock: CycleClock | None = None


class ClockSegment(msgspec.Struct, frozen=True):
    """From local time `from_ns` on: `aligned = local + offset_ns + drift_ppm * 1e-6 * (local - from_ns)`."""

    from_ns: int
    offset_ns: float
    drift_ppm: float = 0.0


class RankAlignment(msgspec.Struct, frozen=True):
    """How one rank's clock maps onto the reference rank's; the true value lies within `bound_ns`.

    `bound_ns` rests on what kprof.clocks.alignment assumes, `rigorous_bound_ns` (0: not measured) on none.
    """

    rank: int
    segments: tuple[ClockSegment, ...]
    bound_ns: float
    rigorous_bound_ns: float = 0.0

    def correction_ns(self, local_ns: int) -> float:
        """What to add to this rank's clock at `local_ns` to get the reference rank's."""
        earlier = [segment for segment in self.segments if segment.from_ns <= local_ns]
        segment = earlier[-1] if earlier else self.segments[0]
        return segment.offset_ns + segment.drift_ppm * 1e-6 * (local_ns - segment.from_ns)


class PairClock(msgspec.Struct, frozen=True):
    """What is known about the clocks of two ranks: b's minus a's at the first calibration, and its drift.

    A time difference between the two ranks holds within `bound_ns` all through the recording, within
    `rigorous_bound_ns` whatever the link does. `residue_ns` says how far the pair's triangles were from closing at
    worst; None where there are none.
    """

    a: int
    b: int
    offset_ns: float
    drift_ppm: float
    bound_ns: float
    rigorous_bound_ns: float
    num_rounds: int
    num_calibrations: int
    method: str
    round_trip_ns: float = 0.0
    residue_ns: float | None = None


class Alignment(msgspec.Struct, frozen=True):
    """One clock for all ranks. `method` is a name for people: "shared-memory ping-pong", "peer ping-pong"."""

    method: str
    reference_rank: int
    ranks: tuple[RankAlignment, ...]
    num_rounds: int = 0
    pairs: tuple[PairClock, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def widest_bound_ns(self) -> float:
        """The error bound of a time difference between whichever two ranks; of one rank, against itself, 0."""
        if self.pairs:
            return max(pair.bound_ns for pair in self.pairs)
        # Bounds against the reference add up.
        return sum(sorted(entry.bound_ns for entry in self.ranks)[-2:])

    def bound_between_ns(self, a: int, b: int) -> float:
        """The error bound of a time difference between two ranks."""
        if a == b:
            return 0.0
        for pair in self.pairs:
            if {pair.a, pair.b} == {a, b}:
                return pair.bound_ns
        bounds = {entry.rank: entry.bound_ns for entry in self.ranks}
        return bounds[a] + bounds[b]


class KernelOverhead(msgspec.Struct, frozen=True):
    """One kernel in runs with recording off and on: median us from its launch to the next, one value for each run."""

    kernel: str
    num_launches: int
    off_us: tuple[float, ...]
    on_us: tuple[float, ...]


class Overhead(msgspec.Struct, frozen=True):
    """What recording did to the workload: `percent` is uncertain by `spread_percent`, the distance of equal runs."""

    kernels: tuple[KernelOverhead, ...]

    @property
    def percent(self) -> float:
        """How much longer all launches take together."""
        off, on = self._totals_us("off_us"), self._totals_us("on_us")
        return 100 * (sum(on) / len(on) / (sum(off) / len(off)) - 1)

    @property
    def spread_percent(self) -> float:
        """How far two runs that should be equal lie apart, the worse of off and on."""
        off, on = self._totals_us("off_us"), self._totals_us("on_us")
        return 100 * max(max(us) - min(us) for us in (off, on)) / (sum(off) / len(off))

    def _totals_us(self, name: str) -> list[float]:
        """Of each run: the medians of all kernels, as often as they were launched."""
        runs = zip(*(getattr(entry, name) for entry in self.kernels), strict=True)
        counts = [entry.num_launches for entry in self.kernels]
        return [sum(n * us for n, us in zip(counts, run, strict=True)) for run in runs]


class RankStarted(msgspec.Struct, frozen=True):
    """Left behind by a recorder when it is created."""

    rank: int
    world_size: int
    host: str
    pid: int


class Manifest(msgspec.Struct, frozen=True):
    """Everything about a recording but its events."""

    format_version: int
    kprof_version: str
    command: tuple[str, ...]
    created_utc: str
    world_size: int
    exit_code: int | None
    duration_s: float
    ranks: tuple[RankInfo, ...]
    missing_ranks: tuple[int, ...] = ()
    alignment: Alignment | None = None
    alignment_note: str = ""
    overhead: Overhead | None = None
    overhead_note: str = ""

    @property
    def needed_arena_size(self) -> str:
        """The `--arena-size` that would have held what was dropped, too; empty where nothing was, or none says so."""
        if not any(info.counts.dropped for info in self.ranks):
            return ""
        needed = max((info.arena.needed_bytes for info in self.ranks), default=0)
        return f"{-(-needed >> 20)}MiB" if needed else ""

    @property
    def is_on_one_clock(self) -> bool:
        """Whether times of different ranks can be compared, or there is one rank only."""
        return self.alignment is not None or len(self.ranks) < 2
