"""Which processor a track ran on, by what the hardware says of itself (tracks of a kernel that does nothing else)."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from widths import needs_machine_code

from kprof import abi
from kprof.devices.build import BuildOptions, load_library
from kprof.recording.arenas.arena import Arena
from kprof.recording.launches.launch_buffer import LaunchBuffer

KERNEL = """
#include <kprof/kprof.h>
__global__ void marks(kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  kprof::profile_mark(track, 1);
}
extern "C" int run(int blocks, int threads, const kprof::LaunchBuffer* buffer) {
  return KPROF_LAUNCH(marks, blocks, threads, nullptr, 0, kprof::make_buffer(*buffer));
}
"""
NUM_BLOCKS, NUM_THREADS = 20, 512
NUM_XCCS = 8


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The chunk headers of twenty blocks of eight waves: on gfx942 blocks go round the XCCs, then the compute units."""
    folder = tmp_path_factory.mktemp("processors")
    (folder / "marks.hip").write_text(KERNEL)
    library = load_library(folder / "marks.hip", BuildOptions(sanitizers=()))
    library.run.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_char_p]
    arena = Arena(abi.CHUNKS_OFFSET + 400 * abi.CHUNK_BYTES)
    buffer = LaunchBuffer(arena.address, 0).packed()
    assert library.run(NUM_BLOCKS, NUM_THREADS, buffer) == 0
    chunks = np.frombuffer(arena.read()[1], dtype=np.uint8).reshape(-1, abi.CHUNK_BYTES)
    found = chunks[:, : abi.CHUNK_HEADER.itemsize].copy().view(abi.CHUNK_HEADER).ravel()
    return found[found["flags"] != 0]


@pytest.mark.amd
@needs_machine_code
def test_all_waves_of_a_block_ran_on_one_compute_unit(headers: np.ndarray) -> None:
    """They differ in slot and SIMD, which HW_ID names below the compute unit."""
    assert len(headers) == NUM_BLOCKS * NUM_THREADS // 64
    for block in range(NUM_BLOCKS):
        assert len(set(headers["hw_id"][headers["block"] == block])) == 1


@pytest.mark.amd
@needs_machine_code
def test_compute_units_of_one_number_on_two_chiplets_are_two(headers: np.ndarray) -> None:
    by_block = [int(headers["hw_id"][headers["block"] == block][0]) for block in range(NUM_BLOCKS)]
    assert len(set(by_block)) == NUM_BLOCKS
    assert [hw_id >> 16 for hw_id in by_block] == [block % NUM_XCCS for block in range(NUM_BLOCKS)]
    assert [hw_id & 15 for hw_id in by_block] == [block // NUM_XCCS for block in range(NUM_BLOCKS)]
