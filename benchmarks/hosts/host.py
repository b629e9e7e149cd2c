"""The ranks of one host: the command that `kprof record` runs there. Started by `python -m
benchmarks.hosts`."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import kprof

HERE = Path(__file__).parent
_MAX_RANKS = 64
_SILENCE_S = 5
_PORT = 21_000


class Call(ctypes.Structure):
    """`Call` of kernel.hip."""

    _fields_ = [
        ("sockets", ctypes.c_int32 * _MAX_RANKS),
        ("rank", ctypes.c_uint32),
        ("world_size", ctypes.c_uint32),
        ("first_round", ctypes.c_uint32),
        ("num_rounds", ctypes.c_uint32),
        ("failed", ctypes.c_void_p),
    ]


def connected(rank: int, addresses: list[str]) -> list[socket.socket]:
    """A socket to every rank, its own included, that has nothing of others."""
    found = []
    for peer, address in enumerate(addresses):
        each = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        each.bind((addresses[rank], _PORT + _MAX_RANKS * rank + peer))
        each.connect((address, _PORT + _MAX_RANKS * peer + rank))
        each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _SILENCE_S, 0))
        found.append(each)
    return found


def meet(folder: Path, rank: int, world_size: int) -> None:
    """Wait until all ranks have their sockets."""
    (folder / f"ready-{rank}").touch()
    until_s = time.monotonic() + 120
    while len(list(folder.glob("ready-*"))) < world_size:
        if time.monotonic() > until_s:
            raise SystemExit("a rank has not come")
        time.sleep(0.01)


def plant(library: ctypes.CDLL, rank: int, seed: int) -> dict[str, float]:
    """Give this rank a clock of its own: up to 1 s and 50 ppm off."""
    draw = random.Random(f"{seed} {rank}")
    clock = {
        "offset_ns": round(draw.uniform(-1e9, 1e9)),
        "rate": draw.uniform(-50e-6, 50e-6),
        "origin_ns": time.monotonic_ns(),
    }
    types = [ctypes.c_int64, ctypes.c_double, ctypes.c_uint64]
    library.kprof_cpu_plant_clock.argtypes = types
    library.kprof_cpu_plant_clock(*clock.values())
    return clock


def run_rank(rank: int, given: argparse.Namespace) -> None:
    """Exchange datagrams for so long; leaves the truth about the clock in the folder."""
    library = kprof.load_library(HERE / "kernel.hip", kprof.BuildOptions.for_device("cpu"))
    sockets = connected(rank, given.addresses)
    recorder = kprof.recorder(HERE / "regions.h", device="cpu")
    clock = plant(library, rank, given.seed)
    meet(given.folder, rank, len(sockets))
    first_ns, failed = time.monotonic_ns(), ctypes.c_int32(0)
    for number in range(given.calls):
        handles = (ctypes.c_int32 * _MAX_RANKS)(*(each.fileno() for each in sockets))
        rounds = number * given.rounds, given.rounds
        call = Call(handles, rank, len(sockets), *rounds, ctypes.addressof(failed))
        buffer = recorder.launch("exchange", num_blocks=1, threads_per_block=1, tracks_per_block=1)
        if library.launch(buffer.packed(), ctypes.byref(call)) or failed.value:
            break
        time.sleep(given.pause_s)
    truth = clock | {"first_ns": first_ns, "last_ns": time.monotonic_ns()}
    (given.folder / f"truth-{rank}.json").write_text(json.dumps(truth))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int, default=2)
    parser.add_argument("--addresses", type=lambda text: text.split(","), required=True)
    parser.add_argument("--seed", type=int, default=33)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--pause-s", type=float, default=0.03)
    given = parser.parse_args()
    if "RANK" in os.environ:
        run_rank(int(os.environ["RANK"]), given)
        return
    size = str(len(given.addresses))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.hosts.host", *sys.argv[1:]],
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": size},
        )
        for rank in range(given.first, given.first + given.count)
    ]
    sys.exit(max(each.wait() for each in ranks))


if __name__ == "__main__":
    main()
