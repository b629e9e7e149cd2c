"""A span in the compiled code of a kernel: the kernel's own instructions stay, and the added ones record."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from math import prod
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from needed import require_triton

require_triton()

import ptx_machine  # noqa: E402
import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from compiled import TARGETS  # noqa: E402
from triton.backends.nvidia import compiler as nvidia  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.runtime.cache import FileCacheManager, _base32  # noqa: E402

from kprof import abi  # noqa: E402
from kprof.devices import gpu  # noqa: E402
from kprof.errors import RecorderError, TargetError  # noqa: E402
from kprof.recording.arenas.arena_state import byte_range  # noqa: E402
from kprof.recording.arenas.turns import Turns  # noqa: E402
from kprof.recording.launcher.record import session  # noqa: E402
from kprof.recording.rank.recorder import Recorder  # noqa: E402
from kprof.recording.retention.drainer import Drainer  # noqa: E402
from kprof.recording.retention.retention import EVERYTHING_THAT_FITS, Retention  # noqa: E402
from kprof.trace import Trace  # noqa: E402
from kprof.triton import spliced  # noqa: E402
from kprof.triton.buffer import words_of  # noqa: E402
from kprof.triton.inductor import _tuner_of_copy, check_torch  # noqa: E402
from kprof.triton.instrument import WORDS, with_words  # noqa: E402
from kprof.triton.spliced import compiled_with_span, end_for, with_span  # noqa: E402

SM_90 = TARGETS["sm_90"]
NUM_PROGRAMS = 130
GRID = (13, 5, 2)
TINY_ARENA = abi.CHUNKS_OFFSET + 4 * abi.CHUNK_BYTES
KERNELS = ["doubled", "normed", "rotated"]


def require_tested_torch() -> None:
    try:
        check_torch(str(torch.__version__))
    except TargetError as error:
        pytest.skip(str(error))


@triton.jit
def plain_ones(x):
    """Counts every program in a number of its own."""
    place = x + tl.program_id(0) + 13 * (tl.program_id(1) + 5 * tl.program_id(2))
    tl.store(place, tl.load(place) + 1)


@cache
def ones_with_span() -> str:
    return str(compiled_with_span(*sources_of_ones(), SM_90, {"num_warps": 4}).asm["ptx"])


def sources_of_ones() -> tuple[ASTSource, ASTSource]:
    """The kernel, and its copy."""
    copy, _ = with_words(plain_ones, "ones")
    signature = {"x": "*i32"}
    return ASTSource(plain_ones, signature), ASTSource(
        copy, signature | dict.fromkeys(WORDS, "i64")
    )


def record(path: Path, num_runs: int = 1, arena_bytes: int = 1 << 20) -> Trace:
    """130 programs with one span each; several runs take the buffer of one launch, as replays do."""
    _, regions = with_words(plain_ones, "ones")
    ones = torch.zeros(NUM_PROGRAMS, dtype=torch.int32)
    with session(path) as directory:
        recorder = Recorder(directory, rank=0, world_size=1, arena_bytes=arena_bytes)
        launch = recorder.launch(
            "ones",
            regions.table,
            num_blocks=NUM_PROGRAMS,
            shares_chunks=True,
            is_replayed=num_runs > 1,
        )
        for _ in range(num_runs):
            ptx_machine.run(ones_with_span(), GRID, [ones.data_ptr(), *words_of(launch), 0, 0])
        recorder.close()
    assert ones.tolist() == [num_runs] * NUM_PROGRAMS
    return Trace.open(path)


@pytest.mark.parametrize("num_runs", [1, 2])
def test_every_program_has_its_span(tmp_path: Path, num_runs: int) -> None:
    """In three chunks that the launch reserved; in replays every program claims one."""
    trace = record(tmp_path / "run.kprof", num_runs)
    events = trace.frame("SELECT * FROM events ORDER BY launch, block")
    assert events["block"].tolist() == list(range(NUM_PROGRAMS)) * num_runs
    assert events["launch"].nunique() == num_runs
    assert set(events["region"]) == {"ones"}
    assert set(events["hw_id"]) == {3}
    counts = trace.ranks[0].counts
    assert (counts.recorded, counts.dropped, counts.torn_chunks) == (NUM_PROGRAMS * num_runs, 0, 0)
    num_chunks = 3 if num_runs == 1 else NUM_PROGRAMS * num_runs
    used_bytes = trace.ranks[0].arena.used_bytes - abi.CHUNKS_OFFSET
    assert used_bytes == num_chunks * abi.CHUNK_BYTES


@pytest.mark.parametrize("num_runs", [1, 2])
def test_what_finds_no_room_is_counted(tmp_path: Path, num_runs: int) -> None:
    """Four chunks are in the arena: none is reserved, or replays claim them."""
    trace = record(tmp_path / "run.kprof", num_runs, TINY_ARENA)
    counts = trace.ranks[0].counts
    assert counts.recorded + counts.dropped == NUM_PROGRAMS * num_runs
    assert counts.torn_chunks == counts.stray_chunks == counts.torn_records == 0
    assert counts.recorded == (0 if num_runs == 1 else 4)


class Graph:
    """Two launches that a graph has captured, of 65 and of 4 programs: three chunks in a replay."""

    def __init__(self, recorder: Recorder) -> None:
        _, regions = with_words(plain_ones, "ones")
        self._recorder = recorder
        recorder.note_capture(is_end=False)
        self._launches = [
            (grid, recorder.launch(
                "ones", regions.table, num_blocks=prod(grid), shares_chunks=True, is_replayed=True
            ))
            for grid in ((13, 5, 1), (2, 2, 1))
        ]  # fmt: skip
        self.room = recorder.note_capture(is_end=True)

    def replay(self, *, is_announced: bool = True) -> bool:
        """As our torch.cuda.CUDAGraph.replay does it; whether its room was ready."""
        assert self.room is not None
        was_ready = is_announced and self.room.take()
        if is_announced and not was_ready:
            self._recorder.note_replay(id(self), self.room)
        ones = torch.zeros(NUM_PROGRAMS, dtype=torch.int32)
        for grid, launch in self._launches:
            words = words_of(launch)
            ptx_machine.run(ones_with_span(), grid, [ones.data_ptr(), *words, 0, 0])
        # The last node of the graph.
        self.room.captured_store(0)
        if is_announced:
            self._recorder.note_replayed(id(self), self.room, was_ready=was_ready)
        return was_ready


OF_A_REPLAY = 65 + 4
REPLAYS = """SELECT launch, count(*) AS n, count(DISTINCT block) AS blocks, min(start_ns) AS begin_ns
             FROM events GROUP BY ALL ORDER BY launch"""


OF_64_CHUNKS = abi.ArenaGeometry.for_chunks(0, 32).size_bytes


def are_replays(trace: Trace, num_replays: int) -> bool:
    """Whether each replay has the events of its own runs."""
    found = trace.frame(REPLAYS)
    launches = trace.ranks[0].launches
    replays = {each.launch: (each.num_blocks, each.replay) for each in launches}
    assert (found["n"] == found["blocks"]).all()
    assert [replays[launch][0] for launch in found["launch"]] == found["n"].tolist()
    in_time = found.sort_values("begin_ns")["launch"]
    expected = [(size, replay) for replay in range(num_replays) for size in (65, 4)]
    return [replays[launch] for launch in in_time] == expected


@pytest.mark.parametrize(
    "retention",
    [EVERYTHING_THAT_FITS, Retention(drain=True), Retention(ring_bytes=8 * OF_64_CHUNKS)],
)
def test_programs_of_every_replay_have_their_places(tmp_path: Path, retention: Retention) -> None:
    """16 bytes each, in a room that every replay gets anew; also across flushes, and in several arenas: one is
    left when a quarter of its 64 chunks is in use, or half in a ring: no more can be reserved. What was prepared
    before the pause, and before the end, is in use, too."""
    path = tmp_path / "run.kprof"
    arena_bytes = retention.num_arenas * OF_64_CHUNKS
    with session(path) as directory:
        recorder = Recorder(
            directory, rank=0, world_size=1, arena_bytes=arena_bytes, retention=retention
        )
        graph = Graph(recorder)
        were_ready = []
        for number in range(10):
            were_ready.append(graph.replay())
            if number == 2 and not retention.ring_bytes:
                recorder.flush()
        recorder.pause()
        graph.replay()
        recorder.resume()
        graph.replay()
        recorder.close()
        # Its memory may be somebody else's by now.
        assert not graph.replay()
    if retention == EVERYTHING_THAT_FITS:
        assert were_ready == [False, True, True, False, *[True] * 6]
    trace = Trace.open(path)
    assert are_replays(trace, 11)
    counts = trace.ranks[0].counts
    assert (counts.recorded, counts.dropped) == (11 * OF_A_REPLAY, 0)
    assert (counts.torn_chunks, counts.unsplit_launches, counts.overwritten_runs) == (0, 0, 0)
    used_bytes = trace.ranks[0].arena.used_bytes // retention.num_arenas - abi.CHUNKS_OFFSET
    # The thread that empties arenas may be early.
    most = 6 if retention.drain else 10
    assert used_bytes <= most * 3 * abi.CHUNK_BYTES
    assert retention != EVERYTHING_THAT_FITS or used_bytes == 10 * 3 * abi.CHUNK_BYTES


def test_arenas_take_no_turns_while_another_thread_captures() -> None:
    """Its graph would capture the events by which we know when launches end, and be spoiled."""
    turns = Turns(1 << 20, num_arenas=2)
    turns.note_capture(is_end=False)
    assert not turns.switch(1)
    for _ in range(2):
        turns.note_capture(is_end=True)
    turns.note_capture(is_end=False)
    turns.note_capture(is_end=True)
    assert turns.switch(1)


def test_launches_that_follow_a_prepared_replay_find_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A call of 3 chunks and of 22 others, of 32 that can be reserved: the arena is left in the second one."""
    monkeypatch.setattr(Drainer, "start", lambda _: None)
    _, regions = with_words(plain_ones, "ones")
    retention = Retention(drain=True)
    with session(tmp_path / "run.kprof") as directory:
        recorder = Recorder(
            directory, rank=0, world_size=1, arena_bytes=2 * OF_64_CHUNKS, retention=retention
        )
        graph = Graph(recorder)
        found = []
        for _ in range(2):
            was_ready = graph.replay()
            num_blocks = 22 * abi.RECORDS_PER_CHUNK
            launch = recorder.launch(
                "ones", regions.table, num_blocks=num_blocks, shares_chunks=True
            )
            found.append((was_ready, launch.num_reserved))
        recorder.close()
    assert found == [(False, 22), (True, 22)]


def test_a_replay_that_does_not_fit_is_counted_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.kprof"
    arena_bytes = abi.ArenaGeometry.for_chunks(0, 32).size_bytes
    with session(path) as directory:
        recorder = Recorder(directory, rank=0, world_size=1, arena_bytes=arena_bytes)
        graph = Graph(recorder)
        num_fitting = abi.ArenaGeometry.for_bytes(arena_bytes).num_reserved // 3
        for _ in range(num_fitting + 3):
            graph.replay()
        recorder.close()
    trace = Trace.open(path)
    assert are_replays(trace, num_fitting)
    counts = trace.ranks[0].counts
    assert (counts.recorded, counts.dropped) == (num_fitting * OF_A_REPLAY, 3 * OF_A_REPLAY)
    assert (counts.torn_chunks, counts.unsplit_launches, counts.overwritten_runs) == (0, 0, 0)
    assert [(each.region, each.dropped) for each in trace.ranks[0].losses] == [
        ("ones", 3 * OF_A_REPLAY)
    ]


def test_the_arena_that_is_named_would_have_held_all(tmp_path: Path) -> None:
    needed_bytes = abi.ArenaGeometry.for_chunks(0, 32).size_bytes
    for idx in range(2):
        with session(tmp_path / f"{idx}.kprof") as directory:
            recorder = Recorder(directory, rank=0, world_size=1, arena_bytes=needed_bytes)
            graph = Graph(recorder)
            for _ in range(11):
                graph.replay()
            recorder.close()
        info = Trace.open(tmp_path / f"{idx}.kprof").ranks[0]
        assert (info.counts.dropped == 0) == bool(idx)
        needed_bytes = info.arena.needed_bytes
    assert needed_bytes < 2 * abi.CHUNK_BYTES * 11 * 3 + abi.CHUNKS_OFFSET + 64 * abi.CHUNK_BYTES


@pytest.mark.parametrize("announced", [(False, False), (True, False, True)])
def test_a_replay_that_nobody_announced_overwrites_nothing(
    tmp_path: Path, announced: tuple[bool, ...]
) -> None:
    """Its programs claim chunks. A launch with chunks of both kinds stays whole."""
    path = tmp_path / "run.kprof"
    with session(path) as directory:
        recorder = Recorder(directory, rank=0, world_size=1, arena_bytes=4 << 20)
        graph = Graph(recorder)
        for is_announced in announced:
            graph.replay(is_announced=is_announced)
        recorder.close()
    trace = Trace.open(path)
    counts = trace.ranks[0].counts
    num_replays = len(announced)
    assert (counts.recorded, counts.dropped) == (num_replays * OF_A_REPLAY, 0)
    assert (counts.torn_chunks, counts.overwritten_runs) == (0, 0)
    assert counts.unsplit_launches == (2 if any(announced) else 0)
    assert any(announced) or are_replays(trace, num_replays)


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_replay_that_nobody_announced_takes_no_place_that_no_longer_holds(
    tmp_path: Path, *, is_paused: bool
) -> None:
    """Prepared before a flush, or before a pause."""
    path = tmp_path / "run.kprof"
    with session(path) as directory:
        recorder = Recorder(directory, rank=0, world_size=1, arena_bytes=4 << 20)
        graph = Graph(recorder)
        graph.replay()
        recorder.pause() if is_paused else recorder.flush()
        graph.replay(is_announced=False)
        recorder.resume()
        for _ in range(2):
            graph.replay()
        recorder.close()
    counts = Trace.open(path).ranks[0].counts
    num_recorded = 3 if is_paused else 4
    assert (counts.recorded, counts.dropped) == (num_recorded * OF_A_REPLAY, 0)


def test_a_damaged_chunk_moves_no_event_to_another_replay(tmp_path: Path) -> None:
    path = tmp_path / "run.kprof"
    with session(path) as directory:
        recorder = Recorder(directory, rank=0, world_size=1, arena_bytes=1 << 20)
        graph = Graph(recorder)
        for _ in range(3):
            graph.replay()
        arena = recorder._turns.active
        second = arena.geometry.num_chunks - 2 * 3
        # The header of the second replay's second chunk.
        arena._memory.clear(*byte_range((second + 1, second + 2)))
        recorder.close()
    trace = Trace.open(path)
    replays = {each.launch: each.replay for each in trace.ranks[0].launches}
    found = trace.frame(REPLAYS)
    num_of = {
        (replays[launch], n > 4): n for launch, n in zip(found["launch"], found["n"], strict=True)
    }
    # The second chunk of the larger launch has the last 4 of its programs.
    assert num_of == {
        (replay, is_large): (61 if replay == 1 else 65) if is_large else 4
        for replay in range(3) for is_large in (True, False)
    }  # fmt: skip


def test_a_graph_on_another_stream_waits_for_the_replay_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = Turns(1 << 20)
    turns.note_capture(is_end=False)
    turns.captured_buffer(0, 1)
    room = turns.note_capture(is_end=True)
    assert room is not None
    followed: list[int] = []
    was_ready: list[bool] = []
    monkeypatch.setattr(gpu, "follow", lambda _, previous: followed.append(previous))
    for stream in (5, 5, 6, 7, 7):
        room.current_stream = turns._streams.current = lambda stream=stream: stream
        was_ready.append(room.take())
        if not was_ready[-1]:
            turns.announce(room)
        turns.prepare(room)
    assert followed == [5, 6]
    assert was_ready == [False, True, False, False, True]


def test_graphs_beyond_the_last_room_claim_chunks() -> None:
    turns = Turns(1 << 20)
    rooms = []
    for number in range(abi.NUM_ROOMS + 2):
        turns.note_capture(is_end=False)
        buffer = turns.captured_buffer(number, 100)
        assert buffer.num_reserved == (2 if number < abi.NUM_ROOMS else 0)
        rooms.append(turns.note_capture(is_end=True))
        # A graph without launches of ours takes none.
        turns.note_capture(is_end=False)
        assert turns.note_capture(is_end=True) is None
    assert [room and room.idx for room in rooms] == [*range(abi.NUM_ROOMS), None, None]


def instructions(ptx: str) -> list[str]:
    """Of the kernel, without debug information and the numbers of parameters."""
    body = ptx[ptx.index("{", ptx.index(".entry")) :]
    body = body[: body.index("$L__func_end0")]
    lines = [
        re.sub(r"_param_\d+", "_param", line.split("//")[0].strip()) for line in body.splitlines()
    ]
    return [line for line in lines if line and not re.match(r"\.loc|\$L__(tmp|func)", line)]


def compiled_both_ways(tuner: Any, *, debug: bool) -> tuple[Any, Any]:
    """A kernel of Inductor's and its copy, as Inductor compiles them."""
    config = tuner.configs[0]
    meta = tuner._create_compile_meta(config)
    options = {"num_warps": config.num_warps, "debug": debug}

    def source(kernel: Any, signature: dict[str, str]) -> ASTSource:
        return ASTSource(kernel, signature, meta["constants"], meta["configs"][0])

    plain = triton.compile(source(tuner.fn, meta["signature"]), target=SM_90, options=options)
    kernel, _ = with_words(tuner.fn, "whole")
    with_more = source(kernel, {**meta["signature"], **dict.fromkeys(WORDS, "i64")})
    return plain, compiled_with_span(source(tuner.fn, meta["signature"]), with_more, SM_90, options)


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_the_copy_has_the_instructions_of_the_kernel(name: str, *, debug: bool) -> None:
    """The same ones in the same order: a clock before them, a record after them. Made from a source with a span in
    it, the copy of `rotated` fused the other one of two products into an fma, and its sums differed in the last
    bit."""
    require_tested_torch()
    import inductor_kernel

    plain, copy = compiled_both_ways(getattr(inductor_kernel, name), debug=debug)
    of_plain, of_copy = instructions(plain.asm["ptx"]), instructions(copy.asm["ptx"])
    clock = of_copy.index("mov.u64 %kprof_began, %globaltimer;")
    added = [".reg .b64 %kprof_began;", "mov.u64 %kprof_began, %globaltimer;"]
    assert of_copy[clock - 1 : clock + 1] == added
    before_ret = of_plain.index("ret;")
    of_kernel = of_copy[: clock - 1] + of_copy[clock + 1 : before_ret + len(added)]
    assert of_kernel == of_plain[:before_ret]
    # A begin and an end; anchors of two kinds of chunk.
    assert copy.asm["ptx"].count("%globaltimer") == 4
    assert copy.metadata.shared == plain.metadata.shared
    assert copy.asm["cubin"] != plain.asm["cubin"]


@pytest.fixture
def inductor_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """Kernels as Inductor writes them, which are compiled here without a GPU, into a cache of their own."""
    require_tested_torch()
    import inductor_kernel as kernels
    from torch._inductor.runtime import triton_helpers

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton_helpers, "set_driver_to_gpu", lambda: None)
    return kernels


@pytest.mark.parametrize("is_static", [False, True])
def test_inductor_gets_the_copy_without_compiling_it(
    monkeypatch: pytest.MonkeyPatch, inductor_kernel: ModuleType, *, is_static: bool
) -> None:
    """The kernel's own code comes from Triton's cache. It is launched as if it had been compiled."""
    tuner, config = inductor_kernel.rotated, inductor_kernel.rotated.configs[0]
    with torch._inductor.config.patch(use_static_triton_launcher=is_static):
        tuner._precompile_config(config)
        end_for(SM_90)
        kernel, _ = with_words(tuner.fn, "whole")
        clone = _tuner_of_copy(tuner, kernel)
        were_cached: list[bool] = []
        monkeypatch.setattr(
            triton.knobs.compilation,
            "listener",
            lambda *, cache_hit, **_: were_cached.append(cache_hit),
        )
        spliced = clone._precompile_config(config)
        assert were_cached == [True]
        del clone._precompile_config
        compiled = clone._precompile_config(config)
        assert were_cached == [True, False]
    assert list(spliced.compile_meta["signature"])[-len(WORDS) :] == list(WORDS)
    if not is_static:
        assert "%kprof_began" in spliced.kernel.asm["ptx"]
        assert spliced.kernel.src.hash() == compiled.kernel.src.hash()
        return
    own = {"hash", "cubin_path", "cubin_raw"}
    fields = [
        {k: v for k, v in vars(each.kernel).items() if k not in own} for each in (spliced, compiled)
    ]
    assert fields[0] == fields[1]
    assert (
        Path(spliced.kernel.cubin_path).read_bytes()
        != Path(compiled.kernel.cubin_path).read_bytes()
    )


def test_the_code_is_that_of_the_kernel_which_inductor_launches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, inductor_kernel: ModuleType
) -> None:
    """A compile worker has made it, for torch's ptxas: Triton would look for another one here, and compile that."""
    from torch._inductor.runtime.runtime_utils import triton_hash_to_path_key

    tuner, config = inductor_kernel.doubled, inductor_kernel.doubled.configs[0]
    end_for(SM_90)
    with torch._inductor.config.patch(use_static_triton_launcher=False):
        made = tuner._precompile_config(config).kernel
        launcher = SimpleNamespace(cache_hash=triton_hash_to_path_key(made.hash))
        monkeypatch.setattr(tuner, "launchers", [launcher])
        monkeypatch.setattr(nvidia, "get_ptxas_version", cache(lambda _: "another ptxas"))
        compiled: list[bool] = []
        monkeypatch.setattr(
            triton.knobs.compilation,
            "listener",
            lambda *, cache_hit, **_: compiled.append(not cache_hit),
        )
        clone = _tuner_of_copy(tuner, with_words(tuner.fn, "whole")[0])
        spliced = clone._precompile_config(config).kernel
        assert not compiled
        assert "%kprof_began" in spliced.asm["ptx"]
        # What the cache has lost is compiled.
        for file in tmp_path.rglob("*doubled*.ptx"):
            file.unlink()
        clone._precompile_config(config)
        assert compiled == [True]


def test_triton_warns_of_nothing_that_we_ask_it_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As Triton 3.9 does, on stderr, where no fusion is named: Inductor names one."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    options = {"num_warps": 4, "enable_fp_fusion": True}
    made = triton.compile(sources_of_ones()[0], target=SM_90, options=options)
    folder = _base32(made.hash)
    unnamed: list[object] = []
    parse = nvidia.CUDABackend.parse_options

    def parse_options(backend: Any, given: dict[str, Any]) -> Any:
        if given.get("enable_fp_fusion") is None:
            unnamed.append(given)
        return parse(backend, given)

    monkeypatch.setattr(nvidia.CUDABackend, "parse_options", parse_options)
    end_for.cache_clear()
    compiled_with_span(*sources_of_ones(), SM_90, {"num_warps": 4}, folder)
    assert not unnamed


def test_triton_does_not_remember_the_ptxas_that_we_have_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Inductor names another one later on, which its keys in the cache have to say; what the program has asked
    before stays."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    nvidia.get_ptxas_version.cache_clear()
    for asked_before in range(2):
        compiled_with_span(*sources_of_ones(), SM_90, {"num_warps": 4})
        assert nvidia.get_ptxas_version.cache_info().currsize == asked_before
        nvidia.get_ptxas_version(90)


def with_text(before: str, after: str) -> Callable[[], str]:
    return lambda: kernel_of_ones().replace(before, after)


@cache
def kernel_of_ones() -> str:
    plain, _ = sources_of_ones()
    return str(triton.compile(plain, target=SM_90, options={"num_warps": 4}).asm["ptx"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (with_text("\tret;", "\t@%p1 ret;\n\tret;"), "single threads of it end"),
        (with_text("\tret;", "\texit;\n\tret;"), "single threads of it end"),
        (with_text(".reqntid", ".reqnctapercluster 2\n.reqntid"), "its programs are clusters"),
        (with_text(".visible .entry", ".visible .func"), "its PTX has no kernel"),
        (lambda: kernel_of_ones()[:-400].replace("}", ""), "the kernel in its PTX has no end"),
    ],
)
def test_code_that_we_do_not_know_is_left_alone(text: Callable[[], str], reason: str) -> None:
    with pytest.raises(RecorderError, match=reason):
        with_span(text(), end_for(SM_90))


def test_without_its_code_a_kernel_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    end_for(SM_90)
    monkeypatch.setattr(triton.knobs.compilation, "store_binary_only", value=True)
    with pytest.raises(RecorderError, match="Triton keeps no PTX"):
        compiled_with_span(*sources_of_ones(), SM_90, {"num_warps": 8})


def test_a_kernel_that_is_left_alone_is_not_logged_by_inductor(
    monkeypatch: pytest.MonkeyPatch, inductor_kernel: ModuleType
) -> None:
    """It would log a traceback and the source, as of a kernel that does not compile."""
    from torch._inductor.runtime import triton_heuristics

    monkeypatch.setattr(triton.knobs.compilation, "store_binary_only", value=True)
    logged: list[str] = []
    monkeypatch.setattr(
        triton_heuristics.log, "exception", lambda text, *_: logged.append(str(text))
    )
    tuner = inductor_kernel.doubled
    clone = _tuner_of_copy(tuner, with_words(tuner.fn, "whole")[0])
    with pytest.raises(RecorderError, match="Triton keeps no PTX"):
        clone._precompile_config(tuner.configs[0])
    assert not logged


@pytest.mark.parametrize("suffix", ["json", "cubin"])
def test_a_lost_file_of_the_cache_is_made_again(
    suffix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Triton up to 3.6 then names those that are left."""

    def get_group(self: FileCacheManager, filename: str) -> dict[str, str] | None:
        path = Path(self.cache_dir) / f"__grp__{filename}"
        if not path.exists():
            return None
        children = json.loads(path.read_text())["child_paths"]
        return {name: child for name, child in children.items() if Path(child).exists()}

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(FileCacheManager, "get_group", get_group)
    kernels = []
    for _ in range(2):
        kernels.append(compiled_with_span(*sources_of_ones(), SM_90, {"num_warps": 4}))
        group = kernels[0].metadata_group
        lost = Path(group[f"plain_ones.{suffix}"])
        assert lost.exists()
        lost.unlink()
    assert kernels[0].asm["cubin"] == kernels[1].asm["cubin"]
    assert kernels[0].metadata == kernels[1].metadata


def end_through_shared_memory() -> str:
    """The end of a span as Triton 3.6 compiles it: an atomic's result goes through shared memory."""
    end = end_for(SM_90)
    if "global_smem" in end:
        return end
    found = re.search(
        r"(@%\w+) atom\.global\.gpu\.relaxed\.add\.u32 (%\w+), .*?(shfl\.sync\.idx\.b32\s+(%\w+), \2, 0, 31, -1;)",
        end,
        re.DOTALL,
    )
    assert found is not None
    guard, value, shuffle, result = found.groups()
    through_memory = (
        f"{guard} st.shared.b32 [ %r_address + 0 ], {value};\n\tbar.sync \t0;\n"
        f"\tld.shared.b32 \t{result}, [global_smem];"
    )
    return end.replace(shuffle, "mov.b32 \t%r_address, global_smem;\n\t" + through_memory)


def test_a_span_takes_no_shared_memory() -> None:
    """It would move the kernel's own: results of wgmma changed, which wants it at multiples of 1024 bytes."""
    spliced = with_span(kernel_of_ones(), end_through_shared_memory())
    assert "shared" not in spliced
    assert "smem" not in spliced
    # Lane 0 has added to a cursor, and all lanes learn which chunk they have claimed.
    added = r"atom\.global\.gpu\.relaxed\.add\.u32 (%\w+), .*?shfl\.sync\.idx\.b32\s+%\w+, \1, 0, 31, -1;"
    assert re.search(added, spliced, re.DOTALL)


def test_a_span_that_needs_shared_memory_is_not_recorded() -> None:
    end = end_through_shared_memory().replace("ld.shared.b32", "ld.shared.v2.b32")
    with pytest.raises(RecorderError, match="takes shared memory"):
        with_span(kernel_of_ones(), end)


def test_every_way_out_of_a_kernel_ends_its_span() -> None:
    """The code of the end stands before each, with labels of its own."""
    text = kernel_of_ones().replace("\tret;", "\tbra.uni $over;\n\tret;\n$over:\n\tret;")
    spliced = with_span(text, end_for(SM_90))
    assert spliced.count("%globaltimer") == 1 + 2 * 3
    labels = re.findall(r"^(\$L__kprof\w+):", spliced, flags=re.MULTILINE)
    assert len(labels) == len(set(labels)) > 4


@pytest.fixture
def cached_by_newer_ptxas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel lies in Triton's cache, made for a ptxas newer than Triton's own."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    plain, _ = sources_of_ones()
    kernel = triton.compile(plain, target=SM_90, options={"num_warps": 4})
    for file in (tmp_path / "cache").rglob("*.ptx"):
        file.write_text(re.sub(r"(?m)^\.version .*", ".version 18.1", file.read_text()))
    assert ".version 18.1" not in kernel.asm["ptx"]


@pytest.mark.usefixtures("cached_by_newer_ptxas")
def test_ptx_that_no_ptxas_knows_is_refused_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    """As it happens with the cache of another installation."""
    with pytest.raises(RecorderError, match=r"no ptxas here knows its PTX, of version 18\.1"):
        compiled_with_span(*sources_of_ones(), SM_90, {"num_warps": 4})
    assert capfd.readouterr().out == ""


@pytest.mark.usefixtures("cached_by_newer_ptxas")
def test_the_ptxas_of_torch_assembles_what_it_has_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor takes torch's in the processes that compile, and no ptxas where its cache has the kernel."""
    ptxas = tmp_path / "ptxas"
    ptxas.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --version ] && echo "Cuda compilation tools, release 22.1" && exit\n'
        'for each; do case "$each" in *.ptx) sed -i "s/^.version .*/.version 8.0/" "$each";; esac; done\n'
        f'exec {triton.knobs.nvidia.ptxas.path} "$@"\n'
    )
    ptxas.chmod(0o755)
    monkeypatch.setattr(spliced, "_PTXAS_OF_TORCH", ptxas)
    kernel = compiled_with_span(*sources_of_ones(), SM_90, {"num_warps": 4})
    assert kernel.asm["cubin"].startswith(b"\x7fELF")


def test_a_failure_to_assemble_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Triton prints the code of a kernel that ptxas refuses, and the user's output would have it."""
    monkeypatch.setattr(spliced, "with_span", lambda *_: ".version 8.0\nno such code\n")
    with pytest.raises(triton.runtime.errors.PTXASError):
        compiled_with_span(*sources_of_ones(), SM_90, {"num_warps": 4})
    assert capfd.readouterr().out == ""
