"""Guesses about foreign events. Every guess is a sentence that the manifest keeps."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kprof.regions import Category

# The first line with a word of the name decides: "recv-wait" is a wait, "barrier-send" a barrier.
_WORDS: Final = {
    Category.WAIT: "wait waiting await spin poll stall idle acquire",
    Category.SYNC: "sync syncthreads barrier fence lock join rendezvous nccl rccl",
    Category.SEND: "send put push post store write publish broadcast scatter notify",
    Category.RECV: "recv receive get pull fetch load read gather",
    Category.COMPUTE: "compute work copy gemm matmul mma gemv reduce sum add mul expert mlp "
    "attention softmax norm quant dequant cast scale activation epilogue prologue kernel",
}
_MAX_NAMED: Final = 12


def category_of(name: str) -> Category:
    """The category that the words of a name suggest; OTHER where none does."""
    words = set(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()))
    return next((of for of, known in _WORDS.items() if words & set(known.split())), Category.OTHER)


def describe_categories(names: Sequence[str]) -> list[str]:
    """Sentences about the categories of names that no region table declares."""
    by_category: dict[Category, list[str]] = {}
    for name in names:
        by_category.setdefault(category_of(name), []).append(name)
    unknown = by_category.pop(Category.OTHER, [])
    sentences = []
    if by_category:
        said = "; ".join(f"{listed(of)}: {category.value}" for category, of in by_category.items())
        sentences.append(f"categories are guessed from names ({said})")
    if unknown:
        sentences.append(
            f"nothing says what {listed(unknown)} is: its time is neither work nor waiting"
        )
    return sentences


def describe_declared(declared: Sequence[str], found: Iterable[str]) -> list[str]:
    """A sentence for declared regions that no event has: they may be misspelt."""
    names = set(found)
    sentences = []
    for name in declared:
        if name not in names:
            close = difflib.get_close_matches(name, sorted(names - set(declared)), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            sentences.append(f"no event is called {name!r}, which the regions file declares{hint}")
    return sentences


def is_rank_in_ids(rank: NDArray[np.int64], thread: NDArray[np.int64]) -> bool:
    """Whether the thread ids of every rank begin at the rank's number, as in files whose writer
    added it.

    Viewers treat a thread with the id of its process as the main thread, so some writers shift all
    ids.
    """
    lowest = _lowest_of_ranks(rank, thread)
    return len(lowest) > 1 and all(int(least) == int(of) for of, least in lowest.items())


def do_ranks_start_together(rank: NDArray[np.int64], start: NDArray[Any]) -> bool:
    """Whether several ranks all start at one time.

    Then somebody has subtracted each rank's own first time.
    """
    lowest = _lowest_of_ranks(rank, start)
    return len(lowest) > 1 and len(set(lowest.values())) == 1


def _lowest_of_ranks(rank: NDArray[np.int64], values: NDArray[Any]) -> dict[int, Any]:
    return {of: values[rank == of].min() for of in np.unique(rank).tolist()}


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
