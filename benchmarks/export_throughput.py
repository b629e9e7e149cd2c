"""How long the export of a capture on disk takes, and the memory that it needs.

    python -m benchmarks.export_throughput [--events 100000000] [--output FILE]

The capture has spans with two arguments (peer, slot) on 8 ranks x 304 blocks x 4 warps, and a flow
for every other one. The export runs in a process of its own, whose peak is the export's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import forget_peak, peak_bytes, resident_bytes

NUM_RANKS, NUM_BLOCKS, NUM_WARPS = 8, 304, 4
NUM_TRACKS = NUM_RANKS * NUM_BLOCKS * NUM_WARPS
REGIONS = """
REGION(R_SEND, "dispatch/send", send, peer:8, slot:24)
REGION(R_WAIT, "dispatch/wait-token", wait, peer:8, slot:24)
FLOW(R_SEND, R_WAIT)
"""


def write_capture(folder: Path, num_events: int) -> Path:
    """A capture on disk: every send of a rank is met by a wait on the rank of its peer."""
    import pyarrow as pa

    from kprof.capture.directory import (
        begin_capture,
        event_schema,
        finish_capture,
        write_rank_events,
    )
    from synthetic import TraceBuilder

    output = folder / "bench.kprof"
    temporary = begin_capture(output, force=True)
    per_track = num_events // NUM_TRACKS // 2 * 2
    local = np.arange(NUM_BLOCKS * NUM_WARPS * per_track)
    k, track = local % per_track, local // per_track
    step = k // 2
    for rank in range(NUM_RANKS):
        distance = 1 + step % (NUM_RANKS - 1)
        peer = np.where(k % 2 == 0, rank + distance, rank - distance) % NUM_RANKS
        slot = (track * (per_track // 2) + step) % ((1 << 24) - 1)
        values = {
            "rank": np.full(len(local), rank),
            "launch": 0 * local,
            "block": track // NUM_WARPS,
            "warp": track % NUM_WARPS,
            "region": 1 + k % 2,
            "flags": 0 * local,
            "start_ns": 1_000_000_000 + k * 1000 + track % 97,
            "duration_ns": 700 + 0 * local,
            "payload": peer | slot << 8,
            "hw_id": track,
        }
        schema = event_schema()
        columns = {f.name: values[f.name].astype(f.type.to_pandas_dtype()) for f in schema}
        write_rank_events(temporary, rank, pa.table(columns, schema))
    finish_capture(temporary, output, TraceBuilder(REGIONS, NUM_RANKS).manifest(), force=True)
    return output


def export_capture(capture: Path) -> dict[str, Any]:
    """Export a capture in this process; run in a fresh one, so that the peak is the export's."""
    from kprof.export import write
    from kprof.trace import Trace

    trace = Trace.open(capture)
    trace.num_events()
    before_mb = resident_bytes() / 1e6
    forget_peak()
    begin = time.perf_counter()
    summary = write(trace, capture.with_suffix(".pftrace"), force=True, max_slices=None)
    taken = time.perf_counter() - begin
    summary.path.unlink()
    return {
        "events": summary.num_slices,
        "flows": summary.num_flows,
        "seconds": round(taken, 2),
        # Of the process, opening the capture included: what other work on the machine does not
        # change.
        "cpu_seconds": round(time.process_time(), 1),
        "slices_per_s": round(summary.num_slices / taken),
        "bytes_per_slice": round(summary.size_bytes / summary.num_slices, 1),
        "memory_beyond_input_mb": round(peak_bytes() / 1e6 - before_mb, 1),
    }


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--export", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.export:
        print(json.dumps(export_capture(arguments.export)))
        return
    report = harness.context(f"python -m benchmarks.export_throughput --events {arguments.events}")
    with tempfile.TemporaryDirectory() as folder:
        capture = write_capture(Path(folder), arguments.events)
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.export_throughput", "--export", str(capture)],
            check=True,
            capture_output=True,
            text=True,
        )
    harness.show_and_write(report | {"whole_export": json.loads(done.stdout)}, arguments.output)


if __name__ == "__main__":
    main()
