"""Writes whole columns as protobuf: fixed-width templates of Perfetto packets, filled with numpy.

All events of one shape (same name, same arguments, same flow) have the same bytes except for a few
numbers. Protobuf allows padding a varint with continuation bytes, so each number gets a hole of
fixed width, and all records of a shape have the same size. The template is copied for a whole chunk
at once, and each hole is stored as a strided column.

    one span = BEGIN packet + END packet, for example 67 bytes with two arguments and a flow

    0a 2f | 40 ts ts ts ts ts | 50 01 | 5a 25 | 48 01 | 58 id id | 18 c | 50 n | b0 03 c
          | 22 .. args .. | f9 02 flow x 8
    0a 0f | 40 ts ts ts ts ts | 50 01 | 5a 05 | 48 02 | 58 id id

The trace processor sorts by time and keeps the order of the file where times are equal, so BEGIN
and END of one span may stand together as long as the spans of a track come by start, longer first.
Then, at equal times, every END stands before the BEGIN of what follows, and after the BEGIN of what
it closes.

A flow leaves with the BEGIN of the send and arrives with the END of the wait, because the importer
drops a flow that ends before it starts. It also turns a flow around when the slice that it reaches
began first, which is what a late sender looks like: such a wait gets an instant within it, at its
end, and the flow arrives there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kprof.capture.directory import EVENT_CLAMPED, EVENT_OPEN, EVENT_SATURATED
from kprof.export.model import Batch
from kprof.regions import Kind, Region

Columns = Mapping[str, NDArray[Any]]

SEQUENCE_ID: Final = 1

# Field numbers of trace_packet.proto, track_event.proto and debug_annotation.proto.
_PACKET: Final = 1
_TIMESTAMP: Final = 8
_SEQUENCE: Final = 10
_TRACK_EVENT: Final = 11
_CATEGORY_IIDS: Final = 3
_ANNOTATION: Final = 4
_TYPE: Final = 9
_NAME_IID: Final = 10
_TRACK_UUID: Final = 11
_COUNTER_VALUE: Final = 30
_FLOW_IDS: Final = 47
_TERMINATING_FLOW_IDS: Final = 48
_CORRELATION_IID: Final = 54
_ANNOTATION_NAME_IID: Final = 1
_ANNOTATION_BOOL: Final = 2
_ANNOTATION_UINT: Final = 3
_SLICE_BEGIN, _SLICE_END, _INSTANT, _COUNTER = 1, 2, 3, 4

# What a record has in addition to its region: bits of a shape, above the capture's three flag bits.
_FLAG_BITS: Final = EVENT_OPEN | EVENT_SATURATED | EVENT_CLAMPED
_HAS_FLOW_OUT: Final = 8
_HAS_FLOW_IN: Final = 16
_IS_MERGED: Final = 32
_IS_LATE: Final = 64
SHAPE_BITS: Final = 128

# The instant at the end of a wait that began before its send.
RELEASED: Final = "released"

ARG_OPEN: Final = "open (never ended)"
ARG_SATURATED: Final = "saturated"
ARG_CLAMPED: Final = "clamped"
ARG_MERGED: Final = "merged spans"
ARG_BUSY: Final = "busy ns"
ARG_LATE: Final = "late sender ns"
FLAG_ARGS: Final = {
    EVENT_OPEN: ARG_OPEN,
    EVENT_SATURATED: ARG_SATURATED,
    EVENT_CLAMPED: ARG_CLAMPED,
}
_FIXED_ARGS: Final = (*FLAG_ARGS.values(), ARG_MERGED, ARG_BUSY, ARG_LATE)
# Perfetto's UI hashes a slice's correlation id to a colour. Spaces before and after the category's
# name, so many, make that a colour near the report's own (there is no grey for "other").
_SPACES: Final = {
    "compute": (2, 16),
    "send": (9, 8),
    "recv": (8, 1),
    "wait": (4, 3),
    "sync": (3, 6),
}


@dataclass(frozen=True)
class Hole:
    """Bits `(value >> shift) & mask` of a column, as a padded varint or 8 fixed bytes."""

    column: str
    width: int
    shift: int = 0
    mask: int | None = None
    is_fixed: bool = False


Part = bytes | Hole


@dataclass(frozen=True)
class Template:
    """The bytes of one record, and its holes by offset."""

    data: NDArray[np.uint8]
    holes: tuple[tuple[int, Hole], ...]

    @staticmethod
    def of(parts: Sequence[Part]) -> Template:
        """Concatenate parts."""
        data = bytearray()
        holes = []
        for part in parts:
            if isinstance(part, Hole):
                holes.append((len(data), part))
                data += bytes(part.width)
            else:
                data += part
        return Template(np.frombuffer(bytes(data), dtype=np.uint8), tuple(holes))

    def fill(self, columns: Columns, num_rows: int) -> NDArray[np.uint8]:
        """The records of all rows, shape (num_rows, record size)."""
        records = np.empty((num_rows, len(self.data)), dtype=np.uint8)
        records[:] = self.data
        for offset, hole in self.holes:
            values = columns[hole.column]
            if hole.is_fixed:
                fixed = np.ascontiguousarray(values, dtype="<u8")
                records[:, offset : offset + 8] = fixed.view(np.uint8).reshape(-1, 8)
            else:
                _store_varint(records[:, offset : offset + hole.width], values, hole)
        return records


def _store_varint(target: NDArray[np.uint8], values: NDArray[Any], hole: Hole) -> None:
    if hole.shift or hole.mask is not None:
        values = (values >> hole.shift) & (hole.mask if hole.mask is not None else -1)
    last = hole.width - 1
    for i in range(last):
        target[:, i] = (values >> (7 * i)).astype(np.uint8) | 0x80
    target[:, last] = values >> (7 * last)


def varint(value: int) -> bytes:
    """The shortest varint of a number >= 0."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_width(largest: int) -> int:
    """The size of `largest` as a varint, in bytes."""
    return len(varint(max(0, largest)))


def _tag(field: int, wire_type: int) -> bytes:
    return varint(field << 3 | wire_type)


def _number(field: int, value: int) -> bytes:
    return _tag(field, 0) + varint(value)


def _size(parts: Sequence[Part]) -> int:
    return sum(part.width if isinstance(part, Hole) else len(part) for part in parts)


def _message(field: int, *parts: Part) -> list[Part]:
    return [_tag(field, 2) + varint(_size(parts)), *parts]


@dataclass(frozen=True)
class Interned:
    """Interning ids of names, categories (and of their colours) and argument names, from 1."""

    names: dict[str, int]
    categories: dict[str, int]
    args: dict[str, int]

    @staticmethod
    def of(regions: Sequence[Region]) -> Interned:
        """Ids for everything that events of these regions can refer to."""
        arg_names = dict.fromkeys(_FIXED_ARGS)
        for region in regions:
            arg_names |= dict.fromkeys(field.name for field in region.fields)
        return Interned(
            _number_from_one([*(region.name for region in regions), RELEASED]),
            _number_from_one(region.category.value for region in regions),
            _number_from_one(arg_names),
        )


def color_key(category: str) -> str:
    """The correlation id of all slices of a category."""
    before, after = _SPACES.get(category, (0, 0))
    return " " * before + category + " " * after


def _number_from_one(names: Any) -> dict[str, int]:
    return {name: iid for iid, name in enumerate(dict.fromkeys(names), start=1)}


@dataclass(frozen=True)
class Widths:
    """Sizes in bytes of the varints that every event has."""

    time: int
    track: int


def event_template(region: Region, shape: int, interned: Interned, widths: Widths) -> Template:
    """The template of events of `region` with these shape bits (flags, HAS_FLOW_*, _IS_MERGED)."""
    if region.kind is Kind.VALUE:
        return counter_template(widths, "payload", value_width=5)
    kind = _SLICE_BEGIN if region.kind is Kind.SPAN else _INSTANT
    begin = _event_packet("start_ns", kind, widths, _description(region, shape, interned))
    if kind == _INSTANT:
        return Template.of(begin)
    arrival: list[Part] = []
    if shape & _HAS_FLOW_IN:
        arrival = [_tag(_TERMINATING_FLOW_IDS, 1), Hole("flow_in", 8, is_fixed=True)]
    if shape & _HAS_FLOW_IN and shape & _IS_LATE:
        released = [*_named(RELEASED, region, interned), *arrival]
        released += _uint_arg(interned.args[ARG_LATE], Hole("late_ns", widths.time))
        begin += _event_packet("end_ns", _INSTANT, widths, released)
        arrival = []
    return Template.of([*begin, *_event_packet("end_ns", _SLICE_END, widths, arrival)])


def counter_template(widths: Widths, column: str, value_width: int) -> Template:
    """The template of one counter value."""
    value: list[Part] = [_tag(_COUNTER_VALUE, 0), Hole(column, value_width)]
    return Template.of(_event_packet("start_ns", _COUNTER, widths, value))


def _event_packet(time_column: str, kind: int, widths: Widths, rest: Sequence[Part]) -> list[Part]:
    return _message(
        _PACKET,
        _tag(_TIMESTAMP, 0),
        Hole(time_column, widths.time),
        _number(_SEQUENCE, SEQUENCE_ID),
        *_message(
            _TRACK_EVENT,
            _number(_TYPE, kind),
            _tag(_TRACK_UUID, 0),
            Hole("track", widths.track),
            *rest,
        ),
    )


def _description(region: Region, shape: int, interned: Interned) -> list[Part]:
    parts = _named(region.name, region, interned)
    if shape & _IS_MERGED:
        parts += _uint_arg(interned.args[ARG_MERGED], Hole("num_merged", 5))
        parts += _uint_arg(interned.args[ARG_BUSY], Hole("busy_ns", 9))
    else:
        for field in region.fields:
            parts += _uint_arg(
                interned.args[field.name],
                Hole("payload", -(-field.bits // 7), field.shift, field.mask),
            )
    for flag, name in FLAG_ARGS.items():
        if shape & flag:
            name_iid = _number(_ANNOTATION_NAME_IID, interned.args[name])
            parts += _message(_ANNOTATION, name_iid, _number(_ANNOTATION_BOOL, 1))
    if shape & _HAS_FLOW_OUT:
        parts += [_tag(_FLOW_IDS, 1), Hole("flow_out", 8, is_fixed=True)]
    return parts


def _named(name: str, region: Region, interned: Interned) -> list[Part]:
    category = interned.categories[region.category.value]
    return [
        _number(_CATEGORY_IIDS, category),
        _number(_NAME_IID, interned.names[name]),
        _number(_CORRELATION_IID, category),
    ]


def _uint_arg(name_iid: int, hole: Hole) -> list[Part]:
    return _message(
        _ANNOTATION, _number(_ANNOTATION_NAME_IID, name_iid), _tag(_ANNOTATION_UINT, 0), hole
    )


def shapes_of(batch: Batch) -> NDArray[np.int64]:
    """For each row, its name and the contents of its record, as one small number."""
    bits = (batch.flags & _FLAG_BITS).astype(np.int64)
    bits |= (batch.flow_out != 0) * _HAS_FLOW_OUT
    bits |= (batch.flow_in != 0) * _HAS_FLOW_IN
    bits |= (batch.num_merged > 1) * _IS_MERGED
    bits |= (batch.late_ns > 0) * _IS_LATE
    return batch.name.astype(np.int64) * SHAPE_BITS + bits


def interleave(
    pieces: Sequence[tuple[NDArray[np.intp], NDArray[np.uint8]]],
) -> NDArray[np.uint8]:
    """Bring records of several sizes back into row order.

    Each piece is (row numbers, records of shape (rows, size)); together the pieces hold every row
    once.
    """
    if len(pieces) == 1:
        return pieces[0][1].reshape(-1)
    num_rows = sum(len(rows) for rows, _ in pieces)
    sizes = np.empty(num_rows, dtype=np.int64)
    for rows, records in pieces:
        sizes[rows] = records.shape[1]
    ends = np.cumsum(sizes)
    out = np.empty(int(ends[-1]), dtype=np.uint8)
    for rows, records in pieces:
        size = records.shape[1]
        # Overlapping views of one record each, so that a store by index copies whole records.
        slots: NDArray[Any] = np.ndarray(
            (len(out) - size + 1,), dtype=f"V{size}", buffer=out, strides=(1,)
        )
        slots[ends[rows] - size] = records.view(f"V{size}").reshape(-1)
    return out
