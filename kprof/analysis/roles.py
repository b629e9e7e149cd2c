"""Warps of a block that wait for each other, by role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kprof.analysis.metric import metric

if TYPE_CHECKING:
    import pandas as pd

    from kprof.analysis.summary import Summary


@metric()
def role_waits(summary: Summary) -> pd.DataFrame:
    """What warps of each role wait for in their block, the largest share first.

    A role is what stands before the "/" in the names of regions ("consumer/wait-weights"). Columns:
    role, region, waits_for (the regions that end the wait), count, wait_ns, share (of all recorded
    time of the role). Only waits that FLOW_IN_BLOCK joins with others.
    """
    import pandas as pd

    table = summary.trace.regions
    spent = summary.frame(
        "SELECT region_id, CAST(sum(events) AS BIGINT) AS count, "
        "CAST(sum(total_ns) AS BIGINT) AS ns FROM cells GROUP BY region_id"
    )
    names = {region.id: region.name for region in table.regions}
    of_region = {
        names[row["region_id"]]: row
        for row in spent.to_dict("records")
        if row["region_id"] in names
    }
    role_ns: dict[str, int] = {}
    for name, row in of_region.items():
        role_ns[role_of(name)] = role_ns.get(role_of(name), 0) + row["ns"]
    ends: dict[str, list[str]] = {}
    for rule in table.flows:
        if rule.in_block and names[rule.wait] in of_region:
            ends.setdefault(names[rule.wait], []).append(names[rule.send])
    rows: list[dict[str, Any]] = [
        {
            "role": role_of(wait),
            "region": wait,
            "waits_for": ", ".join(sorted(sends)),
            "count": of_region[wait]["count"],
            "wait_ns": of_region[wait]["ns"],
            "share": of_region[wait]["ns"] / max(1, role_ns[role_of(wait)]),
        }
        for wait, sends in ends.items()
    ]
    rows.sort(key=lambda row: (-row["share"], row["region"]))
    return pd.DataFrame(rows, columns=["role", "region", "waits_for", "count", "wait_ns", "share"])


def role_of(region: str) -> str:
    """The role that a region belongs to; empty where its name has none."""
    return region.split("/", 1)[0] if "/" in region else ""
