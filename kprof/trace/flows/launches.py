"""Which launch answers which: the launch whose waits a launch's sends release, rule by rule.

A launch is identified by its kernel and ordinal, since launch numbers of ranks may differ. A rank
lists its launches in the order of time, also replays of graphs, which get their numbers later. For
a rule, S are the launches that send by it, W those that wait by it, both in the order of launches:

    S1 W1 S2 W2           as many of both: the n-th answers the n-th. S and W may be the same
    S1 S2 W1 S3 W2 W3     launches, and two buffers may be in use in turn
    S1 S2 S3 W1 S4 W2     not as many (here the receivers of S1 and S2 look at other flags): the
                          latest launch before it that sent answers a launch that waits: S3 answers
                          W1, S4 answers W2

By a rule within blocks a launch answers itself.

When records were lost, all launches of kernels that send elsewhere count as launches that send,
because the lost records may be their sends. Launches of different ranks that no rank has in one
sequence have no order: they are matched only where there are as many of both.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kprof.capture.manifest import Manifest, RankInfo
from kprof.regions import FlowRule
from kprof.trace.events import Events


@dataclass(frozen=True, order=True)
class LaunchName:
    """The same launch on all ranks."""

    kernel: str
    ordinal: int


@dataclass(frozen=True)
class Side:
    """One side of a rule in one launch of one rank.

    Sends and waits that belong together have the same `epoch`. `turn` counts the launches that wait
    in one epoch. `group` is a set of launches that exchange data only with each other.
    """

    rule: int
    is_send: bool
    region: int
    rank: int
    launch: int
    epoch: int
    turn: int
    group: int
    num_ends: int


# Ends by (rank, launch, region id).
Counts = Mapping[tuple[int, int, int], int]


def match_launches(
    manifest: Manifest, rules: Sequence[FlowRule], counts: Counts
) -> tuple[Side, ...]:
    """Sides of all rules that have a partner, by group."""
    names = {(rank, launch): LaunchName("", 0) for rank, launch, _ in counts}
    for info in manifest.ranks:
        for launch, name in zip(info.launches, _sequence(info), strict=True):
            names[info.rank, launch.launch] = name
    launches_with = _launches_by_region(manifest, counts, names)
    matches = [_Match.of(manifest.ranks, rule, launches_with) for rule in rules]
    groups = _groups(matches, _positions(manifest.ranks))
    found = [
        side
        for i, (rule, match) in enumerate(zip(rules, matches, strict=True))
        for side in _sides(i, rule, match, counts, names, groups)
    ]
    return tuple(sorted(found, key=lambda side: side.group))


@dataclass(frozen=True)
class _Match:
    """For one rule: every sending launch's epoch, and every waiting launch's (epoch, turn)."""

    sends: dict[LaunchName, int]
    waits: dict[LaunchName, tuple[int, int]]

    @staticmethod
    def of(
        ranks: Sequence[RankInfo], rule: FlowRule, launches_with: defaultdict[int, set[LaunchName]]
    ) -> _Match:
        sending, waiting = launches_with[rule.send], launches_with[rule.wait]
        if rule.in_block:
            both = sorted(sending & waiting, key=_by_ordinal)
            return _nth_with_nth(both, both)
        # Positions of launches on the rank that has most of the wanted ones.
        sequences = [{name: at for at, name in enumerate(_sequence(info))} for info in ranks]
        wanted = sending | waiting
        positions = max(sequences, key=lambda each: len(each.keys() & wanted), default={})
        in_order = positions.keys() >= wanted
        if len(sending) == len(waiting):
            key = positions.__getitem__ if in_order else _by_ordinal
            return _nth_with_nth(sorted(sending, key=key), sorted(waiting, key=key))
        if not in_order:
            return _Match({}, {})
        return _latest_before(
            sorted(sending, key=positions.__getitem__),
            sorted(waiting, key=positions.__getitem__),
            positions,
        )


def _by_ordinal(name: LaunchName) -> tuple[int, str]:
    return name.ordinal, name.kernel


def _nth_with_nth(sending: list[LaunchName], waiting: list[LaunchName]) -> _Match:
    return _Match(
        {name: epoch for epoch, name in enumerate(sending)},
        {name: (epoch, 0) for epoch, name in enumerate(waiting)},
    )


def _latest_before(
    sending: list[LaunchName], waiting: list[LaunchName], positions: Mapping[LaunchName, int]
) -> _Match:
    """A launch may wait for what it sent itself."""
    sent_at = [positions[name] for name in sending]
    turns: dict[int, int] = defaultdict(int)
    waits: dict[LaunchName, tuple[int, int]] = {}
    for name in waiting:
        epoch = bisect.bisect_right(sent_at, positions[name]) - 1
        if epoch >= 0:
            waits[name] = epoch, turns[epoch]
            turns[epoch] += 1
    return _Match({name: epoch for epoch, name in enumerate(sending) if epoch in turns}, waits)


def _launches_by_region(
    manifest: Manifest, counts: Counts, names: Mapping[tuple[int, int], LaunchName]
) -> defaultdict[int, set[LaunchName]]:
    """Launches with events of a region; where events were lost, all launches of their kernels."""
    found: defaultdict[int, set[LaunchName]] = defaultdict(set)
    for rank, launch, region in counts:
        found[region].add(names[rank, launch])
    if is_lossy(manifest):
        for launches in found.values():
            kernels = {name.kernel for name in launches}
            launches |= {name for name in names.values() if name.kernel in kernels}
    return found


def is_lossy(manifest: Manifest) -> bool:
    """Whether events are missing that kernels have emitted."""
    return bool(manifest.missing_ranks) or any(has_lost(info) for info in manifest.ranks)


def has_lost(info: RankInfo) -> bool:
    """Whether events of a rank are missing."""
    counts = info.counts
    damaged = (counts.torn_chunks, counts.unsplit_launches, counts.overwritten_runs)
    return any((counts.dropped, counts.left_out_launches, *damaged))


def _sequence(info: RankInfo) -> list[LaunchName]:
    return [LaunchName(launch.kernel, launch.ordinal) for launch in info.launches]


def _positions(ranks: Sequence[RankInfo]) -> dict[LaunchName, int]:
    """The lowest position of a launch on any rank: about the order in time."""
    positions: dict[LaunchName, int] = {}
    for info in ranks:
        for position, name in enumerate(_sequence(info)):
            positions[name] = min(position, positions.get(name, position))
    return positions


def _groups(matches: list[_Match], positions: Mapping[LaunchName, int]) -> dict[LaunchName, int]:
    """Number the sets of launches that rules connect, in the order of their first launches."""
    parent: dict[LaunchName, LaunchName] = {}

    def root(name: LaunchName) -> LaunchName:
        while parent.setdefault(name, name) != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for match in matches:
        sender = {epoch: name for name, epoch in match.sends.items()}
        for name, (epoch, _) in match.waits.items():
            parent[root(name)] = root(sender[epoch])
    ordered = sorted(parent, key=lambda name: (positions.get(name, 0), name))
    numbers: dict[LaunchName, int] = {}
    for name in ordered:
        numbers.setdefault(root(name), len(numbers))
    return {name: numbers[root(name)] for name in ordered}


def _sides(
    rule_idx: int,
    rule: FlowRule,
    match: _Match,
    counts: Counts,
    names: Mapping[tuple[int, int], LaunchName],
    groups: Mapping[LaunchName, int],
) -> Iterator[Side]:
    for (rank, launch, region), num_ends in counts.items():
        name = names[rank, launch]
        if region == rule.send and name in match.sends:
            epoch, group = match.sends[name], groups[name]
            yield Side(rule_idx, True, region, rank, launch, epoch, 0, group, num_ends)
        if region == rule.wait and name in match.waits:
            (epoch, turn), group = match.waits[name], groups[name]
            yield Side(rule_idx, False, region, rank, launch, epoch, turn, group, num_ends)


def flow_sides(trace: Events) -> tuple[Side, ...]:
    """Match the launches of a whole capture."""
    rules = trace.regions.flows
    return match_launches(trace.manifest, rules, count_ends(trace)) if rules else ()


def count_ends(trace: Events) -> dict[tuple[int, int, int], int]:
    """Sends and waits by (rank, launch, region id), from stored summaries where there are any."""
    regions = {region for rule in trace.regions.flows for region in (rule.send, rule.wait)}
    are_spans = all(trace.regions[region].kind.value == "span" for region in regions)
    # Summaries count spans only.
    stored = {rank for rank, _ in trace.source.summaries} if are_spans else set()
    others = [str(info.rank) for info in trace.manifest.ranks if info.rank not in stored]
    _, rows = trace.rows(
        f"""
        SELECT e.rank, e.launch, r.id, CAST(sum(e.events) AS BIGINT) AS events
        FROM (
            SELECT rank, launch, region, events FROM stored_parts
            WHERE part = 'cell' AND rank IN ({", ".join(map(str, sorted(stored))) or "NULL"})
            UNION ALL
            SELECT rank, launch, region, count(*) AS events FROM raw_events
            WHERE rank IN ({", ".join(others) or "NULL"}) GROUP BY ALL) e
        JOIN raw_regions r ON r.rank = e.rank AND r.local_id = e.region
        WHERE r.id IN (SELECT send FROM flow_rules UNION SELECT wait FROM flow_rules)
        GROUP BY ALL ORDER BY ALL"""
    )
    return {(rank, launch, region): n for rank, launch, region, n in rows}
