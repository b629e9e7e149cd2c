"""`kprof demo`: from nothing to a trace and a report of uneven routing, on any machine."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Final

import typer
from typer import Option

from kprof_cli.options import command
from kprof_cli.output import note, progress_bar, say
from kprof_cli.reading import view_command
from kprof_cli.recording import record_and_summarise

# Arguments by kernel. Each trace shows something, and each run takes seconds, even on the CPU.
# all_to_all: 64 experts, 6 of them per token, rows of 2048 values, at most 8 tokens a rank; one
# source has three times the others'.
_ARGUMENTS: Final = {
    "all_to_all": "--variant token_flags --shape 64,6,2048,8 --skew 3",
    "all_reduce": "--variant oneshot_lock --numel 8192",
    "moe_align_sort": "--variant dcp --tokens 512 --hot 0.5",
    "rms_norm_fp8": "--variant vectors --rows 16 --columns 4096",
    "swiglu_fp8": "--variant vectors --rows 16 --columns 4096",
    "skinny_gemm": "--variant specialised --tokens 8 --rows 64 --depth 4096",
}
_OF_ONE_GPU: Final = frozenset(_ARGUMENTS) - {"all_to_all", "all_reduce"}
_NUM_CPU_RANKS: Final = 8


@command(
    output=Option("-o", "--output", help="Directory for the capture, the trace and the report."),
    kernel=Option(help=f"The kernel to run: {', '.join(_ARGUMENTS)}."),
    nproc=Option(
        help="Number of ranks. Default: one per GPU, or 8 on the CPU; 1 for single-GPU kernels."
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
    from kprof import report as reports
    from kprof.export import write
    from kprof.recording.launcher.record import RecordRequest
    from kprof.report.in_trace import finding_lines
    from kprof.trace import Trace

    run, trace_file, page = (
        output / name for name in ("run.kprof", "trace.pftrace", "report.html")
    )
    request = RecordRequest(_workload(kernel), run, _checked_ranks(kernel, nproc), force=force)
    recording = record_and_summarise(request)
    trace = Trace.open(recording.capture)
    with progress_bar() as progress:
        report = reports.build(trace, progress=progress, view_command=view_command(run))
        write(
            trace,
            trace_file,
            force=force,
            lines=finding_lines(report.findings, [info.rank for info in trace.ranks]),
            progress=functools.partial(progress, f"writing {trace_file.name}"),
        )
    reports.write_html(report, page, force=force, trace=reports.embed(trace, report))
    say(f"capture  {run}")
    say(f"trace    {trace_file}    {view_command(trace_file)}")
    say(f"report   {page}    open it in a browser")
    if should_open and _has_display():
        _open(page)
    raise typer.Exit(recording.exit_code)


def _workload(kernel: str) -> tuple[str, ...]:
    if kernel not in _ARGUMENTS:
        raise typer.BadParameter(
            f"unknown kernel {kernel!r}; choose one of {', '.join(_ARGUMENTS)}",
            param_hint="--kernel",
        )
    return ("python", "-m", f"instrumented_kernels.{kernel}", *_ARGUMENTS[kernel].split())


def _checked_ranks(kernel: str, nproc: int | None) -> int:
    if kernel not in _OF_ONE_GPU:
        return _num_ranks() if nproc is None else nproc
    if nproc not in (None, 1):
        raise typer.BadParameter(
            f"{kernel} runs on one GPU; pass 1 or omit the option", param_hint="--nproc"
        )
    return 1


def _num_ranks() -> int:
    """One rank per GPU if there are several, rounded down to a number that divides the 64
    experts."""
    from kprof.devices.targets import best_target, count_devices

    num_devices = count_devices(best_target())
    return next((number for number in (8, 4, 2) if number <= num_devices), _NUM_CPU_RANKS)


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
