"""The commands that answer questions about a capture: info, stats, waits, query."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from typer import Argument, Option

from kprof.on_use import pd
from kprof.trace.selection import SelectionText, parse_numbers
from kprof_cli.info import info_json, print_info
from kprof_cli.options import command
from kprof_cli.output import (
    note,
    print_csv,
    print_frame,
    print_json,
    print_rows,
    program,
    progress_bar,
)

if TYPE_CHECKING:
    from kprof.analysis import Summary
    from kprof.capture.directory import Capture
    from kprof.trace import Trace

# Wider matrices are for machines.
_MAX_COLUMNS = 256


def open_trace(run: Path, text: SelectionText) -> Trace:
    """The selected part of a capture."""
    return trace_of(open_capture(run, text), text)


def open_capture(run: Path, text: SelectionText) -> Capture:
    """A capture, without damaged files of ranks that are not selected."""
    from kprof.capture.directory import Capture

    ranks = None if text.ranks is None else parse_numbers(text.ranks, "--ranks")
    capture = Capture.open(run, ranks)
    for rank, why in capture.left_out.items():
        note(f"without rank {rank}: {why}")
    return capture


def trace_of(capture: Capture, text: SelectionText) -> Trace:
    """The selected part of a capture that is open."""
    from kprof.trace import Trace
    from kprof.trace.trace import select

    trace = Trace.open(capture)
    if not any(info.counts.recorded for info in trace.ranks):
        from kprof.capture.losses import why_empty

        why = why_empty(trace.manifest, trace.ranks) or "none of its kernels recorded any"
        note(f"{capture.path} holds no events: {why}")
    return select(trace, text)


def view_command(run: Path, text: SelectionText | None = None) -> str:
    """The command that opens the selected part of a capture in Perfetto."""
    given = [
        f"--{name}={value}"
        for name, value in asdict(text or SelectionText()).items()
        if value is not None
    ]
    return f"{program()} {shlex.join(['view', str(run), *given])}"


def open_summary(run: Path, text: SelectionText, dask: str | None) -> Summary:
    """The summary of the selected part, made on a Dask cluster if one is given."""
    from kprof.analysis.summary import Summary

    trace = open_trace(run, text)
    with progress_bar() as progress:
        if dask is None:
            return Summary.of(trace, progress)
        from kprof.analysis.cluster import summary_on

        return summary_on(trace, run, dask, progress)


@command()
def info(run: Path, is_json: bool = False) -> None:
    """Show what a capture holds: ranks, devices, clocks, counts, losses, launches."""
    from kprof.capture.directory import Capture

    capture = Capture.open(run)
    if is_json:
        print_json(info_json(capture))
    else:
        print_info(capture)


@command(by=Option(help="Durations per region, or work per rank or block."))
def stats(
    run: Path,
    selection: SelectionText,
    by: Literal["region", "rank", "block"] = "region",
    is_json: bool = False,
    limit: int = 50,
    dask: str | None = None,
) -> None:
    """Show how long regions took, or how work and waiting spread over ranks and threadblocks."""
    from kprof import analysis

    summary = open_summary(run, selection, dask)
    _note_what_is_left_out(summary)
    if by == "region":
        frame = analysis.stats(summary)
        if not is_json:
            if error := float(frame["percentile_error"].max()) if len(frame) else 0.0:
                note(f"median, p95 and p99 are estimates, at most {100 * error:.1f} % off")
            frame = frame.drop(columns="percentile_error")
    else:
        frame = analysis.imbalance(summary, by=by)
        if not is_json:
            note(
                "ns_per_event is work over work_events: of compute, send and recv regions, not of "
                "waits"
            )
    print_frame(frame, is_json=is_json, limit=limit)


@command(
    by=Option(
        help="Who waits (rank, block), where (region), for whom (peer), who for whom (matrix), "
        "late sender versus transfer (sender), or warps of a block for each other (role)."
    )
)
def waits(
    run: Path,
    selection: SelectionText,
    by: Literal["rank", "block", "region", "peer", "matrix", "sender", "role"] = "rank",
    is_json: bool = False,
    limit: int = 50,
    dask: str | None = None,
) -> None:
    """Show who waited, where, for how long and for whom."""
    from kprof import analysis
    from kprof.analysis.waiting import role_waits

    summary = open_summary(run, selection, dask)
    _note_what_is_left_out(summary)
    _note_without_waits(summary)
    has_queues = any(rule.in_block for rule in summary.trace.regions.flows)
    if has_queues and by in ("peer", "matrix", "sender"):
        note("warps that wait for others of their block wait for no rank: --by role has them")
    if by == "role" and not has_queues:
        note("no FLOW_IN_BLOCK says which warps of a block wait for each other")
    if by == "matrix":
        matrix = analysis.blame_matrix(summary)
        shown = matrix if is_json else _columns_to_read(matrix)
        frame = shown.add_prefix("for_rank_").add_suffix("_ns").reset_index()
    elif by == "sender":
        frame = analysis.late_sender(summary)
    elif by == "role":
        frame = role_waits(summary)
        if not is_json:
            # It stands before the "/" of the region.
            frame = frame.drop(columns="role")
    else:
        waits_by = analysis.waits(summary, by=by)
        frame = waits_by.sort_values("wait_ns", ascending=False, kind="stable")
        if by == "block" and not is_json:
            # In JSON that share is of the rank's time.
            frame = frame.drop(columns="share")
        if by == "peer" and not is_json:
            frame["peer"] = frame["peer"].astype(object).where(frame["peer"] >= 0, "none")
    print_frame(frame, is_json=is_json, limit=limit, has_one_unit=by == "matrix")


def _note_without_waits(summary: Summary) -> None:
    """Why the table is empty, where there is nothing to wait in."""
    from kprof import analysis
    from kprof.regions import Category

    if len(analysis.waits(summary, by="rank")):
        return
    waiting = (Category.WAIT, Category.SYNC)
    names = [each.name for each in summary.trace.regions.regions if each.category in waiting]
    if names:
        note(f"no wait was recorded; regions that wait: {', '.join(names[:8])}")
        return
    note(
        "no region of this capture is a wait; give one the category wait or sync in regions.h, or "
        "for imported events in a file for kprof import --regions"
    )


def _note_what_is_left_out(summary: Summary) -> None:
    from kprof.analysis.findings.doubt import part_of_launches
    from kprof.analysis.hung import hung_waits, left_out

    part = part_of_launches(summary)
    # Who selects blocks knows it.
    if part is not None and summary.trace.selection.blocks is None:
        note(part.sentence)
    if text := left_out(hung_waits(summary)):
        note(text)


def _columns_to_read(matrix: pd.DataFrame) -> pd.DataFrame:
    """The ranks that were waited for longest, if there are too many columns to read."""
    if len(matrix.columns) <= _MAX_COLUMNS:
        return matrix
    note(
        f"showing the {_MAX_COLUMNS} ranks that were waited for longest, of "
        f"{len(matrix.columns):,}; --json has all"
    )
    return matrix[sorted(matrix.sum().nlargest(_MAX_COLUMNS).index)]


@command(
    sql=Argument(
        metavar="SQL", help="DuckDB SQL over the views events, flows, regions, launches and ranks."
    ),
    is_csv=Option("--csv", help="Print CSV."),
)
def query(
    run: Path,
    sql: str,
    selection: SelectionText,
    is_json: bool = False,
    is_csv: bool = False,
    limit: int = 50,
) -> None:
    """Run SQL over the events of a capture, all ranks on one clock."""
    trace = open_trace(run, selection)
    names, rows = trace.rows(trace.only_select(sql))
    if not trace.is_on_one_clock:
        # Unlike the analyses a query cannot be told what it means to compare.
        note(
            "the ranks are not on one clock "
            f"({trace.manifest.alignment_note or 'no clock calibration'}): times of "
            "different ranks, as in a row of flows, are not comparable"
        )
    if is_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    elif is_csv:
        print_csv([names, *rows])
    else:
        print_rows(names, rows, limit=limit)
