"""The pftrace writer: descriptors and interned names through Perfetto's own protos, events through
templates.

The file is one packet sequence. Its first packet clears the incremental state and has all interned
names. Times are written unchanged, in nanoseconds of the trace clock.
"""

from __future__ import annotations

from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    CounterDescriptor,
    Trace,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)

from kprof.export.model import (
    Batch,
    CounterPoints,
    Header,
    OverlaySlice,
    Rank,
    Track,
    TrackKind,
)
from kprof.export.packets import (
    SEQUENCE_ID,
    SHAPE_BITS,
    Interned,
    Template,
    Widths,
    color_key,
    counter_template,
    event_template,
    interleave,
    shapes_of,
    varint_width,
)

# 32 k records of about 64 bytes fit a second-level cache.
_ROWS_PER_CHUNK: Final = 1 << 15


class PerfettoWriter:
    """Writes one pftrace (see model.Writer for the order of calls)."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._header: Header
        self._interned: Interned
        self._templates: dict[tuple[int, int], Template] = {}
        self._time_width = 0
        self._largest_track = 0

    def begin(self, header: Header) -> None:
        """Write the interned names."""
        self._header = header
        self._interned = Interned.of(header.names)
        self._time_width = varint_width(header.last_ns)
        self._write(self._first_packet())

    def tracks(self, tracks: list[Track]) -> None:
        """Write descriptors."""
        if not tracks:
            return
        message = Trace()
        ranks = {rank.rank: rank for rank in self._header.ranks}
        for track in tracks:
            packet = message.packet.add(trusted_packet_sequence_id=SEQUENCE_ID)
            _describe(packet.track_descriptor, track, ranks[track.rank])
        self._largest_track = max(self._largest_track, tracks[-1].id)
        self._file.write(message.SerializeToString())

    def launches(self, launches: list[OverlaySlice]) -> None:
        """Write kernel launches one by one, because they are few."""
        message = Trace()
        for launch in launches:
            packet = message.packet.add(
                timestamp=launch.start_ns, trusted_packet_sequence_id=SEQUENCE_ID
            )
            event = packet.track_event
            event.type = TrackEvent.TYPE_SLICE_BEGIN
            event.track_uuid = launch.track
            event.name = launch.name
            event.categories.append(launch.category)
            if launch.color:
                event.correlation_id_str_iid = self._interned.categories[launch.color]
            for name, value in launch.args.items():
                argument = event.debug_annotations.add(name=name)
                if isinstance(value, str):
                    argument.string_value = value
                else:
                    argument.int_value = value
            packet = message.packet.add(
                timestamp=launch.end_ns, trusted_packet_sequence_id=SEQUENCE_ID
            )
            packet.track_event.type = TrackEvent.TYPE_SLICE_END
            packet.track_event.track_uuid = launch.track
        self._file.write(message.SerializeToString())

    def events(self, batch: Batch) -> None:
        """Write spans, marks and values."""
        for chunk in batch.chunks(_ROWS_PER_CHUNK):
            self._file.write(self.encode(chunk).data)

    def encode(self, batch: Batch) -> NDArray[np.uint8]:
        """The packets of a batch, in order."""
        shapes = shapes_of(batch)
        keys = np.flatnonzero(np.bincount(shapes)).tolist()
        if len(keys) == 1:
            records = self._template(keys[0]).fill(batch.columns(), len(batch))
            return records.reshape(-1)
        pieces = []
        for key, rows in _rows_by_shape(shapes, keys):
            part = batch.rows(rows)
            pieces.append((rows, self._template(key).fill(part.columns(), len(part))))
        return interleave(pieces)

    def counter(self, points: CounterPoints) -> None:
        """Write one counter."""
        width = varint_width(int(points.values.max(initial=0)))
        template = counter_template(self._widths, "value", width)
        columns = {
            "start_ns": points.start_ns,
            "value": points.values,
            "track": np.full(len(points.values), points.track, dtype=np.int64),
        }
        self._file.write(template.fill(columns, len(points.values)).reshape(-1).data)

    def end(self) -> None:
        """Nothing follows the events."""

    @property
    def _widths(self) -> Widths:
        return Widths(self._time_width, varint_width(self._largest_track))

    def _template(self, key: int) -> Template:
        widths = self._widths
        place = (key, widths.track)
        if place not in self._templates:
            region = self._header.names[key // SHAPE_BITS]
            self._templates[place] = event_template(
                region, key % SHAPE_BITS, self._interned, widths
            )
        return self._templates[place]

    def _first_packet(self) -> Any:
        packet = TracePacket(trusted_packet_sequence_id=SEQUENCE_ID, first_packet_on_sequence=True)
        packet.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        data = packet.interned_data
        for name, iid in self._interned.names.items():
            data.event_names.add(iid=iid, name=name)
        for name, iid in self._interned.categories.items():
            data.event_categories.add(iid=iid, name=name)
            data.correlation_id_str.add(iid=iid, str=color_key(name).encode())
        for name, iid in self._interned.args.items():
            data.debug_annotation_names.add(iid=iid, name=name)
        return packet

    def _write(self, packet: Any) -> None:
        self._file.write(Trace(packet=[packet]).SerializeToString())


def _rows_by_shape(
    shapes: NDArray[np.int64], keys: list[int]
) -> list[tuple[int, NDArray[np.intp]]]:
    """Row numbers of every shape, ascending."""
    # A stable sort of 16-bit numbers is a radix sort. The keys themselves are sparse.
    dense_of_key = np.zeros(max(keys) + 1, dtype=np.uint16)
    dense_of_key[keys] = np.arange(len(keys))
    dense = dense_of_key[shapes]
    order = np.argsort(dense, kind="stable")
    ends = np.cumsum(np.bincount(dense, minlength=len(keys)))
    return list(zip(keys, np.split(order, ends[:-1]), strict=True))


def _describe(descriptor: Any, track: Track, rank: Rank) -> None:
    descriptor.uuid = track.id
    if track.kind is TrackKind.PROCESS:
        descriptor.process.pid = rank.pid
        descriptor.process.process_name = rank.name
        descriptor.process.process_labels.extend(rank.labels)
        return
    descriptor.name = track.name
    descriptor.parent_uuid = track.parent
    descriptor.sibling_order_rank = track.order
    descriptor.child_ordering = TrackDescriptor.EXPLICIT
    if track.kind is TrackKind.RANK:
        descriptor.description = ", ".join(rank.labels)
    elif track.kind is TrackKind.COUNTER and track.unit == "bytes":
        descriptor.counter.unit = CounterDescriptor.UNIT_SIZE_BYTES
    elif track.kind is TrackKind.COUNTER:
        descriptor.counter.unit_name = track.unit
