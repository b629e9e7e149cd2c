"""Sums over flows (a send and the wait that it releases), made slice by slice of launches and kept with the
trace.

    flow_sums   send_region, wait_region, src, dst -> flows, wait_ns, late_sender_ns, exposed_transfer_ns, violations,
                violations_beyond_bound, bound_ns

Flows need the events of two ranks, so no summary of one rank holds them. Up to MAX_EVENTS_PAIRED all of them are
looked at; of larger captures whole calls, evenly spread over the run: `calls_paired` says which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kprof.analysis.skew import launch_starts
from kprof.analysis.summary import summarise, table_exists
from kprof.capture.directory import EVENT_OPEN
from kprof.pairing import Ends, Ints, pair
from kprof.views import aligned_sql, segment_of

if TYPE_CHECKING:
    import pyarrow as pa

    from kprof.trace import Trace

# Both sides of a slice are in memory at a time: 8 columns of 8 bytes for at most this many events.
EVENTS_PER_SLICE: Final = 4_000_000
MAX_EVENTS_PAIRED: Final = 128_000_000
_EVENTS_SAMPLED: Final = 16_000_000


@dataclass(frozen=True)
class CallsPaired:
    """Ordinals of the calls whose flows are in the sums, of how many."""

    ordinals: tuple[int, ...]
    of_calls: int

    @property
    def is_all(self) -> bool:
        """Whether nothing was left out."""
        return len(self.ordinals) == self.of_calls


def calls_paired(trace: Trace) -> CallsPaired:
    """All calls, or those that are looked at where there are too many events for all of them."""
    events = _events_of_calls(trace)
    total = sum(events.values())
    if total <= MAX_EVENTS_PAIRED or len(events) < 2:
        return CallsPaired(tuple(events), len(events))
    count = max(1, round(_EVENTS_SAMPLED * len(events) / total))
    ordinals = list(events)
    spread = {ordinals[(2 * i + 1) * len(ordinals) // (2 * count)] for i in range(count)}
    return CallsPaired(tuple(sorted(spread)), len(events))


def sum_flows(trace: Trace) -> None:
    """Make the table of this module in the trace's database, unless it is there.

    The n-th send of a (source, destination, slot) meets its n-th wait within a call, as in the view `flows`; a
    slice holds whole calls, so that the pairing needs only a slice's events in memory.
    """
    if table_exists(trace, "flow_sums"):
        return
    keep_sums(
        trace,
        [
            row
            for ordinals in call_slices(trace)
            for row in sums_of_calls(trace, launches_of(trace, ordinals), ordinals)
        ],
    )


def keep_sums(trace: Trace, rows: list[FlowRow]) -> None:
    """Unite the sums of all sets of calls."""
    trace.put("flow_parts", _parts_table(rows))
    trace.frame(_UNITE_SQL)


FlowRow = tuple[float, ...]
_PART_COLUMNS: Final = (
    "send_region",
    "wait_region",
    "src",
    "dst",
    "flows",
    "wait_ns",
    "late_sender_ns",
    "exposed_transfer_ns",
    "violations",
    "violations_beyond_bound",
    "bound_ns",
)

_UNITE_SQL: Final = """
    CREATE OR REPLACE TEMP TABLE flow_sums AS
    SELECT s.name AS send_region, w.name AS wait_region, src, dst, CAST(sum(flows) AS BIGINT) AS flows,
        CAST(sum(wait_ns) AS BIGINT) AS wait_ns, CAST(sum(late_sender_ns) AS BIGINT) AS late_sender_ns,
        CAST(sum(exposed_transfer_ns) AS BIGINT) AS exposed_transfer_ns, CAST(sum(violations) AS BIGINT) AS violations,
        CAST(sum(violations_beyond_bound) AS BIGINT) AS violations_beyond_bound, max(bound_ns) AS bound_ns
    FROM flow_parts JOIN regions s ON s.id = send_region JOIN regions w ON w.id = wait_region
    GROUP BY s.name, w.name, src, dst"""


def _parts_table(rows: list[FlowRow]) -> pa.Table:
    import pyarrow as pa

    columns = zip(*rows, strict=True) if rows else [()] * len(_PART_COLUMNS)
    kinds = [pa.int64()] * (len(_PART_COLUMNS) - 1) + [pa.float64()]
    arrays = [
        pa.array(np.asarray(values)).cast(kind) for values, kind in zip(columns, kinds, strict=True)
    ]
    return pa.table(arrays, names=list(_PART_COLUMNS))


def _events_of_calls(trace: Trace) -> dict[int, int]:
    """Events by ordinal."""
    summarise(trace)
    table = trace.frame(
        "SELECT ordinal, CAST(sum(events) AS BIGINT) AS events FROM tracks JOIN spans_of_launches USING (rank, launch) "
        "GROUP BY ordinal ORDER BY ordinal"
    )
    return dict(zip(table["ordinal"].tolist(), table["events"].tolist(), strict=True))


def call_slices(trace: Trace) -> Iterator[list[int]]:
    """The calls that are looked at, in sets of at most about EVENTS_PER_SLICE events."""
    events = _events_of_calls(trace)
    chosen: list[int] = []
    total = 0
    for ordinal in calls_paired(trace).ordinals:
        if chosen and total + events[ordinal] > EVENTS_PER_SLICE:
            yield chosen
            chosen, total = [], 0
        chosen.append(ordinal)
        total += events[ordinal]
    if chosen:
        yield chosen


def launches_of(trace: Trace, ordinals: list[int]) -> list[int]:
    """The launch numbers of some calls, on whatever rank."""
    starts = launch_starts(trace)
    return sorted(set(starts.loc[starts["ordinal"].isin(ordinals), "launch"].tolist()))


def sums_of_calls(trace: Trace, launches: list[int], ordinals: list[int]) -> list[FlowRow]:
    """Rows of `flow_sums` by region ids, of some calls and nothing else: they add up with those of other calls."""
    rules = trace.regions.flows
    if not rules:
        return []
    ends = trace.sql(_ends_sql(launches, ordinals))
    columns = {name: ends[name].to_numpy().astype(np.int64) for name in ends.column_names}
    bounds = _bounds_between_ranks(trace)
    rows: list[FlowRow] = []
    for rule in rules:
        sends = _side(columns, rule.send, src="rank", dst="peer")
        waits = _side(columns, rule.wait, src="peer", dst="rank")
        rows += [(rule.send, rule.wait, *row) for row in _link_sums(sends, waits, bounds)]
    return rows


def _ends_sql(launches: list[int], ordinals: list[int]) -> str:
    """From the records, which costs half of asking the view; other launches' Parquet row groups are not read."""
    listed = ", ".join(str(launch) for launch in launches) or "NULL"
    calls = ", ".join(str(ordinal) for ordinal in ordinals) or "NULL"
    return f"""
        SELECT e.rank, {_payload_field("peer")}, coalesce(l.ordinal, 0) AS ordinal, {_payload_field("slot")},
            r.id AS region_id,
            {aligned_sql("e.start_ns")} AS start_ns, {aligned_sql("e.start_ns + e.duration_ns")} AS end_ns,
            e.file_row_number AS event_id
        FROM selected_raw_events e
        JOIN (SELECT * FROM raw_regions WHERE id IN (SELECT send FROM flow_rules UNION SELECT wait FROM flow_rules)) r
            ON r.rank = e.rank AND r.local_id = e.region
        JOIN clock_segments c ON {segment_of("e.rank", "e.start_ns")}
        LEFT JOIN launches l ON l.rank = e.rank AND l.launch = e.launch
        WHERE e.flags & {EVENT_OPEN} = 0 AND e.launch IN ({listed}) AND coalesce(l.ordinal, 0) IN ({calls})"""


def _payload_field(name: str) -> str:
    return f"CAST((e.payload >> r.{name}_shift) & r.{name}_mask AS BIGINT) AS {name}"


def _side(columns: dict[str, Ints], region_id: int, src: str, dst: str) -> Ends:
    chosen = np.flatnonzero(columns["region_id"] == region_id)
    names = (src, dst, "ordinal", "slot", "start_ns", "end_ns", "event_id")
    return Ends(*(columns[name][chosen] for name in names))


def _link_sums(sends: Ends, waits: Ends, bounds: Any) -> list[FlowRow]:
    """Per (source, destination): the columns of `flow_sums` from `src` on."""
    s, w = pair(sends, waits)
    if len(s) == 0:
        return []
    start, end, sent = waits.start_ns[w], waits.end_ns[w], sends.start_ns[s]
    released = np.minimum(sent, end)
    src, dst = waits.src[w], waits.dst[w]
    bound = bounds[src, dst]
    links, at = np.unique(src * len(bounds) + dst, return_inverse=True)
    measured = (
        np.ones(len(s), dtype=np.int64),
        end - start,
        np.maximum(0, released - start),
        end - np.maximum(start, released),
        end < sent,
        end < sent - bound,
    )
    # Sums of ns stay below 2**53, where floats are whole: that is a hundred days of waiting.
    sums = [np.bincount(at, weights=values).astype(np.int64) for values in measured]
    of_link = np.zeros(len(links))
    of_link[at] = bound
    return list(zip(links // len(bounds), links % len(bounds), *sums, of_link, strict=True))


def _bounds_between_ranks(trace: Trace) -> Any:
    """The clock error bound between all ranks of the world, (ranks, ranks); 0 where nothing was aligned."""
    size = 1 + max([trace.manifest.world_size, *(info.rank for info in trace.ranks)])
    to_reference = np.zeros(size)
    for entry in trace.alignment.ranks if trace.alignment else ():
        to_reference[entry.rank] = entry.bound_ns
    bounds = to_reference[:, None] + to_reference
    for known in trace.alignment.pairs if trace.alignment else ():
        bounds[[known.a, known.b], [known.b, known.a]] = known.bound_ns
    np.fill_diagonal(bounds, 0.0)
    return bounds
