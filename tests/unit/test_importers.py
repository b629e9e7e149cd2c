"""Other people's events become captures that everything else works on, and conclude what is true of them."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import foreign_files
import kprof
from kprof import analysis
from kprof.errors import CaptureError, ClockError, ForeignFormatError
from kprof.export import write
from kprof.importers import import_events
from kprof.importers.foreign import Guess, ImportSummary, ReadOptions
from kprof.importers.guesses import category_of
from kprof.regions import Category, parse_regions
from sealing import check_checksums

NAMES = ReadOptions(names=("dispatch-send", "dispatch-recv"))
REGIONS = parse_regions(
    """
REGION(R_SEND, "dispatch-send", send, peer:8, slot:24)
REGION(R_RECV, "dispatch-recv", wait, peer:8, slot:24)
FLOW(R_SEND, R_RECV)
"""
)


def rows(path: Path, columns: str) -> list[tuple[Any, ...]]:
    trace = kprof.open(path)
    frame = trace.frame(f"SELECT {columns} FROM events ORDER BY rank, start_ns, block")
    return [tuple(row) for row in frame.to_numpy().tolist()]


def buffer(
    events: list[tuple[int, int, int, int]], capacity: int = 8, num_begun: int | None = None
) -> np.ndarray:
    words = np.zeros(1 + 4 * capacity, dtype="<i8")
    words[0] = len(events) if num_begun is None else num_begun
    for i, event in enumerate(events):
        words[1 + 4 * i : 5 + 4 * i] = event
    return words


def test_the_classic_buffer(tmp_path: Path) -> None:
    # Start, duration, tag, threadblock; ticks of 10 ns. Past the count, a buffer holds garbage.
    per_rank = [[(1000, 5, 0, 3), (1010, 7, 1, 304)], [(1 << 50, 2, 1, 0)]]
    files = []
    for rank, events in enumerate(per_rank):
        files.append(tmp_path / f"rank{rank}.npy")
        np.save(files[-1], buffer([*events, (9, 9, 9, 9)], num_begun=len(events)))
    summary = import_events("classic", files, tmp_path / "run.kprof", NAMES)
    assert (summary.num_events, summary.num_ranks) == (3, 2)
    assert rows(summary.path, "rank, block, warp, region, start_ns, duration_ns") == [
        (0, 3, -1, "dispatch-send", 10_000, 50),
        (0, 304, -1, "dispatch-recv", 10_100, 70),
        (1, 0, -1, "dispatch-recv", 10 * (1 << 50), 20),
    ]


IN_BLOCK = parse_regions(
    """
REGION(R_FILL, "fill", send, slot:8)
REGION(R_FULL, "full", wait, slot:8)
REGION(R_SEND, "send", send, peer:8, slot:8)
REGION(R_WAIT, "wait", wait, peer:8, slot:8)
FLOW_IN_BLOCK(R_FILL, R_FULL)
FLOW(R_SEND, R_WAIT)
"""
)


def test_flows_within_a_block_need_no_peer(tmp_path: Path) -> None:
    file = tmp_path / "queue.csv"
    file.write_text(
        "rank,block,warp,launch,region,slot,start_ns,end_ns\n"
        "0,0,0,0,fill,3,0,50\n0,0,1,0,full,3,10,60\n"
    )
    summary = import_events("table", [file], tmp_path / "run.kprof", regions=IN_BLOCK)
    flows = kprof.open(summary.path).frame("SELECT send_region, wait_region FROM flows")
    assert flows.to_numpy().tolist() == [["fill", "full"]]
    assert any("1 FLOW of the regions file joins nothing" in each for each in summary.notices)


def test_a_classic_buffer_that_overflowed_says_what_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "rank0.bin"
    buffer([(10 * i, 1, 0, 0) for i in range(4)], capacity=4, num_begun=100).tofile(file)
    summary = import_events("classic", [file], tmp_path / "run.kprof", NAMES)
    assert summary.num_events == 4
    assert summary.num_lost == 96
    (info,) = kprof.open(summary.path).ranks
    assert (info.counts.recorded, info.counts.dropped) == (4, 96)


def chrome(tmp_path: Path, events: Any, name: str = "trace.json.gz") -> Path:
    path = tmp_path / name
    data = json.dumps(events).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def test_a_chrome_trace_whose_unit_is_a_tick_and_whose_threads_hold_the_rank(
    tmp_path: Path,
) -> None:
    events = [
        {"ph": "X", "name": "dispatch-send", "pid": 4, "tid": 7, "ts": 1000, "dur": 25},
        {"ph": "X", "name": "dispatch-recv", "pid": 0, "tid": 1, "ts": 990, "dur": 1},
        {"ph": "M", "name": "process_name", "pid": 4, "args": {"name": "x"}},
        {"ph": "i", "name": "mark", "pid": 4, "tid": 7, "ts": 1},
        {"ph": "C", "name": "counter", "pid": 4, "tid": 7, "ts": 1},
    ]
    file = chrome(tmp_path, events)
    summary = import_events(
        "chrome", [file], tmp_path / "run.kprof", ReadOptions(tick_ns=10, is_rank_in_tid=True)
    )
    assert rows(summary.path, "rank, block, region, start_ns, duration_ns") == [
        (0, 1, "dispatch-recv", 9890, 10),
        (4, 3, "mark", 0, 0),
        (4, 3, "dispatch-send", 9990, 250),
    ]
    assert rows(summary.path, "kind, category")[1] == ("mark", "other")
    assert summary.left_out == {"counters": 1}
    assert ("category send", Guess("dispatch-send")) in summary.taken
    assert kprof.open(summary.path).manifest.missing_ranks == (1, 2, 3)


def test_arguments_become_payload_fields_and_flows(tmp_path: Path) -> None:
    events = {
        "traceEvents": [
            {
                "ph": "X",
                "name": "dispatch-send",
                "pid": 0,
                "tid": 1,
                "ts": 1.5,
                "dur": 2,
                "args": {"peer": 1, "slot": 300, "note": "x"},
            },
            {
                "ph": "X",
                "name": "dispatch-recv",
                "pid": 1,
                "tid": 2,
                "ts": 1.0,
                "dur": 3,
                "args": {"peer": 0, "slot": 300, "note": "y"},
            },
        ]
    }
    file = chrome(tmp_path, events, "trace.json")
    summary = import_events("chrome", [file], tmp_path / "run.kprof", regions=REGIONS, bound_ns=100)
    assert rows(summary.path, "peer, slot, category, start_ns") == [
        (1, 300, "send", 500),
        (0, 300, "wait", 0),
    ]
    trace = kprof.open(summary.path)
    assert trace.frame("SELECT src, dst, slot FROM flows").to_numpy().tolist() == [[0, 1, 300]]
    assert trace.alignment is not None
    assert trace.alignment.bound_between_ns(0, 1) == 100


def test_without_a_bound_the_ranks_are_not_aligned(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "name": "a", "pid": rank, "tid": 0, "ts": rank, "dur": 1} for rank in range(2)
    ]
    summary = import_events("chrome", [chrome(tmp_path, events)], tmp_path / "run.kprof")
    trace = kprof.open(summary.path)
    assert trace.alignment is None
    assert "no clock calibration" in trace.manifest.alignment_note


TABLE = {
    "rank": [0, 0, 1],
    "block": [5, 2, 0],
    "region": ["dispatch-send", "compute", "dispatch-recv"],
    "start_ns": [100, 50, 1_700_000_000_000_000_001],
    "duration_ns": [10, 0, 7],
    "warp": [1, -1, 3],
    "peer": [1, 0, 0],
    "slot": [9, 0, 9],
}


def test_a_plain_table(tmp_path: Path) -> None:
    file = tmp_path / "events.csv"
    csv.write_csv(pa.table(TABLE), file)
    summary = import_events("table", [file], tmp_path / "run.kprof", regions=REGIONS)
    check_checksums(summary.path)
    assert rows(
        summary.path, "rank, block, warp, region, category, start_ns, duration_ns, peer, slot"
    ) == [
        (0, 2, -1, "compute", "compute", 50, 0, 0, 0),
        (0, 5, 1, "dispatch-send", "send", 100, 10, 1, 9),
        (1, 0, 3, "dispatch-recv", "wait", 1_700_000_000_000_000_001, 7, 0, 9),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("none", ["", "-1"])
def test_a_region_may_have_no_peer(none: str, tmp_path: Path) -> None:
    file = tmp_path / "events.csv"
    lines = [f"0,0,compute,10,5,{none},{none}", "0,0,dispatch-send,20,5,1,3"]
    lines += ["1,0,dispatch-recv,20,9,0,3"]
    file.write_text("\n".join(["rank,block,region,start_ns,duration_ns,peer,slot", *lines]))
    path = import_events("table", [file], tmp_path / "run.kprof", regions=REGIONS).path
    assert rows(path, "region, coalesce(peer, -1)") == [
        ("compute", -1),
        ("dispatch-send", 1),
        ("dispatch-recv", 0),
    ]
    assert kprof.open(path).sql("SELECT count(*) AS n FROM flows").to_pylist() == [{"n": 1}]


def words(*numbers: int) -> bytes:
    return np.array(numbers, dtype="<i8").tobytes()


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{"evil": 1}], dtype=object), allow_pickle=True)
    return file.getvalue()


def chrome_of(*changes: dict[str, object]) -> bytes:
    """A trace with an event for each of these."""
    event = {"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 0, "tid": 0}
    return json.dumps([event | change for change in changes]).encode()


COLUMNS = b"rank,block,region,start_ns,duration_ns"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.bin", words(), "expected int64 words"),
        ("a.bin", words(-1, 2, 3, 4, 5), "begins with the count -1"),
        ("a.bin", words(0, 2, 3, 4, 5), "holds no events"),
        ("a.bin", words(1, 2, 3, -4, 5), "tag -4, expected 0 to"),
        ("a.bin", words(1, 2, 3, 1 << 40, 5), "has the tag 1099511627776"),
        ("a.bin", words(1, 2, -3, 0, 5), "ends 30 ns before it starts"),
        ("a.bin", words(1, 2, 3, 0, -5), "block -5"),
        ("a.npy", pickled(), "cannot read"),
        ("a.json", b"", "as a Chrome trace"),
        ("a.json", b"{", "as a Chrome trace"),
        ("a.json", b'{"traceEvents": 3}', "as a Chrome trace"),
        ("a.json", b"\x1f\x8b broken", "as a Chrome trace"),
        ("a.json", b"[]", "holds no events"),
        ("a.json", chrome_of({"ts": "now"}), "ts 'now', not a number"),
        ("a.json", chrome_of({"pid": -1}), "rank -1"),
        # In the middle, it is not taken for the end of a file that was cut.
        ("a.json", chrome_of({}, {}, {}, {"tid": 0.5}, {}, {}), r"tid"),
        ("a.json", chrome_of({"ts": 1e300}, {"ts": 2}), r"the time 1e\+300 is too large"),
        (
            "a.json",
            chrome_of({"dur": 1e300}),
            r"the duration 1e\+300 is too large for 64 bits of ns",
        ),
        (
            "a.json",
            chrome_of({"dur": 1e306}),
            r"the duration 1e\+306 is too large for 64 bits of ns",
        ),
        (
            "a.json",
            chrome_of({"tid": -(2**63) - 1}),
            "block -9223372036854775809 does not fit into",
        ),
        (
            "a.json",
            chrome_of({"args": {"slot": 2**63}}),
            "slot 9223372036854775808 does not fit into",
        ),
        ("a.json", chrome_of({"ph": "B"}), r"no instant \(spans without an end: 1\)"),
        ("a.json", chrome_of({"dur": 1e15}), "has duration_ns 1000000000000000000, expected"),
        ("a.json", b'{"x":' + b"[" * 100_000, "cannot read"),
        ("a.json", gzip.compress(bytes(1 << 25)), "unpacks into more than 16,777,216 bytes"),
        ("a.csv", b"rank,block,start_ns,duration_ns\n0,0,1,1\n", "no column region"),
        ("a.csv", b"rank,block,region,start_ns\n0,0,a,1\n", "no column duration_ns"),
        ("a.csv", COLUMNS + b"\n0,0,a,1,\n", "empty cells"),
        ("a.csv", COLUMNS + b"\n0,0,a,now,1\n", "not whole numbers"),
        ("a.csv", b"rank,block,region,start_ns,end_ns\n0,0,a,10,5\n", "ends 5 ns before it starts"),
        ("a.csv", COLUMNS + b"\n", "holds no events"),
        ("a.csv", COLUMNS + b",bytes,slot\n0,0,a,1,1,4000000000,5\n", "35 bits of 32"),
        (
            "a.csv",
            COLUMNS + b",peer\n0,0,a,1,1,2\n0,0,a,2,1,\n",
            "a have a peer and some have none",
        ),
        ("a.csv", COLUMNS + "\n0,0,café,1,5\n".encode("latin-1"), "is not UTF-8; save the file as"),
        ("a.csv", b"", "cannot read"),
    ],
    ids=range(35),
)
@pytest.mark.filterwarnings("error")
def test_what_is_no_file_of_its_format_is_one_sentence(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    kind = {".json": "chrome", ".csv": "table"}.get(file.suffix, "classic")
    options = NAMES if kind == "classic" else None
    with pytest.raises(ForeignFormatError, match=reason):
        import_events(kind, [file], tmp_path / "run.kprof", options)
    assert not (tmp_path / "run.kprof").exists()


@pytest.mark.parametrize(
    ("kind", "name"),
    [("chrome", "t.json"), ("classic", "t.bin"), ("table", "t.csv"), ("table", "t.parquet")],
)
def test_a_pipe_is_not_waited_for(tmp_path: Path, kind: str, name: str) -> None:
    os.mkfifo(tmp_path / name)
    options = NAMES if kind == "classic" else None
    with pytest.raises(ForeignFormatError, match="it is a pipe"):
        import_events(kind, [tmp_path / name], tmp_path / "o.kprof", options)


def test_a_full_disk_leaves_nothing_of_an_import(tmp_path: Path) -> None:
    file = tmp_path / "events.csv"
    lines = [f"0,{i % 7},a,{i * i},{i % 31}\n" for i in range(20_000)]
    file.write_text("rank,block,region,start_ns,duration_ns\n" + "".join(lines))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(CaptureError, match=r"\.parquet: File too large; choose another -o"):
            import_events("table", [file], tmp_path / "run.kprof")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["events.csv"]


def test_what_was_exported_as_chrome_json_can_be_imported(tmp_path: Path) -> None:
    file = tmp_path / "events.csv"
    lines = [
        f"{rank},{block},work,{1000 * rank + 100 * block},{50 + block}"
        for rank in range(2)
        for block in range(3)
    ]
    file.write_text("rank,block,region,start_ns,duration_ns\n" + "\n".join(lines) + "\n")
    first = import_events("table", [file], tmp_path / "first.kprof", bound_ns=1)
    exported = write(kprof.open(first.path).trace, tmp_path / "run.json").path
    events = [
        e for e in json.loads(exported.read_text())["traceEvents"] if e.get("cat") != "launch"
    ]
    again = import_events(
        "chrome", [chrome(tmp_path, events)], tmp_path / "again.kprof", bound_ns=1
    )
    assert rows(again.path, "start_ns, duration_ns") == rows(first.path, "start_ns, duration_ns")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pids", "ranks"),
    [
        (["GPU 1", "GPU 0"], [1, 0]),
        ([4000123, 4000456], [0, 1]),
        (["a", "b"], [0, 1]),
        (["9" * 400, 2**63], [0, 1]),
        (["3", 5], [3, 5]),
    ],
)
def test_processes_that_are_no_ranks_get_one_which_is_said(tmp_path, pids, ranks):
    events = [
        {"ph": "X", "name": "a", "pid": pid, "tid": "w", "ts": i, "dur": 1}
        for i, pid in enumerate(pids)
    ]
    summary = import_events("chrome", [chrome(tmp_path, events)], tmp_path / "o.kprof")
    found = kprof.open(summary.path).frame("SELECT rank FROM events ORDER BY start_ns, rank")
    assert sorted(found["rank"].tolist()) == sorted(ranks)
    assert isinstance(dict(summary.taken)["rank"], Guess) == (pids != ["3", 5])


def test_pairs_and_files_that_nobody_closed(tmp_path):
    event = {"pid": 0, "tid": 3, "cat": "k"}
    events = [
        event | {"ph": "B", "name": "outer", "ts": 1},
        event | {"ph": "B", "name": "inner", "ts": 2},
        event | {"ph": "E", "ts": "3.5"},
        event | {"ph": "E", "ts": 9},
        event | {"ph": "b", "name": "copy", "ts": 2, "id": "0x1"},
        event | {"ph": "b", "name": "copy", "ts": 3, "id": "0x2"},
        event | {"ph": "e", "name": "copy", "ts": 7, "id": "0x1"},
        event | {"ph": "e", "name": "copy", "ts": 8, "id": "0x9"},
    ]
    file = tmp_path / "t.json"
    for text, cut in (
        (json.dumps(events), {}),
        (json.dumps(events)[:-1] + ",\n", {}),
        (
            '{"traceEvents":' + json.dumps(events)[:-1] + ', {"ph": "X", "args": {"cut',
            {"events that the end of the file cuts": 1},
        ),
    ):
        file.write_text(text)
        summary = import_events(None, [file], tmp_path / "o.kprof", force=True)
        assert rows(summary.path, "region, start_ns, duration_ns") == [
            ("outer", 0, 8000),
            ("inner", 1000, 1500),
            ("copy", 1000, 5000),
        ]
        pairs = {"ends without a beginning": 1, "spans without an end": 1}
        assert summary.left_out == pairs | cut
        assert summary.num_lost == 2


def test_spans_without_a_duration_are_named(tmp_path):
    event = {"ph": "X", "name": "a", "pid": 0, "tid": 0}
    file = chrome(tmp_path, [event | {"ts": 1, "dur": 2}, event | {"ts": 5}])
    summary = import_events("chrome", [file], tmp_path / "o.kprof")
    assert "spans without dur, imported as 0 ns: 1" in summary.notices


@pytest.mark.parametrize(("before", "after"), [(b"block", b"bl\x80ck"), (b"span", b"sp\x80n")])
def test_a_parquet_file_with_text_that_is_not_utf8_is_one_sentence(tmp_path, before, after):
    columns = {"rank": [0], "block": [0], "region": ["span"], "start_ns": [0], "duration_ns": [1]}
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path, store_schema=False, compression="none")
    path.write_bytes(path.read_bytes().replace(before, after))
    with pytest.raises(ForeignFormatError, match=r"text that is not UTF-8 .*; save the file"):
        import_events("table", [path], tmp_path / "o.kprof")
    assert not (tmp_path / "o.kprof").exists()


def test_a_damaged_column_of_a_parquet_file_is_one_sentence(tmp_path):
    """pyarrow ends the process when it is asked for the column's metadata. Found by the fuzzer (20261126, 48542)."""
    path = Path(__file__).parents[1] / "data" / "damaged_column.parquet"
    with pytest.raises(ForeignFormatError, match=r"damaged_column\.parquet as a table: "):
        import_events("table", [path], tmp_path / "o.kprof")


def test_a_gzipped_parquet_file_is_read(tmp_path):
    columns = {"rank": [0], "block": [0], "region": ["span"], "start_ns": [0], "duration_ns": [1]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    path = tmp_path / "t.parquet.gz"
    path.write_bytes(gzip.compress((tmp_path / "t.parquet").read_bytes()))
    assert import_events("table", [path], tmp_path / "o.kprof").num_events == 1


@pytest.mark.parametrize("mark", ["Prims fhne trace", "Prims fine Trace"])
def test_a_line_of_pipestrace_whose_mark_is_damaged_is_counted(tmp_path, mark):
    (path,) = foreign_files.modules()["pipestrace"].make_fine(tmp_path)
    path.write_text(path.read_text().replace("Prims fine trace", mark, 1))
    summary = import_events("pipestrace", [path], tmp_path / "o.kprof")
    assert sum(summary.left_out.values()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("code", ["03", "0X3", "0x3", "3", "003"])
def test_a_number_of_npkit_is_read_as_c_has_it(tmp_path, code):
    files = foreign_files.modules()["npkit"].make(tmp_path)
    header = files[0] / "npkit_event.h"
    header.write_text(header.read_text().replace("0x3", code))
    summary = import_events("npkit", files, tmp_path / "o.kprof")
    names = kprof.open(tmp_path / "o.kprof").frame("SELECT DISTINCT region FROM events")["region"]
    assert (sorted(names), summary.left_out) == (
        ["copy", "ring"],
        {"events of the host's threads": 2},
    )


@pytest.mark.parametrize("code", ["085", "9" * 5000])
def test_a_damaged_number_of_npkit_is_no_error(tmp_path, code):
    files = foreign_files.modules()["npkit"].make(tmp_path)
    header = files[0] / "npkit_event.h"
    header.write_text(header.read_text().replace("0x3", code))
    assert import_events("npkit", files, tmp_path / "o.kprof").num_events


NUM_RANKS, NUM_BLOCKS = 4, 12
# The blocks that the writer recorded: only those that got tokens.
BUSY_BLOCKS = (0, 1, 2, 5, 9)


def worklog_events(
    *, names: tuple[str, str] = ("dispatch-send", "dispatch-recv"), starts_at_zero: bool = True
) -> list[dict[str, Any]]:
    """As a published worklog writes them: ticks of 10 ns as if they were microseconds, the thread
    id is the block plus the rank (a thread with the id of its process would be its main thread),
    and each rank's first time taken off."""
    draw = random.Random(1)
    events = []
    for rank in range(NUM_RANKS):
        clock = 0 if starts_at_zero else 1000 + 7 * rank
        for block in BUSY_BLOCKS:
            sent = clock + (0 if block == 0 else draw.randrange(1, 50))
            took = draw.randrange(100, 120)
            place = {"ph": "X", "pid": rank, "tid": block + rank}
            events += [
                {**place, "name": names[0], "ts": sent, "dur": took},
                {**place, "name": names[1], "ts": sent + took, "dur": draw.randrange(200, 220)},
            ]
    return events


def imported(
    tmp_path: Path,
    events: list[dict[str, Any]],
    *,
    is_rank_in_tid: bool | None = None,
    **options: Any,
) -> ImportSummary:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(events))
    read = ReadOptions(tick_ns=10, is_rank_in_tid=is_rank_in_tid)
    return import_events("chrome", [file], tmp_path / "run.kprof", read, **options)


def test_threads_that_begin_at_the_rank_are_blocks_from_0(tmp_path: Path) -> None:
    summary = imported(tmp_path, worklog_events())
    trace = kprof.open(summary.path)
    blocks = trace.frame("SELECT DISTINCT rank, block FROM events ORDER BY ALL")
    assert blocks.to_numpy().tolist() == [[r, b] for r in range(NUM_RANKS) for b in BUSY_BLOCKS]
    assert any("thread ids begin at the number of their rank" in n for n in summary.notices)
    # Those that nobody recorded are not idle.
    assert "uneven_blocks" not in {f.kind.name for f in analysis.find(trace.summary).findings}
    assert {launch.num_blocks for info in trace.ranks for launch in info.launches} == {0}


def test_a_bound_is_not_believed_where_all_ranks_start_at_0(tmp_path: Path) -> None:
    summary = imported(tmp_path, worklog_events(), bound_ns=100.0)
    trace = kprof.open(summary.path)
    assert any(
        notice.startswith("the bound is not used: all ranks start") for notice in summary.notices
    )
    with pytest.raises(ClockError, match="kprof subtracted each rank's first time"):
        analysis.launch_skew(trace.summary)


def test_a_bound_is_used_where_ranks_have_times_of_their_own(tmp_path: Path) -> None:
    summary = imported(tmp_path, worklog_events(starts_at_zero=False), bound_ns=100.0)
    assert analysis.launch_skew(kprof.open(summary.path).summary)["skew_ns"].tolist() == [210]


def test_guessed_categories_are_used_kept_and_said(tmp_path: Path) -> None:
    trace = kprof.open(imported(tmp_path, worklog_events()).path)
    assert {region.name: region.category for region in trace.regions.regions} == {
        "dispatch-send": Category.SEND,
        "dispatch-recv": Category.RECV,
    }
    doubts = analysis.find(trace.summary).doubts
    (said,) = [doubt for doubt in doubts if doubt.kind.value == "guessed_metadata"]
    guess = "categories are guessed from names (dispatch-send: send; dispatch-recv: recv)"
    assert guess in said.sentence
    assert guess in trace.manifest.guesses


def test_names_that_say_nothing_are_not_judged(tmp_path: Path) -> None:
    trace = kprof.open(imported(tmp_path, worklog_events(names=("phase1", "phase2"))).path)
    doubts = analysis.find(trace.summary).doubts
    (said,) = [doubt for doubt in doubts if doubt.kind.value == "guessed_metadata"]
    assert "nothing says what phase1, phase2 is" in said.sentence


WORKLOG_REGIONS = """
REGION(R_SEND, "dispatch-send", send)
REGION(R_RECV, "dispatch-recieve", wait)
"""


def test_a_misspelt_region_is_said(tmp_path: Path) -> None:
    summary = imported(tmp_path, worklog_events(), regions=parse_regions(WORKLOG_REGIONS))
    assert (
        "no event is called 'dispatch-recieve', which the regions file declares; "
        "did you mean 'dispatch-recv'?" in summary.notices
    )


def test_a_regions_file_of_another_kernel_is_refused(tmp_path: Path) -> None:
    other = parse_regions('REGION(R_PUT, "put", send)')
    with pytest.raises(ForeignFormatError, match=r"no event of trace\.json has a name"):
        imported(tmp_path, worklog_events(), regions=other)


def test_declared_categories_are_no_guesses(tmp_path: Path) -> None:
    known = parse_regions(WORKLOG_REGIONS.replace("recieve", "recv"))
    trace = kprof.open(
        imported(tmp_path, worklog_events(), regions=known, is_rank_in_tid=True).path
    )
    assert trace.manifest.guesses == ()


def test_an_instant_becomes_a_mark_beside_spans_of_its_name(tmp_path: Path) -> None:
    instant = {"ph": "i", "name": "dispatch-send", "pid": 0, "tid": 0, "ts": 5}
    trace = kprof.open(imported(tmp_path, [*worklog_events(), instant]).path)
    marks = trace.frame("SELECT region, duration_ns FROM events WHERE kind = 'mark'")
    assert marks.to_numpy().tolist() == [["dispatch-send (instant)", 0]]


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("recv-wait", Category.WAIT),
        ("spinLock", Category.WAIT),
        ("grid_barrier", Category.SYNC),
        ("combine/send", Category.SEND),
        ("token_copy", Category.COMPUTE),
        ("GEMM", Category.COMPUTE),
        ("dispatch", Category.OTHER),
        ("sender", Category.OTHER),
    ],
)
def test_words_of_a_name_say_its_category(name: str, category: Category) -> None:
    assert category_of(name) is category
