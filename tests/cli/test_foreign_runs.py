"""A trace of the kind that people publish with hand-written profilers, from the file to every
command.

The file is a Chrome trace: process = rank, thread = threadblock plus rank (so that no thread has
the id of its process), times in raw ticks of 10 ns where the format wants microseconds, gzipped.
"""

# Fixtures of conftest.py need no annotations here.
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import gzip
import json

import pytest

from in_process import run_kprof

NUM_RANKS, NUM_BLOCKS, TICK_NS = 8, 64, 10
HEAVY_RANK = 3
REGIONS = """
REGION(R_SEND, "dispatch-send", send)
REGION(R_SPIN, "dispatch-recv-spin", wait)
REGION(R_RECV, "dispatch-recv", recv)
REGION(R_COMBINE, "combine-send", send)
"""


def rank_events(rank):
    """Blocks b serve source b % 8 one token after the other. The heavy source has three times as many."""
    first_tick = 7_000_000_000 + 1000 * rank
    for block in range(NUM_BLOCKS):
        tick = first_tick + block % 5
        place = {"ph": "X", "pid": rank, "tid": block + rank}
        yield place | {"name": "dispatch-send", "ts": tick, "dur": 400}
        tick += 500
        for token in range(3 if block % NUM_RANKS == HEAVY_RANK else 1):
            yield place | {"name": "dispatch-recv-spin", "ts": tick, "dur": 300 + token}
            yield place | {"name": "dispatch-recv", "ts": tick + 300 + token, "dur": 900}
            tick += 1300
        yield place | {"name": "combine-send", "ts": tick + 10, "dur": 500}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    file = tmp_path_factory.mktemp("published") / "trace_v8.json.gz"
    document = {"traceEvents": [event for rank in range(NUM_RANKS) for event in rank_events(rank)]}
    file.write_bytes(gzip.compress(json.dumps(document).encode()))
    return file


@pytest.fixture(scope="module")
def imported(published):
    regions, run = published.with_name("regions.h"), published.with_name("run.kprof")
    regions.write_text(REGIONS)
    options = ["--kind", "chrome", "--tick-ns", TICK_NS, "--rank-in-tid", "--regions", regions]
    assert run_kprof(["import", published, "-o", run, *options]).returncode == 0
    return run


def test_times_blocks_and_ranks_are_the_real_ones(kprof, imported):
    query = """SELECT count(*) AS n, count(DISTINCT rank) AS ranks, min(block) AS low, max(block) AS high,
        min(duration_ns) FILTER (region = 'dispatch-recv') AS recv_ns,
        max(duration_ns) FILTER (region = 'dispatch-send') AS send_ns FROM events"""
    (row,) = json.loads(kprof("query", imported, query, "--json").out)["rows"]
    num_tokens = NUM_RANKS * (NUM_BLOCKS + 2 * NUM_BLOCKS // NUM_RANKS)
    assert row == {
        "n": 2 * num_tokens + 2 * NUM_RANKS * NUM_BLOCKS,
        "ranks": NUM_RANKS,
        "low": 0,
        "high": NUM_BLOCKS - 1,
        "recv_ns": 9000,
        "send_ns": 4000,
    }


def test_the_blocks_that_serve_the_heavy_source_are_found(kprof, imported):
    found = json.loads(kprof("report", imported, "--json").out)["findings"]
    (uneven,) = (f for f in found if f["kind"] == "uneven_work" and f["blocks"])
    assert sorted({block % NUM_RANKS for block in uneven["blocks"]}) == [HEAVY_RANK]
    assert uneven["ranks"] == []  # all of them
    assert "of all ranks have 3.0x as many items in dispatch-recv as others" in uneven["sentence"]
    assert len(uneven["blocks"]) == NUM_BLOCKS // NUM_RANKS


@pytest.mark.parametrize(
    "line",
    [
        ["info", "RUN"],
        ["stats", "RUN", "--by", "block"],
        ["waits", "RUN", "--by", "region"],
        ["report", "RUN", "-o", "OUT.html"],
        ["diff", "RUN", "RUN"],
        ["export", "RUN", "-o", "OUT.pftrace"],
        ["export", "RUN", "-o", "OUT.json.gz"],
        ["view", "RUN", "--no-open", "--port", "0", "--timeout", "0.1", "--finding", "1"],
    ],
    ids=" ".join,
)
def test_every_command_reads_it(kprof, imported, tmp_path, line):
    places = {"RUN": str(imported), "OUT": str(tmp_path / "out")}
    words = [
        word.replace("OUT", places["OUT"]) if word != "RUN" else places["RUN"] for word in line
    ]
    result = kprof(*words)
    assert result.code == 0, result.err
    assert result.out or result.err


def test_without_a_table_of_regions_work_is_compared_all_the_same(kprof, published, tmp_path):
    """Whoever only has the file knows neither waits nor sends: what can be said is said."""
    run = tmp_path / "plain.kprof"
    assert kprof("import", published, "-o", run, "--kind", "chrome", "--tick-ns", TICK_NS).code == 0
    document = json.loads(kprof("report", run, "--json").out)
    assert document["capture"]["num_events"] > 0
    assert {row["region"] for row in document["tables"]["regions"]} == {
        "dispatch-send",
        "dispatch-recv-spin",
        "dispatch-recv",
        "combine-send",
    }
