"""Sums over flows (a send and the wait that it releases), made slice by slice of launches and kept with the
trace.

    flow_sums   send_region, wait_region, src, dst -> flows, wait_ns, late_sender_ns, exposed_transfer_ns, violations,
                violations_beyond_bound, bound_ns
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kprof.analysis.skew import launch_starts
from kprof.analysis.summary import EVENTS_PER_SLICE
from kprof.capture import EVENT_OPEN

if TYPE_CHECKING:
    import pandas as pd

    from kprof.trace import Trace


def sum_flows(trace: Trace) -> None:
    """Make the table of this module in the trace's database, unless it is there.

    The n-th send of a (source, destination, slot) meets its n-th wait within a call, as in the view `flows`; a
    slice holds whole calls, so that the pairing needs only a slice's events in memory.
    """
    if len(trace.frame("SELECT 1 FROM duckdb_tables() WHERE table_name = 'flow_sums'")):
        return
    trace.frame(_EMPTY_SQL)
    bound = bound_sql(trace)
    for where in _slices(trace):
        trace.frame(f"INSERT INTO flow_parts {_pairs_sql(where, bound)}")
    trace.frame(_UNITE_SQL)


_EMPTY_SQL: Final = """
    CREATE OR REPLACE TEMP TABLE flow_parts (send_region INTEGER, wait_region INTEGER, src INTEGER, dst INTEGER,
        flows BIGINT, wait_ns BIGINT, late_sender_ns BIGINT, exposed_transfer_ns BIGINT, violations BIGINT,
        violations_beyond_bound BIGINT, bound_ns DOUBLE)"""

_UNITE_SQL: Final = """
    CREATE OR REPLACE TEMP TABLE flow_sums AS
    SELECT s.name AS send_region, w.name AS wait_region, src, dst, CAST(sum(flows) AS BIGINT) AS flows,
        CAST(sum(wait_ns) AS BIGINT) AS wait_ns, CAST(sum(late_sender_ns) AS BIGINT) AS late_sender_ns,
        CAST(sum(exposed_transfer_ns) AS BIGINT) AS exposed_transfer_ns, CAST(sum(violations) AS BIGINT) AS violations,
        CAST(sum(violations_beyond_bound) AS BIGINT) AS violations_beyond_bound, max(bound_ns) AS bound_ns
    FROM flow_parts JOIN regions s ON s.id = send_region JOIN regions w ON w.id = wait_region
    GROUP BY s.name, w.name, src, dst"""


def _slices(trace: Trace) -> Iterator[str]:
    """Conditions that cut the launches into sets of whole calls of at most about EVENTS_PER_SLICE events."""
    starts = launch_starts(trace)
    events = trace.frame(
        "SELECT ordinal, CAST(sum(events) AS BIGINT) AS events FROM tracks JOIN spans_of_launches USING (rank, launch) "
        "GROUP BY ordinal ORDER BY ordinal"
    )
    chosen: list[int] = []
    total = 0
    for ordinal, count in zip(events["ordinal"].tolist(), events["events"].tolist(), strict=True):
        if chosen and total + count > EVENTS_PER_SLICE:
            yield _in_calls(starts, chosen)
            chosen, total = [], 0
        chosen.append(ordinal)
        total += count
    if chosen:
        yield _in_calls(starts, chosen)


def _in_calls(starts: pd.DataFrame, ordinals: list[int]) -> str:
    """By ordinal, and by launch number so that Parquet row groups of other launches are not read."""
    launches = sorted(set(starts.loc[starts["ordinal"].isin(ordinals), "launch"].tolist()))
    listed = ", ".join(str(launch) for launch in launches)
    return f"ordinal BETWEEN {min(ordinals)} AND {max(ordinals)} AND launch IN ({listed})"


def _pairs_sql(where: str, bound: str) -> str:
    released = "least(s.start_ns, w.end_ns)"
    return f"""
        WITH sends AS ({_ends_sql("send", where)}), waits AS ({_ends_sql("wait", where)})
        SELECT f.send, f.wait, s.rank AS src, w.rank AS dst, count(*),
            sum(w.end_ns - w.start_ns), sum(greatest(0, {released} - w.start_ns)),
            sum(w.end_ns - greatest(w.start_ns, {released})), count(*) FILTER (w.end_ns < s.start_ns),
            count(*) FILTER (w.end_ns < s.start_ns - {bound.format(src="s.rank", dst="w.rank")}),
            any_value({bound.format(src="s.rank", dst="w.rank")})
        FROM flow_rules f JOIN sends s ON s.region_id = f.send
        JOIN waits w ON w.region_id = f.wait AND w.peer = s.rank AND s.peer = w.rank AND w.slot = s.slot
            AND w.ordinal = s.ordinal AND w.occurrence = s.occurrence
        GROUP BY f.send, f.wait, s.rank, w.rank"""


def _ends_sql(side: str, where: str) -> str:
    return f"""
        SELECT rank, ordinal, region_id, peer, slot, start_ns, end_ns, row_number() OVER (
            PARTITION BY rank, region_id, ordinal, peer, slot ORDER BY start_ns, event_id) AS occurrence
        FROM events WHERE region_id IN (SELECT {side} FROM flow_rules) AND flags & {EVENT_OPEN} = 0 AND {where}"""


def bound_sql(trace: Trace) -> str:
    """The clock error bound between two ranks, as an expression with the fields {src} and {dst}."""
    entries = trace.alignment.ranks if trace.alignment else ()
    whens = " ".join(f"WHEN {entry.rank} THEN {float(entry.bound_ns)}" for entry in entries)
    if not whens:
        return "0.0"
    one = f"(CASE {{}} {whens} ELSE 0.0 END)"
    return f"(CASE WHEN {{src}} = {{dst}} THEN 0.0 ELSE {one.format('{src}')} + {one.format('{dst}')} END)"
