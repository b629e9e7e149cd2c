"""How long it takes from the end of a workload to its capture: the rank decodes and writes its events, and the launcher
makes the capture of them. CPU target, one rank, no device.

    python -m benchmarks.finishing [--events 10000000] [--repeats 3]

The bar: 10 million events in at most 15 s on two cores. `cpu_s` is the time of all threads, which other programs
on the same cores change little.
"""

from __future__ import annotations

import ctypes
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import harness
from kprof import abi
from kprof.recording.launcher.record import session
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


def fill(recorder: Recorder, num_blocks: int, first_tick: int) -> None:
    """A launch whose blocks have recorded 61 spans each, if it has room."""
    launch = recorder.launch("kernel", TABLE, num_blocks=num_blocks, tracks_per_block=1)
    if not launch.num_reserved:
        return
    address = launch.arena + abi.CHUNKS_OFFSET + launch.first_chunk * abi.CHUNK_BYTES
    view = (ctypes.c_uint8 * (num_blocks * abi.CHUNK_BYTES)).from_address(address)
    chunks = np.frombuffer(view, dtype=np.uint8).reshape(num_blocks, -1)
    header = np.zeros(num_blocks, dtype=abi.CHUNK_HEADER)
    header["flags"] = (
        abi.CHUNK_CLAIMED | abi.CHUNK_ABI | launch.num_cursors << abi.CHUNK_CURSORS_SHIFT
    )
    header["chunk_idx"] = launch.first_chunk + np.arange(num_blocks)
    header["launch"] = launch.launch
    header["block"] = np.arange(num_blocks)
    header["warp"] = abi.BLOCK_TRACK_WARP
    header["previous_chunk_idx"] = abi.NO_CHUNK
    header["chunks_per_cursor"] = launch.chunks_per_cursor
    header["anchor_realtime_ticks"] = first_tick
    words = np.zeros((num_blocks, abi.RECORDS_PER_CHUNK, 2), dtype="<u8")
    each = np.arange(abi.RECORDS_PER_CHUNK, dtype=np.uint64)
    starts = (np.uint64(first_tick) + each * np.uint64(100)) & np.uint64(abi.START_MASK)
    words[:, :, 0] = starts | ((each % np.uint64(3) + np.uint64(1)) << np.uint64(abi.START_BITS))
    words[:, :, 1] = np.uint64(90) | each << np.uint64(40)
    chunks[:, : abi.CHUNK_HEADER_BYTES] = header.view(np.uint8).reshape(num_blocks, -1)
    chunks[:, abi.CHUNK_HEADER_BYTES :] = words.reshape(num_blocks, -1).view(np.uint8)


def finish_once(folder: Path, num_events: int) -> dict[str, float]:
    """Seconds of the rank and of the launcher, and those of all threads."""
    num_blocks = -(-num_events // (abi.RECORDS_PER_CHUNK * LAUNCHES))
    output = folder / "run.kprof"
    with session(output, force=True) as directory:
        size = abi.CHUNKS_OFFSET + (2 * LAUNCHES * num_blocks + 4096) * abi.CHUNK_BYTES
        recorder = Recorder(directory, rank=0, world_size=1, arena_bytes=size)
        tick = time.monotonic_ns()
        for idx in range(LAUNCHES):
            fill(recorder, num_blocks, tick + idx * 10_000)
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
    folder = Path(tempfile.mkdtemp())
    try:
        runs = [finish_once(folder, arguments.events) for _ in range(arguments.repeats)]
    finally:
        shutil.rmtree(folder)
    result = harness.context("python -m benchmarks.finishing") | {"events": arguments.events}
    result |= {
        name: harness.spread([run[name] for run in runs], 1)
        for name in ("rank_s", "launcher_s", "cpu_s")
    }
    harness.show_and_write(result, arguments.output)


if __name__ == "__main__":
    main()
