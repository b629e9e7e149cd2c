"""When clocks are calibrated in a recording, and what is written about it.

Importing this costs nothing: workloads that record nothing import it, too.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kprof.capture.manifest import ClockInfo
    from kprof.clocks.alignment import Calibration
    from kprof.clocks.calibration import Calibrator
    from kprof.clocks.path import Outside
    from kprof.devices.groups import Group


class Launches(Protocol):
    """The launches of a rank: numbers below `end`, the first at `first_launch_s` on the monotonic
    clock (0.0: none yet)."""

    end: int
    first_launch_s: float


class ClockKeeper:
    """One rank's calibrations; rank 0 writes the alignment."""

    def __init__(
        self, directory: Path, rank: int, device: str, clock: ClockInfo, launches: Launches
    ) -> None:
        self.calibrator: Calibrator | None = None
        self._directory = directory
        self._rank = rank
        self._device = device
        self._clock = clock
        self._cadence = Cadence()
        self._everybody: bool | None = None
        self._launches = launches
        # Launches below this number came before the last calibration.
        self._end_before = 0
        self._aligned_s: list[float] = []
        # What calibrations took so far.
        self._calibrated_s = 0.0

    @property
    def calibrations(self) -> Sequence[Calibration]:
        """What every calibration so far measured."""
        return self.calibrator.calibrations if self.calibrator else []

    def workload_s(self) -> float:
        """The time in s on a clock that stands still during calibrations: they are no part of the
        workload's calls."""
        return time.perf_counter() - self._calibrated_s

    @contextlib.contextmanager
    def _standing_still(self) -> Iterator[None]:
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self._calibrated_s += time.perf_counter() - began_s

    def align(self, group: Group) -> None:
        """Recorder.align."""
        if group.world_size == 1 or not self._is_everybody_here(group):
            return
        with self._standing_still():
            self._calibrate(group)

    def _is_everybody_here(self, group: Group) -> bool:
        """Whether all ranks have recorders, which they tell each other at the first calibration;
        without one of them, none of the others may wait for it."""
        if self._everybody is None:
            self._everybody = all(group.all_gather(True))
        return self._everybody

    def _calibrate(self, group: Group) -> None:
        from kprof.clocks.calibration import Calibrator

        self._aligned_s[1:] = [time.monotonic()]
        if self.calibrator is None:
            self.calibrator = Calibrator(group, self._device, self._clock)
        self.calibrator.run()
        self._end_before = self._launches.end
        self._aligned_s[1:] = [time.monotonic()]
        self._cadence.restart()
        count = len(self.calibrator.calibrations)
        # In case this rank never ends. The cost does not grow with the run.
        if count & (count - 1) == 0:
            self.write()

    def align_if_due(self, group: Group, every_s: float) -> bool:
        """Recorder.align_if_due."""
        if group.world_size == 1 or not self._cadence.is_due():
            return False
        if not self._is_everybody_here(group):
            return False
        with self._standing_still():
            self._calibrate(group)
            self._cadence.restart(group.all_gather(self._cadence.proposal(every_s))[0])
        return True

    def write(self) -> None:
        """Write the alignment through all calibrations so far, on rank 0."""
        from kprof.capture.journal import Aligned, say
        from kprof.clocks.alignment import align_clocks

        if self._rank != 0 or self.calibrator is None or not self.calibrator.calibrations:
            return
        method, calibrations = self.calibrator.method, self.calibrator.calibrations
        alignment = align_clocks(method, 0, calibrations, self._outside())
        say(self._directory, 0, Aligned(alignment))

    def _outside(self) -> Outside:
        from kprof.clocks.path import ALL_INSIDE, Outside

        if not self._launches.first_launch_s:
            return ALL_INSIDE
        before_s = self._aligned_s[0] - self._launches.first_launch_s
        is_after = self._launches.end > self._end_before
        after_s = time.monotonic() - self._aligned_s[-1] if is_after else 0.0
        return Outside(max(0.0, before_s) * 1e9, after_s * 1e9)


class Cadence:
    """Counts calls, which all ranks make equally often.

    Rank 0 turns seconds into a number of calls.
    """

    def __init__(self) -> None:
        self._num_calls = 0
        self._due_at_call = 1
        self._since_call = 0
        self._since_s = time.monotonic()
        self._last = (1, 0.0)

    def is_due(self) -> bool:
        """Count a call; True at the number of calls that the ranks agreed on."""
        self._num_calls += 1
        if self._num_calls < self._due_at_call:
            return False
        # The calibration that follows must not count as part of the calls.
        self._last = (self._num_calls - self._since_call, time.monotonic() - self._since_s)
        return True

    def proposal(self, every_s: float) -> int:
        """How many calls take about `every_s`, judging by the last; at most eight times as many."""
        num_calls, elapsed_s = self._last
        wanted = num_calls * every_s / max(elapsed_s, 1e-9)
        return max(1, min(round(wanted), 8 * num_calls))

    def restart(self, num_calls: int = 8) -> None:
        """A calibration is done; rank 0 says after how many calls the next is due."""
        self._since_call, self._since_s = self._num_calls, time.monotonic()
        self._due_at_call = self._num_calls + num_calls
