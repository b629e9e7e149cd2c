"""What the records of rings mean: channels of collectives, and which ranks have made them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kprof.nccl.collectives import BROADCAST, COLUMNS, PAIR, REDUCE
from kprof.nccl.ring import Communicator, Ring
from kprof.on_use import pd

# Types as powers of two, and states: see profiler_abi.h.
COLL, P2P, KERNEL_CH, KERNEL_PHASE = 1, 2, 6, 15
CALLS: Final = (COLL, P2P)
_INITIAL_SYNC, _COMPUTE = 0, 1
_BITS: Final = re.compile(r"(\d+)")


@dataclass(frozen=True)
class Rank:
    """A communicator's rank as a rank of the recording: `uuid` names its GPU, empty if unknown."""

    rank: int
    comm: Communicator


def resolve(rings: Sequence[Ring]) -> tuple[dict[tuple[int, int], Rank], list[str]]:
    """Which rank of the recording the i-th communicator of the r-th ring is, by (r, i); and
    sentences about those that nobody knows.

    A process that a launcher has started is the rank that this says. Where threads are ranks, the
    largest communicator numbers them, and of smaller ones the GPU tells.
    """
    found: dict[tuple[int, int], Rank] = {}
    unknown = 0
    for idx, ring in enumerate(rings):
        comms = {i: comm for i, comm in enumerate(ring.comms) if comm is not None}
        times = Counter(comm.id for comm in comms.values())
        if ring.rank is not None and max(times.values(), default=0) <= 1:
            ranks = dict.fromkeys(comms, ring.rank)
        else:
            ranks = _of_threads(comms)
        found |= {(idx, i): Rank(rank, comms[i]) for i, rank in ranks.items()}
        unknown += len(comms) - len(ranks)
    if not unknown:
        return found, []
    what = "a communicator is" if unknown == 1 else f"{unknown} communicators are"
    return found, [f"{what} not in the capture: their ranks are threads, and nothing says which"]


def _of_threads(comms: Mapping[int, Communicator]) -> dict[int, int]:
    largest = max((comm.num_ranks for comm in comms.values()), default=0)
    ranks = {i: comm.rank for i, comm in comms.items() if comm.num_ranks == largest}
    users: dict[str, set[int]] = {}
    for i, rank in ranks.items():
        users.setdefault(comms[i].uuid, set()).add(rank)
    for i, comm in comms.items():
        if i not in ranks and comm.uuid and len(users.get(comm.uuid, ())) == 1:
            (ranks[i],) = users[comm.uuid]
    return ranks


def names_of(comms: Iterable[Communicator]) -> dict[int, str]:
    """What communicators are called, by id: by their names where these are of one only."""
    by_id = {comm.id: comm.name for comm in comms}
    times = Counter(by_id.values())
    return {
        number: name if name and times[name] == 1 else f"{number:016x}"
        for number, name in by_id.items()
    }


def channels_of(rings: Sequence[Ring], ranks: Mapping[tuple[int, int], Rank]) -> pd.DataFrame:
    """The channels of all collectives as rows of COLUMNS but `replay`."""
    names = names_of(rank.comm for rank in ranks.values())
    capture_rank = {(each.comm.id, each.comm.rank): each.rank for each in ranks.values()}
    tables = [pd.DataFrame(columns=[name for name in COLUMNS if name != "replay"])]
    for idx, ring in enumerate(rings):
        calls = _calls(ring)
        mine = {i + 1: rank for (r, i), rank in ranks.items() if r == idx}
        calls = calls[calls["comm"].isin(list(mine))]
        if calls.empty:
            continue
        comms = [mine[number].comm for number in calls["comm"]]
        calls["rate"] = [comm.ticks_per_second for comm in comms]
        calls["rank"] = [mine[number].rank for number in calls["comm"]]
        calls["group_size"] = [comm.num_ranks for comm in comms]
        calls["comm"] = [names[comm.id] for comm in comms]
        _name_ends(calls, comms, capture_rank)
        tables.append(_channels(ring, calls.assign(ring=idx)))
    return pd.concat([table for table in tables if len(table)] or tables, ignore_index=True)


def _calls(ring: Ring) -> pd.DataFrame:
    """Collectives, sends and receives; `handle` is what their channels name as parent."""
    rows = ring.records[np.isin(ring.records["kind"], CALLS)]
    texts = np.array(ring.texts, dtype=object)
    sizes = np.array([_size_of(text) for text in ring.texts])
    return pd.DataFrame(
        {
            "handle": rows["handle"],
            "kind": rows["kind"],
            # 0 where nothing says when the host began it.
            "begun_ns": rows["subject"].astype(np.int64),
            "comm": rows["comm"],
            "seq": rows["value"].astype(np.int64),
            "func": texts[rows["func"]],
            "algorithm": texts[rows["algorithm"]],
            "protocol": texts[rows["protocol"]],
            "peer": rows["peer"],
            "bytes": rows["count"].astype(np.int64) * sizes[rows["datatype"]],
            "num_channels": np.maximum(rows["channel"], 1),
        }
    )


def _size_of(datatype: str) -> int:
    """Bytes of a type such as ncclFloat32 or ncclFloat8e4m3; 1 for an unknown one."""
    bits = _BITS.search(datatype)
    return max(int(bits[1]) // 8, 1) if bits else 1


def _name_ends(
    calls: pd.DataFrame,
    comms: Sequence[Communicator],
    capture_rank: Mapping[tuple[int, int], int],
) -> None:
    """Add the root, and give a send and its receive the same name: their number is the same."""
    named = zip(comms, calls["peer"], strict=True)
    calls["root"] = [capture_rank.get((comm.id, peer), -1) for comm, peer in named]
    pairs = (calls["kind"] == P2P).to_numpy()
    ends = zip(calls["rank"], calls["root"], calls["func"] == "Send", strict=True)
    ways = [(rank, peer) if is_send else (peer, rank) for rank, peer, is_send in ends]
    names = np.array([f"{PAIR} {source} to {target}" for source, target in ways], object)
    sizes = np.array([len(set(way)) for way in ways], np.int64)
    calls["func"] = calls["func"].mask(pairs, names)
    calls["group_size"] = calls["group_size"].mask(pairs, sizes)
    calls["root"] = calls["root"].mask(pairs, np.array([source for source, _ in ways], np.int64))
    calls.loc[~pairs & ~calls["func"].isin((BROADCAST, REDUCE)), "root"] = -1


def _channels(ring: Ring, calls: pd.DataFrame) -> pd.DataFrame:

    rows = ring.records
    found = _timed(rows[rows["kind"] == KERNEL_CH])
    phases = _timed(rows[rows["kind"] == KERNEL_PHASE])
    for name, number in (("sync_ns", _INITIAL_SYNC), ("final_ns", _COMPUTE)):
        ends = phases[phases["phase"] == number].set_index("parent")["stop_ns"]
        ends = ends[~ends.index.duplicated()]
        found[name] = found["handle"].map(ends).fillna(-1).astype(np.int64)
    found = found.merge(calls.rename(columns={"handle": "parent"}), on="parent")
    for name in ("start_ns", "stop_ns", "sync_ns", "final_ns"):
        found[name] = _ns_of(found[name], found["rate"])
    found["bytes"] //= found["num_channels"]
    in_order = (found["start_ns"] <= found["sync_ns"]) & (found["sync_ns"] <= found["final_ns"])
    has_phases = in_order & (found["final_ns"] <= found["stop_ns"])
    found.loc[~has_phases, ["sync_ns", "final_ns"]] = -1
    return found[[name for name in COLUMNS if name != "replay"]]


def _ns_of(ticks: pd.Series[int], rate: pd.Series[int]) -> pd.Series[int]:
    """Times in ns, exactly; -1 stays."""
    ns = ticks // rate * 10**9 + ticks % rate * 10**9 // rate
    return ns.where(ticks >= 0, -1)


def _timed(rows: NDArray[np.void]) -> pd.DataFrame:
    """Channels or phases with the GPU's times, -1 where they never ended, and when the host saw
    that; an end before the start is none."""
    found = pd.DataFrame(
        {
            "handle": rows["handle"],
            "parent": rows["subject"],
            "channel": rows["channel"].astype(np.int64),
            "phase": rows["extra"],
            "start_ns": rows["value"].astype(np.int64),
            "stop_ns": rows["count"].astype(np.int64),
            "ended_ns": rows["tag"].astype(np.int64),
        }
    )
    found.loc[found["stop_ns"] < found["start_ns"], ["stop_ns", "ended_ns"]] = -1
    # A GPU that never ran the channel has left no time.
    return found[found["start_ns"] > 0]
