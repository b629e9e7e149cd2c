"""The kernels for one GPU against their peers, and what recording costs them.

    python -m benchmarks.single_gpu --output benchmarks/results/single_gpu.json        # a minute on an H200

Replayed from CUDA graphs, inputs larger than L2 in rotation; median, smallest and largest of 7
samples. The limit is the bytes that a call must move at the speed of torch's fastest large copy; a
copy that moves as many bytes as the call stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import instrumented_kernels
from benchmarks import harness
from benchmarks.all_reduce.overhead import GraphRecorder
from benchmarks.single_gpu.contenders import CASES, DEVICE, Case
from benchmarks.single_gpu.sweeps import SWEEPS
from benchmarks.single_gpu.timing import copy_gb_per_s, time_us
from instrumented_kernels.kernel_library import build_options
from kprof.devices.build import build_library

_LARGE_COPIES_BYTES = (1 << 28, 1 << 29, 1 << 30)
_RECORDED_CALLS = 4
app = typer.Typer(add_completion=False)


@app.command()
def main(
    output: Annotated[Path | None, typer.Option(help="write the results here")] = None,
    kernel: Annotated[list[str] | None, typer.Option(help="only these")] = None,
    sweeps: Annotated[bool, typer.Option(help="also try other grids and roles")] = False,
    only_sweeps: Annotated[bool, typer.Option(help="try these, and nothing else")] = False,
) -> None:
    """Print a table per kernel; write all samples' medians and spreads."""
    torch._dynamo.config.cache_size_limit = 64
    _build_all()
    copies = {num_bytes >> 20: copy_gb_per_s(num_bytes) for num_bytes in _LARGE_COPIES_BYTES}
    large = max(copies.values())
    head = {
        **harness.context("python -m benchmarks.single_gpu", "cuda"),
        "large_copies_gb_per_s": {f"{mib} MiB": round(speed) for mib, speed in copies.items()},
    }
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}; large copies, GB/s by MiB: {copies}"
    )
    rows = []
    for name in [] if only_sweeps else kernel or list(CASES):
        for row in _measured(name, large):
            rows.append(row)
            _print(row)
            _write(output, head, rows)
    if sweeps or only_sweeps:
        for name in kernel or list(SWEEPS):
            for row in SWEEPS[name]():
                rows.append(row)
                print(row["kernel"], row["shape"], row["sweep"], flush=True)
                _write(output, head, rows)


def _build_all() -> None:
    """Both builds of all kernels, side by side: one after the other they take longer than the measurements."""
    options = build_options(DEVICE)
    without_kprof = replace(options, defines=(*options.defines, ("KPROF_ENABLED", "0")))
    folder = Path(instrumented_kernels.__file__).parent
    jobs = [
        (folder / name / "kernel.hip", each) for name in CASES for each in (options, without_kprof)
    ]
    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(lambda job: build_library(*job), jobs))


def _measured(name: str, large: float) -> Iterator[dict[str, Any]]:
    for case in CASES[name]():
        row: dict[str, Any] = {"kernel": name, "shape": case.shape, "bytes": case.num_bytes}
        row["limit_us"] = round(case.num_bytes / large / 1e3, 3)
        row["same_copy_us"] = round(case.num_bytes / copy_gb_per_s(case.num_bytes) / 1e3, 3)
        row["errors"] = _attempt(case.errors)
        row["us"] = {}
        for contender, call in case.calls.items():
            row["us"][contender] = _attempt(
                lambda call=call, n=case.num_inputs: time_us(call, n).as_json()
            )
        row["recorded"] = _attempt(lambda case=case: _cost_of_recording(case))
        yield row
        torch.cuda.empty_cache()


def _cost_of_recording(case: Case) -> dict[str, Any]:
    """The fast variant in graphs of as many calls: not recorded, instrumented with a null buffer, and recorded."""
    num_calls = min(_RECORDED_CALLS, case.num_inputs)
    recorders = {"off": None, "null": GraphRecorder(DEVICE, "null"), "on": GraphRecorder(DEVICE)}
    return {
        name: time_us(case.recorded(recorder), num_calls).as_json()
        for name, recorder in recorders.items()
    }


def _attempt(measure: Any) -> Any:
    """A peer that refuses a shape is a result, too."""
    try:
        return measure()
    except (RuntimeError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"


def _print(row: dict[str, Any]) -> None:
    times = "  ".join(
        f"{name} {value['us']:.2f} [{value['least_us']:.2f}, {value['most_us']:.2f}]"
        if isinstance(value, dict)
        else f"{name} ({value})"
        for name, value in row["us"].items()
    )
    recorded = row["recorded"]
    cost = (
        f"{recorded['on']['us'] / recorded['off']['us'] - 1:+.1%}"
        if isinstance(recorded, dict)
        else recorded
    )
    print(
        f"{row['kernel']}  {row['shape']}: limit {row['limit_us']:.2f}, same copy "
        f"{row['same_copy_us']:.2f} us | "
        f"{times} | recording {cost} | errors {row['errors']}",
        flush=True,
    )


def _write(output: Path | None, head: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    if output is not None:
        harness.write(head | {"rows": rows}, output)


if __name__ == "__main__":
    app()
