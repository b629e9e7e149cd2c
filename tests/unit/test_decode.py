"""Arena bytes to columns, from arenas built by hand: every field, every kind of loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kprof import abi
from kprof.capture.directory import EVENT_CLAMPED, EVENT_OPEN, EVENT_SATURATED
from kprof.capture.manifest import ClockInfo, EventCounts, Launch, RankInfo, RegionLosses
from kprof.errors import ArenaError
from kprof.recording.arenas.arena import Arena
from kprof.recording.arenas.arena_state import Handed, read_arena, read_control
from kprof.recording.decoding.decode import Decoder
from kprof.recording.decoding.replays import _begin_of
from kprof.recording.launches.region_ids import RegionIds
from kprof.regions import parse_regions

REGIONS = """
REGION(R_SEND, "send", send, peer:8, slot:24)
REGION(R_WORK, "work", compute, bytes:32)
VALUE(R_LEFT, "left", other)
"""
NS_CLOCK = ClockInfo("test", 1e9, 1.0)
Row = tuple[int, int, int, int]  # start, region, duration, payload


def chunk(
    rows: list[Row],
    *,
    block: int = 0,
    warp: int = 0,
    launch: int = 0,
    anchor: int = 0,
    dropped: int = 0,
    abi_version: int = abi.ABI_VERSION,
):
    """1024 bytes as the device would write them."""
    data = np.zeros(abi.CHUNK_BYTES, dtype=np.uint8)
    header = data[: abi.CHUNK_HEADER_BYTES].view(abi.CHUNK_HEADER)[0]
    header["flags"] = abi.CHUNK_CLAIMED | abi_version << abi.CHUNK_ABI_SHIFT
    header["flags"] |= 1 << abi.CHUNK_CURSORS_SHIFT
    header["previous_chunk_idx"] = abi.NO_CHUNK
    if dropped:
        header["flags"] |= abi.CHUNK_NO_NEXT
    header["block"], header["warp"], header["launch"] = block, warp, launch
    header["anchor_realtime_ticks"], header["num_dropped"], header["hw_id"] = anchor, dropped, 7
    records = data[abi.CHUNK_HEADER_BYTES :].view(abi.RECORD)
    for record, (start, region, duration, payload) in zip(records, rows, strict=False):
        record["start_and_region"] = (start & abi.START_MASK) | (region << abi.START_BITS)
        record["duration_ticks"], record["payload"] = duration, payload
    return data


def arena_state(num_chunks: int, dropped: dict[int, int]):
    """Of an arena whose tracks dropped so many records of these region ids."""
    geometry = abi.ArenaGeometry(max(num_chunks, 1), 1)
    head = abi.initial_control(geometry)
    head[: abi.CONTROL_BYTES].view(abi.CONTROL)[0]["cursors"]["next_chunk"][0] = num_chunks
    sinks = head[abi.SINKS_OFFSET :].view(abi.SINK)
    for region_id, count in dropped.items():
        sinks["num_dropped_of_region"][:2, region_id] = 1, count - 1
    return read_control(head, Handed.of_new(geometry))


def state_and_data(chunks: list[np.ndarray], dropped: dict[int, int] | None = None):
    """The state of an arena of one cursor, and its chunks; each is told its place."""
    data = np.concatenate(chunks or [np.zeros(abi.CHUNK_BYTES, dtype=np.uint8)])
    for place, placed in enumerate(data.reshape(-1, abi.CHUNK_BYTES)):
        if placed.any():
            placed[: abi.CHUNK_HEADER_BYTES].view(abi.CHUNK_HEADER)["chunk_idx"] = place
    return arena_state(len(chunks), dropped or {}), data


def new_decoder(clock: ClockInfo = NS_CLOCK, regions: str = REGIONS) -> Decoder:
    """Of rank 3, which has made eight launches with these regions."""
    ids = RegionIds()
    for launch in range(8):
        ids.table_of_launch[launch] = ids.table_idx(parse_regions(regions))
    return Decoder(RankInfo(3, clock=clock), ids)


def decode(
    chunks: list[np.ndarray],
    clock: ClockInfo = NS_CLOCK,
    regions: str = REGIONS,
    dropped: dict[int, int] | None = None,
):
    decoder = new_decoder(clock, regions)
    tables = list(decoder.decode(*state_and_data(chunks, dropped)))
    return pa.concat_tables(tables).to_pandas() if tables else None, decoder


def test_every_field_arrives() -> None:
    row = (1000, 1, 250, 0x0200_0011)
    of_warp, of_block = (
        {"warp": warp, "launch": 5, "anchor": 990} for warp in (2, abi.BLOCK_TRACK_WARP)
    )
    events, decoder = decode(
        [chunk([row], block=17, **of_warp), chunk([row], block=18, **of_block)]
    )
    expected = {
        "rank": 3, "launch": 5, "block": 17, "warp": 2, "region": 1, "flags": 0, "start_ns": 1000,
        "duration_ns": 250, "payload": 0x0200_0011, "hw_id": 7,
    }  # fmt: skip
    assert events.to_dict("records") == [expected, expected | {"block": 18, "warp": -1}]
    assert decoder.tally.counts.recorded == 2


def test_the_documented_bytes_are_what_is_read() -> None:
    data = chunk([])
    data[48:64] = np.frombuffer(bytes.fromhex("40420f0000000300fa00000011000002"), dtype=np.uint8)
    events, _ = decode([data])
    assert events[["region", "start_ns", "duration_ns", "payload"]].to_numpy().tolist() == [
        [3, 1000000, 250, 0x0200_0011]
    ]


@pytest.mark.parametrize(
    "anchor", [(1 << 48) + 5, (1 << 60) + (1 << 48) - 3, 1_760_000_000_000_000_000]
)
@pytest.mark.parametrize("distance", [0, 10, -10, 1 << 40, -(1 << 40)])
def test_starts_are_unwrapped_around_the_anchor(anchor: int, distance: int) -> None:
    events, _ = decode([chunk([(anchor + distance, 1, 1, 0)], anchor=anchor)])
    assert events["start_ns"].tolist() == [anchor + distance]


def test_ticks_of_ten_nanoseconds_are_not_nanoseconds() -> None:
    events, _ = decode([chunk([(1_000, 1, 25, 0)])], ClockInfo("s_memrealtime", 100e6, 40.0))
    assert events[["start_ns", "duration_ns"]].to_numpy().tolist() == [[10_000, 250]]


def test_open_saturated_and_clamped_are_counted_and_flagged() -> None:
    rows = [
        (10, 1, abi.DURATION_OPEN, 0),
        (20, 1, abi.DURATION_SATURATED, 0),
        (30, 1, 5, 0xFF),  # peer does not fit
        (40, 1, 5, 0xFFFF_FF00),  # slot does not fit
        (50, 2, 5, 0xFFFF_FFFF),  # bytes does not fit
        (60, 3, 0, 0xFFFF_FFFF),  # a value may be anything
    ]
    events, decoder = decode([chunk(rows)])
    assert events["flags"].tolist() == [EVENT_OPEN, EVENT_SATURATED, *[EVENT_CLAMPED] * 3, 0]
    assert events["duration_ns"].tolist()[0] == 0
    counts = decoder.tally.counts
    assert (counts.open, counts.saturated, counts.clamped) == (1, 1, 3)
    assert decoder.tally.losses() == (
        RegionLosses("send", open=1, saturated=1, clamped=2),
        RegionLosses("work", clamped=1),
    )


def test_losses_are_counted_by_region_over_all_flushes() -> None:
    rows = [(10, 1, abi.DURATION_OPEN, 0), (20, 1, 5, 0), (30, 900, 5, 0)]
    _, decoder = decode([chunk(rows), chunk(rows)])
    assert decoder.tally.losses() == (
        RegionLosses("send", open=2),
        RegionLosses("unknown region 900 of table 0", unknown_region=2),
    )


def test_unknown_regions_become_regions_of_their_own() -> None:
    events, decoder = decode(
        [chunk([(1, 1, 1, 0), (2, 900, 1, 0), (3, 65535, 1, 0), (4, 900, 1, 0)])]
    )
    names = [decoder.region_ids.merged()[region].name for region in events["region"]]
    assert names == [
        "send",
        "unknown region 900 of table 0",
        "unknown region 65535 of table 0",
        "unknown region 900 of table 0",
    ]
    assert decoder.tally.counts.unknown_region == 3


def test_regions_of_many_kernels_that_share_a_number_are_counted_and_not_listed() -> None:
    ids = RegionIds()
    for launch in range(33):
        table = parse_regions(f'REGION(R_ALL, "kernel_{launch}", compute)')
        ids.table_of_launch[launch] = ids.table_idx(table)
    assert ids.name(range(3), 1) == "kernel_0 or kernel_1 or kernel_2"
    assert ids.name(range(33), 1) == "kernel_0 or kernel_1 or 31 others"


@pytest.mark.parametrize(
    ("others", "dropped", "needed_chunks"),
    [
        ([chunk([(1, 1, 1, 0)], block=1)], {1: 60, 2: 2}, 4),
        # A whole chunk was dropped: the track needs the one behind it, too.
        ([], {1: 61}, 3),
    ],
)
def test_drops_are_counted_and_the_needed_size_is_named(
    others: list[np.ndarray], dropped: dict[int, int], needed_chunks: int
) -> None:
    num_dropped = sum(dropped.values())
    full = chunk([(1, 1, 1, 0)] * 61, dropped=num_dropped)
    _, decoder = decode([full, *others], dropped=dropped)
    assert decoder.tally.counts.dropped == num_dropped
    needed_bytes = abi.ArenaGeometry.for_chunks(needed_chunks).size_bytes
    assert decoder.tally.arena_use().needed_bytes == needed_bytes


def test_drops_are_counted_by_region() -> None:
    last = abi.NUM_DROP_COUNTERS - 1
    _, decoder = decode([], dropped={2: 5, 1: 7, 77: 3, last: 1})
    assert decoder.tally.counts.dropped == 16
    assert decoder.tally.losses() == (
        RegionLosses("send", dropped=7),
        RegionLosses("work", dropped=5),
        RegionLosses(f"regions from id {last} on", dropped=1),
        RegionLosses("unknown region 77 of table 0", dropped=3),
    )


@pytest.mark.parametrize(
    ("regions", "expected"),
    [
        # The third launch and the fourth end in one flush.
        (
            ['"a", send', '"b", send', '"b", send', '"a", send'],
            {"a": 1, "b": 10, "b or a": 1000},
        ),
        # One name with two declarations.
        (['"reduce", sync', '"reduce", compute'], {"reduce": 1, "reduce (compute)": 10}),
    ],
)
def test_drops_take_the_names_of_the_launches_since_the_last_flush(
    regions: list[str], expected: dict[str, int]
) -> None:
    ids = RegionIds()
    decoder = Decoder(RankInfo(0, clock=NS_CLOCK), ids)
    for launch, region in enumerate(regions):
        ids.table_of_launch[launch] = ids.table_idx(parse_regions(f"REGION(R_X, {region})"))
        if launch != 2:
            list(decoder.decode(*state_and_data([], {1: 10**launch})))
    assert {losses.region: losses.dropped for losses in decoder.tally.losses()} == expected


def test_a_kernel_with_older_headers_is_refused() -> None:
    rows = [(1, 1, 1, 0)]
    with pytest.raises(
        ArenaError,
        match=f"launch 7 was compiled .* version 2 or older, .* reads {abi.ABI_VERSION};",
    ):
        decode([chunk(rows), chunk(rows, launch=7, abi_version=0)])
    with pytest.raises(ArenaError, match=f"version {abi.ABI_VERSION + 1}, "):
        decode([chunk(rows, abi_version=abi.ABI_VERSION + 1)])


def test_an_arena_without_records() -> None:
    for chunks in ([], [chunk([])]):
        events, decoder = decode(chunks)
        assert events is None or events.empty
        assert decoder.tally.counts.recorded == 0


def test_too_few_bytes_are_refused() -> None:
    handed = Handed.of_new(abi.ArenaGeometry(1, 1))
    with pytest.raises(ArenaError, match="too few"):
        read_control(np.zeros(10, dtype=np.uint8), handed)
    with pytest.raises(ArenaError, match="2 chunks of an arena are in use, but 10 bytes"):
        list(new_decoder().decode(arena_state(2, {}), np.zeros(10, np.uint8)))


def test_an_arena_is_as_new_after_a_reset() -> None:
    arena = Arena(1 << 16)
    state, chunks = arena.read()
    assert not chunks.any()
    assert arena.address % abi.CHUNK_BYTES == 0
    arena.reset(state)
    assert arena.read()[0] == state


def test_ids_of_launches_with_different_tables_neither_mix_nor_move() -> None:
    ids = RegionIds()
    ids.table_of_launch[0] = ids.table_idx(
        parse_regions('REGION(R_A, "a", send)\nREGION(R_B, "b", wait)')
    )
    before, num_unknown = ids.translate(np.array([0, 0, 0]), np.array([1, 2, 9], dtype=np.uint16))
    ids.table_of_launch[1] = ids.table_idx(
        parse_regions('REGION(R_C, "c", send)\nREGION(R_A, "a", send)')
    )
    after, none_unknown = ids.translate(np.array([0, 1, 1]), np.array([1, 1, 2], dtype=np.uint16))
    again, _ = ids.translate(np.array([0]), np.array([9], dtype=np.uint16))
    assert (num_unknown, none_unknown) == (1, 0)
    names = [ids.merged()[int(region)].name for region in [*before, *after, *again]]
    unknown = "unknown region 9 of table 0"
    assert names == ["a", "b", unknown, "a", "c", "a", unknown]


def track(num_records: int, **header: int) -> list[np.ndarray]:
    """The chunks of one track, as refills would link them."""
    starts = range(1, num_records + 1)
    chunks = []
    for i in range(0, num_records + 1, abi.RECORDS_PER_CHUNK):
        rows = [(start, 2, 1, start) for start in starts[i : i + abi.RECORDS_PER_CHUNK]]
        chunks.append(chunk(rows, **header))
        if i:
            chunks[-1][: abi.CHUNK_HEADER_BYTES].view(abi.CHUNK_HEADER)["previous_chunk_idx"] = (
                len(chunks) - 2
            )
    return chunks


def header_of(data: np.ndarray) -> np.ndarray:
    return data[: abi.CHUNK_HEADER_BYTES].view(abi.CHUNK_HEADER)


def words_of(data: np.ndarray) -> np.ndarray:
    """(61, 2): the records of a chunk."""
    return data[abi.CHUNK_HEADER_BYTES :].view("<u8").reshape(-1, 2)


def damage(counts: EventCounts) -> dict[str, int]:
    names = ("torn_chunks", "stray_chunks", "torn_records", "damaged_heads")
    return {name: getattr(counts, name) for name in names if getattr(counts, name)}


def test_a_track_of_several_chunks_loses_nothing() -> None:
    events, decoder = decode(track(150))
    assert events["payload"].tolist() == list(range(1, 151))
    assert damage(decoder.tally.counts) == {}
    assert decoder.tally.losses() == ()


def overwritten(chunks: list[np.ndarray], words: dict[Any, int]) -> list[np.ndarray]:
    """With these words of the first chunk's records."""
    for place, value in words.items():
        words_of(chunks[0])[place] = value
    return chunks


LAST_NS = 1 << 62
NO_TIME = [(LAST_NS + 8, 1, 1, 0), (LAST_NS + 9, 1, 1, 0)]


@pytest.mark.parametrize(
    ("chunks", "num_events", "expected"),
    [
        pytest.param(overwritten(track(10), {4: 0, (4, 0): 77}), 9, {"torn_records": 1}, id="a start without a region"),
        pytest.param(overwritten(track(10), {(9, 0): 0}), 9, {"torn_records": 1}, id="a payload without a region"),
        pytest.param(overwritten(track(9), {4: 0}), 8, {"torn_records": 1}, id="a hole"),
        pytest.param(overwritten(track(70), {60: 0}), 69, {"torn_records": 1}, id="a chunk that another follows is full"),
        pytest.param(overwritten(track(10, warp=abi.BLOCK_TRACK_WARP), {3: 0, 4: 0}), 8, {}, id="gaps of a short track"),
        pytest.param([*track(10), *track(5, launch=99)], 10, {"stray_chunks": 1}, id="no such launch"),
        pytest.param(track(70)[:1], 61, {"torn_chunks": 1}, id="none behind a full one"),
        pytest.param([np.zeros(abi.CHUNK_BYTES, np.uint8)], 0, {"torn_chunks": 1}, id="no header"),
        pytest.param([chunk([((1 << 48) - 50, 1, 1, 0), (5, 1, 1, 0)])], 1, {"torn_records": 1}, id="before the clock began"),
        # The capture was written, and every command refused it.
        pytest.param([chunk(NO_TIME, anchor=LAST_NS - 1)], 0, {"torn_records": 2}, id="a time that no capture may hold"),
    ],
)  # fmt: skip
def test_what_is_damaged_is_counted(
    chunks: list[np.ndarray], num_events: int, expected: dict[str, int]
) -> None:
    events, decoder = decode(chunks)
    assert (0 if events is None else len(events)) == num_events
    assert damage(decoder.tally.counts) == expected


def test_ticks_whose_nanoseconds_no_capture_may_hold_cost_their_record() -> None:
    ticks = 1 << 61
    chunks = [chunk([(ticks + 9, 1, 1, 0), (ticks + 10, 1, 1, 0)], anchor=ticks)]
    events, decoder = decode(chunks, ClockInfo("test", 1e8, 1.0))
    assert len(events) == 0
    assert damage(decoder.tally.counts) == {"torn_records": 2}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flags", 0),
        ("chunk_idx", 7),
        ("previous_chunk_idx", 1 << 20),
        ("previous_chunk_idx", 1),
        ("num_dropped", 3),
        ("anchor_realtime_ticks", 1 << 63),
        ("block", 0x8000_0000),
        ("warp", 0x8000),
        ("warp", 0xFFFE),
    ],
)
def test_a_header_that_cannot_be_costs_its_chunk(field: str, value: int) -> None:
    state, data = state_and_data([*track(10), *track(20)])
    header_of(data[abi.CHUNK_BYTES :])[field] = value
    decoder = new_decoder()
    assert sum(table.num_rows for table in decoder.decode(state, data)) == 10
    assert damage(decoder.tally.counts) == {"torn_chunks": 1}


@pytest.mark.parametrize("length", [2, 3, 5])
@pytest.mark.parametrize("is_replayed", [False, True])
def test_chunks_that_go_round_in_a_circle_are_counted(length: int, is_replayed: bool) -> None:
    """Of a captured launch, a circle of two ended in an IndexError, and one of three never ended."""
    chunks = [chunk([(5, 1, 1, k)] * 61, anchor=3) for k in range(length)]
    for place, each in enumerate(chunks):
        header_of(each)["previous_chunk_idx"] = (place + 1) % length
    state, data = state_and_data([*chunks, *track(10)])
    decoder = new_decoder()
    if is_replayed:
        decoder.replays.add(Launch(0, "kernel", 0))
    assert sum(table.num_rows for table in decoder.decode(state, data)) == 61 * length + 10
    assert damage(decoder.tally.counts) == {"torn_chunks": length}
    assert decoder.tally.counts.unsplit_launches == is_replayed


def image_of(geometry: abi.ArenaGeometry, chunks: list[np.ndarray]) -> np.ndarray:
    """An arena with these chunks; its control block says that none is in use."""
    image = np.zeros(geometry.size_bytes, dtype=np.uint8)
    image[: abi.CHUNKS_OFFSET] = abi.initial_control(geometry)
    placed = state_and_data(chunks)[1]
    image[abi.CHUNKS_OFFSET :][: len(placed)] = placed
    return image


def decode_image(image: np.ndarray, geometry: abi.ArenaGeometry) -> tuple[int, dict[str, int]]:
    """How many records it has, and the damage."""
    state, chunks = read_arena(lambda begin, end: image[begin:end], Handed.of_new(geometry))
    decoder = new_decoder()
    num_records = sum(table.num_rows for table in decoder.decode(state, chunks))
    return num_records, damage(decoder.tally.counts)


@pytest.mark.parametrize("field", ["magic", "abi_version", "num_chunks", "num_cursors"])
def test_an_overwritten_head_sizes_nothing(field: str) -> None:
    """Its number of cursors became 2^32 tuples, or a division by zero."""
    geometry = abi.ArenaGeometry(8, 2)
    (placed,) = track(10)
    header_of(placed)["flags"] += 1 << abi.CHUNK_CURSORS_SHIFT
    image = image_of(geometry, [placed])
    control = image[: abi.CONTROL_BYTES].view(abi.CONTROL)[0]
    control["cursors"]["next_chunk"][:2] = 1, 0
    for value in (0, 0xFFFF_FFFF):
        control[field] = value
        assert decode_image(image, geometry) == (10, {"damaged_heads": 1})


def test_a_cursor_that_lost_count_hides_no_chunk() -> None:
    geometry = abi.ArenaGeometry(8, 1)
    image = image_of(geometry, [*track(4), *track(5)])
    assert decode_image(image, geometry) == (9, {"damaged_heads": 1})


def test_garbage_of_many_region_ids_ends_in_one_region() -> None:
    """Each new id was merged with all tables so far: 300 chunks took over a minute."""
    random = np.random.default_rng(1)
    chunks = [chunk([(1, int(r), 1, 0) for r in random.integers(1, 65535, 61)]) for _ in range(40)]
    events, decoder = decode(chunks)
    assert decoder.tally.counts.unknown_region > 2000
    names = decoder.region_ids.merged().names
    assert len(names) == 3 + 255 + 1
    others = decoder.region_ids.merged()[int(events["region"].iloc[-1])].name
    assert others == "other unknown regions"


def test_no_arena_size_is_named_for_more_than_any_arena_holds() -> None:
    """A flipped bit in a counter of what was dropped: the size that it asks for was refused with an error."""
    state = replace(arena_state(1, {}), num_tracks_without_chunk=1 << 37)
    decoder = Decoder(RankInfo(0, clock=NS_CLOCK), RegionIds())
    for _ in decoder.decode(state, state_and_data([])[1]):
        pass
    assert decoder.tally.arena_use().needed_bytes == 0


def test_a_replay_begins_with_its_first_event_where_short_tracks_are_opened_late() -> None:
    """Launches that begin early open tracks while the one before, which began first, has not opened its own."""
    headers = np.zeros(4, dtype=[("anchor_realtime_ticks", np.uint64), ("flags", np.uint16)])
    headers["anchor_realtime_ticks"] = 5000
    headers["flags"][3] = abi.CHUNK_CYCLES
    region = 7 << abi.START_BITS
    first_words = np.array([region | 4000, region | 6000, 0, region | 4000], dtype=np.uint64)
    assert _begin_of(first_words, headers).tolist() == [4000, 5000, 5000, 5000]
