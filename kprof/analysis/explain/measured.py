"""What a region took at some places, as tables show it: per block, with what the block had to do.

A finding's own figure is of the replay, which takes waits off. This one is what a reader finds
again: the region's spans of a block in a call, added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from kprof.analysis.calls import launches_of_calls
from kprof.analysis.explain.finding import ExplainedFinding, FindingKind, When
from kprof.analysis.summary import WAIT, Summary, sql_list

# Less more than this nobody would mention.
LEAST_RATIO: Final = 1.05


@dataclass(frozen=True)
class BlockTime:
    """Per block of a call, the mean of those that have the region: its time, its spans, and the
    bytes that they count (0: none)."""

    total_ns: float
    spans: float
    bytes: float


@dataclass(frozen=True)
class Measured:
    """A region where it takes longer, and at the same places in the other recording."""

    longer: BlockTime
    shorter: BlockTime

    @property
    def factor(self) -> float:
        """How many times as long it takes per block."""
        return self.longer.total_ns / self.shorter.total_ns

    @property
    def work(self) -> tuple[float, str] | None:
        """How many times as much a block has to do there, and of what: bytes, or spans where no
        bytes are counted. None where it is as much."""
        here, there = self.longer, self.shorter
        if here.bytes and there.bytes:
            factor, unit = here.bytes / there.bytes, "bytes"
        else:
            factor, unit = here.spans / there.spans, "spans"
        return (factor, unit) if has_changed(1.0, factor) else None


def has_changed(before: float, now: float) -> bool:
    """Whether there is so much more to do, or less, that one would say so."""
    return not 1 / LEAST_RATIO < now / before < LEAST_RATIO


def measured(
    finding: ExplainedFinding,
    longer: tuple[Summary, Sequence[int]],
    shorter: tuple[Summary, Sequence[int]],
) -> Measured | None:
    """What a finding about a region's own time is in the tables; None for every other finding.

    A side is a summary and the calls to look at, by ordinal. None, too, where the tables do not
    show the growth: the region has others within it, whose waits became shorter.
    """
    is_own = finding.kind in (FindingKind.SLOW, FindingKind.SLOW_CALL)
    if not is_own or finding.region is None or finding.when is When.MOVING:
        return None
    here = _block_time(*longer, finding, _places(finding))
    there = _block_time(*shorter, finding, _places(finding)) or _block_time(*shorter, finding, "")
    if here is None or there is None or here.total_ns < LEAST_RATIO * there.total_ns:
        return None
    return Measured(here, there)


def _places(finding: ExplainedFinding) -> str:
    """SQL for where it is; empty for everywhere."""
    if finding.places:
        pairs = ", ".join(f"({rank}, {block})" for rank, block in finding.places)
        return f" AND (rank, block) IN ({pairs})"
    return "".join(
        f" AND {column} IN ({sql_list(numbers)})"
        for column, numbers in (("rank", finding.ranks), ("block", finding.blocks))
        if numbers
    )


def _block_time(
    summary: Summary, ordinals: Sequence[int], finding: ExplainedFinding, places: str
) -> BlockTime | None:
    launches = launches_of_calls(summary)
    chosen = launches[launches["ordinal"].isin(list(ordinals))]
    columns = ["rank", "launch", "ordinal"]
    summary.put("chosen_launches", pa.Table.from_pandas(chosen[columns], preserve_index=False))
    row = summary.frame(
        f"""SELECT sum(total_ns) AS total_ns, sum(events) AS spans, sum(bytes) AS bytes,
            count(DISTINCT (rank, block, ordinal)) AS blocks
        FROM named_cells JOIN chosen_launches USING (rank, launch)
        WHERE region = ? AND NOT ({WAIT}){places}""",
        [finding.region],
    ).to_dict("records")[0]
    if not row["blocks"] or not row["total_ns"]:
        return None
    return BlockTime(*(float(row[name]) / row["blocks"] for name in ("total_ns", "spans", "bytes")))
