"""Whom everybody waits for: the root of a hang, found in the state of all ranks.

    Every open wait is a node. What keeps it open is either a Cause, where the search ends (a rank
    that never launched, a send that never came), or other waits: those of the track that should
    send, where earlier calls tell which track that is, else of all tracks of the peer's launch.
    Waits that lead to no cause lead to a cycle.

The root is the cause that most waits lead to. Nothing here reads a clock, a file or a process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from kprof.hangs.graph import components
from kprof.hangs.state import Call, Condition, OpenSpan, RankState, RunState, Sent, Track


class Kind(IntEnum):
    """What a root is. Where as many waits lead to two, the first of this list is named."""

    ENDED = 1
    STOPPED = 2
    NOT_LAUNCHED = 3
    NOT_SEEN = 4
    NEVER_SENT = 5
    NOT_STARTED = 6
    COMPUTING = 7
    STANDS_STILL = 8
    CYCLE = 9
    UNKNOWN = 10


@dataclass(frozen=True)
class Cause:
    """Why waits stay open.

    `ranks` are those at fault, of a cycle all of them; `call` is the one that they should have
    made, or are in. `waits` is one wait that shows it, of a cycle one wait per track. `sent` is the
    send that is not seen; `twice` are two sends of one slot where another slot was never sent;
    `block` never started, of `num_blocks`; `sender` is the track that sent the slot before.
    """

    kind: Kind
    ranks: tuple[int, ...]
    call: Call | None = None
    waits: tuple[OpenSpan, ...] = ()
    sent: Sent | None = None
    block: int = -1
    num_blocks: int = 0
    twice: tuple[Sent, ...] = ()
    sender: Track | None = None


@dataclass(frozen=True)
class Diagnosis:
    """The causes, the root first, each with the number of waits that lead to it.

    Empty where nobody waits.
    """

    causes: tuple[tuple[Cause, int], ...] = ()

    @property
    def root(self) -> Cause | None:
        """What to look at first."""
        return self.causes[0][0] if self.causes else None

    @property
    def is_moving(self) -> bool:
        """Whether all that is waited for still gets on: slow, not hung."""
        kinds = {cause.kind for cause, _ in self.causes}
        return kinds == {Kind.COMPUTING}


def diagnose(run: RunState) -> Diagnosis:
    """The root of what waits in this state of a run."""
    search = _Search(run)
    behind = {wait: search.behind(wait) for wait in run.waits}
    edges = {wait: found for wait, found in behind.items() if not isinstance(found, Cause)}
    ends: dict[OpenSpan, frozenset[Cause]] = {}
    for component in components(run.waits, lambda wait: edges.get(wait, ())):
        found = {cause for wait in component if isinstance(cause := behind[wait], Cause)}
        # What the component leads to has been looked at, its own waits have not.
        found.update(*(ends.get(other, ()) for wait in component for other in edges.get(wait, ())))
        # Blocks that have not started are a cause only where nothing else keeps those that run.
        others = {cause for cause in found if cause.kind is not Kind.NOT_STARTED}
        causes = frozenset(others or found or {search.deadlock(component, edges)})
        ends |= dict.fromkeys(component, causes)
    counts: Counter[Cause] = Counter()
    for causes in ends.values():
        # What may wait for a rank that moves may end by itself.
        slow = [cause for cause in causes if cause.kind is Kind.COMPUTING]
        counts.update(slow or causes)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0].kind, item[0].ranks))
    return Diagnosis(_united(ordered))


def _united(ordered: Sequence[tuple[Cause, int]]) -> tuple[tuple[Cause, int], ...]:
    """One entry for causes that differ only in the wait that shows them."""
    united: dict[tuple[object, ...], tuple[Cause, int]] = {}
    for cause, count in ordered:
        key = (cause.kind, cause.ranks, cause.call)
        first, so_far = united.get(key, (cause, 0))
        united[key] = first, so_far + count
    found = sorted(united.values(), key=lambda item: (-item[1], item[0].kind, item[0].ranks))
    return tuple(found)


# The waits that keep a wait open.
_Edges = Mapping[OpenSpan, Sequence[OpenSpan]]


class _Search:
    """Answers what keeps a wait open."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._sent = [
            sent for rank in run.ranks.values() if rank.records for sent in rank.records.sent
        ]
        # The kernel that sends in a region; where no send is on record, nobody knows.
        self._kernels = {sent.region: sent.call.kernel for sent in self._sent}

    def behind(self, wait: OpenSpan) -> Cause | tuple[OpenSpan, ...]:
        """Why it is open: a cause, or the waits that keep it so; nothing where nobody knows."""
        peer = wait.rank if wait.peer < 0 else wait.peer
        rank, sending = self._run.ranks.get(peer), self._sending_call(wait)
        if rank is None:
            return Cause(Kind.NOT_LAUNCHED, (peer,), sending, (wait,))
        if sent := next((sent for sent in self._sends(wait) if sent.call == sending), None):
            return Cause(Kind.NOT_SEEN, (peer,), sending, (wait,), sent)
        if rank.condition is Condition.ENDED and not rank.gave_up:
            return Cause(Kind.ENDED, (peer,), sending, (wait,))
        if rank.condition is Condition.STOPPED:
            return Cause(Kind.STOPPED, (peer,), sending, (wait,))
        launch = rank.number_of(sending)
        if launch is not None:
            return self._behind_launch(rank, launch, sending, wait)
        # It may not have got there because its own kernels wait.
        if open_now := tuple(each for each in rank.waits if each != wait):
            return open_now
        kind = Kind.COMPUTING if rank.is_moving or rank.host_moves else Kind.NOT_LAUNCHED
        return Cause(kind, (peer,), sending, (wait,))

    def _behind_launch(
        self, rank: RankState, launch: int, sending: Call, wait: OpenSpan
    ) -> Cause | tuple[OpenSpan, ...]:
        earlier = [each for each in rank.waits if each.track.launch < launch]
        here = [each for each in rank.waits if each.track.launch == launch and each != wait]
        if self._is_past(rank, launch):
            return self._never_sent(rank.rank, sending, wait)
        if earlier:
            return tuple(earlier)
        sender = self._sender(wait, sending, launch)
        if sender is not None and (at := [each for each in here if each.track == sender]):
            return tuple(at)
        # One that waits may have changed its order.
        if sender is not None and not rank.is_moving and self._has_passed(sender, wait, sending):
            return self._never_sent(rank.rank, sending, wait)
        block = self._not_started(rank, launch, None if sender is None else sender.block)
        others = here
        if wait.peer < 0:  # A barrier of the grid: the others are there as well.
            others = [each for each in here if (each.peer, each.region) != (-1, wait.region)]
        if block is not None and not others:
            num_blocks = rank.launches[launch][1]
            return Cause(Kind.NOT_STARTED, (rank.rank,), sending, (wait,), None, block, num_blocks)
        # A sender that has begun and does not wait has ended, or computes.
        if others and (sender is None or block is not None):
            return tuple(others)
        kind = Kind.COMPUTING if rank.is_moving else Kind.STANDS_STILL
        return Cause(kind, (rank.rank,), sending, (wait,), sender=sender)

    def _never_sent(self, rank: int, sending: Call, wait: OpenSpan) -> Cause:
        twice = self._sent_twice(sending, wait)
        return Cause(Kind.NEVER_SENT, (rank,), sending, (wait,), twice=twice)

    def _sent_twice(self, sending: Call, wait: OpenSpan) -> tuple[Sent, ...]:
        """Two sends of another slot to the rank that waits, where earlier calls send that once."""
        senders = self._run.senders.get(wait.region, ())
        by_slot: dict[int, dict[Call, list[Sent]]] = {}
        for sent in self._sent:
            is_alike = (sent.track.rank, sent.peer) == (wait.peer, wait.rank)
            if is_alike and sent.region in senders and sent.call.kernel == sending.kernel:
                by_slot.setdefault(sent.slot, {}).setdefault(sent.call, []).append(sent)
        for slot, calls in by_slot.items():
            here = calls.get(sending, [])
            earlier = [sends for call, sends in calls.items() if call.ordinal < sending.ordinal]
            is_other = slot not in (-1, wait.slot) and len(here) == 2
            if is_other and all(len(sends) == 1 for sends in earlier):
                return tuple(here)
        return ()

    def _has_passed(self, sender: Track, wait: OpenSpan, sending: Call) -> bool:
        """Whether its track has sent in this call what it sent after the slot in the one before."""
        goal = wait.rank, wait.slot
        by_call: dict[int, list[tuple[int, int]]] = {}
        for sent in self._sent:
            at = sent.track
            is_its = (at.rank, at.block, at.warp) == (sender.rank, sender.block, sender.warp)
            if is_its and sent.call.kernel == sending.kernel:
                by_call.setdefault(sent.call.ordinal, []).append((sent.peer, sent.slot))
        here = set(by_call.pop(sending.ordinal, []))
        before = max((n for n, sends in by_call.items() if goal in sends), default=None)
        if before is None or before > sending.ordinal:
            return False
        order = by_call[before]
        return not here.isdisjoint(order[order.index(goal) + 1 :])

    def _is_past(self, rank: RankState, launch: int) -> bool:
        """Whether a launch has ended: the host knows, or a later one of the rank has begun.

        Where its own waits are open still, they are why it did not send: they may have given up,
        and with them the launches after it.
        """
        waiting = [wait.track.launch for wait in rank.waits]
        if launch in waiting or (rank.gave_up and min(waiting) < launch):
            return False
        return (
            launch < rank.num_finished
            or any(wait.track.launch > launch for wait in rank.waits)
            or any(number > launch for number in (rank.records.started if rank.records else ()))
        )

    def _not_started(self, rank: RankState, launch: int, block: int | None) -> int | None:
        """The first block of a launch that has not opened a track, or whether `block` has not."""
        num_blocks = rank.launches[launch][1]
        if rank.records is None or not num_blocks:
            return None
        started = rank.records.started.get(launch, frozenset())
        if not started or len(started) >= num_blocks:
            return None
        if block is not None:
            return None if block in started else block
        return next(number for number in range(num_blocks) if number not in started)

    def _sending_call(self, wait: OpenSpan) -> Call:
        """The call in which the peer sends what is waited for."""
        regions = self._run.senders.get(wait.region, ())
        kernel = next((self._kernels[each] for each in regions if each in self._kernels), None)
        return Call(kernel or wait.call.kernel, wait.call.ordinal)

    def _sends(self, wait: OpenSpan) -> list[Sent]:
        """The sends on record, in any call, that ended such a wait."""
        regions = self._run.senders.get(wait.region, ())
        goal = wait.peer, wait.rank, wait.slot
        return [
            sent
            for sent in self._sent
            if sent.region in regions and (sent.track.rank, sent.peer, sent.slot) == goal
        ]

    def _sender(self, wait: OpenSpan, sending: Call, launch: int) -> Track | None:
        """The track that should send: the one that sent this slot in the latest call before."""
        kernel, ordinal = sending
        before = [
            sent
            for sent in self._sends(wait)
            if sent.call.kernel == kernel and sent.call.ordinal < ordinal
        ]
        latest = max(before, key=lambda sent: sent.call.ordinal, default=None)
        return replace(latest.track, launch=launch) if latest else None

    def deadlock(self, component: Sequence[OpenSpan], edges: _Edges) -> Cause:
        """The cause of waits that lead to nothing but themselves."""
        skipping = [wait for wait in component if self._has_skipped(wait, component)]
        # Of a rank that could not be asked nobody knows whether it skipped its send as well.
        are_known = all(self._run.ranks[wait.rank].records for wait in component)
        if are_known and 0 < len(skipping) < len(component):
            wait = skipping[0]
            waiting = next(each for each in component if each.peer == wait.rank)
            return self._never_sent(wait.rank, wait.call, waiting)
        wait = component[0]
        if len(component) == 1 and wait not in edges.get(wait, ()):
            peer = wait.rank if wait.peer < 0 else wait.peer
            return Cause(Kind.UNKNOWN, (peer,), wait.call, (wait,))
        ranks = tuple(sorted({wait.rank for wait in component}))
        return Cause(Kind.CYCLE, ranks, component[0].call, tuple(component))

    def _has_skipped(self, wait: OpenSpan, component: Sequence[OpenSpan]) -> bool:
        """Whether its track waits although it should have sent first, as it did in other calls."""
        records = self._run.ranks[wait.rank].records
        if records is None:
            return False
        wanted = {
            region
            for other in component
            if other.peer == wait.rank
            for region in self._run.senders.get(other.region, ())
        }
        return any((region, wait.region) in records.send_first for region in wanted)
