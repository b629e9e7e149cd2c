"""Warps of a block that wait for each other, by role."""

from __future__ import annotations

from kprof.analysis.hung import ended_calls
from kprof.analysis.metric import metric
from kprof.analysis.summary import Summary, Table


@metric()
def role_waits(summary: Summary) -> Table:
    """What warps of each role wait for in their block, the largest share first.

    A role is what stands before the "/" in the names of regions ("consumer/wait-weights"). Columns:
    role, region, waits_for (the regions that end the wait), count, wait_ns, share (of all recorded
    time of the role). Only waits that FLOW_IN_BLOCK joins with others.
    Calls that hung are left out.
    """
    return ended_calls(summary).frame(
        """WITH spent AS (
            SELECT region_id, region, total(events) AS count, total(total_ns) AS wait_ns,
                CASE WHEN contains(region, '/') THEN split_part(region, '/', 1) ELSE '' END AS role
            FROM named_cells GROUP BY region_id, region),
        shares AS (
            SELECT *, wait_ns / greatest(1, sum(wait_ns) OVER (PARTITION BY role)) AS share
            FROM spent),
        ends AS (
            SELECT f.wait AS region_id, string_agg(r.name, ', ' ORDER BY r.name) AS waits_for
            FROM flow_rules f JOIN regions r ON r.id = f.send
            WHERE f.in_block GROUP BY f.wait)
        SELECT role, region, waits_for, count, wait_ns, share
        FROM shares JOIN ends USING (region_id) ORDER BY share DESC, region"""
    )
