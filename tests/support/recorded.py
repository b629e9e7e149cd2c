"""The recordings in `traces/` and what is found in them, read once by each process of the tests."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final, NamedTuple

from kprof import analysis
from kprof.analysis import Findings, Summary
from kprof.trace import Trace

TRACES: Final = Path(__file__).parents[2] / "traces"


class Recorded(NamedTuple):
    """A recording, and its whole analysis."""

    trace: Trace
    summary: Summary
    found: Findings


def recording(name: str) -> Trace:
    """One of them, by its name without `.kprof`."""
    return Trace.open(TRACES / f"{name}.kprof")


@functools.lru_cache(maxsize=6)
def analysed(name: str) -> Recorded:
    """The same with its findings."""
    trace = recording(name)
    summary = Summary.of(trace)
    return Recorded(trace, summary, analysis.find(summary))
