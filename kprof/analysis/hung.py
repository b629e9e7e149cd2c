"""Runs that hung: the waits that never ended, and the run without the calls that hung."""

from __future__ import annotations

from kprof.analysis.calls import launch_starts
from kprof.analysis.metric import memo, metric
from kprof.analysis.summary import CLOSED_SPANS, WAIT, Summary, Table, sql_list
from kprof.analysis.wording import counted
from kprof.trace.views import STILL_WAITING


@metric()
def open_waits(summary: Summary) -> Table:
    """The waits that a hang left open, the one that shows the root first.

    Columns: rank, launch, kernel, ordinal, block, warp, region, peer and slot (-1 where there is
    none), start_ns, waited_ns: how long it was seen to wait. It counts in no other table.
    """
    hang = summary.trace.manifest.hang
    shown = {tuple(pair): i for i, pair in enumerate(hang.shown)} if hang else {}
    where = STILL_WAITING if hang else "false"
    table = summary.frame(
        f"""SELECT rank, launch, kernel, ordinal, block, warp, region, coalesce(peer, -1) AS peer,
            coalesce(slot, -1) AS slot, start_ns, duration_ns AS waited_ns
        FROM events WHERE {where}
        ORDER BY rank, block, warp, start_ns, event_id"""
    )
    pairs = zip(table["rank"].tolist(), table["block"].tolist(), strict=True)
    order = [shown.get(pair, len(shown)) for pair in pairs]
    return table.iloc[sorted(range(len(order)), key=order.__getitem__)].reset_index(drop=True)


def spans_before(summary: Summary, waits: Table) -> Table:
    """The finished spans of the launches and tracks that have these open waits.

    Columns: rank, block, warp, region, category, peer (-1 for none), start_ns, end_ns.
    """
    keys = ["rank", "launch", "block", "warp"]
    tracks = waits[keys].drop_duplicates().to_numpy().tolist()
    rows = ", ".join(f"({sql_list(track)})" for track in tracks)
    where = f"(rank, launch, block, warp) IN ({rows})" if tracks else "false"
    return summary.frame(
        f"""SELECT rank, block, warp, region, category, coalesce(peer, -1) AS peer, start_ns, end_ns
        FROM events WHERE {CLOSED_SPANS} AND {where}
        ORDER BY rank, block, warp, start_ns, end_ns DESC, event_id"""
    )


@metric()
def hung_waits(summary: Summary) -> Table:
    """How many waits the calls that hung have: tables of waits and of durations leave them out.

    Columns: rank, region, ended, open (never ended). Empty where no call hung.
    """
    launches = sql_list(sorted(_hung_launches(summary)))
    # A query that names events reads all files.
    has_hung = summary.trace.manifest.hang is not None
    open_ones = f"events WHERE {STILL_WAITING}" if has_hung else "named_cells WHERE false"
    return summary.frame(
        f"""WITH counts AS (
            SELECT rank, region, sum(events) AS ended, 0 AS open
            FROM named_cells WHERE {WAIT} AND launch IN ({launches}) GROUP BY ALL
            UNION ALL
            SELECT rank, region, 0, count(*) FROM {open_ones} AND launch IN ({launches})
            GROUP BY ALL)
        SELECT rank, region, total(ended) AS ended, total(open) AS open
        FROM counts GROUP BY ALL ORDER BY rank, region"""
    )


def left_out(table: Table) -> str:
    """The counts of `hung_waits` as a sentence; empty where no call hung."""
    if table.empty:
        return ""
    ended, still = int(table["ended"].sum()), int(table["open"].sum())
    waits = counted(ended + still, "wait", "waits")
    are = "is" if ended + still == 1 else "are"
    return f"{waits} of calls that hung {are} left out; {still:,} never ended (kprof hang)"


def without_hung_calls(summary: Summary) -> Summary | None:
    """The run without the calls in which blocks waited while nothing moved.

    None where no other call is left. If the user selected launches, they are left as they are.
    """
    others = ended_calls(summary)
    return None if others.trace.selection.launches == () else others


def ended_calls(summary: Summary) -> Summary:
    """Like `without_hung_calls`, and an empty part where every call hung."""
    dropped = _hung_launches(summary)
    return _without(summary, dropped) if dropped else summary


@memo
def _without(summary: Summary, dropped: frozenset[int]) -> Summary:
    kept = set(launch_starts(summary)["launch"].tolist()) - dropped
    return summary.select(launches=tuple(sorted(kept)))


def _hung_launches(summary: Summary) -> frozenset[int]:
    """The launches to leave out."""
    hang = summary.trace.manifest.hang
    if hang is None or not hang.calls or summary.trace.selection.launches is not None:
        return frozenset()
    hung = {(call.kernel, call.ordinal) for call in hang.calls}
    starts = launch_starts(summary)
    pairs = zip(starts["kernel"].tolist(), starts["ordinal"].tolist(), strict=True)
    is_hung = [pair in hung for pair in pairs]
    return frozenset(int(launch) for launch in starts.loc[is_hung, "launch"].tolist())
