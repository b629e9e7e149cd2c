"""What `export.write` promises about files, notices and the level of detail."""

from __future__ import annotations

import gzip
import resource
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as TraceProto
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

import kprof
from kprof.capture.directory import EVENT_OPEN
from kprof.capture.manifest import ArenaUse, EventCounts
from kprof.errors import ExportError, OutputExistsError
from kprof.export import write
from kprof.importers import import_events
from kprof.trace import Trace
from synthetic import TraceBuilder

REGIONS = """
REGION(R_SEND, "send", send, peer:8, slot:24)
REGION(R_WAIT, "wait", wait, peer:8, slot:24)
REGION(R_LONG, "long", compute)
FLOW(R_SEND, R_WAIT)
"""


def small_trace(num_spans: int = 3) -> Trace:
    build = TraceBuilder(REGIONS, num_ranks=1)
    for i in range(num_spans):
        build.span(0, "send", 20 * i, 10, peer=0, slot=i)
    return build.trace()


def slices(path: Path) -> list[tuple[str, int, int, dict[str, int]]]:
    """Name, start, duration and arguments of all slices but launches. Spans of one track do not nest here."""
    packets = TraceProto.FromString(path.read_bytes()).packet
    names = {entry.iid: entry.name for entry in packets[0].interned_data.event_names}
    args = {entry.iid: entry.name for entry in packets[0].interned_data.debug_annotation_names}
    found = []
    for begin, end in pairwise(packets):
        if begin.track_event.type == TrackEvent.TYPE_SLICE_BEGIN and begin.track_event.name_iid:
            values = {args[a.name_iid]: a.uint_value for a in begin.track_event.debug_annotations}
            duration = end.timestamp - begin.timestamp
            found.append((names[begin.track_event.name_iid], begin.timestamp, duration, values))
    return found


@pytest.mark.parametrize("name", ["run.txt", "run", "run.perfetto", "run.gz", "pftrace"])
def test_an_unknown_suffix_names_the_known_ones(name: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"\.pftrace, \.pftrace\.gz, \.json, \.json\.gz"):
        write(small_trace(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["run.pftrace", "run.json", "run.json.gz"])
def test_an_existing_file_is_kept_unless_forced(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("precious")
    with pytest.raises(OutputExistsError, match="--force"):
        write(small_trace(), path)
    assert path.read_text() == "precious"
    write(small_trace(), path, force=True)
    assert path.read_bytes() != b"precious"


def test_a_directory_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="No such file or directory"):
        write(small_trace(), tmp_path / "nowhere" / "run.pftrace")


def test_a_directory_as_output(tmp_path: Path) -> None:
    folder = tmp_path / "run.pftrace"
    folder.mkdir()
    with pytest.raises(ExportError, match="is a directory"):
        write(small_trace(), folder, force=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.pftrace", "run.json", "run.json.gz"])
def test_a_full_disk_leaves_nothing_new_and_the_old_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("old")
    trace = small_trace(20_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(
            ExportError, match=r"cannot write .*; choose another -o or free some space"
        ):
            write(trace, path, force=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
def test_gzip_is_the_same_file(suffix: str, tmp_path: Path) -> None:
    plain = write(small_trace(), tmp_path / f"run{suffix}").path.read_bytes()
    packed = write(small_trace(), tmp_path / f"run{suffix}.gz").path.read_bytes()
    assert gzip.decompress(packed) == plain


def test_the_summary_counts_what_is_in_the_file(tmp_path: Path) -> None:
    build = TraceBuilder(REGIONS, num_ranks=2)
    build.span(0, "send", 1_000_000, 10, peer=1, slot=1)
    build.span(1, "wait", 1_000_005, 20, peer=0, slot=1)
    summary = write(build.trace(), tmp_path / "run.pftrace")
    assert (summary.num_slices, summary.num_flows) == (2, 1)
    assert summary.size_bytes == summary.path.stat().st_size
    assert summary.origin_ns == 1_000_000 - 1_000
    assert summary.notices == ()
    packets = TraceProto.FromString(summary.path.read_bytes()).packet
    descriptors = [p.track_descriptor for p in packets if p.HasField("track_descriptor")]
    assert summary.num_tracks == sum(not d.HasField("process") for d in descriptors)


def test_the_trace_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = TraceBuilder('REGION(R, "r", compute)', 1)
    build.span(0, "r", 0, 100)
    trace = build.trace()
    monkeypatch.setattr(Trace, "select", None)
    assert write(trace, tmp_path / "run.pftrace").num_slices == 1


def test_progress_goes_from_nothing_to_one(tmp_path: Path) -> None:
    seen: list[float] = []
    write(small_trace(), tmp_path / "run.pftrace", progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert all(0 <= fraction <= 1 for fraction in seen)


def dropped(needed_bytes: int) -> dict[str, Any]:
    arena = ArenaUse(1 << 20, 1 << 20, needed_bytes)
    return {"counts": EventCounts(dropped=3), "arena": arena}


@pytest.mark.parametrize(
    ("options", "of_ranks", "words"),
    [
        ({"is_aligned": False}, {}, "clocks of the ranks are not aligned"),
        ({"missing_ranks": (1,)}, {}, "nothing was recorded on rank 1"),
        ({}, dropped((8 << 20) + 1), "--arena-size 9MiB would have held them"),
        ({}, dropped(0), "6 events did not fit the arena while recording and are missing; "),
        ({}, dropped(0), "record with a larger --arena-size"),
    ],
)
def test_what_the_recording_lacks_is_said(
    options: dict[str, Any], of_ranks: dict[str, Any], words: str, tmp_path: Path
) -> None:
    build = TraceBuilder(REGIONS, num_ranks=2, **options)
    build.span(0, "long", 5, 10)
    (notice,) = write(build.trace(of_ranks), tmp_path / "run.pftrace").notices
    assert words in notice


def rules_trace() -> Trace:
    """Flows of several rules and calls, with slots that are used again, of which the last ones are open."""
    build = TraceBuilder(
        """REGION(R_PUT, "put", send, peer:8, slot:24)
           REGION(R_GOT, "got", wait, peer:8, slot:24)
           REGION(R_ACK, "ack", send, peer:8, slot:24)
           REGION(R_ACKED, "acked", wait, peer:8, slot:24)
           REGION(R_WORK, "work", compute)
           FLOW(R_PUT, R_GOT)
           FLOW(R_ACK, R_ACKED)""",
        num_ranks=2,
    )
    for launch in (1, 2):
        build.launch(launch, "kernel")
        for i in range(40):
            for sent, waited, src in (("put", "got", 0), ("ack", "acked", 1)):
                place = {"launch": launch, "slot": i % 3, "start_ns": 10_000 * launch + 100 * i}
                send = place | {"rank": src, "block": i % 4, "region": sent, "peer": 1 - src}
                build.span(duration_ns=20, **send)
                wait = place | {"rank": 1 - src, "block": i % 7, "region": waited, "peer": src}
                # Every third sender is late.
                wait["start_ns"] -= 30 * (i % 3 == 2)
                flags = EVENT_OPEN if i == 39 else 0
                build.span(duration_ns=90, flags=flags, **wait)
            build.span(0, "work", 10_000 * launch + 100 * i, 5)
    return build.trace()


JOINED, READ = (
    ("kprof.export.flows._EVENTS_PER_JOIN", 30),
    ("kprof.export.source._ROWS_PER_PIECE", 3),
)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [[JOINED], [READ], [JOINED, READ]])
def test_what_is_joined_and_read_in_parts_is_the_same(
    parts: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = rules_trace()
    at_once = write(trace, tmp_path / "once.pftrace")
    for name, most in parts:
        monkeypatch.setattr(name, most)
    in_parts = write(trace, tmp_path / "parts.pftrace")
    assert at_once.num_flows == in_parts.num_flows == 2 * 2 * 39
    if parts == [JOINED]:
        assert at_once.path.read_bytes() == in_parts.path.read_bytes()
    assert sorted(slices(at_once.path)) == sorted(slices(in_parts.path))


def detail_trace() -> Trace:
    """A long span, then 100 pairs of short spans, then a long span, all on one track."""
    build = TraceBuilder(REGIONS, num_ranks=1)
    build.span(0, "long", 0, 1_000_000)
    for i in range(100):
        start_ns = 1_000_000 + 100 * i
        build.span(0, "send", start_ns, 20, peer=0, slot=i)
        build.span(0, "wait", start_ns + 30, 60, peer=0, slot=i)
    build.span(0, "long", 2_000_000, 1_000_000)
    return build.trace()


def test_short_neighbours_are_merged_and_say_so(tmp_path: Path) -> None:
    fitting = write(detail_trace(), tmp_path / "whole.pftrace", max_slices=202)
    assert (fitting.num_slices, fitting.notices) == (202, ())
    summary = write(detail_trace(), tmp_path / "run.pftrace", max_slices=50)
    found = slices(summary.path)
    merged = [entry for entry in found if "merged spans" in entry[3]]
    assert summary.num_slices == len(found) <= 50
    # The long spans are as they were.
    assert [(name, dur) for name, _, dur, args in found if "merged spans" not in args] == [
        ("long", 1_000_000),
        ("long", 1_000_000),
    ]
    assert {name for name, *_ in merged} == {"mostly wait (merged)"}
    assert sum(args["merged spans"] for *_, args in merged) == 200
    assert sum(args["busy ns"] for *_, args in merged) == 100 * (20 + 60)
    assert sum(dur for _, _, dur, _ in merged) >= 100 * (20 + 60)
    (notice,) = summary.notices
    assert "200 spans" in notice
    assert "--max-slices" in notice


def test_neighbours_of_one_region_keep_its_name(tmp_path: Path) -> None:
    summary = write(small_trace(1000), tmp_path / "run.pftrace", max_slices=100)
    assert {name for name, *_ in slices(summary.path)} == {"send (merged)"}


def test_merging_never_reaches_over_the_span_around(exported: Callable[..., Any]) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    for i in range(50):
        build.span(0, "long", 100 * i, 90)
        for k in range(4):
            build.span(0, "send", 100 * i + 20 * k, 10, peer=0, slot=k)
    loaded = exported(build.trace(), max_slices=120)
    depths = loaded.column("SELECT depth FROM slice WHERE category <> 'launch'")
    assert (depths.count(0), max(depths)) == (50, 1)


def test_what_cannot_be_merged_is_cut_in_time(tmp_path: Path) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    # Each block has one span: there are no neighbours.
    for block in range(400):
        build.span(0, "long", 1000 * block, 10, block=block)
    summary = write(build.trace(), tmp_path / "run.pftrace", max_slices=100)
    starts = [start for _, start, _, _ in slices(summary.path)]
    assert 90 <= len(starts) <= 100
    assert max(starts) < 110_000
    (notice,) = summary.notices
    assert f"{400 - len(starts)} events" in notice
    assert "--time" in notice


def test_max_slices_must_be_a_number_above_zero(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="above 0"):
        write(small_trace(), tmp_path / "run.pftrace", max_slices=0)


def crowd(num_ranks: int) -> Trace:
    build = TraceBuilder(REGIONS, num_ranks)
    for rank in range(num_ranks):
        for block in range(rank % 3 + 1):
            build.span(rank, "long", 7 * rank, 10, block=block)
    return build.trace()


def test_small_ranks_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for num_ranks in (4, 40):
        asked: list[str] = []
        trace, sql = crowd(num_ranks), Trace.sql
        monkeypatch.setattr(
            Trace,
            "sql",
            lambda self, query, *a, to=asked, of=sql: to.append(query) or of(self, query, *a),
        )
        write(trace, tmp_path / f"{num_ranks}.pftrace")
        counts.append(len(asked))
        monkeypatch.undo()
    assert counts[0] == counts[1]


def test_a_trace_that_is_merged_as_a_whole_names_no_length(tmp_path: Path) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    for launch in range(30):
        build.launch(launch, "kernel")
        for i in range(2):
            build.span(0, "long", 200 * launch + 50 * i, 40, launch=launch)
    # Spans of different launches are never merged, so that no length is long enough.
    few, _ = write(build.trace(), tmp_path / "few.pftrace", max_slices=10).notices
    assert " spans were merged" in few
    (many,) = write(small_trace(200), tmp_path / "many.pftrace", max_slices=100).notices[:1]
    assert "spans of at most 16 ns were merged" in many


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_a_table_that_was_exported_can_be_imported(suffix: str, tmp_path: Path) -> None:
    build = TraceBuilder(REGIONS, 2)
    for rank in range(2):
        for block in range(3):
            at = 1000 * rank + 100 * block
            build.span(rank, "long", at, 40, block=block)
            build.span(rank, "send", at + 50, 9, block=block, peer=1 - rank, slot=block)
    trace = build.trace()
    summary = write(trace, tmp_path / f"events{suffix}")
    assert summary.num_slices == 12
    again = import_events(None, [summary.path], tmp_path / "again.kprof")
    keys = ["rank", "launch", "block", "warp", "region", "start_ns", "duration_ns"]
    order = f"SELECT {', '.join(keys)} FROM events ORDER BY ALL"
    found, expected = kprof.open(again.path).frame(order), trace.frame(order)
    assert found.to_numpy().tolist() == expected.to_numpy().tolist()
    with pytest.raises(OutputExistsError):
        write(trace, summary.path)
