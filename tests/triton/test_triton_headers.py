"""Headers of a Triton kernel that does not end, as the host reads them: `make amd-test` runs its code for gfx942 and gfx950,
with caches that write nothing back by themselves."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from needed import require_triton
from widths import needs_machine_code

require_triton()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from compiled import Pointer, compile_for  # noqa: E402

import kprof.triton as kp  # noqa: E402
from kprof import abi  # noqa: E402
from kprof.recording.launches.launch_buffer import LaunchBuffer  # noqa: E402

pytestmark = [pytest.mark.amd, needs_machine_code]

NUM_PROGRAMS, NUM_WARPS, LAUNCH = 3, 4, 7
# In which all stores past the caches arrive, many times over.
MOST_INSTRUCTIONS = 200_000

regions = kp.Regions()
WAIT = regions.define("wait", category="wait")


@triton.jit
def wait_for_flag(flag, prof):
    track = kp.open_track(prof)
    begin = kp.start(track)
    while tl.load(flag, volatile=True) == 0:
        pass
    track = kp.stop(track, begin, WAIT)


@pytest.fixture(params=["gfx942", "gfx950"])
def headers(request: pytest.FixtureRequest) -> Iterator[np.ndarray]:
    """Those of the launch, which waits until the test has ended."""
    emulator, running = sys.modules["emulator"], sys.modules["gfx942"].emulator
    memory, flag = np.zeros(1 << 20, np.uint8), np.zeros(32, np.int32)
    first = -memory.ctypes.data % abi.CHUNK_BYTES
    launch = LaunchBuffer(memory.ctypes.data + first, LAUNCH, 0, 1, NUM_PROGRAMS, 32, 32)
    prof = kp.pack(launch, regions, NUM_WARPS)
    assert prof is not None
    code = compile_for(request.param, wait_for_flag, Pointer("i32"), prof, num_warps=NUM_WARPS)
    end = running.executed.value + MOST_INSTRUCTIONS
    done = running.submit(dispatch_of(emulator, code.compiled, [flag.ctypes.data, *prof[:4]]))
    while running.executed.value < end:
        time.sleep(0.001)
    chunks = memory[first + abi.CHUNKS_OFFSET :][: NUM_PROGRAMS * abi.CHUNK_BYTES]
    yield chunks.reshape(-1, abi.CHUNK_BYTES)[:, : abi.CHUNK_HEADER_BYTES].copy()
    flag[:] = 1
    done.wait()


def dispatch_of(emulator: Any, compiled: Any, arguments: list[int]) -> Any:
    """Of one kernel, as the emulator takes it."""
    code = emulator.CodeObject(compiled.asm["hsaco"])
    name = compiled.metadata.name
    kinds = [each[".value_kind"] for each in code.meta[name][".args"]]
    num_own = sum(not kind.startswith("hidden") for kind in kinds)
    own = [*arguments, *[0] * (num_own - len(arguments))]
    return emulator.Dispatch(code, name, (NUM_PROGRAMS, 1, 1), (64 * NUM_WARPS, 1, 1), own, 0)


def test_the_host_sees_all_of_a_header_while_the_kernel_runs(headers: np.ndarray) -> None:
    found = headers.view(abi.CHUNK_HEADER)[:, 0]
    assert found["launch"].tolist() == [LAUNCH] * NUM_PROGRAMS
    assert found["block"].tolist() == list(range(NUM_PROGRAMS))
    assert found["chunk_idx"].tolist() == list(range(NUM_PROGRAMS))
    assert (found["previous_chunk_idx"] == 0xFFFFFFFF).all()
    assert found["anchor_realtime_ticks"].all()
