"""Is a call as long as predicted once the delay is really taken out?

Two ranks (threads, CPU target) exchange flags; in one recording rank 1 prepares longer than rank 0
by a planted delay, in the other it does not. The first recording's what-if "rank 1 at the median"
predicts the length of a call; the second one is what happens. Several pairs of recordings, medians
over calls and pairs.

    python -m benchmarks.what_if [--pairs 5] [--calls 9] [--json benchmarks/results/what_if.json]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from kprof import analysis
from kprof.analysis import Summary
from kprof.analysis.calls import Call
from kprof.devices.build import BuildOptions, load_library
from kprof.recording.record import session
from kprof.recording.recorder import Recorder
from kprof.trace import Trace

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "kernels"))

from thread_ranks import ThreadGroup, run_threads

FOLDER = Path(__file__).parent
NUM_RANKS, NUM_BLOCKS = 2, 2
PREPARE_NS, FINISH_NS, DELAY_NS = 80_000_000, 120_000_000, 150_000_000
SLOW_RANK = 1


def run(library: ctypes.CDLL, output: Path, num_calls: int, delay_ns: int) -> Trace:
    """Record some calls; rank 1 prepares `delay_ns` longer."""
    flags = np.zeros(NUM_RANKS * NUM_BLOCKS, dtype=np.uint32)

    def rank_of(group: ThreadGroup) -> None:
        recorder = Recorder(
            directory,
            rank=group.rank,
            world_size=NUM_RANKS,
            regions=FOLDER / "regions.h",
            arena_bytes=1 << 20,
        )
        recorder.align(group)
        late = delay_ns if group.rank == SLOW_RANK else 0
        for epoch in range(1, num_calls + 1):
            buffer = recorder.launch("exchange", num_blocks=NUM_BLOCKS, threads_per_block=1)
            group.barrier()
            library.what_if_exchange(
                ctypes.c_void_p(flags.ctypes.data),
                ctypes.c_uint32(group.rank),
                ctypes.c_uint32(NUM_RANKS),
                ctypes.c_uint32(epoch),
                ctypes.c_uint64(PREPARE_NS + late),
                ctypes.c_uint64(FINISH_NS),
                NUM_BLOCKS,
                buffer.packed(),
            )
            group.barrier()
        recorder.align(group)
        recorder.close()

    with session(output) as directory:
        run_threads(NUM_RANKS, rank_of)
    return Trace.open(output)


def lengths_ns(trace: Trace) -> list[float]:
    return [float(length) for length in analysis.calls(Summary.of(trace))["length_ns"].tolist()]


def predictions_ns(trace: Trace) -> list[float]:
    """What-if of every call: its length with the slow rank at the median."""
    predicted = []
    for row in analysis.calls(Summary.of(trace)).to_dict("records"):
        ordinal = int(row["ordinal"])
        call = Call(ordinal, int(row["first_ns"]), int(row["last_ns"]), (ordinal,), "")
        table = analysis.what_if(Summary.of(trace), call)
        of_rank = table[(table["scenario"] == "rank at the median") & (table["rank"] == SLOW_RANK)]
        predicted.append(float(of_rank["predicted_ns"].iloc[0]))
    return predicted


def measure_pair(library: ctypes.CDLL, num_calls: int, number: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        delayed = run(library, Path(folder) / f"delayed-{number}.kprof", num_calls, DELAY_NS)
        without = run(library, Path(folder) / f"without-{number}.kprof", num_calls, 0)
        before, predicted = lengths_ns(delayed), predictions_ns(delayed)
        measured = lengths_ns(without)
    return {
        "with_delay_ms": round(statistics.median(before) / 1e6, 3),
        "predicted_ms": round(statistics.median(predicted) / 1e6, 3),
        "measured_ms": round(statistics.median(measured) / 1e6, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--calls", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    library = load_library(FOLDER / "kernel.hip", BuildOptions())
    pairs = []
    for number in range(options.pairs):
        pairs.append(measure_pair(library, options.calls, number))
        print(pairs[-1], flush=True)
    medians = {name: statistics.median(pair[name] for pair in pairs) for name in pairs[0]}
    error = medians["predicted_ms"] / medians["measured_ms"] - 1
    print(f"predicted against measured: {error:+.1%}")
    if options.json:
        document = {
            "command": f"python -m benchmarks.what_if --pairs {options.pairs} --calls "
            f"{options.calls}",
            "machine": f"{platform.machine()}, CPU target, {NUM_RANKS} ranks as threads",
            "date": time.strftime("%Y-%m-%d"),
            "planted_delay_ms": DELAY_NS / 1e6,
            "pairs": pairs,
            "medians": medians,
            "relative_error": round(error, 4),
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
