"""Delays in kernels: spans of the region and the place that are named last longer, all others do not."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from instrumented_kernels import rms_norm_fp8, swiglu_fp8
from kprof import abi
from kprof.devices.build import DELAYS_VARIABLE, BuildOptions, load_library
from kprof.devices.targets import Target
from kprof.recording.launcher.record import session
from kprof.recording.launches.delays import Delaying, Delays, length_of, words_of
from kprof.recording.launches.region_ids import RegionIds
from kprof.recording.rank.recorder import Recorder
from kprof.regions import RegionTable
from kprof.trace import Trace
from tiles_kernel import FOLDER, THREADS, Arguments

NUM_BLOCKS, NUM_TILES = 4, 3
DELAY_NS = 3e6
WITHOUT_END = 1 << 31
ALL = ((0, WITHOUT_END),)


def durations_of(
    folder: Path, delays: Delays | None, *, is_per_block: bool = True, tracks_per_block: int = 1
) -> pd.DataFrame:
    """The events of two launches."""
    library = load_library(FOLDER / "kernel.hip", BuildOptions(Target.CPU))
    words = np.zeros(2, np.uint32)
    with session(folder / "run.kprof") as directory:
        recorder = Recorder(
            directory, rank=0, world_size=1, regions=FOLDER / "regions.h", delays=delays
        )
        for _ in range(2):
            arguments = Arguments(words.ctypes.data, NUM_BLOCKS, NUM_TILES, is_per_block)
            buffer = recorder.launch(
                "tiles",
                num_blocks=NUM_BLOCKS,
                threads_per_block=THREADS,
                tracks_per_block=tracks_per_block,
            )
            call = ctypes.byref(arguments), NUM_BLOCKS, THREADS, buffer.packed()
            assert library.run_tiles_kernel(*call) == 0
            # What was emptied is delayed, too.
            recorder.flush()
    trace = Trace.open(folder / "run.kprof")
    frame = trace.query("SELECT launch, block, region, duration_ns FROM events").to_pandas()
    return pd.DataFrame(frame)


def shortest(events: pd.DataFrame, *by: str) -> dict[object, int]:
    found: dict[object, int] = events.groupby(list(by))["duration_ns"].min().to_dict()
    return found


@pytest.fixture
def takes_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DELAYS_VARIABLE, "{}")


@pytest.mark.amd
@pytest.mark.usefixtures("takes_delays")
@pytest.mark.parametrize("tracks_per_block", [0, 1])
def test_spans_last_longer_where_they_are_to(tmp_path: Path, tracks_per_block: int) -> None:
    delays = Delays("gemm", DELAY_NS, {0: ((1, 2), (3, WITHOUT_END))})
    events = durations_of(tmp_path, delays, tracks_per_block=tracks_per_block)
    found = shortest(events, "region", "block")
    delayed = {("gemm", 1), ("gemm", 3), ("tile", 1), ("tile", 3)}
    for place, duration_ns in found.items():
        assert (duration_ns >= DELAY_NS) == (place in delayed), (place, duration_ns)
    assert len(events) == 2 * NUM_BLOCKS * NUM_TILES * 6


@pytest.mark.amd
@pytest.mark.usefixtures("takes_delays")
def test_every_second_launch(tmp_path: Path) -> None:
    delays = Delays("scale", DELAY_NS, {0: ALL}, every=2)
    found = shortest(durations_of(tmp_path, delays, is_per_block=False), "region", "launch")
    assert found["scale", 0] >= DELAY_NS > max(found["scale", 1], found["load", 0])


ROWS = torch.ones(8, 64).half()


@pytest.mark.usefixtures("takes_delays")
@pytest.mark.parametrize(
    ("kernel", "region", "arguments"),
    [
        (swiglu_fp8, "load", (ROWS, 1.0)),
        (rms_norm_fp8, "normalise", (ROWS, ROWS, ROWS[0].clone(), 1.0)),
    ],
    ids=["swiglu_fp8", "rms_norm_fp8"],
)
def test_short_tracks_take_delays_too(
    tmp_path: Path,
    kernel: ModuleType,
    region: str,
    arguments: tuple[Any, ...],
) -> None:
    delays = Delays(region, DELAY_NS, {0: ((1, 2),)})
    with session(tmp_path / "run.kprof") as directory:
        recorder = Recorder(directory, rank=0, world_size=1, arena_bytes=1 << 20, delays=delays)
        kernel.Plan("cpu")(*arguments, recorder=recorder)
        recorder.close()
    sql = f"SELECT block, duration_ns FROM events WHERE region = '{region}'"
    found = shortest(Trace.open(tmp_path / "run.kprof").query(sql).to_pandas(), "block")
    assert found.pop(1) >= DELAY_NS > min(found.values()), found


@pytest.mark.usefixtures("takes_delays")
@pytest.mark.parametrize(
    "delays",
    [
        pytest.param(None, id="none are wanted"),
        pytest.param(Delays("gemm", 0.0, {0: ALL}), id="of no length"),
        pytest.param(Delays("gemm", DELAY_NS, {1: ALL}), id="of another rank"),
        pytest.param(Delays("other", DELAY_NS, {0: ALL}), id="of an unknown region"),
    ],
)
def test_nothing_is_delayed(tmp_path: Path, delays: Delays | None) -> None:
    assert max(shortest(durations_of(tmp_path, delays), "region").values()) < DELAY_NS


def test_kernels_without_delays_ignore_them(tmp_path: Path) -> None:
    events = durations_of(tmp_path, Delays("gemm", DELAY_NS, {0: ALL}))
    assert max(shortest(events, "region").values()) < DELAY_NS


def test_delays_end_when_the_arena_says_nothing_more() -> None:
    words = words_of(Delays("gemm", 1e3, {2: ((8, 40), (9000, 9001))}), 2, 3, 1e9)
    assert int(words["word"]) >> abi.DELAY_BITS == 3
    assert words["every"] == words["is_beyond_delayed"] == 1
    assert words["blocks"].tolist()[:3] == [0xFFFFFF00, 0xFF, 0]
    assert not words_of(Delays("gemm", 1e3, {2: ALL}), 1, 3, 1e9)["blocks"].any()
    assert not words_of(Delays("gemm", 1e3, {2: ALL}), 2, 0, 1e9)["word"]


@pytest.mark.parametrize("ticks", [0, 1, 2047, 2048, 4095, 123456, 10**9, (1 << 32) - 1])
def test_lengths_are_told_to_a_part_in_two_thousand(ticks: int) -> None:
    length = length_of(ticks)
    told = (length & 0x7FF) << (length >> 11)
    assert length < 1 << abi.DELAY_BITS
    assert told == pytest.approx(ticks, rel=1 / 2000)
    assert told < 1 << 32


def of_tables(*tables: list[str]) -> tuple[list[int], list[str]]:
    """The regions that are stored, and the notes, as kernels with these regions come."""
    stored: list[int] = []
    notes: list[str] = []
    ids = RegionIds()
    given = Delays("copy", 5.0, {0: ALL}), 0, 1e9
    delaying = Delaying(
        *given,
        lambda words: stored.append(int(words["word"]) >> abi.DELAY_BITS),
        notes.append,
        is_capturing=lambda: False,
    )
    for table in tables:
        delaying.introduce(0, "kernel", ids.table_idx(RegionTable.of(table)), ids)
    return stored, notes


def test_a_region_has_one_number_or_is_not_delayed() -> None:
    assert of_tables(["wait"], ["wait", "copy"], ["wait", "copy", "more"]) == ([2], [])
    for tables in (["wait", "copy"], ["copy"]), (["wait", "copy"], ["wait", "other"]):
        stored, (note,) = of_tables(*tables)
        assert stored == [2, 0]
        assert re.search("number the region copy differently", note)


def test_no_word_is_stored_while_a_graph_is_captured() -> None:
    def refuse(_words: np.ndarray) -> None:
        raise AssertionError

    notes: list[str] = []
    ids = RegionIds()
    delaying = Delaying(
        Delays("copy", 5.0, {0: ALL}), 0, 1e9, refuse, notes.append, is_capturing=lambda: True
    )
    delaying.introduce(0, "kernel", ids.table_idx(RegionTable.of(["copy"])), ids)
    assert "a graph captures" in notes[0]
