"""At which collective of NCCL a finding shows: its rank arrives late there, and the others wait."""

from __future__ import annotations

from typing import Final

from kprof.analysis.collectives import WAIT, arrivals
from kprof.analysis.findings.facts import Arrival, Facts
from kprof.analysis.summary import Summary

# The collectives that it is late at have to explain this part of what it costs, and a kernel this
# part of how late it is.
_MOSTLY: Final = 0.5


def arrival_of(summary: Summary, finding: Facts) -> Arrival | None:
    """Where the ranks of a finding are late, if they cost most of its gain by that."""
    is_on_one_clock = summary.trace.is_on_one_clock
    if not (finding.ranks and is_on_one_clock and WAIT in summary.trace.regions.names):
        return None
    found = arrivals(summary)
    found = found[found["rank"].isin(finding.ranks) & found["ordinal"].isin(finding.calls)]
    if found.empty or found["late_ns"].sum() < _MOSTLY * finding.gain_ns:
        return None
    which = found.groupby(["kernel", "place"])["late_ns"].transform("sum")
    most = found.iloc[int(which.to_numpy().argmax())]
    rows = found[(found["kernel"] == most["kernel"]) & (found["place"] == most["place"])]
    late_ns = float(rows["late_ns"].median())
    before, places = str(rows["before"].mode()[0]), int(rows["places"].mode()[0])
    before_ns = float(rows.loc[rows["before"] == before, "before_ns"].median())
    if not before or before_ns < _MOSTLY * late_ns:
        before, before_ns = "", 0.0
    before_ns = min(before_ns, late_ns)
    return Arrival(str(most["kernel"]), int(most["place"]), places, late_ns, before, before_ns)
