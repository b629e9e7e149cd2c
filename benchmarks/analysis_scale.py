"""How long do `stats`, `waits` and `report` take on a large capture, and how much memory?

Makes a capture of an all-to-all with the given number of events (written once and kept), then
measures each analysis in a process of its own: wall time, processor time and peak resident memory.
First without the summaries that ranks write when they have recorded, which is how older captures
are read (`--skip-events` leaves that out), then with them.

    python -m benchmarks.analysis_scale [--events 100_000_000] [--ranks 8] [--dir /tmp/kprof-scale] [--threads 2]
        [--only report] [--skip-events]

8 ranks have 304 blocks of 4 warps and all talk to each other; 1000 ranks have 32 blocks of 4 warps
and talk within groups of 8.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from benchmarks import harness
from kprof.capture.directory import Capture, begin_capture, finish_capture, writing_events
from kprof.capture.manifest import EventCounts
from kprof.capture.names import events_file_name, summary_file_name
from kprof.capture.rank_summary import write_summary
from synthetic import TraceBuilder, events_of

REGIONS = """
REGION(R_COUNT, "dispatch/count",      compute)
REGION(R_SEND,  "dispatch/send",       send,    peer:12, slot:20)
REGION(R_WAIT,  "dispatch/wait-token", wait,    peer:12, slot:20)
REGION(R_COPY,  "dispatch/copy",       recv,    bytes:32)
FLOW(R_SEND, R_WAIT)
"""
ANALYSES = ("stats", "waits", "report")
GROUP, NUM_WARPS = 8, 4
COUNT, SEND, WAIT, COPY = 1, 2, 3, 4


@dataclass(frozen=True)
class Shape:
    """How many ranks, blocks, tokens per warp and launches the capture has."""

    num_ranks: int
    num_blocks: int
    tokens: int
    num_launches: int

    @property
    def per_launch(self) -> int:
        """Events of one launch of one rank: a count, then sends, then waits each with a copy."""
        return self.num_blocks * NUM_WARPS * (1 + 3 * self.tokens)


def shape_of(num_events: int, num_ranks: int) -> Shape:
    blocks, tokens = (304, 42) if num_ranks <= GROUP else (32, 16)
    one = Shape(num_ranks, blocks, tokens, 1)
    return replace(one, num_launches=max(1, round(num_events / one.per_launch / num_ranks)))


def write_capture(path: Path, shape: Shape) -> None:
    build = TraceBuilder(REGIONS, shape.num_ranks, bound_ns=100.0)
    for launch in range(shape.num_launches):
        build.launch(launch, "all_to_all", shape.num_blocks)
    manifest = build.manifest()
    counts = EventCounts(recorded=shape.num_launches * shape.per_launch)
    infos = tuple(msgspec.structs.replace(info, counts=counts) for info in manifest.ranks)
    temporary = begin_capture(path, force=True)
    for rank in range(shape.num_ranks):
        with writing_events(temporary / events_file_name(rank)) as writer:
            for launch in range(shape.num_launches):
                writer.write_table(launch_events(rank, launch, shape))
    finish_capture(temporary, path, msgspec.structs.replace(manifest, ranks=infos), force=True)


def launch_events(rank: int, launch: int, shape: Shape) -> pa.Table:
    """All events of one launch of one rank, by track and time; rank 3 is late by 20 us."""
    random = np.random.default_rng([rank, launch])
    tracks, tokens = shape.num_blocks * NUM_WARPS, shape.tokens
    per_track = 1 + 3 * tokens
    region = np.tile(np.r_[COUNT, np.full(tokens, SEND), np.tile([WAIT, COPY], tokens)], tracks)
    duration = random.integers(200, 600, tracks * per_track)
    start = np.cumsum(duration.reshape(tracks, per_track), axis=1) - duration.reshape(
        tracks, per_track
    )
    start = start.ravel() + launch * 200_000 + (20_000 if rank == 3 else 0)
    block = np.repeat(np.arange(tracks) // NUM_WARPS, per_track)
    warp = np.repeat(np.arange(tracks) % NUM_WARPS, per_track)
    # Block b serves rank b % 8 of its group: it sends to it, and waits for as many tokens from it.
    serving = block[region == SEND]
    per_block = NUM_WARPS * tokens
    slot = np.arange(tracks * tokens) % per_block + serving // GROUP * per_block
    sends = (rank // GROUP * GROUP + serving % GROUP) | slot << 12
    payload = np.zeros(tracks * per_track, dtype=np.int64)
    payload[region == SEND] = sends
    payload[region == WAIT] = sends
    payload[region == COPY] = 4096
    number, zeros = len(region), np.zeros(len(region))
    whose = (np.full(number, rank), np.full(number, launch), block, warp)
    return events_of((*whose, region, zeros, start, duration, payload, block % 132))


def run_one(what: str, path: Path, threads: int) -> dict[str, object]:
    """In a process of its own: seconds and peak memory, imports included."""
    began = time.perf_counter()
    # DuckDB takes as many threads as it has processors; its settings are locked once a capture is
    # open.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    from kprof import analysis, report
    from kprof.trace import Trace

    trace = Trace.open(path)
    if what == "stats":
        analysis.stats(analysis.Summary.of(trace))
    elif what == "waits":
        analysis.waits(analysis.Summary.of(trace), "peer")
    else:
        report.to_json(report.build(trace))
    return {
        "what": what,
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time(), 1),
        "peak_gb": round(harness.peak_bytes() / 1e9, 2),
    }


def set_summaries(capture: Capture, is_wanted: bool) -> float:
    """Write the ranks' summaries or take them away; the processor seconds it took."""
    began = time.process_time()
    for info in capture.manifest.ranks:
        if is_wanted:
            write_summary(capture.path, info, capture.manifest.world_size)
        else:
            (capture.path / summary_file_name(info.rank)).unlink(missing_ok=True)
    return time.process_time() - began


def measure(options: argparse.Namespace, path: Path) -> list[dict[str, object]]:
    """Every analysis in a process of its own."""
    results = []
    for what in options.only:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            results.append(pool.submit(run_one, what, path, options.threads).result())
        print(results[-1], flush=True)
    return results


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--events", type=int, default=100_000_000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--dir", type=Path, default=Path("/tmp/kprof-scale"))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--only", nargs="+", choices=ANALYSES, default=ANALYSES)
    parser.add_argument("--skip-events", action="store_true")
    options = parser.parse_args()
    path = options.dir / f"{options.events}-{options.ranks}.kprof"
    if not path.exists():
        options.dir.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        write_capture(path, shape_of(options.events, options.ranks))
        print(f"written in {time.perf_counter() - began:.0f} s", flush=True)
    capture = Capture.open(path)
    recorded = sum(info.counts.recorded for info in capture.manifest.ranks)
    print(f"{recorded} events of {options.ranks} ranks, {options.threads} threads")
    set_summaries(capture, is_wanted=False)
    event_bytes = capture.size_bytes
    document: dict[str, object] = {
        **harness.context(
            f"python -m benchmarks.analysis_scale --events {options.events} --ranks "
            f"{options.ranks} --threads {options.threads}"
        ),
        "events": recorded,
        "ranks": options.ranks,
        "events_gb": round(event_bytes / 1e9, 3),
        "from_events": [] if options.skip_events else measure(options, path),
    }
    seconds = set_summaries(capture, is_wanted=True)
    document |= {
        "write_summaries_cpu_seconds": round(seconds, 1),
        "summaries_gb": round((capture.size_bytes - event_bytes) / 1e9, 3),
    }
    print({key: document[key] for key in ("write_summaries_cpu_seconds", "summaries_gb")})
    document["from_summaries"] = measure(options, path)
    harness.show_and_write(document, options.output)


if __name__ == "__main__":
    main()
