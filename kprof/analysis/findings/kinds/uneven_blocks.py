"""Few blocks have most of a region's items."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kprof.analysis.findings import words
from kprof.analysis.findings.candidates.candidate import Candidate, Comparable, Place
from kprof.analysis.findings.candidates.excess import ALL
from kprof.analysis.findings.facts import Where
from kprof.analysis.findings.finding import Finding, Kind, RestsOn
from kprof.analysis.findings.places import worst_beside_idle
from kprof.analysis.findings.thresholds import FLOOR, MOST_LAUNCHES, MOST_OF_WORK, UNEVEN
from kprof.analysis.replay.columns import grouped
from kprof.analysis.replay.elements import Family
from kprof.analysis.summary import Summary
from kprof.analysis.wording import percent

_MOST_LISTED: Final = 64


@dataclass(frozen=True)
class Particulars:
    """Of `launched` blocks, how many have the region: in the launch with the fewest of them and in
    that with the most; and how many have most of it, in the launch in the middle. `blocks` where
    the same few have it in every launch."""

    least: int
    most: int
    with_most: int
    launched: int
    blocks: tuple[int, ...] = ()


class UnevenBlocks(Kind):
    name = "uneven_blocks"
    finds = "few blocks have most of a region's items"
    replays = "the items are dealt out over all blocks of the launch"
    figures = ("blocks-work", "gantt")
    rests_on = frozenset({RestsOn.ALL_EVENTS, RestsOn.ALL_BLOCKS})
    order = 7
    counts_items = True
    fixing = "spreading it"

    def candidates(self, comparable: Comparable) -> list[Candidate]:
        """The region dealt out evenly over all blocks of its launches, idle ones included."""
        return _uneven(comparable) if comparable.family is Family.OWN else []

    def looked_up(self, summary: Summary, finding: Finding) -> Finding:
        """How many blocks work on the region."""
        at_work = _blocks_at_work(summary, finding.region)
        blocks = at_work.blocks if at_work else finding.blocks
        return replace(finding, blocks=blocks, particulars=at_work)

    def shown_at(self, summary: Summary, finding: Finding, ordinal: int) -> Where:
        """The busiest block above an idle one."""
        return worst_beside_idle(summary, finding, ordinal)

    def fact(self, finding: Finding) -> str:
        """expert runs on only 25-29 of 264 blocks; 106 of 264 blocks do 80 % of expert"""
        facts, region = finding.particulars, finding.region or "one region"
        if not isinstance(facts, Particulars):
            return f"{region} runs on only a few blocks{words.when(finding)}"
        if 2 * facts.most <= facts.launched:
            used = f"{facts.least}" if facts.least == facts.most else f"{facts.least}-{facts.most}"
            fact = f"{region} runs on only {used} of {facts.launched:,} blocks"
        else:
            share = percent(MOST_OF_WORK)
            fact = f"{facts.with_most} of {facts.launched:,} blocks do {share} of {region}"
        return f"{fact}{words.when(finding)}"

    def advice(self, finding: Finding) -> str:
        return f"spread the work of {finding.region or 'the region'} over all blocks"


KIND = UnevenBlocks()


def _uneven(one: Comparable) -> list[Candidate]:
    """By numbers of elements, so that what chance makes longer stays."""
    basis, chosen = one.basis, one.chosen
    elements, spans = basis.elements, basis.graph.spans
    at = elements.at[chosen]
    usual = float(elements.value_ns[chosen].mean())
    examples, cell = grouped(spans.launch[at], spans.block[at])
    launch = spans.launch[at][examples]
    count = np.bincount(cell).astype(float)
    total = np.bincount(launch, weights=count, minlength=len(spans.launch_blocks))
    blocks = spans.launch_blocks[launch]
    even = np.ceil(total[launch] / blocks)
    # Where a block takes the place of one that ends, light blocks make up for heavy ones.
    takes_place = (basis.graph.before >= 0) & (spans.previous < 0)
    is_dealt_out = np.isin(launch, spans.launch[takes_place])
    has_many = (count > UNEVEN * even) & ~is_dealt_out
    # A block that has too many on one rank has a surplus. A region is dealt out unevenly where it
    # is so everywhere.
    if len(np.unique(launch[has_many])) <= MOST_LAUNCHES * len(np.unique(launch)):
        return []
    if usual * float((count - even)[has_many].max(initial=0.0)) < 3 * FLOOR * basis.call_ns:
        return []
    factor = np.where(is_dealt_out, 1.0, np.minimum(1.0, even / count))[cell]
    saved = elements.value_ns[chosen] * (1 - factor)
    excess = np.zeros(basis.num_calls)
    np.maximum.at(excess, elements.call[chosen], -np.log(factor))
    is_in = saved > 0
    what = (Place(ALL, ALL),), one.classes, excess, chosen[is_in], saved[is_in]
    # As many in each block that has any, or one more or less where they take them from a counter,
    # and as many blocks in each launch: so it was written.
    used = np.bincount(launch)[launch]
    is_even = (np.abs(count - total[launch] / used) < 1).all()
    is_by_design = bool(is_even and np.ptp(used) == 0)
    if is_by_design and 2 * used[0] > blocks.min():
        # The few others have another role.
        return []
    return [
        Candidate(KIND.name, *what, is_alone=True, counts_items=True, is_by_design=is_by_design)
    ]


def _blocks_at_work(summary: Summary, region: str | None) -> Particulars | None:
    """The numbers of blocks that have events of a region; None where there are none."""
    table = summary.frame(
        f"""WITH its AS (SELECT rank, launch, block, sum(events) AS events FROM named_cells
                WHERE region = ? GROUP BY ALL),
            added AS (SELECT *, sum(events) OVER w - events AS before,
                sum(events) OVER (PARTITION BY rank, launch) AS total FROM its
                WINDOW w AS (PARTITION BY rank, launch ORDER BY events DESC, block)),
            seen AS (SELECT rank, launch, max(block) + 1 AS blocks FROM tracks GROUP BY ALL)
        SELECT count(*) AS used,
            count(*) FILTER (before < {MOST_OF_WORK} * total) AS most,
            list(block ORDER BY block)[:{_MOST_LISTED + 1}] AS blocks,
            greatest(any_value(s.blocks), coalesce(any_value(l.num_blocks), 0)) AS launched
        FROM added JOIN seen s USING (rank, launch)
            LEFT JOIN launches l USING (rank, launch)
        GROUP BY rank, launch ORDER BY used, most, launched""",
        [region],
    )
    if table.empty:
        return None
    middle = (len(table) - 1) // 2
    blocks = {tuple(int(block) for block in listed) for listed in table["blocks"]}
    most, launched = int(table["used"].max()), int(table["launched"].iloc[middle])
    are_same = len(blocks) == 1 and most <= min(_MOST_LISTED, launched // 2)
    return Particulars(
        least=int(table["used"].min()),
        most=most,
        with_most=int(table["most"].iloc[middle]),
        launched=launched,
        blocks=blocks.pop() if are_same else (),
    )
