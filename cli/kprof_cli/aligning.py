"""`kprof align`: one clock for captures that have none, or a poor one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from typer import Argument, Option

from kprof_cli.options import CAPTURE_OUTPUT, command
from kprof_cli.output import format_ns, note, say

COLLECTIVE = Option(
    "--collective",
    help="An event or a kernel, with wildcards, that no rank ends before all have begun it; "
    "repeat for more. Kernels of NCCL and RCCL are known.",
)


@command(
    runs=Argument(metavar="RUN...", help="Captures, such as run.kprof."),
    output=CAPTURE_OUTPUT,
    collective=COLLECTIVE,
    force=Option("--force", "-f", help="Replace a clock, or an existing output."),
)
def align(
    runs: list[Path],
    output: Path | None = None,
    collective: list[str] | None = None,
    force: bool = False,
) -> None:
    """Put the ranks of a capture onto one clock by its own messages and collectives."""
    if output is not None and len(runs) > 1:
        raise typer.BadParameter(f"-o takes one capture, not {len(runs)}")
    for run in runs:
        align_run(run, output, collective or (), force=force)


def align_run(run: Path, output: Path | None, collective: Sequence[str], *, force: bool) -> None:
    """Align a capture and print its bounds; raises ClockError and CaptureError."""
    from kprof.aligning.align import align as align_capture

    found = align_capture(run, output, collective, force=force)
    for text in found.notes:
        note(text)
    alignment = found.alignment
    ranks = f"{len(alignment.ranks)} ranks on the clock of rank {alignment.reference_rank}"
    bound = format_ns(alignment.widest_bound_ns)
    say(f"aligned  {found.path}: {ranks}, any two within {bound} ({alignment.method})")
    if found.left_out:
        from kprof.capture.losses import name_ranks

        say(f"not      {name_ranks(found.left_out)}: no message bounds the clock from both sides")
