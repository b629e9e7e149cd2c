"""Two devices compared through their host (benchmarks/third_corner), against clocks that were planted."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.third_corner import corner
from benchmarks.third_corner.__main__ import EVEN, ODD, compare, misses, planted
from kprof.capture.manifest import Alignment
from kprof.clocks.causality import align_by_limits

OFFSET_NS, DRIFT = 5 * 10**8, 7e-5


def watched(draw: np.random.Generator, stores_ns: np.ndarray, read_ns: float) -> np.ndarray:
    """What a device that polls without a pause notes of stores: when the last miss was issued, when the hit was back."""
    # A read samples the word half way through.
    begins = stores_ns - read_ns / 2 - draw.uniform(0, read_ns, len(stores_ns))
    return np.stack([begins, begins + 2 * read_ns], axis=1)


def shown(true_ns: np.ndarray) -> np.ndarray:
    return np.rint(true_ns * (1 + DRIFT) + OFFSET_NS).astype(np.int64)


def off_by_ns(alignment: Alignment, true_ns: float) -> float:
    (entry,) = (each for each in alignment.ranks if each.rank == 1)
    local_ns = int(shown(np.array(true_ns)))
    return local_ns + entry.correction_ns(local_ns) - true_ns


def test_a_common_view_is_good_to_a_fraction_of_a_read() -> None:
    draw = np.random.default_rng(1)
    stores_ns = np.sort(draw.uniform(1e9, 1.2e9, 4000))
    for reads_ns in ((700.0, 700.0), (700.0, 900.0)):
        first, second = (watched(draw, stores_ns, each) for each in reads_ns)
        seen = {0: np.rint(first).astype(np.int64), 1: shown(second)}
        limits = corner.limits_of_view(seen, EVEN)
        alignment = align_by_limits(limits, corner.clocks_of(limits, 1.0), "common view")
        error_ns = abs(off_by_ns(alignment, 1.1e9))
        assert error_ns < 50 + abs(reads_ns[0] - reads_ns[1])
        assert error_ns <= alignment.bound_between_ns(0, 1) < sum(reads_ns)
        assert misses(alignment, corner.limits_of_view(seen, ODD), 1.0) == 0


def test_stores_that_no_read_missed_say_nothing() -> None:
    seen = {0: np.array([[0, 10], [20, 30]]), 1: np.array([[5, 9], [0, 0]])}
    there, back = corner.limits_of_view(seen, slice(None))
    assert there.number.tolist() == []
    assert (back.sent_ns.tolist(), back.seen_ns.tolist()) == ([5], [10])


def test_kernels_and_host_answer_each_other_within_the_bound() -> None:
    """However long the scheduler lets them wait."""
    library = corner.load("cpu")
    origin_ns = time.monotonic_ns()
    device = corner.Device(corner.on_thread(planted(library, OFFSET_NS, 0.0)), 1e9)
    memory = np.zeros(corner.num_words(50), np.uint64)
    of_device, of_host = corner.two_ways(library, device, memory, 50)
    assert (of_device[:, 1] >= of_device[:, 0]).all()
    assert (of_host > origin_ns).all()
    limits = corner.limits_of_ways(1, of_device, of_host, slice(None))
    alignment = align_by_limits(limits, corner.clocks_of(limits, 1.0), "two ways")
    (entry,) = (each for each in alignment.ranks if each.rank == corner.HOST)
    local_ns = int(of_host[25, 0])
    error_ns = abs(local_ns + entry.correction_ns(local_ns) - (local_ns + OFFSET_NS))
    assert error_ns <= alignment.bound_between_ns(1, corner.HOST)


def test_estimators_are_compared_where_both_have_a_bound() -> None:
    draw = np.random.default_rng(2)
    stores_ns = np.sort(draw.uniform(1e9, 1.1e9, 1000))
    seen = {
        0: np.rint(watched(draw, stores_ns, 700.0)).astype(np.int64),
        1: shown(watched(draw, stores_ns, 700.0)),
    }
    other = {i: each.copy() for i, each in seen.items()}
    other[1] += 5000
    found = compare(
        {
            "common_view": lambda rows: corner.limits_of_view(seen, rows),
            "two_ways": lambda rows: corner.limits_of_view(other, rows),
        },
        1.0,
    )
    assert abs(found["disagreement_ns"] - 5000) < 100
    assert found["two_ways"]["held_out_misses"] == found["common_view"]["held_out_misses"] == 0
