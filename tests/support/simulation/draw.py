"""Random scenarios with known causes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from simulation import noise
from simulation.causes import Cause, Kind, When
from simulation.program import Op
from simulation.scenario import Scenario, program_of, simulate, true_gains
from simulation.topologies import TOPOLOGIES, Sizes

Random = np.random.Generator

# If the causes cost less than this, there is nothing to find.
LEAST_GAIN: Final = 0.05
_MOST_OPS: Final = 10_000
_RANKS: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
_HAS_ITEMS: Final = ("all_to_all", "staged")
# A block that waits for a block that cannot start would wait forever. Here a block waits for its
# own number only.
_HAS_WAVES: Final = ("ring", "tree", "pipeline", "halo", "butterfly")


def draw_balanced(random: Random, topologies: Sequence[str] = tuple(TOPOLOGIES)) -> Scenario:
    """A run with 3 to 30 % noise and no cause."""
    topology = str(random.choice(list(topologies)))
    num_ranks = int(random.choice(_RANKS, p=_likely(len(_RANKS))))
    num_blocks = int(random.choice([4, 8, 12, 16])) if num_ranks < 24 else 2
    items = int(random.integers(2, 6)) if num_ranks < 12 else 2
    if topology in _HAS_ITEMS and num_ranks * num_blocks * items >= 64:
        # Items are even if every block gets the same number.
        num_blocks = min(num_blocks, num_ranks)
        while num_ranks * items % num_blocks:
            num_blocks -= 1
    sizes = Sizes(num_ranks, num_blocks, items)
    most_calls = max(1, _MOST_OPS // _ops_per_call(topology, sizes))
    wanted = random.choice([1, 3, 5, 12, 20, 40], p=[0.1, 0.15, 0.2, 0.25, 0.2, 0.1])
    num_calls = int(min(most_calls, wanted))
    room = max(1, num_blocks // 2) if random.random() < 0.15 and topology in _HAS_WAVES else 0
    return Scenario(
        topology=topology,
        sizes=sizes,
        num_calls=num_calls,
        noise_shape=noise.SHAPES[int(random.integers(len(noise.SHAPES)))],
        noise=float(random.uniform(0.03, 0.30)),
        travel_ns=int(random.integers(300, 900)),
        room=room,
        clock_error_ns=float(random.uniform(0, 100)),
        seed=int(random.integers(1 << 30)),
    )


def draw_scenario(
    random: Random, topologies: Sequence[str] = tuple(TOPOLOGIES), num_causes: int | None = None
) -> Scenario:
    """A run with one to four causes; the costliest takes at least 5 % of the run."""
    while True:
        balanced = replace(
            draw_balanced(random, topologies), noise=float(random.uniform(0.03, 0.15))
        )
        count = num_causes or int(random.choice([1, 2, 3, 4], p=[0.5, 0.25, 0.15, 0.1]))
        length = float(np.mean(simulate(balanced).lengths_ns))
        causes: list[Cause] = []
        for _ in range(count):
            cause = _draw_cause(random, balanced, length)
            if cause is not None and not any(_overlaps(cause, other) for other in causes):
                causes.append(cause)
        if not causes:
            continue
        scenario = replace(balanced, causes=tuple(causes))
        total = sum(simulate(scenario).lengths_ns)
        if max(true_gains(scenario)) >= LEAST_GAIN * total:
            return scenario


def _likely(count: int) -> list[float]:
    weights = np.linspace(2.0, 0.4, count)
    return [float(weight) for weight in weights / weights.sum()]


def _ops_per_call(topology: str, sizes: Sizes) -> int:
    return len(program_of(topology, sizes))


def _draw_cause(random: Random, run: Scenario, length: float) -> Cause | None:
    draw = _DRAWS[int(random.integers(len(_DRAWS)))]
    cause = draw(random, run, length)
    return None if cause is None else _draw_when(random, run, cause)


def _work_regions(run: Scenario, rank: int) -> list[str]:
    """The regions in which a rank does not wait, and that other ranks have too, so that they can be
    compared."""
    program = program_of(run.topology, run.sizes)
    ranks, is_work = program.of_ops(program.track_rank), program.op <= Op.SEND
    regions = {str(region) for region in program.region[is_work & (ranks == rank)]}
    others = {str(region) for region in program.region[is_work & (ranks != rank)]}
    return sorted(regions & others)


def _a_rank(random: Random, run: Scenario) -> int:
    return int(random.integers(run.sizes.num_ranks))


def _a_block(random: Random, run: Scenario) -> int:
    return int(random.integers(run.sizes.num_blocks))


def _always(run: Scenario) -> tuple[float, ...]:
    return (1.0,) * run.num_calls


def _late_start(random: Random, run: Scenario, length: float) -> Cause:
    amount = length * float(random.uniform(0.2, 1.5))
    return Cause(Kind.LATE_START, amount, _always(run), ranks=(_a_rank(random, run),))


def _slow_ranks(random: Random, run: Scenario, _length: float) -> Cause:
    """One rank, or a few of many."""
    few = 1 if run.sizes.num_ranks < 8 or random.random() < 0.7 else run.sizes.num_ranks // 4
    first = int(random.integers(run.sizes.num_ranks - few + 1))
    ranks = tuple(range(first, first + few))
    return Cause(Kind.SLOW, float(random.uniform(0.5, 3)), _always(run), ranks=ranks)


def _slow_region(random: Random, run: Scenario, _length: float) -> Cause | None:
    rank = _a_rank(random, run)
    regions = _work_regions(run, rank)
    region = regions[int(random.integers(len(regions)))]
    return Cause(Kind.SLOW, float(random.uniform(1, 4)), _always(run), ranks=(rank,), region=region)


def _slow_block(random: Random, run: Scenario, _length: float) -> Cause:
    rank, block = _a_rank(random, run), _a_block(random, run)
    amount = float(random.uniform(0.8, 4))
    return Cause(Kind.SLOW, amount, _always(run), ranks=(rank,), blocks=(block,))


def _slow_block_everywhere(random: Random, run: Scenario, _length: float) -> Cause:
    amount = float(random.uniform(0.8, 4))
    return Cause(Kind.SLOW, amount, _always(run), blocks=(_a_block(random, run),))


def _delayed_block(random: Random, run: Scenario, length: float) -> Cause:
    amount = length * float(random.uniform(0.2, 1.5))
    rank, block = _a_rank(random, run), _a_block(random, run)
    regions = _work_regions(run, rank)
    region = regions[int(random.integers(len(regions)))]
    return Cause(Kind.DELAY, amount, _always(run), ranks=(rank,), blocks=(block,), region=region)


def _idle_gap(random: Random, run: Scenario, length: float) -> Cause:
    amount = length * float(random.uniform(0.2, 1.5))
    rank = _a_rank(random, run)
    regions = _work_regions(run, rank)
    region = "send" if "send" in regions else regions[int(random.integers(len(regions)))]
    return Cause(Kind.IDLE_GAP, amount, _always(run), ranks=(rank,), region=region)


def _slow_items(random: Random, run: Scenario, _length: float) -> Cause | None:
    program = program_of(run.topology, run.sizes)
    every = int(random.choice([2, 3, 4]))
    regions = sorted(
        {str(r) for r in program.region[(program.turn >= every) & (program.op <= Op.SEND)]}
    )
    if not regions:
        return None
    region = regions[int(random.integers(len(regions)))]
    amount = float(random.uniform(3, 20))
    return Cause(Kind.SLOW_ITEMS, amount, _always(run), region=region, every=every)


def _more_items(random: Random, run: Scenario, _length: float) -> Cause | None:
    if run.topology in _HAS_ITEMS and random.random() < 0.5:
        rank = _a_rank(random, run)
        return Cause(Kind.MORE_ITEMS, float(random.integers(1, 4)), _always(run), ranks=(rank,))
    if run.topology == "server":
        return None
    rank, block = _a_rank(random, run), _a_block(random, run)
    amount = float(random.integers(2, 5))
    return Cause(Kind.MORE_ITEMS, amount, _always(run), ranks=(rank,), blocks=(block,))


def _slow_link(random: Random, run: Scenario, length: float) -> Cause | None:
    program = program_of(run.topology, run.sizes)
    rank = program.of_ops(program.track_rank)
    waits = (program.op == Op.WAIT) & (program.peer != rank)
    links = sorted(set(zip(program.peer[waits].tolist(), rank[waits].tolist(), strict=True)))
    if len(links) < 4:
        return None
    src, dst = links[int(random.integers(len(links)))]
    shape = float(random.random())
    link = (src, dst) if shape < 0.6 else (src, -1) if shape < 0.8 else (-1, dst)
    return Cause(Kind.SLOW_LINK, length * float(random.uniform(0.2, 1.2)), _always(run), link=link)


def _slow_launch(random: Random, run: Scenario, _length: float) -> Cause | None:
    """All ranks in some calls. In all calls it would not be a cause, but the normal kernel."""
    if run.num_calls < 5:
        return None
    return _occasional(random, run, Cause(Kind.SLOW, float(random.uniform(0.8, 4)), _always(run)))


_DRAWS: Final[tuple[Callable[[Random, Scenario, float], Cause | None], ...]] = (
    _late_start, _slow_ranks, _slow_region, _slow_block, _slow_block_everywhere, _delayed_block,
    _idle_gap, _slow_items, _more_items, _slow_link, _slow_launch,
)  # fmt: skip


def _draw_when(random: Random, run: Scenario, cause: Cause) -> Cause:
    """Constant in half of the cases, and if there are too few calls to distinguish."""
    if run.num_calls < 8 or cause.when is not When.CONSTANT or random.random() < 0.5:
        return cause
    choice = int(random.integers(4))
    if choice == 0:
        return _occasional(random, run, cause)
    if choice == 1:
        period = int(random.integers(2, 6))
        phase = int(random.integers(period))
        weights = tuple(float(call % period == phase) for call in range(run.num_calls))
        return replace(cause, when=When.PERIODIC, weights=weights)
    if choice == 2:
        weights = tuple(2 * call / (run.num_calls - 1) for call in range(run.num_calls))
        is_graded = cause.kind is not Kind.MORE_ITEMS
        return replace(cause, when=When.GROWING, weights=weights) if is_graded else cause
    can_move = cause.ranks is not None and len(cause.ranks) == 1 and cause.blocks is not None
    if not can_move:
        return cause
    path = tuple((_a_rank(random, run), _a_block(random, run)) for _ in range(run.num_calls))
    return replace(cause, when=When.MOVING, ranks=None, blocks=None, path=path)


def _occasional(random: Random, run: Scenario, cause: Cause) -> Cause:
    count = int(random.integers(1, max(2, run.num_calls // 3)))
    calls = set(random.choice(run.num_calls, count, replace=False).tolist())
    weights = tuple(float(call in calls) for call in range(run.num_calls))
    return replace(cause, when=When.OCCASIONAL, weights=weights)


def _overlaps(one: Cause, other: Cause) -> bool:
    """Whether two causes of the same kind or place cannot be told apart in a trace."""
    if one.kind == other.kind:
        return True
    return (
        one.ranks is not None
        and other.ranks is not None
        and bool(set(one.ranks) & set(other.ranks))
    )
