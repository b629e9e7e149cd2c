"""The Python interface to a capture: the trace, with its analyses as methods.

    trace = kprof.open("run.kprof")
    trace.findings()
    trace.select(regions="dispatch/*", time="10us..50us").waits(by="peer")
    trace.timeline(rank=1, launch=4).show()

Methods return a pandas DataFrame or a plotly Figure. `kprof.analysis` has all analyses.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from kprof.capture.printable import printable
from kprof.errors import SelectionError
from kprof.on_use import pa, pd
from kprof.trace.trace import Trace
from kprof.trace.views import launches_sql

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from kprof.analysis import Summary
    from kprof.capture.directory import Capture
    from kprof.capture.manifest import Alignment, Manifest, RankInfo
    from kprof.regions import RegionTable
    from kprof.trace.views import Selection

StatsKey = Literal["region", "rank", "block"]
WaitsKey = Literal["rank", "block", "region", "peer", "matrix", "sender"]

_FINDING_COLUMNS: Final = (
    "id",
    "kind",
    "sentence",
    "advice",
    "gain_ns",
    "share",
    "interval_ns",
    "ranks",
    "blocks",
    "links",
    "region",
    "calls",
    "when",
    "where_ns",
)


class Run:
    """All events of a capture on one clock, and what kprof finds in them. `kprof.open` makes one.

    Times are in ns of the reference rank's clock where the ranks' clocks are aligned, and of each
    rank's own clock otherwise. Events are those that `select` left. `trace` is the Trace behind it,
    for `kprof.analysis`, `kprof.report` and `kprof.export`.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @classmethod
    def open(cls, path: str | Path | Capture) -> Run:
        """Open a capture directory; raises a CaptureError."""
        return cls(Trace.open(path))

    @cached_property
    def summary(self) -> Summary:
        """The input of all analyses in `kprof.analysis`, made on first use."""
        from kprof.analysis import Summary

        return Summary.of(self.trace)

    def select(self, **words: Any) -> Run:
        """The part of the run that these words select, those of the command line's options; None
        takes one back.

        ranks, blocks, launches   1, "0-3,7" or a list of numbers; `rank=1` is `ranks=1`, and so on
        regions                   "dispatch/*,copy" or a list of names
        time                      "10us..50us" after the first event; an end may be missing
        time_ns                   the same as a pair of numbers

            run.select(rank=1, regions="dispatch/*", time="10us..50us")

        Raises SelectionError for any other word, for text that does not parse, and for unknown
        ranks and regions.
        """
        return Run(self.trace.select(**words))

    def query(self, text: str) -> pa.Table:
        """Run one SELECT over the views events, flows, regions, launches and ranks.

        Raises SelectionError if it does not parse or is another statement.
        """
        return self.trace.query(text)

    def frame(self, query: str, parameters: Sequence[object] = ()) -> pd.DataFrame:
        """Rows of the views events, flows, regions, launches and ranks, by SQL."""
        return self.trace.frame(query, parameters)

    def sql(self, query: str, parameters: Sequence[object] = ()) -> pa.Table:
        """Like `frame`, as an Arrow table."""
        return self.trace.sql(query, parameters)

    def batches(self, query: str, rows_per_batch: int = 1 << 17) -> pa.RecordBatchReader:
        """Like `sql`, streamed: for more rows than memory holds."""
        return self.trace.batches(query, rows_per_batch)

    def to_pandas(self) -> pd.DataFrame:
        """All selected events, by rank, block, warp and start."""
        return self.trace.to_pandas()

    def window_ns(self) -> tuple[int, int]:
        """First start and last end of all selected events; (0, 0) when there are none."""
        return self.trace.window_ns()

    def num_events(self) -> int:
        """How many events are selected."""
        return self.trace.num_events()

    @property
    def manifest(self) -> Manifest:
        """What the capture says of its ranks, launches, clocks and losses."""
        return self.trace.manifest

    @property
    def selection(self) -> Selection:
        """What `select` left."""
        return self.trace.selection

    @property
    def ranks(self) -> tuple[RankInfo, ...]:
        """The ranks that were recorded and are selected."""
        return self.trace.ranks

    @property
    def regions(self) -> RegionTable:
        """The regions of all kernels and ranks, merged by name."""
        return self.trace.regions

    @property
    def alignment(self) -> Alignment | None:
        """How the ranks' clocks were aligned, or None when they were not."""
        return self.trace.alignment

    @property
    def is_on_one_clock(self) -> bool:
        """Whether times of different ranks can be compared, or one rank only is selected."""
        return self.trace.is_on_one_clock

    def findings(self) -> pd.DataFrame:
        """What would make the calls shorter, the largest gain first: one row per finding.

        Columns: id; kind (docs/findings.md has all); sentence; advice; gain_ns, what the calls
        looked at would be shorter together, on top of the findings before, its share (0 to 1) and
        where it lies with 90 %, interval_ns (low, high), all None where only counts are known;
        ranks and blocks concerned (tuples, empty for all); links (pairs from, to; -1 for every
        one); region; calls and when it is there; where_ns, a stretch (from, to) that shows it.
        """
        from kprof import analysis
        from kprof.report.machine import finding_row

        rows = [finding_row(finding) for finding in analysis.find(self.summary).findings]
        return pd.DataFrame(rows, columns=list(_FINDING_COLUMNS))

    def stats(self, by: StatsKey = "region") -> pd.DataFrame:
        """How long regions last; or, by "rank" or "block", how work and waiting spread.

        Columns by region: region, category, count, total_ns, mean_ns, median_ns, p95_ns, p99_ns,
        max_ns, share (of the time of all blocks, 0 to 1), percentile_error (0 where percentiles are
        exact). By rank or block: those of `kprof.analysis.imbalance`.
        """
        from kprof import analysis

        _check_key("stats", by, get_args(StatsKey))
        return (
            analysis.stats(self.summary)
            if by == "region"
            else analysis.imbalance(self.summary, by=by)
        )

    def waits(self, by: WaitsKey = "rank") -> pd.DataFrame:
        """Who waited, and for how long, by waiting rank, its block, region, or the peer that was
        waited for.

        Columns: rank | rank, block | region | peer (-1 where a wait names no rank); count, wait_ns,
        mean_ns, max_ns, share (of the time of the rank's blocks, 0 to 1; of all blocks for region
        and peer). By "matrix": ns that the rank of a row waited for the rank of a column. By
        "sender": how much of the waits was a late sender and how much the transfer, see
        `kprof.analysis.late_sender`; raises ClockError where the ranks are not on one clock.
        """
        from kprof import analysis

        _check_key("waits", by, get_args(WaitsKey))
        if by == "matrix":
            return analysis.blame_matrix(self.summary)
        return (
            analysis.late_sender(self.summary)
            if by == "sender"
            else analysis.waits(self.summary, by=by)
        )

    def calls(self) -> pd.DataFrame:
        """Every call, which is the launches of one ordinal on all ranks.

        Columns: ordinal, first_ns, last_ns, launches (how many on a rank), length_ns (last_ns -
        first_ns). Raises ClockError where the ranks are not on one clock.
        """
        from kprof import analysis

        return analysis.calls(self.summary)

    def launches(self) -> pd.DataFrame:
        """Every launch: rank, launch, kernel, ordinal, num_blocks, threads_per_block.

        `ordinal` counts the launches of this kernel on this rank.
        """
        return self.frame(f"{launches_sql(self.selection)} ORDER BY rank, launch")

    def flows(self) -> pd.DataFrame:
        """Every wait that a send released, with the send.

        Columns: send_event_id, wait_event_id, send_region, wait_region, kernel, ordinal, src and
        dst (ranks), slot, send_block, send_warp, send_start_ns, send_end_ns, wait_block, wait_warp,
        wait_start_ns, wait_end_ns.
        """
        self.trace.require_flows()
        return self.frame("SELECT * FROM flows ORDER BY wait_event_id")

    def timeline(
        self, rank: int | Iterable[int] | None = None, launch: int | None = None
    ) -> Figure:
        """Blocks over time: a row each, a colour per category; of each rank the 8 with most and the
        8 with least work.

        `launch` is the number of a launch; without it, the call of median length is shown. x is the
        time since the start, in a unit that suits it. Raises SelectionError for ranks and launches
        that were not recorded.
        """
        from kprof.report.timeline import block_timeline

        return block_timeline(self.trace, rank, launch)

    def ribbon(self, launch: int | None = None, blocks_of: int | None = None) -> Figure:
        """The wait ribbon: a row per rank, in the colour of the rank that most of its blocks wait
        for, the deeper the more of them; own work is grey.

        `blocks_of` shows a row for each block of that rank. `launch` and x are those of `timeline`.
        Raises SelectionError for ranks and launches that were not recorded.
        """
        from kprof.report.timeline import wait_ribbon

        return wait_ribbon(self.trace, launch, blocks_of)

    def __repr__(self) -> str:
        return f"<kprof.Run {self._name()}: {'; '.join(text for _, text in self._facts())}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{what}</th>"
            f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
            for what, text in self._facts()
        )
        return f"<table><caption>{html.escape(self._name())}</caption>{rows}</table>"

    def _name(self) -> str:
        files = self.trace.source.files
        return printable(files[0].parent.name) if files else "in memory"

    def _facts(self) -> list[tuple[str, str]]:
        """The contents: pairs of a label and its text, safe to print."""
        from kprof.analysis.wording import counted, duration

        launches, regions = self.launches(), list(self.selection.regions or self.regions.names)
        kernels = launches["kernel"].drop_duplicates().tolist()
        ranks = counted(len(self.ranks), "rank", "ranks")
        devices = sorted({info.device for info in self.ranks})
        first_ns, last_ns = self.window_ns()
        clock = "on one clock" if self.is_on_one_clock else "each rank on its own clock"
        return [
            ("ranks", f"{ranks} on {printable(', '.join(devices))}"),
            ("launches", counted(len(launches), "launch", "launches") + _few(" of ", kernels)),
            ("events", counted(self.num_events(), "event", "events") + _few(" in ", regions)),
            ("time", f"{duration(last_ns - first_ns)}, {clock}"),
        ]


_MAX_NAMES: Final = 3


def _few(preposition: str, names: list[str]) -> str:
    """The first names behind a preposition; nothing where there are none."""
    if not names:
        return ""
    shown = preposition + printable(", ".join(str(name) for name in names[:_MAX_NAMES]))
    return shown if len(names) <= _MAX_NAMES else f"{shown} and {len(names) - _MAX_NAMES} more"


def _check_key(method: str, by: Any, keys: tuple[str, ...]) -> None:
    if by not in keys:
        raise SelectionError(f"{method}(by={by!r}): unknown grouping; use {', '.join(keys)}")
