"""What benchmarks share: options, the context of a figure, spreads, timing in turns, memory.

`docs/extending.md` has the recipe for a benchmark. A figure is worth what its context says, so
every result begins with `context`, and what is compared runs in turns in one process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

NUM_WARMUPS = 5
# Longer than the host needs to launch one kernel, also with Triton.
_SLEEP_CYCLES = 1_500_000

# A program that never rests.
BUSY = (sys.executable, "-c", "while True: pass")

Work = Callable[[], object]


def options(description: str | None, *, has_folder: bool = False) -> argparse.ArgumentParser:
    """A parser with `--output FILE`, which `show_and_write` takes, or with FOLDER, which is made where there is none."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if has_folder:
        parser.add_argument("folder", type=_made, help="everything is left here")
    else:
        parser.add_argument("--output", "--json", "-o", type=Path, help="write the figures here")
    return parser


def _made(name: str) -> Path:
    folder = Path(name).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def context(command: str, device: str = "") -> dict[str, Any]:
    """When, where, how and of which commit figures were measured. `device` is a torch device, "" for this CPU."""
    return {
        "date_utc": datetime.now(timezone.utc).date().isoformat(),
        "device": _gpu(device) if device else cpu(),
        "command": command,
        "commit": _commit(),
    }


def _commit() -> str:
    """The commit of this checkout, or nothing outside of one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def cpu() -> str:
    """This machine's processor, and how busy it was before."""
    models = [line for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    model = models[0].partition(": ")[2] if models else platform.machine()
    return (
        f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before, "
        f"Python {platform.python_version()}"
    )


def _gpu(device: str) -> str:
    import torch

    name = torch.cuda.get_device_name(device)
    return f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}"


def show_and_write(result: object, path: Path | None) -> None:
    """Print a result as JSON, and write it where a file is named."""
    print(json.dumps(result, indent=1))
    if path:
        write(result, path)


def write(result: object, path: Path) -> None:
    """Write a result as JSON, in place of an earlier one of this run."""
    path.write_text(json.dumps(result, indent=1) + "\n")


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Quartiles."""
    several = values if len(values) > 1 else [*values, *values]
    low, middle, high = statistics.quantiles(several, n=4)
    return {"p25": round(low, digits), "median": round(middle, digits), "p75": round(high, digits)}


def percent_above(base: Sequence[float], values: Sequence[float]) -> float:
    """How much longer the median is, in percent."""
    return round(100 * (statistics.median(values) / statistics.median(base) - 1), 2)


def slowdowns(times: dict[str, list[float]], base: str = "none") -> dict[str, object]:
    """Medians, quartiles and what they are above the `base`."""
    return {
        name: {"us": spread(values), "slowdown_percent": percent_above(times[base], values)}
        for name, values in times.items()
    }


def within_bounds(errors_ns: Sequence[float], bounds_ns: Sequence[float]) -> dict[str, object]:
    """How far clocks of pairs of ranks are off, and in how many pairs by no more than is stated."""
    both = zip(errors_ns, bounds_ns, strict=True)
    return {"pairs": len(errors_ns), "truth_within_bound": sum(e <= b for e, b in both)} | {
        name: {"median": round(statistics.median(all_ns)), "worst": round(max(all_ns))}
        for name, all_ns in (("error_ns", errors_ns), ("bound_ns", bounds_ns))
    }


@contextlib.contextmanager
def beside(commands: Sequence[Sequence[str]]) -> Iterator[None]:
    """Processes that run meanwhile, such as some that are BUSY."""
    running = [subprocess.Popen(each) for each in commands]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


def interleaved(
    works: dict[str, Callable[[], Work]], repeats: int, reset: Work
) -> dict[str, list[float]]:
    """GPU microseconds of each work, in turns. `works` prepare their launches untimed.

    Every repeat has another order, because a work leaves something in the caches for the next one.
    `reset` runs before each, untimed.
    """
    import torch

    from instrumented_kernels.queued_time import queued_us

    times: dict[str, list[float]] = {name: [] for name in works}
    order = random.Random(1)
    for repeat in range(repeats + NUM_WARMUPS):
        for name in order.sample(list(works), len(works)):
            reset()
            work = works[name]()
            torch.cuda.synchronize()
            elapsed_us = queued_us(work, sleep_cycles=_SLEEP_CYCLES)
            if repeat >= NUM_WARMUPS:
                times[name].append(elapsed_us)
    return times


def captured(call: Work, num_calls: int = 1, *, warm_up: bool = False) -> Any:
    """A CUDA graph of `num_calls` calls. `warm_up` makes one before, on a stream of its own."""
    import torch

    if warm_up:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call()
        torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(num_calls):
            call()
    return graph


def resident_bytes() -> int:
    """Memory of this process."""
    return int(_lines("/proc/self/statm")[0].split()[1]) * os.sysconf("SC_PAGE_SIZE")


def forget_peak() -> None:
    """Let `peak_bytes` begin anew (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """The most memory of this process since it started, or since `forget_peak`.

    `ru_maxrss` also has what the process that started this one took: Linux keeps it across exec.
    """
    (peak_kib,) = (line.split()[1] for line in _lines("/proc/self/status") if "VmHWM" in line)
    return int(peak_kib) * 1024


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
