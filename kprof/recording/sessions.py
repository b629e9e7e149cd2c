"""Recording without `kprof record`: for scripts, tests and notebooks without a launcher."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kprof.devices.groups import SoloGroup
from kprof.errors import KprofError, RecorderError
from kprof.recording.recorder import DEFAULT_ARENA_BYTES, Recorder
from kprof.recording.retention import EVERYTHING_THAT_FITS, Retention
from kprof.recording.wanted import EVERYTHING, Schedule, Wanted

if TYPE_CHECKING:
    from kprof.devices.groups import Group
    from kprof.regions import RegionsLike


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

    Also a decorator: `@kprof.session("run.kprof")`. What was recorded is kept when the block
    raises. `retention` says which events of a long run are kept (see Recorder). Raises
    OutputExistsError unless `force`, and what Recorder raises.

    Without a `group` this is one process alone. The ranks of a group, all on this host, record into
    one capture: all of them call this, and rank 0 makes the capture when the others have ended
    theirs, or after 15 s.
    """
    from kprof.recording import process

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
    from kprof.recording.lifetime import open_recorders
    from kprof.recording.record import session as recording_directory
    from kprof.recording.stopping import wait_until_closed

    with contextlib.ExitStack() as stack:
        made: Path | KprofError | None = None
        if group.rank == 0:
            try:
                entered = stack.enter_context(recording_directory(output, force=force))
                made = entered.absolute()
            except KprofError as error:
                made = error
        made = group.all_gather(made)[0]
        if not isinstance(made, Path):
            raise made or RecorderError("rank 0 has made no directory")
        try:
            yield made
        finally:
            for recorder in open_recorders(made):
                recorder.close()
            if group.rank == 0:
                wait_until_closed(made, range(1, group.world_size))
