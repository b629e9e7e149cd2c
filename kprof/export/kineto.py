"""PyTorch profiler (Kineto) traces on the time axis of the events inside the kernels."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Final

import msgspec

from kprof.capture.checks import EVENT_BOUNDS
from kprof.capture.files import read_maybe_gzipped
from kprof.capture.torch_traces import HOST_CATEGORY, HOST_PREFIX, rank_of_torch_trace
from kprof.errors import ExportError
from kprof.export.model import OverlayLine, OverlaySlice
from kprof.export.torch_clock import Tie, share, tie
from kprof.trace import Trace

# The same bounds as for the events of a capture.
_MAX_TIME_NS: Final = EVENT_BOUNDS["start_ns"][1]
_MAX_DURATION_NS: Final = EVENT_BOUNDS["duration_ns"][1]
_KERNEL: Final = "kernel"
_STREAM: Final = "PyTorch stream"
# Of a host's trace of NCCL: from the call of each collective until the host saw it end.
_HOST_KERNELS: Final = "collectives"
# A slice that covers everything, on a thread that does not exist.
_WHOLE_PROFILE: Final = "Trace"
_GPU_CATEGORIES: Final = frozenset([_KERNEL, "gpu_memcpy", "gpu_memset"])


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    name: str = ""
    tid: int | str = 0
    # Text, because a double cannot hold microseconds since an epoch to the nanosecond.
    ts: msgspec.Raw = msgspec.Raw(b"0")
    dur: msgspec.Raw = msgspec.Raw(b"0")


class _Distributed(msgspec.Struct):
    rank: int = 0


class _File(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815
    baseTimeNanoseconds: int = 0  # noqa: N815
    distributedInfo: _Distributed | None = None  # noqa: N815


@dataclass(frozen=True)
class _Profile:
    """One profiler file: slices by the name of their line, in ns of the profiler's clock."""

    rank: int
    lines: dict[str, list[OverlaySlice]]

    def kernels(self) -> list[OverlaySlice]:
        """The slices that enclose launches: GPU kernels, or CPU slices with a kernel's name."""
        everything = [slice_ for line in self.lines.values() for slice_ in line]
        return [slice_ for slice_ in everything if slice_.category == _KERNEL] or everything


def read_overlays(
    trace: Trace, files: Sequence[Path]
) -> tuple[tuple[OverlayLine, ...], tuple[str, ...]]:
    """Lines to draw above the blocks, in aligned ns, and notices about them.

    Reads profiler traces and aligns their clocks with the trace's. Raises ExportError.

    One file per rank, or several with parts of one run. If launches or a time are selected, only
    slices there are kept.
    """
    if not files:
        return (), ()
    # Aligns the clocks with the whole capture, even if only a part is shown.
    whole = trace.select(ranks=None, blocks=None, launches=None, regions=None, time_ns=None)
    shown = {info.rank for info in trace.ranks}
    profiles = [profile for profile in map(_read, files) if profile.rank in shown]
    stretches: dict[int, list[list[OverlaySlice]]] = {}
    lines: dict[int, dict[str, list[OverlaySlice]]] = {}
    for profile in profiles:
        stretches.setdefault(profile.rank, []).append(profile.kernels())
        for name, slices in profile.lines.items():
            lines.setdefault(profile.rank, {}).setdefault(name, []).extend(slices)
    ties = share(whole, {rank: tie(whole, rank, seen) for rank, seen in stretches.items()})
    window_ns = _window_ns(trace)
    overlays = tuple(
        OverlayLine(rank, name, _on_clock(slices, ties[rank], window_ns))
        for rank, of_rank in lines.items()
        for name, slices in sorted(of_rank.items(), key=_place)
    )
    return overlays, (_notice(ties, files),) if ties else ()


def _window_ns(trace: Trace) -> tuple[int, int] | None:
    selection = trace.selection
    is_part = selection.launches is not None or selection.time_ns is not None
    return trace.window_ns() if is_part else None


def _on_clock(
    slices: Sequence[OverlaySlice], tie: Tie, window_ns: tuple[int, int] | None
) -> tuple[OverlaySlice, ...]:
    """Slices in aligned time. With a window, only those that overlap it."""
    moved = (
        replace(s, start_ns=tie.aligned_ns(s.start_ns), end_ns=tie.aligned_ns(s.end_ns))
        for s in slices
    )
    if window_ns is None:
        return tuple(moved)
    first, last = window_ns
    return tuple(s for s in moved if s.start_ns <= last and s.end_ns >= first)


def _read(file: Path) -> _Profile:
    try:
        found = msgspec.json.decode(read_maybe_gzipped(file), type=_File)
        lines: dict[str, list[OverlaySlice]] = {}
        for event in found.traceEvents:
            if event.ph == "X" and event.cat != _WHOLE_PROFILE:
                slice_ = _slice(event, found.baseTimeNanoseconds)
                lines.setdefault(_line_name(event), []).append(slice_)
    except (OSError, EOFError, ValueError, ArithmeticError, RecursionError, zlib.error) as error:
        raise ExportError(
            f"cannot read {file} as a trace of the PyTorch profiler: {error}; "
            "give the files that export_chrome_trace wrote"
        ) from error
    stored_rank = rank_of_torch_trace(file)
    if stored_rank is not None:
        return _Profile(stored_rank, lines)
    # The profiler writes no distributedInfo for a single process.
    return _Profile(found.distributedInfo.rank if found.distributedInfo else 0, lines)


def _line_name(event: _Event) -> str:
    if event.cat == HOST_CATEGORY or event.tid == _HOST_KERNELS:
        return f"NCCL {event.tid}"
    if event.cat in _GPU_CATEGORIES:
        return f"{_STREAM} {event.tid}"
    return f"PyTorch thread {event.tid}"


def _place(line: tuple[str, list[OverlaySlice]]) -> tuple[bool, int]:
    """The busiest threads first, streams last, next to the blocks."""
    name, slices = line
    return name.startswith(_STREAM), -len(slices)


def _slice(event: _Event, base_ns: int) -> OverlaySlice:
    start_ns = base_ns + _nanoseconds(event.ts)
    duration_ns = _nanoseconds(event.dur)
    if abs(start_ns) > _MAX_TIME_NS or not 0 <= duration_ns <= _MAX_DURATION_NS:
        raise ValueError(f"{event.name!r} is at {start_ns} ns for {duration_ns} ns")
    return OverlaySlice(event.name, event.cat, start_ns, start_ns + duration_ns)


def _nanoseconds(microseconds: msgspec.Raw) -> int:
    value = Decimal(bytes(microseconds).decode().strip('"')) * 1000
    # Before the conversion to int: 1e999999999 would have a billion digits.
    if not abs(value) <= _MAX_TIME_NS:
        raise ValueError(f"{value} ns is not a time")
    return int(value.to_integral_value())


def _notice(ties: Mapping[int, Tie], files: Sequence[Path]) -> str:
    """One sentence for all ranks, with the worst of their bounds."""
    worst = max(ties, key=lambda rank: ties[rank].bound_ns)
    at_worst = f" at worst (rank {worst})" if len(ties) > 1 else ""
    drift = max((abs(tie.drift) for tie in ties.values()), default=0.0)
    drifting = f", drifting by {drift * 1e6:.2f} us per second" if drift else ""
    broken = [str(rank) for rank, tie in ties.items() if not tie.is_consistent]
    but = f"; on rank {', '.join(broken)} they contradict each other" if broken else ""
    num_launches = sum(tie.num_launches for tie in ties.values())
    is_host = all(file.name.startswith(HOST_PREFIX) for file in files)
    whose = "host" if is_host else "PyTorch profiler"
    return (
        f"the {whose}'s clock is aligned with the device clock within "
        f"{ties[worst].bound_ns:,} ns{at_worst}"
        f"{drifting}, by {num_launches} launches seen from both sides{but}"
    )
