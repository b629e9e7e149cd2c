"""Hand-made traces, for tests of analyses and exporters, and for trying out queries before there is
a recording.

build = TraceBuilder(REGIONS_TEXT, num_ranks=2)
build.span(0, "dispatch/send", 100, 50, block=3, peer=1, slot=7)
trace = build.trace()
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from kprof.capture.directory import (
    Capture,
    begin_capture,
    event_schema,
    finish_capture,
    write_rank_events,
)
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
from kprof.regions import Region, RegionTable, parse_regions
from kprof.trace import Trace

# Of a rank, block and call: regions and how long they take in ns, and for some the peer.
Steps = Callable[[int, int, int], Iterable[tuple[str, int] | tuple[str, int, int]]]


class TraceBuilder:
    """Collects events row by row and makes a Trace or a capture of them."""

    def __init__(
        self,
        regions: str | RegionTable,
        num_ranks: int,
        *,
        bound_ns: float = 10.0,
        is_aligned: bool = True,
        offsets_ns: dict[int, float] | None = None,
        missing_ranks: tuple[int, ...] = (),
    ) -> None:
        self.regions = parse_regions(regions) if isinstance(regions, str) else regions
        self.num_ranks = num_ranks
        self.bound_ns = bound_ns
        self.is_aligned = is_aligned
        self.offsets_ns = offsets_ns or {}
        self.missing_ranks = missing_ranks
        self._rows: list[dict[str, Any]] = []
        self._num_rows_of: Counter[int] = Counter()
        self._launches: dict[int, Launch] = {}
        self.launch(0, "kernel")

    def launch(self, launch: int, kernel: str, num_blocks: int = 0) -> None:
        """Declare launch number `launch` of every rank."""
        others = [known for known in self._launches.values() if known.launch != launch]
        ordinal = sum(1 for known in others if known.kernel == kernel)
        self._launches[launch] = Launch(launch, kernel, ordinal, num_blocks)

    def span(
        self,
        rank: int,
        region: str,
        start_ns: int,
        duration_ns: int = 0,
        *,
        block: int = 0,
        warp: int = -1,
        launch: int = 0,
        flags: int = 0,
        processor: int | None = None,
        **fields: int,
    ) -> None:
        """Add one record; `fields` are payload fields by name. Marks and values are spans of duration 0. A block
        has a processor of its own if none is named."""
        declared = self.regions.by_name(region)
        self._num_rows_of[rank] += 1
        self._rows.append(
            {
                "rank": rank,
                "launch": launch,
                "block": block,
                "warp": warp,
                "region": declared.id,
                "flags": flags,
                "start_ns": start_ns,
                "duration_ns": duration_ns,
                "payload": pack_payload(declared, fields),
                "hw_id": block if processor is None else processor,
            }
        )

    def manifest(self) -> Manifest:
        """The manifest for everything added so far."""
        present = [rank for rank in range(self.num_ranks) if rank not in self.missing_ranks]
        alignment = Alignment(
            "synthetic",
            0,
            tuple(
                RankAlignment(
                    rank,
                    (ClockSegment(0, self.offsets_ns.get(rank, 0.0)),),
                    0.0 if rank == 0 else self.bound_ns,
                )
                for rank in present
            ),
        )
        return Manifest(
            format_version=FORMAT_VERSION,
            kprof_version="synthetic",
            command=("synthetic",),
            created_utc="2026-01-01T00:00:00Z",
            world_size=self.num_ranks,
            exit_code=0,
            duration_s=0.0,
            ranks=tuple(self._rank_info(rank) for rank in present),
            missing_ranks=self.missing_ranks,
            alignment=alignment if self.is_aligned else None,
            alignment_note="" if self.is_aligned else "the recording has no clock calibration",
        )

    def calls(
        self, num_calls: int, num_blocks: int, steps: Steps, num_ranks: int = 1
    ) -> TraceBuilder:
        """Calls of one kernel, a millisecond apart. Every block does its `steps` one after the other."""
        for call in range(num_calls):
            self.launch(call, "kernel", num_blocks)
        for call, rank, block in np.ndindex(num_calls, num_ranks, num_blocks):
            now_ns = 1_000_000 * call
            for region, duration_ns, *peer in steps(rank, block, call):
                fields = {"peer": peer[0]} if peer else {}
                self.span(rank, region, now_ns, duration_ns, block=block, launch=call, **fields)
                now_ns += duration_ns
        return self

    def table(self) -> pa.Table:
        """The events as a table of capture.event_schema()."""
        return pa.Table.from_pylist(self._rows, schema=event_schema())

    def trace(self, of_ranks: dict[str, Any] | None = None, **changes: Any) -> Trace:
        """A Trace in memory. Fields of its ranks and of its manifest can be other ones."""
        manifest = self.manifest()
        ranks = tuple(msgspec.structs.replace(info, **of_ranks or {}) for info in manifest.ranks)
        manifest = msgspec.structs.replace(manifest, **{"ranks": ranks, **changes})
        return Trace.from_table(manifest, self.table())

    def write(self, output: Path, *, force: bool = False) -> Capture:
        """Write a capture directory."""
        return write_events(self.manifest(), self.table(), output, force=force)

    def _rank_info(self, rank: int) -> RankInfo:
        return RankInfo(
            rank=rank,
            host="host0",
            target="synthetic",
            device=f"device {rank}",
            clock=ClockInfo("synthetic", 1e9, 1.0),
            counts=EventCounts(recorded=self._num_rows_of[rank]),
            regions=self.regions,
            launches=tuple(self._launches.values()),
        )


def events_of(columns: Iterable[Any]) -> pa.Table:
    """A table of event_schema() of its columns, in their order."""
    schema = event_schema()
    arrays = [
        pa.array(np.asarray(column)).cast(field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def trace_of(
    build: TraceBuilder, events: pa.Table, dropped: Mapping[int, int] | None = None
) -> Trace:
    """A Trace of these events in place of the builder's; every rank has counted its own, and what it `dropped`."""
    manifest, dropped, infos = build.manifest(), dropped or {}, []
    recorded = np.bincount(events["rank"].to_numpy(), minlength=build.num_ranks)
    for info in manifest.ranks:
        counts = EventCounts(int(recorded[info.rank]), dropped=dropped.get(info.rank, 0))
        infos.append(msgspec.structs.replace(info, counts=counts))
    return Trace.from_table(msgspec.structs.replace(manifest, ranks=tuple(infos)), events)


def write_trace(trace: Trace, output: Path, *, force: bool = False) -> Capture:
    """Write the events of an in-memory trace as a capture directory, on the ranks' own clocks."""
    columns = ", ".join(event_schema().names)
    table = trace.sql(f"SELECT {columns} FROM raw_events ORDER BY rank, file_row_number")
    return write_events(trace.manifest, table.cast(event_schema()), output, force=force)


def write_events(
    manifest: Manifest, events: pa.Table, output: Path, *, force: bool = False
) -> Capture:
    """Write a capture directory from a manifest and a table of event_schema()."""
    import pyarrow.compute as pc

    temporary = begin_capture(output, force)
    for info in manifest.ranks:
        write_rank_events(temporary, info.rank, events.filter(pc.equal(events["rank"], info.rank)))
    return finish_capture(temporary, output, manifest, force=force)


def pack_payload(region: Region, fields: dict[str, int]) -> int:
    """Pack payload fields like the device: a value that does not fit becomes the field's mask."""
    payload = 0
    for name, value in fields.items():
        field = region.field(name)
        assert field is not None, f"region {region.name} has no payload field {name}"
        payload |= min(value, field.mask) << field.shift
    return payload


def with_rank_fields(trace: Trace, **fields: Any) -> Trace:
    """The same events in a recording of ranks of which these fields are other ones."""
    return with_ranks(trace, [msgspec.structs.replace(info, **fields) for info in trace.ranks])


def with_ranks(trace: Trace, infos: Sequence[RankInfo]) -> Trace:
    """The same events in a recording whose ranks are these."""
    manifest = msgspec.structs.replace(trace.manifest, ranks=tuple(infos))
    columns = ", ".join(event_schema().names)
    return Trace.from_table(manifest, trace.sql(f"SELECT {columns} FROM raw_events"))
