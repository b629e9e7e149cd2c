"""Sessions, schedules, windows and filters, with kernels of the CPU target: what is left out costs no record, and what
cannot be, a session or a launch, is refused, loses nothing and leaves nothing behind."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kprof
from kprof import abi
from kprof.capture.directory import Capture
from kprof.capture.losses import why_empty
from kprof.capture.manifest import MAX_TEXT
from kprof.errors import (
    ArenaError,
    KprofError,
    OutputExistsError,
    RecorderError,
    RegionError,
    TargetError,
)
from kprof.recording.launches.wanted import Wanted
from kprof.recording.rank.null_recorder import NullRecorder
from kprof.recording.rank.recorder_state import State
from kprof.trace import Trace
from replayed import KERNELS, TRACKS, WARPS, Graph, emitted, library, new_buffer, run_kernel

__all__ = ["library"]


def run_calls(library: ctypes.CDLL, recorder: kprof.Recorder, num_calls: int) -> None:
    for call in range(num_calls):
        for kernel in ("run_marks", "run_places"):
            buffer = new_buffer(recorder, kernel)
            if buffer.arena:
                run_kernel(library, kernel, buffer, 4, seed=call + 1)
        recorder.step()


def test_a_session_keeps_what_was_recorded_before_an_error(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    @kprof.session(tmp_path / "run.kprof", regions=["mark", "place"])
    def workload() -> None:
        run_calls(library, kprof.recorder(), 1)
        raise KeyError("a mistake")

    with pytest.raises(KeyError):
        workload()
    assert Trace.open(tmp_path / "run.kprof").num_events() > 0


def test_windows_keep_the_numbers_of_the_calls(library: ctypes.CDLL, tmp_path: Path) -> None:
    wanted = Wanted(skip=2, calls=1, every=3, times=2)
    with kprof.session(tmp_path / "run.kprof", wanted=wanted) as recorder:
        run_calls(library, recorder, 10)
    info = Trace.open(tmp_path / "run.kprof").ranks[0]
    assert [(launch.kernel, launch.ordinal) for launch in info.launches] == [
        (kernel, call) for call in (2, 5) for kernel in ("run_marks", "run_places")
    ]
    assert (info.recorded_launches, info.recorded_part) == (
        "--skip 2 --calls 1 --every 3 --times 2",
        "",
    )


def test_with_a_schedule_calls_are_those_of_its_steps(library: ctypes.CDLL, tmp_path: Path) -> None:
    """The others have no number, so `skip` leaves out calls that the schedule would record."""
    how = {"schedule": kprof.schedule(wait=2, warmup=0, active=3), "wanted": Wanted(skip=2)}
    with kprof.session(tmp_path / "run.kprof", **how) as recorder:  # type: ignore[arg-type]
        run_calls(library, recorder, 10)
    info = Trace.open(tmp_path / "run.kprof").ranks[0]
    ordinals = [launch.ordinal for launch in info.launches if launch.kernel == "run_marks"]
    assert ordinals == [2, 3, 4, 5]
    assert info.recorded_launches == "--skip 2, a schedule"


def test_a_schedule_goes_by_steps_also_for_graphs(library: ctypes.CDLL, tmp_path: Path) -> None:
    schedule = kprof.schedule(wait=1, warmup=1, active=2, repeat=1)
    with kprof.session(tmp_path / "run.kprof", schedule=schedule) as recorder:
        graph = Graph(library, recorder, *KERNELS)
        for num_records in (5, 6, 7, 8, 9):
            graph.replay(num_records)
            recorder.step()
    info = Trace.open(tmp_path / "run.kprof").ranks[0]
    assert info.counts.recorded == emitted(KERNELS, [7, 8])
    assert len(info.launches) == 2 * len(KERNELS)


@pytest.mark.parametrize("is_graph", [False, True])
def test_blocks_and_warps_that_are_left_out_write_nothing(
    library: ctypes.CDLL, tmp_path: Path, is_graph: bool
) -> None:
    wanted = Wanted(blocks=(1, 2), warps=(1,))
    with kprof.session(tmp_path / "run.kprof", wanted=wanted) as recorder:
        if is_graph:
            graph = Graph(library, recorder, "run_marks", "run_places")
            for seed in (1, 2):
                graph.replay(4, seed)
        else:
            run_calls(library, recorder, 2)
    trace = Trace.open(tmp_path / "run.kprof")
    table = trace.frame(
        "SELECT kernel, block, warp, count(*) AS n FROM events GROUP BY ALL ORDER BY ALL"
    )
    assert [tuple(row) for row in table.itertuples(index=False)] == [
        ("run_marks", 1, 1, 2 * 5),
        ("run_marks", 2, 1, 2 * 6),
        ("run_places", 1, -1, 2 * 4),
        ("run_places", 2, -1, 2 * 4),
    ]
    info = trace.ranks[0]
    assert (info.counts.dropped, info.counts.damaged_heads, info.counts.unsplit_launches) == (
        0,
    ) * 3
    assert len(info.launches) == 4


@pytest.mark.amd
@pytest.mark.parametrize(
    "wanted",
    [
        Wanted(blocks=(0,)),
        Wanted(blocks=(1, 2)),
        Wanted(blocks=(2, 3, 4)),
        Wanted(blocks=(7,)),
        Wanted(warps=(0,)),
        Wanted(blocks=(1,), warps=(0,)),
    ],
    ids=Wanted.describe,
)
def test_tracks_of_some_blocks_have_reserved_chunks_and_others_ask_nobody(
    library: ctypes.CDLL, tmp_path: Path, wanted: Wanted
) -> None:
    """Switches that contradict the filter show that nobody reads them."""
    with kprof.session(tmp_path / "run.kprof", wanted=wanted) as recorder:
        recorder.pause()
        recorder._enter(State.RECORDING)
        run_calls(library, recorder, 2)
        assert sum(recorder._turns.active.state().num_claimed) == 0
    table = Trace.open(tmp_path / "run.kprof").frame(
        "SELECT kernel, ordinal, block, warp, count(*) AS n FROM events GROUP BY ALL ORDER BY ALL"
    )
    blocks = [block for block in range(3) if not wanted.blocks or block in wanted.blocks]
    warps = [warp for warp in range(WARPS) if not wanted.warps or warp in wanted.warps]
    assert [tuple(row) for row in table.itertuples(index=False)] == [
        *(("run_marks", k, b, w, 4 + b) for k in range(2) for b in blocks for w in warps),
        *(("run_places", k, b, -1, 4) for k in range(2) for b in blocks),
    ]


def test_a_filtered_launch_without_room_to_reserve_claims(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    size_bytes = abi.CHUNKS_OFFSET + 4 * abi.CHUNK_BYTES
    with kprof.session(
        tmp_path / "run.kprof", wanted=Wanted(blocks=(1, 2)), arena_bytes=size_bytes
    ) as recorder:
        for call in range(3):
            run_kernel(library, "run_places", new_buffer(recorder, "run_places"), 4, seed=call + 1)
    trace = Trace.open(tmp_path / "run.kprof")
    counts = trace.ranks[0].counts
    assert (counts.recorded + counts.dropped, counts.torn_chunks) == (3 * 2 * 4, 0)
    assert set(trace.frame("SELECT DISTINCT block FROM events")["block"]) == {1, 2}


@pytest.mark.parametrize("sample", [2, 4])
def test_a_sample_is_the_same_tracks_in_every_launch(
    library: ctypes.CDLL, tmp_path: Path, sample: int
) -> None:
    with kprof.session(tmp_path / "run.kprof", wanted=Wanted(sample=sample)) as recorder:
        run_calls(library, recorder, 2)
        graph = Graph(library, recorder, "run_marks")
        graph.replay(4)
    table = Trace.open(tmp_path / "run.kprof").frame(
        "SELECT kernel, ordinal, block, warp FROM events WHERE payload = 0 GROUP BY ALL ORDER BY ALL"
    )
    tracks = [(block, warp) for block in range(3) for warp in range(TRACKS["run_marks"])]
    wanted = [track for track in tracks if in_sample(*track, sample)]
    assert 0 < len(wanted) < len(tracks)
    marks = table[table["kernel"] == "run_marks"]
    for ordinal in (0, 1, 2):
        of_launch = marks[marks["ordinal"] == ordinal]
        assert list(zip(of_launch["block"], of_launch["warp"], strict=True)) == wanted
    places = table[(table["kernel"] == "run_places") & (table["ordinal"] == 0)]
    assert places["block"].tolist() == [k for k in range(3) if in_sample(k, 0xFFFF, sample)]


def test_a_graph_from_before_the_recorder_records_nothing_and_that_is_said(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    graph = Graph(library, NullRecorder(), "run_marks")
    with kprof.session(tmp_path / "run.kprof") as recorder:
        for seed in (1, 2):
            graph.replay(4, seed)
            recorder.step()
    info = Trace.open(tmp_path / "run.kprof").ranks[0]
    assert (info.counts.recorded, info.launches) == (0, ())
    assert "captured before the recorder was opened records nothing" in info.notes[0]


def in_sample(block: int, warp: int, sample: int) -> bool:
    return (((block * 33 + warp) * 0x9E3779B1) >> 16) & (sample - 1) == 0


@pytest.mark.parametrize("sample", [3, 1 << 17, -1])
def test_a_sample_is_a_power_of_two(sample: int) -> None:
    with pytest.raises(RecorderError, match=r"give 1/2, 1/4, 1/8|give 0 or more"):
        Wanted(sample=sample)


NEVER = kprof.schedule(wait=9, warmup=0, active=1)
ALWAYS = kprof.schedule(wait=0, warmup=0, active=1)


@pytest.mark.parametrize(("wanted", "schedule", "sentence"), [
    (Wanted(ranks=(1,)), None, "rank 0 is not among the ranks to record"),
    (Wanted(skip=99), None, "nothing of this run is among what was to be recorded (--skip 99)"),
    (Wanted(skip=99), ALWAYS, "nothing of this run is among what was to be recorded (--skip 99)"),
    (Wanted(blocks=(7, 8), sample=2), None, "--blocks 7-8 leaves nothing of 6 launches of up to 3 blocks"),
    (Wanted(blocks=(1,), sample=64, warps=(1,), skip=2), ALWAYS,
        "--blocks 1 --warps 1 --sample 1/64 leaves nothing of 2 launches of up to 3 blocks"),
    (Wanted(), NEVER, "the schedule left out everything in the 3 steps of this run"),
    (Wanted(skip=1), NEVER, "the schedule left out everything in the 3 steps of this run"),
])  # fmt: skip
def test_what_leaves_nothing_says_so(
    library: ctypes.CDLL,
    tmp_path: Path,
    wanted: Wanted,
    schedule: kprof.recording.launches.wanted.Schedule | None,
    sentence: str,
) -> None:
    with kprof.session(tmp_path / "run.kprof", wanted=wanted, schedule=schedule) as recorder:
        run_calls(library, recorder, 3)
    trace = Trace.open(tmp_path / "run.kprof")
    (info,) = trace.ranks
    assert (info.counts.recorded, info.notes[-1]) == (0, sentence)
    assert why_empty(trace.manifest, trace.ranks) == sentence


def test_a_schedule_without_steps_says_how_to_make_them(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    with kprof.session(tmp_path / "run.kprof", schedule=NEVER) as recorder:
        assert not new_buffer(recorder, "run_marks").arena
    (note,) = Trace.open(tmp_path / "run.kprof").ranks[0].notes
    assert "never ended a step; call recorder.step()" in note


def test_a_graph_of_which_nothing_is_wanted_says_so(library: ctypes.CDLL, tmp_path: Path) -> None:
    with kprof.session(tmp_path / "run.kprof", wanted=Wanted(blocks=(7,))) as recorder:
        Graph(library, recorder, "run_marks").replay(4)
    (note,) = Trace.open(tmp_path / "run.kprof").ranks[0].notes
    assert note == "nothing of this run is among what was to be recorded (--blocks 7)"


def call(library: ctypes.CDLL) -> None:
    run_kernel(library, "run_marks", new_buffer(kprof.recorder(), "run_marks"), 4, seed=1)


def num_calls(path: Path) -> float:
    (info,) = Capture.open(path).manifest.ranks
    return info.counts.recorded / emitted(["run_marks"], [4])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_refused_session_leaves_the_capture_that_it_was_to_replace(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    with kprof.session(tmp_path / "good.kprof"):
        call(library)
    (tmp_path / "cut.kprof.unfinished").mkdir()
    (tmp_path / "cut.kprof.unfinished" / "rank-00000.parquet").touch()
    with kprof.session(tmp_path / "outer.kprof"):
        for name in ("good.kprof", "cut.kprof", "outer.kprof", "new.kprof"):
            with pytest.raises(RecorderError, match="a session is open already"):
                kprof.session(tmp_path / name, force=True).__enter__()
        call(library)
    assert names(tmp_path) == ["cut.kprof.unfinished", "good.kprof", "outer.kprof"]
    assert [num_calls(tmp_path / name) for name in ("good.kprof", "outer.kprof")] == [1, 1]


def _raising(step: int) -> bool:
    raise ZeroDivisionError(step)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"arena_bytes": 0}, ArenaError),
        ({"arena_bytes": -1}, ArenaError),
        ({"arena_bytes": 64e6}, RecorderError),
        ({"device": "cuda:99"}, TargetError),
        ({"schedule": _raising}, ZeroDivisionError),
        ({"regions": ["twice", "twice"]}, KprofError),
    ],
)
def test_a_session_that_cannot_begin_leaves_nothing(
    library: ctypes.CDLL, tmp_path: Path, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error), kprof.session(tmp_path / "run.kprof", **options):
        raise AssertionError("it began")
    assert names(tmp_path) == []
    assert isinstance(kprof.recorder(), NullRecorder)
    with kprof.session(tmp_path / "run.kprof"):
        call(library)
    assert num_calls(tmp_path / "run.kprof") == 1


def test_a_session_can_be_entered_again_and_not_inside_itself(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    session = kprof.session(tmp_path / "run.kprof", force=True)
    for num in (1, 2):
        with session:
            for _ in range(num):
                call(library)
            with pytest.raises(RecorderError, match="a session is open already"), session:
                pass
        assert num_calls(tmp_path / "run.kprof") == num


def test_each_call_of_a_decorated_function_is_a_session(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    @kprof.session(tmp_path / "once.kprof")
    def once() -> None:
        call(library)

    @kprof.session(tmp_path / "often.kprof", force=True)
    def often(num: int) -> int:
        for _ in range(num):
            call(library)
        return num

    once()
    with pytest.raises(OutputExistsError, match=r"\(in Python force=True\)"):
        once()
    assert [often(num) for num in (3, 2)] == [3, 2]
    assert num_calls(tmp_path / "often.kprof") == 2


async def _coroutine() -> None:
    await asyncio.sleep(0)


def _generator() -> Iterator[int]:
    yield 1


async def _async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [_coroutine, _generator, _async_generator])
def test_a_function_whose_body_runs_later_is_not_decorated(
    tmp_path: Path, function: Callable[[], object]
) -> None:
    with pytest.raises(RecorderError, match=rf"{function.__name__} is async or a generator: "):
        kprof.session(tmp_path / "run.kprof")(function)
    assert names(tmp_path) == []


def test_a_forked_child_is_told_to_open_a_session_and_can(
    library: ctypes.CDLL, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with kprof.session(tmp_path / "run.kprof"):
        call(library)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                kprof.recorder(rank=1, world_size=2).launch("run_marks")
                with kprof.session(tmp_path / "child.kprof"):
                    for _ in range(3):
                        call(library)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        call(library)
    assert num_calls(tmp_path / "run.kprof") == 2
    assert num_calls(tmp_path / "child.kprof") == 3
    said = capfd.readouterr().err
    assert "inside kprof.session, open a session into another output there" in said


MOST = (1 << 31) - 1
RETENTIONS = [
    kprof.Retention(),
    kprof.Retention(drain=True),
    kprof.Retention(ring_bytes=1 << 20),
    kprof.Retention(keep_slowest=2),
]


@pytest.mark.parametrize("retention", RETENTIONS, ids=repr)
def test_a_launch_that_is_refused_leaves_the_others_whole(
    library: ctypes.CDLL, tmp_path: Path, retention: kprof.Retention
) -> None:
    bad: list[dict[str, Any]] = [
        {"num_blocks": 1000 / 256},
        {"num_blocks": 4.0},
        {"num_blocks": None},
        {"num_blocks": -1},
        {"num_blocks": 1 << 31},
        {"num_blocks": 1 << 70},
        {"threads_per_block": "256"},
        {"threads_per_block": -1},
        {"threads_per_block": 1 << 40},
        {"num_blocks": 2, "tracks_per_block": -3},
        {"num_blocks": 2, "tracks_per_block": np.float64(1)},
    ]
    with kprof.session(tmp_path / "run.kprof", retention=retention) as recorder:
        for fields in bad:
            run_kernel(library, "run_marks", new_buffer(recorder, "run_marks"), 4, seed=1)
            name, value = list(fields.items())[-1]
            with pytest.raises(RecorderError, match=rf"'run_marks' with {name}=") as error:
                recorder.launch("run_marks", **fields)
            assert str(error.value).endswith(f"={value!r}: give a whole number, 0 to {MOST}")
            recorder.step()
    trace = Trace.open(tmp_path / "run.kprof")
    num_kept = retention.keep_slowest or len(bad)
    assert trace.num_events() == emitted(["run_marks"], [4] * num_kept)
    ordinals = [launch.ordinal for launch in trace.ranks[0].launches]
    assert len(ordinals) == num_kept
    assert set(ordinals) <= set(range(len(bad)))


def test_names_and_regions_that_cannot_be_are_refused_too(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    kernels: list[Any] = [None, 5, b"run_marks", "x" * (MAX_TEXT + 1)]
    with kprof.session(tmp_path / "run.kprof") as recorder:
        for kernel in kernels:
            with pytest.raises(RecorderError, match="the name of a kernel"):
                recorder.launch(kernel, num_blocks=1)
        with pytest.raises(RegionError):
            recorder.launch("run_marks", ["twice", "twice"])
        run_kernel(library, "run_marks", new_buffer(recorder, "run_marks"), 4, seed=1)
    (launch,) = Trace.open(tmp_path / "run.kprof").ranks[0].launches
    assert (launch.kernel, launch.ordinal) == ("run_marks", 0)


@pytest.mark.parametrize("retention", RETENTIONS, ids=repr)
def test_integers_and_text_of_any_kind_are_fine(
    library: ctypes.CDLL, tmp_path: Path, retention: kprof.Retention
) -> None:
    sizes: dict[str, Any] = {
        "num_blocks": np.int64(3),
        "threads_per_block": np.uint8(64),
        "tracks_per_block": np.int32(TRACKS["run_marks"]),
    }
    with kprof.session(tmp_path / "run.kprof", retention=retention) as recorder:
        buffer = recorder.launch(np.str_("run_marks"), ["mark", "place"], **sizes)
        run_kernel(library, "run_marks", buffer, 4, seed=1)
        recorder.step()
    trace = Trace.open(tmp_path / "run.kprof")
    assert trace.num_events() == emitted(["run_marks"], [4])
    (launch,) = trace.ranks[0].launches
    assert (launch.kernel, launch.num_blocks, launch.threads_per_block) == ("run_marks", 3, 64)


def test_the_largest_sizes_that_a_launch_may_have_are_kept(tmp_path: Path) -> None:
    with kprof.session(tmp_path / "run.kprof") as recorder:
        recorder.launch("flags", num_blocks=True, threads_per_block=False)
        recorder.launch("large", num_blocks=MOST, threads_per_block=MOST)
    launches = Trace.open(tmp_path / "run.kprof").ranks[0].launches
    assert [(launch.num_blocks, launch.threads_per_block) for launch in launches] == [
        (1, 0),
        (MOST, MOST),
    ]
