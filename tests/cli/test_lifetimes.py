"""However a process ends: what it recorded and dropped is what it emitted, or the summary says what is missing."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from in_process import run_kprof
from kprof.capture import directory as capture
from kprof.capture.directory import Capture
from kprof.capture.output import writing
from kprof.hangs.report import lines_of, read_hang
from kprof.recording.finishing import recover
from sealing import check_checksums
from under_way import Recording

WORKLOAD = str(Path(__file__).parent / "workloads" / "lifetimes.py")
EVENTS_PER_LAUNCH = 100


@dataclass(frozen=True)
class Case:
    """An ending, kprof's exit code, the launches that are kept of each rank, and what stderr says."""

    ending: str
    code: int = 0
    kept: dict[int, int] = field(default_factory=dict)
    missing: tuple[int, ...] = ()
    says: tuple[str, ...] = ()


CASES = [
    Case("returns", 0, {0: 3}),
    Case("raises", 1, {0: 3}, says=("RuntimeError: the workload's own", "exited with 1")),
    Case("exits", 3, {0: 3}),
    Case("exits_in_a_thread", 0, {0: 3}),
    Case("closes_and_launches", 0, {0: 3}),
    Case("collects_garbage", 0, {0: 3}),
    Case("sigterm", 143, {0: 3}),
    Case("sighup", 129, {0: 3}),
    Case("sigint", 130, {0: 3}),
    Case("sigkill", 137, {0: 3}, says=("rank 0 is cut short", "no launch is lost")),
    Case("killed_in_a_launch", 137, {0: 4}, says=("its last launch may lack events",)),
    Case("exits_at_once", 5, {0: 5}, says=("rank 0 is cut short", "no launch is lost")),
    Case("forks", 0, {0: 4}, says=("rank 0: a forked child launched 'emit' with its parent's",)),
    Case("forks_and_asks_again", 0, {0: 4}, says=("rank 0 is already recorded by process",)),
    Case("is_told_as_a_child", signal.SIGTERM, {0: 3}),
    Case("terminates_its_child", signal.SIGTERM, {0: 4, 1: 2}),
    Case("terminates_a_child_that_begins", signal.SIGTERM, {0: 4}),
    Case("multiprocessing_fork", 0, {0: 4, 1: 2}),
    Case("multiprocessing_spawn", 0, {0: 4, 1: 2}),
    Case(
        "executes",
        0,
        {0: 3},
        says=("rank 0: an earlier process of this rank made 3 launches that are not",),
    ),
    Case(
        "launches_from_a_thread_at_exit",
        0,
        {},
        says=("rank 0 is cut short: the thread 'worker' made its last launch",),
    ),
    Case("closes_descriptors", 0, {0: 4}, says=("the workload closed a pipe of kprof",)),
    # The disk refuses the rank, not kprof record.
    Case("fills_the_disk", 7, {0: 3}, says=("File too large", "what it recorded is kept")),
    Case("starts_with_a_full_disk", 7, says=("rank 0 records nothing", "File too large")),
    Case(
        "flushes_onto_a_full_disk",
        0,
        {0: 4},
        says=(
            "File too large",
            "what it recorded is kept; it records nothing more",
            "rank 0 is cut short: recording stopped after its first 4 launches; "
            "1 launch after that is not recorded\n",
        ),
    ),
    Case("removes_the_directory", 7, says=("was removed while the workload ran",)),
    Case("two_with_one_rank", 0, {0: 3}, says=("rank 0 is already recorded by process",)),
    Case("one_after_the_other", 0, {0: 3}, says=("rank 0 is already recorded by process",)),
]


def arguments(run: Path, *workload: str, arena: str = "1MiB") -> list[str]:
    return ["record", "-o", str(run), "--arena-size", arena, "--", "python", WORKLOAD, *workload]


def record_line(run: Path, *workload: str) -> list[str]:
    return [sys.executable, "-m", "kprof_cli", *arguments(run, *workload)]


def check_kept(run: Path, kept: dict[int, int]) -> None:
    """Every event of the launches that are kept is in the file or counted as dropped."""
    check_checksums(run)
    capture = Capture.open(run)
    ranks = {info.rank: info for info in capture.manifest.ranks}
    assert {rank: len(info.launches) for rank, info in ranks.items()} == kept
    for rank, info in ranks.items():
        emitted = info.counts.recorded + info.counts.dropped
        assert emitted == EVENTS_PER_LAUNCH * kept[rank]
        assert count_events(capture.events_path(rank)) == info.counts.recorded


def count_events(path: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.ending)
def test_what_is_emitted_is_recorded_or_dropped_or_named(tmp_path, case):
    run = tmp_path / "run.kprof"
    ended = run_kprof(arguments(run, case.ending), folder=tmp_path)
    assert ended.returncode == case.code, ended.stderr
    for sentence in case.says:
        assert sentence in ended.stderr
    assert "imported at exit" not in ended.stderr
    if case.ending not in ("raises", "sigint"):
        assert "Traceback" not in ended.stderr
    if case.kept:
        check_kept(run, case.kept)
        assert Capture.open(run).manifest.missing_ranks == case.missing
    elif case.ending == "launches_from_a_thread_at_exit":
        (info,) = Capture.open(run).manifest.ranks
        assert len(info.launches) >= 4
    else:
        assert not run.exists()
        assert len(ended.stderr.splitlines()) <= 2, ended.stderr


@pytest.mark.parametrize(("ending", "num_launches"), [("executes", 3), ("flushes_and_executes", 4)])
def test_a_successor_leaves_what_its_predecessor_recorded(tmp_path, ending, num_launches):
    run, rank = tmp_path / "run.kprof", tmp_path / "run.kprof.rank-0.attempt-1"
    line = arguments(run, ending)
    for _ in range(2):
        ended = run_kprof(line)
        assert (
            f"{num_launches} launches that are not in this capture: kprof recover" in ended.stderr
        )
        line.insert(1, "--force")
    assert run_kprof(["recover", f"{rank}.unfinished"]).returncode == 0
    check_kept(run, {0: 3})
    check_kept(rank, {0: num_launches})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run.kprof",
        "run.kprof.rank-0.attempt-1",
        "run.kprof.rank-0.attempt-2.unfinished",
    ]


@pytest.mark.parametrize(
    ("options", "strict", "code"),
    [(["--blocks", "100-200"], [], 0), (["--skip", "9"], ["--strict"], 1)],
)
def test_a_filter_that_leaves_nothing_is_named_and_fails_where_that_is_asked(
    tmp_path, options, strict, code
):
    line = arguments(tmp_path / "run.kprof", "returns")
    ended = run_kprof([*line[:1], *strict, *options, *line[1:]])
    assert ended.returncode == code, ended.stderr
    said = ended.stderr.removeprefix("kprof: ").strip()
    assert " ".join(options) in said
    assert f"The capture holds no events: {said}\n" in ended.stdout


def test_what_does_not_fit_is_counted_to_the_last_event(tmp_path):
    run = tmp_path / "run.kprof"
    assert run_kprof(arguments(run, "returns", arena="14KiB")).returncode == 0
    check_kept(run, {0: 3})
    assert Capture.open(run).manifest.ranks[0].counts.dropped > 0


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[str], Recording]]:
    under_way: list[Recording] = []

    def start(ending: str) -> Recording:
        under_way.append(Recording(tmp_path, lambda run, fifo: record_line(run, ending, str(fifo))))
        return under_way[-1]

    yield start
    for recording in under_way:
        recording.kill()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until_gone(pid: int) -> None:
    """Until the process has ended, whoever's child it is."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    import select

    select.select([handle], [], [])
    os.close(handle)


def test_a_rank_in_the_background_is_waited_for(started):
    recording = started("goes_to_the_background")
    rank = recording.ready()
    recording.until(lambda: "has ended but not rank 0: waiting" in recording.errors())
    os.kill(rank, signal.SIGUSR1)
    recording.end()
    assert recording.process.returncode == 0
    check_kept(recording.run, {0: 4})


def test_an_interrupt_ends_the_workload_and_keeps_everything(started):
    recording = started("waits")
    recording.ready()
    recording.process.send_signal(signal.SIGINT)
    recording.end()
    assert recording.process.returncode == 130
    check_kept(recording.run, {0: 3})


def test_a_request_for_a_ring_that_is_not_there_ends_nobody(started):
    recording = started("waits")
    rank = recording.ready()
    recording.process.send_signal(signal.SIGUSR1)
    recording.until(lambda: "SIGUSR1" in recording.errors())
    assert "no ring; record with --ring 64MiB" in recording.errors()
    assert parent_of(rank) == recording.process.pid
    recording.process.send_signal(signal.SIGTERM)
    errors = recording.end()
    assert recording.process.returncode == 143
    next_step = f"if the workload hangs, kill -QUIT {recording.process.pid} to save what is"
    assert f"passing SIGTERM on; {next_step}" in errors
    check_kept(recording.run, {0: 3})


def test_a_second_interrupt_saves_what_a_hanging_rank_recorded(started):
    recording = started("hangs")
    recording.ready()
    recording.process.send_signal(signal.SIGINT)
    # Two signals of one kind at once are one signal.
    recording.until(lambda: "passing Ctrl-C on" in recording.errors())
    recording.process.send_signal(signal.SIGINT)
    errors = recording.end()
    assert recording.process.returncode == 137
    assert "saving what is there of 4 launches of rank 0" in errors
    # What its arena holds once it is dead is more than what it saved while it hung.
    assert "rank 0 is cut short: it ended without closing its recorder" in errors
    assert "no launch is lost" in errors
    manifest = Capture.open(recording.run).manifest
    (info,) = manifest.ranks
    # The kernel that hangs had emitted all of its events, and its two blocks wait since.
    counts = info.counts
    assert counts.recorded + counts.dropped == EVENTS_PER_LAUNCH * len(info.launches) + 2
    assert (len(info.launches), counts.open) == (4, 2)
    assert manifest.hang is not None
    assert manifest.hang.sentence in errors
    assert "; its flag holds 6, it waits for 7" in "".join(lines_of(read_hang(recording.run)))


def test_sigquit_saves_and_kills_at_once_and_says_so(started):
    recording = started("hangs")
    recording.ready()
    recording.process.send_signal(signal.SIGQUIT)
    errors = recording.end()
    assert recording.process.returncode == 137
    assert "saving what is there of 4 launches of rank 0, then killing the workload" in errors
    assert "no launch is lost" in errors


def test_a_hanging_rank_that_is_told_to_stop_saves_itself_and_stops(started):
    """Its main thread is in a kernel and handles nothing. Without kprof SIGTERM ends it at once."""
    recording = started("hangs")
    rank = recording.ready()
    os.kill(rank, signal.SIGTERM)
    recording.end()
    assert recording.process.returncode == 143
    check_kept(recording.run, {0: 4})


def test_ranks_whose_launcher_was_killed_are_stopped_and_kept(started):
    recording = started("launcher")
    ranks = [recording.ready(), recording.ready()]
    os.kill(parent_of(ranks[0]), signal.SIGKILL)
    errors = recording.end()
    assert recording.process.returncode == 137
    assert "has ended but not ranks 0, 1: sending SIGTERM" in errors
    check_kept(recording.run, {0: 3, 1: 3})


def test_a_rank_that_was_killed_is_named_and_kept(started):
    recording = started("launcher")
    killed = recording.ready()
    other = recording.ready()
    os.kill(killed, signal.SIGKILL)
    os.kill(other, signal.SIGTERM)
    errors = recording.end()
    (info,) = [each for each in Capture.open(recording.run).manifest.ranks if each.cut_short]
    assert info.pid == killed
    assert f"rank {info.rank} is cut short: it ended without closing its recorder" in errors
    check_kept(recording.run, {0: 3, 1: 3})


def test_a_recording_whose_kprof_was_killed_can_be_recovered(started, kprof):
    recording = started("launcher")
    ranks = [recording.ready(), recording.ready()]
    recording.process.kill()
    recording.end()

    assert "kprof recover" in kprof("info", recording.run).error_line
    assert "kprof recover" in kprof("stats", recording.unfinished).error_line
    both = kprof("recover", recording.unfinished).error_line
    assert "ranks 0, 1 (processes " in both
    assert all(str(rank) in both for rank in ranks)
    assert "still write into" in both
    again = kprof("record", "-f", "-o", recording.run, "--", "true")
    assert "still write into" in again.error_line

    for rank in ranks:
        os.kill(rank, signal.SIGTERM)
    for rank in ranks:
        wait_until_gone(rank)
    result = kprof("recover", recording.unfinished)
    assert (result.code, result.err) == (0, "")
    check_kept(recording.run, {0: 3, 1: 3})
    assert Capture.open(recording.run).manifest.command[1:3] == (WORKLOAD, "launcher")
    assert not recording.unfinished.exists()
    assert "does not exist" in kprof("recover", recording.unfinished).error_line
    assert "nothing to recover" in kprof("recover", recording.run).error_line


@pytest.fixture
def killed(started) -> Recording:
    """A recording of 6 launches, of which the rank has flushed 5, that was killed with its rank."""
    recording = started("flushes_and_waits")
    rank = recording.ready()
    recording.process.kill()
    recording.end()
    os.kill(rank, signal.SIGKILL)
    wait_until_gone(rank)
    return recording


def test_a_recording_that_is_killed_with_its_ranks_is_recovered_whole(killed, kprof):
    result = kprof("recover", killed.run)
    assert result.code == 0
    assert "no launch is lost" in result.err
    check_kept(killed.run, {0: 6})


def fill_the_disk(directory: Path, *_: object) -> None:
    with writing(directory / "manifest.json"):
        raise OSError(28, "No space left on device")


def test_a_recovery_that_fails_loses_nothing_and_repeats_nothing(killed, kprof, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(capture, "write_manifest", fill_the_disk)
        failed = kprof("recover", killed.run)
    assert "No space left on device" in failed.error_line
    assert f"kprof recover {killed.unfinished} once there is space, or with -o" in failed.error_line
    result = kprof("recover", killed.run)
    assert result.err.count("no launch is lost") == 1
    check_kept(killed.run, {0: 6})


def test_a_recovery_to_another_folder_writes_nothing_to_the_first(killed, kprof, monkeypatch):
    """The disk of the first may be full."""

    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in killed.unfinished.glob("[!w]*")}

    def fill_while_copying(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:1])
        raise OSError(28, "No space left on device")

    before, output = files(), killed.run.parent / "other" / "run.kprof"
    output.parent.mkdir()
    for name, full in (
        (f"{capture.__name__}.write_manifest", fill_the_disk),
        (f"{recover.__name__}.copy_plain", fill_while_copying),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, full)
            assert "No space left" in kprof("recover", killed.run, "-o", output).error_line
        assert (files(), list(output.parent.iterdir())) == (before, [])
    assert kprof("recover", killed.run, "-o", output).code == 0
    check_kept(output, {0: 6})
    assert list(output.parent.iterdir()) == [output]
    assert not killed.unfinished.exists()
