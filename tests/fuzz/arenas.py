"""Damage arenas and see what the decoder makes of them.

    python tests/fuzz/arenas.py --minutes 10 --seed 1 --jobs 2      (or --count 100000)

Every arena is one that kernels could have written (see `SHAPES`), with something wrong: flipped bits, torn words,
swapped chunks, zeroed parts, garbage. Whatever it is, the decoder
  * raises nothing but a KprofError (only where a whole launch seems to have been compiled with other headers),
  * takes less than a second of processor time,
  * decodes every chunk that nothing happened to as before,
  * counts a loss where it has fewer events than were written,
  * gives no event that a capture may not hold.

What cannot be seen, and is left out of the last rule: records that are zero where a track may end
(behind the last record of its last chunk, anywhere in a short track's, a reserved chunk as a
whole), and records that read as an anchor of the cycle counter. Damage that leaves a plausible
record (another time, another payload) costs no event. Where half of the chunks of a processor
contradict the other half about its cycle counter, either half may be taken for damaged.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import harness
import numpy as np
from harness import Broken

from kprof import abi
from kprof.capture.checks import EVENT_BOUNDS
from kprof.capture.manifest import ClockInfo, EventCounts, Launch, ProbeCost, RankInfo
from kprof.errors import KprofError
from kprof.recording.arenas.arena_state import Handed, read_arena
from kprof.recording.decoding.decode import Decoder
from kprof.recording.launches.region_ids import RegionIds
from kprof.regions import RegionTable

CLOCK = ClockInfo("fuzz", 1e9, 32.0)
CYCLES_PER_NS = 2.0
BEGIN_NS = 1_760_000_000_000_000_000
NUM_LAUNCHES = 3
REGIONS = RegionTable.from_names(["a", "b", "c"])
MAX_CPU_S = 1.0
NUM_VARIANTS = 12
COLUMNS = ("launch", "block", "warp", "region", "start_ns", "duration_ns", "payload")
# The times of a cycle counter come from the anchors of all chunks.
UNTIMED = [0, 1, 2, 3, 6]


@dataclass(frozen=True)
class Sound:
    """A well-formed arena, and its events: rows of COLUMNS with the chunk of each.

    Payloads are unique.
    """

    handed: Handed
    image: np.ndarray
    events: np.ndarray
    chunk_of_event: np.ndarray
    counts: EventCounts


class Writer:
    """Writes an arena as kernels do, track by track."""

    def __init__(self, num_chunks: int, random: np.random.Generator) -> None:
        self.random = random
        size = abi.CHUNKS_OFFSET + num_chunks * abi.CHUNK_BYTES
        self.geometry = abi.ArenaGeometry.for_bytes(size)
        self.limit = self.geometry.chunks_per_cursor
        self.image = np.zeros(self.geometry.size_bytes, dtype=np.uint8)
        self.image[: abi.CHUNKS_OFFSET] = abi.initial_control(self.geometry)
        self.control = self.image[: abi.CONTROL_BYTES].view(abi.CONTROL)[0]
        self.sinks = self.image[abi.SINKS_OFFSET : abi.CHUNKS_OFFSET].view(abi.SINK)
        self.chunks = self.image[abi.CHUNKS_OFFSET :].reshape(-1, abi.CHUNK_BYTES)
        self.first_reserved = self.geometry.num_chunks
        self.now_ns = BEGIN_NS
        self.num_payloads = 0

    def reserve(self) -> int:
        self.first_reserved -= 1
        return self.first_reserved

    def claim(self, block: int) -> int | None:
        num_cursors = self.geometry.num_cursors
        for tries in range(num_cursors):
            cursor = (block + tries) % num_cursors
            taken = int(self.control["cursors"]["next_chunk"][cursor])
            self.control["cursors"]["next_chunk"][cursor] = taken + 1
            if taken < self.limit:
                return taken * num_cursors + cursor
        self.control["full_limit"] = self.limit
        return None

    def begin(self, chunk_idx: int, who: tuple[int, int, int], previous: int, flags: int) -> None:
        header = self.chunks[chunk_idx][: abi.CHUNK_HEADER_BYTES].view(abi.CHUNK_HEADER)[0]
        header["launch"], header["block"], header["warp"] = who
        header["flags"] = abi.CHUNK_CLAIMED | abi.CHUNK_ABI | flags
        header["flags"] |= self.geometry.num_cursors << abi.CHUNK_CURSORS_SHIFT
        header["chunk_idx"], header["previous_chunk_idx"] = chunk_idx, previous
        header["anchor_realtime_ticks"], header["anchor_cycles"] = self.now_ns, self.cycles()
        header["hw_id"], header["chunks_per_cursor"] = who[1] % 4, self.limit

    def cycles(self) -> int:
        return int((self.now_ns - BEGIN_NS) * CYCLES_PER_NS) + 12_345

    def record(self, chunk_idx: int, place: int, flags: int) -> None:
        self.now_ns += int(self.random.integers(40, 4000))
        start = self.cycles() if flags & abi.CHUNK_CYCLES else self.now_ns
        record = self.chunks[chunk_idx][abi.CHUNK_HEADER_BYTES :].view(abi.RECORD)[place]
        region = int(self.random.integers(1, 4))
        record["start_and_region"] = (start & abi.START_MASK) | (region << abi.START_BITS)
        record["duration_ticks"] = self.random.integers(0, 30)
        self.num_payloads += 1
        record["payload"] = self.num_payloads

    def track(
        self, who: tuple[int, int, int], num_records: int, reserved: bool, flags: int
    ) -> None:
        chunk_idx = self.reserve() if reserved else self.claim(who[1])
        sink = self.sinks[who[1] % abi.NUM_SINKS]
        if chunk_idx is None:
            cursors = self.control["cursors"]["num_tracks_without_chunk"]
            cursors[who[1] % self.geometry.num_cursors] += 1
            sink["num_dropped_of_region"][1] += num_records
            return
        self.begin(chunk_idx, who, abi.NO_CHUNK, flags)
        for i in range(num_records):
            place = i % abi.RECORDS_PER_CHUNK
            self.record(chunk_idx, place, flags)
            if place < abi.RECORDS_PER_CHUNK - 1:
                continue
            next_idx = self.claim(who[1])
            if next_idx is None:
                header = self.chunks[chunk_idx][: abi.CHUNK_HEADER_BYTES].view(abi.CHUNK_HEADER)
                header["flags"] |= abi.CHUNK_NO_NEXT
                header["num_dropped"] = num_records - i - 1
                sink["num_dropped_of_region"][1] += num_records - i - 1
                return
            self.begin(next_idx, who, chunk_idx, flags)
            chunk_idx = next_idx
        if flags & abi.CHUNK_CYCLES:
            self.anchor(chunk_idx, num_records % abi.RECORDS_PER_CHUNK)

    def anchor(self, chunk_idx: int, place: int) -> None:
        words = self.chunks[chunk_idx].view("<u8")[abi.CHUNK_HEADER_BYTES // 8 + 2 * place :]
        words[0] = self.cycles() | abi.ANCHOR_REGION_ID << abi.START_BITS
        words[1] = self.now_ns

    def short_track(self, who: tuple[int, int, int], num_places: int) -> None:
        chunk_idx = self.reserve()
        self.begin(chunk_idx, who, abi.NO_CHUNK, 0)
        for place in range(num_places):
            if self.random.random() < 0.7:
                self.record(chunk_idx, place, 0)

    def finish(self) -> Sound:
        handed = Handed(
            self.geometry,
            self.limit,
            self.limit,
            self.first_reserved,
            self.geometry.num_chunks - self.first_reserved,
        )
        events, counts = decode(handed, self.image)
        if losses(counts) or len(events) + counts.dropped < self.num_payloads:
            raise Broken(f"a sound arena has losses: {counts}")
        records = self.chunks[:, abi.CHUNK_HEADER_BYTES :].reshape(-1).view(abi.RECORD)
        chunk_of_payload = np.zeros(self.num_payloads + 1, dtype=int)
        is_event = records["payload"] <= self.num_payloads
        chunk_of_payload[records["payload"][is_event]] = (
            np.flatnonzero(is_event) // abi.RECORDS_PER_CHUNK
        )
        return Sound(handed, self.image, events, chunk_of_payload[events[:, -1]], counts)


def tiny(writer: Writer) -> None:
    writer.track((0, 0, 0), int(writer.random.integers(1, 140)), False, 0)


def zones(writer: Writer) -> None:
    for block in range(6):
        num_records = int(writer.random.choice([3, 60, 61, 62, 150]))
        writer.track((block % NUM_LAUNCHES, block, block % 3), num_records, block % 2 == 0, 0)


def cycles(writer: Writer) -> None:
    for block in range(6):
        num_records = int(writer.random.choice([5, 60, 100]))
        writer.track((block % 2, block, 0), num_records, block % 2 == 0, abi.CHUNK_CYCLES)


def short_tracks(writer: Writer) -> None:
    for block in range(10):
        who = (block % NUM_LAUNCHES, block, abi.BLOCK_TRACK_WARP)
        writer.short_track(who, int(writer.random.integers(1, 61)))


def graphs(writer: Writer) -> None:
    for block in range(6):
        num_records = int(writer.random.choice([3, 60, 61, 62, 150]))
        writer.track((block % NUM_LAUNCHES, block, block % 3), num_records, False, 0)


def overflow(writer: Writer) -> None:
    for block in range(12):
        writer.track((0, block, 0), int(writer.random.choice([10, 200, 700])), False, 0)


SHAPES: dict[str, tuple[int, Callable[[Writer], None]]] = {
    "tiny": (4, tiny),
    "zones": (64, zones),
    "cycles": (64, cycles),
    "short tracks": (64, short_tracks),
    "overflow": (32, overflow),
    "graphs": (64, graphs),
}


@cache
def sound(shape: str, variant: int) -> Sound:
    num_chunks, fill = SHAPES[shape]
    writer = Writer(num_chunks, np.random.default_rng([variant, num_chunks]))
    fill(writer)
    return writer.finish()


def decode(
    handed: Handed, image: np.ndarray, *, are_captured: bool = False
) -> tuple[np.ndarray, EventCounts]:
    """Rows of COLUMNS, and what the decoder counted. Launches may be captured in graphs."""
    ids = RegionIds()
    for launch in range(NUM_LAUNCHES):
        ids.table_of_launch[launch] = ids.table_idx(REGIONS)
    probe = ProbeCost(0.0, 0.0, 0, 0, cycles_per_second=1e9 * CYCLES_PER_NS)
    decoder = Decoder(RankInfo(0, clock=CLOCK, probe=probe), ids)
    for launch in range(NUM_LAUNCHES if are_captured else 0):
        decoder.replays.add(Launch(launch, "kernel", 0))
    ids.num_launches = NUM_LAUNCHES
    state, chunks = read_arena(lambda begin, end: image[begin:end], handed)
    parts = [np.zeros((0, len(COLUMNS)), dtype=np.int64)]
    for table in decoder.decode(state, chunks):
        columns = [table[name].to_numpy().astype(np.int64) for name in COLUMNS]
        parts.append(np.stack(columns, axis=1))
    decoder.tally.losses()
    decoder.tally.arena_use()
    events = np.concatenate(parts)
    for name, column in zip(COLUMNS, events.T, strict=True):
        least, most = EVENT_BOUNDS[name]
        if len(column) and not (least <= column.min() and column.max() <= most):
            raise Broken(f"an event has a {name} that no capture may hold")
    return events, decoder.tally.counts


def losses(counts: EventCounts) -> int:
    return counts.torn_chunks + counts.stray_chunks + counts.torn_records + counts.damaged_heads


def place_of(image: np.ndarray, random: np.random.Generator) -> int:
    """A byte: mostly of some chunk in use, else anywhere."""
    if random.random() < 0.1:
        return int(random.integers(len(image)))
    used = np.flatnonzero(image[abi.CHUNKS_OFFSET :].reshape(-1, abi.CHUNK_BYTES).any(axis=1))
    at = abi.CHUNKS_OFFSET + int(random.choice(used)) * abi.CHUNK_BYTES
    in_header = random.random() < 0.3
    return at + int(random.integers(abi.CHUNK_HEADER_BYTES if in_header else abi.CHUNK_BYTES))


def flip_bits(image: np.ndarray, random: np.random.Generator) -> None:
    for _ in range(int(random.choice([1, 1, 1, 2, 20]))):
        image[place_of(image, random)] ^= 1 << int(random.integers(8))


def tear_words(image: np.ndarray, random: np.random.Generator) -> None:
    for _ in range(int(random.choice([1, 1, 4]))):
        at, length = place_of(image, random), int(random.choice([1, 2, 4, 8, 16]))
        at -= at % length
        fill = random.choice([0, 0xFF, -1])
        size = len(image[at : at + length])
        image[at : at + length] = random.integers(0, 256, size) if fill < 0 else fill


def swap_chunks(image: np.ndarray, random: np.random.Generator) -> None:
    chunks = image[abi.CHUNKS_OFFSET :].reshape(-1, abi.CHUNK_BYTES)
    a = (place_of(image, random) - abi.CHUNKS_OFFSET) // abi.CHUNK_BYTES
    a, b = max(a, 0), int(random.integers(len(chunks)))
    chunks[[a, b]] = chunks[[b, a]]


def zero_rest(image: np.ndarray, random: np.random.Generator) -> None:
    image[place_of(image, random) :] = 0


def fill_part(image: np.ndarray, random: np.random.Generator) -> None:
    at = place_of(image, random)
    end = at + int(random.choice([64, 1024, 4096, 1 << 20]))
    ones = random.random() < 0.3
    size = len(image[at:end])
    image[at:end] = 0xFF if ones else random.integers(0, 256, size)


def repeat_chunk(image: np.ndarray, random: np.random.Generator) -> None:
    chunks = image[abi.CHUNKS_OFFSET :].reshape(-1, abi.CHUNK_BYTES)
    a = max((place_of(image, random) - abi.CHUNKS_OFFSET) // abi.CHUNK_BYTES, 0)
    chunks[int(random.integers(len(chunks)))] = chunks[a]


DAMAGES = (flip_bits, tear_words, swap_chunks, zero_rest, fill_part, repeat_chunk)


def check(shape: str, variant: int, seed: int) -> str:
    """Damage one arena and decode it; what came of it in a word. Raises Broken."""
    whole, random = sound(shape, variant), np.random.default_rng(seed)
    image = whole.image.copy()
    damage = DAMAGES[int(random.integers(len(DAMAGES)))]
    damage(image, random)
    begin_s = time.process_time()
    try:
        events, counts = decode(whole.handed, image, are_captured=shape == "graphs")
    except KprofError as error:
        if "ABI version" not in str(error):
            raise Broken(f"refused: {error}") from error
        return "refused"
    if time.process_time() - begin_s > MAX_CPU_S:
        raise Broken(f"took {time.process_time() - begin_s:.1f} s")
    changed = changed_chunks(whole, image)
    check_untouched(shape, whole, changed, image, events)
    if losses(counts):
        return "counted"
    missing = whole.counts.recorded - len(events) - num_unseen(whole, changed, image)
    if missing > 0:
        raise Broken(f"{missing} events are missing and nothing was counted")
    return "plausible" if changed else "harmless"


def changed_chunks(whole: Sound, image: np.ndarray) -> set[int]:
    differs = (image != whole.image)[abi.CHUNKS_OFFSET :].reshape(-1, abi.CHUNK_BYTES)
    return set(np.flatnonzero(differs.any(axis=1)).tolist())


def check_untouched(
    shape: str, whole: Sound, changed: set[int], image: np.ndarray, events: np.ndarray
) -> None:
    columns = UNTIMED if shape == "cycles" else list(range(len(COLUMNS)))
    if shape == "graphs":
        # A track that seems to be opened twice makes two replays of a launch.
        columns.remove(COLUMNS.index("launch"))
    doubtful = changed | (outvoted(whole, changed, image) if shape == "cycles" else set())
    expected = whole.events[~np.isin(whole.chunk_of_event, list(doubtful))][:, columns]
    # Damage may give two events one payload: then it takes a longer look.
    place = np.argsort(events[:, -1], kind="stable")
    found = events[place][:, columns]
    first = np.searchsorted(found[:, -1], expected[:, -1]).clip(max=max(len(found) - 1, 0))
    if len(found) and (found[first] == expected).all():
        return
    known = set(map(tuple, found.tolist()))
    for event in map(tuple, expected.tolist()):
        if event not in known:
            raise Broken(f"{event} of an untouched chunk is missing")


def outvoted(whole: Sound, changed: set[int], image: np.ndarray) -> set[int]:
    """Chunks on whose processor as many were damaged as not: nothing says which cycle counter is right.

    Damage may also move a chunk to the processor of another.
    """
    chunk_idxs = np.unique(whole.chunk_of_event)
    is_changed = np.isin(chunk_idxs, list(changed))
    places = (processors(whole.image, chunk_idxs), processors(image, chunk_idxs))
    return {
        int(chunk_idx)
        for place in places
        for chunk_idx, own in zip(chunk_idxs, places[0], strict=True)
        if (place == own).any() and is_changed[place == own].mean() >= 0.5
    }


def processors(image: np.ndarray, chunk_idxs: np.ndarray) -> np.ndarray:
    """A number for each chunk's launch and processor, as its header has them."""
    chunks = image[abi.CHUNKS_OFFSET :].reshape(-1, abi.CHUNK_BYTES)[chunk_idxs]
    headers = chunks[:, : abi.CHUNK_HEADER_BYTES].copy().view(abi.CHUNK_HEADER).reshape(-1)
    return headers["launch"].astype(np.int64) << 32 | headers["hw_id"]


def num_unseen(whole: Sound, changed: set[int], image: np.ndarray) -> int:
    """Records that damage turned into nothing, or into an anchor, where that cannot be told from a track's end."""
    unseen = 0
    for chunk_idx in changed & set(whole.chunk_of_event.tolist()):
        chunk = image[abi.CHUNKS_OFFSET :].reshape(-1, abi.CHUNK_BYTES)[chunk_idx]
        header = chunk[: abi.CHUNK_HEADER_BYTES].view(abi.CHUNK_HEADER)[0]
        words = chunk[abi.CHUNK_HEADER_BYTES :].view("<u8").reshape(-1, 2)
        is_zero = ~words.any(axis=1)
        is_anchor = (header["flags"] & abi.CHUNK_CYCLES != 0) & (
            words[:, 0] >> abi.START_BITS == abi.ANCHOR_REGION_ID
        )
        is_any_place = header["warp"] == abi.BLOCK_TRACK_WARP or not chunk.any()
        is_behind = np.arange(len(words)) > np.flatnonzero(~is_zero).max(initial=-1)
        unseen += int(np.count_nonzero((is_zero & (is_any_place | is_behind)) | is_anchor))
    return unseen


def case(seed: int, number: int, folder: Path) -> str:
    """Damage arena `number`."""
    del folder
    shapes = list(SHAPES)
    shape, variant = shapes[number % len(shapes)], number // len(shapes) % NUM_VARIANTS
    return f"{shape}: {check(shape, variant, seed * 1_000_000_007 + number)}"


if __name__ == "__main__":
    sys.exit(harness.main(case, "arenas", "tests/fuzz/arenas.py", has_files=False, count=10_000))
