"""What `recorder.launch(...)` costs the host: the Python part of recording a launch, beside a
recorder that is off.

    python benchmarks/launch_cost.py [--launches 1000] [--repeats 301]

Both call `launch` for a kernel of 304 blocks, one after the other in turns, on the CPU target;
nothing is run. The least of all repeats is what the code takes, the median what a machine that also
does other things makes of it.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from kprof.recording.launcher.record import session
from kprof.recording.rank.null_recorder import AnyRecorder, NullRecorder
from kprof.recording.rank.recorder import Recorder


def plain(recorder: AnyRecorder, num_launches: int) -> None:
    """As the README does."""
    for _ in range(num_launches):
        recorder.launch("recv", num_blocks=304, threads_per_block=256)


def reserving(recorder: AnyRecorder, num_launches: int) -> None:
    """With reserved chunks."""
    for _ in range(num_launches):
        recorder.launch("recv", num_blocks=304, threads_per_block=256, tracks_per_block=8)


def packing(recorder: AnyRecorder, num_launches: int) -> None:
    """With reserved chunks and the packed buffer."""
    for _ in range(num_launches):
        recorder.launch("recv", num_blocks=304, threads_per_block=256, tracks_per_block=8).packed()


WAYS: Final = {"plain": plain, "reserving": reserving, "reserving and packed": packing}


def time_us(way: Callable[[AnyRecorder, int], None], recorder: AnyRecorder, number: int) -> float:
    begin_s = time.perf_counter()
    way(recorder, number)
    return (time.perf_counter() - begin_s) / number * 1e6


def measure(num_launches: int, repeats: int) -> dict[str, dict[str, float]]:
    """Microseconds per launch, by way and recorder."""
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, session(Path(folder) / "run.kprof") as directory:
        recorder = Recorder(directory, rank=0, world_size=1, regions=["work"])
        recorders = {"recording": recorder, "off": NullRecorder()}
        for _ in range(repeats):
            for state, each in recorders.items():
                for name, way in WAYS.items():
                    took_us = time_us(way, each, num_launches)
                    times.setdefault(f"{name}, {state}", []).append(took_us)
        recorder.close()
    return {
        name: {
            "min_us": round(min(us), 3),
            "p10_us": round(statistics.quantiles(us, n=10)[0], 3),
            "median_us": round(statistics.median(us), 3),
            "p90_us": round(statistics.quantiles(us, n=10)[-1], 3),
        }
        for name, us in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=301)
    arguments = parser.parse_args()
    figures = {
        "date_utc": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "device": f"{platform.machine()} CPU, Python {platform.python_version()}",
        "command": " ".join(["python -m benchmarks.launch_cost", *sys.argv[1:]]),
        "launches": arguments.launches,
        "repeats": arguments.repeats,
        "per_launch": measure(arguments.launches, arguments.repeats),
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
