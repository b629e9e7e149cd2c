"""The recordings in traces/ are what index.toml says, stay readable, and tell the story that their README tells."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from kprof.trace import Trace

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

TRACES = Path(__file__).parents[2] / "traces"
INDEX = tomllib.loads((TRACES / "index.toml").read_text())


@pytest.mark.parametrize("name", INDEX)
def test_files_are_the_recorded_ones(name: str) -> None:
    found = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (TRACES / name).iterdir()
    }
    assert found == INDEX[name]["sha256"]


def test_every_recording_is_listed() -> None:
    assert sorted(path.name for path in TRACES.glob("*.kprof")) == sorted(INDEX)


def test_blocks_that_serve_the_heavy_rank_have_three_times_the_rows() -> None:
    trace = Trace.open(TRACES / "all_to_all-token_flags-4xH200-skew3.kprof")
    rows = trace.frame(
        "SELECT block % 4 AS served, count(*) AS n FROM events WHERE region = 'dispatch/copy' GROUP BY 1 ORDER BY 1"
    )["n"].tolist()
    assert rows[3] == 3 * rows[0] == 3 * rows[1] == 3 * rows[2]
    assert trace.alignment is not None
    early = trace.frame(
        "SELECT count(*) AS n FROM flows WHERE wait_end_ns < send_start_ns - ?",
        [trace.alignment.bound_between_ns(1, 2)],
    )
    assert early["n"][0] == 0


def most_rows_in_a_block(name: str, served: int) -> int:
    trace = Trace.open(TRACES / name)
    return int(
        trace.frame(
            """SELECT max(n) AS most FROM (
                SELECT count(*) AS n FROM events WHERE region = 'dispatch/copy' AND ordinal > 0 AND block % 4 = ?
                GROUP BY rank, ordinal, block)""",
            [served],
        )["most"][0]
    )


@pytest.mark.parametrize(
    ("name", "expected"), [("token_flags", [8, 8, 8, 24]), ("balanced", [10, 8, 8, 8])]
)
def test_balanced_takes_the_long_blocks_away(name: str, expected: list[int]) -> None:
    recording = f"all_to_all-{name}-4xH200-skew3.kprof"
    assert [most_rows_in_a_block(recording, served) for served in range(4)] == expected
