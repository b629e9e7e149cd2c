"""Writing foreign events as a capture: checks, guesses from names, and the manifest."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kprof.capture.checks import EVENT_BOUNDS
from kprof.capture.directory import begin_capture, event_schema, finish_capture, write_rank_events
from kprof.capture.manifest import (
    FORMAT_VERSION,
    MAX_RANKS,
    Alignment,
    ClockInfo,
    ClockSegment,
    EventCounts,
    Launch,
    Manifest,
    RankAlignment,
    RankInfo,
)
from kprof.capture.printable import utf8
from kprof.errors import ForeignFormatError
from kprof.importers.foreign import NONE, ForeignEvents, Guess, ImportSummary
from kprof.importers.guesses import (
    category_of,
    describe_categories,
    describe_declared,
    do_ranks_start_together,
    listed,
)
from kprof.on_use import pa
from kprof.regions import PAYLOAD_BITS, Category, Field, Kind, Region, RegionTable

Ints = NDArray[np.int64]

_NOT_ALIGNED: Final = (
    "imported events carry no clock calibration; if all ranks read one clock, import with --bound, "
    "such as --bound 100ns"
)
# Why times cannot be compared, even if a bound is stated.
_SAME_START: Final = (
    "all ranks start at the same tick, so kprof subtracted each rank's first time, and times "
    "of different ranks cannot be compared"
)


@dataclass(frozen=True)
class Prepared:
    """Events that can be written. `region_ids` is by name, `payload` by event; `undeclared` are
    names whose categories are guesses."""

    events: ForeignEvents
    table: RegionTable
    region_ids: Ints
    payload: Ints
    undeclared: list[str]


def prepare(events: ForeignEvents, origin: str, regions: RegionTable | None = None) -> Prepared:
    """Check events and make their regions; raises ForeignFormatError. Writes nothing."""
    _check(events, origin)
    declared = regions.names if regions else []
    _check_regions(events, declared, origin)
    fields, payload = _pack_fields(events, origin)
    table, region_ids = _region_table(events, regions, fields, origin)
    known = {*declared, *events.marks, *events.categories}
    undeclared = [name for name in _used_names(events) if name not in known]
    return Prepared(events, table, region_ids, payload, undeclared)


def write_foreign(
    events: ForeignEvents,
    output: Path,
    *,
    origin: str,
    regions: RegionTable | None,
    bound_ns: float | None,
    force: bool,
    command: tuple[str, ...] = (),
) -> ImportSummary:
    """Write a capture. `regions` and `bound_ns` are those of kprof.importers.import_events.

    What regions do not declare is guessed, and the guesses are kept in the manifest. `command` is
    what was recorded, where kprof has started it.
    """
    ready = prepare(events, origin, regions)
    table, undeclared = ready.table, ready.undeclared
    taken = (*events.taken.items(), *_categories(table, set(_used_names(events)), set(undeclared)))
    doubt = _SAME_START if do_ranks_start_together(events.rank, events.start_ns) else ""
    ranks = np.unique(events.rank).tolist()
    temporary = begin_capture(output, force)
    try:
        infos = []
        for rank in ranks:
            rows = np.flatnonzero(events.rank == rank)
            _write_rank(temporary, rank, ready, rows)
            infos.append(_rank_info(rank, events, rows, table))
        alignment, note = _alignment(ranks, bound_ns, doubt)
        source = command or ("kprof", "import", origin)
        manifest = _manifest(infos, source, alignment, note, tuple(_guesses(events, undeclared)))
        finish_capture(temporary, output, manifest, force=force)
    except BaseException:
        # Unlike a recording that was cut off, an import can be repeated.
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return ImportSummary(
        output,
        len(events),
        len(ranks),
        tuple(_notices(events, regions, table, doubt if bound_ns is not None else "")),
        taken=taken,
        left_out=events.left_out,
        num_lost=sum(events.num_dropped.values()),
        is_aligned=alignment is not None,
    )


def _guesses(events: ForeignEvents, undeclared: list[str]) -> Iterator[str]:
    """Sentences about what was guessed, which the manifest keeps."""
    yield from events.guesses
    for what, source in events.taken.items():
        if isinstance(source, Guess):
            yield f"{what} is taken from {source}"
    yield from describe_categories(undeclared)


def _notices(
    events: ForeignEvents, regions: RegionTable | None, table: RegionTable, unused_bound: str
) -> Iterator[str]:
    yield from events.notices
    declared = [region.name for region in (regions.regions if regions else ())]
    yield from describe_declared(declared, _used_names(events))
    yield from events.guesses
    yield from _describe_unused_flows(regions, table)
    if unused_bound:
        yield f"the bound is not used: {unused_bound}"


def _categories(table: RegionTable, used: set[str], guessed: set[str]) -> Iterator[tuple[str, str]]:
    """Which names are of which category, those that were guessed apart."""
    by_category: dict[tuple[Category, bool], list[str]] = {}
    for region in table.regions:
        if region.name in used and region.kind is Kind.SPAN:
            is_guess = region.name in guessed
            by_category.setdefault((region.category, is_guess), []).append(region.name)
    for (category, is_guess), names in by_category.items():
        text = listed(names)
        yield f"category {category.value}", Guess(text) if is_guess else text


def _check(events: ForeignEvents, origin: str) -> None:
    if len(events) == 0:
        raise ForeignFormatError(f"{origin} holds no events; nothing was imported")
    if events.duration_ns.min() < 0:
        row = int(np.argmin(events.duration_ns))
        raise ForeignFormatError(
            f"{origin}: event {row} ends {-int(events.duration_ns[row])} ns before it starts; "
            "fix or remove it"
        )
    # The bounds that reading a capture checks.
    bounds = EVENT_BOUNDS | {"rank": (0, MAX_RANKS - 1)}
    for what in ("rank", "launch", "block", "warp", "start_ns", "duration_ns", "hw_id"):
        column = np.asarray(getattr(events, what))
        least, most = bounds[what]
        if column.min() < least or column.max() > most:
            strange = int(column.min() if column.min() < least else column.max())
            raise ForeignFormatError(
                f"{origin} has {what} {strange}, expected {least} to {most}; "
                "check the column and the offsets"
            )


def _pack_fields(events: ForeignEvents, origin: str) -> tuple[tuple[Field, ...], Ints]:
    """Payload fields just wide enough for their values; a field's largest value means "clamped".

    -1 stands for an event without the field.
    """
    fields: list[Field] = []
    payload = np.zeros(len(events), dtype=np.int64)
    shift = 0
    for name, values in events.fields.items():
        if values.min() < NONE:
            raise ForeignFormatError(
                f"{origin} has {name} {int(values.min())}; payload fields start at 0, and {NONE} "
                "or an empty cell means none"
            )
        bits = max(2, (int(values.max()) + 1).bit_length())
        fields.append(Field(name, bits, shift))
        payload |= np.maximum(values, 0) << shift
        shift += bits
    if shift > PAYLOAD_BITS:
        sizes = ", ".join(f"{f.name}:{f.bits}" for f in fields)
        raise ForeignFormatError(
            f"{origin}: the fields {sizes} take {shift} bits of {PAYLOAD_BITS}; leave one out"
        )
    return tuple(fields), payload


def _region_table(
    events: ForeignEvents, known: RegionTable | None, fields: tuple[Field, ...], origin: str
) -> tuple[RegionTable, Ints]:
    """A table in the order of `known`, then the other names; and the region id of each name."""
    names = events.names
    by_name = {region.name: region for region in (known.regions if known else ())}
    ordered = [*by_name, *(name for name in dict.fromkeys(names) if name not in by_name)]
    own = _fields_of_names(events, fields, origin)
    regions = tuple(
        msgspec.structs.replace(
            by_name.get(name) or _guessed(name, events), id=i, fields=own.get(name, fields)
        )
        for i, name in enumerate(ordered, start=1)
    )
    flows = tuple(
        flow
        for flow in (known.flows if known else ())
        if all(
            {field.name for field in regions[region - 1].fields}
            >= ({"slot"} if flow.in_block else {"peer", "slot"})
            for region in (flow.send, flow.wait)
        )
    )
    ids = {region.name: region.id for region in regions}
    return RegionTable(regions, flows), np.array([ids[name] for name in names], dtype=np.int64)


def _fields_of_names(
    events: ForeignEvents, fields: tuple[Field, ...], origin: str
) -> dict[str, tuple[Field, ...]]:
    """The fields that the events of each name have: all of these events, or none."""
    own: dict[str, tuple[Field, ...]] = {}
    for number in np.unique(events.name).tolist():
        rows, name = events.name == number, events.names[number]
        has = {field.name: events.fields[field.name][rows] != NONE for field in fields}
        for field in fields:
            if has[field.name].any() and not has[field.name].all():
                raise ForeignFormatError(
                    f"{origin}: some events of region {name} have a {field.name} and some have "
                    "none; give them two names"
                )
        own[name] = tuple(field for field in fields if has[field.name].all())
    return own


def _describe_unused_flows(declared: RegionTable | None, used: RegionTable) -> list[str]:
    num_unused = len(declared.flows if declared else ()) - len(used.flows)
    if not num_unused:
        return []
    return [
        f"{num_unused} FLOW of the regions file joins nothing: that takes a slot for every event, "
        "and a peer unless it is FLOW_IN_BLOCK"
    ]


def _guessed(name: str, events: ForeignEvents) -> Region:
    if name in events.marks:
        return Region(1, name, kind=Kind.MARK)
    return Region(1, name, events.categories.get(name) or category_of(name))


def _used_names(events: ForeignEvents) -> list[str]:
    """Names that events use; a list of tag names may have more."""
    return [events.names[i] for i in np.unique(events.name).tolist()]


def _check_regions(events: ForeignEvents, declared: list[str], origin: str) -> None:
    """Refuse a regions file of another kernel, which would silently change nothing."""
    if declared and not set(declared) & set(events.names):
        raise ForeignFormatError(
            f"no event of {origin} has a name that the regions file declares: "
            f"it declares {', '.join(declared[:8])}, "
            f"and the events are called {', '.join(_used_names(events)[:8])}"
        )


def _write_rank(folder: Path, rank: int, ready: Prepared, rows: Ints) -> None:
    events = ready.events
    none = np.zeros(len(rows), dtype=np.int64)
    columns: dict[str, Ints] = {
        "rank": none + rank,
        "launch": np.broadcast_to(events.launch, len(events))[rows],
        "block": events.block[rows],
        "warp": np.broadcast_to(events.warp, len(events))[rows],
        "region": ready.region_ids[events.name[rows]],
        "flags": none,
        "start_ns": events.start_ns[rows],
        "duration_ns": events.duration_ns[rows],
        "payload": ready.payload[rows],
        "hw_id": np.broadcast_to(events.hw_id, len(events))[rows],
    }
    write_rank_events(folder, rank, pa.table(columns).cast(event_schema()))


def _rank_info(rank: int, events: ForeignEvents, rows: Ints, table: RegionTable) -> RankInfo:
    launches = np.unique(np.broadcast_to(events.launch, len(events))[rows]).tolist()
    return RankInfo(
        rank=rank,
        target="imported",
        clock=ClockInfo("imported", 1e9 / events.tick_ns, events.tick_ns),
        counts=EventCounts(recorded=len(rows), dropped=events.num_dropped.get(rank, 0)),
        regions=table,
        launches=_launches(events, launches),
        notes=("imported",),
    )


def _launches(events: ForeignEvents, numbers: list[int]) -> tuple[Launch, ...]:
    # Nothing says which launches of several kernels make a call, so that each is one. Where nothing
    # says the number of blocks, some may have no events.
    return tuple(
        Launch(
            number,
            utf8(events.kernels.get(number, events.kernel)),
            ordinal,
            *events.grids.get(number, ()),
        )
        for ordinal, number in enumerate(numbers)
    )


def _alignment(
    ranks: list[int], bound_ns: float | None, doubt: str
) -> tuple[Alignment | None, str]:
    """One clock with the stated bound, or None and the reason."""
    if doubt or bound_ns is None:
        return None, doubt or _NOT_ALIGNED
    # The bounds of two ranks add up to the bound between them.
    entries = (RankAlignment(rank, (ClockSegment(0, 0.0),), bound_ns / 2) for rank in ranks)
    return Alignment("stated at import", ranks[0], tuple(entries)), ""


def _manifest(
    infos: list[RankInfo],
    command: tuple[str, ...],
    alignment: Alignment | None,
    note: str,
    guesses: tuple[str, ...],
) -> Manifest:
    import kprof

    ranks = [info.rank for info in infos]
    world_size = max(ranks) + 1
    return Manifest(
        format_version=FORMAT_VERSION,
        kprof_version=kprof.__version__,
        command=tuple(map(utf8, command)),
        created_utc=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        world_size=world_size,
        exit_code=None,
        duration_s=0.0,
        ranks=tuple(infos),
        missing_ranks=tuple(sorted(set(range(world_size)) - set(ranks))),
        alignment=alignment,
        alignment_note=note,
        guesses=guesses,
    )
