"""Puts the collectives that the plugin has recorded among the events of the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from kprof.capture.checks import EVENT_BOUNDS
from kprof.capture.directory import event_schema, write_rank_info
from kprof.capture.journal import Ended, said
from kprof.capture.losses import name_ranks
from kprof.capture.manifest import (
    MAX_COUNT,
    MAX_RANKS,
    Alignment,
    ArenaUse,
    ClockInfo,
    RankAlignment,
    RankInfo,
)
from kprof.capture.names import events_file_name, summary_file_name
from kprof.capture.parts import PartWriter, append_events
from kprof.capture.printable import utf8
from kprof.capture.rank_summary import write_summary
from kprof.capture.shared_memory import folders_of
from kprof.nccl.clocks import STEP_NS, common_clock, machines_of
from kprof.nccl.collectives import MAX_CHANNEL, REGIONS, RankCalls, corrections, spans_of
from kprof.nccl.entries import never_entered
from kprof.nccl.events import Rank, channels_of, names_of, resolve
from kprof.nccl.host import write_host_trace
from kprof.nccl.keeping import slowest
from kprof.nccl.overtaken import by_order, by_others
from kprof.nccl.ring import RECORD, Ring, read_rings
from kprof.on_use import pa, pd
from kprof.regions import FlowRule, RegionTable

NAME_OF_FIRST: Final = REGIONS.regions[0].name
_NS_PER_S: Final = 10**9


@dataclass(frozen=True)
class Collected:
    """A recording with its collectives; `world_size` is the least that they need."""

    infos: tuple[RankInfo, ...]
    alignment: Alignment | None
    note: str
    messages: tuple[str, ...] = ()
    world_size: int = 0


def collect(
    directory: Path, infos: Sequence[RankInfo], alignment: Alignment | None, note: str
) -> Collected:
    """Add the events of all rings of a recording to its ranks; raises CaptureError.

    `alignment` is that of the ranks' recorders, and `note` says why there is none. A second call
    adds nothing again.
    """
    rings, refused = read_rings(*folders_of(directory))
    if not rings or any(has_collectives(info) for info in infos):
        return Collected(tuple(infos), alignment, note, tuple(refused))
    ranks, unknown = resolve(rings)
    hung, rings = never_entered(rings, ranks), _chosen(rings)
    found: dict[int, RankInfo] = {info.rank: info for info in infos}
    apart = []
    for each in _new_infos(rings, ranks):
        if found.setdefault(each.rank, each).clock.source != each.clock.source:
            apart.append(each.rank)
    ranks = {place: each for place, each in ranks.items() if each.rank not in apart}
    unknown += _on_other_clocks(sorted({*apart}))
    if not ranks:
        return Collected(tuple(infos), alignment, note, (*refused, *unknown, *hung))
    every = channels_of(rings, ranks)
    sound = _in_bounds(every)
    channels = sound[~by_order(sound)]
    if alignment is None or not found.keys() <= {entry.rank for entry in alignment.ranks}:
        machines = machines_of(rings, ranks)
        alignment, note = common_clock(channels, ranks.values(), frozenset(found), machines)
    if alignment is not None and (clocks := _clocks(alignment)):
        shifts_ns = corrections(channels, clocks)
        channels = channels[~by_others(channels, shifts_ns, alignment.widest_bound_ns)]
    calls = spans_of(channels, _clocks(alignment))
    sizes = [each.comm.num_ranks for each in ranks.values()]
    world_size = max([*sizes, *(rank + 1 for rank in found)], default=0)
    for rank, mine in _rings_of(rings, ranks).items():
        found[rank] = _add(directory, found[rank], calls.get(rank), mine, world_size)
        if rank in calls:
            write_host_trace(directory, rank, calls[rank].on_host, _numbers(rings, ranks, rank))
    strange = _strange(rings, len(every) - len(sound), len(sound) - len(channels))
    odd = (*strange, *unknown, *_versions(rings), *_left_nothing(ranks.values()))
    messages = (*refused, *odd, *hung)
    kept = tuple(found[rank] for rank in sorted(found))
    return Collected(kept, alignment, note, messages, world_size)


def _on_other_clocks(ranks: list[int]) -> list[str]:
    """A sentence about ranks whose recorder is not on the GPU of their communicator."""
    if not ranks:
        return []
    who = name_ranks(ranks)
    return [
        f"the collectives of {who} are not in the capture: a recorder there reads another clock"
    ]


def _chosen(rings: list[Ring]) -> list[Ring]:
    """With the slowest calls only, where that is what was asked for."""
    number = max(ring.keep_slowest for ring in rings)
    return slowest(rings, number) if number else rings


def has_collectives(info: RankInfo) -> bool:
    """Whether a rank has events of the plugin."""
    return NAME_OF_FIRST in info.regions.names


def _in_bounds(channels: pd.DataFrame) -> pd.DataFrame:
    """Without what a damaged ring holds: one such row would make nobody read the file."""
    longest, latest = EVENT_BOUNDS["duration_ns"][1], EVENT_BOUNDS["start_ns"][1]
    return channels[
        channels["rank"].between(0, MAX_RANKS - 1)
        & channels["channel"].between(0, MAX_CHANNEL)
        & channels["start_ns"].between(1, latest)
        & (channels["stop_ns"] - channels["start_ns"] <= longest)
    ]


def _strange(rings: Sequence[Ring], num_channels: int, num_overtaken: int) -> list[str]:
    """Sentences about what leaves channels out: damage, and times of other calls."""
    damaged = {"communicators": sum(ring.num_strange for ring in rings), "channels": num_channels}
    said = [
        f"{what} of NCCL that make no sense are not in the capture: {count:,}"
        for what, count in damaged.items()
        if count
    ]
    if num_overtaken:
        said.append(
            f"{num_overtaken:,} channels of calls are not in the capture: NCCL keeps the times of "
            "the latest 64 of a channel, and had overwritten theirs before it read them"
        )
    return said


def _clocks(alignment: Alignment | None) -> dict[int, RankAlignment] | None:
    return {entry.rank: entry for entry in alignment.ranks} if alignment else None


def _new_infos(rings: Sequence[Ring], ranks: Mapping[tuple[int, int], Rank]) -> list[RankInfo]:
    """What is known of ranks that have no recorder of kprof."""
    return [
        RankInfo(
            rank=each.rank,
            host=utf8(rings[idx].host),
            pid=rings[idx].pid,
            target="nccl",
            device=f"GPU {each.comm.uuid[:8]}" if each.comm.uuid else "",
            clock=_clock_of(each.comm.ticks_per_second),
            notes=(f"NCCL's profiler interface, version {rings[idx].abi}",),
        )
        for (idx, _), each in ranks.items()
        if each.rank < MAX_RANKS
    ]


def _clock_of(ticks_per_second: int) -> ClockInfo:
    if ticks_per_second == _NS_PER_S:
        return ClockInfo("%globaltimer", 1e9, STEP_NS)
    return ClockInfo("s_memrealtime", ticks_per_second, _NS_PER_S / ticks_per_second)


def _rings_of(
    rings: Sequence[Ring], ranks: Mapping[tuple[int, int], Rank]
) -> dict[int, list[Ring]]:
    """The rings whose losses a rank counts: of threads that share one, the first."""
    found: dict[int, list[Ring]] = {each.rank: [] for each in ranks.values()}
    for idx, ring in enumerate(rings):
        mine = [each.rank for (r, _), each in ranks.items() if r == idx]
        if mine:
            found[min(mine)].append(ring)
    return {rank: mine for rank, mine in sorted(found.items()) if rank < MAX_RANKS}


def _numbers(
    rings: Sequence[Ring], ranks: Mapping[tuple[int, int], Rank], rank: int
) -> list[tuple[Ring, list[int]]]:
    """The rings in which a rank is, with the numbers that its communicators have in records."""
    mine = [place for place, each in ranks.items() if each.rank == rank]
    return [(ring, [i + 1 for r, i in mine if r == idx]) for idx, ring in enumerate(rings)]


def _add(
    directory: Path, base: RankInfo, calls: RankCalls | None, rings: Sequence[Ring], world_size: int
) -> RankInfo:
    """The rank with these calls after its own launches, and their events in its file."""
    first_launch = max((each.launch for each in base.launches), default=-1) + 1
    info = _counted(base, calls, rings, first_launch)
    table = event_schema().empty_table()
    if calls is not None:
        events = calls.events.assign(
            launch=calls.events["launch"] + first_launch,
            region=calls.events["region"] + len(base.regions),
        )
        names = event_schema().names
        table = pa.Table.from_pandas(events[names], preserve_index=False).cast(event_schema())
    if (directory / events_file_name(base.rank)).exists():
        append_events(directory, info, table)
        if said(directory, base.rank, Ended):
            write_rank_info(directory, info)
        if (directory / summary_file_name(base.rank)).exists():
            write_summary(directory, info, world_size)
        return info
    writer = PartWriter(directory, base.rank)
    writer.save([table], lambda: info)
    writer.keep()
    writer.finish(info)
    return info


def _counted(
    base: RankInfo, calls: RankCalls | None, rings: Sequence[Ring], first_launch: int
) -> RankInfo:
    """With the regions, the launches (from `first_launch` on) and the counts of the collectives."""
    num_lost = sum(ring.num_lost for ring in rings)
    num_held = sum(len(ring.records) for ring in rings)
    events = () if calls is None else calls.events
    num_open = 0 if calls is None else int((calls.events["flags"] != 0).sum())
    shift = len(base.regions)
    added = (msgspec.structs.replace(each, id=each.id + shift) for each in REGIONS.regions)
    rules = (FlowRule(rule.send + shift, rule.wait + shift) for rule in REGIONS.flows)
    launches = () if calls is None else calls.launches
    counts, arena = base.counts, base.arena
    num_others = sum(ring.num_events for ring in rings) - num_held - num_lost
    said = f"the capture has {num_held:,} events of NCCL; {num_others:,} others were not to be kept"
    return msgspec.structs.replace(
        base,
        notes=(*base.notes, said) if num_others > 0 else base.notes,
        regions=RegionTable((*base.regions.regions, *added), (*base.regions.flows, *rules)),
        launches=(
            *base.launches,
            *(msgspec.structs.replace(e, launch=e.launch + first_launch) for e in launches),
        ),
        counts=msgspec.structs.replace(
            counts,
            recorded=counts.recorded + len(events),
            open=counts.open + num_open,
            dropped=min(counts.dropped + num_lost, MAX_COUNT),
        ),
        arena=ArenaUse(
            max(arena.size_bytes, num_held * RECORD.itemsize),
            max(arena.used_bytes, num_held * RECORD.itemsize),
            max(arena.needed_bytes, min((num_held + num_lost) * RECORD.itemsize, MAX_COUNT)),
        ),
    )


def _versions(rings: Sequence[Ring]) -> list[str]:
    """A sentence where processes have different versions of NCCL, as far as the interface tells."""
    by_abi: dict[int, list[int]] = {}
    for ring in rings:
        by_abi.setdefault(ring.abi, []).append(ring.pid)
    if len(by_abi) < 2:
        return []
    parts = (
        f"version {abi} in {len(pids)} of {len(rings)} processes"
        for abi, pids in sorted(by_abi.items())
    )
    return [f"NCCL's profiler interface has {', '.join(parts)}: ranks load different NCCLs"]


def _left_nothing(ranks: Iterable[Rank]) -> list[str]:
    """A sentence about the communicator of which most ranks have left nothing."""
    members: dict[int, set[int]] = {}
    comms = {each.comm.id: each.comm for each in ranks}
    for each in ranks:
        members.setdefault(each.comm.id, set()).add(each.rank)
    lacking = {number: comms[number].num_ranks - len(found) for number, found in members.items()}
    number = max(lacking, key=lacking.__getitem__, default=None)
    if number is None or lacking[number] <= 0:
        return []
    size, name = comms[number].num_ranks, names_of(comms.values())[number]
    return [
        f"{lacking[number]} of {size} ranks of communicator {name} left nothing: their NCCL is "
        "older than 2.26 or has another plugin, their host lacks the file, or they are recorded "
        "elsewhere"
    ]
