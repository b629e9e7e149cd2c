"""What a capture says about itself: the structs of `manifest.json` and of the files that it is made
of.

Plain data. JSON is decoded into these structs with types and ranges checked; nothing is evaluated.
directory.py reads and writes it, checks.py compares fields. The ranges are far beyond any
recording: they keep later code from overflowing, and from working for hours because of one number
in a small file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kprof.capture.processes import Process
from kprof.regions import RegionTable

FORMAT_VERSION: Final = 1

# The most ranks that a recording may have: some tables have a column for each.
MAX_RANKS: Final = 1 << 14
INT32_MAX: Final = (1 << 31) - 1
MAX_COUNT: Final = 1 << 53
MAX_TEXT: Final = 1 << 18

Text = Annotated[str, Meta(max_length=MAX_TEXT)]
RankNumber = Annotated[int, Meta(ge=0, lt=MAX_RANKS)]
WorldSize = Annotated[int, Meta(ge=0, le=MAX_RANKS)]
Natural = Annotated[int, Meta(ge=0, le=INT32_MAX)]
ExitCode = Annotated[int, Meta(ge=-INT32_MAX, le=INT32_MAX)]
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Crc32 = Annotated[int, Meta(ge=0, lt=1 << 32)]
# Nanoseconds since 1970 fit until 2116, and the sum of two of them fits 64 bits.
Time = Annotated[int, Meta(ge=-(1 << 61), le=1 << 62)]
# A float that can be scaled, squared and added up.
Real = Annotated[float, Meta(ge=-1e18, le=1e18)]
Measure = Annotated[float, Meta(ge=0, le=1e18)]
Drift = Annotated[float, Meta(ge=-1e5, le=1e5)]
Offset = Annotated[float, Meta(ge=-4e18, le=4e18)]


class Launch(msgspec.Struct, frozen=True):
    """One launch. `launch` is unique in its rank.

    `ordinal` counts launches of this kernel, from 0. Each replay of a launch that a graph captured
    is a launch: `captured` is the number of the captured one (else -1), `replay` counts the replays
    before it, `stretch` how often that count started over because replays were lost. In a rank's
    own files all replays have the ordinal of the captured launch; the manifest numbers them.
    """

    launch: Natural
    kernel: Text
    ordinal: Natural
    num_blocks: Natural = 0
    threads_per_block: Natural = 0
    captured: Annotated[int, Meta(ge=-1, le=INT32_MAX)] = -1
    replay: Natural = 0
    stretch: Natural = 0


class KernelResources(msgspec.Struct, frozen=True):
    """What the compiler said of a kernel: registers of a thread, bytes of those that did not fit,
    bytes of shared memory of a block without what its launches add, threads of a block (0: those
    of its launches). A kernel with several versions, such as a template, is there several times.
    """

    kernel: Text
    registers: Natural
    spill_bytes: Natural
    shared_bytes: Natural
    threads: Natural = 0


class ClockInfo(msgspec.Struct, frozen=True):
    """The clock that a rank's device read."""

    source: Text
    ticks_per_second: Measure
    step_ns: Measure


class CycleClock(msgspec.Struct, frozen=True):
    """The processors' cycle counters, fitted to the rank's clock, where kernels recorded cycles.

    `error_ns` is the largest distance of an anchor from the fitted line: a start may be wrong by
    that much.
    """

    cycles_per_second: Measure
    error_ns: Measure


class ProbeCost(msgspec.Struct, frozen=True):
    """What recording costs on this device, measured when the recorder was created.

    `pair_ns` is what a profile_start and profile_stop add to a track; `empty_span_ns` is how long a
    span around nothing appears to take. Medians over `num_pairs` pairs on each of `num_tracks`
    tracks that record at once.
    """

    pair_ns: Real
    empty_span_ns: Real
    num_pairs: Count
    num_tracks: Count
    cycles_per_second: Measure
    took_ms: Measure = 0.0


class Ceilings(msgspec.Struct, frozen=True):
    """How fast this device moves data, as `kprof doctor --measure` found it; 0 where unknown.

    GB are 10^9 bytes; a byte that is copied counts once. `copy_gb_s` is a copy within the device's
    memory, `near_gb_s` one within the fastest memory that a block shares (a core's cache on the
    CPU), `peer_gb_s` a copy to the best peer.
    """

    copy_gb_s: Measure = 0.0
    near_gb_s: Measure = 0.0
    peer_gb_s: Measure = 0.0


class ArenaUse(msgspec.Struct, frozen=True):
    """How full the arena became. `needed_bytes` is the size that would have held everything."""

    size_bytes: Count
    used_bytes: Count
    needed_bytes: Count


class EventCounts(msgspec.Struct, frozen=True):
    """What was recorded and what was lost. Without damage, kernels emitted `recorded + dropped`.

    Damage is counted by what it hit: the arena's head, whole chunks (`stray_chunks` are of launches
    that never happened), single records. `unsplit_launches` were captured in graphs, and their
    replays cannot be told apart. `overwritten_runs` had a buffer with reserved chunks that another
    run had, too, so that records of one of them are lost: nobody knows how many. Whole
    calls are left out where events come faster than they are written: `left_out_launches` are
    theirs, without those in graphs.
    """

    recorded: Count = 0
    dropped: Count = 0
    open: Count = 0
    saturated: Count = 0
    clamped: Count = 0
    unknown_region: Count = 0
    torn_chunks: Count = 0
    stray_chunks: Count = 0
    torn_records: Count = 0
    damaged_heads: Count = 0
    unsplit_launches: Count = 0
    overwritten_runs: Count = 0
    left_out_calls: Count = 0
    left_out_launches: Count = 0


class RegionLosses(msgspec.Struct, frozen=True):
    """Records of one region and rank that did not fit the arena, or that hold less than they
    should.

    `region` is "a or b" where launches with different region tables dropped records of the same id.
    """

    region: Text
    open: Count = 0
    saturated: Count = 0
    clamped: Count = 0
    unknown_region: Count = 0
    dropped: Count = 0


class RankInfo(msgspec.Struct, frozen=True):
    """One rank of a recording, as its recorder saw it.

    `num_cores` is the number of CPU cores it may use, `num_processors` of its GPU's SMs (CUs).
    `nic` is the network interface nearest to its GPU, such as mlx5_3; empty where unknown.
    `ran_ns` and `waited_for_core_ns` are how long the thread that launches kernels of the CPU
    target ran, and how long it was ready to run while others had its core. 0 where unknown.
    """

    rank: RankNumber
    host: Text = ""
    pid: Natural = 0
    target: Text = ""
    device: Text = ""
    arch: Text = ""
    num_cores: Natural = 0
    num_processors: Natural = 0
    nic: Text = ""
    ran_ns: Count = 0
    waited_for_core_ns: Count = 0
    clock: ClockInfo = ClockInfo("unknown", 1e9, 1.0)
    arena: ArenaUse = ArenaUse(0, 0, 0)
    counts: EventCounts = EventCounts()
    regions: RegionTable = RegionTable()
    launches: tuple[Launch, ...] = ()
    # Of the kernels of these launches that are known.
    kernels: tuple[KernelResources, ...] = ()
    notes: tuple[Text, ...] = ()
    losses: tuple[RegionLosses, ...] = ()
    probe: ProbeCost | None = None
    cycle_clock: CycleClock | None = None
    ceilings: Ceilings | None = None
    # Why events after the last saved ones are missing; empty for a rank that ended properly.
    cut_short: Text = ""
    # The options that left out blocks or warps of its launches; empty where all were recorded.
    recorded_part: Text = ""
    # The options, and the schedule, that left out launches; empty where all were recorded.
    recorded_launches: Text = ""

    @property
    def is_recorded(self) -> bool:
        """Whether anything of this rank was recorded; `--ranks` leaves ranks out."""
        return bool(self.launches) or self.has_events

    @property
    def has_events(self) -> bool:
        """Whether there were events of this rank, recorded or dropped."""
        return bool(self.counts.recorded or self.counts.dropped)

    @property
    def cycles_per_second(self) -> float:
        """The rate of its processors when the recorder was created, 1e9 where unknown."""
        return self.probe.cycles_per_second if self.probe else 1e9


class ClockSegment(msgspec.Struct, frozen=True):
    """From local time `from_ns` on, aligned time is

    `local + offset_ns + drift_ppm * 1e-6 * (local - from_ns)`.
    """

    from_ns: Time
    offset_ns: Offset
    drift_ppm: Drift = 0.0


class RankAlignment(msgspec.Struct, frozen=True):
    """How one rank's clock maps onto the reference rank's; the true value lies within `bound_ns`.

    `bound_ns` needs the assumptions of kprof.clocks.alignment, `rigorous_bound_ns` (0: not
    measured) none.
    """

    rank: RankNumber
    segments: tuple[ClockSegment, ...]
    bound_ns: Measure
    rigorous_bound_ns: Measure = 0.0

    def correction_ns(self, local_ns: int) -> float:
        """What to add to this rank's clock at `local_ns` to get the reference rank's."""
        earlier = [segment for segment in self.segments if segment.from_ns <= local_ns]
        segment = earlier[-1] if earlier else self.segments[0]
        return segment.offset_ns + segment.drift_ppm * 1e-6 * (local_ns - segment.from_ns)


class PairClock(msgspec.Struct, frozen=True):
    """What is known about the clocks of two ranks: b's minus a's at the first calibration, and its
    drift.

    A time difference between the two ranks is right within `bound_ns` all through the recording,
    and within `rigorous_bound_ns` whatever the link does. `residue_ns` is the worst error of
    closure of the pair's triangles, None where it is in none. `others_ns` says by how much the
    offset is larger where it was measured on another path, by the path's name.
    """

    a: RankNumber
    b: RankNumber
    offset_ns: Offset
    drift_ppm: Drift
    bound_ns: Measure
    rigorous_bound_ns: Measure
    num_rounds: Count
    num_calibrations: Count
    method: Text
    round_trip_ns: Real = 0.0
    residue_ns: Real | None = None
    others_ns: Mapping[Text, Real] = {}

    @property
    def disagreement_ns(self) -> float:
        """How far the farthest of the other paths is from the ping-pong."""
        return max(map(abs, self.others_ns.values()), default=0.0)


class Alignment(msgspec.Struct, frozen=True):
    """One clock for all ranks. `method` is a name for people, such as "peer ping-pong"."""

    method: Text
    reference_rank: RankNumber
    ranks: tuple[RankAlignment, ...]
    num_rounds: Count = 0
    pairs: tuple[PairClock, ...] = ()
    notes: tuple[Text, ...] = ()

    @property
    def widest_bound_ns(self) -> float:
        """The error bound of a time difference between any two ranks; 0 where there is one."""
        if self.pairs:
            return max(pair.bound_ns for pair in self.pairs)
        # Bounds against the reference add up.
        return sum(sorted(entry.bound_ns for entry in self.ranks)[-2:])

    def bound_between_ns(self, a: int, b: int) -> float:
        """The error bound of a time difference between these two ranks."""
        if a == b:
            return 0.0
        for pair in self.pairs:
            if {pair.a, pair.b} == {a, b}:
                return pair.bound_ns
        bounds = {entry.rank: entry.bound_ns for entry in self.ranks}
        return bounds[a] + bounds[b]


class KernelOverhead(msgspec.Struct, frozen=True):
    """One kernel with recording off and on: median us from launch to launch, for each run."""

    kernel: Text
    num_launches: Count
    off_us: tuple[Measure, ...]
    on_us: tuple[Measure, ...]


class Overhead(msgspec.Struct, frozen=True):
    """What recording cost the workload: `percent`; equal runs differ by `spread_percent`."""

    kernels: tuple[KernelOverhead, ...]

    @property
    def percent(self) -> float:
        """How much longer all launches take together."""
        off, on = self._totals_us("off_us"), self._totals_us("on_us")
        return 100 * (sum(on) / len(on) / (sum(off) / len(off)) - 1)

    @property
    def spread_percent(self) -> float:
        """How far two runs that should be equal differ, the worse of off and on."""
        off, on = self._totals_us("off_us"), self._totals_us("on_us")
        return 100 * max(max(us) - min(us) for us in (off, on)) / (sum(off) / len(off))

    def _totals_us(self, name: str) -> list[float]:
        """For each run, the sum of the kernels' medians, weighted by their launches."""
        runs = zip(*(getattr(entry, name) for entry in self.kernels), strict=True)
        counts = [entry.num_launches for entry in self.kernels]
        return [sum(n * us for n, us in zip(counts, run, strict=True)) for run in runs]


class RankStarted(msgspec.Struct, frozen=True, tag="started"):
    """Left behind by a recorder when it is created: `namespace` and `start_ticks` as in Process."""

    rank: RankNumber
    world_size: WorldSize
    host: Text
    pid: Natural
    namespace: Count = 0
    start_ticks: Count = 0

    @property
    def process(self) -> Process:
        """The process of the recorder."""
        return Process(self.host, self.pid, self.namespace, self.start_ticks)


class HungCall(msgspec.Struct, frozen=True):
    """A call of a kernel in which blocks waited while nothing moved."""

    kernel: Text
    ordinal: Natural


class HangNote(msgspec.Struct, frozen=True):
    """The run hung: nothing had moved for `idle_s` when that was reported. hang.json has more.

    `sentence` names the root, `kind` what it is. `num_open` waits are among the events as open
    spans: no rank has recorded their end. `shown` are (rank, block) of waits that show it.
    """

    idle_s: Measure
    sentence: Text
    kind: Text = ""
    calls: tuple[HungCall, ...] = ()
    num_open: Count = 0
    shown: tuple[tuple[RankNumber, Natural], ...] = ()


class FileChecksum(msgspec.Struct, frozen=True):
    """A file of the capture when the capture was finished."""

    name: Text
    size_bytes: Count
    crc32: Crc32


class Manifest(msgspec.Struct, frozen=True):
    """Everything about a recording but its events."""

    format_version: int
    kprof_version: Text
    command: tuple[Text, ...]
    created_utc: Text
    world_size: WorldSize
    exit_code: ExitCode | None
    duration_s: Real
    ranks: tuple[RankInfo, ...]
    missing_ranks: tuple[RankNumber, ...] = ()
    alignment: Alignment | None = None
    alignment_note: Text = ""
    # Of some of the ranks, where nothing bounds the clocks of the others.
    partial_alignment: Alignment | None = None
    overhead: Overhead | None = None
    overhead_note: Text = ""
    # How many ranks kprof started with torchrun (`--nproc`); 0: it ran the command once, as it is.
    num_procs: WorldSize = 0
    # What an import had to guess, in sentences.
    guesses: tuple[Text, ...] = ()
    # How many launches each of `missing_ranks` is known to have made.
    missing_launches: tuple[Count, ...] = ()
    # Messages of processes that could not record, or lost what they had recorded.
    messages: tuple[Text, ...] = ()
    hang: HangNote | None = None
    # Empty and None in captures of older versions (kprof.capture.checksums).
    files: tuple[FileChecksum, ...] = ()
    checksum: Crc32 | None = None

    @property
    def needed_arena_size(self) -> str:
        """The `--arena-size` that would have held all.

        Empty where nothing was dropped, or none would.
        """
        if not any(info.counts.dropped for info in self.ranks):
            return ""
        needed = max((info.arena.needed_bytes for info in self.ranks), default=0)
        return f"{-(-needed >> 20)}MiB" if needed else ""

    @property
    def is_on_one_clock(self) -> bool:
        """Whether times of different ranks can be compared, or there is one rank only."""
        return self.alignment is not None or len(self.ranks) < 2

    def with_events_found(self, num_events: Mapping[int, int]) -> Manifest:
        """This manifest with the number of events that each rank's file holds.

        A message names each rank whose count was another one: nobody knows what is wrong with it.
        """
        ranks, said = [], list(self.messages)
        for info in self.ranks:
            found, counted = num_events[info.rank], info.counts.recorded
            if found != counted:
                said.append(
                    f"rank {info.rank}: its file holds {found:,} events where the manifest counts "
                    f"{counted:,}, so events may be missing or come from another run"
                )
                counts = msgspec.structs.replace(info.counts, recorded=found)
                info = msgspec.structs.replace(info, counts=counts)
            ranks.append(info)
        return msgspec.structs.replace(self, ranks=tuple(ranks), messages=tuple(said))

    def without_ranks(self, left_out: Mapping[int, str]) -> Manifest:
        """This manifest without ranks whose files cannot be read, with a message why."""
        return msgspec.structs.replace(
            self,
            ranks=tuple(info for info in self.ranks if info.rank not in left_out),
            missing_ranks=(*self.missing_ranks, *left_out),
            messages=(*self.messages, *(f"without rank {n}: {why}" for n, why in left_out.items())),
        )

    def for_ranks(self, ranks: Collection[int] | None) -> Manifest:
        """This manifest on one clock if all of these ranks are on one."""
        partial = self.partial_alignment
        if self.alignment or not partial or ranks is None:
            return self
        if not {entry.rank for entry in partial.ranks} >= {*ranks}:
            return self
        return msgspec.structs.replace(self, alignment=partial)

    def without_partial_alignment(self) -> Manifest:
        """This manifest without an alignment that leaves one of its ranks out."""
        if self.alignment is None:
            return self
        aligned = {entry.rank for entry in self.alignment.ranks}
        left_out = [info.rank for info in self.ranks if info.rank not in aligned]
        if not left_out:
            return self
        note = f"the calibrations left out rank {left_out[0]}"
        return msgspec.structs.replace(self, alignment=None, alignment_note=note)


# Under the lock of this import: ranks may be threads, and msgspec crashes when two of them use a
# type for the first time at the same moment.
for _kind in (Manifest, RankInfo, RankStarted, Alignment):
    msgspec.json.Decoder(_kind)
