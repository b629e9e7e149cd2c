"""When does one of several like things stand out? Beyond chance, against the others' median."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kprof.analysis.findings.thresholds import MIN_RATIO, MIN_SIGMAS
from kprof.analysis.summary import Column


def medians_of_others(values: np.ndarray) -> np.ndarray:
    """For each value the median of all others: of two things, each is measured by the other."""
    if len(values) < 2:
        return np.full(len(values), np.nan)
    ordered = np.sort(values).astype(float)
    position = np.searchsorted(ordered, values)
    # Without the value at `position`, the element at index i of the rest is ordered[i + (i >=
    # position)].
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    of_low = ordered[low + (low >= position)]
    of_high = ordered[high + (high >= position)]
    medians: np.ndarray = (of_low + of_high) / 2
    return medians


def ratios_to_others(values: Column) -> Column:
    """Each value over the median of the others; NaN where that is 0 or there are none."""
    medians = medians_of_others(values.to_numpy())
    medians[medians == 0] = np.nan
    return pd.Series(values.to_numpy() / medians, index=values.index)


def counts_that_stand_out(counts: Column) -> Column:
    """The ratios of those counts that stand out, largest first."""
    ratios = ratios_to_others(counts)
    medians = counts / ratios
    sigmas = (counts - medians) / medians**0.5
    standing = ratios[(ratios >= MIN_RATIO) & (sigmas >= MIN_SIGMAS)]
    return standing.sort_values(ascending=False)
