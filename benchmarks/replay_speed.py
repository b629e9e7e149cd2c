"""How long do replays of one call with many edits take?

    python -m benchmarks.replay_speed [--replays 2000] [--items 110] [--json FILE]

The call is simulated: a halo exchange of 8 ranks with 16 blocks, a deep graph (hundreds of levels),
and a ring of 64 ranks, a wide one; with the default items about 100,000 events each. Every edit
shortens the work of one block of one rank. One thread, processor time.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks import harness
from kprof.analysis.replay.graph import build_graph
from kprof.analysis.replay.replay import Change, Edit, Replay
from kprof.analysis.replay.spans import load_spans
from simulation import Scenario, Sizes, simulate


def edits_of(replay: Replay, count: int) -> list[Edit]:
    spans = replay.graph.spans
    edits = []
    for number in range(count):
        is_there = (spans.rank == number % 8) & (spans.block == number // 8 % 16)
        at = np.flatnonzero(is_there & ~replay.graph.is_wait)
        edits.append(Edit(own=Change(at, 0.1 * replay.graph.own_ns[at])))
    return edits


def measure(topology: str, sizes: Sizes, replays: int) -> dict[str, object]:
    trace = simulate(Scenario(topology=topology, sizes=sizes, num_calls=1)).trace()
    spans = load_spans(trace, [0])
    began = time.process_time()
    replay = Replay(build_graph(spans))
    built = time.process_time()
    replay.call_ends(edits_of(replay, replays))
    return {
        "topology": topology,
        "events": len(spans),
        "levels": len(replay.levels),
        "replays": replays,
        "build_cpu_s": round(built - began, 2),
        "replay_cpu_s": round(time.process_time() - built, 2),
    }


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--replays", type=int, default=2000)
    parser.add_argument("--items", type=int, default=110)
    options = parser.parse_args()
    shapes = {
        "halo": Sizes(8, 16, options.items),
        "ring": Sizes(64, 16, max(1, options.items // 7)),
    }
    rows = [measure(topology, sizes, options.replays) for topology, sizes in shapes.items()]
    document = harness.context("python -m benchmarks.replay_speed") | {"results": rows}
    harness.show_and_write(document, options.output)


if __name__ == "__main__":
    main()
