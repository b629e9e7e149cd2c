"""The third corner of two GPUs: their host, by which their clocks are compared on other paths.

docs/clocks.md explains both paths ("Two GPUs"). In every round, each gives an interval in which the
offset lies, whatever the links do. Half of the rounds, those with the narrowest, count with their
middles. That is right where reads and writes of the two devices take as long; alignment.py says
what is made of it where they do not.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kprof.clocks.offset import MIN_VALID_ROUNDS, OtherPath, Pair, ticks_to_ns
from kprof.devices import gpu
from kprof.devices.build import error_text
from kprof.devices.cache import complain
from kprof.devices.groups import Group
from kprof.devices.memory import HostMemory, RegisteredMemory, allocate
from kprof.errors import KprofError
from kprof.private import heap_file, opened

_TIMEOUT_S: Final = 1
_SIGHT_BYTES: Final = 24
_FAILURES: Final = (OSError, RuntimeError, KprofError)

Ints = NDArray[np.int64]


class Seen(NamedTuple):
    """What one side noted in ns, by round: of a device (missed, hit, answered), where missed is 0
    without a miss; of the host (stored, first answer, second answer)."""

    device: Ints
    host: Ints | None


class Corner:
    """The words over which the two ranks of a host are compared. Creation and `play` are collective
    over all ranks of all hosts; hosts with another number of ranks only take part in that.

    What fails, on any rank, is said once, and from then on nobody plays.
    """

    def __init__(
        self,
        group: Group,
        hosts: list[list[int]],
        device: str,
        library: ctypes.CDLL,
        ticks_per_second: float,
        num_rounds: int,
    ) -> None:
        self._group, self._library = group, library
        self._ticks_per_second, self._num_rounds = ticks_per_second, num_rounds
        self._next_round = 1
        self._fault = name = fault = ""
        twos: list[Pair] = [(ranks[0], ranks[1]) for ranks in hosts if len(ranks) == 2]
        with ExitStack() as stack:
            try:
                if any(group.rank == first for first, _ in twos):
                    file = heap_file(f"corner-{os.getpid()}-{id(self):x}", mmap.PAGESIZE)
                    name = str(stack.enter_context(file))
            except OSError as error:
                fault = _describe(error)
            names, gpus = zip(*group.all_gather((name, _gpu_address(device))), strict=True)
            # Ranks that share a GPU share its clock, and may never run at the same time.
            self._pairs = [
                pair for pair in twos if not gpus[pair[0]] or len({gpus[r] for r in pair}) > 1
            ]
            self._pair = next((pair for pair in self._pairs if group.rank in pair), None)
            try:
                if self._pair and not fault:
                    self._map(Path(names[self._pair[0]]), device)
            except _FAILURES as error:
                fault = _describe(error)
            self._agree(group.all_gather(fault))

    def _map(self, path: Path, device: str) -> None:
        with opened(path, os.O_RDWR) as file:
            content = np.frombuffer(mmap.mmap(file, mmap.PAGESIZE), dtype=np.uint8)
        is_gpu = device != "cpu"
        self._words = RegisteredMemory.of(content, device) if is_gpu else HostMemory(content)
        self._host_address = content.ctypes.data
        self._sights = allocate(self._num_rounds * _SIGHT_BYTES, device)

    def _agree(self, faults: list[str]) -> None:
        self._fault = next(filter(None, faults), "")
        if self._fault and self._group.rank == 0:
            complain(
                "the clocks of two GPUs are not compared through their host, so the bound between "
                f"them is half a round trip: {self._fault}"
            )

    def play(self) -> dict[int, Seen]:
        """One game of all pairs: what their ranks noted, on every rank; nothing after a failure."""
        if self._fault or not self._pairs:
            return {}
        seen, fault = None, ""
        try:
            seen = self._play() if self._pair else None
        except _FAILURES as error:
            fault = _describe(error)
        everyone = self._group.all_gather((seen, fault))
        self._agree([fault for _, fault in everyone])
        return {} if self._fault else {r: seen for r, (seen, _) in enumerate(everyone) if seen}

    def run(self) -> dict[Pair, tuple[OtherPath, ...]]:
        """One game: each pair's offset by both paths."""
        everyone = self.play()
        return {pair: other_paths(*(everyone[r] for r in pair)) for pair in self._pairs if everyone}

    def _play(self) -> Seen:
        assert self._pair
        number, rounds = self._pair.index(self._group.rank), (self._num_rounds, self._next_round)
        self._next_round += self._num_rounds
        self._sights.clear(0, self._sights.size_bytes)
        host, ended = np.zeros((self._num_rounds, 3), np.int64), [] if number == 0 else [0]
        show, limit_ns = self._library.kprof_show, _TIMEOUT_S * 10**9
        shows = threading.Thread(
            target=lambda: ended.append(
                show(self._host_address, host.ctypes.data, *rounds, limit_ns)
            )
        )
        if number == 0:
            shows.start()
        limit_ticks = int(_TIMEOUT_S * self._ticks_per_second)
        words, sights = self._words.address, self._sights
        try:
            error = self._library.kprof_watch(
                words, number, sights.address, *rounds, limit_ticks, None
            )
            ticks = sights.read(0, sights.size_bytes).view(np.int64)
        finally:
            if number == 0:
                shows.join()
        if error:
            raise RuntimeError(error_text(self._library, error))
        if ended != [0]:
            raise RuntimeError(f"a GPU did not answer its host within {_TIMEOUT_S} s")
        device = ticks_to_ns(ticks.reshape(-1, 3).copy(), self._ticks_per_second)
        return Seen(device, host if number == 0 else None)


def _gpu_address(device: str) -> str:
    return "" if device == "cpu" else gpu.pci_address_of(gpu.properties_of(device))


def _describe(error: Exception) -> str:
    return str(error) or type(error).__name__


def intervals_of_view(first: Seen, second: Seen) -> tuple[Ints, Ints, Ints]:
    """Common view, by round: the least and the most that second - first can be, and the moment on
    the clock of the second. (n,) each; rounds without a miss are left out."""
    has_missed = (first.device[:, 0] > 0) & (second.device[:, 0] > 0)
    (missed, hit, _), (other_missed, other_hit, _) = (
        side.device[has_missed].T for side in (first, second)
    )
    return other_missed - hit, other_hit - missed, other_hit


def other_paths(first: Seen, second: Seen) -> tuple[OtherPath, ...]:
    """The offset of the second to the first by both paths; a path without rounds is left out."""
    assert first.host is not None
    _, hit, answered = first.device.T
    _, other_hit, other_answered = second.device.T
    stored, saw, saw_other = first.host.T
    # Twice the middle, in which the host's clock cancels.
    twice = (other_hit - hit) + (other_answered - answered) - (saw_other - saw)
    width = (saw - stored) - (answered - hit) + (saw_other - stored) - (other_answered - other_hit)
    least, most, at = intervals_of_view(first, second)
    found = (
        _estimate("common view", (least + most) / 2, most - least, at),
        _estimate("two ways", twice / 2, width, other_hit),
    )
    return tuple(each for each in found if each)


def _estimate(name: str, middle: NDArray[np.float64], width: Ints, at_ns: Ints) -> OtherPath | None:
    if len(width) < MIN_VALID_ROUNDS:
        return None
    kept = np.argsort(width, kind="stable")[: len(width) // 2]
    values, from_ns = middle[kept], int(at_ns[kept[0]])
    return OtherPath(
        name,
        from_ns + round(float((at_ns[kept] - from_ns).mean())),
        float(values.mean()),
        float(values.std() / np.sqrt(len(kept))),
        float(width[kept].mean() / 2),
    )
