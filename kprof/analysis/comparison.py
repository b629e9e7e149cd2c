"""Did a change make it faster? Two sides, each of one or more runs, compared launch by launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kprof.analysis.calls import call_lengths, call_numbers, launch_starts
from kprof.analysis.equivalence import MIN_SAMPLES, Comparison, Measure, compare
from kprof.analysis.summary import Summary, Table
from kprof.analysis.warmup import steady_part
from kprof.analysis.wording import listed
from kprof.errors import SelectionError
from kprof.trace import Trace

Floats = NDArray[np.float64]

MIN_LAUNCHES: Final = MIN_SAMPLES
# Kernels of other names are variants of each other if they share this part of their regions.
_LEAST_SHARED: Final = 1 / 3
CALL: Final = "call"
LAUNCH: Final = "launch"
_CALL_KEY: Final = ("", "", CALL)
# Not for regions, which have no calls: their tails show in the lengths of launches.
_OF_REGIONS: Final = (Measure.MEAN, Measure.MEDIAN)


def diff(base: Trace | Sequence[Trace], candidate: Trace | Sequence[Trace]) -> Table:
    """Compare two sides region by region. Several traces of a side are repeats of the same run.

    There is one sample per launch: at level "launch" its length over all ranks, at levels "mean
    block" and "slowest block" the time in a region, per block. Level "call" (no kernel, no region)
    is the length of a call over all its kernels; it exists if all kernels are launched equally
    often, unless the sides have one and the same kernel.

    Every sample is compared by its `measure`: mean and median; of lengths, from 20 samples a side
    on, also the 95th percentile ("p95") and the share of samples that take 1.5 times the base's
    median ("slow share": there the columns in ns are shares, and change_share is their difference).

    A row is "slower" or "faster" where the 95 % interval of the difference excludes 0 and the
    difference exceeds the noise: 2 % of the base, the clock's step, and for lengths the clock error
    bound. It is "same" where an equivalence test says so within `margin_ns`: 5 % of the base (of
    the share of slow samples: 10 points), or what the clock can tell. Otherwise it is "unclear".
    With fewer than 4 samples a side it always is, and has no interval. If all samples of both sides
    are equal, as those of one recording given twice, every row is "same", with the interval 0 to 0.
    Slow first calls are left out.

    Columns: kernel, region ("" for the launch), level, measure, verdict (added, removed, slower,
    faster, unclear, same), base_ns, candidate_ns, change_ns, change_share, low_ns, high_ns (the
    interval), margin_ns, base_launches, candidate_launches, and of regions base_spans,
    candidate_spans, base_bytes, candidate_bytes: what the block had to do, the median over launches
    (NaN of calls and launches, and of a region that counts no bytes). Whole calls first, then the
    largest changes. Raises SelectionError when a side is empty, or the sides have nothing in
    common: no kernel, no name of kernels up to its first "/", and few regions.
    """
    chosen = [[side] if isinstance(side, Trace) else side for side in (base, candidate)]
    return diff_summaries(*([Summary.of(trace) for trace in side] for side in chosen))


def diff_summaries(base: Sequence[Summary], candidate: Sequence[Summary]) -> Table:
    """`diff` of runs that are summarised already."""
    sides = [_side(base, "base"), _side(candidate, "candidate")]
    samples = [_samples(runs) for runs in sides]
    _require_kinship(*samples)
    is_one_kernel = _kernels(samples[0]) == _kernels(samples[1]) and len(_kernels(samples[0])) == 1
    if is_one_kernel or not all(_CALL_KEY in of_side for of_side in samples):
        for of_side in samples:
            of_side.pop(_CALL_KEY, None)
    floors = [_clock_floor_ns(runs) for runs in sides]
    is_same = _are_equal(*samples)
    rows = [
        row
        for key in sorted(set(samples[0]) | set(samples[1]))
        for row in _rows_of(
            key, samples[0].get(key), samples[1].get(key), max(floors), is_same_data=is_same
        )
    ]
    table = pd.DataFrame(rows, columns=list(_COLUMNS))
    order = table["change_ns"].abs().where(table["level"] != CALL, float("inf"))
    order = order.where(table["verdict"].isin(["slower", "faster", "added", "removed"]), -1)
    order = order.where(table["verdict"] != "same", -2)
    return table.loc[order.sort_values(ascending=False, kind="stable").index].reset_index(drop=True)


_COLUMNS: Final = (
    "kernel",
    "region",
    "level",
    "measure",
    "verdict",
    "base_ns",
    "candidate_ns",
    "change_ns",
    "change_share",
    "low_ns",
    "high_ns",
    "margin_ns",
    "base_launches",
    "candidate_launches",
    "base_spans",
    "candidate_spans",
    "base_bytes",
    "candidate_bytes",
)
_Key = tuple[str, str, str]
_Row = tuple[object, ...]
_NAN: Final = float("nan")


@dataclass(frozen=True)
class _Samples:
    """One value per launch, and what there was to do in it (0 spans of a launch or a call)."""

    values: Floats
    spans: Floats
    bytes: Floats

    @property
    def work(self) -> tuple[float, float]:
        """The medians of spans and bytes, NaN where there are none."""
        medians = (float(np.median(column)) for column in (self.spans, self.bytes))
        spans, num_bytes = (median or _NAN for median in medians)
        return spans, num_bytes


_Side = dict[_Key, _Samples]


def _side(runs: Sequence[Summary], name: str) -> list[Summary]:
    if all(summary.trace.num_events() == 0 for summary in runs):
        raise SelectionError(
            f"the {name} side has no events to compare; give a capture that holds some"
        )
    return [steady_part(summary)[0] for summary in runs]


def _samples(runs: list[Summary]) -> _Side:
    """The samples by (kernel, region, level), one per launch of all repeats, in their order."""
    launches = pd.concat([_launch_samples(summary) for summary in runs])
    columns = ["value", "spans", "bytes"]
    samples: _Side = {
        (str(kernel), str(region), str(level)): _Samples(*rows[columns].to_numpy(dtype=float).T)
        for (kernel, region, level), rows in launches.groupby(["kernel", "region", "level"])
    }
    lengths = np.concatenate([_call_lengths(summary) for summary in runs])
    if len(lengths):
        samples[_CALL_KEY] = _Samples(lengths, 0 * lengths, 0 * lengths)
    return samples


def _kernels(samples: _Side) -> set[str]:
    return {kernel for kernel, _, level in samples if level == LAUNCH}


def _are_equal(base: _Side, candidate: _Side) -> bool:
    """Whether every launch and region took exactly as long on both sides."""
    return base.keys() == candidate.keys() and all(
        np.array_equal(own.values, candidate[key].values) for key, own in base.items()
    )


def _require_kinship(base: _Side, candidate: _Side) -> None:
    """Refuse kernels that are no variants of each other: every difference would be of names."""
    kernels = [{key[0].split("/")[0] for key in side} - {""} for side in (base, candidate)]
    regions = [{key[1] for key in side} - {""} for side in (base, candidate)]
    shared, both = regions[0] & regions[1], regions[0] | regions[1]
    if kernels[0] & kernels[1] or len(shared) >= _LEAST_SHARED * len(both):
        return
    names = [listed(sorted(_kernels(side))) for side in (base, candidate)]
    raise SelectionError(
        f"the sides have nothing in common to compare: {names[1]} in place of {names[0]}; give "
        "recordings of one kernel or of its variants"
    )


def _call_lengths(summary: Summary) -> Floats:
    """The lengths of calls. Empty if kernels are launched unequally often, because then an ordinal
    is not a call."""
    paces = launch_starts(summary).groupby(["kernel", "rank"])["ordinal"].nunique()
    if paces.nunique() != 1 and call_numbers(summary) is None:
        return np.zeros(0)
    return call_lengths(summary).to_numpy(dtype=float)


def _launch_samples(summary: Summary) -> Table:
    """Columns kernel, region, level, value, spans, bytes, one row per launch, in their order: its
    length, and per region its slowest block and the mean of its blocks."""
    is_one = summary.trace.is_on_one_clock
    length = "max(last_ns) - min(first_ns)" if is_one else "max(last_ns - first_ns)"
    return summary.frame(
        f"""
        WITH by_block AS (
            SELECT s.kernel, s.ordinal, c.rank, c.block, c.region_id, sum(c.total_ns) AS total_ns,
                sum(c.events) AS spans, sum(c.bytes) AS bytes
            FROM cells c JOIN spans_of_launches s USING (rank, launch) GROUP BY ALL),
        named AS (
            SELECT b.*, coalesce(r.name, 'unknown region') AS region
            FROM by_block b LEFT JOIN regions r ON r.id = region_id)
        SELECT kernel, '' AS region, '{LAUNCH}' AS level, ordinal,
            CAST({length} AS DOUBLE) AS value, 0.0 AS spans, 0.0 AS bytes
        FROM spans_of_launches GROUP BY kernel, ordinal
        UNION ALL
        SELECT kernel, region, 'mean block', ordinal, sum(total_ns) / count(*),
            sum(spans) / count(*), sum(bytes) / count(*)
        FROM named GROUP BY kernel, region, ordinal
        UNION ALL
        SELECT kernel, region, 'slowest block', ordinal, max(total_ns),
            arg_max(spans, (total_ns, spans, bytes)), arg_max(bytes, (total_ns, spans, bytes))
        FROM named GROUP BY kernel, region, ordinal
        ORDER BY ordinal"""
    )


def _clock_floor_ns(runs: list[Summary]) -> tuple[float, float]:
    """The step of the coarsest clock, and the worst error bound between two ranks."""
    step = max(info.clock.step_ns for summary in runs for info in summary.trace.ranks)
    bounds = [run.trace.alignment.widest_bound_ns for run in runs if run.trace.alignment]
    return float(step), max(bounds, default=0.0)


def _rows_of(
    key: _Key,
    base: _Samples | None,
    candidate: _Samples | None,
    floor: tuple[float, float],
    *,
    is_same_data: bool,
) -> list[_Row]:
    sides = base, candidate
    if base is None or candidate is None:
        before, after = (float(np.median(side.values)) if side else _NAN for side in sides)
        verdict = "added" if base is None else "removed"
        found = [Comparison(Measure.MEDIAN, verdict, before, after, _NAN, _NAN, _NAN)]
    else:
        is_length = key[2] in (CALL, LAUNCH)
        floor_ns = max(floor[0], floor[1] if is_length else 0.0)
        found = compare(base.values, candidate.values, floor_ns, is_same_data=is_same_data)
        found = [one for one in found if is_length or one.measure in _OF_REGIONS]
    counts = [len(side.values) if side else 0 for side in sides]
    works = [side.work if side else (_NAN, _NAN) for side in sides]
    work = [of_side for of_both in zip(*works, strict=True) for of_side in of_both]
    return [(*key, *_fields(one), *counts, *work) for one in found]


def _fields(found: Comparison) -> _Row:
    """From `measure` to `margin_ns`; the change of what one side only has is all of it."""
    change = found.candidate - found.base
    share = change if found.measure is Measure.SLOW else change / (found.base or np.inf)
    change = float(np.nan_to_num(found.candidate) - np.nan_to_num(found.base))
    return (
        *(found.measure.value, found.verdict, found.base, found.candidate, change, share),
        *(found.low, found.high, found.margin),
    )
