"""Sums over flows (a send and the wait that it releases), computed slice by slice and kept in the
summary.

    flow_sums   send_region, wait_region, src, dst
                -> flows, sends, wait_ns, late_sender_ns, exposed_transfer_ns, violations,
                violations_beyond_bound, bound_ns

`sends` counts the sends that released a wait; a send may release several. Flows need the events of
two ranks, so they cannot be in the summary of one rank. Up to MAX_EVENTS_PAIRED sends and waits,
all of them are paired. Larger captures pair a sample of whole calls, evenly spread over the run:
`calls_paired` says which. Here a call is a set of launches that exchange data only with each other
(kprof.trace.flows.launches).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kprof.analysis.metric import memo
from kprof.analysis.summary import Summary
from kprof.trace.events import Events
from kprof.trace.flows.ends import FlowEnds, Slice
from kprof.trace.flows.pairing import Ends

# The sends and waits of a slice are in memory together, about 60 bytes each.
EVENTS_PER_SLICE: Final = 3_000_000
# Pairing this many takes about as long as the rest of a report.
MAX_EVENTS_PAIRED: Final = 32_000_000
_EVENTS_SAMPLED: Final = 8_000_000


@dataclass(frozen=True)
class CallsPaired:
    """The numbers of the calls whose flows are in the sums, and the number of all calls."""

    ordinals: tuple[int, ...]
    of_calls: int

    @property
    def is_all(self) -> bool:
        """Whether nothing was left out."""
        return len(self.ordinals) == self.of_calls


@memo
def flow_ends(summary: Summary) -> FlowEnds:
    """The sends and waits that can match."""
    return FlowEnds.of(summary.trace, summary.trace.flow_sides)


def calls_paired(summary: Summary) -> CallsPaired:
    """All calls, or a sample if there are too many sends and waits."""
    ends = flow_ends(summary).ends_of_groups
    total = sum(ends.values())
    if total <= MAX_EVENTS_PAIRED or len(ends) < 2:
        return CallsPaired(tuple(ends), len(ends))
    count = max(1, round(_EVENTS_SAMPLED * len(ends) / total))
    numbers = list(ends)
    spread = {numbers[(2 * i + 1) * len(numbers) // (2 * count)] for i in range(count)}
    return CallsPaired(tuple(sorted(spread)), len(ends))


def sum_flows(summary: Summary) -> None:
    """Compute this module's table, unless it exists."""
    if keep_sums not in summary.results:
        ends = flow_ends(summary)
        slices = flow_slices(summary)
        keep_sums(summary, [row for part in slices for row in sums_of_slice(ends, part)])


def keep_sums(summary: Summary, rows: list[FlowRow]) -> None:
    """Merge the sums of all sets of calls."""
    kinds = dict.fromkeys(_PART_COLUMNS, "int64") | {"bound_ns": "float64"}
    table = pd.DataFrame(rows, columns=list(kinds)).astype(kinds)
    summary.put("flow_parts", table)
    summary.frame(_UNITE_SQL)
    summary.results[keep_sums] = None


FlowRow = tuple[float, ...]
_SUMMED: Final = (
    "flows",
    "sends",
    "wait_ns",
    "late_sender_ns",
    "exposed_transfer_ns",
    "violations",
    "violations_beyond_bound",
)
_PART_COLUMNS: Final = ("send_region", "wait_region", "src", "dst", *_SUMMED, "bound_ns")

_UNITE_SQL: Final = f"""
    CREATE OR REPLACE TEMP TABLE flow_sums AS
    SELECT s.name AS send_region, w.name AS wait_region, src, dst,
        {", ".join(f"total({name}) AS {name}" for name in _SUMMED)}, max(bound_ns) AS bound_ns
    FROM flow_parts JOIN regions s ON s.id = send_region JOIN regions w ON w.id = wait_region
    GROUP BY s.name, w.name, src, dst"""


def flow_slices(summary: Summary) -> list[Slice]:
    """The paired calls, in slices of at most about EVENTS_PER_SLICE sends and waits."""
    groups = frozenset(calls_paired(summary).ordinals)
    return list(flow_ends(summary).slices(EVENTS_PER_SLICE, groups))


def sums_of_slice(ends: FlowEnds, chosen: Slice) -> list[FlowRow]:
    """The rows of `flow_sums` for one slice, by region ids. Slices are summed."""
    sends, waits = ends.read(chosen)
    s, w = ends.pair(sends, waits)
    bounds = _Bounds.of(ends.trace)
    rows: list[FlowRow] = []
    for i, rule in enumerate(ends.trace.regions.flows):
        of_rule = waits.rule[w] == i
        rows += [
            (rule.send, rule.wait, *row)
            for row in _link_sums(sends, waits, s[of_rule], w[of_rule], bounds)
        ]
    return rows


def _link_sums(
    sends: Ends, waits: Ends, s: NDArray[np.intp], w: NDArray[np.intp], bounds: _Bounds
) -> list[FlowRow]:
    """For each (source, destination), the columns of `flow_sums` from `src` on.

    `s` and `w` are the rows of flows.
    """
    if len(s) == 0:
        return []
    start, end, sent = waits.start_ns[w], waits.end_ns[w], sends.start_ns[s]
    released = np.minimum(sent, end)
    src, dst = (np.searchsorted(bounds.ranks, rank[w]) for rank in (waits.src, waits.dst))
    bound = bounds.between_ns[src, dst]
    num_ranks = len(bounds.ranks)
    links, at = np.unique(src * num_ranks + dst, return_inverse=True)
    is_first = np.zeros(len(s), np.bool_)
    is_first[np.unique(s, return_index=True)[1]] = True
    measured = (
        np.ones(len(s), dtype=np.int64),
        is_first,
        end - start,
        np.maximum(0, released - start),
        end - np.maximum(start, released),
        end < sent,
        end < sent - bound,
    )
    # Sums of ns stay below 2**53 (a hundred days of waiting), so floats are exact.
    sums = [np.bincount(at, weights=values).astype(np.int64) for values in measured]
    of_link = np.zeros(len(links))
    of_link[at] = bound
    ends = bounds.ranks[links // num_ranks], bounds.ranks[links % num_ranks]
    return list(zip(*ends, *sums, of_link, strict=True))


@dataclass(frozen=True)
class _Bounds:
    """The clock error bounds between recorded ranks, shape (ranks, ranks). 0 if unaligned."""

    ranks: NDArray[np.int64]
    between_ns: NDArray[np.float64]

    @staticmethod
    def of(trace: Events) -> _Bounds:
        ranks = sorted(info.rank for info in trace.manifest.ranks)
        alignment = trace.alignment
        to_reference = (
            {entry.rank: entry.bound_ns for entry in alignment.ranks} if alignment else {}
        )
        own = np.array([to_reference.get(rank, 0.0) for rank in ranks])
        between_ns = own[:, None] + own
        place = {rank: i for i, rank in enumerate(ranks)}
        for known in alignment.pairs if alignment else ():
            if known.a in place and known.b in place:
                a, b = place[known.a], place[known.b]
                between_ns[[a, b], [b, a]] = known.bound_ns
        np.fill_diagonal(between_ns, 0.0)
        return _Bounds(np.array(ranks, dtype=np.int64), between_ns)
