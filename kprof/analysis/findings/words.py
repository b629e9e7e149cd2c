"""The words that kinds of findings share: places, calls, savings, numbers."""

from __future__ import annotations

from typing import Final

from kprof.analysis.findings.facts import Arrival, Facts, GrownRegion
from kprof.analysis.findings.when import When
from kprof.analysis.wording import duration, listed, members, percent, ratio
from kprof.capture.verified import Verified

MOST_WORDS: Final = 25
_MOST_NAMED: Final = 4
_MOST_CALLS: Final = 8


def place(finding: Facts) -> str:
    """Block 3 of rank 2; Ranks 4-7; Host node1 (ranks 8-15); from rank 1 to rank 2."""
    if finding.links:
        return _links(finding)
    if len(finding.places) > 1 and len(finding.ranks) > 1 and len(finding.blocks) > 1:
        return f"{len(finding.places)} blocks of {members('rank', finding.ranks, _MOST_NAMED)}"
    ranks = _ranks(finding) if finding.ranks else "all ranks"
    if finding.processors:
        return f"{members('SM', finding.processors, _MOST_NAMED)} of {ranks}"
    text = (
        f"{members('block', finding.blocks, _MOST_NAMED)} of {ranks}" if finding.blocks else ranks
    )
    return text[0].upper() + text[1:]


def lowered(text: str) -> str:
    """A text as it stands within a sentence."""
    return text[0].lower() + text[1:]


def is_singular(finding: Facts) -> bool:
    """Whether its place takes a verb in the singular."""
    is_group = len(finding.hosts) == 1 or finding.rail is not None
    is_single = (is_group or len(finding.ranks) <= 1) and (
        max(len(finding.blocks), len(finding.processors)) <= 1
    )
    return is_single and bool(finding.ranks or finding.blocks)


def slower(finding: Facts, than: str, *, is_one: bool | None = None) -> str:
    """runs expert 4.8x slower than the rest; without a region: is 4.8x slower than the rest"""
    is_one = is_singular(finding) if is_one is None else is_one
    verb = "runs" if is_one else "run"
    does = f"{verb} {finding.region}" if finding.region else "is" if is_one else "are"
    return f"{does} {ratio(finding.factor)} slower {than}"


def _ranks(finding: Facts) -> str:
    """ranks 4-7; host node1 (ranks 8-15); rail 3 (ranks 3, 11, 19 ... 995)"""
    ranks = members("rank", finding.ranks, _MOST_NAMED)
    if 0 < len(finding.hosts) <= _MOST_NAMED:
        return f"host{'s'[: len(finding.hosts) - 1]} {listed(finding.hosts)} ({ranks})"
    return ranks if finding.rail is None else f"rail {finding.rail} ({ranks})"


def _hosts(finding: Facts) -> str:
    """from host node1 to host node2; between hosts node1 and node2; to host node2"""
    pairs = finding.host_links
    (sources, destinations) = ({pair[i] for pair in pairs} for i in (0, 1))
    if len(pairs) == 2 and sources == destinations and all(a != b for a, b in pairs):
        return f"between hosts {listed(sorted(sources))}"
    if len(pairs) == 1 and sources == destinations:
        return f"within host {pairs[0][0]}"
    parts = [f"from host {pairs[0][0]}"] if len(sources) == 1 else []
    parts += [f"to host {pairs[0][1]}"] if len(destinations) == 1 else []
    is_across = pairs and all(a != b for a, b in pairs)
    return " ".join(parts) or ("between hosts" if is_across else "")


def _links(finding: Facts) -> str:
    """From rank 1 to ranks 2, 3; of links without a common end the number, and rail or hosts."""
    links = finding.links
    sources, destinations = (tuple(sorted({link[i] for link in links} - {-1})) for i in (0, 1))
    if len(sources) > 1 and len(destinations) > 1:
        among = _hosts(finding) if finding.rail is None else f"of rail {finding.rail}"
        return f"on {len(links)} links {among}".rstrip()
    parts = [f"from {members('rank', sources, _MOST_NAMED)}"] if sources else []
    parts += [f"to {members('rank', destinations, _MOST_NAMED)}"] if destinations else []
    return " ".join(parts)


def when(finding: Facts) -> str:
    """In which calls it is, to follow what is wrong; empty for all of them."""
    num_calls = len(finding.gains_ns)
    if finding.when is When.GROWING:
        return ", more with every call"
    if finding.when is When.PERIODIC:
        return f" in every {_ordinal(finding.period)} call"
    if len(finding.calls) == num_calls or finding.when in (When.ONCE, When.ALWAYS):
        return ""
    if len(finding.calls) == 1:
        return f" in 1 of {num_calls} calls (call {finding.calls[0]})"
    return f" in {len(finding.calls)} of {num_calls} calls"


def of_calls(finding: Facts) -> str:
    """every call; 5 of 12 calls"""
    num_calls = len(finding.gains_ns)
    is_every = len(finding.calls) == num_calls
    return "every call" if is_every else f"{len(finding.calls)} of {num_calls} calls"


def saving(finding: Facts) -> str:
    """up to 12 %, all in call 3"""
    if finding.together[0]:
        return f"up to {percent(finding.together[1])}, but only all {finding.together[0]} together"
    share, calls = f"up to {percent(finding.share)}", finding.costly_calls
    if len(calls) >= 0.9 * len(finding.calls) or finding.when in (When.GROWING, When.MOVING):
        return share
    return f"{share}, all in " + (f"call {calls[0]}" if len(calls) == 1 else f"{len(calls)} calls")


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"


def key(finding: Facts) -> str:
    """A finding's place for its id: rank-3, block-3-7, link-1-2, or else its region."""
    if finding.links:
        ends = ["all" if end < 0 else str(end) for link in finding.links[:2] for end in link]
        return f"link-{'-'.join(ends)}"
    parts = [
        f"{name}-{'-'.join(map(str, numbers[:4]))}"
        for name, numbers in (
            ("rank", finding.ranks),
            ("block", finding.blocks),
            ("sm", finding.processors),
        )
        if numbers
    ]
    return "/".join(parts) or finding.region or "all"


def details(finding: Facts) -> tuple[str, ...]:
    """The gain with its interval, in which calls, how fast, and the waits that it causes."""
    lines = []
    if finding.is_hidden:
        alone = duration(max(0.0, finding.alone_ns))
        lines.append(f"Fix the findings above first: alone, this one saves only {alone}")
    count = max(1, len(finding.gains_ns))
    total = duration(finding.total_ns / count) + (" per call" if count > 1 else "")
    if finding.warm_up:
        total += f", without the warm-up in {members('call', finding.warm_up)}"
    low, high = (end_ns / count for end_ns in finding.interval_ns)
    between = f" (90 % interval {duration(low)} to {duration(high)})" if high > low else ""
    lines.append(f"Saves {duration(finding.gain_ns / count)} of {total}{between}")
    calls = finding.costly_calls
    if 0 < len(calls) < len(finding.gains_ns) and len(calls) <= _MOST_CALLS:
        lines.append(f"In {members('call', calls)}")
    if rate := rate_words(*finding.rate):
        lines.append(f"{finding.region} {rate}")
    for wait in finding.waits[:2]:
        whom = "each other" if wait.ranks == wait.peers else members("rank", wait.peers, 4)
        lines.append(
            f"{members('Rank', wait.ranks, 4)} {'waits' if len(wait.ranks) == 1 else 'wait'} for "
            f"{whom} in {wait.region}: {percent(wait.share)} of the blocks' time"
        )
    return tuple(lines)


def arrives(finding: Facts, arrival: Arrival) -> str:
    """arrives 233 us late at AllReduce RING LL"""
    verb = "arrives" if len(finding.ranks) == 1 else "arrive"
    return f"{verb} {duration(arrival.late_ns)} late at {arrival.kernel}"


def chain(finding: Facts) -> tuple[str, ...]:
    """Rank 5 arrives 233 us late at AllReduce RING LL (7 of 8 in a call): 99 % of that goes into
    gemm, which runs before it"""
    arrival = finding.arrival
    if arrival is None:
        return ()
    which = f" ({arrival.place} of {arrival.places} in a call)" if arrival.places > 1 else ""
    why = "no recorded kernel takes the time; the host does, or kernels that are not recorded"
    if arrival.before:
        part = percent(arrival.before_ns / arrival.late_ns)
        why = f"{part} of that goes into {arrival.before}, which runs before it"
    who = members("Rank", finding.ranks, _MOST_NAMED)
    return (f"{who} {arrives(finding, arrival)}{which}: {why}",)


def verified(found: Verified) -> str:
    """Verified on the machine: confirmed; of delays of pack everywhere else, 2 % showed in the
    calls (90 % interval 0 % to 4 %), and 0 % should"""
    where = "everywhere else" if found.is_at_others else "there"
    between = f"90 % interval {percent(found.low)} to {percent(found.high)}"
    return (
        f"Verified on the machine: {found.verdict.value}; of delays of {found.region} {where}, "
        f"{percent(found.shown)} showed in the calls ({between}), and "
        f"{percent(found.promised_shown)} should"
    )


def rate_words(gb_s: float | None, of_ceiling: float | None) -> str:
    """moves 176 GB/s per rank, 41 % of the speed of a copy; empty where nobody knows."""
    if gb_s is None:
        return ""
    beside = f", {percent(of_ceiling)} of the speed of a copy" if of_ceiling is not None else ""
    number = f"{gb_s:,.0f}" if gb_s >= 100 else f"{gb_s:.3g}"
    return f"moves {number} GB/s per rank{beside}"


def growth(finding: Facts, measured: GrownRegion | None, is_gone: bool) -> str:
    """expert of rank 3 takes 2.0x as long per block as before"""
    if finding.links:
        transfers = f"Transfers {place(finding)}".rstrip()
        take, than = ("took", "before") if is_gone else ("take", "as before")
        return f"{transfers} {take} {ratio(finding.factor)} as long {than}"
    as_long = _as_long(finding, measured, is_gone)
    if finding.region:
        takes = "took" if is_gone else "takes"
        is_moving = finding.when is When.MOVING
        where = "one block, a different one each time," if is_moving else lowered(place(finding))
        return f"{finding.region} of {where} {takes} {as_long}"
    takes = "took" if is_gone else "takes" if is_singular(finding) else "take"
    if not finding.ranks and not finding.blocks:
        # A factor would be that of some regions, which the sentence does not name.
        return f"{place(finding)} {takes} longer {'before' if is_gone else 'than before'}"
    return f"{place(finding)} {takes} {as_long}"


def _as_long(finding: Facts, measured: GrownRegion | None, is_gone: bool) -> str:
    times = ratio(measured.factor if measured else finding.factor)
    per = " per block" if measured and not finding.blocks else ""
    text = f"{times} as long{per} {'before' if is_gone else 'as before'}"
    if measured and measured.work:
        return f"{text}, with {ratio(measured.work[0])} the {measured.work[1]}"
    has_waits = measured or finding.when is When.MOVING
    return text if has_waits else f"{text}, waits excluded"
