"""The small tables that all analyses start from, each made by one scan of the events and kept with the trace.

Nothing here holds all events: every table is an aggregate whose size is ranks x launches x blocks x (warps or
regions), and every aggregate but one is mergeable (a sum, a count, a minimum or a histogram), so that ranks can
be summarised apart and the summaries be united. The one that needs an order, the union of intervals of a track,
is made in slices of whole tracks.

    cells    rank, launch, block, region_id, peer -> events, total_ns, min_ns, max_ns, bytes, first_ns, last_ns
    tracks   rank, launch, block, warp -> events, work_ns, wait_ns, first_ns, last_ns, first_useful_ns, last_useful_ns
    buckets  rank, region_id, bucket -> events        (log2 histogram of durations, SUB_BUCKETS per octave)
    spans_of_launches   kernel, ordinal, rank, launch -> first_ns, last_ns, tracks, work_ns, wait_ns

`peer` is -1 where a region names none, or names one outside the world. Open spans have no end and are left out
of all times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kprof.capture import EVENT_OPEN
from kprof.regions import Kind

if TYPE_CHECKING:
    from kprof.trace import Trace

WORK_CATEGORIES: Final = ("compute", "send", "recv")
WAIT_CATEGORIES: Final = ("wait", "sync")
SUB_BUCKETS: Final = 16
# How many events are sorted at a time: 8 M rows of a track key and two times are about 0.4 GB.
EVENTS_PER_SLICE: Final = 8_000_000

Progress = Callable[[str, float], None]

CLOSED_SPANS: Final = f"kind = 'span' AND flags & {EVENT_OPEN} = 0"
WORK: Final = "category IN ('compute', 'send', 'recv')"
WAIT: Final = "category IN ('wait', 'sync')"


def summarise(trace: Trace, progress: Progress | None = None) -> None:
    """Make the tables of this module in the trace's database, unless they are there."""
    if _exists(trace, "spans_of_launches"):
        return
    report = progress or (lambda _what, _share: None)
    ids = _Ids.of(trace)
    report("counting regions", 0.0)
    trace.frame(_counts_sql(ids, trace.manifest.world_size))
    trace.frame(_CELLS_SQL)
    trace.frame(_BUCKETS_SQL)
    trace.frame("DROP TABLE counts")
    trace.frame(_EMPTY_TRACKS_SQL)
    slices = list(_slices(trace))
    for i, where in enumerate(slices):
        report("work and waits of every track", 0.5 + 0.5 * i / len(slices))
        trace.frame(_tracks_sql(ids, where))
    trace.frame(_LAUNCHES_SQL)


def _exists(trace: Trace, table: str) -> bool:
    query = "SELECT 1 FROM duckdb_tables() WHERE table_name = ?"
    return len(trace.frame(query, [table])) > 0


@dataclass(frozen=True)
class _Ids:
    """Conditions on region ids: the same as those on names of categories and kinds, and much cheaper per
    event."""

    closed_spans: str
    waits: str
    works: str

    @staticmethod
    def of(trace: Trace) -> _Ids:
        regions = trace.regions.regions
        points = [region.id for region in regions if region.kind is not Kind.SPAN]
        waits = [region.id for region in regions if region.category.value in WAIT_CATEGORIES]
        works = [region.id for region in regions if region.category.value in WORK_CATEGORIES]
        is_open = f"flags & {EVENT_OPEN} = 0"
        return _Ids(
            closed_spans=f"{is_open} AND NOT ({_id_in(points)})",
            waits=_id_in(waits),
            works=_id_in(works),
        )


def _id_in(ids: list[int]) -> str:
    return f"region_id IN ({', '.join(map(str, ids))})" if ids else "false"


def _counts_sql(ids: _Ids, world_size: int) -> str:
    """Both aggregates in one scan: rows with a bucket are of the histogram, rows without of the cells."""
    return f"""
        CREATE OR REPLACE TEMP TABLE counts AS
        WITH spans AS (
            SELECT rank, launch, block, region_id, duration_ns, bytes, start_ns, end_ns,
                CASE WHEN peer < {int(world_size)} THEN CAST(peer AS INTEGER) ELSE -1 END AS peer,
                CAST(floor(log2(greatest(duration_ns, 1)) * {SUB_BUCKETS}) AS INTEGER) AS bucket
            FROM events WHERE {ids.closed_spans})
        SELECT rank, launch, block, region_id, peer, bucket, count(*) AS events,
            CAST(sum(duration_ns) AS BIGINT) AS total_ns, min(duration_ns) AS min_ns, max(duration_ns) AS max_ns,
            coalesce(CAST(sum(bytes) AS BIGINT), 0) AS bytes, min(start_ns) AS first_ns, max(end_ns) AS last_ns
        FROM spans GROUP BY GROUPING SETS ((rank, launch, block, region_id, peer), (rank, region_id, bucket))"""


_CELLS_SQL: Final = "CREATE OR REPLACE TEMP TABLE cells AS SELECT * EXCLUDE (bucket) FROM counts WHERE bucket IS NULL"

_BUCKETS_SQL: Final = """
    CREATE OR REPLACE TEMP TABLE buckets AS
    SELECT rank, region_id, bucket, events FROM counts WHERE bucket IS NOT NULL"""

_EMPTY_TRACKS_SQL: Final = """
    CREATE OR REPLACE TEMP TABLE tracks (rank INTEGER, launch INTEGER, block INTEGER, warp SMALLINT, events BIGINT,
        work_ns BIGINT, wait_ns BIGINT, first_ns BIGINT, last_ns BIGINT,
        first_useful_ns BIGINT, last_useful_ns BIGINT)"""


def _slices(trace: Trace) -> Iterator[str]:
    """Conditions that cut the events into sets of whole tracks of at most about EVENTS_PER_SLICE."""
    ranks: list[int] = []
    num_events = 0
    for info in trace.ranks:
        recorded = info.counts.recorded
        if recorded > EVENTS_PER_SLICE:
            parts = -(-recorded // EVENTS_PER_SLICE)
            yield from (f"rank = {info.rank} AND block % {parts} = {i}" for i in range(parts))
            continue
        if num_events + recorded > EVENTS_PER_SLICE and ranks:
            yield _ranks_in(ranks)
            ranks, num_events = [], 0
        ranks.append(info.rank)
        num_events += recorded
    if ranks:
        yield _ranks_in(ranks)


def _ranks_in(ranks: list[int]) -> str:
    return f"rank IN ({', '.join(str(rank) for rank in ranks)})"


def _tracks_sql(ids: _Ids, where: str) -> str:
    """Measure of unions by a sweep: an interval adds what lies beyond the furthest end before it.

    Time in a wait is waiting even inside a useful span (an outer region around everything), so work is
    |useful or wait| - |wait|; where spans do not nest that is the union of the useful ones.
    """
    return f"""
        INSERT INTO tracks
        WITH closed AS (
            SELECT rank, launch, block, warp, start_ns, end_ns, {ids.waits} AS waits, {ids.works} AS works
            FROM events WHERE {ids.closed_spans} AND {where}),
        swept AS (
            SELECT *, max(end_ns) FILTER (waits OR works) OVER before AS busy_until,
                max(end_ns) FILTER (waits) OVER before AS waited_until
            FROM closed WINDOW before AS (PARTITION BY rank, launch, block, warp ORDER BY start_ns
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)),
        measured AS (
            SELECT rank, launch, block, warp, count(*) AS events,
                sum(greatest(0, end_ns - greatest(start_ns, busy_until))) FILTER (waits OR works) AS busy_ns,
                sum(greatest(0, end_ns - greatest(start_ns, waited_until))) FILTER (waits) AS wait_ns,
                min(start_ns) AS first_ns, max(end_ns) AS last_ns,
                min(start_ns) FILTER (works) AS first_useful_ns, max(end_ns) FILTER (works) AS last_useful_ns
            FROM swept GROUP BY rank, launch, block, warp)
        SELECT rank, launch, block, warp, events, coalesce(busy_ns, 0) - coalesce(wait_ns, 0),
            coalesce(wait_ns, 0), first_ns, last_ns, first_useful_ns, last_useful_ns
        FROM measured"""


_LAUNCHES_SQL: Final = """
    CREATE OR REPLACE TEMP TABLE spans_of_launches AS
    SELECT coalesce(l.kernel, '') AS kernel, coalesce(l.ordinal, 0) AS ordinal, t.rank, t.launch,
        min(t.first_ns) AS first_ns, max(t.last_ns) AS last_ns, count(*) AS tracks,
        CAST(sum(t.work_ns) AS BIGINT) AS work_ns, CAST(sum(t.wait_ns) AS BIGINT) AS wait_ns
    FROM tracks t LEFT JOIN launches l ON l.rank = t.rank AND l.launch = t.launch
    GROUP BY ALL"""
