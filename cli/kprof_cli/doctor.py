"""`kprof doctor`: what this machine can record and show, and what to do about the rest."""

from __future__ import annotations

import typer

from kprof_cli.options import JsonOption
from kprof_cli.output import print_json, print_rows


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(is_json: JsonOption = False) -> None:
    """Say what this machine can record and show, and what to do about what is missing."""
    from dataclasses import asdict

    from kprof.devices.doctor import examine

    checks = examine()
    if is_json:
        print_json([asdict(check) for check in checks])
        return
    print_rows(
        ("", "what", "found", "what to do"),
        [
            ("ok" if check.is_ok else "--", check.name, check.found, check.remedy)
            for check in checks
        ],
    )
