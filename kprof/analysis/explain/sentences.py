"""Findings as sentences: the place, what is wrong there, what it costs, and when; and what to do
about it.

Subject first, one number that matters, at most 25 words.
"""

from __future__ import annotations

from typing import Final

from kprof.analysis.explain.finding import ExplainedFinding, FindingKind, When
from kprof.analysis.explain.limits import Limit, LimitKind
from kprof.analysis.explain.measured import Measured, has_changed
from kprof.analysis.wording import duration, members, percent, ratio

MOST_WORDS: Final = 25
_MOST_NAMED: Final = 4


def sentence(finding: ExplainedFinding, num_calls: int, fact: str = "") -> str:
    """What is wrong, when, and what the run would gain; `num_calls` is how many were looked at,
    `fact` what is wrong where more is known than a finding holds."""
    cost = f"costs {percent(finding.share)} of the run"
    return f"{fact or _fact(finding)}{_when(finding, num_calls)}: {cost}{_felt(finding)}"


def _fact(finding: ExplainedFinding) -> str:
    region, ranks, is_one = finding.region, finding.ranks, _is_one(finding)
    fact = _FACTS[finding.kind]
    if finding.kind is FindingKind.SLOW and finding.when is When.MOVING:
        fact = "One block, each time another, takes {times} as long as its likes{for_region}"
    return fact.format(
        where=place(finding),
        s="s" if is_one else "",
        has="has" if is_one else "have",
        times=ratio(finding.factor),
        region=region or "one region",
        for_region=f" for {region}" if region else "",
        before=f" before {region}" if region else "",
        some=f"One in {finding.period} events" if finding.period else "Some events",
        take="takes" if finding.period else "take",
        all_of=f"All blocks of rank {ranks[0]}" if len(ranks) == 1 else "All ranks",
        likes="others" if ranks or finding.blocks else "usual",
    )


_FACTS: Final = {
    FindingKind.LATE_START: "{where} start{s} late",
    FindingKind.IDLE_GAP: "{where} record{s} nothing for a while{before}",
    FindingKind.SLOW: "{where} take{s} {times} as long as {likes}{for_region}",
    FindingKind.SLOW_TRANSFER: "Data {where} travels {times} as long as elsewhere",
    FindingKind.SLOW_EVENTS: "{some} of {region} {take} {times} as long as the others",
    FindingKind.SLOW_CALL: "{all_of} take {times} as long{for_region}",
    FindingKind.UNEVEN_WORK: "{where} {has} {times} as many items{for_region}",
    FindingKind.UNEVEN_BLOCKS: "A few blocks do most of {region}",
}


def growth_sentence(
    finding: ExplainedFinding, num_calls: int, seen: Measured | None, *, is_gone: bool
) -> str:
    """What takes longer than before, when, and what that costs; or took longer before.

    The figure is that of the tables if they show it (`measured.py`), else that of the replay. What
    it costs nobody has measured: it is how much shorter the replay is without it.
    """
    pays = "saves" if is_gone else "costs"
    when = _when(finding, num_calls)
    fact = _growth(finding, seen, is_gone)
    share = percent(finding.share)
    in_full = f"{fact}{when}: {pays} an estimated {share} of the time"
    is_short = len(in_full.split()) <= MOST_WORDS
    return in_full if is_short else f"{fact}{when}: {pays} about {share}"


def growth_detail(seen: Measured, *, is_gone: bool) -> str:
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


def _growth(finding: ExplainedFinding, seen: Measured | None, is_gone: bool) -> str:
    region, where = finding.region, place(finding)
    times = ratio(seen.factor if seen else finding.factor)
    per = " per block" if seen and not finding.blocks else ""
    as_long = f"{times} as long{per} {'before' if is_gone else 'as before'}"
    than = "before" if is_gone else "than before"
    work = seen.work if seen else None
    if work:
        as_long += f", with {ratio(work[0])} the {work[1]}"
    elif not seen and finding.when is not When.MOVING:
        as_long += ", without waits"

    def verb(past: str, one: str, many: str) -> str:
        return past if is_gone else one if _is_one(finding) else many

    if finding.links:
        data = f"Data {where}" if where else "Data"
        if is_gone:
            return f"{data} took {times} as long to arrive before"
        return f"{data} takes {times} as long to arrive as before"
    if finding.kind is FindingKind.LATE_START:
        return f"{where} {verb('started', 'starts', 'start')} later {than}"
    if finding.kind is FindingKind.IDLE_GAP:
        until = f" until {region}" if region else ""
        return f"{where} {verb('recorded', 'records', 'record')} nothing{until} for longer {than}"
    if region:
        is_moving = finding.when is When.MOVING
        of = "one block, each time another," if is_moving else _in(where)
        return f"{region} of {of} {'took' if is_gone else 'takes'} {as_long}"
    if not finding.ranks and not finding.blocks:
        # A factor would be that of some regions, which the sentence does not name.
        return f"{where} {verb('took longer', 'takes longer', 'take longer')} {than}"
    return f"{where} {verb('took', 'takes', 'take')} {as_long}"


def _in(text: str) -> str:
    """A place within a sentence."""
    return text[0].lower() + text[1:]


def _is_one(finding: ExplainedFinding) -> bool:
    is_single = len(finding.ranks) <= 1 and len(finding.blocks) <= 1
    return is_single and bool(finding.ranks or finding.blocks)


def place(finding: ExplainedFinding) -> str:
    """Block 3 of rank 2, Ranks 4-7, from rank 1 to rank 2."""
    if finding.links:
        return _links(finding.links)
    if len(finding.places) > 1 and len(finding.ranks) > 1 and len(finding.blocks) > 1:
        return f"{len(finding.places)} blocks of {members('rank', finding.ranks, _MOST_NAMED)}"
    ranks = members("rank", finding.ranks, _MOST_NAMED) if finding.ranks else "all ranks"
    text = (
        f"{members('block', finding.blocks, _MOST_NAMED)} of {ranks}" if finding.blocks else ranks
    )
    return text[0].upper() + text[1:]


def _links(links: tuple[tuple[int, int], ...]) -> str:
    """From rank 1 to ranks 2, 3; of links without a common end only the number."""
    sources, destinations = (tuple(sorted({link[i] for link in links} - {-1})) for i in (0, 1))
    if len(sources) > 1 and len(destinations) > 1:
        return f"on {len(links)} links"
    parts = [f"from {members('rank', sources, _MOST_NAMED)}"] if sources else []
    parts += [f"to {members('rank', destinations, _MOST_NAMED)}"] if destinations else []
    return " ".join(parts)


def _when(finding: ExplainedFinding, num_calls: int) -> str:
    if finding.when is When.GROWING:
        return ", more with every call"
    if finding.when is When.PERIODIC:
        return f", in every {_ordinal(finding.period)} call"
    if len(finding.calls) == num_calls or finding.when in (When.ONCE, When.ALWAYS):
        return ""
    if len(finding.calls) == 1:
        return f", in call {finding.calls[0]}, one of {num_calls}"
    return f", in {len(finding.calls)} of {num_calls} calls"


def _felt(finding: ExplainedFinding) -> str:
    """Which calls it costs something, where it is in others, too, which are as long without it."""
    calls = finding.costly_calls
    if len(calls) >= 0.9 * len(finding.calls) or finding.when in (When.GROWING, When.MOVING):
        return ""
    return f", in call {calls[0]} only" if len(calls) == 1 else f", in {len(calls)} of these calls"


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"


def advice(finding: ExplainedFinding, targets: frozenset[str]) -> str:
    """What to look at; `targets` are those of the ranks ("cpu", "cuda", "hip")."""
    is_gpu = bool(targets & {"cuda", "hip"})
    if finding.when is When.GROWING:
        return "look for what accumulates from call to call: queues, tables, memory, heat"
    if finding.kind is FindingKind.SLOW and not finding.blocks:
        if finding.region is not None:
            return (
                f"compare the data and the code path of {finding.region} there with the other ranks"
            )
        compare = (
            "clocks, power and links of the device" if is_gpu else "what else runs on its cores"
        )
        return f"compare {compare} with those of the other ranks"
    there = _in(place(finding)) if finding.ranks or finding.blocks else "a rank"
    return _ADVICE[finding.kind].format(region=finding.region or "the region", place=there)


_ADVICE: Final = {
    FindingKind.SLOW: "compare what the block works on, and where it runs, with its neighbours",
    FindingKind.LATE_START: "look at what the host does before it launches the kernel on {place}",
    FindingKind.IDLE_GAP: "put a region around what happens there, or move it behind the sends",
    FindingKind.SLOW_TRANSFER: "check the route of that link, and what else is sent over it",
    FindingKind.SLOW_EVENTS: "look at what is different about those items: "
    "size, address, cache misses",
    FindingKind.SLOW_CALL: "look for what else happens around those calls: "
    "allocations, other work, other inputs",
    FindingKind.UNEVEN_WORK: "divide the items evenly, so that {place} gets fewer",
    FindingKind.UNEVEN_BLOCKS: "spread the work of {region} over all blocks",
}


_OF_LIMITS: Final = {
    LimitKind.LOCK: "Blocks take turns at the lock ({region})",
    LimitKind.BARRIER: "All wait at {region} for the last one",
    LimitKind.TRANSFERS: "Blocks wait while data is on its way",
    LimitKind.ARRIVAL_ORDER: "Waits take peers in a fixed order, not as their data arrives",
    LimitKind.WAVES: "More blocks than fit at once, and the last wave is not full",
    LimitKind.LAUNCHES: "Every launch waits for all blocks of the one before",
    LimitKind.FEW_BLOCKS: "Few blocks do all the work, and most SMs (CUs) have none",
    LimitKind.FEW_PRODUCERS: "Other warps starve for {region}, which too few warps do",
    LimitKind.SHALLOW_QUEUE: "Warps are held back before {region}: their queue is full",
    LimitKind.SMALL_ITEMS: "Handing over the small items of {region} takes time of its own",
}
_ADVICE_OF_LIMITS: Final = {
    LimitKind.LOCK: "give each block a part of its own, or combine before taking the lock",
    LimitKind.BARRIER: "let blocks wait for the data that they need instead of for everybody",
    LimitKind.TRANSFERS: "send earlier, or give blocks other work while data is on its way",
    LimitKind.ARRIVAL_ORDER: "poll all peers and take what is there first",
    LimitKind.WAVES: "choose a grid that fills its last wave, or persistent blocks",
    LimitKind.LAUNCHES: "fuse the launches, or let blocks wait for the data that they need",
    LimitKind.FEW_BLOCKS: "spread the work over more blocks: one per SM and more",
    LimitKind.FEW_PRODUCERS: "give it twice as many warps, or let each of them load further ahead",
    LimitKind.SHALLOW_QUEUE: "give the queue twice as many places",
    LimitKind.SMALL_ITEMS: "make items twice as large: half as many flags and waits",
}


def limit_sentence(limit: Limit) -> str:
    """What the design costs at most, where nothing stands out."""
    fact = _OF_LIMITS[limit.kind].format(region=limit.region)
    if limit.blocks is not None:
        used, processors = limit.blocks
        does = "block does" if used == 1 else "blocks do"
        idle = f"{processors - used} of {processors} SMs (CUs) are idle"
        fact = f"{used} {does} all the work, and {idle}"
    return f"{fact}: costs up to {percent(limit.share)} of the run"


def by_design(limit: Limit) -> str:
    """The same where it stands beside others."""
    return f"By design: {_in(limit_sentence(limit)).replace(': costs', ', which costs')}"


def limit_advice(limit: Limit) -> str:
    """What would change the design."""
    return _ADVICE_OF_LIMITS[limit.kind]
