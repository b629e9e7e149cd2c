"""Where does something take longer than at comparable places? By class of elements.

A cell is what one place does of one class in one call. Its excess is the logarithm of its time
against what its elements usually take. Excesses are laid to the largest group of cells that share
them: all places in a call, a rank in all calls, a block of every rank, a single block, and each of
these in single calls. A group shares an excess when most of its cells have it; what is laid to a
group is taken from its cells before smaller groups are looked at.

What is usual is a low quantile of all cells, for the median fails where half of the ranks are slow,
and then the mean of all cells that do not stand out. Nothing stands out below several times the
spread of comparable cells.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import Final

import numpy as np

from kprof.analysis.findings.thresholds import (
    CELL,
    FAR_ABOVE,
    FEW,
    GROUP,
    LEAST_FLOOR_NS,
    LEAST_PLACES_OF_CALL,
    LEAST_SPREAD,
    LOW,
    LOWEST,
    MOST_OF_GROUP,
    NORMAL_SIGMAS,
    OTHER_SIZES,
    SHARED_BY_PLACES,
    SIGMAS,
    UNEVEN,
)
from kprof.analysis.findings.when import grows
from kprof.analysis.replay.columns import grouped, grouped_median, grouped_quantile
from kprof.analysis.replay.elements import Elements
from kprof.analysis.replay.spans import Bools, Floats, Ints

ALL: Final = -1


@dataclass(frozen=True)
class Cells:
    """The cells of one class: where, how many elements, their sum, their noise-free ns."""

    call: Ints
    first: Ints
    second: Ints
    count: Floats
    sum_ns: Floats


@dataclass(frozen=True)
class Deviation:
    """An excess laid to a group of cells: `first` and `second` are ALL or a place, `calls` where it
    is, and `excess[call]` by how much, as a logarithm."""

    first: int
    second: int
    calls: Bools
    excess: Floats

    @property
    def height(self) -> float:
        """The median excess of its calls."""
        return float(np.median(self.excess[self.calls]))

    def covers(self, first: Ints, second: Ints) -> Bools:
        """Which of these places are in its group, in whatever call."""
        is_in = np.ones(len(first), dtype=bool)
        for wanted, column in ((self.first, first), (self.second, second)):
            if wanted != ALL:
                is_in = is_in & (column == wanted)
        return is_in


def members(cells: Cells, deviation: Deviation) -> Bools:
    """Which cells a deviation is laid to."""
    return deviation.calls[cells.call] & deviation.covers(cells.first, cells.second)


class CellIndex:
    """The elements of each cell. Places deviate by the thousand, and each of them has few."""

    def __init__(self, cells: Cells, cell: Ints) -> None:
        self._cells, self._cell = cells, cell
        self._order = np.argsort(cell, kind="stable")
        self._sizes = np.bincount(cell, minlength=len(cells.count))
        self._firsts = np.cumsum(self._sizes) - self._sizes

    def of(self, deviation: Deviation) -> tuple[Cells, Ints, Ints]:
        """The cells that a deviation is laid to, their elements, and the cell of each of these."""
        numbers = np.flatnonzero(members(self._cells, deviation))
        sizes = self._sizes[numbers]
        before = np.cumsum(sizes) - sizes
        at = np.repeat(self._firsts[numbers] - before, sizes) + np.arange(sizes.sum())
        elements = np.sort(self._order[at])
        columns = (getattr(self._cells, each.name)[numbers] for each in fields(Cells))
        return Cells(*columns), elements, np.searchsorted(numbers, self._cell[elements])


def cells_of(call: Ints, first: Ints, second: Ints, value: Floats) -> tuple[Cells, Ints]:
    """The cells of elements, and the cell of every element."""
    members, inverse = grouped(call, first, second)
    size = len(members)
    cells = Cells(
        call[members],
        first[members],
        second[members],
        np.bincount(inverse, minlength=size).astype(np.float64),
        np.bincount(inverse, weights=value, minlength=size).astype(np.float64),
    )
    return cells, inverse


def cells_of_elements(elements: Elements, chosen: Ints, value: Floats) -> tuple[Cells, Ints]:
    """The cells of some elements, which take so long, and the cell of each of them."""
    place = elements.first[chosen], elements.second[chosen]
    return cells_of(elements.call[chosen], *place, value)


def find_deviations(
    cells: Cells, floor_ns: float, num_calls: int, spread: float = 0.0, low: float = LOW
) -> tuple[list[Deviation], float]:
    """The deviations of a class, and an element's usual time in ns.

    `floor_ns` is added to every sum: what is small against it is not looked at; `spread` is that of
    the logarithm of one element.
    """
    # Where nothing takes any time, 0 is as long as usual.
    floor_ns = max(floor_ns, LEAST_FLOOR_NS)
    usual = float(np.quantile(cells.sum_ns / cells.count, low, method="lower"))
    for _ in range(2):
        y = np.log((cells.sum_ns + floor_ns) / (cells.count * usual + floor_ns))
        sigma = _spread(_by_call(cells, y), cells, spread, min(low, LOW))
        normal = y < NORMAL_SIGMAS * sigma + GROUP / 2
        if normal.any():
            usual = float(cells.sum_ns[normal].sum() / cells.count[normal].sum())
    usual = min(usual, _usual_of_groups(cells, usual, float(np.median(sigma))))
    y = np.log((cells.sum_ns + floor_ns) / (cells.count * usual + floor_ns))
    sigma = _spread(_by_call(cells, y), cells, spread, min(low, LOW))
    return deviations_of(cells, y, sigma, num_calls), usual


def sizes_of_calls(cells: Cells, num_calls: int) -> tuple[Floats, Deviation | None]:
    """How many times as long all places of a cell's call take as in the smallest calls; 1 unless
    many calls differ: then they are of several sizes, and only places of one call compare.

    With that, what all places take longer than in the shortest call, where it grows from call to
    call.
    """
    same = np.ones(len(cells.call))
    number, length, error = _lengths_of_calls(cells)
    if len(length) < 2:
        return same, None
    least = max(np.log(UNEVEN), SIGMAS * error)
    excess = length - length.min()
    if len(length) == num_calls and grows(length) and excess.max() >= least:
        return np.exp(excess)[number], Deviation(ALL, ALL, excess > 0, excess)
    size = _without_far_ones(length - np.quantile(length, LOWEST, method="lower"))
    if (size > least).mean() <= OTHER_SIZES or grows(size):
        return same, None
    return np.exp(size)[number], None


def _lengths_of_calls(cells: Cells) -> tuple[Ints, Floats, float]:
    """By cell the number of its call; how long the faster places take in each call, as a logarithm,
    and how well that is known. No calls where they cannot be compared."""
    number, count = _comparable_calls(cells)
    if count == 0:
        return number, np.zeros(0), 0.0
    mean = np.log(cells.sum_ns / cells.count)
    low = grouped_quantile(number, mean, count, LOW, is_lower=True)
    lowest = grouped_quantile(number, mean, count, LOWEST * LOW)
    error = float(np.median(low - lowest)) / np.sqrt(max(1.0, LOW * len(number) / count))
    return number, low, error


def _without_far_ones(size: Floats) -> Floats:
    """Sizes of calls, logarithms, of which those few that are far above all others are no sizes:
    these calls are slow, and count as large as the next one."""
    order = np.sort(size)
    at = int(np.diff(order).argmax())
    are_few = len(size) - 1 - at <= OTHER_SIZES * len(size)
    is_far = order[at + 1] - order[at] > FAR_ABOVE * (order[at] - order[0])
    return np.minimum(size, order[at]) if are_few and is_far else size


def _by_call(cells: Cells, y: Floats) -> Floats:
    """Cells against the median of their call: calls of several sizes are no spread of places."""
    number, count = _comparable_calls(cells)
    return y - grouped_median(number, y, count)[number] if count else y


def _comparable_calls(cells: Cells) -> tuple[Ints, int]:
    """By cell the number of its call, and how many calls there are: 0 where they cannot be compared
    by their places, which are too few, or of which some take no time, as a rank that starts first.
    """
    number = np.unique(cells.call, return_inverse=True)[1]
    count = int(number.max(initial=-1)) + 1
    is_known = len(number) >= LEAST_PLACES_OF_CALL * count and (cells.sum_ns > 0).all()
    return number, count if is_known else 0


def _usual_of_groups(cells: Cells, usual: float, sigma: float) -> float:
    """What the lower ones of ranks, blocks and calls have, where they differ by more than chance:
    of groups, means are known better than of cells."""
    lowest = usual
    for column in (cells.first, cells.second, cells.call):
        _, group = grouped(column)
        counts = np.bincount(group, weights=cells.count)
        means = np.bincount(group, weights=cells.sum_ns) / counts
        mean = float(np.sort(means)[int(FEW * len(means))])
        error = sigma / np.sqrt(len(group) / len(means))
        if mean < usual * (1 - SIGMAS * error):
            lowest = min(lowest, mean)
    return lowest


def _spread(y: Floats, cells: Cells, spread: float, low: float) -> Floats:
    """The spread of every cell: as in the lower part of all cells, and as its count predicts."""
    shares = (low, LOWEST * low)
    highest, lowest = np.quantile(y, shares, method="lower")
    sigmas = NormalDist().inv_cdf(shares[0]) - NormalDist().inv_cdf(shares[1])
    between = float(highest - lowest) / sigmas
    return np.maximum(LEAST_SPREAD, np.maximum(between, spread / np.sqrt(cells.count)))


def deviations_of(cells: Cells, y: Floats, sigma: Floats, num_calls: int) -> list[Deviation]:
    """Lay the excess `y` of every cell, a logarithm, to groups; `sigma` is its spread."""
    united: dict[tuple[int, int], Deviation] = {}
    residual = y.copy()
    call, first, second = cells.call, cells.first, cells.second
    calls, firsts, seconds = (len(np.unique(column)) for column in (call, first, second))
    constant, every = np.zeros_like(call), np.full_like(first, ALL)
    # Call by call first for all places: what all do at once is no place's.
    steps = (
        (calls > 2 and max(firsts, seconds) > 1, (call, every, every)),
        (calls > 1 or seconds > 1, (constant, first, every)),
        (firsts > 1, (constant, every, second)),
        (calls > 1, (constant, first, second)),
        (calls > 1, (call, first, every)),
        (calls > 1 and firsts > 1, (call, every, second)),
        (True, (call, first, second)),
    )
    for keys in (keys for is_wanted, keys in steps if is_wanted):
        # What all calls have is how the kernel is.
        shared = _shared_by_calls(cells, residual) if keys[1] is keys[2] else 0.0
        residual -= shared
        _step(cells, residual, sigma, keys, num_calls, united)
        residual += shared
    return list(united.values())


def _shared_by_calls(cells: Cells, residual: Floats) -> float:
    """What the lower ones of the calls have."""
    number = np.unique(cells.call, return_inverse=True)[1]
    heights = grouped_median(number, residual, int(number.max()) + 1)
    return max(0.0, float(np.quantile(heights, LOW, method="lower")))


def shared_by_all(cells: Cells, y: Floats, sigma: Floats, num_calls: int) -> Deviation | None:
    """What nearly all cells have in excess, if it stands out."""
    height = _height(y, sigma)
    if height is None:
        return None
    calls = np.zeros(num_calls, dtype=bool)
    calls[cells.call] = True
    return Deviation(ALL, ALL, calls, np.where(calls, height, 0.0))


def _step(
    cells: Cells,
    residual: Floats,
    sigma: Floats,
    keys: tuple[Ints, Ints, Ints],
    num_calls: int,
    united: dict[tuple[int, int], Deviation],
) -> None:
    """Lay excesses to the groups of one kind, and take them from the residual. `united` has one
    deviation per place: what it has in all calls and what it has in some of them on top."""
    examples, inverse = grouped(*keys)
    order = np.argsort(inverse, kind="stable")
    bounds = np.r_[0, np.cumsum(np.bincount(inverse, minlength=len(examples)))]
    is_constant = bool((keys[0] == 0).all()) and not np.array_equal(keys[0], cells.call)
    # Only groups whose median can stand out: a median takes long.
    num_high = np.bincount(inverse, weights=residual > GROUP, minlength=len(examples))
    for number in np.flatnonzero(num_high >= np.diff(bounds) / 2).tolist():
        members = order[bounds[number] : bounds[number + 1]]
        height = _height(residual[members], sigma[members])
        if (
            height is None
            or not _is_wide(cells, members, keys)
            or not _is_shared(cells, residual, members, keys, height)
        ):
            continue
        example = int(examples[number])
        place = int(keys[1][example]), int(keys[2][example])
        if is_constant and len(np.unique(cells.call[members])) < 2 and num_calls > 2:
            continue
        if place not in united:
            united[place] = Deviation(*place, np.zeros(num_calls, bool), np.zeros(num_calls))
        numbers, at, heights = _by_its_calls(cells.call[members], residual[members], sigma[members])
        # There may be a deviation for each cell: none of them may take long for each call.
        united[place].calls[numbers] |= heights > 0
        united[place].excess[numbers] += heights
        residual[members] -= heights[at]


def _is_wide(cells: Cells, members: Ints, keys: tuple[Ints, Ints, Ints]) -> bool:
    """Whether a group of places has two or more: one block is no rank, one link no source."""
    return not any(
        (column != column[0]).any() and (column[members] == column[members[0]]).all()
        for column in _open_columns(cells, members, keys)
        if column[members[0]] != ALL
    )


def _open_columns(cells: Cells, members: Ints, keys: tuple[Ints, Ints, Ints]) -> list[Ints]:
    """Of ranks and blocks those of which a group has any."""
    columns = ((keys[1], cells.first), (keys[2], cells.second))
    return [column for key, column in columns if key[members[0]] == ALL]


def _is_shared(
    cells: Cells, residual: Floats, members: Ints, keys: tuple[Ints, Ints, Ints], height: float
) -> bool:
    """Whether places of a group have its excess, and not one of two, of which the mean is half."""
    for column in _open_columns(cells, members, keys):
        numbers, place = np.unique(column[members], return_inverse=True)
        of_places = grouped_median(place, residual[members], len(numbers))
        if np.quantile(of_places, 0.5, method="lower") < SHARED_BY_PLACES * height:
            return False
    return True


def _height(y: Floats, sigma: Floats) -> float | None:
    """The excess that most of the cells of a group share, if it stands out."""
    count = len(y)
    # Most groups are one cell, and a median takes long.
    if count == 1:
        only = float(y[0])
        return only if only >= max(CELL, SIGMAS * float(sigma[0])) else None
    height = float(np.median(y))
    if height < GROUP or height < SIGMAS * float(np.median(sigma)) * 1.25 / np.sqrt(count):
        return None
    return height if (y > height / 3).mean() >= MOST_OF_GROUP else None


def _by_its_calls(call: Ints, y: Floats, sigma: Floats) -> tuple[Ints, Ints, Floats]:
    """The calls of a group, by cell the position of its call, and by call the group's own excess
    where it differs from its usual one by more than noise; 0 where that does not stand out."""
    numbers, at = np.unique(call, return_inverse=True)
    count = len(numbers)
    own, sigma_of = (grouped_quantile(at, column, count, 0.5) for column in (y, sigma))
    error = sigma_of * 1.25 / np.sqrt(np.bincount(at))
    usual = float(np.median(y))
    height = np.where(np.abs(own - usual) < 3 * error, usual, np.maximum(0.0, own))
    return numbers, at, np.where(height >= GROUP / 2, height, 0.0)


def on_links_of(deviation: Deviation, elements: Elements, transfers: Ints) -> Ints:
    """Those of these transfers that are on the links of a deviation, in its calls."""
    is_on = deviation.covers(elements.first[transfers], elements.second[transfers])
    return transfers[is_on & deviation.calls[elements.call[transfers]]]
