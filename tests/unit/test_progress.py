"""What ranks tell of themselves while they run, and what a watcher makes of it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kprof.capture.claims import Claim
from kprof.recording.launches.progress import (
    Progress,
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
