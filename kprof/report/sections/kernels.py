"""The kernels of a call, by how much longer each makes it; and, where lifetimes of warps are known,
their waves, tails, and the block that stands out."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from kprof.analysis.kernels import BETWEEN
from kprof.analysis.wording import duration, percent
from kprof.report.blocks import Block, Column, Paragraph
from kprof.report.model import Report
from kprof.report.sections import parts
from kprof.report.sections.parts import Figures, Of, table

# From this share on, the time between launches is said in a sentence.
_IS_MUCH: Final = 0.2


def kernels(report: Report, figures: Figures) -> list[Block]:
    """Which kernels make a call long, and what they were compiled to."""
    del figures
    return [*_times(report), *_compiled(report)]


def _compiled(report: Report) -> list[Block]:
    """A row for each kernel of which the compiler said something."""
    return table(
        report.rows("compiled"),
        parts.words("kernel"),
        parts.number("registers"),
        parts.number("spills, bytes", "spill_bytes"),
        parts.number("shared, bytes", "shared_bytes"),
        Of(Column("threads"), lambda row: f"{row['threads']:,}" if row["threads"] else ""),
        _where_known("blocks at most", lambda row: f"{row['blocks_at_most']:.0f}"),
        _where_known("occupancy at most", lambda row: percent(row["occupancy_at_most"])),
        Of(Column("limited by", is_text=True), lambda row: row["limited_by"] or ""),
        title="What kernels take",
        about=_ABOUT_COMPILED,
        what="kernels",
    )


_ABOUT_COMPILED: Final = (
    "Registers and spills of a thread, shared memory of a block without what its launches add, as "
    "the compiler says. At most so many blocks fit an SM (CU) at once; occupancy: their warps over "
    "all that it holds. Of a kernel with several rows, which are its versions, any may have run."
)


def _where_known(name: str, cell: Any) -> Of:
    return Of(Column(name), lambda row: cell(row) if row["limited_by"] else "")


def _times(report: Report) -> list[Block]:
    """A row for each kernel, and one for what lies between launches; nothing of a single kernel."""
    rows = report.rows("kernels")
    own = [row for row in rows if row["kernel"] != BETWEEN]
    if len(own) < 2 or not report.are_times_known:
        return []
    found = table(
        rows,
        Of(Column("kernel", is_text=True), lambda row: row["kernel"] or "(between launches)"),
        _known("launches", lambda row: f"{row['launches']:.3g}"),
        parts.time("time", "path_ns"),
        parts.share("of a call"),
        _known("median launch", lambda row: duration(row["median_ns"])),
        _known("programs", lambda row: f"{row['programs']:,.0f}"),
        _known("waves", lambda row: f"{row['waves']:.1f}"),
        _known("imbalance", lambda row: f"{row['imbalance']:.2f}x"),
        _known("tail", lambda row: duration(row["tail_ns"])),
        title="Kernels",
        about=_ABOUT,
        what="kernels",
        which="those that make a call longest",
    )
    return [*_between(rows), *found]


_ABOUT: Final = (
    "Time: by how much a kernel makes a call longer, per rank and call. Of its median launch: "
    "programs (blocks), waves (programs over the most that ran at a time), imbalance (the longest "
    "program over the mean), tail (its end, with fewer than half of those running)."
)


def _known(name: str, cell: Any) -> Of:
    """A column that says nothing about the time between launches."""
    return Of(Column(name), lambda row: cell(row) if row["kernel"] != BETWEEN else "")


def _between(rows: list[dict[Any, Any]]) -> list[Block]:
    """What to do about the time between launches, where it is much."""
    between = next(row for row in rows if row["kernel"] == BETWEEN)
    if between["share"] < _IS_MUCH:
        return []
    text = (
        f"{percent(between['share'])} of a call ({duration(between['path_ns'])}) lies between "
        "launches: the GPU waits for the host there, or runs kernels that are not recorded, such "
        "as those of cuBLAS. recorder.torch_trace() shows which. If it waits, a CUDA graph saves "
        'most of that: it launches a whole call at once (torch.compile has mode="reduce-overhead").'
    )
    return [Paragraph(text)]


_LONGEST_NAME: Final = 40
# Of a grid: blocks that are so near to each other are named as one place.
_CLOSE: Final = 0.06
# Over the median block, or it is not worth a name.
_STANDS_OUT: Final = 1.2
_ABOUT_LIFETIMES: Final = (
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
    return table(
        sorted(map(_of_kernel, groups.values()), key=lambda row: -row["total_ns"]),
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
        about=_ABOUT_LIFETIMES,
        what="kernels",
        which="those that take most",
    )


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
