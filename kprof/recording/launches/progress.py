"""How far a rank is, for other processes while it runs: the numbers of kprof.rank_memory.Live in
its rank-00003.live, which it shares with whoever maps the file.

Only the rank writes. Events are counted when they are written: while a run is drained, after a
flush, or for a dump of a ring.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kprof.capture.claims import live_numbers, ranks_in_use
from kprof.nccl.live import counts_of
from kprof.on_use import pa
from kprof.rank_memory import Live
from kprof.regions import Category, Kind, RegionTable

if TYPE_CHECKING:
    from kprof.nccl.waited import CollectiveWaits

_NUM_LENGTHS: Final = 128
_PER_OCTAVE: Final = 4
NUM_PEERS: Final = 256


class Progress:
    """The side that writes; `words` are the numbers, `now_s` is the clock of steps and calls."""

    def __init__(self, words: memoryview, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.now_s = now_s
        self._words = np.frombuffer(words, dtype=np.uint64)
        self._step_began_s: float | None = None

    def note_step(self) -> None:
        """A step of the workload ends here; from one to the next is the length of a call."""
        self._words[Live.STEPS] += np.uint64(1)
        now_s = self.now_s()
        if self._step_began_s is not None:
            self.add_length(now_s - self._step_began_s)
        self._step_began_s = now_s

    def note_told(self, *, is_told: bool) -> None:
        """Whether the rank has said what it lost; once is enough."""
        self._words[Live.TOLD] |= np.uint64(is_told)

    def note_unrecorded(self) -> None:
        """A launch that nobody records, because the recording stopped."""
        self._words[Live.UNRECORDED] += np.uint64(1)

    def add_length(self, length_s: float) -> None:
        """A call took so long."""
        octaves = math.log2(max(length_s * 1e6, 1.0))
        bucket = min(math.ceil(octaves * _PER_OCTAVE), _NUM_LENGTHS - 1)
        self._words[Live.LENGTHS][bucket] += np.uint64(1)

    def set_counts(self, num_events: int, num_dropped: int) -> None:
        """So many events were written and dropped so far."""
        self._words[Live.EVENTS], self._words[Live.DROPPED] = num_events, num_dropped

    def note_removed(self, num_events: int) -> None:
        """So many of the events that were written are about to be removed."""
        self._words[Live.REMOVED] += np.uint64(num_events)

    def add_waits(self, table: pa.Table, regions: RegionTable) -> None:
        """These events were written: add what their waits for peers took."""
        region = table["region"].to_numpy()
        payload = table["payload"].to_numpy()
        duration_ns = table["duration_ns"].to_numpy()
        for each in regions.regions:
            field = each.field("peer")
            if each.category is not Category.WAIT or each.kind is not Kind.SPAN or field is None:
                continue
            is_wait = region == each.id
            peers = payload >> field.shift & field.mask
            # The largest value means that the peer's number did not fit.
            is_wait &= peers < min(field.mask, NUM_PEERS)
            waited = np.bincount(peers[is_wait], weights=duration_ns[is_wait], minlength=NUM_PEERS)
            self._words[Live.WAITS] += waited.astype(np.uint64)


@dataclass(frozen=True)
class RankProgress:
    """How far a rank is. `num_of_length` counts calls by length, `waited_ns` is by peer."""

    rank: int
    is_running: bool = False
    num_launches: int = 0
    num_calls: int = 0
    num_events: int = 0
    num_dropped: int = 0
    num_steps: int = 0
    num_of_length: tuple[int, ...] = (0,) * _NUM_LENGTHS
    waited_ns: tuple[int, ...] = (0,) * NUM_PEERS

    def length_s(self, quantile: float) -> float | None:
        """A length of calls that this share of them keeps within, at most a fifth too long.

        None where there were no calls.
        """
        sums = np.cumsum(self.num_of_length)
        if not sums[-1]:
            return None
        bucket = int(np.searchsorted(sums, quantile * float(sums[-1])))
        return float(2.0 ** (bucket / _PER_OCTAVE)) / 1e6


def read_progress(
    directory: Path, collectives: CollectiveWaits | None = None
) -> list[RankProgress]:
    """All ranks that have or had a recorder in an unfinished capture. What they wait for in
    collectives is only known to who keeps `collectives` of this directory from look to look."""
    running = set(ranks_in_use(directory))
    found = []
    for rank, words in live_numbers(directory).items():
        lengths, waits = words[Live.LENGTHS], words[Live.WAITS]
        launches, calls, events, dropped, _, steps = words[:6]
        counts = launches, calls, events, dropped, steps
        found.append(RankProgress(rank, rank in running, *counts, lengths, waits))
    return _with_collectives(found, directory, collectives)


def _with_collectives(
    found: Sequence[RankProgress], directory: Path, waits: CollectiveWaits | None
) -> list[RankProgress]:
    """With what NCCL's profiler plugin has recorded: its calls are launches, too."""
    by_rank = {each.rank: each for each in found}
    waited_ns = waits.look(NUM_PEERS) if waits is not None else {}
    for more in counts_of(directory):
        each = by_rank.get(more.rank, RankProgress(more.rank))
        by_rank[more.rank] = replace(
            each,
            is_running=each.is_running or more.is_running,
            num_launches=each.num_launches + more.num_calls,
            num_calls=each.num_calls + more.num_calls,
            num_events=each.num_events + more.num_events,
            num_dropped=each.num_dropped + more.num_lost,
            waited_ns=tuple(np.add(each.waited_ns, waited_ns.get(more.rank, 0)).tolist()),
        )
    return [by_rank[rank] for rank in sorted(by_rank)]


_QUANTILES: Final = (0.5, 0.9, 0.99)


def metrics_text(ranks: Sequence[RankProgress]) -> str:
    """What Prometheus reads."""
    lines: list[str] = []

    def add(name: str, kind: str, text: str, samples: Sequence[tuple[str, float]]) -> None:
        lines.extend([f"# HELP kprof_{name} {text}", f"# TYPE kprof_{name} {kind}"])
        lines.extend(f"kprof_{name}{{{labels}}} {value:.15g}" for labels, value in samples)

    counters = {
        "launches_total": ("num_launches", "Recorded kernel launches."),
        "steps_total": ("num_steps", "Ends of steps: calls of recorder.step()."),
        "calls_total": ("num_calls", "Calls of the recorder: launches and steps."),
        "events_total": ("num_events", "Events that were written."),
        "dropped_events_total": ("num_dropped", "Events that found no room."),
    }
    for name, (field, text) in counters.items():
        add(name, "counter", text, [(f'rank="{r.rank}"', getattr(r, field)) for r in ranks])
    running = [(f'rank="{r.rank}"', float(r.is_running)) for r in ranks]
    add("rank_is_running", "gauge", "Whether the rank's recorder is open.", running)
    lengths = [
        (f'rank="{r.rank}",quantile="{quantile}"', length_s)
        for r in ranks
        for quantile in _QUANTILES
        for length_s in [r.length_s(quantile)]
        if length_s is not None
    ]
    lengths_text = "Length of a step on the host, at most a fifth too long."
    add("step_seconds", "gauge", lengths_text, lengths)
    waits = [
        (f'rank="{r.rank}",peer="{peer}"', waited_ns / 1e9)
        for r in ranks
        for peer, waited_ns in enumerate(r.waited_ns)
        if waited_ns
    ]
    add("waited_seconds_total", "counter", "Time in waits for a peer, of all tracks.", waits)
    return "\n".join(lines) + "\n"
