"""`kprof align` and `kprof merge`: one clock for what has none, one capture of several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from typer import Argument, Option

from kprof.errors import ClockError
from kprof_cli.options import CAPTURE_OUTPUT, command
from kprof_cli.output import format_ns, note, say

COLLECTIVE = Option(
    "--collective",
    help="An event or a kernel, with wildcards, that no rank ends before all have begun it; "
    "repeat for more. Kernels of NCCL and RCCL are known.",
)

FROM_FLOWS = Option(
    "--from-flows", help="Align the ranks by their messages and collectives, as kprof align does."
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


@command(
    parts=Argument(
        metavar="PART...",
        help="What each host recorded of one run, in any order: captures, folders of captures, "
        "or URLs of either, such as s3://bucket/run (with fsspec).",
    ),
    output=CAPTURE_OUTPUT,
    collective=COLLECTIVE,
    is_from_flows=FROM_FLOWS,
)
def merge(
    parts: list[str],
    output: Path = Path("run.kprof"),
    collective: list[str] | None = None,
    is_from_flows: bool = False,
    force: bool = False,
) -> None:
    """Make one capture of those that several hosts recorded of one run.

    Where no calibration of all its ranks was recorded, they are aligned as by kprof align.
    """
    from kprof.aligning.merge import merge as merge_captures
    from kprof.aligning.parts import local_parts
    from kprof.capture.losses import name_ranks

    with local_parts(parts) as captures:
        found = merge_captures(captures, output, force=force)
    manifest = found.manifest
    say(f"merged   {output}: {len(manifest.ranks)} of {manifest.world_size} ranks")
    if found.missing_ranks:
        say(f"missing  {name_ranks(found.missing_ranks)}: in none of the parts, or damaged there")
    if len(manifest.ranks) > 1 and (is_from_flows or manifest.alignment is None):
        try:
            align_run(output, None, collective or (), force=True)
        except ClockError as error:
            note(f"{error}; {output} is complete, and its ranks have clocks of their own")


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
