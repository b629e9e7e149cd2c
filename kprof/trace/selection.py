"""What users type to select: ranges, durations, sizes and region patterns. Parsed, never evaluated.

ranks, blocks, launches   0-3,7            numbers and inclusive ranges
regions                   dispatch/*,copy  region names with the shell's wildcards
time                      10us..50us       from..to after the first event; an end may be missing
arena size                64MiB            B, KiB, MiB, GiB (binary) or kB, MB, GB (decimal)
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from operator import index
from typing import Any, Final

from kprof.errors import SelectionError

# A selection becomes a list of numbers in a query; more than this is a mistyped range.
_MAX_NUMBERS: Final = 1 << 20
_FOREVER_NS: Final = 1 << 61
_RANGE = re.compile(r"^(\d{1,9})(?:-(\d{1,9}))?$", re.ASCII)
_QUANTITY = re.compile(r"^(\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-zµμ]*)$", re.ASCII)
_TIME_UNITS_NS: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9}
_SIZE_UNITS_BYTES: Final = {
    "": 1,
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
}


@dataclass(frozen=True)
class SelectionText:
    """What the user typed for each option; None where an option was not given."""

    ranks: str | None = None
    blocks: str | None = None
    launches: str | None = None
    regions: str | None = None
    time: str | None = None


# What Python calls one of them, too.
_SINGULAR: Final = {"rank": "ranks", "block": "blocks", "launch": "launches", "region": "regions"}
_NUMBERS: Final = ("ranks", "blocks", "launches")
_WORDS: Final = (*_NUMBERS, "regions", "time", "time_ns")


def fields_of_words(
    words: Mapping[str, Any], region_names: Sequence[str], prefix: str = ""
) -> dict[str, Any]:
    """The fields of Selection that the words of Trace.select mean, or with the prefix -- options;
    raises SelectionError."""
    fields: dict[str, Any] = {}
    for word, value in words.items():
        name = _SINGULAR.get(word, word)
        if name not in _WORDS:
            raise SelectionError(
                f"nothing is selected by {word!r}; select by {', '.join(_WORDS[:-1])} or time_ns"
            )
        field = "time_ns" if name == "time" else name
        if field in fields:
            raise SelectionError(f"{name} is selected twice; give it once")
        fields[field] = None if value is None else _value_of(name, value, region_names, prefix)
    return fields


def _value_of(name: str, value: Any, region_names: Sequence[str], prefix: str) -> tuple[Any, ...]:
    if name in _NUMBERS:
        return _numbers(prefix + name, value)
    if name == "regions" and prefix:
        return match_regions(value, region_names, prefix + name)
    if name == "regions":
        patterns = value.split(",") if isinstance(value, str) else list(value)
        return tuple(dict.fromkeys(_regions_like(patterns, region_names)))
    if isinstance(value, str):
        return parse_time_range(value, prefix + name)
    if not isinstance(value, Sequence) or len(value) != 2:
        raise SelectionError(
            f"{name}: {value!r} is not a pair of numbers; give (from, to) or '10us..50us'"
        )
    return tuple(value)


def _numbers(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        return parse_numbers(value, name)
    try:
        values = list(value) if isinstance(value, Iterable) else [value]
        return tuple(index(number) for number in values)
    except TypeError:
        raise SelectionError(
            f"{name}: {value!r} is no number; "
            "give 1, a list such as [0, 1], or text such as '0-3,7'"
        ) from None


def _regions_like(patterns: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """The names that patterns match; in Python, a region's own name matches only itself."""
    for pattern in patterns:
        yield from [pattern] if pattern in names else _matches(pattern.strip(), names)


def parse_numbers(text: str, what: str) -> tuple[int, ...]:
    """`0-3,7` as (0, 1, 2, 3, 7), sorted and without repetition; raises SelectionError."""
    numbers: set[int] = set()
    where = f"{what} {text!r}"
    for part in map(str.strip, text.split(",")):
        match = _RANGE.match(part)
        if match is None:
            raise SelectionError(
                f"{where}: {part!r} is neither a number nor a range; write it like 0-3,7"
            )
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise SelectionError(f"{where}: the range {part} is empty; write {last}-{first}")
        if last - first >= _MAX_NUMBERS:
            raise SelectionError(
                f"{where}: the range {part} holds more than {_MAX_NUMBERS} numbers; narrow it"
            )
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def match_regions(text: str, names: Sequence[str], what: str = "--regions") -> tuple[str, ...]:
    """The region names that match any of the comma-separated patterns.

    Raises SelectionError if a pattern matches none.
    """
    where = f"{what} {text!r}: "
    patterns = [part.strip() for part in text.split(",")]
    return tuple(dict.fromkeys(chain(*(_matches(each, names, where) for each in patterns))))


def _matches(pattern: str, names: Sequence[str], where: str = "") -> list[str]:
    found = [name for name in names if name == pattern or fnmatch.fnmatchcase(name, pattern)]
    if not found:
        raise SelectionError(f"{where}no region matches {pattern!r}; known: {', '.join(names)}")
    return found


def parse_time_range(text: str, what: str = "--time") -> tuple[int, int]:
    """`10us..50us` in ns after the first event; an end left out is open. Raises SelectionError."""
    first, separator, last = (part.strip() for part in text.partition(".."))
    if not separator or not (first or last):
        raise SelectionError(f"{what} {text!r}: write it like 10us..50us, 10us.. or ..50us")
    start_ns = parse_duration_ns(first, f"{what} {text!r}") if first else 0
    end_ns = parse_duration_ns(last, f"{what} {text!r}") if last else _FOREVER_NS
    if end_ns <= start_ns:
        raise SelectionError(f"{what} {text!r} is empty: its end is not after its start")
    return start_ns, end_ns


def parse_duration_ns(text: str, what: str) -> int:
    """`1.5ms` as 1500000; the unit is required. Raises SelectionError."""
    value = _scale(text, _TIME_UNITS_NS)
    if value is None or value > _FOREVER_NS:
        raise SelectionError(
            f"{what}: {text!r} is not a time; write a number with ns, us, ms or s, like 10us"
        )
    return value


def parse_size_bytes(text: str, what: str) -> int:
    """`64MiB` as 67108864; a plain number is bytes. Raises SelectionError."""
    value = _scale(text.lower(), _SIZE_UNITS_BYTES)
    if value is None:
        raise SelectionError(
            f"{what} {text!r} is not a size; write a number with KiB, MiB or GiB, like 64MiB"
        )
    return value


def _scale(text: str, units: dict[str, int]) -> int | None:
    match = _QUANTITY.match(text.strip())
    if match is None or match[2] not in units:
        return None
    return int(Decimal(match[1]) * units[match[2]])
