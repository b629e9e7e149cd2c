"""`kprof explain`: what would make the run shorter, and by how much?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kprof.trace.selection import SelectionText
from kprof_cli.options import command
from kprof_cli.output import note, print_json, say
from kprof_cli.reading import open_trace

if TYPE_CHECKING:
    from kprof.analysis import Findings


@command()
def explain(run: Path, selection: SelectionText, is_json: bool = False) -> None:
    """Show what would make the run shorter, and by how much."""
    from kprof.analysis import Summary, find

    found = find(Summary.of(open_trace(run, selection)))
    if is_json:
        _print_json(found)
        return
    for doubt in found.doubts:
        note(doubt.sentence)
    for number, finding in enumerate(found.findings, 1):
        say(f"{number}. {finding.sentence}")
        for detail in (*finding.details, finding.advice):
            say(f"   {detail}")
    if found.rest.sentence:
        say(f"{found.rest.sentence}.")
    if found.rest.below:
        say(f"{found.rest.below}.")
    for limit in found.rest.limits:
        say(f"   {limit.by_design}")


def _print_json(found: Findings) -> None:
    from kprof.report.machine import doubt_row, finding_row, rest_row

    document = {
        "doubts": [doubt_row(doubt) for doubt in found.doubts],
        "findings": [finding_row(finding) for finding in found.findings],
        "rest": rest_row(found.rest),
        "calls": found.calls,
        "num_calls": found.num_calls,
        "total_ns": found.total_ns,
    }
    print_json(document)
