"""Events that somebody else recorded, on their way into a capture."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from kprof.capture.directory import EventWriter, begin_capture, event_schema, finish_capture
from kprof.capture.manifest import (
    FORMAT_VERSION,
    Alignment,
    ClockInfo,
    ClockSegment,
    EventCounts,
    Launch,
    Manifest,
    RankAlignment,
    RankInfo,
)
from kprof.errors import ForeignFormatError
from kprof.regions import PAYLOAD_BITS, Field, Region, RegionTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NOT_ALIGNED: Final = (
    "imported events carry no clock calibration; give a bound if all ranks read one clock"
)


@dataclass(frozen=True)
class ImportSummary:
    """What was imported. `notices` say what was left out or assumed."""

    path: Path
    num_events: int
    num_ranks: int
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class ForeignEvents:
    """Events of all ranks in ns of each rank's clock; columns have shape (n,). `name` indexes `names`."""

    rank: NDArray[np.int64]
    block: NDArray[np.int64]
    name: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    names: tuple[str, ...]
    warp: NDArray[np.int64] | None = None
    launch: NDArray[np.int64] | None = None
    fields: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    num_dropped: Mapping[int, int] = field(default_factory=dict)
    kernel: str = "imported"
    tick_ns: float = 1.0

    def __len__(self) -> int:
        """The number of events, n."""
        return len(self.start_ns)


def write_foreign(
    events: ForeignEvents,
    output: Path,
    *,
    origin: str,
    regions: RegionTable | None,
    bound_ns: float | None,
    force: bool,
    notices: Sequence[str] = (),
) -> ImportSummary:
    """Write a capture. `regions` gives categories and kinds by name; `bound_ns` says that all ranks share a
    clock so well."""
    _check(events, origin)
    fields, payload = _pack_fields(events, origin)
    table, region_ids = _region_table(events.names, regions, fields)
    ranks = np.unique(events.rank).tolist()
    temporary = begin_capture(output, force)
    try:
        infos = []
        for rank in ranks:
            rows = np.flatnonzero(events.rank == rank)
            _write_rank(temporary, rank, events, rows, region_ids, payload)
            infos.append(_rank_info(rank, events, rows, table))
        finish_capture(temporary, output, _manifest(infos, ranks, origin, bound_ns))
    except BaseException:
        # Unlike a recording that was cut off, an import can be done again.
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return ImportSummary(output, len(events), len(ranks), tuple(notices))


def to_ns(ticks: NDArray[np.int64], tick_ns: float) -> NDArray[np.int64]:
    """Ticks to ns, exact for whole ticks and to half a ns over the length of a trace otherwise."""
    if float(tick_ns).is_integer():
        exact: NDArray[np.int64] = ticks * int(tick_ns)
        return exact
    base = int(ticks.min()) if len(ticks) else 0
    offsets = np.rint((ticks - base) * tick_ns).astype(np.int64)
    rounded: NDArray[np.int64] = offsets + int(base * tick_ns)
    return rounded


def _check(events: ForeignEvents, origin: str) -> None:
    if len(events) == 0:
        raise ForeignFormatError(f"{origin} holds no events; nothing was imported")
    for what, column in (("rank", events.rank), ("block", events.block)):
        if column.min() < 0 or column.max() > np.iinfo(np.int32).max:
            raise ForeignFormatError(
                f"{origin} has {what} {int(column.min() if column.min() < 0 else column.max())}, "
                f"expected 0 to 2147483647; check the column and the offsets"
            )
    if events.duration_ns.min() < 0:
        row = int(np.argmin(events.duration_ns))
        raise ForeignFormatError(
            f"{origin}: event {row} ends {-int(events.duration_ns[row])} ns before it starts; fix or remove it"
        )


def _pack_fields(events: ForeignEvents, origin: str) -> tuple[tuple[Field, ...], NDArray[np.int64]]:
    """Payload fields just wide enough for their values: the largest value of a field is kept free, it means
    "clamped"."""
    fields: list[Field] = []
    payload = np.zeros(len(events), dtype=np.int64)
    shift = 0
    for name, values in events.fields.items():
        if values.min() < 0:
            raise ForeignFormatError(f"{origin} has a negative {name}; payload fields start at 0")
        bits = max(2, (int(values.max()) + 1).bit_length())
        fields.append(Field(name, bits, shift))
        payload |= values << shift
        shift += bits
    if shift > PAYLOAD_BITS:
        sizes = ", ".join(f"{f.name}:{f.bits}" for f in fields)
        raise ForeignFormatError(
            f"{origin}: the fields {sizes} take {shift} bits of {PAYLOAD_BITS}; leave one out"
        )
    return tuple(fields), payload


def _region_table(
    names: tuple[str, ...], known: RegionTable | None, fields: tuple[Field, ...]
) -> tuple[RegionTable, NDArray[np.int64]]:
    """A table in the order of `known`, with the other names behind; and the region id of each name."""
    by_name = {region.name: region for region in (known.regions if known else ())}
    ordered = [*by_name, *(name for name in dict.fromkeys(names) if name not in by_name)]
    regions = tuple(
        msgspec.structs.replace(by_name.get(name, Region(i, name)), id=i, fields=fields)
        for i, name in enumerate(ordered, start=1)
    )
    has_flow_fields = {"peer", "slot"} <= {field.name for field in fields}
    flows = known.flows if known and has_flow_fields else ()
    ids = {region.name: region.id for region in regions}
    return RegionTable(regions, flows), np.array([ids[name] for name in names], dtype=np.int64)


def _write_rank(
    folder: Path,
    rank: int,
    events: ForeignEvents,
    rows: NDArray[np.intp],
    region_ids: NDArray[np.int64],
    payload: NDArray[np.int64],
) -> None:
    import pyarrow as pa

    none = np.zeros(len(rows), dtype=np.int64)
    columns: dict[str, NDArray[Any]] = {
        "rank": none + rank,
        "launch": none if events.launch is None else events.launch[rows],
        "block": events.block[rows],
        "warp": none - 1 if events.warp is None else events.warp[rows],
        "region": region_ids[events.name[rows]],
        "flags": none,
        "start_ns": events.start_ns[rows],
        "duration_ns": events.duration_ns[rows],
        "payload": payload[rows],
        "hw_id": none,
    }
    schema = event_schema()
    writer = EventWriter(folder, rank)
    writer.write(
        pa.table(
            {item.name: columns[item.name].astype(item.type.to_pandas_dtype()) for item in schema},
            schema,
        )
    )
    writer.close()


def _rank_info(
    rank: int, events: ForeignEvents, rows: NDArray[np.intp], table: RegionTable
) -> RankInfo:
    launches = [0] if events.launch is None else np.unique(events.launch[rows]).tolist()
    num_blocks = int(events.block[rows].max()) + 1
    return RankInfo(
        rank=rank,
        target="imported",
        clock=ClockInfo("imported", 1e9 / events.tick_ns, events.tick_ns),
        counts=EventCounts(recorded=len(rows), dropped=events.num_dropped.get(rank, 0)),
        regions=table,
        launches=tuple(
            Launch(launch, events.kernel, ordinal, num_blocks)
            for ordinal, launch in enumerate(launches)
        ),
        notes=("imported",),
    )


def _manifest(
    infos: list[RankInfo], ranks: list[int], origin: str, bound_ns: float | None
) -> Manifest:
    from kprof import __version__

    world_size = max(ranks) + 1
    alignment = None
    if bound_ns is not None:
        # Bounds of two ranks add up to the one between them.
        entries = (RankAlignment(rank, (ClockSegment(0, 0.0),), bound_ns / 2) for rank in ranks)
        alignment = Alignment("stated at import", ranks[0], tuple(entries))
    return Manifest(
        format_version=FORMAT_VERSION,
        kprof_version=__version__,
        command=("kprof", "import", origin),
        created_utc=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        world_size=world_size,
        exit_code=None,
        duration_s=0.0,
        ranks=tuple(infos),
        missing_ranks=tuple(sorted(set(range(world_size)) - set(ranks))),
        alignment=alignment,
        alignment_note="" if alignment else _NOT_ALIGNED,
    )
