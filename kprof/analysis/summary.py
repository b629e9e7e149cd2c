"""A trace and the small tables that all analyses use.

They merge the ranks' summaries (`rank_summary.py`), converted to the trace's clock and ids. Stored
summaries are read from the capture, others are computed from the events. Every table is an
aggregate of size ranks x launches x blocks x (warps or regions); nothing here holds all events.

    cells    rank, launch, block, region_id, peer
             -> events, total_ns, min_ns, max_ns, bytes, first_ns, last_ns
    tracks   rank, launch, block, warp
             -> events, work_ns, wait_ns, first_ns, last_ns, first_useful_ns, last_useful_ns
    buckets  rank, region_id, bucket
             -> events        (log2 histogram of durations, SUB_BUCKETS per octave; ask for it with
                              `Summary.require_buckets`)
    spans_of_launches   kernel, ordinal, rank, launch -> first_ns, last_ns, tracks, work_ns, wait_ns
    named_cells         the cells of known regions, with their region (its name) and category

`peer` is -1 where a region names none, or names one outside the world. Open spans have no end and
are left out of all times. Times are on the trace's clock; lengths are what the rank's own clock
measured. In SQL, total(x) is the sum as BIGINT: pandas reads DuckDB's own sums, HUGEINT, as floats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pandas as pd

from kprof.capture.directory import EVENT_OPEN
from kprof.capture.footers import first_line
from kprof.capture.manifest import RankInfo
from kprof.capture.names import summary_file_name
from kprof.capture.rank_summary import (
    EVENTS_PER_SLICE,
    PARTS_TABLE_SQL,
    bucket_statement,
    part_statements,
    summarise_files,
    track_slices,
)
from kprof.errors import CorruptCaptureError, SelectionError
from kprof.regions import RegionTable
from kprof.trace import Trace
from kprof.trace.queries import Workspace
from kprof.trace.views import aligned_sql, segment_of

if TYPE_CHECKING:
    from kprof.capture.database import Arrays

# What analyses return.
Table: TypeAlias = pd.DataFrame
Column: TypeAlias = pd.Series
Progress = Callable[[str, float], None]
# Each worker sorts a slice of events. More workers would need more memory and read faster than the
# disk.
_MAX_WORKERS: Final = 4
_MAX_EVENTS_READ: Final = 5_000_000
_WHAT: Final = "work and waits of every track"

CLOSED_SPANS: Final = f"kind = 'span' AND flags & {EVENT_OPEN} = 0"
WORK: Final = "category IN ('compute', 'send', 'recv')"
WAIT: Final = "category IN ('wait', 'sync')"


def sql_list(numbers: Iterable[int]) -> str:
    """Numbers for SQL's IN; NULL, which matches nothing, for no numbers."""
    return ", ".join(str(int(number)) for number in numbers) or "NULL"


class Summary(Workspace):
    """A trace with this module's tables. Also keeps further tables and results of analyses.

    Make one with `Summary.of`; everything is computed once.
    """

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.trace = trace
        self.results: dict[Any, Any] = {}
        # Stored buckets are of all blocks: those of some take a scan of the events.
        self._lacks_buckets = trace.selection.blocks is not None and bool(trace.summarised_ranks)

    @staticmethod
    def of(
        trace: Trace, progress: Progress | None = None, apart: Sequence[Arrays] | None = None
    ) -> Summary:
        """Make the tables. Raises CorruptCaptureError if the events cannot be read.

        `apart` are summaries (`rank_summary.summarise_file`) that were computed elsewhere, of all
        selected ranks without a stored one.
        """
        report = progress or (lambda _what, _share: None)
        summary = Summary(trace)
        summary.frame(PARTS_TABLE_SQL)
        if apart is None:
            _make_parts(summary, report)
        for table in apart or ():
            _add_parts(summary, table)
        report("uniting the ranks", 0.9)
        buckets = () if summary._lacks_buckets else (_BUCKETS_SQL,)
        tables = (_CELLS_SQL, _TRACKS_SQL, *buckets, "DROP TABLE parts", _LAUNCHES_SQL)
        for statement in (_TOTAL_SQL, *tables, _NAMED_CELLS_SQL):
            summary.frame(statement)
        _check_stored(summary)
        return summary

    def select(self, **changes: Any) -> Summary:
        """The summary of a part of the trace (see Trace.select). Shares nothing with this one."""
        return Summary.of(self.trace.select(**changes))

    def require_few_events(self, what: str) -> None:
        """Raise SelectionError if reading all events would take too long."""
        num_events = self.trace.num_events()
        if num_events > _MAX_EVENTS_READ:
            raise SelectionError(
                f"{what} all events, and {num_events:,} are more than {_MAX_EVENTS_READ:,}; "
                "select a few launches to see them"
            )

    def require_buckets(self) -> None:
        """Make the table `buckets`, which a selection of blocks lacks at first."""
        if self._lacks_buckets:
            self._lacks_buckets = False
            self.frame(PARTS_TABLE_SQL)
            size = self.trace.manifest.world_size
            for where, regions in _slices(list(self.trace.ranks)):
                self.frame(bucket_statement("selected_raw_events", where, regions, size))
            for statement in (_BUCKETS_SQL, "DROP TABLE parts"):
                self.frame(statement)


def _check_stored(summary: Summary) -> None:
    """Raise CorruptCaptureError where the parts of a stored summary count different events."""
    stored = summary.trace.summarised_ranks
    if not stored:
        return
    tables = ("cells", "tracks") if summary._lacks_buckets else ("cells", "tracks", "buckets")
    sums = " UNION ALL ".join(
        f"SELECT rank, sum(events) AS n FROM {table} GROUP BY rank" for table in tables
    )
    counts = summary.frame(
        f"""SELECT rank FROM ({sums})
        GROUP BY rank HAVING count(*) < {len(tables)} OR min(n) < max(n) ORDER BY rank"""
    )
    wrong = [rank for rank in counts["rank"].tolist() if rank in stored]
    if wrong:
        raise CorruptCaptureError(
            f"{summary_file_name(wrong[0])} of the capture is damaged (its parts count different "
            "events); delete the file, and kprof makes it again from the events"
        )


def _summarise_files(
    ranks: list[RankInfo], files: dict[int, Path], world_size: int, report: Progress, workers: int
) -> Iterator[Arrays]:
    with ThreadPoolExecutor(workers) as pool:
        jobs = [
            pool.submit(summarise_files, [files[info.rank] for info in group], group, world_size)
            for group in _groups(ranks)
        ]
        count = len(jobs)
        for i in range(count):
            report(_WHAT, 0.9 * i / count)
            # A job keeps its result in memory.
            yield jobs.pop(0).result()


def _make_parts(summary: Summary, report: Progress) -> None:
    """Summarise ranks without a stored summary, from their files or from the selected events."""
    trace = summary.trace
    world_size = trace.manifest.world_size
    stored = trace.summarised_ranks
    missing = [info for info in trace.ranks if info.rank not in stored]
    files = trace.whole_files
    # For one group, a database and a thread of its own take longer than the work.
    if files and len(list(_groups(missing))) > 1:
        trace.source.checksums.check([files[info.rank] for info in missing])
        (threads,) = summary.row("SELECT current_setting('threads')")
        workers = min(_MAX_WORKERS, threads)
        for table in _summarise_files(missing, files, world_size, report, workers):
            _add_parts(summary, table)
        return
    slices = list(_slices(missing))
    for i, (where, regions) in enumerate(slices):
        report(_WHAT, 0.9 * i / len(slices))
        try:
            for statement in part_statements("selected_raw_events", where, regions, world_size):
                summary.frame(statement)
        except SelectionError as error:
            # The query is ours.
            cause = error.__cause__
            why = first_line(cause if isinstance(cause, Exception) else error)
            raise CorruptCaptureError(
                f"summing up the events failed: {why}; record again or restore the capture"
            ) from error


def _add_parts(summary: Summary, table: Arrays) -> None:
    summary.put("incoming_parts", table)
    summary.frame("INSERT INTO parts BY NAME SELECT * FROM incoming_parts")


def _slices(ranks: list[RankInfo]) -> Iterator[tuple[str, RegionTable]]:
    """SQL conditions that split events into sets of whole tracks, of at most about
    EVENTS_PER_SLICE."""
    for group in _groups(ranks):
        recorded = group[0].counts.recorded
        if len(group) == 1 and recorded > EVENTS_PER_SLICE:
            launches = [launch.launch for launch in group[0].launches]
            for where in track_slices(recorded, launches):
                yield f"rank = {group[0].rank} AND {where}", group[0].regions
        else:
            yield f"rank IN ({sql_list(info.rank for info in group)})", group[0].regions


def _groups(ranks: list[RankInfo]) -> Iterator[list[RankInfo]]:
    """Ranks that share a region table, in groups of at most about EVENTS_PER_SLICE events.

    A rank with more forms a group alone.
    """
    chosen: list[RankInfo] = []
    num_events = 0
    for info in ranks:
        recorded = info.counts.recorded
        is_other = bool(chosen) and chosen[0].regions != info.regions
        if chosen and (is_other or num_events + recorded > EVENTS_PER_SLICE):
            yield chosen
            chosen, num_events = [], 0
        chosen.append(info)
        num_events += recorded
    if chosen:
        yield chosen


# Stored and new parts with the ids of the whole trace, still on the ranks' own clocks.
_ALL_PARTS: Final = """(
    SELECT p.*, coalesce(r.id, 0) AS region_id
    FROM (SELECT * FROM parts UNION ALL BY NAME SELECT * FROM stored_parts) p
    LEFT JOIN raw_regions r ON r.rank = p.rank AND r.local_id = p.region)"""


def _segment(column: str) -> str:
    """The join that converts a column of a part to the trace's clock."""
    return (
        f"LEFT JOIN clock_segments c_{column} ON "
        f"{segment_of('p.rank', f'p.{column}', f'c_{column}')}"
    )


def _aligned(column: str) -> str:
    return f"{aligned_sql(f'p.{column}', f'c_{column}')} AS {column}"


_TOTAL_SQL: Final = "CREATE OR REPLACE TEMP MACRO total(x) AS CAST(sum(x) AS BIGINT)"

_NAMED_CELLS_SQL: Final = """
    CREATE OR REPLACE TEMP VIEW named_cells AS
    SELECT c.*, r.name AS region, r.category FROM cells c JOIN regions r ON r.id = c.region_id"""

_CELLS_SQL: Final = f"""
    CREATE OR REPLACE TEMP TABLE cells AS
    SELECT p.rank, launch, block, region_id, peer, events, total_ns, min_ns, max_ns, bytes,
        {_aligned("first_ns")}, {_aligned("last_ns")}
    FROM {_ALL_PARTS} p {_segment("first_ns")} {_segment("last_ns")} WHERE part = 'cell'"""

_TRACKS_SQL: Final = f"""
    CREATE OR REPLACE TEMP TABLE tracks AS
    SELECT p.rank, launch, block, warp, events, work_ns, wait_ns, {_aligned("first_ns")},
        {_aligned("last_ns")}, {_aligned("first_useful_ns")}, {_aligned("last_useful_ns")}
    FROM {_ALL_PARTS} p {_segment("first_ns")} {_segment("last_ns")}
        {_segment("first_useful_ns")} {_segment("last_useful_ns")} WHERE part = 'track'"""

_BUCKETS_SQL: Final = f"""
    CREATE OR REPLACE TEMP TABLE buckets AS
    SELECT rank, region_id, bucket, total(events) AS events
    FROM {_ALL_PARTS} WHERE part = 'bucket' GROUP BY rank, region_id, bucket"""

_LAUNCHES_SQL: Final = """
    CREATE OR REPLACE TEMP TABLE spans_of_launches AS
    SELECT coalesce(l.kernel, '') AS kernel, coalesce(l.ordinal, 0) AS ordinal, t.rank, t.launch,
        min(t.first_ns) AS first_ns, max(t.last_ns) AS last_ns, count(*) AS tracks,
        total(t.work_ns) AS work_ns, total(t.wait_ns) AS wait_ns
    FROM tracks t LEFT JOIN launches l ON l.rank = t.rank AND l.launch = t.launch
    GROUP BY ALL"""
