"""The bytes of the pftrace writer against Perfetto's own protos, with no program but Python."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as TraceProto
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackDescriptor, TrackEvent

from kprof.export import write
from kprof.trace import Trace
from synthetic import TraceBuilder

REGIONS = """
REGION(R_SEND, "send", send, peer:8, slot:24)
REGION(R_WAIT, "wait", wait, peer:8, slot:24)
REGION(R_ODD, "odd", compute, a:2, b:7, c:13, d:10)
REGION(R_BARE, "bare", other)
MARK(R_MARK, "mark", sync, peer:8)
FLOW(R_SEND, R_WAIT)
"""


def packets_of(trace: Trace, tmp_path: Path) -> list[Any]:
    path = write(trace, tmp_path / "t.pftrace", force=True).path
    return list(TraceProto.FromString(path.read_bytes()).packet)


def descriptors_of(trace: Trace, tmp_path: Path) -> list[Any]:
    packets = packets_of(trace, tmp_path)
    return [p.track_descriptor for p in packets if p.HasField("track_descriptor")]


def test_one_packet_field_by_field(tmp_path: Path) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    build.span(0, "odd", 50, 7, a=1, b=100, c=8000, d=1)
    packets = packets_of(build.trace(), tmp_path)
    interned = packets[0].interned_data
    names = {entry.iid: entry.name for entry in interned.event_names}
    args = {entry.iid: entry.name for entry in interned.debug_annotation_names}
    categories = {entry.iid: entry.name for entry in interned.event_categories}
    track = block_uuid(packets)
    begin, end = (p for p in packets if p.track_event.track_uuid == track)
    assert (begin.timestamp, end.timestamp) == (1000, 1007)
    assert begin.track_event.type == TrackEvent.TYPE_SLICE_BEGIN
    assert end.track_event.type == TrackEvent.TYPE_SLICE_END
    assert names[begin.track_event.name_iid] == "odd"
    assert [categories[iid] for iid in begin.track_event.category_iids] == ["compute"]
    assert {args[a.name_iid]: a.uint_value for a in begin.track_event.debug_annotations} == {
        "a": 1,
        "b": 100,
        "c": 8000,
        "d": 1,
    }
    assert {p.trusted_packet_sequence_id for p in packets} == {1}


def block_uuid(packets: list[Any]) -> int:
    (uuid,) = (p.track_descriptor.uuid for p in packets if p.track_descriptor.name == "block 0")
    return int(uuid)


def test_tracks_are_ordered_by_number(tmp_path: Path) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    for block in (10, 9, 100, 2):
        build.span(0, "bare", block, 1, block=block)
    descriptors = descriptors_of(build.trace(), tmp_path)
    by_uuid = {descriptor.uuid: descriptor for descriptor in descriptors}
    blocks = [d for d in descriptors if d.name.startswith("block ")]
    in_order = sorted(blocks, key=lambda d: d.sibling_order_rank)
    assert [d.name for d in in_order] == ["block 2", "block 9", "block 10", "block 100"]
    (root,) = {d.parent_uuid for d in blocks}
    assert by_uuid[root].name == "Rank 0 (host0, device 0)"
    assert by_uuid[root].child_ordering == TrackDescriptor.EXPLICIT
    siblings = sorted(
        (d for d in descriptors if d.parent_uuid == root), key=lambda d: d.sibling_order_rank
    )
    assert [d.name for d in siblings][:2] == ["active blocks", "kernel launches"]


def test_ranks_sort_by_number_where_viewers_sort_by_text(tmp_path: Path) -> None:
    build = TraceBuilder(REGIONS, num_ranks=11)
    build.span(3, "bare", 0, 1)
    descriptors = descriptors_of(build.trace(), tmp_path)
    roots = [d.name for d in descriptors if not d.parent_uuid and not d.HasField("process")]
    assert sorted(roots) == [f"Rank {rank:02} (host0, device {rank})" for rank in range(11)]
    assert sorted(roots) == sorted(
        d.process.process_name for d in descriptors if d.HasField("process")
    )


def read_as_a_viewer(packets: list[Any]) -> Counter[tuple[int, str, int, int]]:
    """What a viewer makes of BEGIN and END: by time, then by place in the file, one stack per track."""
    interned = packets[0].interned_data
    names = {entry.iid: entry.name for entry in interned.event_names}
    events = [
        p
        for p in packets
        if p.HasField("track_event") and p.track_event.type != TrackEvent.TYPE_COUNTER
    ]
    stacks: dict[int, list[tuple[str, int]]] = {}
    spans: Counter[tuple[int, str, int, int]] = Counter()
    for packet in sorted(events, key=lambda p: p.timestamp):
        event = packet.track_event
        stack = stacks.setdefault(event.track_uuid, [])
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            stack.append((names.get(event.name_iid, event.name), packet.timestamp))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            name, begin = stack.pop()
            spans[event.track_uuid, name, begin, packet.timestamp - begin] += 1
    assert not any(stacks.values())
    return spans


SPANS = st.lists(
    st.tuples(
        st.sampled_from(["odd", "bare", "send"]),
        st.integers(0, 3),
        st.integers(0, 12),
        st.integers(0, 8),
    ),
    max_size=25,
)


@pytest.mark.slow
@given(spans=SPANS)
def test_any_spans_come_back_as_they_were(
    spans: list[tuple[str, int, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    for region, warp, start_ns, duration_ns in spans:
        build.span(0, region, start_ns, duration_ns, warp=warp)
    packets = packets_of(build.trace(), tmp_path_factory.mktemp("any"))
    warp_of = {
        p.track_descriptor.uuid: p.track_descriptor.name
        for p in packets
        if p.track_descriptor.name.startswith("warp")
    }
    first_ns = min((start for _, _, start, _ in spans), default=0)
    by_lane: Counter[Any] = Counter()
    for (uuid, name, begin, duration), count in read_as_a_viewer(packets).items():
        if uuid in warp_of:
            by_lane[warp_of[uuid], name, begin - 1000 + first_ns, duration] += count
    assert by_lane == Counter(
        (f"warp {w}", region, start, duration) for region, w, start, duration in spans
    )
