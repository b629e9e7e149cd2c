"""How often does the top finding name the planted cause, and how often is there a finding when nothing is wrong?

For every kind of finding, random runs (2 to 64 ranks, with noise and clock error) get one cause planted, at random
strength and place. A case counts when the first finding has the planted kind, names the planted rank (or ranks) and,
where the cause has one, the region. "Mixed" runs get two causes; both must be among the first three root causes.
Balanced runs must have no finding at all.

The thresholds of the rules were tuned on the sizes and seeds of the default set. `--held-out` draws from others, which
no threshold has seen: numbers of ranks, blocks, launches and tokens that are not in the default set (HELD_OUT below),
more noise, twice the clock error, other transfer times, and seeds from 1 000 000 on.

    python -m benchmarks.findings_accuracy [--cases 100] [--held-out] [--only KIND ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from kprof import analysis
from kprof.analysis import Finding, Summary
from planted import Plant, simulate

Random = np.random.Generator


@dataclass(frozen=True)
class Case:
    """A planted run and what its first finding should say."""

    plant: Plant
    kind: str
    ranks: tuple[int, ...] | None = None
    blocks: tuple[int, ...] | None = None
    region: str | None = None


@dataclass(frozen=True)
class Sizes:
    """What balanced runs are drawn from; the last number of ranks is the rarest, because it takes longest."""

    ranks: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    likely: tuple[float, ...] = (4, 5, 5, 3, 2, 1)
    blocks: tuple[int, ...] = (16, 32)
    tokens: tuple[int, ...] = (6, 12, 24)
    most_launches: int = 3
    noise: tuple[float, float] = (0.02, 0.15)
    clock_error_ns: float = 200.0
    transfer_ns: tuple[int, int] = (500, 500)
    first_seed: int = 0


TUNED_ON = Sizes()
HELD_OUT = Sizes(
    ranks=(3, 5, 6, 12, 24, 48, 64),
    likely=(4, 4, 5, 4, 2, 1, 0.5),
    blocks=(20, 24, 40),
    tokens=(8, 15, 20),
    most_launches=5,
    noise=(0.02, 0.2),
    clock_error_ns=400.0,
    transfer_ns=(300, 900),
    first_seed=1_000_000,
)
sizes = TUNED_ON


def base(random: Random, max_ranks: int = 64) -> Plant:
    """A balanced run of random size; more ranks get fewer tokens per pair, so that all runs take about as long."""
    possible = [size for size in sizes.ranks if size <= max_ranks]
    likely = np.array(sizes.likely[: len(possible)], dtype=float)
    num_ranks = int(random.choice(possible, p=likely / likely.sum()))
    # Otherwise some sources have one block more than others: uneven work, and found to be.
    num_blocks = num_ranks * max(1, round(int(random.choice(sizes.blocks)) / num_ranks))
    return Plant(
        num_ranks=num_ranks,
        num_blocks=max(8, num_ranks) if num_ranks > 16 else num_blocks,
        num_launches=int(random.integers(1, sizes.most_launches + 1)) if num_ranks < 24 else 1,
        tokens_per_pair=int(random.choice(sizes.tokens)) if num_ranks < 16 else 4,
        seed=int(random.integers(1 << 30)),
        noise=float(random.uniform(*sizes.noise)),
        clock_error_ns=float(random.uniform(0, sizes.clock_error_ns)),
        transfer_ns=int(random.integers(sizes.transfer_ns[0], sizes.transfer_ns[1] + 1)),
    )


def length_ns(plant: Plant) -> int:
    """How long one call of the balanced run takes: strengths of causes are relative to it."""
    call = analysis.typical_call(Summary.of(simulate(replace(plant, num_launches=1))))
    assert call is not None
    return call.end_ns - call.start_ns


def a_rank(random: Random, plant: Plant) -> int:
    return int(random.integers(plant.num_ranks))


def late_sender(random: Random) -> Case:
    plant = base(random)
    rank = a_rank(random, plant)
    late = int(length_ns(plant) * random.uniform(0.3, 1.5))
    return Case(
        replace(plant, send_late_ns={rank: late}),
        "late_sender",
        (rank,),
        None,
        "dispatch/wait-token",
    )


def exposed_transfer(random: Random) -> Case:
    plant = base(random)
    slow = int(length_ns(plant) * random.uniform(0.5, 1.5))
    return Case(
        replace(plant, transfer_ns=slow), "exposed_transfer", None, None, "dispatch/wait-token"
    )


def slow_link(random: Random) -> Case:
    plant = base(random, 32)
    plant = replace(plant, num_ranks=max(4, plant.num_ranks))
    src = a_rank(random, plant)
    dst = (src + int(random.integers(1, plant.num_ranks))) % plant.num_ranks
    slow = int(length_ns(plant) * random.uniform(0.5, 1.5))
    return Case(
        replace(plant, slow_link=(src, dst, slow)),
        "exposed_transfer",
        (src, dst),
        None,
        "dispatch/wait-token",
    )


def back_pressure(random: Random) -> Case:
    plant = base(random)
    rank = a_rank(random, plant)
    tokens = (
        plant.tokens_per_pair
        * plant.num_ranks
        * plant.num_ranks
        / plant.num_blocks
        / plant.num_ranks
    )
    wait = int(length_ns(plant) * random.uniform(0.5, 1.5) / max(1.0, tokens / plant.num_ranks))
    return Case(
        replace(plant, credit_wait_ns={rank: wait}),
        "back_pressure",
        (rank,),
        None,
        "dispatch/wait-credit",
    )


def barrier_wait(random: Random) -> Case:
    plant = base(random)
    rank = a_rank(random, plant)
    late = int(length_ns(plant) * random.uniform(0.3, 1.5))
    return Case(
        replace(plant, has_barrier=True, barrier_late_ns={rank: late}),
        "barrier_wait",
        (rank,),
        None,
        "barrier",
    )


def launch_skew(random: Random) -> Case:
    plant = base(random)
    rank = a_rank(random, plant)
    late = int(length_ns(plant) * random.uniform(0.3, 1.5))
    return Case(replace(plant, start_late_ns={rank: late}), "launch_skew", (rank,))


def uneven_ranks(random: Random) -> Case:
    plant = replace(base(random, 16), tokens_per_pair=int(random.choice([12, 24])))
    rank = a_rank(random, plant)
    return Case(
        replace(plant, tokens_of={rank: float(random.uniform(2.0, 5.0))}),
        "uneven_work",
        (rank,),
        None,
        "dispatch/send",
    )


def uneven_blocks(random: Random) -> Case:
    # Below ten events a block, twice as many is not more than chance does to random routing.
    plant = base(random, 16)
    plant = replace(plant, tokens_per_pair=12 * max(1, plant.num_blocks // plant.num_ranks))
    place = (a_rank(random, plant), int(random.integers(plant.num_blocks)))
    heavy = float(random.uniform(2.5, 5.0))
    return Case(
        replace(plant, heavy_blocks={place: heavy}),
        "uneven_work",
        (place[0],),
        (place[1],),
        "dispatch/copy",
    )


def uneven_speed(random: Random) -> Case:
    plant = base(random)
    rank = a_rank(random, plant)
    return Case(
        replace(plant, speed_of={rank: float(random.uniform(1.8, 4.0))}), "uneven_speed", (rank,)
    )


def slow_block(random: Random) -> Case:
    plant = base(random)
    place = (a_rank(random, plant), int(random.integers(plant.num_blocks)))
    slowness = float(random.uniform(2.0, 4.0))
    return Case(
        replace(plant, slow_blocks={place: slowness}), "uneven_speed", (place[0],), (place[1],)
    )


def tail(random: Random) -> Case:
    plant = base(random)
    place = (a_rank(random, plant), int(random.integers(plant.num_blocks)))
    extra = int(length_ns(plant) * random.uniform(0.4, 1.5))
    return Case(replace(plant, tail_ns={place: extra}), "tail", (place[0],), (place[1],))


def idle_blocks(random: Random) -> Case:
    plant = base(random)
    idle = int(plant.num_blocks * random.uniform(0.4, 0.8))
    return Case(replace(plant, idle_blocks=idle), "idle_blocks", tuple(range(plant.num_ranks)))


def lock_contention(random: Random) -> Case:
    plant = base(random)
    hold = int(length_ns(plant) * random.uniform(0.3, 1.0) / plant.num_blocks * 2)
    return Case(replace(plant, lock_hold_ns=hold), "lock_contention", None, None, "dispatch/lock")


def serialised_waits(random: Random) -> Case:
    """The data of rank 0, which is waited for first, comes last; the copies could fill the time."""
    num_ranks = int(random.choice([4, 8, 16]))
    plant = replace(base(random), num_ranks=num_ranks, num_blocks=16, tokens_per_pair=48)
    # As long as the copies: what overlaps is then worth a third of the call and more.
    stagger = int(700 * 48 / 16 * random.uniform(0.8, 1.6))
    planted = replace(plant, is_waiting_in_rank_order=True, stagger_ns=stagger)
    return Case(planted, "serialised_waits", None, None, "dispatch/wait-token")


def lossy_capture(random: Random) -> Case:
    plant = base(random)
    rank = a_rank(random, plant)
    return Case(
        replace(plant, dropped={rank: int(random.integers(50, 5000))}), "lossy_capture", (rank,)
    )


def uncalibrated_clocks(random: Random) -> Case:
    return Case(replace(base(random), is_aligned=False), "uncalibrated_clocks")


KINDS: dict[str, Callable[[Random], Case]] = {
    function.__name__: function
    for function in (
        late_sender,
        exposed_transfer,
        slow_link,
        back_pressure,
        barrier_wait,
        launch_skew,
        uneven_ranks,
        uneven_blocks,
        uneven_speed,
        slow_block,
        tail,
        idle_blocks,
        lock_contention,
        serialised_waits,
        lossy_capture,
        uncalibrated_clocks,
    )
}


def names_it(case: Case, finding: Finding) -> bool:
    return (
        finding.kind == case.kind
        and (case.ranks is None or finding.ranks == case.ranks)
        and (case.blocks is None or finding.blocks == case.blocks)
        and (case.region is None or finding.region == case.region)
    )


def mixed(random: Random) -> tuple[Plant, list[Case]]:
    """Two causes in one run, on different ranks."""
    plant = replace(base(random, 16), tokens_per_pair=12)
    plant = replace(plant, num_ranks=max(4, plant.num_ranks))
    first, second = (int(rank) for rank in random.choice(plant.num_ranks, 2, replace=False))
    length = length_ns(plant)
    block = int(random.integers(plant.num_blocks))
    causes = [
        Case(
            replace(plant, start_late_ns={first: int(length * random.uniform(0.5, 1.5))}),
            "launch_skew",
            (first,),
        ),
        Case(
            replace(plant, tokens_of={second: float(random.uniform(2.5, 4))}),
            "uneven_work",
            (second,),
        ),
        Case(
            replace(plant, slow_blocks={(second, block): float(random.uniform(2.5, 4))}),
            "uneven_speed",
            (second,),
        ),
    ]
    chosen = [causes[0], causes[1 + int(random.integers(2))]]
    both = replace(
        plant,
        start_late_ns=chosen[0].plant.start_late_ns,
        tokens_of=chosen[1].plant.tokens_of,
        slow_blocks=chosen[1].plant.slow_blocks,
    )
    return both, chosen


def measure(kind: str, cases: int) -> dict[str, object]:
    hits, misses = 0, []
    for number in range(cases):
        random = np.random.default_rng([sizes.first_seed + number, *map(ord, kind)])
        case = KINDS[kind](random)
        found = analysis.findings(Summary.of(simulate(case.plant)))
        if found and names_it(case, found[0]):
            hits += 1
        else:
            misses.append({"case": number, "said": found[0].sentence if found else "nothing"})
    return {"kind": kind, "cases": cases, "named": hits, "misses": misses[:5]}


def measure_mixed(cases: int) -> dict[str, object]:
    hits, misses = 0, []
    for number in range(cases):
        plant, causes = mixed(np.random.default_rng([sizes.first_seed + number, 77]))
        found = analysis.findings(Summary.of(simulate(plant)))
        roots = [finding for finding in found if finding.explained_by is None][:3]
        is_hit = all(any(names_it(cause, finding) for finding in roots) for cause in causes)
        hits += is_hit
        if not is_hit:
            misses.append({"case": number, "said": [finding.sentence for finding in roots]})
    return {"kind": "mixed", "cases": cases, "named": hits, "misses": misses[:5]}


def measure_balanced(cases: int) -> dict[str, object]:
    said: list[str] = []
    for number in range(cases):
        random = np.random.default_rng([sizes.first_seed + number, 99])
        plant = base(random)
        if number % 2:
            plant = replace(plant, has_barrier=True)
        said += [finding.sentence for finding in analysis.findings(Summary.of(simulate(plant)))]
    return {"kind": "balanced", "cases": cases, "findings": len(said), "said": said[:5]}


def measure_kind(kind: str, cases: int) -> dict[str, object]:
    if kind == "balanced":
        return measure_balanced(cases)
    return measure_mixed(cases) if kind == "mixed" else measure(kind, cases)


def main() -> None:
    global sizes
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--only", nargs="+", choices=[*KINDS, "mixed", "balanced"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sizes = HELD_OUT if options.held_out else TUNED_ON
    rows: list[dict[str, object]] = []
    for kind in options.only or ["balanced", *KINDS, "mixed"]:
        began = time.process_time()
        row = measure_kind(kind, options.cases)
        row["cpu_seconds"] = round(time.process_time() - began)
        verdict = f"{row['named']} named" if "named" in row else f"{row['findings']} findings"
        print(f"{kind:22} {options.cases} cases: {verdict}   ({row['cpu_seconds']} s)", flush=True)
        for miss in [*row.get("misses", []), *row.get("said", [])]:  # type: ignore[misc]
            print("      ", miss, flush=True)
        rows.append(row)
        if options.json:
            write_results(options.json, options, rows)


def write_results(path: Path, options: argparse.Namespace, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    held_out = " --held-out" if options.held_out else ""
    document = {
        "command": f"python -m benchmarks.findings_accuracy --cases {options.cases}{held_out}",
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "sizes": asdict(sizes),
        "results": rows,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
