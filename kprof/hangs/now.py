"""What keeps ranks at this moment, for `kprof watch`: who waits for whom and for how long, and in
which announced spans kernels are."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Final

from kprof.capture.claims import num_calls_of
from kprof.hangs.asking import ask
from kprof.hangs.evidence import read_run
from kprof.hangs.lines import signature_of
from kprof.hangs.report import lines_of_spans
from kprof.hangs.state import Ages, OpenSpan

_MOST_LINES: Final = 4
_STILL_S: Final = 5.0


class WaitsNow:
    """Looks at the memory that ranks share.

    Only ranks know their announced spans. They are asked when a run has stood still for some looks,
    and again as long as there are spans.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ages = Ages()
        self._signature: object = None
        self._ask_at_s = 0.0
        self._spans: dict[int, tuple[OpenSpan, ...]] = {}

    def look(self, now_s: float) -> list[str]:
        """A line for each rank and the rank that it waits for, the longest wait first; then one for
        each track that is in announced spans."""
        is_asking = self._is_still(now_s)
        if is_asking:
            ask(self._directory, for_records=True)
        run = read_run(self._directory, with_records=is_asking)
        if is_asking:
            self._spans = {rank: state.spans for rank, state in run.ranks.items() if state.spans}
            self._ask_at_s = now_s + _STILL_S if self._spans else math.inf
        ranks = {
            rank: replace(state, spans=self._spans.get(rank, ()))
            for rank, state in run.ranks.items()
        }
        run = self._ages.seen(replace(run, ranks=ranks), now_s)
        spans = [span for state in run.ranks.values() for span in state.spans]
        groups: dict[tuple[int, int], list[OpenSpan]] = defaultdict(list)
        for wait in run.waits:
            groups[wait.rank, wait.peer].append(wait)
        ordered = sorted(groups.values(), key=lambda waits: -max(wait.age_s for wait in waits))
        lines = [_line(waits) for waits in ordered[:_MOST_LINES]]
        left = len(ordered) - _MOST_LINES
        lines += [f"and {left} more ranks that wait"] if left > 0 else []
        return lines + lines_of_spans(spans, _MOST_LINES)

    def _is_still(self, now_s: float) -> bool:
        """Whether it is time to ask: nothing has moved for a while."""
        signature = num_calls_of(self._directory), signature_of(self._directory)
        if signature != self._signature:
            self._signature, self._spans, self._ask_at_s = signature, {}, now_s + _STILL_S
        return now_s >= self._ask_at_s


def _line(waits: list[OpenSpan]) -> str:
    """Of one rank for one other: the longest wait, and how many there are."""
    longest = max(waits, key=lambda wait: wait.age_s)
    goal = "its own blocks" if longest.peer < 0 else f"rank {longest.peer}"
    slot = "" if longest.slot < 0 else f" for slot {longest.slot}"
    age = f"for {longest.age_s:.0f} s" if longest.age_s >= 1 else "for less than 1 s"
    warp = f" warp {longest.warp}" if longest.warp >= 0 else ""
    more = f", and {len(waits) - 1} more" if len(waits) > 1 else ""
    return (
        f"rank {longest.rank} waits for {goal} {age}: block {longest.block}{warp} in "
        f"{longest.region}{slot} ({longest.call}){more}"
    )
