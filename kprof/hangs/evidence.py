"""Reads the state of all ranks of a run that is under way, or was cut off: from the memory that
they share (lines.py), what they saved, and /proc.

Nothing here needs the ranks to answer. What they were asked for before (records, stacks) is used
where it is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kprof.abi import BLOCK_TRACK_WARP
from kprof.capture.claims import num_calls_of, ranks_in_use, read_messages
from kprof.capture.journal import Ended, Kernel, said
from kprof.capture.losses import GaveUp
from kprof.capture.names import events_file_name
from kprof.capture.parts import ranks_with_parts, read_info
from kprof.capture.started import read_ranks_started
from kprof.hangs.announced import SPAN
from kprof.hangs.asking import Answers
from kprof.hangs.lines import (
    RankWaits,
    blocks_begun,
    read_answer,
    read_kernels,
    read_waits,
    rows_in,
)
from kprof.hangs.state import (
    Call,
    Condition,
    OpenSpan,
    RankState,
    Records,
    RunState,
    Sent,
    Track,
)
from kprof.regions import Category, Region, RegionTable

if TYPE_CHECKING:
    import pyarrow as pa

# Of so many launches before the latest one, records are looked at.
_LAUNCHES_BACK: Final = 64
_UNKNOWN: Final = "an undeclared region"
_UNKNOWN_KERNEL: Final = Kernel("an unknown kernel", RegionTable())


class _Launches(NamedTuple):
    """The latest launches of a rank: calls with their number of blocks, and their regions."""

    calls: dict[int, tuple[Call, int]]
    regions: dict[int, RegionTable]


def read_run(
    directory: Path,
    answers: Answers | None = None,
    *,
    moving: frozenset[int] = frozenset(),
    with_records: bool = True,
) -> RunState:
    """The state of every rank that has, or had, a recorder in an unfinished directory.

    `answers` are those of ranks that were asked, `moving` the ranks that got on meanwhile.
    """
    answers = answers or Answers()
    waits, calls = read_waits(directory), num_calls_of(directory)
    conditions = conditions_of(directory)
    errors = {m.rank: m.reason for m in read_messages(directory) if isinstance(m, GaveUp)}
    kernels = {rank: read_kernels(directory, rank) for rank in waits}
    states = {}
    for rank in sorted(set(waits) | set(calls)):
        state = RankState(
            rank,
            condition=conditions.get(rank, Condition.ENDED),
            num_calls=calls.get(rank, 0),
            stack=answers.stacks.get(rank, ()),
            is_moving=rank in moving,
            error=errors.get(rank, ""),
            is_silent=rank in answers.silent,
        )
        if its := waits.get(rank):
            launches = _launches_of(its, kernels[rank])
            open_waits = _open_waits(rank, its, launches)
            has_closed = bool(said(directory, rank, Ended))
            state = replace(
                state,
                pid=its.pid,
                num_launches=its.num_launches,
                num_finished=its.num_finished,
                launches=launches.calls,
                waits=open_waits,
                misses_waits=its.is_full,
                gave_up=has_closed and bool(open_waits),
            )
            if with_records:
                state = _with_records(state, directory, launches)
        states[rank] = state
    world_size = max((each.world_size for each in waits.values()), default=len(states))
    return RunState(states, senders_of(each.values() for each in kernels.values()), world_size)


def conditions_of(directory: Path) -> dict[int, Condition]:
    """What has become of the ranks; those that are missing have ended.

    A lock says whether a rank lives, so a number that another process has taken does not mislead.
    """
    processes = {entry.rank: entry.process for entry in read_ranks_started(directory)}
    return {
        rank: processes[rank].condition() if rank in processes else Condition.RUNNING
        for rank in ranks_in_use(directory)
    }


def senders_of(kernels: Iterable[Iterable[Kernel]]) -> dict[str, tuple[str, ...]]:
    """The regions whose sends end waits of a region, as FLOW declares them.

    Where none does, any region for sends may.
    """
    found: dict[str, dict[str, None]] = {}
    for table in [kernel.regions for of_rank in kernels for kernel in of_rank]:
        declared = {flow.wait for flow in table.flows}
        for flow in table.flows:
            found.setdefault(table[flow.wait].name, {})[table[flow.send].name] = None
        sends = [region for region in table.regions if region.category is Category.SEND]
        for region in table.regions:
            if region.category in (Category.WAIT, Category.RECV) and region.id not in declared:
                found.setdefault(region.name, {}).update({send.name: None for send in sends})
    return {name: tuple(senders) for name, senders in found.items()}


def _with_records(state: RankState, directory: Path, launches: _Launches) -> RankState:
    """With what the rank has saved, and the announced spans of launches that have not ended."""
    spans = []
    rows = rows_in(read_answer(directory, state.rank).spans, SPAN)
    for row in rows[rows["launch"] >= state.num_finished]:
        track, call, region = _place_of(state.rank, row, launches)
        start_ticks, payload = int(row["start_ticks"]), int(row["payload"])
        spans.append(
            OpenSpan.of(track, call, region.name, start_ticks=start_ticks, payload=payload)
        )
    return replace(state, records=_read_records(directory, state.rank), spans=tuple(spans))


def _place_of(rank: int, row: np.void, launches: _Launches) -> tuple[Track, Call, Region]:
    launch, warp, number = int(row["launch"]), int(row["warp"]), int(row["region"])
    track = Track(rank, launch, int(row["block"]), -1 if warp == BLOCK_TRACK_WARP else warp)
    table = launches.regions.get(launch, RegionTable())
    region = table[number] if 0 < number <= len(table) else Region(number, _UNKNOWN)
    return track, launches.calls.get(launch, (Call(f"launch {launch}", 0), 0))[0], region


def _launches_of(waits: RankWaits, kernels: Mapping[int, Kernel]) -> _Launches:
    calls, regions = {}, {}
    for row in waits.launches:
        number, kernel = int(row["number_plus_1"]) - 1, int(row["kernel"])
        found = kernels.get(kernel, _UNKNOWN_KERNEL)
        calls[number] = Call(found.name, int(row["ordinal"])), int(row["num_blocks"])
        regions[number] = found.regions
    return _Launches(calls, regions)


def _open_waits(rank: int, waits: RankWaits, launches: _Launches) -> tuple[OpenSpan, ...]:
    # What is left of a launch that has ended gave up.
    lines = waits.lines[waits.lines["launch"] >= waits.num_finished]
    found = [_open_wait(rank, line, launches) for line in lines]
    return tuple(sorted(found, key=lambda wait: (wait.block, wait.warp)))


def _open_wait(rank: int, line: np.void, launches: _Launches) -> OpenSpan:
    track, call, region = _place_of(rank, line, launches)
    payload = int(line["payload"])
    peer, slot = (_field(region, name, payload) for name in ("peer", "slot"))
    start_ticks, held, wanted = (int(line[name]) for name in ("start_ticks", "held", "wanted"))
    known = peer, slot, 0.0, start_ticks, payload, held, wanted
    return OpenSpan.of(track, call, region.name, *known)


def _field(region: Region, name: str, payload: int) -> int:
    """A field of a payload; -1 where it is not declared, or did not fit."""
    field = region.field(name)
    if field is None:
        return -1
    value = payload >> field.shift & field.mask
    return -1 if value == field.mask else value


def _read_records(directory: Path, rank: int) -> Records | None:
    """What the rank has saved of its latest launches; None where it never saved."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = ranks_with_parts(directory).get(rank, [])
    if not paths and (final := directory / events_file_name(rank)).exists():
        # It has closed its recorder: what it sent is what others may not see.
        paths = [final]
    num_events, latest, found = 0, -1, []
    for path in reversed(paths):
        info = read_info(path)
        if info is None:
            continue
        calls = {each.launch: Call(each.kernel, each.ordinal) for each in info.launches}
        latest = max([latest, *calls])
        with contextlib.suppress(pa.ArrowException, OSError):
            table = pq.read_table(path, columns=_COLUMNS)
            num_events += len(table)
            if max(calls, default=-1) > latest - _LAUNCHES_BACK:
                found.append(_events(rank, table, info.regions, calls, latest - _LAUNCHES_BACK))
    if latest < 0:
        return None
    _, last_event = max((events.last for events in found), default=(0, ""))
    return Records(
        num_events,
        tuple(sent for events in reversed(found) for sent in events.sent),
        blocks_begun(read_answer(directory, rank)),
        _always_first([order for events in found for order in events.orders]),
        last_event,
    )


def with_records(directory: Path, run: RunState) -> RunState:
    """A run with what its ranks have saved since it was read."""
    waits, ranks = read_waits(directory), {}
    for rank, state in run.ranks.items():
        launches = _Launches({}, {})
        if rank in waits:
            launches = _launches_of(waits[rank], read_kernels(directory, rank))
        ranks[rank] = _with_records(state, directory, launches)
    return replace(run, ranks=ranks)


_COLUMNS: Final = ["launch", "block", "warp", "region", "start_ns", "duration_ns", "payload"]


class _Events(NamedTuple):
    sent: list[Sent]
    # A track's regions in their order, sends and waits only.
    orders: list[list[Region]]
    # When the span that ended last did, and that span in words.
    last: tuple[int, str]


def _events(
    rank: int, table: pa.Table, regions: RegionTable, calls: dict[int, Call], oldest: int
) -> _Events:
    """The sends of a part, and in which order every track sent and waited."""
    columns = {name: table[name].to_numpy() for name in _COLUMNS}
    wanted = [
        each.id for each in regions.regions if each.category in (Category.SEND, Category.WAIT)
    ]
    rows = np.flatnonzero((columns["launch"] > oldest) & np.isin(columns["region"], wanted))
    order = np.lexsort([columns[name][rows] for name in ("start_ns", "warp", "block", "launch")])
    sent: list[Sent] = []
    orders: list[list[Region]] = []
    current: Track | None = None
    chosen = ("launch", "block", "warp", "region", "payload")
    values = [columns[name][rows][order].tolist() for name in chosen]
    for launch, block, warp, number, payload in zip(*values, strict=True):
        track, region = Track(rank, launch, block, warp), regions[number]
        if track != current:
            current = track
            orders.append([])
        orders[-1].append(region)
        if region.category is Category.SEND and launch in calls:
            peer, slot = _field(region, "peer", payload), _field(region, "slot", payload)
            sent.append(Sent(track, calls[launch], region.name, peer, slot))
    return _Events(sent, orders, _last_of(rank, columns, regions, calls))


def _last_of(
    rank: int, columns: dict[str, np.ndarray], regions: RegionTable, calls: dict[int, Call]
) -> tuple[int, str]:
    ends_ns = columns["start_ns"] + columns["duration_ns"]
    if not len(ends_ns):
        return 0, ""
    at = int(ends_ns.argmax())
    launch, block, warp, number = (
        int(columns[name][at]) for name in ("launch", "block", "warp", "region")
    )
    region = regions[number].name if 0 < number <= len(regions) else _UNKNOWN
    call = calls.get(launch, f"launch {launch}")
    track = Track(rank, launch, block, warp)
    return int(ends_ns[at]), f"{region} of {track} in {call}"


def _always_first(orders: list[list[Region]]) -> frozenset[tuple[str, str]]:
    """The pairs (send, wait) of regions of which every track did all sends before its waits."""
    seen: dict[tuple[str, str], bool] = {}
    for order in orders:
        first_wait: dict[str, int] = {}
        last_send: dict[str, int] = {}
        for at, region in enumerate(order):
            if region.category is Category.SEND:
                last_send[region.name] = at
            else:
                first_wait.setdefault(region.name, at)
        for send, sent_at in last_send.items():
            for wait, waited_at in first_wait.items():
                seen[send, wait] = seen.get((send, wait), True) and sent_at < waited_at
    return frozenset(pair for pair, is_first in seen.items() if is_first)
