"""Twenty kernels that know nothing of kprof, each with one thing planted, and what a report must name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

NUM_LAUNCHES, NUM_SKIPPED = 8, 2
# Of a launch, by its last wave where that was planted.
LEAST_TAIL = 0.25
# Of the launches, in which the planted place must be the slowest.
LEAST_LAUNCHES = 0.75
# Of a grid whose work grows with the number of the block: the last ones differ by less than clocks do.
LAST_BLOCKS = 0.94


@dataclass(frozen=True)
class Shape:
    """A launch of the Triton or the CUDA kernel. `shared` bytes say how many blocks an SM takes."""

    grid: tuple[int, int] = (264, 1)
    warps: int = 4
    body: int = 0
    base: int = 300
    late_block: int = -1
    late_sm: int = -1
    factor: int = 12
    slope: int = 0
    shared: int = 0

    @property
    def num_blocks(self) -> int:
        return self.grid[0] * self.grid[1]


@dataclass(frozen=True)
class Case:
    """`plant` is block, processor, tail or uneven, or nothing; `place` the block or the SM."""

    name: str
    source: str
    kernels: str
    plant: str = ""
    place: int = -1
    shape: Shape = Shape()


def _late(name: str, source: str, shape: Shape) -> Case:
    return Case(name, source, "*planted*", "block", shape.late_block, shape)


def _sm(name: str, source: str, shape: Shape) -> Case:
    return Case(name, source, "*planted*", "processor", shape.late_sm, shape)


def _uneven(name: str, source: str, shape: Shape) -> Case:
    return Case(name, source, "*planted*", "uneven", shape.num_blocks - 1, shape)


def _tail(name: str, source: str, shape: Shape) -> Case:
    return Case(name, source, "*planted*", "tail", -1, shape)


_ONE_AN_SM: Final = 160 << 10

CASES: Final = {
    case.name: case
    for case in (
        _late("triton_block", "triton", Shape(late_block=77)),
        _late("triton_block_loads", "triton", Shape((900, 1), 8, 1, 100, late_block=512)),
        _late("triton_block_2d", "triton", Shape((24, 20), 4, 2, 100, late_block=269)),
        _sm("triton_sm", "triton", Shape((528, 1), late_sm=40)),
        _uneven("triton_uneven", "triton", Shape((132, 1), slope=4)),
        _uneven("triton_uneven_loads", "triton", Shape((132, 1), 8, 1, 100, slope=4)),
        _late("cuda_block", "cuda", Shape(late_block=77)),
        _late("cuda_block_loads", "cuda", Shape((2000, 1), 8, 1, 100, late_block=1500)),
        _late("cuda_block_2d", "cuda", Shape((24, 20), 4, 2, 400, late_block=269)),
        _sm("cuda_sm", "cuda", Shape((1056, 1), late_sm=100)),
        _sm("cuda_sm_loads", "cuda", Shape((528, 1), 8, 1, 100, late_sm=63)),
        _sm("cuda_sm_barriers", "cuda", Shape((264, 1), 8, 2, 400, late_sm=17)),
        _tail("cuda_tail", "cuda", Shape((138, 1), 8, shared=_ONE_AN_SM)),
        _tail("cuda_tail_loads", "cuda", Shape((136, 2), 8, 1, 200, shared=_ONE_AN_SM)),
        _uneven("cuda_uneven", "cuda", Shape((132, 1), slope=4)),
        _uneven("cuda_uneven_barriers", "cuda", Shape((132, 1), 8, 2, 400, slope=4)),
        # Bag 616 is long, and 8 bags go to a block.
        Case("torch_embedding_bag_sum", "torch", "*EmbeddingBag*", "block", 77),
        Case("torch_embedding_bag_max", "torch", "*EmbeddingBag*", "block", 77),
        # One sequence of a batch has ten times the steps, and a block to itself.
        Case("torch_ctc_loss", "torch", "*ctc_loss_log_alpha*", "block", 40),
        # Blocks of 1024 threads: at most two fit on an SM, so that 8 of 272 rows come last.
        Case("torch_softmax_tail", "torch", "*SoftMax*", "tail"),
        # Nothing is planted here: it must be recorded, that is all.
        Case("torch_matmul", "torch", "*"),
    )
}


def judge(case: Case, rows: Sequence[dict[str, Any]], text: str, verdict: str) -> dict[str, Any]:
    """Whether the report of a capture names what was planted.

    `rows` are those of the table `warp_lifetimes`, one per launch; `text` is the report as printed.
    """
    if not rows:
        return {"is_named": False, "why": "no launch is in the report"}
    lacking = [row for row in rows if row["blocks"] != case.shape.num_blocks]
    if lacking and case.source != "torch":
        return {"is_named": False, "why": f"{len(lacking)} launches lack blocks"}
    column = {"processor": "busiest_hw_id", "tail": "waves"}.get(case.plant, "slowest_block")
    hits = [_is_right(case, row) for row in rows]
    said = _SAID.findall(text)
    is_in_text = case.plant in ("tail", "") or any(_is_place(case, words) for words in said)
    values = sorted({row[column] for row in rows})
    return {
        "is_named": sum(hits) >= LEAST_LAUNCHES * len(rows) and is_in_text,
        "launches": len(rows),
        "right_launches": sum(hits),
        "is_in_text": is_in_text,
        "found": values if len(values) <= 4 else [*values[:4], "..."],
        "verdict": verdict,
    }


# The last column of the table by kernel: a block with its processor, a processor, or the first and last of some blocks.
_SAID: Final = re.compile(r"(?:(?:(\d+) on|of) processor (\d+)|(\d+) to \d+) in \d+ of \d+,")


def _is_right(case: Case, row: dict[str, Any]) -> bool:
    if case.plant == "tail":
        is_long = row["tail_ns"] >= LEAST_TAIL * row["duration_ns"]
        return bool(row["waves"] > 1 and is_long and row["slowest_ns"] < 2 * row["median_ns"])
    if case.plant == "uneven":
        return bool(row["slowest_block"] >= LAST_BLOCKS * row["blocks"])
    if case.plant == "processor":
        return bool(row["busiest_hw_id"] == case.place == row["slowest_hw_id"])
    return not case.plant or bool(row["slowest_block"] == case.place)


def _is_place(case: Case, words: tuple[str, str, str]) -> bool:
    block, processor, first = words
    if case.plant == "processor":
        return processor == str(case.place)
    if case.plant == "uneven":
        return int(block or first or -1) >= LAST_BLOCKS * case.shape.num_blocks
    return block == str(case.place)
