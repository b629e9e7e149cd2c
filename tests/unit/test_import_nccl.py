"""Files of NCCL's profilers and of PyTorch's flight recorder, beyond what all formats have in common."""

from __future__ import annotations

import contextlib
import gzip
import os
import pickle
from pathlib import Path

import pytest

import kprof
from foreign_files import flight_recorder, nccl_profiler
from kprof.errors import ForeignFormatError
from kprof.importers import import_events


def test_channels_without_an_end_are_counted_and_their_begins_kept(tmp_path):
    summary = import_events(None, nccl_profiler.make(tmp_path), tmp_path / "run.kprof")
    assert summary.left_out == {"channels without an end": 2 * 3 * 7}
    run = kprof.open(summary.path)
    rows = run.sql(
        "SELECT kernel, region, count(*) AS n FROM events GROUP BY ALL ORDER BY ALL"
    ).to_pylist()
    assert [(row["kernel"], row["region"], row["n"]) for row in rows] == [
        ("AllReduce RING LL", "AllReduce RING LL", 6),
        ("AllReduce RING LL", "AllReduce RING LL begins", 42),
    ]
    assert [info.counts.dropped for info in run.manifest.ranks] == [21, 21]


def test_a_rank_that_is_behind_is_named(tmp_path):
    summary = import_events(None, flight_recorder.make(tmp_path), tmp_path / "run.kprof")
    assert (
        summary.notices[0]
        == "group default_pg: others have enqueued collective 4, rank 1 ends with 3"
    )


class Calls:
    def __reduce__(self):
        return os.system, ("touch called",)


@pytest.mark.parametrize("entries", [[Calls()], Calls(), Path("x"), {1, 2}])
def test_a_pickle_that_would_call_something_is_refused(tmp_path, monkeypatch, entries):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "dump"
    path.write_bytes(pickle.dumps({"entries": entries, "version": "2.10"}, protocol=2))
    with pytest.raises(ForeignFormatError, match="it is no plain data"):
        import_events("flight_recorder", [path], tmp_path / "run.kprof")
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_pickle_is_one_error(tmp_path, seed):
    import random

    draw = random.Random(seed)
    (path, _) = flight_recorder.make_pickle(tmp_path)
    data = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 8)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    path.write_bytes(data[: draw.randint(1, len(data))] if seed % 2 else data)
    with contextlib.suppress(ForeignFormatError):
        import_events("flight_recorder", [path], tmp_path / "run.kprof", force=True)


ENTRY = b"}(\x8c\x0dprocess_group\x8c\x010\x8c\x01a\x86\x8c\x0eprofiling_name\x8c\x03sumu"


def test_many_marks_take_linear_time(tmp_path):
    """Each close looked through all marks: hours."""
    path = tmp_path / "dump"
    path.write_bytes(
        b"\x80\x04}\x8c\x07entries](" + ENTRY + b"(" * 500_000 + b"t" * 500_000 + b"0."
    )
    with pytest.raises(ForeignFormatError, match=r"no plain data \(POP\)"):
        import_events("flight_recorder", [path], tmp_path / "run.kprof")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        # 15 kB, packed, took gigabytes.
        *(
            (b"]" + unit * (15_000_000 // len(unit)) + b".", "more than 10,000 values|no list")
            for unit in (b"]", b"}", b"]\x94", b"]K\x01a", b"(", b"(e")
        ),
        # One entry again and again, keys that collide, places of a memo that is nearly empty.
        (
            b"}\x8c\x07entries](" + ENTRY + b"\x94" + b"h\x00" * 1000 + b"es.",
            "one entry several times",
        ),
        (b"}" + b"\x8a\x09" + ((1 << 61) - 1).to_bytes(9, "little") + b"Ns.", "no dict of texts"),
        (b"]r\xff\xff\xff\x7f.", "numbers a value 2147483647 where 0 comes next"),
    ],
    ids=range(9),
)
def test_pickles_that_cost_more_than_they_hold_are_refused(tmp_path, monkeypatch, values, said):
    monkeypatch.setattr("kprof.importers.formats.flight_recorder._MOST_OPERATIONS", 10_000)
    path = tmp_path / "dump"
    path.write_bytes(gzip.compress(b"\x80\x04" + values))
    with pytest.raises(ForeignFormatError, match=said):
        import_events("flight_recorder", [path], tmp_path / "run.kprof")
