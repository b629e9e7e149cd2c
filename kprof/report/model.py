"""The report: everything that its forms (terminal, HTML, JSON, Markdown) show, computed once."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pandas as pd
from msgspec import structs

from kprof import analysis
from kprof.analysis import DoubtKind, Finding, Findings, Limit, Part
from kprof.analysis.balance import run_time_ns
from kprof.analysis.findings.found import Rest
from kprof.analysis.hung import spans_before
from kprof.analysis.ribbon import Ribbon, ribbon
from kprof.analysis.summary import Summary
from kprof.analysis.timeline import (
    Focus,
    activity,
    focus,
    longest_spans,
    presence,
    spans_of_ranks,
    spans_of_tracks,
)
from kprof.analysis.warmup import steady_part
from kprof.analysis.wording import counted, duration
from kprof.capture.manifest import Manifest
from kprof.errors import ClockError, KprofError, SelectionError
from kprof.report.changes import Change, slower_than
from kprof.report.in_trace import window_ns
from kprof.trace import Trace
from kprof.trace.views import can_use_summaries, launches_sql

Progress = Callable[[str, float], None]
_RANKS_IN_BLOCK_VIEW: Final = 2
# So many tracks are drawn of those with a wait that never ended.
MOST_TRACKS: Final = 12
# Of the calls that a page shows up close: how many, and of each how many ranks and spans.
_MOST_CALLS: Final = 3
_MOST_RANKS: Final = 4
_MOST_SPANS: Final = 6000
# So many findings fit the first screen, each with a picture.
MOST_ON_FIRST_SCREEN: Final = 5


@dataclass(frozen=True)
class CallUpClose:
    """The longest spans (as of `spans_of_ranks`) of a call, and how many it has."""

    name: str
    over: Focus
    spans: pd.DataFrame
    num_spans: int


@dataclass(frozen=True)
class Report:
    """The tables of a trace and its findings.

    `tables` has every metric (kprof.analysis.all_metrics) by name, `refused` the error of each that
    is not available. `warm_up` are the ordinals of first calls that the efficiency leaves out.
    `parts` is where the time of all blocks goes. `grown` is what takes longer than in an earlier
    recording, and that no finding names; None without one. What only pictures show is read when
    one is drawn.
    """

    summary: Summary
    manifest: Manifest
    num_events: int
    num_launches: int
    run_time_ns: float
    window_ns: tuple[int, int]
    found: Findings
    refused: dict[str, KprofError]
    tables: Mapping[str, pd.DataFrame]
    warm_up: tuple[int, ...]
    blame_matrix: pd.DataFrame
    focus: Focus
    parts: tuple[Part, ...] = ()
    view_command: str = "kprof view RUN"
    grown: tuple[Change, ...] | None = None

    @cached_property
    def histogram(self) -> pd.DataFrame:
        """How many events of each rank and region took how long."""
        return analysis.histogram(self.summary)

    @cached_property
    def activity(self) -> pd.DataFrame:
        """What the ranks' tracks do over the time that figures show."""
        return activity(self.summary, self.focus)

    @cached_property
    def presence(self) -> pd.DataFrame:
        """When the ranks' tracks are there in that time."""
        return presence(self.summary, self.focus)

    @cached_property
    def spans(self) -> pd.DataFrame:
        """The longest spans of some blocks in that time."""
        return longest_spans(self.summary, self.focus, self._worth_a_look(_RANKS_IN_BLOCK_VIEW))

    @cached_property
    def before_hang(self) -> pd.DataFrame:
        """The finished spans of tracks whose last wait never ended."""
        return spans_before(self.summary, self.tables["open_waits"].head(MOST_TRACKS))

    @cached_property
    def ribbon(self) -> Ribbon | None:
        """For whom ranks wait; None of one rank."""
        has_others = len(self.summary.trace.ranks) > 1
        return ribbon(self.summary, self.focus) if has_others else None

    @cached_property
    def close_ups(self) -> Mapping[str, pd.DataFrame]:
        """By id, the spans of the two tracks that show a finding (of the first findings)."""
        return _close_ups(self.summary, self.found)

    @cached_property
    def calls_up_close(self) -> tuple[CallUpClose, ...]:
        """Some calls, each with the spans of all blocks of some ranks."""
        ranks = self._worth_a_look(_MOST_RANKS)
        return _calls_up_close(self.summary, self.found, self.focus, self.tables, ranks)

    def _worth_a_look(self, at_most: int) -> list[int]:
        """The rank that the first finding names and the one that waits most, then the first."""
        recorded = [info.rank for info in self.summary.trace.ranks]
        named = [rank for finding in self.findings for rank in finding.ranks[:1]]
        waits = analysis.waits(self.summary, "rank")
        by_wait = waits.sort_values("wait_ns", ascending=False, kind="stable")["rank"].tolist()
        order = dict.fromkeys([*named[:1], *by_wait[:1], *recorded])
        return sorted([rank for rank in order if rank in recorded][:at_most])

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, largest gain first."""
        return self.found.findings

    @property
    def verdict(self) -> str:
        """The first sentence that readers see, and often the only one."""
        return self.grown[0].sentence if self.grown and self.is_even else self.found.headline

    @property
    def is_even(self) -> bool:
        """Whether nothing stands out within this recording."""
        return isinstance(self.found.subject, Rest)

    @property
    def advice(self) -> str:
        """What to do about the verdict; empty if nothing is wrong."""
        return "" if self.grown and self.is_even else self.found.advice

    @property
    def are_times_known(self) -> bool:
        """Whether times are those of the kernels. Not if ranks shared cores."""
        return all(doubt.kind is not DoubtKind.SHARED_CORES for doubt in self.found.doubts)

    @property
    def recorded_ranks(self) -> list[int]:
        """The ranks of which anything was recorded; all where nothing was of any."""
        infos = self.manifest.ranks
        return [info.rank for info in infos if info.is_recorded] or [info.rank for info in infos]

    @property
    def facts(self) -> tuple[str, ...]:
        """The size of the run in words: ranks, launches, events, time in kernels."""
        ranks = counted(self.manifest.world_size, "rank", "ranks")
        launches = counted(self.num_launches, "launch", "launches")
        # Of a run that hung, the number of calls is without those that did.
        if 1 < self.found.num_calls < self.num_launches and self.manifest.hang is None:
            launches += f" in {self.found.num_calls:,} calls"
        events = counted(self.num_events, "event", "events")
        time = f"{duration(self.run_time_ns)} in kernels" if self.are_times_known else ""
        if time and self.warm_up and self.found.total_ns:
            time += f" ({duration(self.found.total_ns)} without the warm-up)"
        facts = f"{len(self.recorded_ranks)} of {ranks}", launches, events, time
        return tuple(filter(None, facts))

    def command_for(self, finding: Finding | Limit) -> str:
        """The command that opens the trace on a finding; empty if the finding has no time in the
        trace."""
        if finding.where_ns is None:
            return ""
        return f"{self.view_command} --finding {shlex.quote(finding.id)}"

    @property
    def ranks_by_importance(self) -> list[int]:
        """First the ranks that findings name, then those that others waited for longest."""
        named = [rank for finding in self.findings for rank in finding.ranks]
        waited_for = self.tables["stragglers"].sort_values(
            "caused_ns", ascending=False, kind="stable"
        )
        recorded = self.recorded_ranks
        order = dict.fromkeys([*named, *waited_for["rank"].tolist(), *recorded])
        return [rank for rank in order if rank in set(recorded)]

    def rows(self, name: str) -> list[dict[Any, Any]]:
        """The rows of a table; none where it is not available."""
        table = self.tables.get(name)
        return [] if table is None else table.to_dict("records")

    def place_of(self, region: str | None) -> str:
        """The line of the source that records a region, "kernel.hip:42"; empty if unknown."""
        tables = (info.regions.regions for info in self.manifest.ranks)
        of_name = (each.place for regions in tables for each in regions if each.name == region)
        return next(filter(None, of_name), "")

    @property
    def waits_for_nobody(self) -> str:
        """What the matrix of waits leaves out, in words; empty where all waits name a rank."""
        table = self.tables["waits_by_peer"]
        left_out = int(table[table["peer"] < 0]["wait_ns"].sum())
        if not left_out:
            return ""
        return f"Excludes {duration(left_out)} of waits without a target rank, such as locks"

    @property
    def reasons(self) -> dict[str, str]:
        """Why tables are missing: each reason, and what is missing for it."""
        names: dict[str, list[str]] = {}
        for name, error in self.refused.items():
            # Tables that need the ranks on one clock share a reason.
            reason = error.reason if isinstance(error, ClockError) else str(error)
            names.setdefault(reason, []).append(_PLAIN_NAMES.get(name, name.replace("_", " ")))
        return {reason: ", ".join(of) for reason, of in names.items()}


_PLAIN_NAMES: Final = {"what_if": "what-if"}


def build(
    trace: Trace, *, progress: Progress | None = None, view_command: str = "kprof view RUN"
) -> Report:
    """Compute the report of a trace. `view_command` is the command that opens the trace.

    Calls `progress(what, share)` on the way, share from 0 to 1. Works for every trace: tables that
    make no sense for it (no events, no waits, one rank, unaligned clocks) are empty, or refused
    with a sentence.
    """
    say = progress or (lambda _what, _share: None)
    summary = Summary.of(trace, lambda what, share: say(what, 0.6 * share))
    return build_from(summary, progress=say, view_command=view_command)


def build_from(
    summary: Summary,
    *,
    progress: Progress | None = None,
    view_command: str = "kprof view RUN",
    earlier: Summary | None = None,
) -> Report:
    """Like `build`, for a trace that is already summarised. Raises like `slower_than` where an
    `earlier` recording cannot be compared with it."""
    say = progress or (lambda _what, _share: None)
    trace = summary.trace
    say("findings", 0.6)
    found = analysis.find(summary)
    grown = None if earlier is None else _not_named(slower_than(earlier, summary), found)
    say("tables", 0.85)
    tables, refused = _tables(summary)
    matrix = analysis.blame_matrix(summary)
    recorded = [info.rank for info in trace.ranks if info.is_recorded]
    report = Report(
        summary=summary,
        manifest=structs.replace(trace.manifest, ranks=trace.ranks),
        num_events=trace.num_events(),
        num_launches=_num_launches(summary),
        run_time_ns=run_time_ns(summary),
        window_ns=_window_ns(summary),
        found=found,
        refused=refused,
        tables=tables,
        warm_up=steady_part(summary)[1],
        # Without rows of ranks that were left out: that they did not wait is not known.
        blame_matrix=matrix[matrix.index.isin(recorded)] if recorded else matrix,
        focus=focus(summary),
        parts=analysis.breakdown(summary, found.findings),
        view_command=view_command,
        grown=grown,
    )
    say("done", 1.0)
    return report


def _not_named(changes: Sequence[Change], found: Findings) -> tuple[Change, ...]:
    """The changes whose place and region no finding names."""
    named = {(one.ranks, one.blocks, one.links, one.region) for one in found.findings}
    of = [(one, one.finding) for one in changes]
    return tuple(one for one, at in of if (at.ranks, at.blocks, at.links, at.region) not in named)


def _tables(summary: Summary) -> tuple[dict[str, pd.DataFrame], dict[str, KprofError]]:
    """Every metric, and why some are not available."""
    tables: dict[str, pd.DataFrame] = {}
    refused: dict[str, KprofError] = {}
    for name, metric in analysis.all_metrics().items():
        try:
            tables[name] = metric(summary)
        except (ClockError, SelectionError) as error:
            refused[name] = error
    return tables, refused


def _close_ups(summary: Summary, found: Findings) -> dict[str, pd.DataFrame]:
    shown: list[Finding | Limit] = list(found.findings[:MOST_ON_FIRST_SCREEN])
    shown += [found.design] if found.design else []
    return {
        finding.id: spans_of_tracks(summary, window_ns(finding), finding.tracks)
        for finding in shown
        if finding.where_ns is not None and finding.tracks
    }


def _calls_up_close(
    summary: Summary,
    found: Findings,
    over: Focus,
    tables: Mapping[str, pd.DataFrame],
    ranks: Sequence[int],
) -> tuple[CallUpClose, ...]:
    """Blocks of `ranks`: in the call that figures show, those of first findings, the longest."""
    if over.end_ns <= over.start_ns:
        return ()
    names = {(over.start_ns, over.end_ns): over.what}
    calls = tables["calls"].to_dict("records") if "calls" in tables else []
    for number, finding in enumerate(found.findings, start=1):
        at_ns = finding.where_ns[0] if finding.where_ns else None
        for call in calls:
            if at_ns is not None and call["first_ns"] <= at_ns < call["last_ns"]:
                name = f"call {call['ordinal']} (finding {number})"
                names.setdefault((int(call["first_ns"]), int(call["last_ns"])), name)
    for call in sorted(calls, key=lambda call: -call["length_ns"])[:1]:
        name = f"call {call['ordinal']} (the longest)"
        names.setdefault((int(call["first_ns"]), int(call["last_ns"])), name)
    shown = []
    for (start_ns, end_ns), name in list(names.items())[:_MOST_CALLS]:
        call_over = Focus(start_ns, end_ns, name)
        spans, number = spans_of_ranks(summary, call_over, ranks, _MOST_SPANS)
        if number:
            shown.append(CallUpClose(name, call_over, spans, number))
    return tuple(shown)


def _num_launches(summary: Summary) -> int:
    """The launches of all ranks, with those that left no event; of part of the regions or times,
    those with events there."""
    selection, starts = summary.trace.selection, analysis.launch_starts(summary)
    found = set(zip(starts["kernel"].tolist(), starts["ordinal"].tolist(), strict=True))
    if can_use_summaries(selection):
        found.update(summary.trace.rows(launches_sql(selection, "kernel, ordinal"))[1])
    return len(found)


def _window_ns(summary: Summary) -> tuple[int, int]:
    starts = analysis.launch_starts(summary)
    return (0, 0) if starts.empty else (int(starts["first_ns"].min()), int(starts["last_ns"].max()))
