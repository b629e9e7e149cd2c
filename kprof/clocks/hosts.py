"""Clocks of ranks on different hosts, which share no memory: compared through the hosts' clocks.

    device - device  =  (device - host) of one  +  (host - host)  -  (device - host) of the other

A device's clock is read between two readings of its host's clock. Two hosts meet in barriers of the
process group: nobody leaves before everybody has come. So for host clocks of ranks a and b around
the same barrier

    before_b - after_a  <=  b - a  <=  after_b - before_a

Every difference is an interval that is right whatever the network does, and so is their sum. Half
its width is the bound: tens to hundreds of microseconds. Clocks may drift by MAX_DRIFT between
readings.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from kprof.clocks.offset import MAX_DRIFT, OffsetSample, Pair
from kprof.devices.groups import Group

_NUM_BARRIERS: Final = 48
_NUM_BRACKETS: Final = 32


class _Readings(NamedTuple):
    """One rank's readings in ns: (n, 2) host clock around barriers, (n, 3) host, device, host."""

    barriers: np.ndarray
    brackets: np.ndarray


class _Interval(NamedTuple):
    """Limits of a difference of two clocks at `at_ns`, a time of the second's host."""

    lower_ns: float
    upper_ns: float
    at_ns: int

    def later(self, at_ns: int) -> _Interval:
        """The same difference at another moment."""
        slack_ns = abs(at_ns - self.at_ns) * MAX_DRIFT
        return _Interval(self.lower_ns - slack_ns, self.upper_ns + slack_ns, at_ns)


@dataclass(frozen=True)
class HostClocks:
    """Compares the first rank of every host with the reference rank.

    `read_device_ns` reads this rank's own clock.
    """

    group: Group
    leaders: tuple[int, ...]
    step_ns: float
    read_device_ns: Callable[[], int]
    read_host_ns: Callable[[], int] = time.monotonic_ns

    def run(self) -> dict[Pair, OffsetSample]:
        """One sample for every leader except the reference, which is the first. Collective."""
        barriers = np.array([self._around_barrier() for _ in range(_NUM_BARRIERS)])
        brackets = np.array([self._around_device() for _ in range(_NUM_BRACKETS)])
        everyone = self.group.all_gather(_Readings(barriers, brackets))
        reference = self.leaders[0]
        return {
            (reference, leader): _sample(everyone[reference], everyone[leader], self.step_ns)
            for leader in self.leaders[1:]
        }

    def _around_barrier(self) -> tuple[int, int]:
        before_ns = self.read_host_ns()
        self.group.barrier()
        return before_ns, self.read_host_ns()

    def _around_device(self) -> tuple[int, int, int]:
        before_ns = self.read_host_ns()
        device_ns = self.read_device_ns()
        return before_ns, device_ns, self.read_host_ns()


def _sample(reference: _Readings, other: _Readings, step_ns: float) -> OffsetSample:
    """The other's device clock minus the reference's."""
    # The other host's clock minus the reference's, from the barriers that both left.
    (here_before, here_after), (before, after) = reference.barriers.T, other.barriers.T
    between = _narrowest(before - here_after, after - here_before, after)
    minus_ns = round((between.lower_ns + between.upper_ns) / 2)
    # The reference's own interval, moved to the moment of the barrier on its host's clock.
    here = _device_minus_host(reference.brackets).later(between.at_ns - minus_ns)
    there = _device_minus_host(other.brackets).later(between.at_ns)
    lower = between.lower_ns + there.lower_ns - here.upper_ns
    upper = between.upper_ns + there.upper_ns - here.lower_ns
    device_minus_host_ns = round((there.lower_ns + there.upper_ns) / 2)
    return OffsetSample(
        local_ns=between.at_ns + device_minus_host_ns,
        offset_ns=(lower + upper) / 2,
        spread_ns=(upper - lower) / 2,
        lower_ns=lower,
        upper_ns=upper,
        step_ns=step_ns,
        round_trip_ns=upper - lower,
        num_rounds=len(reference.barriers),
        is_direct=False,
    )


def _device_minus_host(brackets: np.ndarray) -> _Interval:
    before, device, after = brackets.T
    return _narrowest(device - after, device - before, after)


def _narrowest(lower_ns: np.ndarray, upper_ns: np.ndarray, at_ns: np.ndarray) -> _Interval:
    """The intersection of all limits, each widened by the drift since the narrowest one."""
    best = int(np.argmin(upper_ns - lower_ns))
    slack_ns = np.abs(at_ns - at_ns[best]) * MAX_DRIFT
    lower, upper = float((lower_ns - slack_ns).max()), float((upper_ns + slack_ns).min())
    return _Interval(min(lower, upper), max(lower, upper), int(at_ns[best]))
