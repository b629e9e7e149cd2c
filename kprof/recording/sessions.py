"""Recording without `kprof record`: for scripts, tests and notebooks without a launcher."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kprof.recording.recorder import DEFAULT_ARENA_BYTES, Recorder
from kprof.recording.retention import EVERYTHING_THAT_FITS, Retention
from kprof.recording.wanted import EVERYTHING, Schedule, Wanted

if TYPE_CHECKING:
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
) -> Iterator[Recorder]:
    """Record this process alone into the capture `output`; `kprof.recorder()` returns the session's
    recorder meanwhile.

        with kprof.session("run.kprof", regions="regions.h", device="cuda:0") as recorder:
            ...

    Also a decorator: `@kprof.session("run.kprof")`. What was recorded is kept when the block
    raises. `retention` says which events of a long run are kept (see Recorder). Raises
    OutputExistsError unless `force`, and what Recorder raises. Several ranks are recorded by
    `kprof record`.
    """
    from kprof.recording import process
    from kprof.recording.record import session as recording_directory

    with recording_directory(Path(output), force=force) as directory:
        recorder = Recorder(
            directory,
            rank=0,
            world_size=1,
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
