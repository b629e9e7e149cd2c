"""`kprof demo`: from nothing to a trace and a report of uneven routing, on any machine."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer
from typer import Option

from kprof.errors import CaptureError
from kprof_cli.options import command
from kprof_cli.output import note, program, progress_bar, say
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
# By kernel, of the recordings in traces/: the step of its ladder whose report says most, and the
# next one.
_RECORDED: Final = {
    "all_to_all": (
        "all_to_all-token_flags-4xH200-skew3-264blocks",
        "all_to_all-balanced-4xH200-skew3-264blocks",
    ),
    "all_reduce": ("all_reduce-oneshot_serial-4xH200", "all_reduce-oneshot-4xH200"),
    "moe_align_sort": ("moe_align_sort-dcp-1xH200", "moe_align_sort-chained-1xH200"),
    "rms_norm_fp8": ("rms_norm_fp8-vectors-1xH200", "rms_norm_fp8-tuned-1xH200"),
    "swiglu_fp8": ("swiglu_fp8-vectors-1xH200", "swiglu_fp8-tuned-1xH200"),
    "skinny_gemm": ("skinny_gemm-tiled-1xH200", "skinny_gemm-tuned-1xH200"),
}


@command(
    output=Option("-o", "--output", help="Directory for the capture, the trace and the report."),
    kernel=Option(help=f"The kernel to run: {', '.join(_ARGUMENTS)}."),
    nproc=Option(
        help="Number of ranks. Default: one per GPU, or per core of the CPU, 2 to 8; 1 for "
        "single-GPU kernels."
    ),
    is_recorded=Option(
        "--recorded", help="Run nothing: show a recording of the kernel on H200s (in a checkout)."
    ),
    should_open=Option("--open/--no-open", help="Open the report if there is a display."),
)
def demo(
    output: Path = Path("kprof-demo"),
    kernel: str = "all_to_all",
    nproc: int | None = None,
    is_recorded: bool = False,
    should_open: bool = True,
    force: bool = False,
) -> None:
    """Record an example kernel, or take a recording from H200s, and write its trace and report."""
    from kprof.recording.launcher.record import RecordRequest

    exit_code = 0
    if is_recorded:
        page = _show_recorded(_checked(kernel), output, force=force)
    else:
        run = output / "run.kprof"
        num_ranks = _checked_ranks(kernel, nproc)
        request = RecordRequest(_workload(kernel, num_ranks), run, num_ranks, force=force)
        recording = record_and_summarise(request)
        page, exit_code = _write(recording.capture, run, output, force=force), recording.exit_code
    if should_open and _has_display():
        _open(page)
    raise typer.Exit(exit_code)


def _write(capture: Capture | Path, run: Path, output: Path, *, force: bool) -> Path:
    """Write the trace and the report of a capture, name all three, and return the report's path;
    says what the report finds where recording it did not."""
    from kprof import report as reports
    from kprof.export import write
    from kprof.report.in_trace import finding_lines
    from kprof.trace import Trace

    trace_file, page = output / "trace.pftrace", output / "report.html"
    trace = Trace.open(capture)
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
    if isinstance(capture, Path):
        say(f"finding  {report.verdict}")
    say(f"capture  {run}")
    say(f"trace    {trace_file}    {view_command(trace_file)}")
    say(f"report   {page}    open it in a browser")
    return page


def _show_recorded(kernel: str, output: Path, *, force: bool) -> Path:
    """Write the trace and the report of a recording, with its story and a comparison to type."""
    import kprof

    places = Path(kprof.__file__).parents[1] / "traces", Path("traces")
    folder = next((each for each in places if (each / "index.toml").is_file()), None)
    if folder is None:
        raise CaptureError(
            "the recordings are in the repository, not in the package; run this in a checkout of "
            "it, or run kprof demo without --recorded"
        )
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    name, then = _RECORDED[kernel]
    run, other = folder / f"{name}.kprof", folder / f"{then}.kprof"
    output.mkdir(parents=True, exist_ok=True)
    stories = _stories(folder)
    say(stories[run.name])
    page = _write(run, run, output, force=force)
    line = shlex.join(["diff", str(run), str(other), "-o", str(output / "diff.html")])
    say(f"next     {program()} {line}")
    say(f"         {stories[other.name]}")
    return page


def _stories(folder: Path) -> dict[str, str]:
    """By recording what it shows, from index.toml. Python 3.10 has no tomllib."""
    text = (folder / "index.toml").read_text(encoding="utf-8")
    found = re.findall(r'^\["([^"]+)"\]$.*?^shows = ("[^\n]*")$', text, re.MULTILINE | re.DOTALL)
    return {name: json.loads(story) for name, story in found}


def _checked(kernel: str) -> str:
    if kernel not in _ARGUMENTS:
        raise typer.BadParameter(
            f"unknown kernel {kernel!r}; choose one of {', '.join(_ARGUMENTS)}",
            param_hint="--kernel",
        )
    return kernel


def _workload(kernel: str, num_ranks: int) -> tuple[str, ...]:
    arguments = _ARGUMENTS[_checked(kernel)].format(last_rank=min(3, num_ranks - 1))
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
