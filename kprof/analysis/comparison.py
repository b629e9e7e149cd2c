"""Did a change make it faster? Two sides, each of one or more runs, compared launch by launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from kprof.analysis.calls import calls
from kprof.analysis.skew import launch_starts
from kprof.analysis.summary import Summary
from kprof.analysis.warmup import steady_part
from kprof.errors import SelectionError

if TYPE_CHECKING:
    import pandas as pd

    from kprof.trace import Trace

Floats = NDArray[np.float64]

# Below this share of the base a difference is noise, whatever the interval says.
_NOISE_SHARE: Final = 0.02
# Chance alone separates two sides of three launches in one of ten comparisons; of four in one of 35.
MIN_LAUNCHES: Final = 4
CALL: Final = "call"
LAUNCH: Final = "launch"
_CALL_KEY: Final = ("", "", CALL)
_RESAMPLES: Final = 2000
_SEED: Final = 20_260_101


def diff(base: Trace | Sequence[Trace], candidate: Trace | Sequence[Trace]) -> pd.DataFrame:
    """Compare two sides region by region; several traces of a side are repeats of the same thing.

    One sample per launch: of the level "launch" its length over all ranks; "mean block" and "slowest block" the
    time in a region, per block. Of the level "call" (no kernel, no region) the length of a call over all its kernels,
    where the sides do not have one kernel in common and nothing else, and all are launched equally often.

    A row is "slower" or "faster" only where the bootstrap 95 % interval of the difference of medians excludes 0 and
    the difference exceeds the noise floor: 2 % of the base, the clock's step, and for lengths of launches the clock
    error bound. With fewer than 4 launches a side it is "unclear". Slow first calls are left out.

    Columns: kernel, region ("" for the launch), level, verdict (added, removed, slower, faster, unclear, same),
    base_ns, candidate_ns (medians), change_ns, change_share, low_ns, high_ns (the interval), floor_ns,
    base_launches, candidate_launches. Whole calls first, then the largest changes. Raises SelectionError when a side
    is empty.
    """
    sides = [_side(base, "base"), _side(candidate, "candidate")]
    samples = [_samples(runs) for runs in sides]
    is_one_kernel = _kernels(samples[0]) == _kernels(samples[1]) and len(_kernels(samples[0])) == 1
    if is_one_kernel or not all(_CALL_KEY in of_side for of_side in samples):
        samples = [_without_calls(of_side) for of_side in samples]
    floors = [_clock_floor_ns(runs) for runs in sides]
    keys = sorted(set(samples[0]) | set(samples[1]))
    table = _table(
        [_compare(key, samples[0].get(key), samples[1].get(key), max(floors)) for key in keys]
    )
    order = table["change_ns"].abs().where(table["level"] != CALL, float("inf"))
    order = order.where(table["verdict"] != "same", -1)
    return table.loc[order.sort_values(ascending=False, kind="stable").index].reset_index(drop=True)


_COLUMNS: Final = (
    "kernel",
    "region",
    "level",
    "verdict",
    "base_ns",
    "candidate_ns",
    "change_ns",
    "change_share",
    "low_ns",
    "high_ns",
    "floor_ns",
    "base_launches",
    "candidate_launches",
)
_Key = tuple[str, str, str]
_Row = tuple[object, ...]


def _table(rows: list[_Row]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _side(traces: Trace | Sequence[Trace], name: str) -> list[Summary]:
    chosen = list(traces) if isinstance(traces, Sequence) else [traces]
    if not chosen or all(trace.num_events() == 0 for trace in chosen):
        raise SelectionError(
            f"the {name} side has no events to compare; give a capture that holds some"
        )
    return [steady_part(Summary.of(trace))[0] for trace in chosen]


def _samples(runs: list[Summary]) -> dict[_Key, Floats]:
    """Samples by (kernel, region, level), one per launch of all repeats."""
    collected: dict[_Key, list[float]] = {}
    for summary in runs:
        for kernel, region, level, value in _launch_samples(summary):
            collected.setdefault((kernel, region, level), []).append(value)
    return {key: np.array(values) for key, values in collected.items()}


def _kernels(samples: dict[_Key, Floats]) -> set[str]:
    return {kernel for kernel, _, level in samples if level == LAUNCH}


def _without_calls(samples: dict[_Key, Floats]) -> dict[_Key, Floats]:
    return {key: values for key, values in samples.items() if key != _CALL_KEY}


def _call_lengths(summary: Summary) -> list[float]:
    """Nothing where kernels are launched at paces of their own: then an ordinal is no call."""
    starts = launch_starts(summary)
    if starts.groupby(["kernel", "rank"])["ordinal"].nunique().nunique() != 1:
        return []
    if summary.trace.is_on_one_clock:
        return [float(length) for length in calls(summary)["length_ns"]]
    per_rank = starts.groupby(["ordinal", "rank"])
    lengths = per_rank["last_ns"].max() - per_rank["first_ns"].min()
    return [float(length) for length in lengths.groupby("ordinal").max()]


def _launch_samples(summary: Summary) -> list[tuple[str, str, str, float]]:
    length = (
        "max(last_ns) - min(first_ns)"
        if summary.trace.is_on_one_clock
        else "max(last_ns - first_ns)"
    )
    lengths = summary.frame(
        f"SELECT kernel, '' AS region, {length} AS value FROM spans_of_launches GROUP BY kernel, ordinal"
    )
    regions = summary.frame(
        """
        WITH by_block AS (
            SELECT s.kernel, s.ordinal, c.rank, c.block, c.region_id, sum(c.total_ns) AS total_ns
            FROM cells c JOIN spans_of_launches s USING (rank, launch) GROUP BY ALL)
        SELECT kernel, coalesce(r.name, 'unknown region') AS region, avg(total_ns) AS mean, max(total_ns) AS slowest
        FROM by_block LEFT JOIN regions r ON r.id = region_id GROUP BY kernel, r.name, ordinal"""
    )
    rows = [(*_CALL_KEY, length) for length in _call_lengths(summary)]
    rows += [(row["kernel"], "", LAUNCH, float(row["value"])) for row in lengths.to_dict("records")]
    for row in regions.to_dict("records"):
        rows.append((row["kernel"], row["region"], "mean block", float(row["mean"])))
        rows.append((row["kernel"], row["region"], "slowest block", float(row["slowest"])))
    return rows


def _clock_floor_ns(runs: list[Summary]) -> tuple[float, float]:
    """Step of the coarsest clock, and the worst error bound between two ranks."""
    step = max(info.clock.step_ns for summary in runs for info in summary.trace.ranks)
    bounds = [run.trace.alignment.widest_bound_ns for run in runs if run.trace.alignment]
    return float(step), max(bounds, default=0.0)


def _compare(
    key: _Key, base: Floats | None, candidate: Floats | None, floor: tuple[float, float]
) -> _Row:
    if base is None or candidate is None:
        present = candidate if base is None else base
        assert present is not None
        return _only_one_side(key, float(np.median(present)), len(present), is_added=base is None)
    before, after = float(np.median(base)), float(np.median(candidate))
    low, high = _interval(base, candidate)
    noise = max(_NOISE_SHARE * before, floor[0], floor[1] if key[2] in (CALL, LAUNCH) else 0.0)
    change = after - before
    verdict = _verdict(change, low, high, noise, min(len(base), len(candidate)))
    share = change / before if before else 0.0
    return (
        *key,
        verdict,
        before,
        after,
        change,
        share,
        low,
        high,
        noise,
        len(base),
        len(candidate),
    )


def _only_one_side(key: _Key, value: float, count: int, *, is_added: bool) -> _Row:
    nan = float("nan")
    if is_added:
        return (*key, "added", nan, value, value, nan, nan, nan, nan, 0, count)
    return (*key, "removed", value, nan, -value, nan, nan, nan, nan, count, 0)


def _verdict(change: float, low: float, high: float, noise: float, launches: int) -> str:
    if abs(change) <= noise:
        return "same"
    if launches < MIN_LAUNCHES:
        return "unclear"
    if low <= 0 <= high:
        return "same"
    return "slower" if change > 0 else "faster"


def _interval(base: Floats, candidate: Floats) -> tuple[float, float]:
    """Bootstrap 95 % interval of the difference of medians; seeded, so that a comparison can be repeated."""
    random = np.random.default_rng(_SEED)

    def medians(values: Floats) -> Floats:
        drawn = values[random.integers(0, len(values), (_RESAMPLES, len(values)))]
        middle: Floats = np.median(drawn, axis=1)
        return middle

    low, high = np.percentile(medians(candidate) - medians(base), [2.5, 97.5])
    return float(low), float(high)
