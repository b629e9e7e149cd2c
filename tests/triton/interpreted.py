"""Kernels recorded in the interpreter: TRITON_INTERPRET=1 python interpreted.py FOLDER makes a capture of each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sample_kernels
import torch
import triton
import triton.language as tl
from sample_kernels import (
    DONE,
    KPROF,
    PLAIN,
    copy,
    mark_regions,
    marks,
    matmul,
    plain_matmul,
    returns_early,
    sample_regions,
    short_marks,
)
from triton.runtime import interpreter

import kprof.triton as kp
from kprof import abi
from kprof.capture.manifest import RankInfo
from kprof.clocks.calibration import measure_clock
from kprof.recording.arenas.turns import Turns
from kprof.recording.decoding.decode import Decoder
from kprof.recording.launcher.record import session
from kprof.recording.launches.region_ids import RegionIds
from kprof.recording.launches.wanted import EVERYTHING, Wanted
from kprof.recording.rank.recorder import Recorder
from kprof.triton.buffer import words_of
from kprof.triton.instrument import WORDS, with_whole_span

HEADER_REGIONS = kp.Regions(Path(__file__).parent / "regions.h")
SLOTS = (None, 0)  # of the benchmark's other profilers
TILE = {"M": 16, "N": 16, "K": 16}
WANTED = {"short, some blocks": Wanted(blocks=(3, 4)), "short, sampled": Wanted(sample=2)}
TINY_ARENA = abi.CHUNKS_OFFSET + 4 * abi.CHUNK_BYTES


@triton.jit
def every_call(prof, n):
    track = kp.open_track(prof)
    begin = kp.start(track)
    track, begin = kp.lap(track, begin, HEADER_REGIONS.R_WAIT, peer=3, slot=n)
    track = kp.stop(track, begin, HEADER_REGIONS.R_COPY, n * 1000)
    end = kp.start(track)
    track = kp.span(track, begin, end, HEADER_REGIONS.R_WAIT, 255 + n, slot=-n)
    track = kp.mark(track, HEADER_REGIONS.R_DONE)
    track = kp.value(track, HEADER_REGIONS.R_LEFT, n)


def time_of(call: Callable[[], None], quantiles: object) -> list[float]:
    """In place of Triton's timing, which needs a GPU: configurations win in the order of their runs."""
    call()
    timed.append(len(timed))
    return [float(-len(timed))] * 3


timed: list[int] = []


@triton.autotune(
    configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})],
    key=["n"],
    do_bench=time_of,
)
@triton.jit
def tuned(x, n, prof, BLOCK: tl.constexpr):
    track = kp.open_track(prof)
    for first in range(0, n, BLOCK):
        tl.store(x + first + tl.arange(0, BLOCK), 1.0)
        track = kp.mark(track, DONE, first)


def record_tuned(recorder: Recorder) -> None:
    tuned[(1,)](torch.zeros(64), 64, kp.buffer("tuned", 1, mark_regions, recorder=recorder))
    assert len(timed) == 2
    assert tuned.best_config.kwargs == {"BLOCK": 32}


def record_copy(recorder: Recorder, grid: tuple[int] | None, num_runs: int = 1) -> None:
    x = torch.randn(200, 64)
    y = torch.zeros_like(x)
    prof = kp.buffer("copy", grid, sample_regions, recorder=recorder)
    for _ in range(num_runs):
        copy[(3,)](y, x, 200, 64, prof, *SLOTS, SCHEME=KPROF, BLOCK=64)
    assert torch.equal(x, y)


def record_matmul(recorder: Recorder) -> None:
    a, b = torch.randn(32, 32).half(), torch.randn(32, 32).half()
    c = torch.zeros(32, 32).half()
    prof = kp.buffer("matmul", (2, 2), sample_regions, recorder=recorder)
    matmul[(2, 2)](a, b, c, 32, 32, prof, *SLOTS, SCHEME=KPROF, IN_LOOP=True, **TILE)
    torch.testing.assert_close(c.double(), a.double() @ b.double(), atol=0.02, rtol=0.01)


def record_full(recorder: Recorder) -> None:
    marks[(7,)](kp.buffer("marks", 7, mark_regions, recorder=recorder), 100)


# Marks of each program; a chunk has room for 61.
COUNTS = [0, 1, 60, 61, 62, 100]


def record_short(recorder: Recorder, grid: int | None, at_most: int = 61) -> None:
    prof = kp.buffer("short_marks", grid, mark_regions, recorder=recorder)
    counts = torch.tensor(COUNTS, dtype=torch.int32)
    short_marks[(len(COUNTS),)](prof, counts, AT_MOST=at_most)


def check_captured_and_drained() -> None:
    """A captured launch gets the address of a door, whose switches say which arena is in use."""
    turns = Turns(1 << 20, num_arenas=2)
    prof = kp.pack(turns.captured_buffer(0), mark_regions)
    for arena in turns.arenas:
        marks[(3,)](prof, 100)
        assert turns.active is arena
        state, chunks = arena.read()
        assert not state.is_damaged
        ids = RegionIds()
        ids.table_of_launch[0] = ids.table_idx(mark_regions.table)
        decoder = Decoder(RankInfo(0, clock=measure_clock("cpu")), ids)
        assert sum(len(table) for table in decoder.decode(state, chunks)) == 3 * 150
        assert decoder.tally.counts.dropped == decoder.tally.counts.torn_chunks == 0
        if arena is turns.arenas[0]:
            assert turns.arenas[1].state().num_used_chunks == 0
            assert turns.switch(1)


def record_calls(recorder: Recorder) -> None:
    every_call[(2,)](kp.buffer("every_call", 2, HEADER_REGIONS, recorder=recorder), 7)


def record_off(recorder: Recorder) -> None:
    prof = kp.buffer("copy", 3, sample_regions, recorder=recorder)
    x = torch.randn(4, 64)
    y = torch.zeros_like(x)
    copy[(3,)](y, x, 4, 64, prof, *SLOTS, SCHEME=PLAIN, BLOCK=64)
    copy[(3,)](y, x, 4, 64, None, *SLOTS, SCHEME=KPROF, BLOCK=64)
    assert torch.equal(x, y)


def record_instrumented(recorder: Recorder) -> None:
    lines = Path(sample_kernels.__file__).read_text().splitlines()
    loop = 1 + lines.index("    for _ in range(0, k, K):")
    steps = loop + 2, loop + 3
    matmul_with_spans = kp.instrument(
        plain_matmul,
        at={"dot": "tl.dot", "whole": ..., "loop": loop, "steps": steps},
        recorder=recorder,
    )
    a, b = torch.randn(32, 32).half(), torch.randn(32, 32).half()
    c = torch.zeros(32, 32).half()
    matmul_with_spans[(2, 2)](a, b, c, 32, 32, **TILE)
    torch.testing.assert_close(c.double(), a.double() @ b.double(), atol=0.02, rtol=0.01)
    ones = torch.zeros(64)
    plain_tuned_with_spans = kp.instrument(plain_tuned, at={"store": "tl.store"}, recorder=recorder)
    plain_tuned_with_spans[lambda meta: (64 // meta["BLOCK"],)](ones, 64)
    assert ones.tolist() == [1.0] * 64
    early = kp.instrument(returns_early, at={"all": ...}, recorder=recorder)
    early[(5,)](ones.zero_(), 2)
    assert ones.tolist() == [1.0] * 2 + [0.0] * 62


def record_whole(recorder: Recorder, num_runs: int = 1) -> None:
    """130 programs with one span each; several runs take the buffer of one launch."""
    kernel, regions = with_whole_span(plain_ones, "ones")
    ones = torch.zeros(130)
    launch = recorder.launch("plain_ones", regions.table, num_blocks=130, shares_chunks=True)
    words = dict(zip(WORDS, words_of(launch), strict=True))
    for _ in range(num_runs):
        kernel[(13, 5, 2)](ones, **words)
    assert ones.tolist() == [float(num_runs)] * 130


@triton.jit
def plain_ones(x):
    """Another one."""
    place = x + tl.program_id(0) + 13 * (tl.program_id(1) + 5 * tl.program_id(2))
    tl.store(place, tl.load(place) + 1.0)


@triton.autotune(configs=[triton.Config({"BLOCK": 16})], key=["n"], do_bench=time_of)
@triton.jit
def plain_tuned(x, n, BLOCK: tl.constexpr):
    """A kernel of somebody else's."""
    tl.store(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), 1.0)


CASES = {
    "reserved": lambda recorder: record_copy(recorder, (3,)),
    "claimed": lambda recorder: record_copy(recorder, None),
    "claimed, one buffer": lambda recorder: record_copy(recorder, None, num_runs=3),
    "reserved, one buffer": lambda recorder: record_copy(recorder, (3,), num_runs=3),
    "whole, one buffer": lambda recorder: record_whole(recorder, num_runs=2),
    "matmul": record_matmul,
    "full": record_full,
    "short": lambda recorder: record_short(recorder, len(COUNTS)),
    "short, claimed": lambda recorder: record_short(recorder, None),
    "short, full": lambda recorder: record_short(recorder, len(COUNTS)),
    "short, some blocks": lambda recorder: record_short(recorder, len(COUNTS)),
    "short, sampled": lambda recorder: record_short(recorder, len(COUNTS)),
    "too long": lambda recorder: record_short(recorder, len(COUNTS), at_most=62),
    "calls": record_calls,
    "off": record_off,
    "tuned": record_tuned,
    "instrumented": record_instrumented,
    "whole": record_whole,
}


def call_device_function(function: Any, *arguments: Any, **options: Any) -> Any:
    """In half the time: for each such call the interpreter puts its own functions into triton.language again,
    where they are since the kernel began. Only those of Triton know it under another name."""
    if function.fn.__module__.startswith("triton."):
        interpreter._patch_lang(function.fn)
    try:
        return function.rewrite()(*arguments, **options)
    except Exception as error:
        raise interpreter.InterpreterError(repr(error)) from error


def main(folder: Path) -> None:
    interpreter.InterpretedFunction.__call__ = call_device_function
    check_captured_and_drained()
    for name, case in CASES.items():
        with session(folder / f"{name}.kprof") as directory:
            arena_bytes = TINY_ARENA if "full" in name else 1 << 20
            wanted = WANTED.get(name, EVERYTHING)
            recorder = Recorder(
                directory, rank=0, world_size=1, arena_bytes=arena_bytes, wanted=wanted
            )
            case(recorder)
            recorder.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
