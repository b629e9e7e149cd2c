"""The recording around a workload: what is kept, what is reported, with which exit code, and what recording costs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from kprof.capture import directory as capture
from kprof.capture.claims import Claim
from kprof.capture.directory import Capture
from kprof.capture.losses import describe_losses
from kprof.capture.manifest import EventCounts, RegionLosses
from kprof.capture.output import writing
from kprof.capture.started import announce_rank
from kprof.errors import CaptureError, OutputExistsError, WorkloadError
from kprof.recording.finishing.recover import recover
from kprof.recording.launcher.record import (
    MAX_PROCS,
    RecordRequest,
    launch_arguments,
    module_command,
    record,
    session,
)
from kprof.recording.launches.wanted import Wanted
from kprof.recording.rank.overhead import (
    KernelTiming,
    compare_runs,
)
from kprof.trace import Trace
from sealing import check_checksums
from synthetic import TraceBuilder

pytestmark = pytest.mark.slow

# Longer than any machine under load needs.
PATIENCE_S = 600
RANKS = str(Path(__file__).parents[1] / "cli" / "workloads" / "ranks.py")


def request(tmp_path: Path, *arguments: str, **changes: object) -> RecordRequest:
    return RecordRequest(("python", RANKS, *arguments), tmp_path / "run.kprof", **changes)


def leave_rank(directory: Path) -> None:
    """A rank that has recorded nothing and ended well."""
    write_rank(directory, TraceBuilder("", 1))


def touching(name: str) -> tuple[str, ...]:
    """A workload that leaves an empty file where it records."""
    return ("sh", "-c", f"touch $KPROF_RECORD_DIR/{name}")


def leftovers(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.iterdir())


def test_two_ranks_become_one_readable_capture(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    recording = record(
        request(tmp_path, "--started", "0,1", "--finished", "0,1", "--aligned", "0,1")
    )

    manifest = recording.capture.manifest
    assert recording.exit_code == 0
    assert [info.rank for info in manifest.ranks] == [0, 1]
    assert manifest.missing_ranks == ()
    assert manifest.world_size == 2
    assert manifest.alignment_note == ""
    assert manifest.command[:2] == ("python", RANKS)
    assert recording.losses == ()
    trace = Trace.open(tmp_path / "run.kprof")
    assert trace.num_events() == 4
    assert trace.sql("SELECT count(*) AS n FROM flows")["n"].to_pylist() == [2]
    check_checksums(tmp_path / "run.kprof")
    assert leftovers(tmp_path) == ["run.kprof"]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("ending", "code"), [(["--exit", "7"], 7), (["--die", "SIGKILL"], 128 + 9)]
)
def test_ranks_that_died_or_never_had_a_recorder_leave_the_others_readable(tmp_path, ending, code):
    ranks = ["--started", "0,1,2", "--finished", "0,2", "--world-size", "4"]
    recording = record(request(tmp_path, *ranks, *ending))
    manifest = recording.capture.manifest
    assert (recording.exit_code, manifest.exit_code) == (code, code)
    assert manifest.missing_ranks == (1, 3)
    assert recording.losses == ("ranks 1, 3 of 4 left no events",)
    assert Trace.open(recording.capture).num_events() == 4


def test_a_workload_of_which_no_rank_finishes_is_an_error_and_leaves_nothing(tmp_path):
    with pytest.raises(WorkloadError, match="none of its 2 ranks finished") as error:
        record(request(tmp_path, "--started", "0,1", "--die", "SIGKILL"))
    assert error.value.exit_code == 137
    assert leftovers(tmp_path) == []


def test_an_existing_output_is_refused_before_the_workload_starts(tmp_path):
    TraceBuilder("", 1).write(tmp_path / "run.kprof")
    marker = tmp_path / "started"
    with pytest.raises(OutputExistsError, match="--force"):
        record(RecordRequest(("touch", str(marker)), tmp_path / "run.kprof"))
    assert not marker.exists()


def test_force_replaces_a_capture_only_once_the_new_one_is_complete(tmp_path):
    TraceBuilder("", 1).write(tmp_path / "run.kprof")
    with pytest.raises(WorkloadError):
        record(request(tmp_path, "--exit", "5", force=True))
    assert Capture.open(tmp_path / "run.kprof").manifest.kprof_version == "synthetic"

    record(request(tmp_path, "--started", "0", "--finished", "0", force=True))
    assert Capture.open(tmp_path / "run.kprof").manifest.kprof_version != "synthetic"


@pytest.mark.parametrize("force", [False, True])
def test_what_appears_at_the_output_during_the_run_is_not_deleted(tmp_path, force):
    output = tmp_path / "run.kprof"

    def record_and_come() -> None:
        with session(output, force=force) as directory:
            leave_rank(directory)
            output.mkdir()
            (output / "thesis.tex").write_text("years of work")

    with pytest.raises(OutputExistsError, match=r"not a capture.*kept in .*unfinished -o") as error:
        record_and_come()
    assert error.value.exit_code
    assert leftovers(output) == ["thesis.tex"]
    with pytest.raises(OutputExistsError, match="not a capture"):
        recover(output, force=True)
    assert recover(output, tmp_path / "other.kprof").manifest.world_size == 1
    assert leftovers(tmp_path) == ["other.kprof", "run.kprof"]


def test_a_rank_that_outlives_a_session_is_named_by_its_process(tmp_path):
    claims = []

    def record_nothing() -> None:
        with session(tmp_path / "run.kprof") as directory:
            claims.append(Claim(directory, 0))
            announce_rank(directory, 0, 1)

    with pytest.raises(WorkloadError, match=rf"may still record \(process {os.getpid()}\): when"):
        record_nothing()
    claims[0].release()


def test_a_capture_that_appears_during_the_run_needs_force(tmp_path):
    output = tmp_path / "run.kprof"

    def record_and_come(*, force: bool) -> None:
        with session(output, force=force) as directory:
            leave_rank(directory)
            TraceBuilder("", 1).write(tmp_path / "other.kprof").path.rename(output)

    with pytest.raises(OutputExistsError, match="--force"):
        record_and_come(force=False)
    assert Capture.open(output).manifest.kprof_version == "synthetic"
    shutil.rmtree(output)
    record_and_come(force=True)
    assert Capture.open(output).manifest.kprof_version != "synthetic"


def test_a_disk_that_fills_up_at_the_end_keeps_the_files_of_the_ranks(tmp_path, monkeypatch):
    def full(directory: Path, manifest: object) -> None:
        with writing(directory / "manifest.json"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(capture, "write_manifest", full)
    with pytest.raises(CaptureError, match=r"No space left on device.*kept in .*unfinished"):
        record(request(tmp_path, "--started", "0", "--finished", "0"))
    assert (tmp_path / "run.kprof.unfinished" / "rank-00000.parquet").exists()


def test_parts_that_cannot_be_merged_are_kept_and_the_error_says_how_to_go_on(
    tmp_path, monkeypatch
):
    def full(directory: Path, rank: int) -> None:
        with writing(directory / "rank-00007.parquet"):
            raise OSError(28, f"No space left on device for {rank}")

    monkeypatch.setattr("kprof.recording.finishing.finishing.recover_rank", full)
    command = touching("part-00007-00000.parquet")
    with pytest.raises(CaptureError, match=r"No space left on device.*kprof recover .*unfinished"):
        record(RecordRequest(command, tmp_path / "run.kprof"))
    assert (tmp_path / "run.kprof.unfinished" / "part-00007-00000.parquet").exists()


def test_events_that_nobody_can_read_are_kept(tmp_path):
    """A version of kprof that cannot read them must not delete them."""
    damaged = "part-00000-00000.parquet"
    unfinished = tmp_path / "run.kprof.unfinished"
    with pytest.raises(WorkloadError, match=f"the ranks' files are kept in {unfinished}"):
        record(RecordRequest(touching(damaged), tmp_path / "run.kprof"))
    assert (unfinished / damaged).exists()


def test_ranks_to_record_that_never_ran_are_named(tmp_path):
    wanted = Wanted(ranks=(0, 7, 8))
    recording = record(request(tmp_path, "--started", "0", "--finished", "0", wanted=wanted))
    assert recording.losses == ("--ranks names ranks 7, 8 in a run of 1",)


def test_a_disk_that_is_full_at_the_start_keeps_nothing(tmp_path, monkeypatch):
    def full(directory: Path, _: object) -> None:
        with writing(directory / "said"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("kprof.recording.launcher.record.begin_journal", full)
    with pytest.raises(CaptureError, match="No space left on device"):
        record(request(tmp_path))
    assert leftovers(tmp_path) == []


def test_a_file_that_is_not_executable_names_the_remedy(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(WorkloadError, match="not an executable file"):
        launch_arguments([str(script)], None)


def test_a_script_without_interpreter_line_is_one_sentence(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import kprof\n")
    script.chmod(0o755)
    with pytest.raises(WorkloadError, match="cannot start"):
        record(RecordRequest((str(script),), tmp_path / "run.kprof"))
    assert leftovers(tmp_path) == ["train.py"]


@pytest.mark.parametrize(
    ("command", "num_procs", "sentence"),
    [
        ([], None, "write it after `--`"),
        *(
            (["python"], number, r"1 to 255, because .* 8 bits")
            for number in (0, MAX_PROCS + 1, 10**9)
        ),
    ],
)
def test_what_cannot_be_started_is_one_sentence(command, num_procs, sentence):
    with pytest.raises(WorkloadError, match=sentence):
        launch_arguments(command, num_procs)


def test_ranks_are_started_by_torchrun(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert launch_arguments(["python", "x.py", "--flag"], 3) == [
        *[*module_command("torch.distributed.run"), "--standalone"],
        *["--nproc-per-node", "3", "--no-python", sys.executable, "x.py", "--flag"],
    ]


def test_ranks_without_torch_name_the_extra_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(WorkloadError, match="pip install torch"):
        launch_arguments(["python", "x.py"], 2)


def test_dropped_events_name_the_arena_that_would_have_held_all(tmp_path):
    recording = record(
        request(
            tmp_path,
            *["--started", "0,1", "--finished", "0,1"],
            *["--dropped", "10", "--needed-bytes", str(95 * 2**20 + 1)],
        )
    )
    assert recording.capture.manifest.needed_arena_size == "96MiB"
    assert recording.losses == (
        "20 of 24 events did not fit the arena (ranks 0, 1): --arena-size 96MiB would have held "
        "all",
    )


@pytest.mark.parametrize(
    ("ranks", "aligned", "note"),
    [
        ("0", [], ""),
        (
            "0,1",
            [],
            "the workload ran no clock calibration: call Recorder.align(...) in every rank",
        ),
        ("0,1", ["--aligned", "0"], "rank 1 took no part in the clock calibration"),
    ],
)
def test_ranks_that_are_not_on_one_clock_say_why(tmp_path, ranks, aligned, note):
    recording = record(request(tmp_path, "--started", ranks, "--finished", ranks, *aligned))
    assert recording.capture.manifest.alignment is None
    assert recording.capture.manifest.alignment_note == note


def test_a_damaged_calibration_does_not_lose_the_events(tmp_path):
    damage = textwrap.dedent(f"""
        import os, runpy, sys
        from pathlib import Path
        Path(os.environ["KPROF_RECORD_DIR"], "rank-00000.said").write_text("{{")
        sys.argv = ["ranks.py", "--started", "0,1", "--finished", "0,1"]
        runpy.run_path({RANKS!r}, run_name="__main__")
    """)
    recording = record(RecordRequest(("python", "-c", damage), tmp_path / "run.kprof"))
    assert "1 of 3 lines of rank-00000.said cannot be read" in " ".join(
        recording.capture.manifest.messages
    )
    assert Trace.open(recording.capture).num_events() == 4


# Records the command of its arguments into ./run.kprof, as the command line would.
_RECORD = textwrap.dedent("""
    import sys
    from pathlib import Path
    from kprof.errors import KprofError
    from kprof.recording.launcher.record import RecordRequest, record
    try:
        recording = record(RecordRequest(tuple(sys.argv[1:]), Path("run.kprof"), arena_bytes=1 << 20))
    except KprofError as error:
        sys.exit(f"kprof: {error}")
    sys.exit(recording.exit_code)
""")


def start_recording(tmp_path: Path, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _RECORD, *command],
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for(condition) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the workload did not get there in time"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("number", "arriving"),
    [
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGHUP, signal.SIGTERM),
    ],
)
def test_signals_reach_the_workload_and_what_was_recorded_is_kept(tmp_path, number, arriving):
    handler = "import signal, sys; signal.signal(15, lambda *_: sys.exit(143)); import runpy; "
    arguments = ["ranks.py", "--started", "0", "--finished", "0", "--wait", "--say", "ready"]
    program = f"{handler}sys.argv = {arguments!r}; runpy.run_path({RANKS!r}, run_name='__main__')"
    with start_recording(tmp_path, "python", "-c", program) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + arriving
    manifest = Capture.open(tmp_path / "run.kprof").manifest
    assert manifest.exit_code == 128 + arriving
    assert [info.rank for info in manifest.ranks] == [0]


def test_a_second_interrupt_kills_also_workers_in_sessions_of_their_own(tmp_path):
    worker = (
        "import signal, time; signal.signal(2, signal.SIG_IGN); print('up', flush=True); "
        "time.sleep(600)"
    )
    launcher = textwrap.dedent(f"""
        import signal, subprocess, sys
        signal.signal(2, lambda *_: print("interrupted", flush=True))
        child = subprocess.Popen([sys.executable, "-c", {worker!r}], start_new_session=True)
        print(child.pid, flush=True)
        child.wait()
    """)
    with start_recording(tmp_path, "python", "-c", launcher) as process:
        assert process.stdout is not None
        worker_pid = int(process.stdout.readline())
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        # Two signals of one kind at once are one signal.
        assert process.stdout.readline() == "interrupted\n"
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert "was killed by SIGKILL before a kprof recorder had started" in errors
    wait_for(lambda: not is_running(worker_pid))
    assert leftovers(tmp_path) == []


def is_running(pid: int) -> bool:
    """False also for a zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_recording_works_in_a_thread_where_signals_cannot_be_caught(tmp_path):
    done = []
    thread = threading.Thread(
        target=lambda: done.append(
            record(request(tmp_path, "--started", "0", "--finished", "0")).exit_code
        )
    )
    thread.start()
    thread.join()
    assert done == [0]


def test_losses_name_their_ranks_and_regions():
    manifest = TraceBuilder("", 2).manifest()
    first, second = manifest.ranks
    of_first = RegionLosses("wait", open=1), RegionLosses("copy", clamped=3)
    of_second = RegionLosses("send", clamped=4, dropped=2), RegionLosses("wait", dropped=3)
    ranks = (
        replace(first, counts=EventCounts(recorded=9, open=1, clamped=3), losses=of_first),
        replace(second, counts=EventCounts(recorded=9, clamped=4, dropped=5), losses=of_second),
    )
    assert describe_losses(replace(manifest, ranks=ranks)) == (
        "5 of 23 events did not fit the arena (rank 1; wait: 3, send: 2)",
        "1 span was begun and never ended (rank 0; wait: 1)",
        "7 payloads did not fit their field (ranks 0, 1; send: 4, copy: 3)",
    )


def test_a_workload_is_told_where_to_record_and_sees_the_environment_of_the_caller(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("EXTRA", "7")
    told = tmp_path / "told"
    say = f"echo $KPROF_RECORD_DIR $KPROF_ARENA_BYTES > {told}; exit $EXTRA"
    with pytest.raises(WorkloadError) as error:
        record(RecordRequest(("sh", "-c", say), tmp_path / "run.kprof", arena_bytes=1 << 20))
    assert error.value.exit_code == 7
    assert told.read_text().split() == [str(tmp_path / "run.kprof.unfinished"), "1048576"]
    assert "KPROF_RECORD_DIR" not in os.environ


def test_a_session_without_a_recorder_is_an_error_and_leaves_nothing(tmp_path):
    with pytest.raises(WorkloadError), session(tmp_path / "run.kprof"):
        pass
    assert leftovers(tmp_path) == []


def write_rank(directory: Path, build: TraceBuilder) -> None:
    capture.write_rank_events(directory, 0, build.table())
    capture.write_rank_info(directory, build.manifest().ranks[0])


def test_a_second_recording_into_the_same_output_is_refused(tmp_path):
    build = TraceBuilder('REGION(A, "a", compute)', 1)
    with session(tmp_path / "run.kprof") as directory:
        write_rank(directory, build)
        with pytest.raises(OutputExistsError, match=r"another recording into .* is running"):
            record(request(tmp_path))
    manifest = Capture.open(tmp_path / "run.kprof").manifest
    assert (manifest.exit_code, manifest.world_size) == (0, 1)
    assert leftovers(tmp_path) == ["run.kprof"]


def test_what_a_crash_left_behind_does_not_hinder_the_next_recording(tmp_path):
    (tmp_path / "run.kprof.unfinished").mkdir()
    (tmp_path / "run.kprof.unfinished" / "rank-00007.said").write_text("{")
    recording = record(request(tmp_path, "--started", "0", "--finished", "0"))
    assert [info.rank for info in recording.capture.manifest.ranks] == [0]


# A clock that only this workload turns: what recording costs is what it says, whatever else runs.
WORKLOAD = """
import os, sys
import kprof
from kprof.devices import gpu
now_ns = 0
gpu.note_moment = lambda device: now_ns
recorder = kprof.recorder(regions=["work"])
os.environ.get("KPROF_TIMINGS_DIR") or sys.exit("not timed")
for call in range(7):
    buffer = recorder.launch("slow" if call % 2 else "fast")
    # Recording costs this workload 4 ms per launch of the one kernel, and nothing for the other.
    now_ns += 6_000_000 + 4_000_000 * bool(buffer.arena) if call % 2 else 2_000_000
sys.exit({code})
"""


def timed(us: dict[str, float], num_launches: int = 10, num_ranks: int = 2) -> list[KernelTiming]:
    return [KernelTiming(name, num_launches, value) for name, value in us.items()] * num_ranks


def test_percent_and_spread_come_from_all_four_runs() -> None:
    off = [timed({"a": 100.0, "b": 300.0}), timed({"a": 104.0, "b": 296.0})]
    on = [timed({"a": 110.0, "b": 300.0}), timed({"a": 106.0, "b": 292.0})]
    overhead = compare_runs(off, on)
    assert overhead is not None
    assert overhead.kernels[0].off_us == (100.0, 104.0)
    assert overhead.kernels[0].on_us == (110.0, 106.0)
    # Off 400 and 400 us per pair of launches, on 410 and 398.
    assert overhead.percent == pytest.approx(1.0)
    assert overhead.spread_percent == pytest.approx(3.0)


def test_the_median_rank_speaks_and_a_kernel_missing_in_a_run_is_left_out() -> None:
    off = [timed({"a": 100.0}), timed({"a": 100.0, "b": 1.0})]
    on = [[*timed({"a": 100.0}), KernelTiming("a", 10, 9000.0)], timed({"a": 100.0})]
    overhead = compare_runs(off, on)
    assert overhead is not None
    assert [entry.kernel for entry in overhead.kernels] == ["a"]
    assert overhead.percent == pytest.approx(0.0)
    assert compare_runs([timed({}), timed({})], [timed({}), timed({})]) is None


def test_the_four_runs_find_what_recording_costs(tmp_path: Path) -> None:
    command = (sys.executable, "-c", WORKLOAD.format(code=0))
    recording = record(RecordRequest(command, tmp_path / "run.kprof", measure_overhead=True))
    overhead = Capture.open(tmp_path / "run.kprof").manifest.overhead
    assert overhead == recording.capture.manifest.overhead
    assert overhead is not None
    by_name = {entry.kernel: entry for entry in overhead.kernels}
    assert by_name["slow"].off_us == (6000.0, 6000.0)
    assert by_name["slow"].on_us == (10_000.0, 10_000.0)
    assert by_name["fast"].off_us == by_name["fast"].on_us == (2000.0, 2000.0)
    # Off 8 ms per pair of launches, on 12.
    assert overhead.percent == pytest.approx(50.0)


def test_a_workload_that_fails_is_kept_and_its_cost_is_not_claimed(tmp_path: Path) -> None:
    command = (sys.executable, "-c", WORKLOAD.format(code=7))
    recording = record(RecordRequest(command, tmp_path / "run.kprof", measure_overhead=True))
    assert recording.exit_code == 7
    assert recording.capture.manifest.overhead is None
    assert recording.capture.manifest.overhead_note == "run off-1 exited with 7"
