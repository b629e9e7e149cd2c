"""How long do `stats`, `waits` and `report` take on a large capture, and how much memory?

Makes a capture of an all-to-all with the given number of events (8 ranks, 304 blocks, 4 warps; written once and
kept), then measures each analysis in a process of its own: wall time, processor time and peak resident memory.

    python benchmarks/analysis_scale.py [--events 100_000_000] [--dir /tmp/kprof-scale] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from kprof.capture import (
    FORMAT_VERSION,
    Alignment,
    Capture,
    ClockInfo,
    ClockSegment,
    EventCounts,
    EventWriter,
    Launch,
    Manifest,
    RankAlignment,
    RankInfo,
    begin_capture,
    event_schema,
    finish_capture,
)
from kprof.regions import parse_regions

REGIONS = """
REGION(R_COUNT, "dispatch/count",      compute)
REGION(R_SEND,  "dispatch/send",       send,    peer:8, slot:24)
REGION(R_WAIT,  "dispatch/wait-token", wait,    peer:8, slot:24)
REGION(R_COPY,  "dispatch/copy",       recv,    bytes:32)
FLOW(R_SEND, R_WAIT)
"""
NUM_RANKS, NUM_BLOCKS, NUM_WARPS = 8, 304, 4
COUNT, SEND, WAIT, COPY = 1, 2, 3, 4


def write_capture(path: Path, num_events: int) -> None:
    """Every warp of every launch: one count, then tokens sent, then tokens waited for and copied."""
    tracks = NUM_BLOCKS * NUM_WARPS
    # Of a launch's events a third are sends, a third waits, a third copies; a launch has about 1.2 million of them.
    tokens = 42
    per_launch = tracks * (1 + 3 * tokens) * NUM_RANKS
    num_launches = max(1, round(num_events / per_launch))
    temporary = begin_capture(path, force=True)
    infos = []
    for rank in range(NUM_RANKS):
        writer = EventWriter(temporary, rank)
        for launch in range(num_launches):
            writer.write(launch_events(rank, launch, tokens))
        writer.close()
        infos.append(rank_info(rank, num_launches, num_launches * per_launch // NUM_RANKS))
    finish_capture(temporary, path, manifest(tuple(infos)))


def launch_events(rank: int, launch: int, tokens: int) -> pa.Table:
    """All events of one launch of one rank, by track and time; rank 3 is late by 20 us."""
    random = np.random.default_rng([rank, launch])
    tracks = NUM_BLOCKS * NUM_WARPS
    per_track = 1 + 3 * tokens
    region = np.tile(np.r_[COUNT, np.full(tokens, SEND), np.tile([WAIT, COPY], tokens)], tracks)
    duration = random.integers(200, 600, tracks * per_track)
    start = np.cumsum(duration.reshape(tracks, per_track), axis=1) - duration.reshape(
        tracks, per_track
    )
    start = start.ravel() + launch * 200_000 + (20_000 if rank == 3 else 0)
    block = np.repeat(np.arange(tracks) // NUM_WARPS, per_track)
    warp = np.repeat(np.arange(tracks) % NUM_WARPS, per_track)
    number = np.arange(tracks * tokens)
    # Token i of a rank goes to rank i % 8, where the track with the same number waits for it.
    sends = (number % NUM_RANKS) | (number // NUM_RANKS << 8)
    payload = np.zeros(tracks * per_track, dtype=np.int64)
    payload[region == SEND] = sends
    payload[region == WAIT] = sends
    payload[region == COPY] = 4096
    columns = {
        "rank": np.full(len(region), rank),
        "launch": np.full(len(region), launch),
        "block": block,
        "warp": warp,
        "region": region,
        "flags": np.zeros(len(region)),
        "start_ns": start,
        "duration_ns": duration,
        "payload": payload,
        "hw_id": block % 132,
    }
    return pa.table(
        [pa.array(columns[f.name]).cast(f.type) for f in event_schema()], schema=event_schema()
    )


def rank_info(rank: int, num_launches: int, recorded: int) -> RankInfo:
    launches = tuple(Launch(i, "all_to_all", i, NUM_BLOCKS) for i in range(num_launches))
    return RankInfo(
        rank=rank,
        clock=ClockInfo("synthetic", 1e9, 1.0),
        counts=EventCounts(recorded=recorded),
        regions=parse_regions(REGIONS),
        launches=launches,
    )


def manifest(infos: tuple[RankInfo, ...]) -> Manifest:
    ranks = tuple(RankAlignment(info.rank, (ClockSegment(0, 0.0),), 100.0) for info in infos)
    return Manifest(
        format_version=FORMAT_VERSION,
        kprof_version="synthetic",
        command=("analysis_scale",),
        created_utc="2026-01-01T00:00:00Z",
        world_size=NUM_RANKS,
        exit_code=0,
        duration_s=0.0,
        ranks=infos,
        alignment=Alignment("synthetic", 0, ranks),
    )


def run_one(what: str, path: Path, threads: int) -> None:
    """In a process of its own: print seconds and peak memory as JSON."""
    from kprof import analysis, report
    from kprof.trace import Trace

    began = time.perf_counter()
    trace = Trace.open(path)
    trace.frame(f"SET threads = {threads}")
    if what == "stats":
        analysis.stats(trace)
    elif what == "waits":
        analysis.waits(trace, "peer")
    elif what == "late_sender":
        analysis.late_sender(trace)
    else:
        built = report.build(
            trace, progress=lambda name, share: print(f"{share:4.0%} {name}", file=sys.stderr)
        )
        report.to_json(built)
    seconds = time.perf_counter() - began
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu_seconds = usage.ru_utime + usage.ru_stime
    peak = usage.ru_maxrss * 1024
    print(
        json.dumps(
            {
                "what": what,
                "seconds": round(seconds, 1),
                "cpu_seconds": round(cpu_seconds, 1),
                "peak_gb": round(peak / 1e9, 2),
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100_000_000)
    parser.add_argument("--dir", type=Path, default=Path("/tmp/kprof-scale"))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    path = options.dir / f"{options.events}.kprof"
    if options.one:
        run_one(options.one, path, options.threads)
        return
    if not path.exists():
        options.dir.mkdir(parents=True, exist_ok=True)
        write_capture(path, options.events)
    capture = Capture.open(path)
    recorded = sum(info.counts.recorded for info in capture.manifest.ranks)
    print(
        f"{recorded} events, {capture.size_bytes / 1e9:.2f} GB on disk, {options.threads} threads"
    )
    results = []
    for what in ("stats", "waits", "report"):
        command = [sys.executable, __file__, "--one", what, "--events", str(options.events)]
        command += ["--dir", str(options.dir), "--threads", str(options.threads)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results.append(json.loads(done.stdout))
        print(results[-1], flush=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        machine = (
            f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        )
        document = {"command": f"analysis_scale.py --events {options.events}", "machine": machine}
        options.json.write_text(
            json.dumps(document | {"events": recorded, "results": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
