"""How fast the decoder turns a full arena into columns, and how much memory that takes. One core,
no device.

    python -m benchmarks.decode_throughput [--records 10000000] [--repeats 7]

Bars: at least 10 million records/s on one core; peak memory at most 6 times the arena (the arena
itself included).
"""

from __future__ import annotations

import os
import time

import numpy as np

from benchmarks import harness
from kprof import abi
from kprof.capture.manifest import ClockInfo, RankInfo
from kprof.recording.arenas.arena_state import Handed, read_control
from kprof.recording.decoding.decode import Decoder
from kprof.recording.launches.region_ids import RegionIds
from kprof.regions import parse_regions

_NUM_BLOCKS = 304
REGIONS = """
REGION(R_SEND, "send", send, peer:8, slot:24)
REGION(R_WAIT, "wait", wait, peer:8, slot:24)
REGION(R_COPY, "copy", recv, bytes:32)
"""


def full_arena(num_records: int) -> tuple[np.ndarray, np.ndarray]:
    """Control block and chunks of an arena whose every chunk is full, as a kernel of 304 blocks would leave it."""
    # Every block has as many chunks as any other.
    num_chunks = -(-num_records // abi.RECORDS_PER_CHUNK // _NUM_BLOCKS) * _NUM_BLOCKS
    head = abi.initial_control(abi.ArenaGeometry(num_chunks, 1))
    head[: abi.CONTROL_BYTES].view(abi.CONTROL)[0]["cursors"]["next_chunk"][0] = num_chunks
    chunks = np.zeros(num_chunks * abi.CHUNK_BYTES, dtype=np.uint8)
    words = chunks.view("<u8").reshape(num_chunks, -1)
    headers = chunks.reshape(num_chunks, -1)[:, : abi.CHUNK_HEADER_BYTES]
    header = np.zeros(num_chunks, dtype=abi.CHUNK_HEADER)
    header["flags"] = abi.CHUNK_CLAIMED | abi.CHUNK_ABI | 1 << abi.CHUNK_CURSORS_SHIFT
    header["chunk_idx"] = np.arange(num_chunks)
    header["block"] = header["chunk_idx"] % _NUM_BLOCKS
    header["previous_chunk_idx"] = np.maximum(header["chunk_idx"].astype(int) - _NUM_BLOCKS, -1)
    header["previous_chunk_idx"][:_NUM_BLOCKS] = abi.NO_CHUNK
    header["flags"][-_NUM_BLOCKS:] |= abi.CHUNK_NO_NEXT
    header["chunks_per_cursor"] = num_chunks
    header["anchor_realtime_ticks"] = 10**15 + np.arange(num_chunks, dtype=np.uint64) * 6000
    headers[:] = header.view(np.uint8).reshape(num_chunks, -1)
    for i in range(abi.RECORDS_PER_CHUNK):
        start = (header["anchor_realtime_ticks"] + np.uint64(100 * i)) & np.uint64(abi.START_MASK)
        words[:, 6 + 2 * i] = start | np.uint64((i % 3 + 1) << abi.START_BITS)
        words[:, 7 + 2 * i] = np.uint64(90 | (i << 40))
    return head, chunks


def decode_once(head: np.ndarray, chunks: np.ndarray) -> tuple[float, int]:
    ids = RegionIds()
    ids.table_of_launch[0] = ids.table_idx(parse_regions(REGIONS))
    decoder = Decoder(RankInfo(0, clock=ClockInfo("test", 1e9, 1.0)), ids)
    begin = time.perf_counter()
    geometry = abi.ArenaGeometry(len(chunks) // abi.CHUNK_BYTES, 1)
    tables = list(decoder.decode(read_control(head, Handed.of_new(geometry)), chunks))
    elapsed_s = time.perf_counter() - begin
    lost = (
        decoder.tally.counts.torn_chunks
        + decoder.tally.counts.torn_records
        + decoder.tally.counts.damaged_heads
    )
    assert lost == 0, decoder.tally.counts
    return elapsed_s, sum(table.num_rows for table in tables)


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    decode_once(*full_arena(100_000))
    before_bytes = harness.peak_bytes()
    head, chunks = full_arena(arguments.records)
    rates = []
    for _ in range(arguments.repeats):
        elapsed_s, num_records = decode_once(head, chunks)
        rates.append(num_records / elapsed_s)
    used_bytes = harness.peak_bytes() - before_bytes
    result = harness.context("python -m benchmarks.decode_throughput") | {
        "records": num_records,
        "million_records_per_s": harness.spread([rate / 1e6 for rate in rates], 1),
        "peak_memory_over_arena": round(used_bytes / chunks.nbytes, 2),
    }
    harness.show_and_write(result, arguments.output)


if __name__ == "__main__":
    main()
