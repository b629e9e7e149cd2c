"""How long it takes from the end of a workload to its capture: the rank decodes and writes its events, and the launcher
makes the capture of them. And how fast its decoder is alone, on one core, and what memory that takes. CPU target, one
rank, no device.

    python -m benchmarks.finishing [--events 10000000] [--repeats 3]

The bars: 10 million events in at most 15 s on two cores, and decoded in at most 1 s on one; at most 6 times the arena,
itself included, while it is decoded. `cpu_s` is the time of all threads, which other programs on the same cores change little.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from kprof import abi
from kprof.capture.manifest import ClockInfo, RankInfo
from kprof.recording.arenas.arena_state import Handed, read_control
from kprof.recording.decoding.decode import Decoder
from kprof.recording.launcher.record import session
from kprof.recording.launches.region_ids import RegionIds
from kprof.recording.rank.recorder import Recorder
from kprof.regions import parse_regions
from kprof.trace import Trace

REGIONS = """
REGION(R_SEND, "send", send, peer:8, slot:24)
REGION(R_WAIT, "wait", wait, peer:8, slot:24)
REGION(R_COPY, "copy", recv, bytes:32)
"""
TABLE = parse_regions(REGIONS)
LAUNCHES = 100
# Of the kernel whose arena is decoded alone.
NUM_BLOCKS = 304


def fill(chunks: np.ndarray, num_blocks: int, first_tick: int, **fields: int) -> None:
    """Chunks as a kernel of `num_blocks` blocks leaves them: 61 spans in each, and of every block as many chunks as of any
    other. `fields` are those of all headers."""
    idxs = np.arange(len(chunks) // abi.CHUNK_BYTES)
    header = np.zeros(len(idxs), dtype=abi.CHUNK_HEADER)
    for name, value in fields.items():
        header[name] = value
    header["flags"] |= abi.CHUNK_CLAIMED | abi.CHUNK_ABI
    header["chunk_idx"] += idxs.astype("<u4")
    header["block"] = idxs % num_blocks
    header["previous_chunk_idx"] = header["chunk_idx"].astype(int) - num_blocks
    header["previous_chunk_idx"][:num_blocks] = abi.NO_CHUNK
    header["anchor_realtime_ticks"] = first_tick + idxs // num_blocks * 6100
    rows = chunks.reshape(len(idxs), -1)
    rows[:, : abi.CHUNK_HEADER_BYTES] = header.view(np.uint8).reshape(len(idxs), -1)
    words = rows[:, abi.CHUNK_HEADER_BYTES :].view("<u8")
    for i in range(abi.RECORDS_PER_CHUNK):
        start = (header["anchor_realtime_ticks"] + np.uint64(100 * i)) & np.uint64(abi.START_MASK)
        words[:, 2 * i] = start | np.uint64((i % 3 + 1) << abi.START_BITS)
        words[:, 2 * i + 1] = np.uint64(90 | i << 40)


def decoding(num_events: int, repeats: int) -> dict[str, Any]:
    """Of an arena whose every chunk is full, in this thread, on one core."""
    num_chunks = -(-num_events // abi.RECORDS_PER_CHUNK // NUM_BLOCKS) * NUM_BLOCKS
    geometry = abi.ArenaGeometry(num_chunks, 1)
    head = abi.initial_control(geometry)
    head[: abi.CONTROL_BYTES].view(abi.CONTROL)[0]["cursors"]["next_chunk"][0] = num_chunks
    before_bytes = harness.resident_bytes()
    chunks = np.zeros(num_chunks * abi.CHUNK_BYTES, dtype=np.uint8)
    one_cursor = 1 << abi.CHUNK_CURSORS_SHIFT
    fill(chunks, NUM_BLOCKS, 10**15, flags=one_cursor, chunks_per_cursor=num_chunks)
    harness.forget_peak()
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    rates = []
    for _ in range(repeats):
        ids = RegionIds()
        ids.table_of_launch[0] = ids.table_idx(TABLE)
        decoder = Decoder(RankInfo(0, clock=ClockInfo("test", 1e9, 1.0)), ids)
        begin = time.perf_counter()
        tables = list(decoder.decode(read_control(head, Handed.of_new(geometry)), chunks))
        elapsed_s = time.perf_counter() - begin
        num_records = sum(table.num_rows for table in tables)
        assert num_records == num_chunks * abi.RECORDS_PER_CHUNK, decoder.tally.counts
        rates.append(num_records / elapsed_s / 1e6)
        del tables
    os.sched_setaffinity(0, cores)
    used_bytes = harness.peak_bytes() - before_bytes
    return {
        "records": num_records,
        "million_records_per_s": harness.spread(rates, 1),
        "peak_memory_over_arena": round(used_bytes / chunks.nbytes, 2),
    }


def record_full(recorder: Recorder, num_blocks: int, first_tick: int) -> None:
    """A launch whose blocks have recorded 61 spans each, if it has room."""
    launch = recorder.launch("kernel", TABLE, num_blocks=num_blocks, tracks_per_block=1)
    if not launch.num_reserved:
        return
    address = launch.arena + abi.CHUNKS_OFFSET + launch.first_chunk * abi.CHUNK_BYTES
    view = (ctypes.c_uint8 * (num_blocks * abi.CHUNK_BYTES)).from_address(address)
    fill(
        np.frombuffer(view, dtype=np.uint8), num_blocks, first_tick,
        flags=launch.num_cursors << abi.CHUNK_CURSORS_SHIFT,
        chunk_idx=launch.first_chunk, launch=launch.launch, warp=abi.BLOCK_TRACK_WARP,
        chunks_per_cursor=launch.chunks_per_cursor,
    )  # fmt: skip


def finish_once(folder: Path, num_events: int) -> dict[str, float]:
    """Seconds of the rank and of the launcher, and those of all threads."""
    num_blocks = -(-num_events // (abi.RECORDS_PER_CHUNK * LAUNCHES))
    output = folder / "run.kprof"
    with session(output, force=True) as directory:
        size = abi.CHUNKS_OFFSET + (2 * LAUNCHES * num_blocks + 4096) * abi.CHUNK_BYTES
        recorder = Recorder(directory, rank=0, world_size=1, arena_bytes=size)
        tick = time.monotonic_ns()
        for idx in range(LAUNCHES):
            record_full(recorder, num_blocks, tick + idx * 10_000)
        begin, cpu_begin = time.perf_counter(), time.process_time()
        recorder.close()
        rank_s = time.perf_counter() - begin
    whole_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu_begin
    recorded = Trace.open(output).ranks[0].counts.recorded
    assert recorded == LAUNCHES * num_blocks * abi.RECORDS_PER_CHUNK, recorded
    return {"rank_s": rank_s, "launcher_s": whole_s - rank_s, "cpu_s": cpu_s}


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    # What is imported meanwhile is not the decoder's memory.
    decoding(100_000, 1)
    decoded = decoding(arguments.events, arguments.repeats)
    with tempfile.TemporaryDirectory() as folder:
        runs = [finish_once(Path(folder), arguments.events) for _ in range(arguments.repeats)]
    result = harness.context("python -m benchmarks.finishing") | {"events": arguments.events}
    result |= {
        name: harness.spread([run[name] for run in runs], 1)
        for name in ("rank_s", "launcher_s", "cpu_s")
    }
    harness.show_and_write(result | {"decoding": decoded}, arguments.output)


if __name__ == "__main__":
    main()
