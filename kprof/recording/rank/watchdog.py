"""Watches for kernels that hang in services, which run without `kprof record`.

A thread of every rank looks once a second at the memory that ranks share, as `kprof record` does:

    nothing moves for `after_s` ──> ranks save, and give their stacks ──> report on stderr,
                                                                          hang.json, `on_hang`

All ranks find the same. The lowest one that can prints it: the others wait for their turn, and have
nothing to add where hang.json says the same by then.
"""

from __future__ import annotations

import atexit
import contextlib
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from kprof.errors import CaptureError, CorruptCaptureError, RecorderError
from kprof.hangs.evidence import conditions_of
from kprof.hangs.look import look_now
from kprof.hangs.report import HANG_NAME, Hang, lines_of, read_hang, write_hang
from kprof.hangs.state import Condition
from kprof.hangs.watch import Directory, HangWatch, Watch, is_wanted, tell
from kprof.recording.endings import complaints
from kprof.recording.rank import saver
from kprof.recording.rank.recorder import Recorder

if TYPE_CHECKING:
    from kprof.recording.rank.null_recorder import AnyRecorder

DEFAULT_AFTER_S: Final = 60.0
# No library takes the last real-time signals; SIGUSR1 and SIGUSR2 are often the workload's.
REPORT_SIGNAL: Final = signal.SIGRTMAX - 4
# A rank that can print does so within this time.
_TURN_S: Final = 2.0

OnHang = Callable[[Hang], None]


class Watchdog(HangWatch):
    """What `watchdog` returns: watches until `close`, or until the process or the recorder ends."""

    def __init__(
        self, recorder: Recorder, after_s: float, on_hang: OnHang | None, signal_number: int
    ) -> None:
        self._rank, self._callback = recorder.rank, on_hang
        self._is_asked = self._has_printed = False
        # `kprof record` prints what it finds.
        self._prints = not is_wanted()
        directory = recorder.listen()
        watch = Watch(Directory(directory, recorder.save), after_s, only_kernels=True)
        # The signal first: a number that is none must leave no thread behind.
        self._wake = threading.Event()
        self._signal = _ReportSignal(signal_number, self.report)
        super().__init__(watch, directory, complaints.complain, name="kprof watchdog")
        atexit.register(self.close)

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def report(self) -> None:
        """Report what every rank waits for at this moment, on stderr; returns at once."""
        self._is_asked = True
        self._wake.set()

    def close(self) -> None:
        """Stop watching; a second call does nothing."""
        self._signal.close()
        super().close()
        atexit.unregister(self.close)

    def _look(self) -> None:
        try:
            if self._is_asked:
                self._is_asked = False
                self._report_now()
            else:
                super()._look()
        except (CaptureError, OSError) as error:
            self._is_closed = True
            self._say(f"rank {self._rank} watches no more for hangs: {error}")

    def _report_now(self) -> None:
        hang = look_now(self._directory)
        if hang.waits:
            write_hang(self._directory, hang)
        for line in lines_of(hang):
            self._say(line)

    def _report(self, hang: Hang, *, is_new: bool) -> None:
        is_first = not self._found
        if is_new and self._prints:
            self._print(hang)
        if is_first and self._callback is not None:
            try:
                self._callback(hang)
            except Exception as error:
                self._say(f"rank {self._rank}: on_hang failed: {error!r}")

    def _report_news(self) -> None:
        if self._has_printed:
            super()._report_news()
        self._has_printed = False

    def _print(self, hang: Hang) -> None:
        since_s = time.time() - hang.idle_s
        self._wake.wait(_TURN_S * self._num_before())
        if not was_written_since(since_s, self._directory, hang.diagnosis):
            write_hang(self._directory, hang)
            tell(hang, self._directory, self._say)
            self._has_printed = True

    def _num_before(self) -> int:
        """How many ranks print before this one."""
        conditions = conditions_of(self._directory)
        return sum(
            rank < self._rank and condition is Condition.RUNNING
            for rank, condition in conditions.items()
        )


class _ReportSignal:
    """Calls `report` when a signal comes, also while the main thread waits for a kernel."""

    def __init__(self, number: int, report: Callable[[], None]) -> None:
        self._number, self._report = number, report
        self._previous: Any = None
        if not number or threading.current_thread() is not threading.main_thread():
            self._number = 0
        elif signal.getsignal(number) is not signal.SIG_DFL:
            name = signal.Signals(number).name if number < signal.SIGRTMIN else str(number)
            complaints.complain(f"signal {name} makes no report: the workload handles it")
            self._number = 0
        else:
            self._previous = signal.signal(number, self._handle)
            signal.siginterrupt(number, False)
            saver.listen(number, report)

    def close(self) -> None:
        """Handle the signal as before."""
        if self._number and signal.getsignal(self._number) == self._handle:
            saver.listen(self._number, None)
            # Only the main thread may.
            with contextlib.suppress(ValueError):
                signal.signal(self._number, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """In the main thread, between two of its instructions: the saver's thread was faster."""
        del number, frame
        if not saver.hears_signals():
            self._report()


class _Off(Watchdog):
    """Watches nothing, because the recorder is off."""

    def __init__(self) -> None:
        pass

    def report(self) -> None:
        """Nothing is known."""

    def close(self) -> None:
        """Nothing to stop."""


def watchdog(
    recorder: AnyRecorder,
    after_s: float = DEFAULT_AFTER_S,
    *,
    on_hang: OnHang | None = None,
    signal_number: int = REPORT_SIGNAL,
) -> Watchdog:
    """Watch for kernels that hang, from a thread of this process, until the result is closed.

        with kprof.session("service.kprof", device="cuda") as recorder, kprof.watchdog(recorder):
            serve()

    When kernels wait and nothing has moved for `after_s`, the diagnosis is printed on stderr and
    kept as hang.json; `on_hang` gets it in that thread, once until the run moves again. All ranks
    of a service call this. A run that is slow, or has nothing to do, is left alone. `signal_number`
    prints what every rank waits for at that moment (0: none does); it is taken where this is the
    main thread and nobody else handles it.

    Does nothing where the recorder is off. Raises RecorderError for an `after_s` that is no
    positive number.
    """
    if not after_s > 0:
        raise RecorderError(f"after_s={after_s}: give the seconds after which a wait is a hang")
    if not isinstance(recorder, Recorder):
        return _Off()
    return Watchdog(recorder, after_s, on_hang, signal_number)


def was_written_since(time_s: float, directory: Path, diagnosis: str) -> bool:
    """Whether a report with this diagnosis has been written."""
    try:
        is_newer = (directory / HANG_NAME).stat().st_mtime > time_s
        found = read_hang(directory) if is_newer else None
    except (OSError, CorruptCaptureError):
        return False
    return found is not None and found.diagnosis == diagnosis
