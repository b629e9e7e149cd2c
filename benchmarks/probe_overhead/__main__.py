"""What an event costs on a GPU: no profiling, null buffer, kprof per block and per warp, and the
classic scheme.

    python -m benchmarks.probe_overhead [--repeats 100] [--output FILE]

All schemes are interleaved within every repeat, timed by events on the GPU; medians and spreads
over the repeats. An event is a profile_start and a profile_stop: two readings of the clock and one
record. Also compared, because a cost is only worth its truth: the two clocks on the same spans, and
the trace with GPU events around the same launch.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from functools import partial

import torch

from benchmarks import harness
from benchmarks.harness import interleaved, show_and_write, slowdowns, spread
from benchmarks.probe_overhead.agreement import clock_agreement, clock_steps, phase_agreement
from benchmarks.probe_overhead.bench import FILTER_SCHEMES, SCHEMES, TIGHT_EVENTS, Bench

BLOCKS_PER_SM = (2, 4)


def copy_table(
    bench: Bench, blocks_per_sm: int, repeats: int, names: Iterable[str] = SCHEMES
) -> dict[str, object]:
    works = {name: partial(bench.copy, SCHEMES[name], blocks_per_sm) for name in names}
    times = interleaved(works, repeats, bench.reset)
    assert torch.equal(bench.source, bench.target)
    return slowdowns(times)


def tight_table(bench: Bench, repeats: int, is_unrolled: bool) -> dict[str, object]:
    works = {name: partial(bench.tight, scheme, is_unrolled) for name, scheme in SCHEMES.items()}
    times = interleaved(works, repeats, bench.reset)
    table: dict[str, object] = {
        name: {"ns_per_event": spread([1e3 * us / TIGHT_EVENTS for us in values])}
        for name, values in times.items()
    }
    classic = statistics.median(times["classic"])
    table["classic / kprof per warp"] = round(
        classic / statistics.median(times["kprof per warp"]), 2
    )
    return table


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--repeats", type=int, default=100)
    arguments = parser.parse_args()
    bench = Bench("cuda:0")
    result: dict[str, object] = {
        **harness.context(
            f"python -m benchmarks.probe_overhead --repeats {arguments.repeats}", bench.device
        ),
        "tight loop, 8 warps per SM": tight_table(bench, arguments.repeats, True),
        "tight loop of one event, 8 warps per SM": tight_table(bench, arguments.repeats, False),
    }
    for blocks_per_sm in BLOCKS_PER_SM:
        result[f"token copy, {blocks_per_sm} blocks per SM"] = copy_table(
            bench, blocks_per_sm, arguments.repeats
        )
        result[f"token copy, filters by themselves, {blocks_per_sm} blocks per SM"] = copy_table(
            bench, blocks_per_sm, arguments.repeats, FILTER_SCHEMES
        )
    result["steps of the real-time clock"] = clock_steps(bench)
    result["durations in cycles against real time"] = clock_agreement(bench)
    result["trace against GPU events"] = phase_agreement(bench, max(10, arguments.repeats // 5))
    show_and_write(result, arguments.output)


if __name__ == "__main__":
    main()
