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
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from kprof.recording.launch_buffer import LaunchBuffer
from kprof.recording.null_recorder import AnyRecorder, NullRecorder
from kprof.recording.record import session
from kprof.recording.recorder import Recorder

Launch = Callable[[], LaunchBuffer]


def ways(recorder: AnyRecorder) -> dict[str, Launch]:
    """The ways to call it: as the README does, and with reserved chunks and the packed buffer."""

    def plain() -> LaunchBuffer:
        return recorder.launch("recv", num_blocks=304, threads_per_block=256)

    def reserving() -> LaunchBuffer:
        buffer = recorder.launch("recv", num_blocks=304, threads_per_block=256, tracks_per_block=8)
        buffer.packed()
        return buffer

    return {"plain": plain, "reserving and packed": reserving}


def time_us(launch: Launch, num_launches: int) -> float:
    begin_s = time.perf_counter()
    for _ in range(num_launches):
        launch()
    return (time.perf_counter() - begin_s) / num_launches * 1e6


def measure(num_launches: int, repeats: int) -> dict[str, dict[str, float]]:
    """Microseconds per launch, by way and recorder."""
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, session(Path(folder) / "run.kprof") as directory:
        recorder = Recorder(directory, rank=0, world_size=1, regions=["work"])
        recorders = {"recording": recorder, "off": NullRecorder()}
        for _ in range(repeats):
            for state, each in recorders.items():
                for way, launch in ways(each).items():
                    times.setdefault(f"{way}, {state}", []).append(time_us(launch, num_launches))
        recorder.close()
    return {
        name: {"min_us": round(min(us), 2), "median_us": round(statistics.median(us), 2)}
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
        "launches": arguments.launches,
        "per_launch": measure(arguments.launches, arguments.repeats),
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
