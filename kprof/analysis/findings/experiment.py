"""The experiment that shows whether a finding is a cause: delays in kernels, what the replay
promises of them, and what measured lengths of calls say about that promise.

All other places that have the finding's region get slower. If the finding is right, calls hardly
take longer: the others waited anyway. That is a virtual speed-up of the place, as in Coz. Where a
region has no other place, the place itself gets slower, and the calls with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np

from kprof.analysis.findings.finding import Finding
from kprof.analysis.findings.limits import Limit
from kprof.analysis.findings.when import When
from kprof.analysis.hung import without_hung_calls
from kprof.analysis.replay.columns import grouped
from kprof.analysis.replay.elastic import ElasticReplay, replay_of
from kprof.analysis.replay.graph import Graph
from kprof.analysis.replay.load import calls_to_replay
from kprof.analysis.replay.replay import Change, Edit
from kprof.analysis.replay.spans import Bools, Floats, Ints, Spans
from kprof.analysis.summary import Summary
from kprof.analysis.wording import duration
from kprof.capture.verified import Verdict, Verified
from kprof.errors import SelectionError

# Of what the finding gains: the others may get slower by that and still wait.
_SIZES: Final = (0.0, 0.4, 0.8)
# Where the place itself gets slower, calls take this much longer at least.
_LEAST_OF_CALL: Final = 0.1
# Shorter delays are not what they say: a spin looks at the clock, which has steps.
_LEAST_NS: Final = 100.0
_LEAST_STEPS: Final = 4
# An experiment that would show less shows nothing.
_LEAST_EFFECT: Final = 0.25
# As parts of the delay. A promise is wrong if the interval is further away than this. judged: the
# replay is a model, and its other promises are held to a tenth.
_NEAR: Final = 0.1
# It is right if all of the interval is as near as this: half of a delay is then known from none.
_TOLD: Final = 0.25
_DRAWS: Final = 400

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Experiment:
    """Spans of `region` last longer by `delays_ns`, at ranges [first, end) of `blocks` by rank.

    `promised_ns` are the lengths of the `calls` (ordinals) by delay. `most` is how much longer a
    call takes at most, in ns per ns of delay. `pause_ns`: where calls begin (see `Graph`).
    """

    region: str
    is_at_others: bool
    blocks: dict[int, Ranges]
    delays_ns: tuple[float, ...]
    calls: tuple[int, ...]
    promised_ns: Floats
    most: float
    pause_ns: int | None


def experiment_of(
    summary: Summary, finding: Finding | Limit, *, least_effect: float = _LEAST_EFFECT
) -> Experiment:
    """The experiment about a finding; raises SelectionError where there is none, or it would show
    less than `least_effect`, a part of the delay."""
    if isinstance(finding, Limit):
        _refuse(finding, "it is about the design, and not about a place")
    if why := _why_not(finding):
        _refuse(finding, why)
    healthy = without_hung_calls(summary)
    replayed = None if healthy is None else calls_to_replay(healthy)
    assert replayed is not None, "a finding that has times comes from a replay"
    graph, spans = replayed.graph, replayed.graph.spans
    replay = replay_of(graph)
    if isinstance(replay, ElasticReplay):
        _refuse(finding, "nothing says which waits of a rank end with another one's work")
    is_named = _is_named(finding, spans)
    region = _region(finding, graph, is_named)
    has_it = spans.region == region
    is_at_others = bool((has_it & ~is_named).any())
    at = np.flatnonzero(has_it & (is_named != is_at_others))
    calls = np.flatnonzero(np.isin(replayed.ordinals, finding.costly_calls))
    most = _most(spans, at, calls)
    delays = _delays(finding, graph, calls, most, is_at_others=is_at_others)
    edits = [_edit(graph, at, ns) for ns in delays]
    found = Experiment(
        region=spans.region_names[region],
        is_at_others=is_at_others,
        blocks=_blocks(spans, at),
        delays_ns=delays,
        calls=tuple(replayed.ordinals[call] for call in calls.tolist()),
        promised_ns=replay.call_ends(edits)[:, calls] - graph.call_start[calls],
        most=most,
        pause_ns=graph.pause_ns,
    )
    shown = float(np.median(shown_of(found, found.promised_ns)))
    if (1 - shown if is_at_others else shown) < least_effect:
        _refuse(finding, "others hide it, so that a delay would not tell; mend those first")
    return found


def _refuse(finding: Finding | Limit, why: str) -> NoReturn:
    raise SelectionError(f"finding {finding.id} cannot be tried on the machine: {why}")


def _why_not(finding: Finding) -> str:
    if not finding.is_timed:
        return "it rests on counts, and nothing is known of times"
    if finding.links:
        return "it is about a link, and delays are of places"
    if finding.processors:
        return "it is about an SM (CU), and a delay is of the blocks that it is given"
    if finding.when is When.MOVING:
        return "its place changes from call to call"
    return ""


def _is_named(finding: Finding, spans: Spans) -> Bools:
    """The spans that are at the finding's place."""
    if finding.places:
        pairs = np.array(finding.places, dtype=np.int64)
        return np.isin(spans.rank << 32 | spans.block, pairs[:, 0] << 32 | pairs[:, 1])
    is_rank: Bools = np.isin(spans.rank, finding.ranks) | (not finding.ranks)
    is_block: Bools = np.isin(spans.block, finding.blocks) | (not finding.blocks)
    return is_rank & is_block


def _region(finding: Finding, graph: Graph, is_named: Bools) -> int:
    """The finding's region, or the one that takes the place longest."""
    spans = graph.spans
    if finding.region is not None:
        return spans.region_names.index(finding.region)
    is_work = is_named & ~graph.is_wait
    sums = np.bincount(spans.region[is_work], weights=graph.own_ns[is_work])
    if not len(sums):
        _refuse(finding, "nothing is recorded there but waits")
    return int(sums.argmax())


def _blocks(spans: Spans, at: Ints) -> dict[int, Ranges]:
    """The blocks of some spans, by rank."""
    found = {}
    for rank in np.unique(spans.rank[at]).tolist():
        blocks = np.unique(spans.block[at][spans.rank[at] == rank])
        runs = np.split(blocks, np.flatnonzero(np.diff(blocks) > 1) + 1)
        found[rank] = tuple((int(run[0]), int(run[-1]) + 1) for run in runs)
    return found


def _delays(
    finding: Finding, graph: Graph, calls: Ints, most: float, *, is_at_others: bool
) -> tuple[float, ...]:
    """How much longer a span is to last, of each size."""
    full_ns = float(np.array(finding.gains_ns)[calls].mean())
    if not is_at_others:
        lengths_ns = graph.call_end[calls] - graph.call_start[calls]
        full_ns = max(full_ns, _LEAST_OF_CALL * float(lengths_ns.mean()))
    delays = tuple(size * full_ns / max(1.0, most) for size in _SIZES)
    if delays[1] < max(_LEAST_NS, _LEAST_STEPS * graph.spans.step_ns):
        _refuse(finding, f"a delay of {duration(delays[1])} for each span is too short to make")
    return delays


def _most(spans: Spans, at: Ints, calls: Ints) -> float:
    """How often a track is delayed in a call: the busiest track, in the mean over calls."""
    at = at[np.isin(spans.call[at], calls)]
    if not len(at):
        return 0.0
    example, number = grouped(spans.call[at], spans.track[at])
    busiest = np.zeros(spans.num_calls)
    np.maximum.at(busiest, spans.call[at][example], np.bincount(number))
    return float(busiest[calls].mean())


def _edit(graph: Graph, at: Ints, delay_ns: float) -> Edit:
    """A span ends so much later, whatever it waits for."""
    released = at[(graph.releaser[at] >= 0) | (graph.barrier[at] >= 0)]
    return Edit(
        own=Change(at, np.full(len(at), -delay_ns)),
        travel=Change(released, np.full(len(released), -delay_ns)),
    )


def shown_of(experiment: Experiment, lengths_ns: Floats) -> Floats:
    """Which part of a delay shows in every call: the slope of a line through its lengths by delay
    (delays x calls)."""
    away = np.array(experiment.delays_ns) - np.mean(experiment.delays_ns)
    return away @ lengths_ns / (away**2).sum() / experiment.most


def judge(
    experiment: Experiment,
    lengths_ns: Floats,
    *,
    finding: str = "",
    command: tuple[str, ...] = (),
    created_utc: str = "",
) -> Verified:
    """What `lengths_ns` (delays x rounds x calls) say.

    Of every call the median over rounds counts, and of all calls the one in the middle, by how far
    off its promise it is: where other programs have the cores, single calls take many times as
    long. Rounds are drawn again, all delays of a round together: what disturbs a round, disturbs
    all of it.
    """
    num_rounds = lengths_ns.shape[1]
    promised_of_calls = shown_of(experiment, experiment.promised_ns)
    promised = float(np.median(promised_of_calls))

    def shown(rounds: Ints) -> float:
        typical = np.median(lengths_ns[:, rounds], axis=1)
        return promised + float(np.median(shown_of(experiment, typical) - promised_of_calls))

    every = np.arange(num_rounds)
    measured = shown(every)
    drawn = np.random.default_rng(0).integers(0, num_rounds, (_DRAWS, num_rounds))
    low, high = np.quantile([shown(rounds) for rounds in drawn], [0.05, 0.95]).tolist()
    without = [shown(np.delete(every, i)) for i in range(num_rounds)]
    # So few rounds, drawn again, differ less than rounds do.
    wider = float(np.sqrt(num_rounds / (num_rounds - 1)))
    low = measured - wider * (measured - min(low, *without))
    high = measured + wider * (max(high, *without) - measured)
    typical = np.median(lengths_ns, axis=1)
    return Verified(
        finding=finding,
        region=experiment.region,
        is_at_others=experiment.is_at_others,
        delays_ns=experiment.delays_ns,
        call_ns=tuple(np.median(typical, axis=1).tolist()),
        promised_call_ns=tuple(np.median(experiment.promised_ns, axis=1).tolist()),
        shown=_told(measured),
        low=_told(low),
        high=_told(high),
        promised_shown=_told(promised),
        verdict=_verdict(promised, low, high),
        num_rounds=num_rounds,
        num_calls=lengths_ns.shape[2],
        command=command,
        created_utc=created_utc,
    )


def _told(share: float) -> float:
    """To a tenth of a percent, and never -0."""
    return round(share, 3) or 0.0


def _verdict(promised: float, low: float, high: float) -> Verdict:
    # Where ranks wait in a chain, a delay shows several times.
    scale = max(1.0, abs(promised))
    if not low - _NEAR * scale <= promised <= high + _NEAR * scale:
        return Verdict.NOT_CONFIRMED
    is_told = promised - low <= _TOLD * scale and high - promised <= _TOLD * scale
    return Verdict.CONFIRMED if is_told else Verdict.TOO_NOISY
