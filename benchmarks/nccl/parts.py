"""What a recording must show, and what it costs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import kprof
from benchmarks import harness
from benchmarks.nccl.bench import Bench, OutOfTimeError
from kprof.nccl.clocks import common_clock
from kprof.nccl.plugin import build_plugin, environment_for

NUM_CALLS, NUM_PLANTS, EVERY = 10_000, 40, 20
CAUSES = ("sleep", "kernel", "host")
LATE_US = (200, 1000, 5000, 20_000)
# Ranks that take turns on the GPU begin a turn of milliseconds apart anyhow.
LATE_US_IN_TURNS = (20_000, 50_000)
COST_CALLS, COST_ROUNDS, COST_REPEATS = 2000, 5, 4

Plant = tuple[int, int, str, int]


def plants(num_ranks: int, lengths_us: tuple[int, ...]) -> list[Plant]:
    """Which call, which rank, why and by how many us: every length with every cause and rank in turn."""
    return [
        (
            EVERY * number + EVERY // 2,
            number % num_ranks,
            CAUSES[number % len(CAUSES)],
            lengths_us[number // len(CAUSES) % len(lengths_us)],
        )
        for number in range(NUM_PLANTS)
    ]


def right(bench: Bench, shape: str, num_ranks: int, seconds: float) -> dict[str, Any]:
    """Whether every call is in the capture, with the clocks of all ranks 0 apart within their bound."""
    said, output = bench.record(
        f"right-{shape}-{num_ranks}",
        bench.ranks(shape, "right", num_ranks, NUM_CALLS, seconds),
        seconds + 50,
        NCCL_DEBUG="INFO",
        NCCL_DEBUG_SUBSYS="INIT,ENV",
    )
    return said | found_in(output, said["calls"] + said["calls_before"], said["pairs"])


def found_in(output: Path, num_calls: int, num_pairs: int) -> dict[str, Any]:
    run = kprof.open(output)
    rows = run.sql(
        "SELECT rank, split_part(kernel, ' ', 1) AS what, count(*) AS n FROM launches GROUP BY ALL ORDER BY ALL"
    ).to_pylist()
    counts = {f"{row['what']} of rank {row['rank']}": row["n"] for row in rows}
    alignment = run.manifest.alignment
    lost = [info.counts.dropped for info in run.manifest.ranks]
    all_reduces = [n for name, n in counts.items() if name.startswith("AllReduce")]
    pairs = [n for name, n in counts.items() if name.startswith("SendRecv")]
    # Channels whose times NCCL had overwritten are counted in a message, and calls without any channel are no launches.
    is_counted = any(lost) or any("64 of a channel" in each for each in run.manifest.messages)
    is_whole = all(n == num_calls for n in all_reduces) and pairs == [num_pairs] * 2
    return {
        "launches": counts,
        "expected": {"all_reduces": num_calls, "pairs": num_pairs},
        "lost": lost,
        "all_recorded_or_counted": is_whole or is_counted,
        "clock": alignment.method if alignment else run.manifest.alignment_note,
        "offsets_ns": [entry.segments[0].offset_ns for entry in alignment.ranks]
        if alignment
        else None,
        "bound_ns": alignment.widest_bound_ns if alignment else None,
        "messages": list(run.manifest.messages),
        "from_collectives_alone": apart_by_collectives(output),
    }


def apart_by_collectives(output: Path) -> dict[str, Any]:
    """What kprof makes of the collectives alone, as if nothing said that the ranks share a GPU: clocks that are 0
    apart. And in how many channels of a call a rank begins after another has ended, which cannot be."""
    channels = (
        kprof.open(output)
        .sql(
            "SELECT rank, 'world' AS comm, kernel AS func, ordinal AS seq, block AS channel, -1 AS root, "
            "min(start_ns) AS start_ns, max(end_ns) AS stop_ns "
            "FROM events WHERE kernel LIKE 'AllReduce%' GROUP BY ALL"
        )
        .to_pandas()
    )
    keys = ["func", "seq", "channel"]
    b, e = (
        channels.pivot(index=keys, columns="rank", values=name).dropna()
        for name in ("start_ns", "stop_ns")
    )
    impossible = int((b.max(axis=1) > e.min(axis=1)).sum())
    found: dict[str, Any] = {"impossible": impossible, "of": len(b)}
    alignment, note = common_clock(channels, (), frozenset(channels["rank"]), {})
    if alignment is None:
        return found | {"note": note}
    ends_ns = [int(channels["start_ns"].min()), int(channels["stop_ns"].max())]
    for entry in alignment.ranks:
        apart_ns = max((entry.correction_ns(at_ns) for at_ns in ends_ns), key=abs)
        found[f"rank {entry.rank}"] = {
            "apart_ns": round(apart_ns, 1),
            "bound_ns": round(entry.bound_ns, 1),
            "holds_0": abs(apart_ns) <= entry.bound_ns,
        }
    return found


def late(bench: Bench, shape: str, num_ranks: int, seconds: float) -> dict[str, Any]:
    """Whether the wait of each call with a plant names the rank that was late."""
    planted = plants(num_ranks, LATE_US_IN_TURNS if shape == "processes" else LATE_US)
    words = [":".join(map(str, plant)) for plant in planted]
    command = bench.ranks(shape, "late", num_ranks, EVERY * NUM_PLANTS, seconds, *words)
    said, output = bench.record(f"late-{shape}-{num_ranks}", command, seconds + 30)
    return said | named(output, planted, said["calls_before"], said["calls"])


def named(output: Path, planted: list[Plant], num_before: int, num_calls: int) -> dict[str, Any]:
    """Of each plant, whom the longest wait of its call is for. Before those came `num_before`."""
    waits = kprof.open(output).sql(
        "SELECT ordinal, peer, max(duration_ns) AS ns FROM events "
        "WHERE region = 'nccl/wait' AND kernel LIKE 'AllReduce%' GROUP BY ordinal, peer"
    )
    longest: dict[int, tuple[int, int]] = {}
    for row in waits.to_pylist():
        call = row["ordinal"] - num_before
        longest[call] = max(longest.get(call, (0, -1)), (row["ns"], row["peer"]))
    rows: list[list[Any]] = []
    over: list[float] = []
    for call, rank, cause, late_us in planted:
        if call < num_calls:
            ns, peer = longest.get(call, (0, -1))
            rows.append([call, rank, cause, late_us, peer, round(ns / 1000, 1)])
            over += [ns / 1000 - late_us] * (peer == rank)
    return {
        "right": len(over),
        "of": len(rows),
        # How much longer the others waited than the rank was late: the noise of the host and the GPU.
        "wait_minus_delay_us": harness.spread(over, 1) if over else None,
        "call, rank, cause, late_us, named, wait_us": rows,
    }


def cost(bench: Bench, shape: str, num_ranks: int, seconds: float) -> dict[str, Any]:
    """us per all-reduce off, with kprof's plugin loaded and no events, with an empty plugin that is told the same
    events, and recorded; in turns."""
    del shape
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else bench.folder) as rings:
        return _costs(bench, num_ranks, seconds, Path(rings))


def _costs(bench: Bench, num_ranks: int, seconds: float, rings: Path) -> dict[str, Any]:
    mine = environment_for(build_plugin(), rings, 64 << 20)
    empty = {"NCCL_PROFILER_PLUGIN": str(bench.empty_plugin)}
    variants = {
        "off": {},
        "loaded": mine | {"NCCL_PROFILE_EVENT_MASK": "0"},
        "empty": empty,
        "recorded": mine,
        # What NCCL's own part is made of: calls alone, and calls with channels.
        "empty, calls": empty | {"NCCL_PROFILE_EVENT_MASK": "2"},
        "empty, channels": empty | {"NCCL_PROFILE_EVENT_MASK": "66"},
        "recorded, channels": mine | {"NCCL_PROFILE_EVENT_MASK": "66"},
    }
    times: dict[str, dict[str, list[float]]] = {
        how: {name: [] for name in variants} for how in ("in_a_row_us", "one_by_one_us")
    }
    command = bench.ranks("threads", "cost", num_ranks, COST_CALLS, COST_ROUNDS)
    names = list(variants)
    until_s, repeats = bench.left_s - seconds, 0
    for repeat in range(COST_REPEATS):
        # At least two, whatever the time.
        if repeat > 1 and bench.left_s < until_s:
            break
        for name in names[repeat:] + names[:repeat]:
            try:
                said = bench.run(
                    f"cost-{name.replace(', ', '-')}-{num_ranks}-{repeat}",
                    command,
                    30,
                    **variants[name],
                )
            except (RuntimeError, OutOfTimeError):
                # What was measured before counts.
                if all(times["in_a_row_us"].values()):
                    break
                raise
            for how, found in times.items():
                found[name] += said[how]
            for ring in rings.glob("nccl-*"):
                ring.unlink()
        repeats += 1
    return {"repeats": repeats} | {how: _compared(found) for how, found in times.items()}


def _compared(times: dict[str, list[float]]) -> dict[str, Any]:
    found: dict[str, Any] = {name: harness.spread(each) for name, each in times.items()}
    for name in list(times)[1:]:
        found[f"{name}_percent"] = harness.percent_above(times["off"], times[name])
    found["recorded_over_empty_percent"] = harness.percent_above(times["empty"], times["recorded"])
    return found


def story(bench: Bench, shape: str, num_ranks: int, seconds: float) -> dict[str, Any]:
    """A capture with a Triton kernel, one of ours in C++ and NCCL's, on one clock."""
    del shape
    command = bench.ranks("processes", "story", num_ranks, 4)
    said, output = bench.record(f"story-{num_ranks}", command, seconds)
    run = kprof.open(output)
    kernels = run.sql(
        "SELECT kernel, count(*) AS launches, min(rank) AS first_rank, max(rank) AS last_rank FROM launches GROUP BY kernel"
    )
    alignment = run.manifest.alignment
    return said | {
        "clock": alignment.method if alignment else run.manifest.alignment_note,
        "kernels": kernels.to_pylist(),
    }
