"""The table of faults that `make amd-faults` plants in device code."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "amd"))
from faults import FAULTS  # noqa: E402


def test_every_fault_has_one_place() -> None:
    places = {fault.name: (ROOT / fault.path).read_text().count(fault.old) for fault in FAULTS}
    assert {name: count for name, count in places.items() if count != 1} == {}
    assert len(places) == len(FAULTS) >= 40
