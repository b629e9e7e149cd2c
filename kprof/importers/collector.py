"""What a reader of a format finds, one call each: spans, instants, and begins with their ends."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kprof.errors import ForeignFormatError
from kprof.importers.foreign import ForeignEvents, ReadOptions, to_ns
from kprof.regions import PAYLOAD_BITS, Category

Time = int | float
# That of all events, or of those with a name.
CategoryOf = Category | Callable[[str], Category]
T = TypeVar("T", bound=Hashable)
_NO_END: Final = "spans without an end"
_NO_BEGIN: Final = "ends without a beginning"


class Place(NamedTuple):
    """Where something happened. `hw_id` is the processor; warp -1 is a whole block."""

    rank: int = 0
    block: int = 0
    warp: int = -1
    launch: int = 0
    hw_id: int = 0


class _Event(NamedTuple):
    place: Place
    name: str
    start: Time
    duration: Time
    args: Mapping[str, Any] | None
    is_mark: bool = False


class Collector:
    """Collects what a reader finds. Times are ticks, whole or not, of any origin.

    `left_out` counts what cannot be imported, by what it is; `num_dropped` what each rank lost,
    `notices` what was assumed. `options` are what the user says of the files.
    """

    def __init__(self, options: ReadOptions | None = None) -> None:
        self.options = options or ReadOptions()
        self.left_out: Counter[str] = Counter()
        self.num_dropped: Counter[int] = Counter()
        self.notices: Counter[str] = Counter()
        self._launches: dict[Hashable, int] = {}
        self._kernels: dict[int, str] = {}
        self._numbered = ""
        self._events: list[_Event] = []
        self._open: dict[Hashable, list[_Event]] = {}

    def span(
        self,
        place: Place,
        name: str,
        start: Time,
        duration: Time,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        """A span of `duration` ticks."""
        self._events.append(_Event(place, name, start, duration, args))

    def mark(
        self, place: Place, name: str, time: Time, args: Mapping[str, Any] | None = None
    ) -> None:
        """An instant."""
        self._events.append(_Event(place, name, time, 0, args, is_mark=True))

    def begin(
        self,
        place: Place,
        name: str,
        time: Time,
        key: Hashable = None,
        args: Mapping[str, Any] | None = None,
        at: Place | None = None,
    ) -> None:
        """The beginning of a span; `key` tells spans of one track apart that may overlap.

        The span is put `at` a place that its end does not know, else where it begins.
        """
        begun = _Event(at or place, name, time, 0, args)
        self._open.setdefault((place[:4], key), []).append(begun)

    def is_open(self, place: Place, key: Hashable = None) -> bool:
        """Whether `end` would find a beginning."""
        return bool(self._open.get((place[:4], key)))

    def end(self, place: Place, time: Time, key: Hashable = None) -> None:
        """The end of the latest span of this track and key that is open."""
        opened = self._open.get((place[:4], key))
        if not opened:
            self.left_out[_NO_BEGIN] += 1
            self.num_dropped[place.rank] += 1
            return
        begun = opened.pop()
        self._events.append(begun._replace(duration=time - begun.start))

    def launch(self, key: Hashable, kernel: str = "") -> int:
        """The number of a launch, counted from 0 in the order in which they are first named."""
        number = self._launches.setdefault(key, len(self._launches))
        if kernel:
            self._kernels[number] = kernel
        return number

    def name(self, number: int, what: str = "event") -> str:
        """What a number stands for: as --names say, else `event 7`."""
        self._numbered = what
        names = self.options.names or ()
        return names[number] if number < len(names) else f"{what} {number}"

    def events(
        self,
        origin: object,
        tick_ns: float = 1.0,
        taken: Mapping[str, str] | None = None,
        category: CategoryOf | None = None,
        **known: Any,
    ) -> ForeignEvents:
        """All of it; `origin` names the file in errors, `category` is that of all events, where the
        format has one. `known` are fields of ForeignEvents."""
        for opened in self._open.values():
            for begun in opened:
                self.left_out[_NO_END] += 1
                self.num_dropped[begun.place.rank] += 1
        self._open.clear()
        labels = self._labels()
        numbers = {label: i for i, label in enumerate(dict.fromkeys(labels))}
        places: dict[str, Any] = {
            name: whole_numbers(origin, name, [each.place[i] for each in self._events])
            for i, name in enumerate(Place._fields)
        }
        starts = [each.start for each in self._events]
        durations = [each.duration for each in self._events]
        taken = dict(taken or {})
        if self._numbered:
            is_named = self.options.names
            taken["names"] = "--names" if is_named else f"numbers of {self._numbered}s"
        if category is not None:
            of = category if callable(category) else lambda _: category
            known["categories"] = {name: of(name) for name in numbers}
        notices = tuple(f"{what}: {number:,}" for what, number in self.notices.items())
        return ForeignEvents(
            **places,
            name=np.array([numbers[label] for label in labels], dtype=np.int64),
            start_ns=_ns(origin, "time", starts, tick_ns, is_shifted=True),
            duration_ns=_ns(origin, "duration", durations, tick_ns, is_shifted=False),
            names=tuple(numbers),
            marks=frozenset(
                label for label, of in zip(labels, self._events, strict=True) if of.is_mark
            ),
            tick_ns=tick_ns,
            num_dropped=dict(self.num_dropped),
            fields=self._fields(origin),
            left_out=dict(self.left_out),
            taken=taken,
            **{"kernels": self._kernels, "notices": notices, **known},
        )

    def _labels(self) -> list[str]:
        """Names by which spans and instants differ."""
        of_spans = {each.name for each in self._events if not each.is_mark}
        return [
            f"{each.name} (instant)" if each.is_mark and each.name in of_spans else each.name
            for each in self._events
        ]

    def _fields(self, origin: object) -> dict[str, NDArray[np.int64]]:
        """Arguments that every event has as a whole number, as far as the payload has room."""
        fields: dict[str, NDArray[np.int64]] = {}
        num_bits = 0
        all_args = [each.args or {} for each in self._events]
        for name in all_args[0] if all_args else ():
            values = [args.get(name) for args in all_args]
            if not name.isidentifier() or not all(type(value) is int for value in values):
                continue
            column = whole_numbers(origin, f"argument {name}", values)
            bits = max(2, (int(column.max()) + 1).bit_length())
            if column.min() < 0 or num_bits + bits > PAYLOAD_BITS:
                self.left_out[f"values of argument {name}"] += len(values)
                continue
            fields[name] = column
            num_bits += bits
        return fields


def whole_numbers(origin: object, what: str, numbers: Sequence[Any]) -> NDArray[np.int64]:
    """A column, shape (n,); raises ForeignFormatError for what 64 bits do not hold."""
    try:
        return np.array(numbers, dtype=np.int64)
    except OverflowError as error:
        digits = str(max(numbers, key=abs))
        strange = digits if len(digits) <= 20 else f"{digits[:20]}..."
        raise ForeignFormatError(
            f"{origin}: the {what} {strange} does not fit into 64 bits; fix or remove the event"
        ) from error


def _ns(
    origin: object, what: str, ticks: list[Time], tick_ns: float, *, is_shifted: bool
) -> NDArray[np.int64]:
    """Ticks as ns. Times that are not whole lose precision far from 0, so the first becomes 0."""
    if all(type(tick) is int for tick in ticks):
        whole = whole_numbers(origin, what, ticks)
        if not len(whole) or max(abs(int(whole.min())), abs(int(whole.max()))) * tick_ns < 2.0**62:
            return to_ns(whole, tick_ns)
    values = np.array(ticks, dtype=np.float64)
    first = values.min() if is_shifted and len(values) else 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        ns = np.rint((values - first) * tick_ns)
    # Also false for what is not a number.
    is_possible = np.abs(ns) < 2.0**63
    if not is_possible.all():
        raise ForeignFormatError(
            f"{origin}: the {what} {values[~is_possible][0]:g} is too large for 64 bits of ns; "
            "fix or remove the event, or check --tick-ns"
        )
    return ns.astype(np.int64)


def numbered(values: Iterable[T]) -> dict[T, int]:
    """A number for each: the only or last one in its text where these differ, else by order."""
    distinct = list(dict.fromkeys(values))
    found = [re.findall(r"\d+", str(value)[-200:]) for value in distinct]
    numbers = [int(digits[-1]) for digits in found if digits]
    # A set of larger integers may have one hash for all.
    if max(numbers, default=0) < 1 << 31 and len(set(numbers)) == len(distinct):
        return dict(zip(distinct, numbers, strict=True))
    return {value: i for i, value in enumerate(distinct)}


def unwrapped(ticks: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The low 32 bits of the times of one track in their order, as times that go on."""
    low: NDArray[np.int64] = ticks.astype(np.int64)
    steps = np.diff(low, prepend=low[:1])
    # A step back by less than half the range is an older time, not a wrap.
    wraps: NDArray[np.int64] = np.cumsum(steps < -(1 << 31)) - np.cumsum(steps > 1 << 31)
    return low + (wraps << 32)


def from_options(what: str, given: float | None, default: float) -> tuple[float, str]:
    """The length of a tick and what it was taken from."""
    return (default, what) if given is None else (given, f"--tick-ns {given:g}")


def no_cycle(path: object, why: str = "and does not say how long one is") -> ForeignFormatError:
    """The sentence about a file of cycles, of which nobody says how long they are."""
    return ForeignFormatError(f"{path} counts cycles {why}; give --tick-ns, such as 0.5 for 2 GHz")


def file_per_rank(
    collect: Callable[[Collector, Path, int], object],
    ticks: tuple[str, float | None] | None = None,
    category: CategoryOf | None = None,
    kernel: str = "imported",
    **sources: str,
) -> Callable[[Sequence[Path], ReadOptions], ForeignEvents]:
    """Reads a file per rank, in the order of ranks: `collect` gets each with its rank.

    `ticks` are what times count unless --tick-ns says it, and how long one is in ns; None where
    --tick-ns has to say it. `sources` are from what each thing is taken, the rank from the order of
    the files.
    """

    def read(files: Sequence[Path], options: ReadOptions) -> ForeignEvents:
        found = Collector(options)
        for rank, path in enumerate(files):
            collect(found, path, rank)
        tick_ns, taken = 1.0, {"rank": "the order of the files", **sources}
        if ticks is not None and ticks[1] is not None:
            tick_ns, taken["clock"] = from_options(ticks[0], options.tick_ns, ticks[1])
        elif ticks is not None:
            if options.tick_ns is None:
                raise no_cycle(files[0])
            tick_ns = options.tick_ns
            taken["clock"] = ticks[0].format(tick_ns)
        return found.events(files[0], tick_ns, taken, category, kernel=kernel)

    return read
