"""Small well-formed captures, and ways to damage them: every one is a function of a random generator and a capture."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kprof.capture import manifest as m
from kprof.capture.directory import Capture, event_schema
from kprof.capture.names import MANIFEST_NAME
from kprof.capture.rank_summary import write_summary
from kprof.capture.torch_traces import torch_trace_name
from sealing import has_checksum, remove_checksums, seal
from synthetic import TraceBuilder

REGIONS: Final = """
REGION(S, "dispatch/send", send, peer:8, slot:8, bytes:16)
REGION(W, "dispatch/wait", wait, peer:8, slot:8)
REGION(C, "copy", compute, complete, bytes:32)
REGION(B, "barrier", sync)
MARK(M, "known", other)
VALUE(V, "left", other)
FLOW(S, W)
"""
# Stands in a file beside the capture, which links lead to. Nobody may show it.
SECRET: Final = "b2f6-the-content-of-a-private-file"
_MOST_ROWS: Final = 20_000
Damage = Callable[[random.Random, Path, Path], None]


def write_seeds(folder: Path) -> list[Path]:
    """Captures of one and of three ranks, with everything that a manifest can hold."""
    three = _build(3, num_launches=3).write(folder / "three.kprof")
    _enrich(three)
    for info in three.manifest.ranks[:2]:
        write_summary(three.path, info, 3)
    content = gzip.compress(_torch_trace())
    (three.path / torch_trace_name(0)).write_bytes(content)
    seal(three.path)
    one = _build(1, num_launches=1).write(folder / "one.kprof")
    unaligned = _build(2, num_launches=2, is_aligned=False).write(folder / "unaligned.kprof")
    return [three.path, one.path, unaligned.path]


def enlarged(seed: Path, large: Path) -> Path:
    """The capture with as many events of rank 0 as any damage leaves in a file that is read."""
    shutil.copytree(seed, large)
    path = large / "rank-00000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.take(np.arange(_MOST_ROWS) % len(table)), path)
    seal(large)
    return large


def _build(num_ranks: int, num_launches: int, *, is_aligned: bool = True) -> TraceBuilder:
    build = TraceBuilder(REGIONS, num_ranks, is_aligned=is_aligned)
    for launch in range(num_launches):
        build.launch(launch, "all_to_all", num_blocks=4)
        for rank in range(num_ranks):
            for block in range(3):
                _fill_block(build, rank, block, launch, 1000 * launch + 7 * block)
    return build


def _fill_block(build: TraceBuilder, rank: int, block: int, launch: int, start_ns: int) -> None:
    place: dict[str, int] = {"rank": rank, "block": block, "warp": block - 1, "launch": launch}
    peer = (rank + 1) % build.num_ranks
    flow = {"peer": peer, "slot": block}
    build.span(region="dispatch/send", start_ns=start_ns, duration_ns=20, **place, **flow)
    build.span(region="dispatch/wait", start_ns=start_ns + 20, duration_ns=300, **place, **flow)
    build.span(region="copy", start_ns=start_ns + 320, duration_ns=50 + 9 * rank, **place, bytes=64)
    build.span(region="barrier", start_ns=start_ns + 400, duration_ns=80, **place)
    build.span(region="known", start_ns=start_ns + 410, **place)
    build.span(region="left", start_ns=start_ns + 420, **place)


def _enrich(capture: Capture) -> None:
    """Parts that only some recordings have."""
    rich = msgspec.structs.replace(
        capture.manifest,
        overhead=m.Overhead((m.KernelOverhead("all_to_all", 3, (10.0, 11.0), (10.5, 11.5)),)),
        ranks=tuple(
            msgspec.structs.replace(
                info,
                probe=m.ProbeCost(50.0, 8.0, 100, 8, 2e9),
                cycle_clock=m.CycleClock(2e9, 3.0),
                losses=(m.RegionLosses("copy", dropped=3, open=1),),
                arena=m.ArenaUse(1 << 20, 1 << 19, 1 << 20),
                notes=("a note",),
            )
            for info in capture.manifest.ranks
        ),
    )
    assert rich.alignment is not None
    pair = m.PairClock(
        0, 1, 3.0, 0.1, 20.0, 90.0, 1000, 3, "peer ping-pong", 180.0, 2.0, {"two ways": 7.0}
    )
    aligned = msgspec.structs.replace(rich.alignment, pairs=(pair,), notes=("a note",))
    data = msgspec.json.encode(msgspec.structs.replace(rich, alignment=aligned))
    (capture.path / MANIFEST_NAME).write_bytes(data)


def _torch_trace() -> bytes:
    kernels = [
        {"ph": "X", "cat": "kernel", "name": "all_to_all", "tid": 7, "ts": i, "dur": 0.9}
        for i in range(3)
    ]
    return json.dumps({"traceEvents": kernels, "baseTimeNanoseconds": 1_700_000_000}).encode()


# Values of every type, at and beyond the edges of what is allowed.
NUMBERS: Final[list[int | float]] = [
    0,
    1,
    -1,
    2,
    3,
    31,
    32,
    33,
    255,
    4096,
    16383,
    16384,
    10**6,
    10**12,
]
NUMBERS += [
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**53 + 1,
    2**61,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
]
NUMBERS += [0.5, -0.0, 1e-320, 1e9, 1e15, 1e18, 4e18, 1e19, 1e308, -1e308]
TEXTS: Final = [
    "",
    " ",
    "peer",
    "PEER",
    "rank",
    "select",
    'a"b',
    "a'b",
    "x); COPY (SELECT 1) TO 'manifest.json'; --",
    "\x1b]0;owned\x07\x1b[2J",
    "\x00\x9b31m\u202e\u2028",
    "a\nkprof: all is well\n",
    "</script><script>alert(1)</script>",
    "{{ 7 * 7 }}{% raw %}",
    "[bold]red[/bold] [link=file:///etc/passwd]x[/link]",
    "../../etc/passwd",
    "%s%n{0}{x}",
    "\U0001f600" * 50,
    "n" * 70_000,
    "wait",
    "compute",
    "span",
    "value",
]


def _any_value(rng: random.Random) -> Any:
    kind = rng.randrange(6)
    if kind < 2:
        return rng.choice(NUMBERS)
    if kind < 4:
        return rng.choice(TEXTS)
    return rng.choice([None, True, False, [], {}, [[]], {"a": None}, [None], [0] * 50])


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        yield value, key
        if isinstance(item, dict | list):
            yield from _places(item)


def change_values(rng: random.Random, run: Path, _outside: Path) -> None:
    """Other values of any type at one to three places of the manifest.

    Or of the same type, which reach further.
    """

    def change(manifest: Any) -> None:
        for _ in range(rng.randint(1, 3)):
            places = list(_places(manifest))
            container, key = rng.choice(places)
            old = container[key]
            if isinstance(old, str) and rng.random() < 0.7:
                container[key] = rng.choice(TEXTS)
            elif isinstance(old, int | float) and rng.random() < 0.7:
                container[key] = rng.choice(NUMBERS)
            else:
                container[key] = _any_value(rng)

    _edit(run, change)


def change_shape(rng: random.Random, run: Path, _outside: Path) -> None:
    """Entries of the manifest removed, repeated, moved or added."""

    def change(manifest: Any) -> None:
        for _ in range(rng.randint(1, 3)):
            container, key = rng.choice(list(_places(manifest)))
            if isinstance(container, list):
                item = container[key]
                copies = rng.choice([0, 2, 3, 300])
                container[key : key + 1] = [item] * copies
                rng.shuffle(container)
            elif rng.random() < 0.5:
                del container[key]
            else:
                container[rng.choice(list(container))] = container[key]

    _edit(run, change)


def change_text(rng: random.Random, run: Path, _outside: Path) -> None:
    """The text of the manifest: cut, bytes changed, nested deeply, keys repeated, numbers of many digits."""
    path = run / MANIFEST_NAME
    data = bytearray(path.read_bytes())
    kind = rng.randrange(5)
    if kind == 0:
        del data[rng.randrange(len(data)) :]
    elif kind == 1:
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind == 2:
        opening = rng.choice([b"[", b'{"ranks":', b'{"a":['])
        data[1:1] = b'"x":' + opening * rng.choice([10, 1000, 100_000])
    elif kind == 3:
        data[1:1] = rng.choice([b'"ranks":[],', b'"world_size":1,', b'"format_version":1,'])
    else:
        at = data.find(b":", rng.randrange(len(data) // 2)) + 1
        data[at:at] = b"9" * rng.choice([30, 400, 100_000])
    path.write_bytes(data)


def _edit(run: Path, change: Callable[[Any], None]) -> None:
    path = run / MANIFEST_NAME
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def _parquet_file(rng: random.Random, run: Path) -> Path:
    return rng.choice(sorted(run.glob("*.parquet")))


def change_bytes(rng: random.Random, run: Path, _outside: Path) -> None:
    """Bytes of a Parquet file, anywhere or in its footer."""
    path = _parquet_file(rng, run)
    data = bytearray(path.read_bytes())
    first = len(data) - 1500 if rng.random() < 0.5 else 0
    kind = rng.randrange(4)
    if kind == 0:
        for _ in range(rng.choice([1, 1, 2, 10, 100])):
            data[rng.randrange(max(first, 0), len(data))] = rng.randrange(256)
    elif kind == 1:
        del data[rng.randrange(len(data)) :]
    elif kind == 2:
        at = rng.randrange(len(data))
        data[at : at + rng.randint(1, 300)] = rng.randbytes(rng.randint(0, 300))
    else:
        at = rng.randrange(4, len(data) - 8)
        data[at : at + rng.randint(1, 64)] = bytes(rng.choice([0, 255]) for _ in range(64))
    path.write_bytes(data)


def change_events(rng: random.Random, run: Path, _outside: Path) -> None:
    """Values of events, most of them within what is allowed: they reach every analysis."""
    path = rng.choice(sorted(run.glob("rank-*.parquet")))
    table = pq.read_table(path)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(table.num_columns)
        field = table.schema.field(at)
        limits = np.iinfo(field.type.to_pandas_dtype())
        edges = [n for n in NUMBERS if isinstance(n, int) and limits.min <= n <= limits.max]
        values = table[field.name].to_pylist()
        share = rng.choice([0.02, 0.3, 1.0])
        chosen = [rng.choice(edges) if rng.random() < share else value for value in values]
        if rng.random() < 0.1:
            chosen[rng.randrange(len(chosen))] = None
        table = table.set_column(at, field, pa.array(chosen, field.type))
    _write(rng, path, table)


def change_table(rng: random.Random, run: Path, _outside: Path) -> None:
    """Rows and columns of a Parquet file: none, many equal ones, others' rows, other names and types."""
    path = _parquet_file(rng, run)
    table = pq.read_table(path)
    kind = rng.randrange(7)
    if kind == 0:
        table = table.slice(0, 0)
    elif kind == 1:
        table = table.take(np.zeros(rng.choice([1000, _MOST_ROWS]), dtype=np.int64))
    elif kind == 2:
        table = table.rename_columns([*table.column_names[1:], "strange"])
    elif kind == 3:
        table = table.drop_columns([rng.choice(table.column_names)])
    elif kind == 4:
        table = table.take(np.array(rng.sample(range(len(table)), len(table))))
    elif kind == 5:
        table = pq.read_table(_parquet_file(rng, run))
    else:
        at = rng.randrange(table.num_columns)
        strange: Any = rng.choice([pa.float64(), pa.string(), pa.list_(pa.int32()), pa.int8()])
        nothing = pa.nulls(len(table), strange)
        table = table.set_column(at, table.column_names[at], nothing)
    _write(rng, path, table)


def claim_many_rows(rng: random.Random, run: Path, _outside: Path) -> None:
    """Millions of equal rows in a file of some kilobytes."""
    path = run / "rank-00000.parquet"
    number = rng.choice([400_000, 4_000_000])
    zeros = {f.name: pa.array(np.zeros(number, f.type.to_pandas_dtype())) for f in event_schema()}
    pq.write_table(
        pa.table(zeros).cast(event_schema()), path, compression="zstd", row_group_size=number
    )


def _write(rng: random.Random, path: Path, table: pa.Table) -> None:
    pq.write_table(
        table,
        path,
        compression=rng.choice(["zstd", "snappy", "none"]),
        row_group_size=rng.choice([1 << 20, 1 << 20, 1 + len(table) // 20]),
        write_statistics=rng.random() < 0.7,
    )


def change_torch_trace(rng: random.Random, run: Path, _outside: Path) -> None:
    """What the PyTorch profiler wrote: numbers, names, a gzip bomb, cut off."""
    trace = json.loads(_torch_trace())
    for _ in range(2):
        event = rng.choice(trace["traceEvents"])
        event[rng.choice(["ts", "dur", "tid", "name", "cat", "ph"])] = _any_value(rng)
    text = json.dumps(trace)
    if rng.random() < 0.3:
        text = text.replace("0.9", rng.choice(["1e999999999", "9" * 5000, '"nan"', "-1"]), 1)
    data = gzip.compress(text.encode())
    if rng.random() < 0.3:
        data = rng.choice([data[: len(data) // 2], gzip.compress(bytes(1 << 26)), b"\x1f\x8b"])
    name = torch_trace_name(0, rng.choice([0, 1, 10**6]))
    (run / name).write_bytes(data)


def change_kind(rng: random.Random, run: Path, outside: Path) -> None:
    """A file of the capture that is none: a pipe, a folder, a device, a link out of the capture or to itself."""
    path = rng.choice(sorted(run.iterdir()))
    path.unlink()
    kind = rng.randrange(7)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
    elif kind < 6:
        target: Path | str = [outside, "/dev/zero", path.name, "/proc/self/mem"][kind - 2]
        path.symlink_to(target)


DAMAGES: Final[dict[str, tuple[int, Damage]]] = {
    "values": (6, change_values),
    "shape": (4, change_shape),
    "text": (2, change_text),
    "bytes": (5, change_bytes),
    "events": (6, change_events),
    "table": (3, change_table),
    "rows": (1, claim_many_rows),
    "torch": (1, change_torch_trace),
    "kind": (2, change_kind),
}


# What becomes of the checksums. Those of an accident stay, and must find it. Strangers write what
# they like, and captures of older versions have none: all other checks must do without.
CHECKSUMS: Final = {"kept": 4, "made again": 3, "none": 3}


def damage(rng: random.Random, seed: Path, run: Path, outside: Path) -> tuple[str, str]:
    """Copy a capture to `run` and damage it; says how, and what became of its checksums."""
    shutil.copytree(seed, run)
    checksums = rng.choices(list(CHECKSUMS), list(CHECKSUMS.values()))[0]
    if checksums == "none":
        remove_checksums(run)
    weights = [weight for weight, _ in DAMAGES.values()]
    name = rng.choices(list(DAMAGES), weights)[0]
    DAMAGES[name][1](rng, run, outside)
    if checksums == "made again":
        seal(run)
    is_strangers = not has_checksum(run) or _names(run) > _names(seed)
    return name, "none" if checksums == "kept" and is_strangers else checksums


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
