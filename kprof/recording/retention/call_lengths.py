"""How long the calls of a workload take, by the workload's own clock.

A call is what happens between two steps (`recorder.step()`). Where the workload tells of no steps,
a call begins with each launch of the kernel that was launched first. The clock of a recorder stands
still while kprof calibrates the device's.
"""

from __future__ import annotations

import bisect
import time
from collections import deque
from collections.abc import Callable
from typing import Final

_NUM_LENGTHS: Final = 1001
_MIN_LENGTHS: Final = 20
# A run whose calls vary much would fill the disk.
_MAX_SLOW_DUMPS: Final = 10
# A kernel that was not launched in so many launches, such as one of a warm-up, begins no calls.
_LONGEST_CALL: Final = 4096
# No kernel has such a name.
_GRAPH: Final = "\0graph "


def describe_length(length_s: float) -> str:
    """`3,500.00 ms`."""
    return f"{1e3 * length_s:,.2f} ms"


class CallLengths:
    """Finds the ends of calls; subclasses say what to do with them. `now_s` is the clock.

    `num_ended` calls have ended, which is also the number of the call under way. Launches of
    `kernel` begin calls; it is empty before the first launch.
    """

    __slots__ = ("__dict__", "has_steps", "kernel")

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.num_ended = 0
        self.has_steps = False
        self._now_s = now_s
        self.kernel = ""
        self._first_launch_s: float | None = None
        self._began_s: float | None = None

    def note_step(self) -> None:
        """A step has ended.

        The first step ends the call that began with the first launch: what looked like calls before
        were launches within it.
        """
        if not self.has_steps:
            self.has_steps, self.num_ended = True, 0
            self._began_s = self._first_launch_s
            self._forget()
        self._end()

    def note_launch(self, kernel: str) -> bool:
        """A launch begins; returns whether a call begins with it."""
        self.kernel = self.kernel or kernel
        if self.has_steps or kernel != self.kernel:
            return False
        if self._first_launch_s is None:
            self._first_launch_s = self._began_s = self._now_s()
        else:
            self._end()
        return True

    def _end(self) -> None:
        began_s, self._began_s = self._began_s, self._now_s()
        self._note_call(None if began_s is None else self._began_s - began_s)
        self.num_ended += 1

    def _note_call(self, length_s: float | None) -> None:
        """Call `num_ended` took so long; None where nobody knows when it began."""
        raise NotImplementedError

    def _forget(self) -> None:
        """The calls so far were none: numbers begin at 0 again."""


class CallsOfAny(CallLengths):
    """Finds calls where a kernel, too, begins them that was not launched first: one that comes
    again, or a graph.

    Once there is a `kernel`, the next `num_more` launches of others surely begin no call. Whoever
    counts one there need not note it.
    """

    __slots__ = ("num_more",)

    def __init__(self) -> None:
        super().__init__()
        self.num_more = _LONGEST_CALL

    def note_launch(self, kernel: str) -> bool:
        """As in CallLengths."""
        self.num_more -= 1
        if self.num_more < 0:
            self.kernel = kernel
        if kernel == self.kernel:
            self.num_more = _LONGEST_CALL
        self.kernel = self.kernel or kernel
        return kernel == self.kernel and not self.has_steps

    def note_replay(self, graph: int) -> bool:
        """A graph is about to be replayed; returns whether a call begins with it."""
        name = f"{_GRAPH}{graph}"
        if not self.kernel.startswith(_GRAPH):
            # Launches before may have been its warm-up.
            self.kernel = name
        return self.note_launch(name)

    def _end(self) -> None:
        """Nobody asks how long it took."""


class SlowCalls(CallLengths):
    """Asks for a dump when a call takes longer than `times` the median of those before."""

    def __init__(
        self,
        times: float,
        ask: Callable[[str], None],
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(now_s)
        self._times = times
        self._ask = ask
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []
        self._num_asked = 0

    def _note_call(self, length_s: float | None) -> None:
        if length_s is None:
            return
        if len(self._sorted) >= _MIN_LENGTHS and self._num_asked < _MAX_SLOW_DUMPS:
            median_s = self._sorted[len(self._sorted) // 2]
            if length_s > self._times * median_s:
                self._num_asked += 1
                self._ask(
                    f"a call took {describe_length(length_s)}, "
                    f"the median is {describe_length(median_s)}"
                )
        if len(self._latest) == _NUM_LENGTHS:
            del self._sorted[bisect.bisect_left(self._sorted, self._latest.popleft())]
        self._latest.append(length_s)
        bisect.insort(self._sorted, length_s)

    def _forget(self) -> None:
        self._latest.clear()
        self._sorted.clear()
