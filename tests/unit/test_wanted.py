"""What of a run is recorded: windows of calls and schedules, and what contradicts itself."""

from __future__ import annotations

import warnings
from typing import Any

import msgspec
import numpy as np
import pytest

import kprof
from kprof.errors import RecorderError
from kprof.recording.launches.wanted import Wanted


@pytest.mark.parametrize(
    ("wanted", "calls"),
    [
        (Wanted(), range(12)),
        (Wanted(skip=3), range(3, 12)),
        (Wanted(skip=3, calls=2), [3, 4]),
        (Wanted(calls=2, every=5), [0, 1, 5, 6, 10, 11]),
        (Wanted(skip=1, calls=2, every=4, times=2), [1, 2, 5, 6]),
        (Wanted(calls=3, every=3), range(12)),
    ],
)
def test_windows_of_calls(wanted: Wanted, calls: list[int]) -> None:
    assert [call for call in range(12) if wanted.has_call(call)] == list(calls)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"skip": -1}, "skip is -1: give 0 or more"),
        ({"sample": 0.5}, "sample is 0.5: give a whole number"),
        ({"skip": "3"}, "skip is '3': give a whole number"),
        ({"blocks": "0-3"}, "blocks is '0-3': give whole numbers, like"),
        ({"ranks": 0}, "ranks is 0: give whole numbers, like"),
        ({"every": 5}, "give calls, too"),
        ({"calls": 2, "times": 3}, "give every, too"),
        ({"calls": 6, "every": 5}, "windows of 6 calls overlap when one begins every 5"),
        ({"blocks": (0, 1, 3)}, "the blocks have gaps"),
        ({"warps": (32,)}, "warp 32: a block has warps 0 to 31"),
        ({"warps": (-1,)}, r"warps is \(-1,\): give 0 or more"),
        ({"ranks": (0, -2)}, r"ranks is \(-2, 0\): give 0 or more"),
        ({"blocks": (-5, -4)}, r"blocks is \(-5, -4\): give 0 or more"),
        ({"blocks": (1 << 32,)}, "block 4294967296: a launch has blocks 0 to 2147483646"),
        ({"blocks": (0, 1.5)}, "give whole numbers, like"),
        ({"calls": (1, 2)}, "give a whole number"),
    ],
)
def test_what_contradicts_itself_is_a_sentence(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(RecorderError, match=sentence):
        Wanted(**fields)


def test_numbers_may_be_of_any_kind_in_any_order() -> None:
    fields: dict[str, Any] = {
        "skip": np.int64(1),
        "calls": True,
        "blocks": [np.uint8(3), 2, 3],
        "warps": (0, 0),
    }
    wanted = Wanted(**fields)
    assert wanted == Wanted(1, 1, blocks=(2, 3), warps=(0,))
    assert msgspec.json.decode(msgspec.json.encode(wanted), type=Wanted) == wanted
    assert msgspec.json.decode("{}", type=Wanted) == Wanted()
    lists: dict[str, Any] = {"ranks": [0], "blocks": range(4)}
    assert Wanted(**lists).describe() == "--ranks 0 --blocks 0-3"
    schedule = kprof.schedule(**dict.fromkeys(("wait", "warmup", "active"), fields["skip"]))
    assert [bool(schedule(step)) for step in range(4)] == [False, False, True, False]


@pytest.mark.parametrize(
    ("fields", "active"),
    [
        ({"wait": 1, "warmup": 1, "active": 2}, [2, 3, 6, 7, 10, 11]),
        ({"wait": 1, "warmup": 1, "active": 2, "repeat": 2}, [2, 3, 6, 7]),
        ({"wait": 0, "warmup": 0, "active": 1}, list(range(12))),
        ({"wait": 2, "warmup": 0, "active": 1, "repeat": 1, "skip_first": 4}, [6]),
    ],
)
def test_a_schedule_is_that_of_torch(fields: dict[str, int], active: list[int]) -> None:
    torch_profiler = pytest.importorskip("torch.profiler")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch recommends a warm-up
        ours, theirs = kprof.schedule(**fields), torch_profiler.schedule(**fields)
    recording = {
        torch_profiler.ProfilerAction.RECORD,
        torch_profiler.ProfilerAction.RECORD_AND_SAVE,
    }
    assert [step for step in range(12) if ours(step)] == active
    assert [step for step in range(12) if theirs(step) in recording] == active


@pytest.mark.parametrize("fields", [{"active": 0}, {"wait": -1}, {"wait": 1.5}, {"repeat": -2}])
def test_a_schedule_without_a_meaning_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RecorderError, match=r"a schedule with .*: give a whole number, . or more"):
        kprof.schedule(**({"wait": 0, "warmup": 0, "active": 1} | fields))


def test_it_is_described_by_its_options() -> None:
    assert Wanted(skip=99).describe() == "--skip 99"
    wanted = Wanted(ranks=(0, 3), blocks=(4, 5, 6), warps=(0,), sample=64)
    assert wanted.describe() == "--ranks 0,3 --blocks 4-6 --warps 0 --sample 1/64"
