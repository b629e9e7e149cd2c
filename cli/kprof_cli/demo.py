"""`kprof demo`: from nothing to a trace and a report of uneven routing, on any machine."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer
from typer import Option

from kprof_cli.options import command
from kprof_cli.output import note, progress_bar, say
from kprof_cli.reading import view_command
from kprof_cli.recording import record_and_summarise

if TYPE_CHECKING:
    from kprof.capture.directory import Capture

# Arguments by kernel. Each trace shows something, and each run takes seconds, even on the CPU.
# all_to_all: 64 experts, 6 of them per token, rows of 2048 values, at most 8 tokens a rank; one
# source has three times the others'.
_ARGUMENTS: Final = {
    "all_to_all": "--variant token_flags --shape 64,6,2048,8 --skew 3 --skew-rank {last_rank}",
    "all_reduce": "--variant oneshot_lock --numel 8192",
    "moe_align_sort": "--variant dcp --tokens 512 --hot 0.5",
    "rms_norm_fp8": "--variant vectors --rows 16 --columns 4096",
    "swiglu_fp8": "--variant vectors --rows 16 --columns 4096",
    "skinny_gemm": "--variant specialised --tokens 8 --rows 64 --depth 4096",
}
_OF_ONE_GPU: Final = frozenset(_ARGUMENTS) - {"all_to_all", "all_reduce"}
_MOST_RANKS: Final = 8


@command(
    output=Option("-o", "--output", help="Directory for the capture, the trace and the report."),
    kernel=Option(help=f"The kernel to run: {', '.join(_ARGUMENTS)}."),
    nproc=Option(
        help="Number of ranks. Default: one per GPU, or per core of the CPU, 2 to 8; 1 for "
        "single-GPU kernels."
    ),
    should_open=Option("--open/--no-open", help="Open the report if there is a display."),
)
def demo(
    output: Path = Path("kprof-demo"),
    kernel: str = "all_to_all",
    nproc: int | None = None,
    should_open: bool = True,
    force: bool = False,
) -> None:
    """Record an example kernel, and write its trace and report."""
    from kprof.recording.launcher.record import RecordRequest

    run = output / "run.kprof"
    num_ranks = _checked_ranks(kernel, nproc)
    request = RecordRequest(_workload(kernel, num_ranks), run, num_ranks, force=force)
    recording = record_and_summarise(request)
    page = _write(recording.capture, output, force=force)
    if should_open and _has_display():
        _open(page)
    raise typer.Exit(recording.exit_code)


def _write(capture: Capture, output: Path, *, force: bool) -> Path:
    """Write the trace and the report of a capture, name all three, and return the report's path."""
    from kprof import report as reports
    from kprof.export import write
    from kprof.report.in_trace import finding_lines
    from kprof.trace import Trace

    trace_file, page = output / "trace.pftrace", output / "report.html"
    trace = Trace.open(capture)
    with progress_bar() as progress:
        report = reports.build(trace, progress=progress, view_command=view_command(capture.path))
        write(
            trace,
            trace_file,
            force=force,
            lines=finding_lines(report.findings, [info.rank for info in trace.ranks]),
            progress=functools.partial(progress, f"writing {trace_file.name}"),
        )
    reports.write_html(report, page, force=force, trace=reports.embed(trace, report))
    say(f"capture  {capture.path}")
    say(f"trace    {trace_file}    {view_command(trace_file)}")
    say(f"report   {page}    open it in a browser")
    return page


def _workload(kernel: str, num_ranks: int) -> tuple[str, ...]:
    if kernel not in _ARGUMENTS:
        raise typer.BadParameter(
            f"unknown kernel {kernel!r}; choose one of {', '.join(_ARGUMENTS)}",
            param_hint="--kernel",
        )
    arguments = _ARGUMENTS[kernel].format(last_rank=min(3, num_ranks - 1))
    return ("python", "-m", f"instrumented_kernels.{kernel}", *arguments.split())


def _checked_ranks(kernel: str, nproc: int | None) -> int:
    if kernel not in _OF_ONE_GPU:
        return _num_ranks() if nproc is None else nproc
    if nproc not in (None, 1):
        raise typer.BadParameter(
            f"{kernel} runs on one GPU; pass 1 or omit the option", param_hint="--nproc"
        )
    return 1


def _num_ranks() -> int:
    """One rank per GPU if there are several, else per core; a number that divides the 64
    experts."""
    from kprof.devices.targets import best_target, count_cores, count_devices

    target = best_target()
    num_devices = count_devices(target)
    if num_devices < 2:
        # Ranks that share a core take turns, and their times say nothing.
        num_devices = count_cores()
    return next((number for number in (_MOST_RANKS, 4) if number <= num_devices), 2)


def _has_display() -> bool:
    """Whether there is a person at a screen, not a pipe, a build machine or a remote shell."""
    if not sys.stdout.isatty():
        return False
    return sys.platform == "darwin" or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )


def _open(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        note(f"could not start a browser; open {page} yourself")
