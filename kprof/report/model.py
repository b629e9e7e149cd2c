"""The report: everything that its three forms (terminal, HTML, JSON) show, computed once."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kprof import analysis
from kprof.analysis.rules.measure import run_time_ns
from kprof.analysis.rules.warmup import steady_part
from kprof.analysis.summary import summarise
from kprof.analysis.timeline import Focus, activity, focus, longest_spans
from kprof.analysis.wording import counted, duration
from kprof.errors import ClockError, SelectionError
from kprof.report.verdict import verdict_of

if TYPE_CHECKING:
    import pandas as pd

    from kprof.analysis import Finding
    from kprof.capture.manifest import Manifest
    from kprof.trace import Trace

Progress = Callable[[str, float], None]
_RANKS_IN_BLOCK_VIEW: Final = 2
_MAX_EVENTS_SORTED: Final = 5_000_000


@dataclass(frozen=True)
class Report:
    """Tables of a trace and what stands out in them.

    Tables that need one clock are None where the clocks are not aligned; `refused` then holds a sentence for
    each. `remedy` is what would help against what the verdict says, or empty. `efficiency` is that of the run without
    its first call where that was a warm-up, whose ordinal is `warm_up`.
    """

    manifest: Manifest
    num_events: int
    num_launches: int
    run_time_ns: float
    window_ns: tuple[int, int]
    verdict: str
    remedy: str
    findings: tuple[Finding, ...]
    refused: dict[str, str]
    regions: pd.DataFrame
    rank_efficiency: pd.DataFrame
    efficiency: pd.DataFrame | None
    warm_up: int | None
    launch_efficiency: pd.DataFrame | None
    launch_skew: pd.DataFrame | None
    late_sender: pd.DataFrame | None
    waits_by_rank: pd.DataFrame
    waits_by_region: pd.DataFrame
    waits_by_peer: pd.DataFrame
    imbalance_by_rank: pd.DataFrame
    imbalance_by_block: pd.DataFrame
    blame: pd.DataFrame
    blame_matrix: pd.DataFrame
    unmatched_flows: pd.DataFrame
    histogram: pd.DataFrame
    stragglers: pd.DataFrame
    ramp_and_tail: pd.DataFrame
    barrier_waits: pd.DataFrame
    bandwidth: pd.DataFrame
    stalls: pd.DataFrame | None
    critical_path: pd.DataFrame | None
    critical_regions: pd.DataFrame | None
    what_if: pd.DataFrame | None
    delay_costs: pd.DataFrame | None
    focus: Focus
    activity: pd.DataFrame
    spans: pd.DataFrame
    view_command: str = "kprof view RUN"

    @property
    def size(self) -> str:
        """What the report is of, in words: ranks, launches, events, time in kernels."""
        ranks = (
            f"{len(self.manifest.ranks)} of {counted(self.manifest.world_size, 'rank', 'ranks')}"
        )
        launches = counted(self.num_launches, "launch", "launches")
        events = counted(self.num_events, "event", "events")
        return f"{ranks}, {launches}, {events}, {duration(self.run_time_ns)} in kernels"

    def command_for(self, finding: Finding) -> str:
        """What opens the trace on a finding; empty for one that no stretch of the trace shows."""
        if finding.where_ns is None:
            return ""
        return f"{self.view_command} --finding {shlex.quote(finding.id)}"

    def telling_ranks(self, at_most: int) -> list[int]:
        """All ranks where they are few; else those that findings name, then those that were waited for longest."""
        recorded = [info.rank for info in self.manifest.ranks]
        if len(recorded) <= at_most:
            return recorded
        named = [rank for finding in self.findings for rank in finding.ranks]
        waited_for = self.stragglers.sort_values("caused_ns", ascending=False, kind="stable")
        order = dict.fromkeys([*named, *waited_for["rank"].tolist(), *recorded])
        return sorted([rank for rank in order if rank in set(recorded)][:at_most])

    @property
    def reasons(self) -> dict[str, str]:
        """Why tables are missing, each reason once: a sentence -> what is missing for it."""
        names: dict[str, list[str]] = {}
        for name, sentence in self.refused.items():
            # "late sender needs the ranks on one clock": the same is said of all that need it.
            _, needs, reason = sentence.partition(" needs ")
            names.setdefault(f"this needs {reason}" if needs else sentence, []).append(name)
        return {
            reason: ", ".join(of).replace("_", " ").replace("what if", "what-if")
            for reason, of in names.items()
        }


def build(
    trace: Trace, *, progress: Progress | None = None, view_command: str = "kprof view RUN"
) -> Report:
    """Compute the report of a trace; `view_command` is how its reader opens that trace.

    `progress(what, share)` is called along the way, share from 0 to 1. Works on every trace: what makes no
    sense for one (no events, no waits, one rank, unaligned clocks) is empty or refused with a sentence.
    """
    say = progress or (lambda _what, _share: None)
    summarise(trace, lambda what, share: say(what, 0.6 * share))
    say("findings", 0.6)
    found = tuple(analysis.findings(trace))
    steady, notes = steady_part(trace)
    say("tables", 0.85)
    refused: dict[str, str] = {}
    over = focus(trace)
    num_events = trace.num_events()
    verdict = verdict_of(trace, found, num_events)
    path = _aligned(refused, "critical_path", analysis.critical_path, trace)
    report = Report(
        manifest=trace.manifest,
        num_events=num_events,
        num_launches=len(analysis.launch_starts(trace)[["kernel", "ordinal"]].drop_duplicates()),
        run_time_ns=run_time_ns(trace),
        window_ns=_window_ns(trace),
        verdict=verdict.text,
        remedy=verdict.remedy,
        findings=found,
        refused=refused,
        regions=analysis.stats(trace),
        rank_efficiency=analysis.rank_efficiency(trace),
        efficiency=_aligned(refused, "efficiency", analysis.efficiency, steady),
        warm_up=notes[0].evidence["ordinal"] if notes else None,
        launch_efficiency=_aligned(refused, "launch_efficiency", analysis.launch_efficiency, trace),
        launch_skew=_aligned(refused, "launch_skew", analysis.launch_skew, trace),
        late_sender=_aligned(refused, "late_sender", analysis.late_sender, trace),
        waits_by_rank=analysis.waits(trace, "rank"),
        waits_by_region=analysis.waits(trace, "region"),
        waits_by_peer=analysis.waits(trace, "peer"),
        imbalance_by_rank=analysis.imbalance(trace, "rank"),
        imbalance_by_block=analysis.imbalance(trace, "block"),
        blame=analysis.blame(trace),
        blame_matrix=analysis.blame_matrix(trace),
        unmatched_flows=analysis.unmatched_flows(trace),
        histogram=analysis.histogram(trace),
        stragglers=analysis.stragglers(trace),
        ramp_and_tail=analysis.ramp_and_tail(trace),
        barrier_waits=analysis.barrier_waits(trace),
        bandwidth=analysis.bandwidth(trace),
        stalls=_stalls(refused, trace, num_events),
        critical_path=path,
        critical_regions=None if path is None else analysis.critical_regions(path),
        what_if=_aligned(refused, "what_if", analysis.what_if, trace),
        delay_costs=_aligned(refused, "delay_costs", analysis.delay_costs, trace),
        focus=over,
        activity=activity(trace, over),
        spans=longest_spans(trace, over, _ranks_worth_a_look(trace, found)),
        view_command=view_command,
    )
    say("done", 1.0)
    return report


def _window_ns(trace: Trace) -> tuple[int, int]:
    starts = analysis.launch_starts(trace)
    return (0, 0) if starts.empty else (int(starts["first_ns"].min()), int(starts["last_ns"].max()))


def _aligned(
    refused: dict[str, str], name: str, analyse: Callable[[Trace], pd.DataFrame], trace: Trace
) -> pd.DataFrame | None:
    try:
        return analyse(trace)
    except (ClockError, SelectionError) as error:
        refused[name] = str(error)
        return None


def _stalls(refused: dict[str, str], trace: Trace, num_events: int) -> pd.DataFrame | None:
    if num_events <= _MAX_EVENTS_SORTED:
        return analysis.stalls(trace)
    refused["stalls"] = (
        f"hidden and exposed stalls sort all events, and {num_events:,} are more than {_MAX_EVENTS_SORTED:,}; "
        "select a few launches to see them"
    )
    return None


def _ranks_worth_a_look(trace: Trace, found: tuple[Finding, ...]) -> list[int]:
    """The rank that the costliest finding names and the one that waits most (else the first two)."""
    recorded = [info.rank for info in trace.ranks]
    named = [rank for finding in found if finding.cost_ns > 0 for rank in finding.ranks[:1]]
    by_wait = analysis.waits(trace, "rank").sort_values("wait_ns", ascending=False)["rank"].tolist()
    order = dict.fromkeys([*named[:1], *by_wait[:1], *recorded])
    return sorted([rank for rank in order if rank in recorded][:_RANKS_IN_BLOCK_VIEW])
