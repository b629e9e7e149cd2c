"""Slices per second and bytes per slice of the pftrace writer, beside Perfetto's trace builder and
orjson.

    python -m benchmarks.export_throughput [--slices 200000] [--rounds 7] [--capture-events 10000000]

All three turn the same columns in memory into a file: spans with two arguments (peer, slot) and a
flow each, on 8 ranks x 304 blocks x 4 warps. They run in one process on one thread, in turns, so
that a busy machine hits all alike; the medians count. `--stream-slices` measures the writer's
memory over so many slices, `--capture-events` exports a capture of so many events from disk; both
in a process of their own.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

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
BARS = {"builder": 40.0, "orjson": 10.0, "bytes_per_slice": 64.0, "memory_mb": 500.0}


@dataclass(frozen=True)
class Measurement:
    """One writer: seconds of each round, and the size of its file."""

    name: str
    seconds: list[float]
    size_bytes: int
    num_slices: int

    @property
    def slices_per_s(self) -> float:
        return self.num_slices / statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """(slowest - fastest) / median."""
        return (max(self.seconds) - min(self.seconds)) / statistics.median(self.seconds)

    def row(self) -> dict[str, Any]:
        return {
            "writer": self.name,
            "slices_per_s": round(self.slices_per_s),
            "bytes_per_slice": round(self.size_bytes / self.num_slices, 1),
            "spread": round(self.spread, 3),
            "rounds": len(self.seconds),
        }


def make_batch(num_slices: int) -> Any:
    """Alternating sends and waits, sorted by track and start; every send has the flow of a wait."""
    from kprof.export.model import Batch

    row = np.arange(num_slices)
    per_track = -(-num_slices // NUM_TRACKS)
    start_ns = 1000 + row % per_track * 1500
    none = np.zeros(num_slices, dtype=np.int64)
    is_wait = row % 2
    return Batch(
        track=row // per_track + 1,
        name=(1 + is_wait).astype(np.int32),
        flags=none.astype(np.uint8),
        start_ns=start_ns,
        end_ns=start_ns + 900,
        payload=(row % 8) | (row % (1 << 24)) << 8,
        flow_out=np.where(is_wait == 0, row + 1, 0),
        flow_in=np.where(is_wait == 1, row, 0),
        late_ns=none,
        num_merged=np.ones(num_slices, dtype=np.int32),
        busy_ns=none + 900,
    )


def write_kprof(batch: Any, path: Path) -> None:
    with path.open("wb") as file:
        begun(file, batch).events(batch)


def begun(file: BinaryIO, batch: Any) -> Any:
    """The writer, ready for events."""
    from kprof.export.model import Header, Rank, Track, TrackKind
    from kprof.export.perfetto import PerfettoWriter
    from kprof.regions import Region, parse_regions

    names = (Region(0, ""), *parse_regions(REGIONS).regions)
    writer = PerfettoWriter(file)
    writer.begin(Header(names, (Rank(0, 1, "Rank 0", ()),), int(batch.end_ns.max())))
    # Descriptors are written once per track, not per slice: the last one stands for all.
    writer.tracks([Track(NUM_TRACKS, TrackKind.RANK, "Rank 0", 0)])
    return writer


def write_builder(batch: Any, path: Path) -> None:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder

    builder = TraceProtoBuilder()
    for track, name, start, end, payload, out, into in columns(batch):
        packet = builder.add_packet()
        packet.timestamp = start
        packet.trusted_packet_sequence_id = 1
        event = packet.track_event
        event.type = TrackEvent.TYPE_SLICE_BEGIN
        event.track_uuid = track
        event.name_iid = name
        event.category_iids.append(name)
        peer = event.debug_annotations.add()
        peer.name_iid = 1
        peer.uint_value = payload & 0xFF
        slot = event.debug_annotations.add()
        slot.name_iid = 2
        slot.uint_value = payload >> 8
        if out:
            event.flow_ids.append(out)
        packet = builder.add_packet()
        packet.timestamp = end
        packet.trusted_packet_sequence_id = 1
        event = packet.track_event
        event.type = TrackEvent.TYPE_SLICE_END
        event.track_uuid = track
        if into:
            event.terminating_flow_ids.append(into)
    path.write_bytes(builder.serialize())


def write_orjson(batch: Any, path: Path) -> None:
    import orjson

    names = ("", "dispatch/send", "dispatch/wait-token")
    categories = ("", "send", "wait")
    events: list[dict[str, Any]] = []
    for track, name, start, end, payload, out, into in columns(batch):
        pid = track >> 11
        place = {"pid": pid, "tid": track}
        slice_ = {"ph": "X", "name": names[name], "cat": categories[name], **place}
        slice_ |= {"ts": start / 1000, "dur": (end - start) / 1000}
        events.append(slice_ | {"args": {"peer": payload & 0xFF, "slot": payload >> 8}})
        flow = {"name": "flow", "cat": "flow", **place}
        if out:
            events.append(flow | {"ph": "s", "id": out, "ts": start / 1000})
        if into:
            events.append(flow | {"ph": "f", "id": into, "ts": (end - 1) / 1000, "bp": "e"})
    path.write_bytes(orjson.dumps({"traceEvents": events}))


def columns(batch: Any) -> Any:
    """Rows as Python numbers, for the writers that work row by row."""
    names = ("track", "name", "start_ns", "end_ns", "payload", "flow_out", "flow_in")
    arrays = [getattr(batch, name) for name in names]
    return zip(*(array.tolist() for array in arrays), strict=True)


WRITERS: dict[str, Callable[[Any, Path], None]] = {
    "kprof": write_kprof,
    "perfetto.trace_builder": write_builder,
    "orjson Chrome JSON": write_orjson,
}


def compare(num_slices: int, rounds: int, folder: Path) -> list[Measurement]:
    """All writers in turns, `rounds` times after one to warm up."""
    batch = make_batch(num_slices)
    seconds: dict[str, list[float]] = {name: [] for name in WRITERS}
    sizes = {}
    # The collector would run most often in the writers that make most objects.
    gc.disable()
    for round_idx in range(rounds + 1):
        for name, write in WRITERS.items():
            gc.collect()
            path = folder / "out"
            begin = time.perf_counter()
            write(batch, path)
            taken = time.perf_counter() - begin
            sizes[name] = path.stat().st_size
            path.unlink()
            if round_idx:
                seconds[name].append(taken)
    gc.enable()
    return [Measurement(name, seconds[name], sizes[name], num_slices) for name in WRITERS]


def stream(num_slices: int, path: Path) -> dict[str, Any]:
    """Write many slices batch by batch.

    Run in a fresh process, so that the peak is the writer's.
    """
    batch = make_batch(1 << 20)
    with path.open("wb") as file:
        writer = begun(file, batch)
        before_mb = resident_bytes() / 1e6
        forget_peak()
        begin = time.perf_counter()
        for _ in range(-(-num_slices // len(batch))):
            writer.events(batch)
            # Kept short on disk: the memory is the question here.
            file.truncate(0)
            file.seek(0)
        taken = time.perf_counter() - begin
    written = -(-num_slices // len(batch)) * len(batch)
    return {
        "slices": written,
        "slices_per_s": round(written / taken),
        "memory_beyond_input_mb": round(peak_bytes() / 1e6 - before_mb, 1),
    }


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
    parser.add_argument("--slices", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--capture-events", type=int, default=0)
    parser.add_argument(
        "--stream-slices", type=int, default=0, help="the writer's memory over so many"
    )
    parser.add_argument("--export", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stream-to", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.export:
        print(json.dumps(export_capture(arguments.export)))
        return
    if arguments.stream_to:
        print(json.dumps(stream(arguments.stream_slices, arguments.stream_to)))
        return
    with tempfile.TemporaryDirectory() as folder:
        report = measure(arguments, Path(folder))
    print_report(report)
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = {
        **harness.context(f"python -m benchmarks.export_throughput {' '.join(sys.argv[1:])}"),
        "slices": arguments.slices,
        "bars": BARS,
    }
    own, builder, chrome = compare(arguments.slices, arguments.rounds, folder)
    report["writers"] = [m.row() for m in (own, builder, chrome)]
    report["times_builder"] = round(own.slices_per_s / builder.slices_per_s, 1)
    report["times_orjson"] = round(own.slices_per_s / chrome.slices_per_s, 1)
    if arguments.stream_slices:
        number = str(arguments.stream_slices)
        report["stream"] = in_fresh_process(
            "--stream-slices", number, "--stream-to", str(folder / "s")
        )
    if arguments.capture_events:
        capture = write_capture(folder, arguments.capture_events)
        report["whole_export"] = in_fresh_process("--export", str(capture))
    return report


def in_fresh_process(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.export_throughput", *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def print_report(report: dict[str, Any]) -> None:
    print(
        f"{report['device']}; {report['date_utc']}; {report['slices']:,} slices, two arguments and a "
        "flow each"
    )
    for row in report["writers"]:
        print(
            f"{row['writer']:24} {row['slices_per_s']:>12,} slices/s {row['bytes_per_slice']:>7} "
            "bytes/slice"
            f"   spread {row['spread']:.0%} of {row['rounds']} rounds"
        )
    print(f"kprof / trace_builder: {report['times_builder']}x (bar {BARS['builder']:.0f}x)")
    print(f"kprof / orjson:        {report['times_orjson']}x (bar {BARS['orjson']:.0f}x)")
    if "stream" in report:
        print(f"writer alone, batch by batch: {report['stream']} (bar {BARS['memory_mb']:.0f} MB)")
    if "whole_export" in report:
        print(f"whole export from a capture on disk: {report['whole_export']}")


if __name__ == "__main__":
    main()
