"""A file of a hand-written intra-kernel profiler, with what is true of it: kprof must not conclude anything else."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import kprof
from kprof import analysis
from kprof.errors import ClockError, ForeignFormatError
from kprof.importers import import_events
from kprof.importers.foreign import ImportSummary, ReadOptions
from kprof.importers.guesses import category_of
from kprof.regions import Category, parse_regions

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


REGIONS = """
REGION(R_SEND, "dispatch-send", send)
REGION(R_RECV, "dispatch-recieve", wait)
"""


def test_a_misspelt_region_is_said(tmp_path: Path) -> None:
    summary = imported(tmp_path, worklog_events(), regions=parse_regions(REGIONS))
    assert (
        "no event is called 'dispatch-recieve', which the regions file declares; "
        "did you mean 'dispatch-recv'?" in summary.notices
    )


def test_a_regions_file_of_another_kernel_is_refused(tmp_path: Path) -> None:
    other = parse_regions('REGION(R_PUT, "put", send)')
    with pytest.raises(ForeignFormatError, match=r"no event of trace\.json has a name"):
        imported(tmp_path, worklog_events(), regions=other)


def test_declared_categories_are_no_guesses(tmp_path: Path) -> None:
    known = parse_regions(REGIONS.replace("recieve", "recv"))
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
