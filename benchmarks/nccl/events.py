"""What does an event cost a thread of NCCL? On this CPU: the calls of all-reduces with 8 channels, made as NCCL makes them.

    python -m benchmarks.nccl.events -o benchmarks/results/nccl_events.json

An event is a call, or a channel from its start to its end. With an empty plugin it costs what the calls themselves do. Takes 10 s.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import harness
from kprof.nccl.plugin import build_plugin, environment_for

HERE = Path(__file__).parent
NUM_CALLS, NUM_REPEATS = 200_000, 15
COMPILER = ("c++", "-O2", "-std=c++17", "-I", str(HERE.parents[1] / "kprof" / "nccl"), "-pthread")


def main() -> None:
    arguments = harness.options(__doc__).parse_args()
    result = harness.context("python -m benchmarks.nccl.events")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        host, empty = Path(folder) / "events", Path(folder) / "empty.so"
        shared = ("-shared", "-fPIC", "-fvisibility=hidden")
        subprocess.run([*COMPILER, HERE / "events.cpp", "-o", host, "-ldl"], check=True)
        subprocess.run([*COMPILER, *shared, HERE / "empty_plugin.cpp", "-o", empty], check=True)
        for num_threads in (1, 2):
            plugins = {"recorded": build_plugin(), "empty": empty}
            times: dict[str, list[float]] = {name: [] for name in plugins}
            for _ in range(NUM_REPEATS):
                for name, plugin in plugins.items():
                    times[name] += events_ns(host, plugin, num_threads, Path(folder))
            result[f"ns per event, {num_threads} threads of a process"] = {
                name: harness.spread(each, 1) for name, each in times.items()
            }
    harness.show_and_write(result, arguments.output)


def events_ns(host: Path, plugin: Path, num_threads: int, folder: Path) -> list[Any]:
    """ns per event, by thread."""
    environment = os.environ | environment_for(plugin, folder, 64 << 20)
    run = subprocess.run(
        [host, plugin, str(num_threads), str(NUM_CALLS)],
        env=environment,
        check=True,
        capture_output=True,
    )
    for ring in folder.glob("nccl-*"):
        ring.unlink()
    return list(json.loads(run.stdout))


if __name__ == "__main__":
    main()
