"""Entry point: puts the commands together and turns errors into one line and an exit code.

Exit codes: 0 ok; 1 an error of ours, in one line; 2 usage; 3 a `--fail-on` bar missed, or a finding
that `verify` does not confirm; `record` and `demo` keep the workload's own; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from kprof.errors import KprofError, describe_error
from kprof_cli import (
    aligning,
    cleaning,
    demo,
    doctor,
    exporting,
    importing,
    new,
    plotting,
    reading,
    recording,
    reporting,
    verifying,
    watching,
)
from kprof_cli.output import note, say

EXIT_INTERRUPTED: Final = 130
_DEBUG_FLAG: Final = "--debug"

app = typer.Typer(
    name="kprof",
    help="See inside multi-GPU kernels: which threadblock waited for which rank, how long, and "
    "why.",
    epilog="Start with: kprof demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# In the order of --help.
app.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Example: kprof record --nproc 8 -- python train.py --steps 3",
)(recording.record)
app.command(epilog="Example: kprof recover run.kprof.unfinished")(recording.recover)
app.command(epilog="Example: kprof clean")(cleaning.clean)
app.command(epilog="Example: kprof watch run.kprof --metrics 9400")(watching.watch)
for command in (reading.info, reading.stats, reading.waits, reporting.report, reading.query):
    app.command()(command)
app.command()(reporting.explain)
app.command()(reporting.diff)
app.command(epilog="Example: kprof verify run.kprof --finding 1")(verifying.verify)
app.command(epilog="Example: kprof plot run.kprof ribbon -o ribbon.svg")(plotting.plot)
for command in (exporting.export, exporting.view):
    app.command()(command)
app.command("import")(importing.import_events)
app.command(epilog="Example: kprof align run.kprof -o aligned.kprof")(aligning.align)
app.command(epilog="Example: kprof merge host0.kprof host1.kprof -o run.kprof")(aligning.merge)
app.command()(demo.demo)
app.command(epilog="Example: kprof hang run.kprof")(watching.hang)
app.command()(doctor.doctor)
app.command(epilog="Example: kprof new my_kernel && cd my_kernel && make")(new.new)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        import kprof

        say(f"kprof {kprof.__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    _debug: Annotated[
        bool, typer.Option(_DEBUG_FLAG, help="Show the traceback of an error (after any command).")
    ] = False,
) -> None:
    """See inside multi-GPU kernels: which threadblock waited for which rank, how long, and why."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Never raises."""
    is_debug, rest = _take_debug(list(arguments))
    code = 0
    try:
        try:
            app(args=rest, prog_name="kprof")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        # Flush now, while a failure can still be reported.
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) has gone. Keep the interpreter from complaining when
        # it flushes.
        _discard_output()
        return code or 1
    except Exception as error:
        if is_debug:
            traceback.print_exc()
        if isinstance(error, OSError):
            _discard_output()
        note(describe_error(error))
        return error.exit_code if isinstance(error, KprofError) else code or 1
    return code


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _take_debug(arguments: list[str]) -> tuple[bool, list[str]]:
    """Remove --debug from kprof's own part of the command line.

    A recorded command keeps its own.
    """
    if "--" in arguments:
        end = arguments.index("--")
    elif "record" in arguments:
        end = arguments.index("record")
    else:
        end = len(arguments)
    ours = [argument for argument in arguments[:end] if argument != _DEBUG_FLAG]
    return len(ours) < end, ours + arguments[end:]


def main() -> None:
    """The console script."""
    # None if the shell closed it (`>&-`). Printing then goes nowhere, as in C.
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115
    sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    sys.exit(run(sys.argv[1:]))
