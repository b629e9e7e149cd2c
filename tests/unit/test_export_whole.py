"""Everything at once: the trace processor's SQL over a large, awkward trace against the Trace
itself.

8 ranks x 304 blocks x 4 warps, rows in no order, times beyond 4 GiB of nanoseconds; on the tracks
spans that nest, overlap, touch, have no length, or never end; names in several scripts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kprof.capture.directory import EVENT_OPEN, event_schema
from kprof.export import ExportSummary, write
from kprof.trace import Trace
from kprof.trace.flows.ends import Ends, FlowEnds, Slice
from synthetic import TraceBuilder, events_of, trace_of

REGIONS = """
REGION(R_OUTER, "вокруг 全体", other)
REGION(R_WAIT, "wait ⏳", wait, peer:8, slot:24)
REGION(R_COPY, "copy", compute, bytes:32)
REGION(R_PUT, "put", send, peer:8, bytes:24)
"""
NUM_RANKS, NUM_BLOCKS, NUM_WARPS = 8, 304, 4
NUM_TRACKS = NUM_RANKS * NUM_BLOCKS * NUM_WARPS
LAUNCHES = {1: "dispatch", 2: "combine"}
# region, start, duration, by the kind of track.
SHAPES = (
    # Nested, with equal starts and equal ends.
    ((1, 0, 100), (2, 0, 60), (3, 60, 40), (4, 60, 10)),
    # Overlapping: no span encloses the next.
    ((1, 0, 60), (2, 30, 60), (4, 45, 60), (3, 80, 5)),
    # Back to back, and without length at the edges.
    ((2, 0, 50), (3, 50, 0), (4, 50, 30), (3, 80, 0)),
    # One that never ends, and spans after it began.
    ((3, 0, 10), (2, 20, None), (3, 30, 10), (4, 50, 20)),
)

Processor = Callable[[Path], Any]


@pytest.fixture(scope="module")
def trace() -> Trace:
    random = np.random.default_rng(7)
    track = np.repeat(np.arange(NUM_TRACKS), 4)
    shape = np.array([[(r, s, -1 if d is None else d) for r, s, d in one] for one in SHAPES])
    region, start, duration = shape[track[::4] % 4].reshape(-1, 3).T
    is_open = duration < 0
    launch = 1 + (track % 3 == 0)
    # Launches stand 5 GiB of nanoseconds apart, tracks some nanoseconds.
    start_ns = 1_700_000_000_000_000_000 + start + track % 211 + (launch - 1) * (5 << 32)
    columns = {
        "rank": track // (NUM_BLOCKS * NUM_WARPS),
        "launch": launch,
        "block": track // NUM_WARPS % NUM_BLOCKS,
        "warp": track % NUM_WARPS,
        "region": region,
        "flags": np.where(is_open, EVENT_OPEN, 0),
        "start_ns": start_ns,
        "duration_ns": np.where(is_open, 0, duration),
        "payload": np.where(region == 1, 0, random.integers(0, 1 << 32, len(track))),
        "hw_id": 0 * track,
    }
    order = random.permutation(len(track))
    build = TraceBuilder(REGIONS, num_ranks=NUM_RANKS)
    for number, name in LAUNCHES.items():
        build.launch(number, name, num_blocks=NUM_BLOCKS)
    return trace_of(build, events_of(columns[name][order] for name in event_schema().names))


@pytest.fixture(scope="module")
def summary(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> ExportSummary:
    return write(trace, tmp_path_factory.mktemp("whole") / "trace.pftrace")


@pytest.fixture
def loaded(summary: ExportSummary, processor: Processor) -> Any:
    return processor(summary.path)


def test_every_event_is_there_as_it_is(trace: Trace, summary: ExportSummary, loaded: Any) -> None:
    assert loaded.import_errors() == []
    found = loaded.rows(
        f"""SELECT CAST(substr(r.name, 6, 1) AS INT), CAST(substr(b.name, 7) AS INT), CAST(substr(w.name, 6) AS INT),
               s.name, s.category, s.ts + {summary.origin_ns}, s.dur,
               extract_arg(s.arg_set_id, 'debug.peer'), extract_arg(s.arg_set_id, 'debug.slot'),
               extract_arg(s.arg_set_id, 'debug.bytes'), extract_arg(s.arg_set_id, 'debug.open (never ended)')
           FROM slice s JOIN track w ON w.id = s.track_id JOIN track b ON b.id = w.parent_id
           JOIN track r ON r.id = b.parent_id WHERE w.name GLOB 'warp *'"""
    )
    _, last_ns = trace.window_ns()
    expected = trace.sql(
        f"""SELECT rank, block, warp, region, category, start_ns,
               CASE WHEN flags & {EVENT_OPEN} = 0 THEN duration_ns ELSE {last_ns} - start_ns END,
               peer, slot, bytes, CASE WHEN flags & {EVENT_OPEN} <> 0 THEN 1 END
           FROM events"""
    )
    rows = zip(*(column.to_pylist() for column in expected.columns), strict=True)
    assert len(found) == 4 * NUM_TRACKS
    assert Counter(found) == Counter(rows)
    num_blocks = loaded.value("SELECT count(*) FROM track WHERE name GLOB 'block *'")
    assert num_blocks == NUM_RANKS * NUM_BLOCKS
    assert loaded.value("SELECT count(*) FROM slice WHERE depth > 0 AND category <> 'launch'") > 0
    sticking_out = loaded.value(
        """SELECT count(*) FROM slice c JOIN slice p ON p.id = c.parent_id
           WHERE c.ts < p.ts OR c.ts + c.dur > p.ts + p.dur"""
    )
    assert sticking_out == 0


def test_launches_reach_from_their_first_event_to_their_last(
    trace: Trace, summary: ExportSummary, loaded: Any
) -> None:
    found = loaded.rows(
        f"""SELECT CAST(substr(r.name, 6, 1) AS INT), s.name, s.ts + {summary.origin_ns}, s.dur
            FROM slice s JOIN track t ON t.id = s.track_id JOIN track r ON r.id = t.parent_id
            WHERE s.category = 'launch' AND t.name = 'kernel launches'"""
    )
    _, last_ns = trace.window_ns()
    expected = trace.sql(
        f"""SELECT rank, kernel, min(start_ns),
               max(CASE WHEN flags & {EVENT_OPEN} = 0 THEN end_ns ELSE {last_ns} END) - min(start_ns)
           FROM events GROUP BY rank, kernel"""
    )
    rows = zip(*(column.to_pylist() for column in expected.columns), strict=True)
    assert sorted(found) == sorted(rows)
    assert len(found) == NUM_RANKS * len(LAUNCHES)


def steps(changes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Times and values of a sum of (time, change), where it changes."""
    total, points = 0, []
    by_time: Counter[int] = Counter()
    for time_ns, change in changes:
        by_time[time_ns] += change
    for time_ns in sorted(by_time):
        if by_time[time_ns]:
            total += by_time[time_ns]
            points.append((time_ns, total))
    return points


def union(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """+1 where the first of overlapping spans begins, -1 where the last of them ends."""
    changes: list[tuple[int, int]] = []
    reach = None
    for start, end in sorted(spans):
        if reach is None or start > reach:
            changes += [(start, 1)] + ([] if reach is None else [(reach, -1)])
            reach = end
        reach = max(reach, end)
    return changes + ([] if reach is None else [(reach, -1)])


@pytest.mark.slow
@pytest.mark.parametrize("counter", ["active blocks", "waiting blocks", "bytes in flight"])
def test_counters_change_when_the_events_do(
    counter: str, trace: Trace, summary: ExportSummary, loaded: Any
) -> None:
    _, last_ns = trace.window_ns()
    events = trace.frame(
        f"""SELECT rank, launch, block, category, bytes, start_ns,
               CASE WHEN flags & {EVENT_OPEN} = 0 THEN end_ns ELSE {last_ns} END AS end_ns FROM events"""
    )
    for rank, own in events.groupby("rank"):
        changes: list[tuple[int, int]] = []
        if counter == "active blocks":
            for _, block in own.groupby(["launch", "block"]):
                changes += [(int(block["start_ns"].min()), 1), (int(block["end_ns"].max()), -1)]
        elif counter == "waiting blocks":
            for _, block in own[own["category"] == "wait"].groupby("block"):
                changes += union(block[["start_ns", "end_ns"]].to_numpy().tolist())
        else:
            puts = own[own["category"] == "send"][["start_ns", "end_ns", "bytes"]]
            for start, end, size in puts.astype("int64").to_numpy().tolist():
                changes += [(start, size), (end, -size)]
        found = loaded.rows(
            f"""SELECT c.ts + {summary.origin_ns}, c.value FROM counter c JOIN track t ON t.id = c.track_id
                JOIN track r ON r.id = t.parent_id
                WHERE t.name = '{counter}' AND r.name GLOB 'Rank {rank} *' ORDER BY c.ts"""
        )
        assert found == steps(changes)


def test_one_block_of_many_joins_its_flows_in_one_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = TraceBuilder(
        """
        REGION(SEND, "send", send, peer:8, slot:24)
        REGION(WAIT, "wait", wait, peer:8, slot:24)
        FLOW(SEND, WAIT)
        """,
        2,
    )
    for i in range(300):
        block = int(i == 0)
        for rank, region in ((0, "send"), (1, "wait")):
            build.span(rank, region, i, 1, block=block, peer=1 - rank, slot=i)
    reads = []
    read = FlowEnds.read

    def counted(self: FlowEnds, chosen: Slice) -> tuple[Ends, Ends]:
        reads.append(chosen)
        return read(self, chosen)

    monkeypatch.setattr(FlowEnds, "read", counted)
    write(build.trace().select(blocks=[1]), tmp_path / "trace.json")
    assert len(reads) == 1
