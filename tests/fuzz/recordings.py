"""What killed ranks left, damaged, against `kprof recover`.

    python tests/fuzz/recordings.py --minutes 10 --seed 1 --jobs 2      (or --count 2000)

The recordings are those of processes that were killed, with and without parts, graphs, rings and shared memory. Whatever the
damage, `recover`
  * makes a capture that every reader opens, or says in a sentence why not, and then what was there stays there,
  * takes no more from the recording than it had, and says so where it has less (what a damaged arena holds is the subject of
    arenas.py),
  * touches nothing but the recording.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Final

import harness
import numpy as np
import pyarrow.parquet as pq
from bytes_damage import copied, damage_one
from harness import Broken

from kprof.capture.directory import Capture
from kprof.capture.losses import describe_losses
from kprof.capture.shared_memory import make_memory, memory_of, remove_memory
from kprof.errors import KprofError
from kprof.recording.finishing.recover import recover

KERNEL: Final = """
#include <kprof/kprof.h>
__global__ void marks(unsigned num_marks, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  for (unsigned i = 0; i < num_marks; ++i) kprof::profile_mark(track, 1 + i % 2, i);
}
extern "C" int run_marks(const kprof::LaunchBuffer* buffer, unsigned num_marks) {
  return KPROF_LAUNCH(marks, 3, 64, nullptr, 0, num_marks, kprof::make_buffer(*buffer));
}
"""
VARIANTS: Final = ("plain", "parts", "graph", "ring", "saved", "overflow")
UNFINISHED: Final = "run.kprof.unfinished"


def leave(variant: str, folder: Path) -> None:
    """Record two ranks into the folder, and be killed."""
    from kept_sources import kept_source
    from kprof.devices.build import BuildOptions, load_library
    from kprof.recording.launcher import record
    from kprof.recording.rank.recorder import Recorder
    from kprof.recording.retention.retention import EVERYTHING_THAT_FITS, Retention

    library = load_library(kept_source(KERNEL), BuildOptions(warp_width=32, sanitizers=()))
    retention = Retention(ring_bytes=1 << 17) if variant == "ring" else EVERYTHING_THAT_FITS
    session = record.session(folder / "run.kprof")
    directory = session.__enter__()
    size = (1 << 15) if variant == "overflow" else (1 << 17)
    recorders = [
        Recorder(directory, rank=rank, world_size=2, arena_bytes=size, retention=retention)
        for rank in range(2)
    ]
    for step in range(4):
        for rank, recorder in enumerate(recorders):
            buffer = recorder.launch(
                f"kernel{step % 2}",
                ["odd", "even"],
                num_blocks=3,
                tracks_per_block=2 if step % 2 else 0,
                is_replayed=variant == "graph" and step == 1,
            )
            for _ in range(2 if variant == "graph" and step == 1 else 1):
                assert library.run_marks(buffer.packed(), 40 * step + 10 + rank) == 0
            recorder.finished()
            if variant == "parts" and step % 2:
                recorder.flush()
            if variant == "saved" and step == 2:
                recorder.save()
    os.kill(os.getpid(), signal.SIGKILL)


def left(variant: str) -> tuple[Path, int, tuple[str, ...]]:
    """What a killed process has left, with all of its memory on the disk; and how many events that are when nothing is wrong,
    with what is said to be missing."""
    return _left_in(gettempdir(), variant)


@cache
def _left_in(place: str, variant: str) -> tuple[Path, int, tuple[str, ...]]:
    """Once for each place: a fuzzer's own goes with it."""
    folder = Path(mkdtemp(prefix=f"kprof-left-{variant}-", dir=place))
    command = [sys.executable, __file__, "--leave", variant, str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    code = subprocess.run(command, env=environment, capture_output=True, check=False)
    if code.returncode != -signal.SIGKILL:
        raise RuntimeError(code.stderr.decode())
    source, kept = folder / UNFINISHED, folder / "kept"
    kept.mkdir()
    memory = memory_of(source)
    for path in [*source.iterdir(), *(memory.glob("rank-*") if memory else ())]:
        if path.is_file():
            (kept / path.name).write_bytes(path.read_bytes())
    remove_memory(source)
    capture = recover(copied(kept, folder / "sound" / UNFINISHED))
    return kept, num_events_of(capture), describe_losses(capture.manifest)


def prepare() -> None:
    """Make all recordings."""
    for variant in VARIANTS:
        left(variant)


def num_events_of(capture: Capture) -> int:
    """All events of a capture, read to their ends."""
    return sum(
        pq.read_table(capture.events_path(info.rank)).num_rows for info in capture.manifest.ranks
    )


def into_memory(directory: Path) -> None:
    """Put what a recording has of its memory back there."""
    make_memory(directory)
    memory = memory_of(directory)
    assert memory is not None
    for path in directory.glob("rank-*.arena"):
        (memory / path.name).write_bytes(path.read_bytes())
        path.unlink()


def case(seed: int, number: int, folder: Path) -> str:
    """Damage one recording and recover it."""
    random = np.random.default_rng([seed, number])
    kept, num_sound, said_of_sound = left(VARIANTS[number % len(VARIANTS)])
    directory = copied(kept, folder / UNFINISHED)
    kinds = [
        damage_one(random, directory, folder.parent / "private" / "secret.txt")
        for _ in range(int(random.choice([1, 1, 2])))
    ]
    if random.random() < 0.3 and not any(
        path.is_symlink() or not path.is_file() for path in directory.iterdir()
    ):
        into_memory(directory)
    try:
        word = _recovered(directory, kinds, num_sound, said_of_sound)
    finally:
        remove_memory(directory)
    return f"{kinds[0]}: {word}"


def _recovered(
    directory: Path, kinds: list[str], num_sound: int, said_of_sound: tuple[str, ...]
) -> str:
    before = {path.name for path in directory.iterdir()}
    try:
        capture = recover(directory)
    except KprofError as error:
        if not directory.exists():
            raise Broken(f"the recording is gone: {error}") from error
        missing = {
            name
            for name in before - {path.name for path in directory.iterdir()}
            if name.startswith("part-")
        }
        if missing and not list(directory.glob("rank-*.parquet")):
            raise Broken(f"{sorted(missing)} is gone: {error}") from error
        return "refused"
    num_found, said = num_events_of(Capture.open(capture.path)), describe_losses(capture.manifest)
    if num_found > num_sound and not any("arena" in kind for kind in kinds):
        raise Broken(f"{num_found} events of {num_sound}")
    if (
        num_found < num_sound
        and said == said_of_sound
        and not any("arena" in kind for kind in kinds)
    ):
        raise Broken(f"{num_sound - num_found} events are missing and nobody says so")
    return "recovered" if num_found == num_sound else "recovered in part"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--leave"]:
        leave(sys.argv[2], Path(sys.argv[3]))
    sys.exit(harness.main(case, "killed recordings", "tests/fuzz/recordings.py", prepare=prepare))
