"""Clocks from a workload's own messages, where the truth is known: is it within the bound, and how
far is the estimate from it?

    python -m benchmarks.message_clocks [--pairs 10000] [--seed 33] [--jobs 2] [--output FILE]

Clocks of pairs differ by up to 2 s, drift apart by up to 100 ppm, and bend by what was measured
between GPUs. A class says how messages travel:

    even        3 us and up, 5 to 200 us of queueing on average, the same both ways
    asymmetric  one way takes 1 to 20 us longer, always
    bursts      twenty bursts of 20 ms in 10 s, and delays without a mean
    part        a direction says nothing for half of the time
    ring        three ranks that send one way round only
    collective  eight ranks and nothing but collectives; every pair counts
    shared_counter  two ranks on one GPU, whose offset is 0
    jitter      a network's 100 us and up to 50 us on top, any of it as likely

Truth and estimate are compared at 25 moments of 1 or 10 s. Then pairs of which two messages were
joined with each other's ends, at least 1 ms apart, beside the same pairs as they were. About five
minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from benchmarks import harness
from kprof.clocks.causality import align_by_limits
from kprof.clocks.limits import ContradictionError
from message_world import Clock, World, both_ways


def _world(draw: np.random.Generator, num_ranks: int = 2) -> World:
    length_ns, step_ns = draw.choice([1e9, 1e10]), int(draw.choice([1, 32]))
    return World(draw, num_ranks, length_ns, step_ns)


def even(draw: np.random.Generator) -> World:
    """Queueing is the same both ways."""
    mean_ns = draw.choice([5e3, 5e4, 2e5])
    return both_ways(
        _world(draw), lambda _, moments: 3e3 + draw.exponential(mean_ns, len(moments)), 1000
    )


def asymmetric(draw: np.random.Generator) -> World:
    """One way is longer."""
    least_ns = (3e3, 3e3 + draw.uniform(1e3, 2e4))
    return both_ways(
        _world(draw),
        lambda side, moments: least_ns[side] + draw.exponential(2e4, len(moments)),
        1000,
    )


def bursts(draw: np.random.Generator) -> World:
    """Everything is late at once."""
    return both_ways(
        _world(draw),
        lambda _, moments: 3e3 * (1 + draw.pareto(0.8, len(moments)).clip(max=1e3)),
        1000,
        bursts=20,
    )


def part(draw: np.random.Generator) -> World:
    """One direction falls silent."""
    world = _world(draw)
    for pair, share in (((0, 1), 1.0), ((1, 0), 0.5)):
        moments = world.moments(1000) * share
        world.send(*pair, moments, 3e3 + draw.exponential(2e4, len(moments)))
    return world


def ring(draw: np.random.Generator) -> World:
    """No pair has messages both ways."""
    world = _world(draw, 3)
    for rank in range(3):
        moments = world.moments(1000)
        world.send(rank, (rank + 1) % 3, moments, 3e3 + draw.exponential(2e4, len(moments)))
    return world


def collective(draw: np.random.Generator) -> World:
    """No messages at all."""
    world = _world(draw, 8)
    world.meet(500, 4e3)
    return world


def shared_counter(draw: np.random.Generator) -> World:
    """Two ranks on one GPU: the offset is 0."""
    world = World(draw, length_ns=1e9, clocks=[Clock(7e12, step_ns=32)] * 2)
    mean_ns = draw.choice([5e2, 5e3, 5e4])
    return both_ways(world, lambda _, at: 8e2 + draw.exponential(mean_ns, len(at)), 500)


def jitter(draw: np.random.Generator) -> World:
    """No message is typical: what netem does with a delay and a jitter."""
    return both_ways(_world(draw), lambda _, at: 1e5 + draw.uniform(0, 5e4, len(at)), 1000)


CLASSES: dict[str, Callable[[np.random.Generator], World]] = {
    each.__name__: each
    for each in (even, asymmetric, bursts, part, ring, collective, shared_counter, jitter)
}


def run_class(name: str, num_pairs: int, seed: int) -> dict[str, Any]:
    """Pairs of a class; times in ns."""
    errors: list[float] = []
    bounds: list[float] = []
    for number in range(num_pairs):
        if len(errors) >= num_pairs:
            break
        world = CLASSES[name](np.random.default_rng([seed, list(CLASSES).index(name), number]))
        alignment = align_by_limits(world.limits, world.rank_clocks(), name)
        found = world.errors_ns(alignment)
        errors += found.values()
        bounds += [alignment.bound_between_ns(*pair) for pair in found]
    return harness.within_bounds(errors, bounds)


def run_wrong(num_pairs: int, seed: int) -> dict[str, int]:
    """Pairs with two messages joined wrongly, and the same without."""
    counts = {"planted": num_pairs, "refused": 0, "named": 0, "sound_refused": 0}
    for number in range(num_pairs):
        draw = np.random.default_rng([seed, 99, number])
        world = (even, bursts, collective)[number % 3](draw)
        counts["sound_refused"] += _refused(world) is not None
        planted = world.exchange(int(draw.integers(len(world.limits))), 1e6)
        error = _refused(world)
        counts["refused"] += error is not None
        counts["named"] += error is not None and planted in error.numbers
    return counts


def _refused(world: World) -> ContradictionError | None:
    try:
        align_by_limits(world.limits, world.rank_clocks(), "")
    except ContradictionError as error:
        return error
    return None


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=33)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    command = f"python -m benchmarks.message_clocks --pairs {given.pairs} --seed {given.seed}"
    result = harness.context(command)
    each = -(-given.pairs // len(CLASSES))
    with ProcessPoolExecutor(given.jobs) as pool:
        wrong = pool.submit(run_wrong, max(1, given.pairs // 20), given.seed)
        found = {name: pool.submit(run_class, name, each, given.seed) for name in CLASSES}
        result["classes"] = {name: future.result() for name, future in found.items()}
        result["wrong_pairings"] = wrong.result()
    harness.show_and_write(result, given.output)


if __name__ == "__main__":
    main()
