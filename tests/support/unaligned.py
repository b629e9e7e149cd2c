"""Captures of ranks with planted clocks, whole and as parts of hosts, and a trace of another tool's: for tests of
`kprof align` and `kprof merge`."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np

from kprof.aligning.align import copy_files
from kprof.capture.directory import Capture, begin_capture, finish_capture, read_manifest
from synthetic import TraceBuilder

REGIONS = """
REGION(R_SEND, "dispatch/send", send, peer:8, slot:24)
REGION(R_WAIT, "dispatch/wait", wait, peer:8, slot:24)
REGION(R_MEET, "meet", sync)
FLOW(R_SEND, R_WAIT)
"""
OFFSETS_NS = [0, 731_000_000, -12_345_678, 4_000_000_000]
RATES = [0.0, 4e-5, -5e-5, 1e-5]


class Writer:
    """A capture of ranks with the clocks above."""

    def __init__(self, num_ranks: int, seed: int = 1) -> None:
        self.build = TraceBuilder(REGIONS, num_ranks, is_aligned=False)
        self.draw = np.random.default_rng(seed)
        self.num_slots = 0

    def shown(self, rank: int, true_ns: float) -> int:
        return 10**12 + OFFSETS_NS[rank] + round(true_ns * (1 + RATES[rank]))

    def span(self, rank: int, region: str, begin: float, end: float, **fields: int) -> None:
        start_ns = self.shown(rank, begin)
        duration_ns = self.shown(rank, end) - start_ns
        self.build.span(rank, region, start_ns, duration_ns, **fields)

    def message(self, src: int, dst: int, true_ns: float) -> None:
        seen_ns = true_ns + 3000 + self.draw.exponential(5000)
        self.num_slots += 1
        slot = self.num_slots
        self.span(src, "dispatch/send", true_ns, true_ns + 500, peer=dst, slot=slot)
        self.span(dst, "dispatch/wait", seen_ns - 20_000, seen_ns, peer=src, slot=slot)

    def exchange(self, *ranks: int, count: int = 200) -> Writer:
        """Messages of all these ranks to each other, over 100 ms."""
        for true_ns in np.sort(self.draw.uniform(0, 1e8, count)):
            for src in ranks:
                for dst in ranks:
                    if src != dst:
                        self.message(src, dst, true_ns + self.draw.uniform(0, 1e4))
        return self

    def meet(self, ranks: range, count: int = 100) -> Writer:
        for true_ns in np.sort(self.draw.uniform(0, 1e8, count)):
            begins = true_ns + self.draw.uniform(0, 2e4, len(ranks))
            for rank in ranks:
                end = begins.max() + 4000 + self.draw.exponential(1000)
                self.span(rank, "meet", begins[rank], end)
        return self

    def write(self, path: Path) -> Path:
        self.build.write(path)
        return path


def worst_error_ns(path: Path, ranks: list[int]) -> float:
    """How far aligned clocks of the same moment are apart."""
    manifest = read_manifest(path)
    alignment = manifest.alignment or manifest.partial_alignment
    assert alignment is not None
    entries = {entry.rank: entry for entry in alignment.ranks}
    errors = []
    for true_ns in np.linspace(0, 1e8, 11):
        shown = [
            (rank, 10**12 + OFFSETS_NS[rank] + round(true_ns * (1 + RATES[rank]))) for rank in ranks
        ]
        aligned = [ns + entries[rank].correction_ns(ns) for rank, ns in shown]
        errors.append(max(aligned) - min(aligned))
    return float(max(errors))


def chrome(
    path: Path, num_ranks: int, count: int, tick_ns: float = 1.0, slow_rank: int = -1
) -> Path:
    """What a profiler leaves: a process per rank, each on its own clock, with kernels of NCCL. The gemm of `slow_rank`
    takes three times as long."""
    draw, events = np.random.default_rng(5), []
    for number in range(count):
        begins = number * 1e6 + draw.uniform(0, 3e5, num_ranks)
        gemm = np.full(num_ranks, 2e5)
        if slow_rank >= 0:
            gemm[slow_rank] *= 3
            begins = number * 1e6 + gemm * draw.normal(1, 0.02, num_ranks)
        for rank in range(num_ranks):
            for name, begin, end in (
                ("gemm", begins[rank] - gemm[rank], begins[rank]),
                ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", begins[rank], begins.max() + 2e4),
            ):
                shown = [
                    (each * (1 + rank * 1e-6) + rank * 5e8 + 1e9) / tick_ns // 10 * 10
                    for each in (begin, end)
                ]
                events.append(
                    {
                        "ph": "X",
                        "pid": rank,
                        "tid": 0,
                        "name": name,
                        "ts": shown[0],
                        "dur": shown[1] - shown[0],
                    }
                )
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def part_of(whole: Path, output: Path, ranks: list[int]) -> Path:
    """What the host of these ranks would have recorded."""
    capture = Capture.open(whole)
    manifest = capture.manifest
    part = msgspec.structs.replace(
        manifest,
        ranks=tuple(info for info in manifest.ranks if info.rank in ranks),
        missing_ranks=tuple(sorted({*range(manifest.world_size)} - {*ranks})),
        files=(),
        checksum=None,
    )
    temporary = begin_capture(output, False)
    copy_files(capture, temporary, ranks)
    finish_capture(temporary, output, part)
    return output


def parts_of(whole: Path, *ranks: list[int]) -> list[Path]:
    return [part_of(whole, whole.with_name(f"host{i}.kprof"), each) for i, each in enumerate(ranks)]
