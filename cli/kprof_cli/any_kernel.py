"""`kprof record --any-kernel`: options, and what is printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kprof.errors import SelectionError
from kprof.recording.finishing.outcome import describe_exit
from kprof_cli.importing import print_import
from kprof_cli.output import note

_USED: Final = {"workload", "output", "nproc", "any_kernel", "kernels", "skip", "calls", "force"}


def record_any_kernel(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> int:
    """The exit code of the command. `given` are all parameters of kprof record, by name.

    Raises SelectionError for those that would have no effect.
    """
    from kprof.importers.any_kernel import Chosen, Wish, record

    _refuse_others({name for name in given if given[name] != defaults[name]})
    chosen = Chosen(given["kernels"] or "*", given["skip"], given["calls"])
    command = tuple(given["workload"])
    wish = Wish(command, given["output"], given["nproc"], chosen, force=given["force"])
    summary, exit_code = record(wish)
    if exit_code:
        note(f"the workload {describe_exit(exit_code)}; what was recorded is kept")
    print_import(summary, is_detected=False)
    return exit_code


def _refuse_others(given: set[str]) -> None:
    if "any_kernel" not in given:
        raise SelectionError("--kernels is for --any-kernel; add that, or leave --kernels out")
    if others := sorted(given - _USED):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise SelectionError(
            f"{names} cannot be used with --any-kernel, which records with run-iket; leave it out"
        )
