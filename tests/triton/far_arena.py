"""Arenas in which a chunk begins at a multiple of 4 GiB: TRITON_INTERPRET=1 python far_arena.py.

Prints a line of JSON for each: its size, the chunk at the boundary, which chunks programs began, and what was dropped.
Only the pages that are written exist.
"""

from __future__ import annotations

import ctypes
import itertools
import json

import numpy as np
import torch
import triton

import kprof.triton as kp
from kprof import abi
from kprof.devices.memory import HostMemory
from kprof.recording.arenas.arena import Arena

GIB_4 = 1 << 32
PRIVATE_ANONYMOUS_FIXED_SPARSE = 0x02 | 0x20 | 0x100000 | 0x4000
NUM_PROGRAMS = 8
REGIONS = kp.Regions()
MANY, ONE = REGIONS.define("many"), REGIONS.define("one")


@triton.jit
def touch(out, n, prof):
    track = kp.open_track(prof)
    for _ in range(n):
        begin = kp.start(track)
        track = kp.stop(track, begin, MANY)
    begin = kp.start(track)
    track = kp.stop(track, begin, ONE)


def memory_at(address: int, size_bytes: int) -> HostMemory:
    """Zeroed memory exactly there."""
    mmap = ctypes.CDLL(None, use_errno=True).mmap
    mmap.restype = ctypes.c_void_p
    mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    # Read and write.
    got = mmap(address, size_bytes, 3, PRIVATE_ANONYMOUS_FIXED_SPARSE, -1, 0)
    assert got == address, ctypes.get_errno()
    content = (ctypes.c_uint8 * size_bytes).from_address(address)
    return HostMemory(np.frombuffer(content, np.uint8))


def begun_chunks(boundary: int, size_bytes: int, chunk: int, tracks: int) -> dict[str, object]:
    """Launches with `chunk` (from the end if negative) at the boundary; `tracks` 1 reserves their chunks."""
    at_boundary = chunk % abi.ArenaGeometry.for_bytes(size_bytes).num_chunks
    address = boundary - abi.CHUNKS_OFFSET - at_boundary * abi.CHUNK_BYTES
    arena = Arena(size_bytes, memory=memory_at(address, size_bytes))
    out = torch.zeros(NUM_PROGRAMS)
    for launch, events in enumerate((0, 70)):
        buffer = arena.launch_buffer(launch, NUM_PROGRAMS, tracks)
        touch[(NUM_PROGRAMS,)](out, events, kp.pack(buffer, REGIONS))
    state, data = arena.read()
    headers = data.reshape(-1, abi.CHUNK_BYTES)[:, : abi.CHUNK_HEADER_BYTES].copy()
    headers = headers.view(abi.CHUNK_HEADER).reshape(-1)
    headers = headers[headers["flags"] != 0]
    return {
        "size_bytes": size_bytes,
        "chunk": chunk,
        "begun": sorted(zip(headers["launch"].tolist(), headers["block"].tolist(), strict=True)),
        "has_boundary": at_boundary in headers["chunk_idx"].tolist(),
        "dropped": sum(state.dropped_of_region),
    }


def main() -> None:
    places = (0, 0), (4, 0), (-4, 1), (-8, 1)
    sizes = 1 << 20, (1 << 31) - 1024, 1 << 31, 1 << 32, 1 << 33
    for number, (size_bytes, place) in enumerate(itertools.product(sizes, places)):
        print(json.dumps(begun_chunks((0x2000 + 8 * number) * GIB_4, size_bytes, *place)))


if __name__ == "__main__":
    main()
