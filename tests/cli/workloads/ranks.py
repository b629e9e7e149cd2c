"""A workload without kernels: leaves behind what the recorders of several ranks would, then ends as it is told."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import pyarrow as pa

from kprof.capture.claims import leave_message
from kprof.capture.directory import (
    event_schema,
    write_rank_events,
    write_rank_info,
)
from kprof.capture.journal import Aligned, say
from kprof.capture.manifest import (
    Alignment,
    ArenaUse,
    ClockSegment,
    EventCounts,
    Launch,
    RankAlignment,
    RankInfo,
    RankStarted,
)
from kprof.regions import parse_regions

REGIONS = """
REGION(R_SEND, "dispatch/send", send, peer:8, slot:24)
REGION(R_WAIT, "dispatch/wait-token", wait, peer:8, slot:24)
FLOW(R_SEND, R_WAIT)
"""


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--started", type=numbers, default=[])
    parser.add_argument("--finished", type=numbers, default=[])
    parser.add_argument("--world-size", type=int, default=0)
    parser.add_argument("--aligned", type=numbers, default=[])
    parser.add_argument("--dropped", type=int, default=0)
    parser.add_argument("--open", type=int, default=0)
    parser.add_argument("--needed-bytes", type=int, default=0)
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--die", default="", help="name of a signal")
    parser.add_argument("--wait", action="store_true", help="until a signal comes")
    parser.add_argument("--say", default="")
    parser.add_argument("--message", action="append", default=[], help="a loss to leave behind")
    parser.add_argument("--launches", type=numbers, default=[], help="how many each rank makes")
    parser.add_argument("--regions", type=int, default=0, help="so many more for each rank")
    return parser.parse_args()


def rank_events(rank: int) -> pa.Table:
    """A send to the next rank and a wait for the one before, block 0."""
    row = {"rank": rank, "launch": 0, "block": 0, "warp": 0, "flags": 0, "hw_id": 0}
    send = row | {"region": 1, "start_ns": 1000, "duration_ns": 100, "payload": (rank + 1) % 2}
    wait = row | {"region": 2, "start_ns": 1100, "duration_ns": 500, "payload": (rank + 1) % 2}
    return pa.Table.from_pylist([send, wait], schema=event_schema())


def finish(directory: Path, rank: int, arguments: argparse.Namespace) -> None:
    write_rank_events(directory, rank, rank_events(rank))
    num_launches = arguments.launches[rank] if arguments.launches else 1
    more = (f'REGION(R_{i}, "rank{rank}/{i}", compute)' for i in range(arguments.regions))
    info = RankInfo(
        rank=rank,
        host="host0",
        target="cpu",
        arena=ArenaUse(1 << 20, 1 << 20, arguments.needed_bytes),
        counts=EventCounts(recorded=2, dropped=arguments.dropped, open=arguments.open),
        regions=parse_regions(REGIONS + "\n".join(more)),
        launches=tuple(Launch(i, "all_to_all", i, 1, 64) for i in range(num_launches)),
    )
    write_rank_info(directory, info)


def main() -> int:
    arguments = parse_arguments()
    directory = Path(os.environ["KPROF_RECORD_DIR"])
    for rank in arguments.started:
        world_size = arguments.world_size or len(arguments.started)
        say(directory, rank, RankStarted(rank, world_size, "host0", os.getpid()))
    for message in arguments.message:
        leave_message(directory, message)
    if arguments.aligned:
        ranks = tuple(RankAlignment(r, (ClockSegment(0, 0.0),), 5.0) for r in arguments.aligned)
        say(directory, 0, Aligned(Alignment("test", 0, ranks)))
    try:
        if arguments.say:
            print(arguments.say, flush=True)
            print(arguments.say, file=sys.stderr, flush=True)
        while arguments.wait:
            time.sleep(0.01)
    finally:
        for rank in arguments.finished:
            finish(directory, rank, arguments)
    if arguments.die:
        os.kill(os.getpid(), getattr(signal, arguments.die))
    return arguments.exit


sys.exit(main())
