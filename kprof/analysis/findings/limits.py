"""What the design of a kernel costs, on top of what stands out: locks, barriers, waves, transfers,
the order of waits.

Nobody is to blame for these, so they are no findings: every block waits at a barrier. But where
nothing stands out, they are what a run is made of. Each is a replay of what the findings leave,
without one thing (`LimitKind.replays`); they overlap, and so they do not add up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import numpy as np

from kprof.analysis.findings.candidates.candidate import Basis
from kprof.analysis.findings.thresholds import FEW_BLOCKS, LONG_NS, LONG_SHARE
from kprof.analysis.replay.design import in_order_of_arrival, waves_dealt_out, without_launch_order
from kprof.analysis.replay.elements import edit_of
from kprof.analysis.replay.graph import Graph
from kprof.analysis.replay.queues import changes_of
from kprof.analysis.replay.replay import Change, Edit, Replay
from kprof.analysis.replay.spans import Floats, Ints
from kprof.analysis.wording import members, percent

# More than any call takes: an edge that is so much shorter holds nobody up.
_GONE_NS: Final = 1e15


class LimitKind(str, Enum):
    """What a limit is, what to do about it, and, for the documentation, what the replay changes."""

    fact: str
    advice: str
    replays: str

    def __new__(cls, name: str, fact: str, advice: str, replays: str) -> LimitKind:
        """A member is its name, with words."""
        kind = str.__new__(cls, name)
        kind._value_, kind.fact, kind.advice, kind.replays = name, fact, advice, replays
        return kind

    LOCK = (
        "lock",
        "Blocks take turns at the lock ({region})",
        "give each block its own part, or combine before taking the lock",
        "everybody gets it at once",
    )
    BARRIER = (
        "barrier",
        "All blocks wait at {region} for the last one",
        "let blocks wait only for the data they need",
        "nobody waits for others there",
    )
    TRANSFERS = (
        "transfers",
        "Blocks wait while data is in flight",
        "send earlier, or overlap transfers with other work",
        "data is there as soon as it is sent",
    )
    ARRIVAL_ORDER = (
        "arrival_order",
        "Waits take peers in a fixed order instead of the order of arrival",
        "poll all peers and take what arrives first",
        "a track takes first what comes first",
    )
    WAVES = (
        "waves",
        "Not all blocks fit at once, and the last wave is not full",
        "choose a grid that fills its last wave, or use persistent blocks",
        "blocks that found no room are dealt out over those that did",
    )
    LAUNCHES = (
        "launches",
        "Every launch waits for all blocks of the previous one",
        "fuse the launches, or let blocks wait only for the data they need",
        "a block begins when its counterpart of the previous launch has ended",
    )
    BETWEEN_LAUNCHES = (
        "between_launches",
        "Nothing that is recorded runs between one launch and the next",
        "capture the launches in a graph, fuse them, or look at what the host does between them; "
        "kernels that are not recorded may run there",
        "a launch begins when the one before it on its rank has ended",
    )
    SERIAL = (
        "serial",
        "Only {who} runs {region}, and the others wait",
        "divide it over the ranks, or move it behind what others wait for",
        "what only one of the ranks does takes no time",
    )
    FEW_BLOCKS = (
        "few_blocks",
        "Few blocks do all the work, and most SMs (CUs) are idle",
        "spread the work over more blocks, at least one per SM",
        "the work is spread over all SMs (CUs); only where fewer than a third of them have a "
        "block, and one works 20 us and half of the call",
    )
    FEW_PRODUCERS = (
        "few_producers",
        "Too few warps run {region}, and the others wait for them",
        "run it on twice as many warps, or let each of them load further ahead",
        "twice as many warps fill a queue between warps of a block; each item takes as long as it "
        "did",
    )
    SHALLOW_QUEUE = (
        "shallow_queue",
        "Warps stall before {region} because their queue is full",
        "double the depth of the queue",
        "that queue has twice as many places",
    )
    SMALL_ITEMS = (
        "small_items",
        "Items of {region} are small, and handing them over takes time",
        "make items twice as large, for half as many flags and waits",
        "two of its items are one: half of the looks at flags, and of the time between spans, is "
        "gone",
    )


@dataclass(frozen=True)
class Limit:
    """What all calls together would get shorter, in ns, and its share of them.

    `region` where it is about one, `blocks` for few blocks: how many there are, for how many
    processors; `ranks` for what is only theirs. `where_ns` and `tracks` are its place in the trace,
    as those of a finding; only the limit that is the headline has one.
    """

    kind: LimitKind
    region: str | None
    gain_ns: float
    share: float
    blocks: tuple[int, int] | None = None
    ranks: tuple[int, ...] = ()
    where_ns: tuple[int, int] | None = None
    tracks: tuple[tuple[int, int], ...] = ()

    @property
    def id(self) -> str:
        """design/lock/lock/acquire, design/few_blocks"""
        return "/".join(["design", self.kind.value, *filter(None, [self.region])])

    @property
    def fact(self) -> str:
        """What the design is."""
        if self.blocks is None:
            return self.kind.fact.format(region=self.region, who=members("rank", self.ranks))
        used, processors = self.blocks
        does = "block does" if used == 1 else "blocks do"
        idle = f"{processors - used} of {processors} SMs (CUs) are idle"
        return f"{used} {does} all the work, and {idle}"

    @property
    def sentence(self) -> str:
        """What the design is, and what another one would save at most."""
        share = percent(self.share)
        return f"{self.fact}; changing this alone would save up to {share}"

    @property
    def by_design(self) -> str:
        """The sentence as it stands beside others."""
        return by_design(self.sentence)

    @property
    def advice(self) -> str:
        """What would change the design."""
        return self.kind.advice


def by_design(text: str) -> str:
    """A text about a design as it stands beside findings."""
    return f"By design: {text[0].lower()}{text[1:]}"


def limits_of(basis: Basis, left: Floats, least_share: float) -> tuple[Limit, ...]:
    """The limits of a run, the largest first.

    `left` is the part of every element that the findings leave.
    """
    graph = _what_is_left(basis, left)
    replay = Replay(graph)
    base = _total_ns(replay)
    before = float((basis.graph.call_end - basis.graph.call_start).sum())
    found: list[Limit] = []
    if before <= 0:
        return ()
    for kind, region, other in _alternatives(replay):
        gain = base - other
        if gain >= least_share * before:
            blocks = _fewest_blocks(graph) if kind is LimitKind.FEW_BLOCKS else None
            ranks: tuple[int, ...] = ()
            if kind is LimitKind.SERIAL:
                its = graph.spans.region == graph.spans.region_names.index(region or "")
                ranks = tuple(np.unique(graph.spans.rank[its]).tolist())
            found.append(Limit(kind, region, gain, gain / before, blocks, ranks))
    return tuple(sorted(found, key=lambda limit: -limit.gain_ns))


def _what_is_left(basis: Basis, left: Floats) -> Graph:
    """The graph without what the findings take off."""
    graph, elements = basis.graph, basis.elements
    chosen = np.flatnonzero(left < 1)
    edit = edit_of(elements, chosen, (elements.value_ns * (1 - left))[chosen])
    return replace(
        graph,
        own_ns=_without(graph.own_ns, edit.own),
        gap_ns=_without(graph.gap_ns, edit.gap),
        travel_ns=_without(graph.travel_ns, edit.travel),
        launch_gap_ns=_without(graph.launch_gap_ns, edit.launch_gap),
    )


def _without(column: Floats, change: Change) -> Floats:
    shorter = column.copy()
    shorter[change.at] -= change.saved_ns
    return shorter


def _total_ns(replay: Replay, edit: Edit | None = None) -> float:
    return float((replay.call_ends([edit or Edit()])[0] - replay.graph.call_start).sum())


def _alternatives(replay: Replay) -> Iterator[tuple[LimitKind, str | None, float]]:
    """Every limit that a graph can have, and what all of its calls take without it."""
    graph = replay.graph
    for kind, region, gone, saved in _edges_gone(graph):
        yield kind, region, _total_ns(replay, Edit(travel=Change(gone, saved)))
    for kind, edit in (
        (LimitKind.WAVES, waves_dealt_out(graph)),
        (LimitKind.FEW_BLOCKS, _spread_over_processors(graph)),
        (LimitKind.BETWEEN_LAUNCHES, _without_pauses(graph)),
    ):
        if edit is not None:
            yield kind, None, _total_ns(replay, edit)
    for name, edit in _of_one_rank(graph):
        yield LimitKind.SERIAL, name, _total_ns(replay, edit)
    for name, filled_by, queued, edit in changes_of(graph):
        filler = graph.spans.region_names[filled_by]
        yield LimitKind[name.upper()], filler, _total_ns(Replay(queued), edit)
    if arrival := in_order_of_arrival(graph, replay):
        yield LimitKind.ARRIVAL_ORDER, None, _total_ns(arrival)
    if free := without_launch_order(graph):
        changed = Replay(free)
        if replay.had_circle or not changed.had_circle:
            yield LimitKind.LAUNCHES, None, _total_ns(changed)


def _edges_gone(graph: Graph) -> Iterator[tuple[LimitKind, str | None, Ints, Floats]]:
    spans = graph.spans
    is_sync = spans.is_of("sync")
    kinds = {
        LimitKind.LOCK: is_sync & ((graph.releaser >= 0) | (graph.queue >= 0)) & (spans.send < 0),
        LimitKind.BARRIER: graph.barrier >= 0,
    }
    for kind, is_member in kinds.items():
        for region in np.unique(spans.region[is_member]).tolist():
            its = np.flatnonzero(is_member & (spans.region == region))
            yield kind, spans.region_names[region], its, np.full(len(its), _GONE_NS)
    travels = np.flatnonzero((graph.releaser >= 0) & (graph.releaser == spans.send))
    across = travels[spans.rank[graph.releaser[travels]] != spans.rank[travels]]
    if len(across):
        yield LimitKind.TRANSFERS, None, across, graph.travel_ns[across]


def _without_pauses(graph: Graph) -> Edit | None:
    """Launches that follow those before them at once, if any follows another in its call."""
    call, before = graph.launch_call, graph.launch_before
    is_within = (before >= 0) & (call[before] == call)
    at = np.flatnonzero(is_within & (graph.launch_gap_ns > 0))
    return Edit(launch_gap=Change(at, graph.launch_gap_ns[at])) if len(at) else None


def _of_one_rank(graph: Graph) -> Iterator[tuple[str, Edit]]:
    """Regions of work that one of several ranks has to itself, and its time taken off."""
    spans = graph.spans
    if len(np.unique(graph.launch_rank)) < 2:
        return
    for region in np.unique(spans.region[~graph.is_wait]).tolist():
        at = np.flatnonzero(~graph.is_wait & (spans.region == region))
        if len(np.unique(spans.rank[at])) == 1:
            yield spans.region_names[region], Edit(own=Change(at, graph.own_ns[at]))


def _spread_over_processors(graph: Graph) -> Edit | None:
    """The work of launches with few blocks, each of which works long.

    Else few blocks are the right choice.
    """
    spans = graph.spans
    processors = spans.launch_processors
    is_few = spans.launch_blocks < FEW_BLOCKS * processors
    work = np.where(graph.is_wait, 0.0, graph.own_ns)
    longest = np.zeros(len(processors))
    of_track = np.bincount(spans.track, weights=work)
    np.maximum.at(longest, spans.launch, of_track[spans.track])
    call_ns = float(np.median(graph.call_end - graph.call_start)) if len(graph.call_end) else 0.0
    is_few &= longest >= max(LONG_NS, LONG_SHARE * call_ns)
    at = np.flatnonzero(is_few[spans.launch] & (work > 0))
    if len(at) == 0:
        return None
    share = 1 - spans.launch_blocks / np.maximum(processors, 1)
    return Edit(own=Change(at, work[at] * share[spans.launch[at]]))


def _fewest_blocks(graph: Graph) -> tuple[int, int]:
    """Blocks and processors of the launch that leaves the most processors idle for its blocks."""
    spans = graph.spans
    ratio = spans.launch_blocks / np.maximum(spans.launch_processors, 1)
    first = int(np.where(spans.launch_processors > 0, ratio, np.inf).argmin())
    return int(spans.launch_blocks[first]), int(spans.launch_processors[first])
