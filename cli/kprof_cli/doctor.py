"""`kprof doctor`: what this machine can record and show, and how to get the rest."""

from __future__ import annotations

from typer import Option

from kprof_cli.options import command
from kprof_cli.output import note, print_json, print_rows


@command(
    is_measuring=Option(
        "--measure",
        help="Measure how fast the devices copy, and keep the result for reports to compare with.",
    ),
)
def doctor(is_measuring: bool = False, is_json: bool = False) -> None:
    """Check what this machine can record and show, and how to get what is missing."""
    from dataclasses import asdict

    from kprof.devices.doctor import examine

    if is_measuring:
        _measure(is_json)
        return
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


def _measure(is_json: bool) -> None:
    """Measure, save and print the ceilings."""
    import msgspec

    from kprof.recording.ceilings import keep, measure_host

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
