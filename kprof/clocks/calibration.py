"""Calibrates clocks: ping-pong kernels between the ranks of a host, host clocks between hosts.

Two GPUs that are alone on their host are compared through it, too: nothing else checks their bound.

On GPUs all pairs of a host play with 128 lanes each, every rank in one pair at a time. On the CPU
target ranks share cores, so the first rank plays with one rank after the other (all pairs play
where every rank can have a core).
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final

import numpy as np
from msgspec.structs import replace

from kprof.capture.manifest import ClockInfo
from kprof.clocks.corner import Corner
from kprof.clocks.hosts import HostClocks
from kprof.clocks.offset import (
    OffsetSample,
    Pair,
    sample_from_readings,
    step_from_readings,
    ticks_to_ns,
)
from kprof.devices.build import BuildOptions, error_text, load_library
from kprof.devices.groups import Group, PartOfGroup
from kprof.devices.memory import allocate
from kprof.devices.symmetric import SymmetricHeap
from kprof.devices.targets import Target, record_of, target_of_device
from kprof.errors import ClockError

_SOURCE: Final = Path(__file__).parents[1] / "kernels" / "clock_pingpong.hip"
_NUM_STEP_READINGS: Final = 4096
_TIMEOUT_S: Final = 5
# Half a round trip between two cores or two GPUs of a host is below this.
_GOOD_BOUND_NS: Final = 2000
_MAX_PASSES: Final = 16


@dataclass(frozen=True)
class Effort:
    """How much one pair plays: lanes at the same time, and rounds of each; and rounds with its
    host."""

    num_lanes: int
    num_rounds: int
    num_shown: int


# Lanes of the CPU target would share one core. Of many on a GPU, some take the shortest way
# (kprof.clocks.offset).
_CPU_EFFORT: Final = Effort(1, 300, 50)
_GPU_EFFORT: Final = Effort(128, 32, 1024)


def effort_of(target: Target) -> Effort:
    """How much a pair plays on a target."""
    return _GPU_EFFORT if record_of(target).is_gpu else _CPU_EFFORT


def load_calibration(target: Target) -> ctypes.CDLL:
    """The compiled ping-pong kernels of one target."""
    library = load_library(_SOURCE, BuildOptions(target))
    pointer, word = ctypes.c_void_p, ctypes.c_uint32
    library.kprof_pingpong.argtypes = [
        *(pointer, pointer, pointer),
        *(word, word, word, ctypes.c_int, ctypes.c_uint64, pointer),
    ]
    long = ctypes.c_uint64
    library.kprof_watch.argtypes = [pointer, word, pointer, word, word, long, pointer]
    library.kprof_show.argtypes = [pointer, pointer, word, word, long]
    library.kprof_clock_steps.argtypes = [pointer, word, pointer]
    library.kprof_flag_stride_bytes.restype = word
    library.kprof_ticks_per_second.restype = ctypes.c_uint64
    return library


def measure_clock(device: str) -> ClockInfo:
    """The clock that kernels on this device read: its name, rate and observed step."""
    target = target_of_device(device)
    library = load_calibration(target)
    ticks_per_second = float(library.kprof_ticks_per_second())
    memory = allocate(_NUM_STEP_READINGS * 8, device)
    _check(library, library.kprof_clock_steps(memory.address, _NUM_STEP_READINGS, None))
    readings = memory.read(0, memory.size_bytes).view(np.uint64)
    return ClockInfo(
        record_of(target).clock, ticks_per_second, step_from_readings(readings, ticks_per_second)
    )


def all_pairs(world_size: int) -> list[list[Pair]]:
    """All pairs of ranks, in turns of pairs that share no rank (a tournament's circle method)."""
    players = list(range(world_size + world_size % 2))
    turns = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        pairs = zip(players[:half], reversed(players[half:]), strict=True)
        real = [(min(pair), max(pair)) for pair in pairs if max(pair) < world_size]
        turns.append(sorted(real))
        players = [players[0], players[-1], *players[1:-1]]
    return turns


def star(world_size: int) -> list[list[Pair]]:
    """The first rank with every other, one pair a turn."""
    return [[(0, rank)] for rank in range(1, world_size)]


class Calibrator:
    """Calibrates all ranks of a group and keeps the samples. Creation is collective.

    `host` is the name of this rank's host; ranks of one host reach each other's memory. `turns_of`
    gives, for a number of ranks, the pairs that play in each turn. `has_corner`: whether the two
    ranks of a host compare themselves through it, too; by default GPUs do.
    """

    def __init__(
        self,
        group: Group,
        device: str,
        clock: ClockInfo,
        *,
        host: str | None = None,
        turns_of: Callable[[int], list[list[Pair]]] | None = None,
        has_corner: bool | None = None,
    ) -> None:
        target = target_of_device(device)
        hosts = group.all_gather(socket.gethostname() if host is None else host)
        ranks_of: dict[str, list[int]] = {}
        for rank, name in enumerate(hosts):
            ranks_of.setdefault(name, []).append(rank)
        members, neighbours = list(ranks_of.values()), ranks_of[hosts[group.rank]]
        # Ranks measure steps, and hosts have cores, of their own. All use one value of each: ranks
        # that planned other turns, or found other bounds, would wait for each other for ever.
        self._step_ns = max(group.all_gather(clock.step_ns))
        num_cores = min(group.all_gather(os.cpu_count() or 1))
        # Each turn has the pairs that play at the same time.
        self._turns = _merged_turns(members, turns_of or _turns_of(target, num_cores))
        self._group, self._ticks_per_second = group, clock.ticks_per_second
        self._effort = effort_of(target)
        self._library = load_calibration(target)
        # Flags in symmetric memory and the round number are kept between calibrations.
        self._flag_bytes = self._library.kprof_flag_stride_bytes() * self._effort.num_lanes
        part = PartOfGroup(group, neighbours)
        self._heap = SymmetricHeap(part, group.world_size * self._flag_bytes, device)
        self._bases = dict(zip(neighbours, self._heap.bases, strict=True))
        num_readings = self._effort.num_lanes * self._effort.num_rounds
        self._readings = allocate(num_readings * 16, device)
        self._next_round = 1
        self._hosts = HostClocks(
            group, tuple(ranks[0] for ranks in members), self._step_ns, self.read_clock_ns
        )
        self.corner = None
        if (record_of(target).is_gpu if has_corner is None else has_corner) and any(
            len(ranks) == 2 for ranks in members
        ):
            rate, num_shown = clock.ticks_per_second, self._effort.num_shown
            self.corner = Corner(group, members, device, self._library, rate, num_shown)
        self.method = f"{target.value} ping-pong"
        if len(members) > 1:
            self.method += f", host clocks between {len(members)} hosts"
        self.calibrations: list[dict[Pair, OffsetSample]] = []

    def run(self) -> None:
        """Calibrate once. Collective; raises ClockError when a rank does not answer."""
        samples = self._sample_pairs()
        if len(self._hosts.leaders) > 1:
            samples |= self._hosts.run()
        self.calibrations.append(samples)

    def read_clock_ns(self) -> int:
        """This rank's device clock, now."""
        _check(self._library, self._library.kprof_clock_steps(self._readings.address, 1, None))
        ticks = self._readings.read(0, 8).view(np.int64)
        return int(ticks_to_ns(ticks, self._ticks_per_second)[0])

    def _sample_pairs(self) -> dict[Pair, OffsetSample]:
        """One sample for every pair that plays. Collective; raises ClockError without an answer.

        Partners that never ran at the same time (more ranks than cores) play again.
        """
        samples: dict[Pair, OffsetSample] = {}
        played: dict[Pair, list[tuple[np.ndarray, np.ndarray]]] = {}
        pending = self._turns
        for _ in range(_MAX_PASSES):
            everyone = self._group.all_gather(self.play(pending))
            for pair in [pair for turn in pending for pair in turn]:
                played.setdefault(pair, []).append(
                    (everyone[pair[0]][pair], everyone[pair[1]][pair])
                )
                samples[pair] = self._sample(played[pair])
            # Every rank has the same readings and the same step, so every rank makes the same list.
            pending = [
                [pair for pair in turn if samples[pair].rigorous_bound_ns > _GOOD_BOUND_NS]
                for turn in pending
            ]
            pending = [turn for turn in pending if turn]
            if not pending:
                break
        others = self.corner.run() if self.corner else {}
        return {pair: replace(s, others=others.get(pair, ())) for pair, s in samples.items()}

    def _sample(self, games: list[tuple[np.ndarray, np.ndarray]]) -> OffsetSample:
        first, second = (np.concatenate(side) for side in zip(*games, strict=True))
        sample = sample_from_readings(first, second, self._step_ns)
        # A game that was played again does not add lanes.
        return replace(sample, num_lanes=self._effort.num_lanes)

    def play(self, turns: list[list[Pair]] | None = None) -> dict[Pair, np.ndarray]:
        """This rank's readings of its games (all, or of some turns), as `sample_from_readings`
        takes them. Collective: ranks that do not play wait in a barrier."""
        readings: dict[Pair, np.ndarray] = {}
        for turn in self._turns if turns is None else turns:
            self._group.barrier()
            for pair in turn:
                if self._group.rank in pair:
                    readings[pair] = self._play_with(pair)
        self._next_round += self._effort.num_rounds
        return readings

    def _play_with(self, pair: Pair) -> np.ndarray:
        """Rounds with one partner: (lanes, rounds, 2) int64 ns, this side's (seen, sent)."""
        is_first = self._group.rank == pair[0]
        peer = pair[1] if is_first else pair[0]
        self._readings.clear(0, self._readings.size_bytes)
        error = self._library.kprof_pingpong(
            self._bases[self._group.rank] + peer * self._flag_bytes,
            self._bases[peer] + self._group.rank * self._flag_bytes,
            self._readings.address,
            self._effort.num_lanes,
            self._effort.num_rounds,
            self._next_round,
            int(is_first),
            int(_TIMEOUT_S * self._ticks_per_second),
            None,
        )
        _check(self._library, error)
        ticks = self._readings.read(0, self._readings.size_bytes).view(np.int64)
        lanes = ticks.reshape(self._effort.num_lanes, self._effort.num_rounds, 2)
        return ticks_to_ns(lanes.copy(), self._ticks_per_second)


def _turns_of(target: Target, num_cores: int) -> Callable[[int], list[list[Pair]]]:
    def turns(world_size: int) -> list[list[Pair]]:
        has_cores = target is not Target.CPU or world_size <= num_cores
        return all_pairs(world_size) if has_cores else star(world_size)

    return turns


def _merged_turns(
    members: list[list[int]], turns_of: Callable[[int], list[list[Pair]]]
) -> list[list[Pair]]:
    """Hosts play at the same time, each among its own ranks."""
    per_host = [
        [[(ranks[a], ranks[b]) for a, b in turn] for turn in turns_of(len(ranks))]
        for ranks in members
    ]
    return [
        [pair for turn in turns for pair in turn] for turns in zip_longest(*per_host, fillvalue=[])
    ]


def _check(library: ctypes.CDLL, error: int) -> None:
    if error != 0:
        text = error_text(library, error)
        raise ClockError(f"the clock calibration kernel failed: {text}; run kprof doctor")
