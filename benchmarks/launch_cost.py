"""What `recorder.launch(...)` costs the host: the Python part of recording a launch, beside a
recorder that is off.

    python -m benchmarks.launch_cost [--launches 1000] [--repeats 301]

Both call `launch` for a kernel of 304 blocks, one after the other in turns, on the CPU target;
nothing is run. The least of all repeats is what the code takes, the median what a machine that also
does other things makes of it.

"Triton" is `kp.buffer` of `kprof.triton`, with reserved chunks. `whole_programs` are launches as `kprof record --inductor` makes them, without the kernel, beside the
same ones without kprof. They come one after the other ("warm"), or after a look at so many objects
and so much memory that the caches hold something else, as in a program that does more than launch
("cold"). Both need torch and Triton.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from benchmarks import harness
from kprof.recording.launcher.record import session
from kprof.recording.rank.null_recorder import AnyRecorder, NullRecorder
from kprof.recording.rank.recorder import Recorder
from kprof.recording.retention.retention import Retention
from kprof.regions import RegionTable


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


def in_triton(recorder: AnyRecorder, num_launches: int) -> None:
    """As the page about Triton does, with reserved chunks."""
    import kprof.triton as kp

    regions: Any = SimpleNamespace(table=_TABLE)
    for _ in range(num_launches):
        kp.buffer("recv", 304, regions, tracks_per_program=8, recorder=recorder)


_TABLE: Final = RegionTable.of(["work"])
_HAS_TRITON: Final = bool(importlib.util.find_spec("torch") and importlib.util.find_spec("triton"))
WAYS: Final = {"plain": plain, "reserving": reserving, "reserving and packed": packing} | (
    {"Triton": in_triton} if _HAS_TRITON else {}
)


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
    return _spreads(times)


# A model launches many kernels in turn; the first one begins a call.
_NUM_KERNELS: Final = 20
# Blocks in x, y and z, the stream, what is launched, and a kernel's arguments.
_ARGUMENTS: Final = (304, 1, 1, 0, "function", "metadata", 1, 2, 3, 4)
_RETENTIONS: Final = {"one arena": Retention(), "drain": Retention(drain=True)}
# More than the second-level cache of a core.
_NUM_COLD_OBJECTS: Final = 8_000
_COLD_BYTES: Final = 1 << 20


def _launch(*_: Any) -> None:
    """In place of the runner that launches a kernel."""


def _runners(recorder: Recorder) -> list[Callable[..., object]]:
    """Those of `kprof record --inductor`, for each kernel."""
    from kprof.triton import inductor

    copies = []
    for number in range(_NUM_KERNELS):
        name = f"triton_poi_fused_{number}"
        regions: Any = SimpleNamespace(table=RegionTable.of([name]))
        copies.append(inductor._Copy(None, name, regions, recorder))
    return [inductor._runner_of(each, _launch, _launch, sys.exit) for each in copies]


def measure_whole(repeats: int) -> dict[str, dict[str, float]]:
    """The same for whole programs, by retention and state of the caches."""
    times: dict[str, list[float]] = {}
    objects = [SimpleNamespace(number=number) for number in range(_NUM_COLD_OBJECTS)]
    memory = np.ones(_COLD_BYTES // 8)
    with tempfile.TemporaryDirectory() as folder, session(Path(folder) / "run.kprof") as directory:
        recorders = [
            Recorder(directory, rank=rank, world_size=len(_RETENTIONS), retention=retention)
            for rank, retention in enumerate(_RETENTIONS.values())
        ]
        ways = {"no kprof": [_launch] * _NUM_KERNELS}
        ways |= dict(zip(_RETENTIONS, map(_runners, recorders), strict=True))
        for repeat in range(repeats):
            for name, runners in ways.items():
                for is_timed in (False, True):
                    begin_ns = time.perf_counter_ns()
                    for run in runners:
                        run(*_ARGUMENTS)
                    took_us = (time.perf_counter_ns() - begin_ns) / len(runners) / 1e3
                    times.setdefault(f"{name}, warm", []).extend([took_us] * is_timed)
                run = runners[repeat % len(runners)]
                memory.sum() + sum(each.number for each in objects)
                begin_ns = time.perf_counter_ns()
                run(*_ARGUMENTS)
                took_us = (time.perf_counter_ns() - begin_ns) / 1e3
                times.setdefault(f"{name}, cold", []).append(took_us)
            for recorder in recorders if repeat % 10 == 0 else ():
                recorder.flush()
        for recorder in recorders:
            recorder.close()
    return _spreads(times)


def _spreads(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
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
    parser = harness.options(__doc__)
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=301)
    arguments = parser.parse_args()
    figures = harness.context(" ".join(["python -m benchmarks.launch_cost", *sys.argv[1:]])) | {
        "launches": arguments.launches,
        "repeats": arguments.repeats,
        "per_launch": measure(arguments.launches, arguments.repeats),
    }
    if _HAS_TRITON:
        figures["whole_programs"] = measure_whole(arguments.repeats)
    harness.show_and_write(figures, arguments.output)


if __name__ == "__main__":
    main()
