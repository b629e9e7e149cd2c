"""Makes spans of collectives: who came last, how long the others waited, how long data moved.

A call of a collective is known by its communicator, function and sequence number, which are the
same on all ranks. Of each channel (one threadblock) there is a begin and an end on the rank's GPU
clock. Nobody can get data of a rank before that has begun, so on clocks that can be compared

    wait = from the own begin to the last begin of those whose data it needs,  transfer = the rest

and `wait + transfer` is the channel's duration, exactly. A rank needs the data of all, but in a
broadcast that of the root, and in a reduction only the root needs any. Who sends waits only where
it goes on after the receiver has begun: buffers take what is short. Where no times can be compared,
or ranks of the call are missing, a channel is one span that is neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kprof.capture.directory import EVENT_OPEN
from kprof.capture.manifest import Launch, RankAlignment
from kprof.on_use import pd
from kprof.regions import Category, Field, FlowRule, Region, RegionTable

_PEER: Final = Field("peer", 14, 0)
_SLOT: Final = Field("slot", 10, 14)
_BYTES: Final = Field("bytes", 32, 0)
_WHO: Final = (_PEER, _SLOT)
ARRIVE, WAIT, TRANSFER, UNKNOWN, COMPUTE, FINAL = range(1, 7)
REGIONS: Final = RegionTable(
    (
        # Of no length, on the track of the rank that came last: one for each that waited.
        Region(ARRIVE, "nccl/arrive", Category.SEND, fields=_WHO),
        Region(WAIT, "nccl/wait", Category.WAIT, fields=_WHO),
        Region(TRANSFER, "nccl/transfer", Category.RECV, fields=(_BYTES,)),
        Region(UNKNOWN, "nccl/channel", Category.OTHER, fields=(_BYTES,)),
        Region(COMPUTE, "nccl/compute", Category.COMPUTE, fields=(_BYTES,)),
        Region(FINAL, "nccl/final-sync", Category.SYNC),
    ),
    (FlowRule(ARRIVE, WAIT),),
)
MAX_CHANNEL: Final = _SLOT.mask - 1
# Of a call: which one it is, on all ranks.
OPERATION: Final = ["comm", "func", "seq"]
CALL: Final = [*OPERATION, "replay"]
# Of a channel of a call on a rank. `algorithm`, `protocol` and `func` name the kernel, `group_size`
# is the number of ranks that take part, `stop_ns` -1 where it never ended, `bytes` its share.
# `sync_ns` and `final_ns` are the ends of the first two phases, -1 where the kernel has none.
# `root` is a rank, of a pair the sender, -1 where the function has none.
# From `begun_ns` (0: nobody knows) to `ended_ns` (-1: never) the host has seen it. `parent` is the
# number of its call's record in the ring `ring`.
COLUMNS: Final = [
    *("rank", *CALL, "algorithm", "protocol", "group_size", "channel", "start_ns", "stop_ns"),
    *("bytes", "sync_ns", "final_ns", "root", "begun_ns", "ended_ns", "ring", "parent"),
]
# A wait ends after what ends it begins, also where times are rounded to whole ns.
_LATER_NS: Final = 2
BROADCAST: Final = "Broadcast"
REDUCE: Final = "Reduce"
# What has two ranks, of which one may be done before the other begins.
PAIR: Final = "SendRecv"


@dataclass(frozen=True)
class RankCalls:
    """What a rank's capture gets: columns of events as in event_schema(), its launches, and when
    its calls began and ended on the host (kernel, begun_ns, ended_ns)."""

    events: pd.DataFrame
    launches: tuple[Launch, ...]
    on_host: pd.DataFrame


def spans_of(
    channels: pd.DataFrame, clocks: Mapping[int, RankAlignment] | None
) -> dict[int, RankCalls]:
    """Spans and launches by rank, from COLUMNS but `replay`. Numbers of launches begin at 0.

    `clocks` are None where times of ranks cannot be compared.
    """
    found = _with_last(_with_launches(_with_replays(channels)), clocks)
    events = pd.concat([*_split(found), *_phases(found)], ignore_index=True)
    by_rank = {rank: found[found["rank"] == rank] for rank in found["rank"].unique().tolist()}
    return {
        rank: RankCalls(events[events["rank"] == rank], _launches(rows), _on_host(rows))
        for rank, rows in by_rank.items()
    }


def waits_of(channels: pd.DataFrame, clocks: Mapping[int, RankAlignment]) -> pd.DataFrame:
    """Who waited for whom, for channels as for `spans_of`: rank, awaited (a rank), wait_ns."""
    found = _with_last(_with_replays(channels), clocks)
    is_known = (found["wait_ns"] > 0) & (found["awaited"] != _PEER.mask)
    return found.loc[is_known, ["rank", "awaited", "wait_ns"]]


def _with_replays(channels: pd.DataFrame) -> pd.DataFrame:
    """In the order of their begins, with `replay`: how often a channel had the call before."""
    found = channels.sort_values(["rank", "start_ns", "channel"], ignore_index=True)
    same = ["rank", *OPERATION, "channel"]
    found["replay"] = found.groupby(same, sort=False).cumcount()
    return found


def _with_launches(found: pd.DataFrame) -> pd.DataFrame:
    """With `kernel`, `ordinal` (the same on all ranks) and `launch` (by begin, on each rank)."""
    how = found["algorithm"] + " " + found["protocol"]
    found["kernel"] = (found["func"] + " " + how.str.strip()).str.strip()
    comms = found["comm"].drop_duplicates()
    if len(comms) > 1:
        found["kernel"] += " (" + found["comm"] + ")"
    calls = found[["kernel", *CALL]].drop_duplicates().sort_values(["seq", "replay"])
    calls["ordinal"] = calls.groupby("kernel").cumcount()
    found = found.merge(calls, on=["kernel", *CALL])
    first = found.groupby(["rank", "kernel", "ordinal"])["start_ns"].min().reset_index()
    first = first.sort_values(["rank", "start_ns", "kernel", "ordinal"])
    first["launch"] = first.groupby("rank").cumcount()
    return found.merge(first.drop(columns="start_ns"), on=["rank", "kernel", "ordinal"])


def _launches(rows: pd.DataFrame) -> tuple[Launch, ...]:
    calls = rows.groupby(["launch", "kernel", "ordinal"])["channel"].nunique().reset_index()
    return tuple(Launch(*call) for call in calls.to_numpy().tolist())


def _on_host(rows: pd.DataFrame) -> pd.DataFrame:
    """Of kernels whose calls all began and ended, as far as the host knows."""
    calls = rows.groupby(["kernel", "ordinal"]).agg(
        begun_ns=("begun_ns", "min"),
        ended_ns=("ended_ns", "max"),
        least_ns=("ended_ns", "min"),
    )
    calls = calls.reset_index()
    is_odd = calls[calls[["begun_ns", "least_ns"]].min(axis=1) <= 0]["kernel"]
    return calls[~calls["kernel"].isin(is_odd)][["kernel", "begun_ns", "ended_ns"]]


def _with_last(found: pd.DataFrame, clocks: Mapping[int, RankAlignment] | None) -> pd.DataFrame:
    """With `last`, the row of the rank that began last (-1: not known), and `wait_ns` for it."""
    group = found.groupby([*CALL, "channel"], sort=False)
    num_ranks = group["rank"].transform("nunique")
    is_known = num_ranks == found["group_size"]
    if clocks is None:
        # The only rank of a group waits for nobody.
        is_known &= found["group_size"] == 1
        aligned = found["start_ns"]
    else:
        aligned = found["start_ns"] + corrections(found, clocks)
    is_root = found["rank"] == found["root"]
    needed = aligned.where((found["func"] != BROADCAST) | is_root, aligned.min() - 1)
    begins = needed.groupby([found[name] for name in (*CALL, "channel")], sort=False)
    found["is_open"] = found["stop_ns"] < 0
    found["spent_ns"] = (found["stop_ns"] - found["start_ns"]).where(~found["is_open"], 0)
    wait_ns = (begins.transform("max") - aligned).clip(lower=0)
    is_done = ~found["is_open"] & (found["spent_ns"] < wait_ns) & found["func"].str.startswith(PAIR)
    wait_ns = wait_ns.mask(is_done | ((found["func"] == REDUCE) & ~is_root), 0)
    wait_ns += _LATER_NS * (wait_ns > 0)
    # A channel that ended before the last rank began is an error of the clocks.
    found["wait_ns"] = np.minimum(wait_ns, found["spent_ns"].where(~found["is_open"], wait_ns))
    found["last"] = np.where(is_known, begins.transform("idxmax"), -1)
    found["is_short"] = num_ranks < found["group_size"]
    of_last = found["rank"].to_numpy()[found["last"]]
    is_named = (found["last"] >= 0) & (of_last != found["rank"])
    found["awaited"] = np.where(is_named, of_last, _PEER.mask)
    return found


def corrections(found: pd.DataFrame, clocks: Mapping[int, RankAlignment]) -> NDArray[np.int64]:
    """What to add to the times to have them on one clock."""
    ranks, start_ns = found["rank"].to_numpy(), found["start_ns"].to_numpy()
    added = np.zeros(len(found), np.int64)
    for rank in np.unique(ranks):
        rows, segments = np.flatnonzero(ranks == rank), clocks[int(rank)].segments
        begins = np.array([segment.from_ns for segment in segments], np.int64)
        which = np.maximum(np.searchsorted(begins, start_ns[rows], side="right") - 1, 0)
        offset_ns = np.array([segment.offset_ns for segment in segments])[which]
        drift = np.array([segment.drift_ppm * 1e-6 for segment in segments])[which]
        added[rows] = np.rint(offset_ns + drift * (start_ns[rows] - begins[which]))
    return added


def _split(found: pd.DataFrame) -> list[pd.DataFrame]:
    """Wait and transfer of the channels without phases."""
    fused = found[found["sync_ns"] < 0]
    known, others = fused[fused["last"] >= 0], fused[fused["last"] < 0]
    waits = known[known["wait_ns"] > 0]
    begun = known["start_ns"] + known["wait_ns"]
    left_ns = (known["spent_ns"] - known["wait_ns"]).where(~known["is_open"], 0)
    # Where ranks never came, a channel that never ended waits for them.
    hung = others[others["is_open"] & others["is_short"]]
    others = others.drop(hung.index)
    spent_ns, is_open = others["spent_ns"], others["is_open"]
    return [
        _events(waits, WAIT, waits["start_ns"], waits["wait_ns"], _awaited(waits)),
        _arrivals(found, waits),
        _events(known, TRANSFER, begun, left_ns, _bytes(known), known["is_open"]),
        _events(others, UNKNOWN, others["start_ns"], spent_ns, _bytes(others), is_open),
        _events(hung, WAIT, hung["start_ns"], hung["spent_ns"], _awaited(hung), hung["is_open"]),
    ]


def _phases(found: pd.DataFrame) -> list[pd.DataFrame]:
    """Of kernels that have said when their phases end: the wait is the initial sync."""
    rows = found[found["sync_ns"] >= 0]
    start_ns, sync_ns, final_ns = rows["start_ns"], rows["sync_ns"], rows["final_ns"]
    return [
        _events(rows, WAIT, start_ns, sync_ns - start_ns, _awaited(rows)),
        _arrivals(found, rows[rows["awaited"] != _PEER.mask]),
        _events(rows, COMPUTE, sync_ns, final_ns - sync_ns, _bytes(rows)),
        _events(rows, FINAL, final_ns, rows["stop_ns"] - final_ns, 0),
    ]


def _arrivals(found: pd.DataFrame, waits: pd.DataFrame) -> pd.DataFrame:
    """What ended these waits: the begin of the rank that came last."""
    last = found.loc[waits["last"].to_numpy()]
    waiting = waits["rank"].to_numpy() | waits["channel"].to_numpy() << _SLOT.shift
    return _events(last, ARRIVE, last["start_ns"], 0, waiting)


def _bytes(rows: pd.DataFrame) -> pd.Series[int]:
    return rows["bytes"].clip(0, _BYTES.mask - 1)


def _awaited(rows: pd.DataFrame) -> pd.Series[int]:
    """The payload of a wait; its peer did not fit where nobody knows it."""
    return rows["awaited"] | rows["channel"] * (1 << _SLOT.shift)


def _events(
    rows: pd.DataFrame,
    region: int,
    start_ns: pd.Series[int],
    duration_ns: pd.Series[int] | int,
    payload: pd.Series[int] | NDArray[np.int64] | int,
    is_open: pd.Series[bool] | bool = False,
) -> pd.DataFrame:
    """An event for each row."""
    columns = {
        "rank": rows["rank"],
        "launch": rows["launch"],
        "block": rows["channel"],
        "warp": -1,
        "region": region,
        "flags": is_open * EVENT_OPEN,
        "start_ns": start_ns,
        "duration_ns": duration_ns,
        "payload": payload,
        "hw_id": 0,
    }
    return pd.DataFrame(columns)
