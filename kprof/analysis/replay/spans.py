"""The innermost spans of some calls, as columns.

One query reads all calls. The rest is arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kprof.analysis.summary import CLOSED_SPANS, Table, sql_list
from kprof.capture.manifest import Launch
from kprof.trace import Trace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Spans:
    """Columns over spans, sorted by call, rank, launch, track and start.

    Times are in ns since `origin_ns`, the start of the first call. -1 means none.

    call, ordinals       `call` counts from 0 and indexes `ordinals`, the numbers of the calls
    launch, track        numbered over all calls: each belongs to one rank
    previous             the span before it on its track
    send                 the span that releases a wait
    peer                 the rank in the payload, else the peer of the span before it
    names_peer           whether the payload has a rank
    region               indexes `region_names` and `categories`
    launch_kernel, ...   one entry per launch; 0 SMs (CUs) where that is not known, and host 0 for
                         all of them where some do not say where they ran
    step_ns              the step of the coarsest clock
    """

    call: Ints
    rank: Ints
    launch: Ints
    block: Ints
    warp: Ints
    processor: Ints
    track: Ints
    region: Ints
    peer: Ints
    names_peer: Bools
    slot: Ints
    start: Ints
    end: Ints
    origin_ns: int
    step_ns: float
    previous: Ints
    send: Ints
    ordinals: tuple[int, ...]
    launch_kernel: tuple[str, ...]
    launch_blocks: Ints
    launch_processors: Ints
    launch_host: Ints
    region_names: tuple[str, ...]
    categories: tuple[str, ...]

    def __len__(self) -> int:
        """The number of spans."""
        return len(self.start)

    @property
    def num_calls(self) -> int:
        """The number of calls."""
        return len(self.ordinals)

    def is_of(self, *categories: str) -> Bools:
        """Which spans are of regions of these categories."""
        known = np.array([category in categories for category in self.categories])
        return known[self.region] if len(self) else np.zeros(0, dtype=bool)


_UNKNOWN: Final = Launch(-1, "", 0)
_COLUMNS: Final = (
    "event_id, rank, launch, ordinal, block, warp, region_id, coalesce(peer, -1) AS peer, "
    "coalesce(slot, -1) AS slot, start_ns, end_ns, hw_id"
)


def load_spans(trace: Trace, ordinals: Sequence[int], numbers: Table | None = None) -> Spans:
    """Read the calls with these numbers, which launches have by `numbers` (`calls.call_numbers`).

    Raises CorruptCaptureError like every reading of events.
    """
    table, ordinal = _read(trace, ordinals, numbers)
    kept = _innermost(table)
    table, ordinal = {name: column[kept] for name, column in table.items()}, ordinal[kept]
    known, call = np.unique(ordinal, return_inverse=True)
    launch = numbered(ordinal, table["rank"], table["launch"])
    track = numbered(launch, table["block"], table["warp"])
    previous = np.arange(len(track), dtype=np.int64) - 1
    previous[np.r_[True, track[1:] != track[:-1]] if len(track) else []] = -1
    kernels, blocks = _launches(trace, table, launch)
    ranks = {info.rank: info for info in trace.ranks}
    ran_on = [ranks[r] for r in table["rank"][np.unique(launch, return_index=True)[1]].tolist()]
    hosts = np.unique([info.host for info in ran_on], return_inverse=True)[1]
    origin = int(table["start_ns"].min(initial=np.iinfo(np.int64).max))
    return Spans(
        call=call.astype(np.int64),
        rank=table["rank"],
        launch=launch,
        block=table["block"],
        warp=table["warp"],
        processor=table["hw_id"],
        track=track,
        region=table["region_id"],
        peer=_served(table["peer"], previous),
        names_peer=table["peer"] >= 0,
        slot=table["slot"],
        start=table["start_ns"] - origin,
        end=table["end_ns"] - origin,
        origin_ns=origin,
        step_ns=max((info.clock.step_ns for info in trace.ranks), default=0.0),
        previous=previous,
        send=_sends(trace, table["event_id"], np.unique(table["ordinal"])),
        ordinals=tuple(int(ordinal) for ordinal in known),
        launch_kernel=kernels,
        launch_blocks=blocks,
        launch_processors=np.array([info.num_processors for info in ran_on], dtype=np.int64),
        launch_host=hosts if all(info.host for info in ran_on) else 0 * hosts,
        region_names=("unknown region", *trace.regions.names),
        categories=("other", *[region.category.value for region in trace.regions.regions]),
    )


def _read(
    trace: Trace, calls: Sequence[int], numbers: Table | None
) -> tuple[dict[str, Ints], Ints]:
    """The columns of the closed spans of calls, call by call, and the call of each."""
    where = f"ordinal IN ({sql_list(calls)})"
    if numbers is not None:
        numbers = numbers[numbers["call"].isin(calls)]
        where = f"launch IN ({sql_list(numbers['launch'].unique())})"
    frame = trace.frame(
        f"SELECT {_COLUMNS} FROM events WHERE {CLOSED_SPANS} AND {where} "
        "ORDER BY ordinal, rank, launch, block, warp, start_ns, end_ns DESC, event_id"
    )
    if numbers is None:
        table = {name: frame[name].to_numpy(dtype=np.int64) for name in frame.columns}
        return table, table["ordinal"]
    # Launch numbers are a rank's own: another rank's launch of the same number may be of another
    # call.
    frame = frame.merge(numbers, on=["rank", "launch"], how="inner")
    frame = frame.sort_values(["call", "rank", "launch"], kind="stable")
    table = {name: frame[name].to_numpy(dtype=np.int64) for name in frame.columns}
    return table, table.pop("call")


def numbered(*columns: Ints) -> Ints:
    """Number the distinct rows of sorted columns from 0."""
    count = len(columns[0])
    changes = np.zeros(count, dtype=bool)
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return np.cumsum(changes).astype(np.int64)


def _innermost(table: dict[str, Ints]) -> Bools:
    """Which spans contain no other span of their track."""
    count = len(table["start_ns"])
    keep = np.ones(count, dtype=bool)
    is_same = np.ones(max(0, count - 1), dtype=bool)
    for name in ("rank", "launch", "block", "warp"):
        is_same &= table[name][1:] == table[name][:-1]
    start, end = table["start_ns"], table["end_ns"]
    keep[:-1] = ~(is_same & (start[1:] < end[:-1]) & (end[1:] <= end[:-1]))
    return keep


def _served(peer: Ints, previous: Ints) -> Ints:
    """Give spans without a peer that of the span before: a copy serves the rank it waited for."""
    order = np.arange(len(peer))
    anchors = np.maximum.accumulate(np.where((peer >= 0) | (previous < 0), order, 0))
    return peer[anchors] if len(order) else peer


def _sends(trace: Trace, event_id: Ints, ordinals: Ints) -> Ints:
    """The index of every wait's send; -1 for other spans."""
    send = np.full(len(event_id), -1, dtype=np.int64)
    if not trace.regions.flows:
        return send
    # A rank by itself has one clock.
    known = "true" if trace.is_on_one_clock else "src = dst"
    trace.require_flows()
    flows = trace.frame(
        f"SELECT wait_event_id, send_event_id FROM flows WHERE ordinal IN ({sql_list(ordinals)}) "
        f"AND {known} ORDER BY ALL"
    )
    order = np.argsort(event_id)
    ordered = event_id[order]
    waits, sends = (flows[name].to_numpy(dtype=np.int64) for name in flows.columns)
    places = [np.minimum(np.searchsorted(ordered, ids), len(ordered) - 1) for ids in (waits, sends)]
    if len(ordered) == 0:
        return send
    is_known = (ordered[places[0]] == waits) & (ordered[places[1]] == sends)
    send[order[places[0][is_known]]] = order[places[1][is_known]]
    return send


def _launches(trace: Trace, table: dict[str, Ints], launch: Ints) -> tuple[tuple[str, ...], Ints]:
    """The kernel and the number of blocks of every launch: at least those that recorded spans."""
    first = np.unique(launch, return_index=True)[1]
    seen = np.zeros(len(first), dtype=np.int64)
    np.maximum.at(seen, launch, table["block"] + 1)
    known = {(info.rank, of.launch): of for info in trace.manifest.ranks for of in info.launches}
    keys = zip(table["rank"][first].tolist(), table["launch"][first].tolist(), strict=True)
    named = [known.get(key, _UNKNOWN) for key in keys]
    num_blocks = np.array([of.num_blocks for of in named], dtype=np.int64)
    return tuple(of.kernel for of in named), np.maximum(num_blocks, seen)
