"""`kprof align`: captures whose ranks have clocks of their own get one, by what happened before what."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kprof
from kprof.aligning.align import align
from kprof.analysis import Summary, find
from kprof.capture.directory import read_manifest
from kprof.errors import ClockError, CorruptCaptureError, OutputExistsError
from kprof.importers import import_events
from kprof.importers.foreign import ReadOptions
from kprof.trace import Trace
from unaligned import Writer, chrome, worst_error_ns

TRACES = Path(__file__).parents[2] / "traces"
RECORDED = [
    "all_reduce-oneshot-2xH200-torch_profiler",
    "all_reduce-oneshot-4xH200",
    "all_reduce-oneshot_lock-4xH200",
    "all_reduce-oneshot_tree-4xH200",
    "all_to_all-balanced-4xH200-skew3",
    "all_to_all-pipelined-4xH200-skew3-264blocks",
]


@pytest.mark.slow
def test_messages_put_ranks_onto_one_clock(tmp_path: Path) -> None:
    path = Writer(4).exchange(0, 1, 2, 3).write(tmp_path / "run.kprof")
    assert read_manifest(path).alignment is None
    with pytest.raises(ClockError):
        Trace.open(path).require_alignment("lateness")
    found = align(path)
    assert worst_error_ns(path, [0, 1, 2, 3]) <= found.alignment.widest_bound_ns < 6000
    assert found.alignment.method == "messages"
    early = kprof.open(path).trace.frame(
        "SELECT count(*) AS n FROM flows WHERE wait_end_ns < send_start_ns"
    )
    assert early["n"][0] == 0


def test_collectives_do_where_they_are_named(tmp_path: Path) -> None:
    path = Writer(4).meet(range(4)).write(tmp_path / "run.kprof")
    with pytest.raises(ClockError, match=r"no two ranks bound each other.*--collective NAME"):
        align(path)
    found = align(path, collectives=["mee*"])
    assert found.alignment.method == "collectives"
    assert worst_error_ns(path, [0, 1, 2, 3]) <= found.alignment.widest_bound_ns < 8000


def test_calls_that_not_all_ranks_made_are_no_collective(tmp_path: Path) -> None:
    writer = Writer(2).meet(range(2))
    writer.span(1, "meet", 2e8, 2e8 + 10)
    with pytest.raises(
        ClockError, match="meet is not used: rank 0 has 100 calls of it and rank 1 101"
    ):
        align(writer.write(tmp_path / "run.kprof"), collectives=["meet"])


def test_a_rank_that_nothing_bounds_stays_on_its_own_clock(tmp_path: Path) -> None:
    writer = Writer(3).exchange(0, 1)
    writer.message(0, 2, 1e6)
    path = writer.write(tmp_path / "run.kprof")
    found = align(path)
    assert found.left_out == (2,)
    trace = Trace.open(path)
    assert not trace.is_on_one_clock
    assert "nothing bounds the clock of rank 2" in trace.manifest.alignment_note
    both = trace.select(ranks="0-1")
    assert both.is_on_one_clock
    assert both.alignment is not None
    assert not trace.select(ranks="1-2").is_on_one_clock
    assert not both.select(ranks=None).is_on_one_clock
    assert worst_error_ns(path, [0, 1]) <= found.alignment.widest_bound_ns


def test_a_wrong_pairing_is_named_and_changes_nothing(tmp_path: Path) -> None:
    writer = Writer(2).exchange(0, 1)
    # A wait that ends a millisecond before its send begins.
    writer.span(0, "dispatch/send", 5e7, 5e7 + 500, peer=1, slot=99_999)
    writer.span(1, "dispatch/wait", 4.8e7, 4.9e7, peer=0, slot=99_999)
    path = writer.write(tmp_path / "run.kprof")
    before = (path / "manifest.json").read_bytes()
    with pytest.raises(ClockError, match=r"contradicts itself by .* us.*dispatch/wait of rank 1"):
        align(path)
    assert (path / "manifest.json").read_bytes() == before


@pytest.mark.slow
def test_a_clock_is_replaced_only_by_force_and_another_capture_leaves_it(tmp_path: Path) -> None:
    path = Writer(2).exchange(0, 1).write(tmp_path / "run.kprof")
    align(path)
    with pytest.raises(ClockError, match="on one clock already"):
        align(path)
    align(path, force=True)
    other = tmp_path / "other.kprof"
    align(path, other)
    with pytest.raises(OutputExistsError):
        align(path, other)
    assert Trace.open(other).num_events() == Trace.open(path).num_events()
    assert sorted(each.name for each in other.iterdir()) == sorted(
        each.name for each in path.iterdir()
    )


def test_a_damaged_capture_is_refused_and_left(tmp_path: Path) -> None:
    path = Writer(2).exchange(0, 1).write(tmp_path / "run.kprof")
    file = path / "rank-00001.parquet"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptCaptureError, match="was changed"):
        align(path)


def test_one_rank_has_nothing_to_align(tmp_path: Path) -> None:
    writer = Writer(1)
    writer.span(0, "meet", 0, 10)
    with pytest.raises(ClockError, match="one rank"):
        align(writer.write(tmp_path / "run.kprof"))


@pytest.mark.parametrize("name", RECORDED)
def test_recordings_of_gpus_agree_with_their_ping_pong(name: str, tmp_path: Path) -> None:
    before, after = TRACES / f"{name}.kprof", tmp_path / "again.kprof"
    known = read_manifest(before).alignment
    found = align(before, after).alignment
    assert known is not None
    trace = Trace.open(after)
    counts = trace.frame(
        "SELECT count(*) AS n, count(*) FILTER (wait_end_ns < send_start_ns) AS early FROM flows"
    )
    assert counts["n"][0] > 0
    assert counts["early"][0] == 0
    for entry in found.ranks:
        (pinged,) = (each for each in known.ranks if each.rank == entry.rank)
        bound_ns = entry.bound_ns + pinged.rigorous_bound_ns
        window = trace.frame(
            f"SELECT min(start_ns) a, max(start_ns) b FROM raw_events WHERE rank = {entry.rank}"
        )
        for local_ns in window.iloc[0].tolist():
            assert abs(entry.correction_ns(local_ns) - pinged.correction_ns(local_ns)) <= bound_ns


def test_an_imported_trace_of_eight_ranks_is_aligned_by_its_collectives(tmp_path: Path) -> None:
    path = tmp_path / "run.kprof"
    import_events("chrome", [chrome(tmp_path / "t.json", 8, 60)], path, ReadOptions(tick_ns=1))
    assert not Trace.open(path).is_on_one_clock
    found = align(path)
    assert len(found.alignment.ranks) == 8
    assert found.alignment.widest_bound_ns < 30_000
    assert "rank 3: all its times are multiples of 10 ns" in found.notes
    assert Trace.open(path).is_on_one_clock


@pytest.mark.slow
def test_a_finding_about_imported_ranks_is_on_one_clock_once_they_are_aligned(
    tmp_path: Path,
) -> None:
    """Durations need no clock, so the slow rank is named before, too, with the doubt beside it."""
    path = tmp_path / "run.kprof"
    file = chrome(tmp_path / "t.json", 8, 60, slow_rank=3)
    import_events("chrome", [file], path, ReadOptions(tick_ns=1))
    before = find(Summary.of(Trace.open(path)))
    assert [finding.ranks for finding in before.findings] == [(3,)]
    assert any("no common clock" in doubt.sentence for doubt in before.doubts)
    assert not Trace.open(path).is_on_one_clock
    found = align(path)
    after = find(Summary.of(Trace.open(path)))
    assert [finding.ranks for finding in after.findings] == [(3,)]
    assert "rank 3 runs gemm 3.0x slower than the rest" in after.findings[0].fact
    assert not any("no common clock" in doubt.sentence for doubt in after.doubts)
    assert Trace.open(path).is_on_one_clock
    # A rank that always comes last bounds the others from one side only, as far as they wait for it.
    assert 2e5 < found.alignment.bound_between_ns(3, 7) < 3e5


def test_an_import_without_collectives_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "run.kprof"
    import_events("chrome", [chrome(tmp_path / "t.json", 2, 0 + 20)], path, ReadOptions(tick_ns=1))
    shutil.copytree(path, tmp_path / "copy")
    # The kernels of one rank are called something else.
    text = (tmp_path / "t.json").read_text().replace("ncclDevKernel_AllReduce", "all_reduce")
    (tmp_path / "t.json").write_text(text)
    import_events("chrome", [tmp_path / "t.json"], path, ReadOptions(tick_ns=1), force=True)
    with pytest.raises(ClockError, match="no two ranks"):
        align(path)
    assert not Trace.open(path).is_on_one_clock
