"""What ranks tell of themselves while they run, and what a watcher makes of it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kprof.capture.claims import Claim
from kprof.recording.launches.pace import Look, describe_pace, paces
from kprof.recording.launches.progress import (
    NUM_PEERS,
    Progress,
    RankProgress,
    metrics_text,
    read_progress,
)
from kprof.regions import parse_regions

REGIONS = parse_regions(
    'REGION(R_SEND, "send", send, peer:8)\nREGION(R_WAIT, "wait", wait, peer:4, slot:8)'
)


def events(*rows: tuple[int, int, int]) -> pa.Table:
    """(region, peer, ns) with a slot of 3."""
    columns = {
        "region": pa.array([region for region, _, _ in rows], pa.uint16()),
        "payload": pa.array([peer | 3 << 4 for _, peer, _ in rows], pa.uint32()),
        "duration_ns": pa.array([ns for _, _, ns in rows], pa.int64()),
    }
    return pa.table(columns)


@pytest.fixture
def claims(tmp_path: Path) -> list[Claim]:
    return [Claim(tmp_path, rank) for rank in (0, 1)]


def test_a_watcher_reads_what_the_rank_wrote(tmp_path: Path, claims: list[Claim]) -> None:
    progress = Progress(claims[1].progress)
    claims[1].progress[0], claims[1].progress[1] = 7, 9
    progress.set_counts(1000, 24)
    progress.add_waits(events((2, 0, 500), (2, 5, 20), (1, 0, 9999), (2, 15, 8888)), REGIONS)
    progress.add_waits(events((2, 5, 30)), REGIONS)
    for length_s in (0.001, 0.001, 0.001, 1.0):
        progress.add_length(length_s)
    claims[0].release()

    ended, running = read_progress(tmp_path)
    assert (ended.rank, ended.is_running, ended.num_launches) == (0, False, 0)
    assert (running.rank, running.is_running) == (1, True)
    assert (running.num_launches, running.num_calls) == (7, 9)
    assert (running.num_events, running.num_dropped) == (1000, 24)
    assert {peer: ns for peer, ns in enumerate(running.waited_ns) if ns} == {0: 500, 5: 50}
    assert running.length_s(0.5) == pytest.approx(0.001, rel=0.19)
    assert 1.0 <= (running.length_s(0.99) or 0) < 1.2
    assert ended.length_s(0.5) is None


@pytest.mark.parametrize("length_s", [0.0, 1e-9, 1e-6, 3600.0, 1e9])
def test_every_length_has_its_place(claims: list[Claim], tmp_path: Path, length_s: float) -> None:
    Progress(claims[0].progress).add_length(length_s)
    assert sum(read_progress(tmp_path)[0].num_of_length) == 1


def test_metrics_are_what_prometheus_reads(tmp_path: Path, claims: list[Claim]) -> None:
    progress = Progress(claims[1].progress)
    progress.set_counts(12_345_678_901, 2)
    progress.add_waits(events((2, 0, 1_500_000_000)), REGIONS)
    for _ in range(3):
        progress.note_step()
    text = metrics_text(read_progress(tmp_path))
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert 'kprof_events_total{rank="1"} 12345678901' in samples
    assert 'kprof_dropped_events_total{rank="1"} 2' in samples
    assert 'kprof_steps_total{rank="1"} 3' in samples
    assert 'kprof_waited_seconds_total{rank="1",peer="0"} 1.5' in samples
    assert len([line for line in samples if line.startswith("kprof_step_seconds")]) == 3
    named = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {line.split("{")[0] for line in samples} <= named


def told(rank: int, *counts: int, waited_ns: dict[int, int] | None = None) -> RankProgress:
    """Its launches, calls, events, drops and steps, as far as they are not 0."""
    all_counts = (*counts, 0, 0, 0, 0, 0)[:5]
    peers = tuple((waited_ns or {}).get(peer, 0) for peer in range(NUM_PEERS))
    return RankProgress(rank, True, *all_counts, num_of_length=(), waited_ns=peers)


def test_the_pace_names_the_slowest_rank_and_whom_it_waits_for() -> None:
    before = Look(3.0, [told(0, waited_ns={1: 1000}), told(1)])
    others = {"waited_ns": {1: 1090}}, {"waited_ns": {0: 30, 3: 10}}
    after = Look(5.0, [told(0, 20, 20, 500, **others[0]), told(1, 17, 17, 500, 1, **others[1])])
    assert describe_pace(paces([before, after])) == (
        "500 events/s  1 dropped  18 launches/s  slowest rank 1, 3 calls behind, waits most for "
        "rank 0 (75%)"
    )
    even = Look(5.0, [after.ranks[0], told(1, 17, 20, 500, 1, 3, **others[1])])
    assert describe_pace(paces([before, even])) == (
        "500 events/s  1 dropped  18 launches/s  2 steps/s  all ranks made as many calls, waits most "
        "for rank 1 (69%)"
    )


def test_events_are_counted_over_all_looks_and_launches_since_the_last() -> None:
    """A drain writes events in bursts."""
    looks = [
        Look(0.0, [told(0)]),
        Look(1.0, [told(0, 100, 100, 60_000)]),
        Look(2.0, [told(0, 250, 250, 60_000)]),
    ]
    (pace,) = paces(looks)
    assert (pace.events_per_s, pace.launches_per_s) == (30_000, 150)


@pytest.mark.parametrize("num_looks", [2, 3])
def test_a_rank_that_was_not_there_before_had_done_nothing(num_looks: int) -> None:
    looks = [Look(0.0, []), Look(1.0, []), Look(2.0, [told(7, 4, 4, 12)])][-num_looks:]
    (pace,) = paces(looks)
    assert (pace.rank, pace.launches_per_s, pace.num_behind) == (7, 4, 0)
    assert pace.events_per_s == 12 / (num_looks - 1)
    assert describe_pace([pace]).endswith("all ranks made as many calls")
