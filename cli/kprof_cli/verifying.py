"""`kprof verify`: is a finding the cause? Runs the workload again, with delays in its kernels."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer import Argument, Option

from kprof_cli.options import command
from kprof_cli.output import format_ns, note, print_json, progress_bar, say

if TYPE_CHECKING:
    from kprof.capture.verified import Verified

_EXIT_UNLESS_CONFIRMED = 3


@command(
    workload=Argument(
        metavar="[-- CMD]", help="Another command than that of the recording.", show_default=False
    ),
    finding=Option(help="The finding of kprof report, by id or number."),
    rounds=Option(metavar="N", help="Run CMD so often with each delay, and without one."),
    nproc=Option(help="Start CMD on this many ranks with torchrun. Default: as it was recorded."),
    is_yes=Option("--yes", help="Run the command that the capture names without asking."),
)
def verify(
    run: Path,
    workload: list[str] | None = None,
    finding: str = "1",
    rounds: int = 5,
    nproc: int | None = None,
    is_yes: bool = False,
    is_json: bool = False,
) -> None:
    """Run the command of a capture again, to see on the machine whether a finding is the cause.

    Asks before it runs what the capture names. Exits with 3 unless the finding is confirmed.
    """
    import msgspec

    from kprof import proof
    from kprof.capture.verified import Verdict

    tried = proof.prepare(run, finding, command=workload or (), num_procs=nproc, num_rounds=rounds)
    if not workload and not is_yes:
        _ask(run, shlex.join(tried.command))
    with progress_bar() as progress:
        verified = proof.verify(tried, run, progress)
    if is_json:
        print_json(msgspec.to_builtins(verified))
    else:
        say(f"finding    {tried.finding.sentence}")
        say(f"delayed    {tried.delayed}")
        _print(verified)
    note(f"kept in {run}; kprof report shows it with the finding")
    if verified.verdict is not Verdict.CONFIRMED:
        raise typer.Exit(_EXIT_UNLESS_CONFIRMED)


def _ask(run: Path, recorded: str) -> None:
    """A capture may be somebody else's, and what it names is not run unseen. Raises SelectionError
    where nobody can be asked."""
    from kprof.errors import SelectionError

    if not sys.stdin.isatty():
        raise SelectionError(
            f"{run} names the command {recorded}; give it after --, or --yes to run it as it is"
        )
    note(f"{run} names the command {recorded}")
    typer.confirm("Run it?", abort=True, err=True)


def _print(verified: Verified) -> None:
    from kprof.analysis.wording import percent

    (before, *_, after), (first, *_, last) = (
        map(format_ns, lengths_ns) for lengths_ns in (verified.call_ns, verified.promised_call_ns)
    )
    shown, promised, low, high = map(
        percent, (verified.shown, verified.promised_shown, verified.low, verified.high)
    )
    say(f"promised   {promised} of a delay shows in a call, which grows from {first} to {last}")
    say(f"measured   {shown}, from {before} to {after}")
    say(f"interval   {low} to {high}, with 90 %")
    say(f"verdict    {verified.verdict.value}")
