"""What Triton kernels record, in Triton's interpreter: the device code of kprof.triton runs as it does on a GPU, also in arenas
of 2 GiB and more, and docs/triton.md is followed literally."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from needed import require_interpreter
from page import PAGE, block, finding, follow, side

from kprof import abi
from kprof.trace import Trace

require_interpreter()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trace]:
    folder = tmp_path_factory.mktemp("interpreted")
    command = [sys.executable, str(Path(__file__).parent / "interpreted.py"), str(folder)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert answer.returncode == 0, answer.stderr
    return lambda name: Trace.open(folder / f"{name}.kprof")


@pytest.mark.parametrize("name", ["reserved", "claimed"])
def test_every_row_is_recorded_once_by_the_program_that_copied_it(
    recorded: Callable[[str], Trace], name: str
) -> None:
    """200 rows by 3 programs: 67, 67 and 66 records, so every track takes a second chunk."""
    trace = recorded(name)
    events = trace.frame("SELECT payload, block, warp, region, launch FROM events ORDER BY payload")
    assert events["payload"].tolist() == list(range(200))
    assert events["block"].tolist() == [row % 3 for row in range(200)]
    assert set(events["warp"]) == {-1}
    assert set(events["region"]) == {"row"}
    assert trace.ranks[0].counts.dropped == trace.ranks[0].counts.torn_chunks == 0


@pytest.mark.parametrize(
    ("name", "num_overwritten"),
    [
        ("reserved", 0),
        ("whole", 0),
        ("claimed, one buffer", 0),
        ("reserved, one buffer", 2),
        ("whole, one buffer", 1),
    ],
)
def test_runs_that_had_one_buffer_are_counted(
    recorded: Callable[[str], Trace], name: str, num_overwritten: int
) -> None:
    """Chunks that are reserved belong to one run."""
    assert recorded(name).ranks[0].counts.overwritten_runs == num_overwritten


def test_spans_of_a_program_follow_each_other(recorded: Callable[[str], Trace]) -> None:
    early = recorded("claimed").frame(
        """SELECT count(*) AS n FROM (
             SELECT start_ns, lag(start_ns + duration_ns) OVER (PARTITION BY block ORDER BY payload) AS before
             FROM events) WHERE start_ns < before"""
    )
    assert early["n"][0] == 0


def test_spans_lie_within_the_span_around_them(recorded: Callable[[str], Trace]) -> None:
    outside = recorded("matmul").frame(
        """SELECT count(*) FILTER (step.start_ns < tile.start_ns OR step.start_ns + step.duration_ns
                                    > tile.start_ns + tile.duration_ns) AS outside, count(*) AS n
           FROM events step JOIN events tile USING (block)
           WHERE step.region = 'step' AND tile.region = 'tile'"""
    )
    assert (outside["outside"][0], outside["n"][0]) == (0, 8)


def test_what_finds_no_room_is_counted_by_region(recorded: Callable[[str], Trace]) -> None:
    """Seven tracks of 150 events, four chunks of 61 records."""
    trace = recorded("full")
    counts = trace.ranks[0].counts
    # The first program fills three chunks, the second the last one.
    assert counts.recorded == 150 + 61
    assert counts.recorded + counts.dropped == 7 * 150
    losses = {loss.region: loss.dropped for loss in trace.ranks[0].losses}
    kept = trace.frame("SELECT region, count(*) AS n FROM events GROUP BY 1").set_index("region")[
        "n"
    ]
    assert losses["done"] + kept["done"] == 7 * 100
    assert losses["left"] + kept["left"] == 7 * 50
    assert trace.ranks[0].arena.needed_bytes > trace.ranks[0].arena.size_bytes


# Of programs that write 0, 1, 60, 61, 62 and 100 marks into tracks of one chunk.
IN_ONE_CHUNK = {1: 1, 2: 60, 3: 61, 4: 61, 5: 61}


def marks_of_blocks(trace: Trace) -> dict[int, int]:
    """How many marks each program recorded, which are its first ones."""
    found = trace.frame("SELECT block, count(*) AS n, max(payload) AS last FROM events GROUP BY 1")
    assert (found["last"] == found["n"] - 1).all()
    return dict(zip(found["block"], found["n"], strict=True))


@pytest.mark.parametrize(
    ("name", "kept", "dropped"),
    [
        ("short", IN_ONE_CHUNK, 1 + 39),
        ("short, claimed", IN_ONE_CHUNK, 1 + 39),
        # The arena has four chunks, which the first four programs take.
        ("short, full", {1: 1, 2: 60, 3: 61}, 62 + 100),
        ("short, some blocks", {3: 61, 4: 61}, 1),
        ("too long", IN_ONE_CHUNK | {4: 62, 5: 100}, 0),
    ],
)
def test_a_short_track_keeps_what_fits_its_chunk_and_counts_the_rest(
    recorded: Callable[[str], Trace], name: str, kept: dict[int, int], dropped: int
) -> None:
    trace = recorded(name)
    assert marks_of_blocks(trace) == kept
    counts = trace.ranks[0].counts
    assert (counts.recorded, counts.dropped) == (sum(kept.values()), dropped)
    assert counts.torn_chunks == counts.torn_records == 0
    assert sum(loss.dropped for loss in trace.ranks[0].losses if loss.region == "done") == dropped


def test_a_sample_of_short_tracks_is_the_one_that_the_switches_say(
    recorded: Callable[[str], Trace],
) -> None:
    is_sampled = [
        ((block * 33 + abi.BLOCK_TRACK_WARP) * 0x9E3779B1 % 2**32 >> 16) % 2 == 0
        for block in range(6)
    ]
    expected = {block: n for block, n in IN_ONE_CHUNK.items() if is_sampled[block]}
    assert 0 < len(expected) < len(IN_ONE_CHUNK)
    assert marks_of_blocks(recorded("short, sampled")) == expected


def test_every_call_writes_what_it_says(recorded: Callable[[str], Trace]) -> None:
    events = recorded("calls").frame(
        "SELECT region, kind, payload, flags, duration_ns FROM events WHERE block = 1 ORDER BY "
        "start_ns, region"
    )
    clamped = 255 | 0xFFFFFF << 8
    assert sorted(zip(events["region"], events["kind"], events["payload"], strict=True)) == [
        ("copy", "span", 7000),
        ("done", "mark", 0),
        ("left", "value", 7),
        ("wait", "span", 3 | 7 << 8),
        ("wait", "span", clamped),
    ]
    assert set(events.loc[events["kind"] != "span", "duration_ns"]) == {0}
    assert recorded("calls").ranks[0].counts.clamped == 2


def test_off_records_nothing(recorded: Callable[[str], Trace]) -> None:
    assert recorded("off").ranks[0].counts.recorded == 0


def test_runs_of_a_tuner_are_not_recorded(recorded: Callable[[str], Trace]) -> None:
    """Two configurations were timed; the one that won, with two steps of 32, was recorded once."""
    events = recorded("tuned").frame("SELECT payload FROM events ORDER BY start_ns")
    assert events["payload"].tolist() == [0, 32]


def test_spans_are_put_into_kernels_of_others(recorded: Callable[[str], Trace]) -> None:
    """A matmul of 2 x 2 programs with two steps each: by call, by line, by lines, and as a whole; a
    tuned kernel of 4 programs; 5 programs as a whole, of which three return early."""
    trace = recorded("instrumented")
    counts = trace.frame("SELECT region, count(*) AS n FROM events GROUP BY 1 ORDER BY 1")
    assert dict(zip(counts["region"], counts["n"], strict=True)) == {
        "all": 5,
        "dot": 8,
        "loop": 4,
        "steps": 8,
        "store": 4,
        "whole": 4,
    }
    outside = trace.frame(
        """SELECT count(*) AS n FROM events inner_span JOIN events loop USING (block, launch)
           WHERE loop.region = 'loop' AND inner_span.region IN ('dot', 'steps')
             AND (inner_span.start_ns < loop.start_ns
                  OR inner_span.start_ns + inner_span.duration_ns > loop.start_ns + loop.duration_ns)"""
    )
    assert outside["n"][0] == 0


def test_programs_share_chunks_where_each_has_one_span(recorded: Callable[[str], Trace]) -> None:
    """130 programs need three chunks. Replays are those of test_triton_spliced.py."""
    trace = recorded("whole")
    events = trace.frame("SELECT block, payload FROM events ORDER BY block")
    assert events["block"].tolist() == list(range(130))
    assert set(events["payload"]) == {0}
    counts = trace.ranks[0].counts
    assert (counts.recorded, counts.dropped, counts.torn_chunks) == (130, 0, 0)
    used = trace.ranks[0].arena.used_bytes - abi.CHUNKS_OFFSET
    assert used == 3 * abi.CHUNK_BYTES


require_interpreter()


PROGRAMS = range(8)
# One event per program in launch 0, and 71 in launch 1: they take a second chunk.
BEGUN = sorted([[0, n] for n in PROGRAMS] + [[1, n] for n in PROGRAMS] * 2)


def test_a_chunk_at_a_multiple_of_4_gib_is_like_any_other() -> None:
    """In arenas of 1 MiB to 8 GiB, with chunks that are claimed and reserved."""
    answer = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "far_arena.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    cases = [json.loads(line) for line in answer.stdout.splitlines()]
    assert len({(case["size_bytes"], case["chunk"]) for case in cases}) == len(cases) == 20
    for case in cases:
        assert (case["begun"], case["has_boundary"], case["dropped"]) == (BEGUN, True, 0), case


require_interpreter()


MOST_CHANGED_LINES = 10


def test_the_changes_apply_to_the_kernel_and_are_few() -> None:
    assert side("-") == block("python")
    added = [line for line in block("diff").splitlines() if line.startswith("+")]
    assert len(added) < MOST_CHANGED_LINES


def test_the_page_leads_to_its_finding(tmp_path: Path) -> None:
    assert re.search(finding(1), follow(tmp_path, TRITON_INTERPRET="1"))


def test_the_page_names_what_exists() -> None:
    import kprof.triton as kp

    named = set(re.findall(r"\bkp\.(\w+)", PAGE))
    assert named <= set(kp.__all__)
    in_table = set(re.findall(r"^\| `[^`]*kp\.(\w+)", PAGE, flags=re.MULTILINE))
    assert in_table == {
        "open_track",
        "start",
        "stop",
        "lap",
        "span",
        "mark",
        "value",
        "waiting",
        "still_waiting",
    }
