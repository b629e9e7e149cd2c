"""A workload without kernels: two ranks exchange items, and rank 1 packs for longer. Leaves behind what recorders would,
with the delays that `kprof verify` asks for in it.

--blind       kernels that take no delays
--chained     what a rank packs later makes all of its call later, whoever waits for whom
--calls N     so many calls
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from kprof.capture.directory import (
    event_schema,
    write_rank_events,
    write_rank_info,
)
from kprof.capture.journal import Aligned, say
from kprof.capture.manifest import (
    Alignment,
    ArenaUse,
    ClockInfo,
    ClockSegment,
    EventCounts,
    Launch,
    RankAlignment,
    RankInfo,
    RankStarted,
)
from kprof.recording.launches.delays import Delays
from kprof.recording.rank.process import delays_of_environment
from kprof.regions import parse_regions

REGIONS = parse_regions("""
REGION(R_PACK, "pack", compute)
REGION(R_SEND, "send", send, peer:8, slot:24)
REGION(R_WAIT, "wait", wait, peer:8, slot:24)
REGION(R_REDUCE, "reduce", compute)
FLOW(R_SEND, R_WAIT)
""")
RANKS = (0, 1)
ITEMS = 4
PACK_NS = {0: 2_000, 1: 5_000}
BETWEEN_NS = 1_000_000


def spans_of_call(call: int, delays: Delays, *, is_chained: bool) -> dict[int, list[list[Any]]]:
    """Of each rank: region, start, duration."""
    spans: dict[int, list[list[Any]]] = {rank: [] for rank in RANKS}
    end = {}
    # Lengths differ, as they do in life.
    more = {rank: 7 * (3 * call + rank) % 5 for rank in RANKS}
    for rank in RANKS:
        now = call * BETWEEN_NS
        is_delayed = delays.region == "pack" and rank in delays.blocks
        delay_ns = round(delays.delay_ns) if is_delayed else 0
        for _ in range(ITEMS):
            spans[rank].append(["pack", now, PACK_NS[rank] + more[rank] + delay_ns])
            now += spans[rank][-1][2]
        spans[rank].append(["send", now, 100])
        end[rank] = now + 100
    chained = sum(round(delays.delay_ns) for rank in RANKS if rank in delays.blocks)
    for rank in RANKS:
        ready = max(end[rank] + 20, end[1 - rank] + 200)
        spans[rank].append(["wait", end[rank], ready - end[rank]])
        spans[rank].append(["reduce", ready, 3_000 + (ITEMS * chained if is_chained else 0)])
    return spans


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--blind", action="store_true")
    parser.add_argument("--chained", action="store_true")
    parser.add_argument("--calls", type=int, default=6)
    parser.add_argument("--exit-if-delayed", type=int, default=0)
    arguments = parser.parse_args()
    directory = Path(os.environ["KPROF_RECORD_DIR"])
    delays = delays_of_environment() or Delays()
    delays = Delays() if arguments.blind else delays
    calls = [
        spans_of_call(call, delays, is_chained=arguments.chained) for call in range(arguments.calls)
    ]
    clocks = tuple(RankAlignment(r, (ClockSegment(0, 0.0),), 5.0) for r in RANKS)
    say(directory, 0, Aligned(Alignment("test", 0, clocks)))
    for rank in RANKS:
        say(directory, rank, RankStarted(rank, len(RANKS), "host0", os.getpid()))
        rows = [
            {
                "rank": rank,
                "launch": call,
                "block": 0,
                "warp": -1,
                "flags": 0,
                "hw_id": 0,
                "region": REGIONS.by_name(region).id,
                "start_ns": start,
                "duration_ns": length,
                "payload": 1 - rank if region in ("send", "wait") else 0,
            }
            for call, spans in enumerate(calls)
            for region, start, length in spans[rank]
        ]
        write_rank_events(directory, rank, pa.Table.from_pylist(rows, schema=event_schema()))
        info = RankInfo(
            rank=rank,
            host="host0",
            target="test",
            arena=ArenaUse(1 << 20, 1 << 10, 1 << 10),
            clock=ClockInfo("test", 1e9, 1.0),
            counts=EventCounts(recorded=len(rows)),
            regions=REGIONS,
            launches=tuple(Launch(call, "exchange", call, 1, 64) for call in range(len(calls))),
        )
        write_rank_info(directory, info)
    return arguments.exit_if_delayed if delays.delay_ns else 0


sys.exit(main())
