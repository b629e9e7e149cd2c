"""Recording without `kprof record`: for scripts, tests and notebooks without a launcher."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from kprof.devices.groups import SoloGroup
from kprof.errors import KprofError, RecorderError
from kprof.recording.launches.wanted import EVERYTHING, Schedule, Wanted
from kprof.recording.rank.recorder import DEFAULT_ARENA_BYTES, Recorder
from kprof.recording.retention.retention import EVERYTHING_THAT_FITS, Retention

if TYPE_CHECKING:
    from kprof.devices.groups import Group
    from kprof.regions import RegionsLike

P = ParamSpec("P")
_Function = TypeVar("_Function", bound=Callable[..., Any])
# Calls of these only make an object, whose body runs later.
_ENDS_EARLY: Final = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)


class Session(contextlib.ContextDecorator, AbstractContextManager[Recorder]):
    """What `session` returns: a recording for each time that it is entered, and for each call of a
    function that it decorates."""

    def __init__(self, begin: Callable[[], AbstractContextManager[Recorder]]) -> None:
        self._begin = begin

    def __call__(self, function: _Function) -> _Function:
        """A function whose calls are recorded; raises RecorderError for one that runs later."""
        if any(is_such(function) for is_such in _ENDS_EARLY):
            name = getattr(function, "__name__", repr(function))
            raise RecorderError(
                f"{name} is async or a generator: its body would run after the session has ended; "
                "write `with kprof.session(...):` inside it"
            )
        return super().__call__(function)

    def __enter__(self) -> Recorder:
        begun = self._begin()
        recorder = begun.__enter__()
        self._begun = begun
        return recorder

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._begun.__exit__(kind, error, traceback)


def _several_times(
    function: Callable[P, AbstractContextManager[Recorder]],
) -> Callable[P, Session]:
    """What @contextmanager makes can be entered once."""

    @functools.wraps(function)
    def make(*arguments: P.args, **options: P.kwargs) -> Session:
        return Session(functools.partial(function, *arguments, **options))

    return make


@_several_times
@contextlib.contextmanager
def session(
    output: str | Path,
    regions: RegionsLike = None,
    *,
    device: str = "cpu",
    arena_bytes: int = DEFAULT_ARENA_BYTES,
    wanted: Wanted = EVERYTHING,
    schedule: Schedule | None = None,
    retention: Retention = EVERYTHING_THAT_FITS,
    force: bool = False,
    group: Group | None = None,
) -> Iterator[Recorder]:
    """Record this process into the capture `output`; `kprof.recorder()` returns the session's
    recorder meanwhile.

        with kprof.session("run.kprof", regions="regions.h", device="cuda:0") as recorder:
            ...

    Also a decorator: with `@kprof.session("run.kprof", force=True)` each call of a function
    replaces the capture of the call before. What was recorded is kept when the block raises.
    `retention` says which events of a long run are kept (see Recorder). A process has one session
    at a time; a forked child may open its own. Raises OutputExistsError when the output exists,
    unless `force`, RecorderError inside another session, and what Recorder raises.

    Without a `group` this is one process alone. The ranks of a group, all on this host, record into
    one capture: all of them call this, and rank 0 makes the capture when the others have ended
    theirs, or after 15 s.
    """
    from kprof.recording.rank import process

    group = group or SoloGroup()
    with _directory(Path(output), force, group) as directory:
        recorder = Recorder(
            directory,
            rank=group.rank,
            world_size=group.world_size,
            regions=regions,
            device=device,
            arena_bytes=arena_bytes,
            wanted=wanted,
            schedule=schedule,
            retention=retention,
        )
        with process.serving(recorder):
            yield recorder
        recorder.close()


@contextlib.contextmanager
def _directory(output: Path, force: bool, group: Group) -> Iterator[Path]:
    """Rank 0 makes the directory, and a capture of it; errors of that are raised by all ranks."""
    from kprof.recording.endings.lifetime import open_recorders
    from kprof.recording.launcher.record import session as recording_directory
    from kprof.recording.launcher.stopping import wait_until_closed
    from kprof.recording.rank import process

    with contextlib.ExitStack() as stack:
        made: Path | KprofError | None = None
        if group.rank == 0:
            try:
                stack.enter_context(process.in_session())
                entered = stack.enter_context(recording_directory(output, force=force))
                made = entered.absolute()
            except KprofError as error:
                made = error
        made = group.all_gather(made)[0]
        if not isinstance(made, Path):
            raise made or RecorderError("rank 0 has made no directory")
        if group.rank:
            stack.enter_context(process.in_session())
        try:
            yield made
        finally:
            for recorder in open_recorders(made):
                recorder.close()
            if group.rank == 0:
                wait_until_closed(made, range(1, group.world_size))
