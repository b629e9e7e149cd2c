"""Kernels of which every warp's lifetime is known: waves, tails, and the block that stands out."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from kprof.report.blocks import Block, Column
from kprof.report.model import Report
from kprof.report.sections import parts
from kprof.report.sections.parts import Figures, Of, table

_LONGEST_NAME: Final = 40
# Of a grid: blocks that are so near to each other are named as one place.
_CLOSE: Final = 0.06
# Over the median block, or it is not worth a name.
_STANDS_OUT: Final = 1.2
_ABOUT: Final = (
    "Means over launches. Tail: from when half of the processors are done to the end. Late start: "
    "the last block of the first wave after its first. Gap: since the rank's earlier launches "
    "ended. Imbalance: the busiest processor beside the mean."
)


def lifetimes(report: Report, figures: Figures) -> list[Block]:
    """A row per kernel and rank; nothing where no lifetimes were recorded."""
    del figures
    groups: dict[tuple[str, int], list[dict[Any, Any]]] = {}
    for row in report.rows("warp_lifetimes"):
        groups.setdefault((row["kernel"], row["rank"]), []).append(row)
    if not groups:
        return []
    rows = sorted(map(_of_kernel, groups.values()), key=lambda row: -row["total_ns"])
    found = table(
        rows,
        parts.words("kernel"),
        parts.rank(),
        parts.number("launches"),
        parts.number("blocks"),
        parts.number("waves"),
        parts.time("duration", "duration_ns"),
        parts.time("tail", "tail_ns"),
        parts.time("late start", "late_start_ns"),
        parts.time("gap", "gap_ns"),
        Of(Column("imbalance"), lambda row: f"{row['imbalance']:.2f}x"),
        parts.words("slowest block", "slowest"),
        title="Kernels by their warps",
        about=_ABOUT,
        what="kernels",
        which="those that take most",
    )
    return [found]


def _of_kernel(launches: list[dict[Any, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {
        name: _mean([launch[name] for launch in launches if _is_known(launch[name])])
        for name in ("duration_ns", "tail_ns", "late_start_ns", "gap_ns", "imbalance")
    }
    name = launches[0]["kernel"]
    is_long = len(name) > _LONGEST_NAME
    return row | {
        "kernel": f"{name[: _LONGEST_NAME - 3]}..." if is_long else name,
        "rank": launches[0]["rank"],
        "launches": len(launches),
        "blocks": max(launch["blocks"] for launch in launches),
        "waves": max(launch["waves"] for launch in launches),
        "total_ns": sum(launch["duration_ns"] for launch in launches),
        "slowest": _slowest(launches),
    }


def _slowest(launches: list[dict[Any, Any]]) -> str:
    """The block that is the slowest in most launches; or the processor whose blocks are, where
    that is one in more of them; or the first and last of some that are near to each other."""
    blocks = [launch["slowest_block"] for launch in launches]
    ((block, num_block),) = Counter(blocks).most_common(1)
    ((hw_id, num_hw_id),) = Counter(launch["slowest_hw_id"] for launch in launches).most_common(1)
    ratio = _mean([launch["slowest_ns"] / max(1, launch["median_ns"]) for launch in launches])
    if ratio < _STANDS_OUT:
        return "none stands out"
    number, first, last = num_block, min(blocks), max(blocks)
    if num_hw_id > num_block:
        who, number = f"of processor {hw_id}", num_hw_id
    elif first < last and last - first <= _CLOSE * max(launch["blocks"] for launch in launches):
        who, number = f"{first} to {last}", len(launches)
    else:
        pairs = Counter(
            launch["slowest_hw_id"] for launch in launches if launch["slowest_block"] == block
        )
        who = f"{block} on processor {pairs.most_common(1)[0][0]}"
    return f"{who} in {number} of {len(launches)}, {ratio:.1f}x the median"


def _is_known(value: Any) -> bool:
    return value is not None and value == value


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
