"""What grew since another recording: as tables show it, and in words.

A finding's own figure is of the replay, which takes waits off. What is measured is what a reader
finds again: the region's spans of a block in a call, added up.
"""

from __future__ import annotations

from collections.abc import Sequence

from kprof.analysis.calls import launches_of_calls
from kprof.analysis.findings import words
from kprof.analysis.findings.facts import BlockTime, GrownRegion, has_changed
from kprof.analysis.findings.finding import Finding
from kprof.analysis.findings.thresholds import LEAST_RATIO
from kprof.analysis.findings.when import When
from kprof.analysis.summary import WAIT, Summary, sql_list
from kprof.analysis.wording import duration, percent, ratio


def measured(
    finding: Finding,
    longer: tuple[Summary, Sequence[int]],
    shorter: tuple[Summary, Sequence[int]],
) -> GrownRegion | None:
    """What a finding about a region's own time is in the tables; None for every other finding.

    A side is a summary and the calls to look at, by ordinal. None, too, where the tables do not
    show the growth: the region has others within it, whose waits became shorter.
    """
    if not finding.kind.is_work or finding.region is None or finding.when is When.MOVING:
        return None
    here = _block_time(*longer, finding, _places(finding))
    there = _block_time(*shorter, finding, _places(finding)) or _block_time(*shorter, finding, "")
    if here is None or there is None or here.total_ns < LEAST_RATIO * there.total_ns:
        return None
    return GrownRegion(here, there)


def _places(finding: Finding) -> str:
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
    summary: Summary, ordinals: Sequence[int], finding: Finding, places: str
) -> BlockTime | None:
    launches = launches_of_calls(summary)
    chosen = launches[launches["ordinal"].isin(list(ordinals))]
    columns = ["rank", "launch", "ordinal"]
    summary.put("chosen_launches", chosen[columns])
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


def growth_sentence(finding: Finding, seen: GrownRegion | None, *, is_gone: bool) -> str:
    """What takes longer than before, when, and what undoing it would save; or what took longer.

    The figure is that of the tables if they show it, else that of the replay. Nobody has measured
    the saving: it is how much shorter the replay is without it.
    """
    fact = f"{finding.kind.growth(finding, seen, is_gone)}{words.when(finding)}"
    share = percent(finding.share)
    in_full = "the change saves" if is_gone else "undoing it would save"
    is_short = len(f"{fact} {in_full} about {share}".split()) <= words.MOST_WORDS
    saves = in_full if is_short else "saves" if is_gone else "costs"
    return f"{fact}; {saves} about {share}"


def growth_detail(seen: GrownRegion, *, is_gone: bool) -> str:
    """What a block took on both sides, and per span and byte where it had more or fewer of them."""
    sides = (seen.longer, seen.shorter) if is_gone else (seen.shorter, seen.longer)
    before, now = sides
    parts = [f"{duration(before.total_ns)} before, {duration(now.total_ns)} now"]
    if has_changed(before.spans, now.spans):
        each = [side.total_ns / side.spans for side in sides]
        parts.append(f"per span {duration(each[0])} before, {duration(each[1])} now")
    if before.bytes and now.bytes and has_changed(before.bytes, now.bytes):
        rates = [side.bytes / side.total_ns for side in sides]
        times = ratio(rates[0] / rates[1])
        parts.append(
            f"per byte {times} as long ({rates[0]:.1f} GB/s of a block before, {rates[1]:.1f} now)"
        )
    return f"Per block of a call: {'; '.join(parts)}"
