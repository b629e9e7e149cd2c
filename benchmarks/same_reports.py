"""Do the reports of all recorded captures say the same as before a change?

    git stash; python -m benchmarks.same_reports --save /tmp/before; git stash pop
    python -m benchmarks.same_reports --compare /tmp/before

Prints, per capture, the parts of the JSON report that differ; exits with 1 if any does.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kprof import report
from kprof.trace import Trace

TRACES = Path(__file__).parents[1] / "traces"
# What a run says of itself and not of its capture.
_OF_THIS_RUN = ("capture", "path", "kprof_version")


def reports() -> Iterator[tuple[str, dict[str, Any]]]:
    """Names of captures and their reports."""
    for capture in sorted(TRACES.glob("*.kprof")):
        command = f"kprof view traces/{capture.name}"
        built = report.build(Trace.open(capture), view_command=command)
        found = json.loads(report.to_json(built))
        yield capture.stem, {key: of for key, of in found.items() if key not in _OF_THIS_RUN}


def save(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, found in reports():
        (folder / f"{name}.json").write_text(json.dumps(found))


def compare(folder: Path) -> bool:
    """Print what differs; True if nothing does."""
    is_same = True
    for name, found in reports():
        before = json.loads((folder / f"{name}.json").read_text())
        keys = [*before, *(key for key in found if key not in before)]
        differing = [
            key for key in keys if key not in _OF_THIS_RUN and before.get(key) != found.get(key)
        ]
        print(f"{name}: {', '.join(differing) if differing else 'the same'}")
        is_same &= not differing
    return is_same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--save", type=Path, metavar="FOLDER")
    action.add_argument("--compare", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    if arguments.save:
        save(arguments.save)
    else:
        sys.exit(not compare(arguments.compare))


if __name__ == "__main__":
    main()
