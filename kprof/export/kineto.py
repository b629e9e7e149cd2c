"""PyTorch profiler (Kineto) traces beside the events inside the kernels, on one time axis.

A kernel's slice in the profiler's trace encloses everything that its blocks recorded. So for a launch seen from
both sides, profiler [k0, k1] and device [e0, e1], the offset from device to profiler clock lies in [k0 - e0, k1
- e1]; the offset used is the middle of what all launches allow, and the error is at most half of the rest.
Ranks whose clocks are aligned and that run on one host share one offset.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from kprof.errors import ExportError
from kprof.export.model import GuestLine, GuestSlice

if TYPE_CHECKING:
    from kprof.trace import Trace

_KERNEL: Final = "kernel"
_GPU_CATEGORIES: Final = frozenset([_KERNEL, "gpu_memcpy", "gpu_memset"])


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    name: str = ""
    tid: int | str = 0
    # Kept as text: microseconds since an epoch do not fit a double to the nanosecond.
    ts: msgspec.Raw = msgspec.Raw(b"0")
    dur: msgspec.Raw = msgspec.Raw(b"0")


class _Distributed(msgspec.Struct):
    rank: int = 0


class _File(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815
    baseTimeNanoseconds: int = 0  # noqa: N815
    distributedInfo: _Distributed | None = None  # noqa: N815


@dataclass(frozen=True)
class Guests:
    """Lines to draw above the blocks, in aligned ns, and what to say about them."""

    lines: tuple[GuestLine, ...]
    notices: tuple[str, ...]


@dataclass(frozen=True)
class _Profile:
    """One profiler file: slices by line name, in ns of the profiler's clock."""

    rank: int
    lines: dict[str, list[GuestSlice]]

    def kernels(self) -> list[GuestSlice]:
        found = [s for line in self.lines.values() for s in line if s.category == _KERNEL]
        return sorted(found, key=lambda s: s.start_ns)


@dataclass(frozen=True)
class _Tie:
    """Bounds on `profiler ns - aligned ns`, from `num_launches` launches seen from both sides."""

    low_ns: int
    high_ns: int
    num_launches: int

    @property
    def offset_ns(self) -> int:
        return (self.low_ns + self.high_ns) // 2

    @property
    def bound_ns(self) -> int:
        return (abs(self.high_ns - self.low_ns) + 1) // 2


def read_guests(trace: Trace, files: Sequence[Path]) -> Guests:
    """Read one profiler trace per rank and tie its clock to the trace's; raises ExportError."""
    profiles = [_read(Path(file)) for file in files]
    ties = {profile.rank: _tie(trace, profile) for profile in profiles}
    shared = _share(trace, ties)
    lines = tuple(
        GuestLine(
            profile.rank, name, tuple(_shifted(slice_, shared[profile.rank]) for slice_ in slices)
        )
        for profile in profiles
        for name, slices in sorted(profile.lines.items())
    )
    return Guests(lines, tuple(dict.fromkeys(_notice(tie) for tie in shared.values())))


def _read(file: Path) -> _Profile:
    try:
        data = file.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        found = msgspec.json.decode(data, type=_File)
        lines: dict[str, list[GuestSlice]] = {}
        for event in found.traceEvents:
            if event.ph == "X":
                slice_ = _slice(event, found.baseTimeNanoseconds)
                lines.setdefault(_line_name(event), []).append(slice_)
    except (OSError, EOFError, ValueError, ArithmeticError) as error:
        raise ExportError(
            f"cannot read {file} as a trace of the PyTorch profiler: {error}; "
            "give the files that export_chrome_trace wrote"
        ) from error
    # A run of one process writes no distributedInfo.
    return _Profile(found.distributedInfo.rank if found.distributedInfo else 0, lines)


def _line_name(event: _Event) -> str:
    if event.cat in _GPU_CATEGORIES:
        return f"PyTorch stream {event.tid}"
    return f"PyTorch thread {event.tid}"


def _slice(event: _Event, base_ns: int) -> GuestSlice:
    start_ns = base_ns + _nanoseconds(event.ts)
    return GuestSlice(event.name, event.cat, start_ns, start_ns + _nanoseconds(event.dur))


def _nanoseconds(microseconds: msgspec.Raw) -> int:
    from decimal import Decimal

    return int((Decimal(bytes(microseconds).decode().strip('"')) * 1000).to_integral_value())


def _tie(trace: Trace, profile: _Profile) -> _Tie:
    """Match launches by kernel name and order, and intersect what each allows."""
    query = """SELECT kernel, min(start_ns) AS start_ns, max(end_ns) AS end_ns FROM events
               WHERE rank = ? GROUP BY kernel, ordinal ORDER BY kernel, ordinal"""
    launches: dict[str, list[tuple[int, int]]] = {}
    for row in trace.sql(query, [profile.rank]).to_pylist():
        launches.setdefault(row["kernel"], []).append((row["start_ns"], row["end_ns"]))
    pairs: list[tuple[GuestSlice, tuple[int, int]]] = []
    for kernel, spans in launches.items():
        pairs += _match(_named(profile.kernels(), kernel), spans)
    if not pairs:
        raise ExportError(
            f"no kernel of rank {profile.rank} is in both the capture and the profiler's trace; "
            f"the capture has {', '.join(map(repr, launches)) or 'none'}; record both in one run"
        )
    low = max(seen.start_ns - start for seen, (start, _) in pairs)
    high = min(seen.end_ns - end for seen, (_, end) in pairs)
    return _Tie(low, high, len(pairs))


def _named(kernels: list[GuestSlice], name: str) -> list[GuestSlice]:
    """Kernels of this name; the profiler's names may have return types, scopes and arguments around it."""
    pattern = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    return [kernel for kernel in kernels if pattern.search(kernel.name)] if name else []


def _match(
    seen: list[GuestSlice], spans: list[tuple[int, int]]
) -> list[tuple[GuestSlice, tuple[int, int]]]:
    """Pair by order. Where one side saw more launches, the place where the differences of the starts agree
    best wins."""
    num_pairs = min(len(seen), len(spans))
    if num_pairs == 0:
        return []
    shifts = range(-(len(seen) - num_pairs), len(spans) - num_pairs + 1)
    candidates = [
        list(zip(seen[max(0, -s) :], spans[max(0, s) :], strict=False))[:num_pairs] for s in shifts
    ]
    return min(candidates, key=_disagreement)


def _disagreement(pairs: list[tuple[GuestSlice, tuple[int, int]]]) -> int:
    offsets = [kernel.start_ns - start for kernel, (start, _) in pairs]
    return max(offsets) - min(offsets)


def _share(trace: Trace, ties: dict[int, _Tie]) -> dict[int, _Tie]:
    """One tie for the ranks of one host, where their clocks are aligned; else each its own."""
    if trace.alignment is None:
        return ties
    hosts = {info.rank: info.host for info in trace.ranks}
    shared = {}
    for rank in ties:
        group = [ties[other] for other in ties if hosts.get(other) == hosts.get(rank)]
        shared[rank] = _Tie(
            max(tie.low_ns for tie in group),
            min(tie.high_ns for tie in group),
            sum(tie.num_launches for tie in group),
        )
    return shared


def _shifted(slice_: GuestSlice, tie: _Tie) -> GuestSlice:
    start_ns, end_ns = slice_.start_ns - tie.offset_ns, slice_.end_ns - tie.offset_ns
    return GuestSlice(slice_.name, slice_.category, start_ns, end_ns)


def _notice(tie: _Tie) -> str:
    disagree = (
        "" if tie.low_ns <= tie.high_ns else ", although they contradict each other: a clock drifts"
    )
    return (
        f"the PyTorch profiler's clock is tied to the device clock within {tie.bound_ns:,} ns, "
        f"by {tie.num_launches} launches seen from both sides{disagree}"
    )
