"""`kprof doctor`: what this machine can record and show, and how to get the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import msgspec
from typer import Option

from kprof.devices.targets import best_target, record_of
from kprof.doctor.checks import Check, examine
from kprof_cli.options import command
from kprof_cli.output import note, print_json, print_rows


@command(
    is_measuring=Option(
        "--measure",
        help="Measure how fast the devices copy, and keep the result for reports to compare with.",
    ),
    is_first_run=Option(
        "--first-run",
        help="Try everything that kprof relies on, on one device: a page for a report about a new "
        "GPU. Takes a few minutes with compiling.",
    ),
    device=Option("--device", help='For --first-run: "cpu", "cuda:1" (default: the first GPU).'),
)
def doctor(
    is_measuring: bool = False,
    is_first_run: bool = False,
    device: str = "",
    is_json: bool = False,
) -> None:
    """Check what this machine can record and show, and how to get what is missing."""
    if is_measuring:
        _measure(is_json)
        return
    if is_first_run:
        _first_run(device, is_json)
        return
    _print(examine(), is_json)


def _print(checks: Sequence[Check], is_json: bool) -> None:
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


def _first_run(device: str, is_json: bool) -> None:
    """Try what kprof relies on; exit code 1 where something did not work."""
    from kprof.doctor.first_run import FirstRun
    from kprof_cli.first_run import collectives

    device = device or ("cuda:0" if record_of(best_target()).is_gpu else "cpu")
    checks = [*FirstRun(device).checks(), *collectives(device)]
    _print(checks, is_json)
    if not all(check.is_ok for check in checks):
        raise SystemExit(1)


def _measure(is_json: bool) -> None:
    from kprof.recording.rank.ceilings import keep, measure_host

    measured = measure_host()
    path = keep(measured)
    if is_json:
        print_json(msgspec.to_builtins(measured))
        return
    rows: list[tuple[str, str, str]] = []
    for each in measured.devices:
        rates = {"copy": each.ceilings.copy_gb_s, "copy in cache": each.ceilings.near_gb_s}
        rows += [(each.device, what, f"{rate:.1f}") for what, rate in rates.items() if rate]
    rows += [(each.source, f"copy to {each.target}", f"{each.gb_s:.1f}") for each in measured.pairs]
    print_rows(("device", "what", "GB/s"), rows)
    note(f"saved in {path}; recordings on this host include it")
