"""Which way arrows run in Perfetto: from sends to waits, never back.

    python tests/support/flow_direction.py [CAPTURE...]

exports whole captures, by default all of traces/, in both formats, and prints how many flows the
trace processor reversed. Exits with 1 if there is one.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kprof.export import write
from kprof.trace import Trace

FORMATS: Final = (".pftrace", ".json.gz")
TRACES: Final = Path(__file__).parents[2] / "traces"


@dataclass(frozen=True)
class Directions:
    """The flows of one exported file: how many were written, how many Perfetto found, and how many
    of these run backwards."""

    num_written: int
    num_found: int
    num_reversed: int


def directions(trace: Trace, path: Path, load: Callable[[Path], Any]) -> Directions:
    """Export `trace` to `path`, load it into a trace processor, and check all its flows."""
    num_written = write(trace, path, max_slices=None).num_flows
    processor = load(path)
    names = {trace.regions.regions[rule.send - 1].name for rule in trace.regions.flows}
    senders = ", ".join("'" + name.replace("'", "''") + "'" for name in sorted(names)) or "''"
    return Directions(
        num_written,
        processor.value("SELECT count(*) FROM flow"),
        processor.value(
            f"""SELECT count(*) FROM flow f
                JOIN slice o ON o.id = f.slice_out JOIN slice i ON i.id = f.slice_in
                WHERE i.ts < o.ts OR o.name NOT IN ({senders})"""
        ),
    )


def main(captures: list[Path]) -> int:
    """Print a line for each capture and format."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "trace_processor"))
    from engine import TraceProcessor, missing_parts  # type: ignore[import-not-found]

    if missing := missing_parts():
        print(missing)
        return 1
    num_reversed = 0
    with TraceProcessor.start() as processor, tempfile.TemporaryDirectory() as folder:

        def load(path: Path) -> TraceProcessor:
            processor.load(path)
            return processor

        for capture in captures:
            for suffix in FORMATS:
                found = directions(
                    Trace.open(capture), Path(folder) / f"{capture.stem}{suffix}", load
                )
                num_reversed += found.num_reversed
                print(
                    f"{capture.name} {suffix}: {found.num_found:,} of {found.num_written:,} flows, "
                    f"{found.num_reversed:,} reversed"
                )
    return 1 if num_reversed else 0


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]] or sorted(TRACES.glob("*.kprof"))))
