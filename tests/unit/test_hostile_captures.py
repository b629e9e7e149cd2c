"""Captures from strangers or unlike any recording: opening them is one sentence, and nothing but the capture is touched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import write_seeds

from kprof import report
from kprof.abi import MAX_REGION_ID
from kprof.analysis import Summary, find, flow_sums
from kprof.capture import checks
from kprof.capture.directory import Capture, event_schema, write_rank_events
from kprof.capture.footers import read_footers
from kprof.capture.losses import describe_losses
from kprof.capture.manifest import MAX_RANKS
from kprof.capture.names import MANIFEST_NAME
from kprof.capture.rank_summary import stored_summaries, write_summary
from kprof.errors import CorruptCaptureError, KprofError, RegionError, SelectionError
from kprof.export import write
from kprof.hangs.report import read_hang
from kprof.regions import Field, Region, RegionTable, parse_regions
from kprof.trace import Trace
from kprof_cli.main import run as cli
from sealing import editing_manifest, remove_checksums, seal
from synthetic import TraceBuilder

REGIONS = """
REGION(S, "send", send, peer:8, slot:8, order:8)
REGION(W, "wait", wait, peer:8, slot:8)
FLOW(S, W)
"""


@pytest.fixture
def run(tmp_path) -> Path:
    build = TraceBuilder(REGIONS, 2)
    for rank in range(2):
        for i in range(20):
            build.span(rank, "send", 100 * i, 9, peer=1 - rank)
            build.span(rank, "wait", 100 * i + 9, 50, peer=1 - rank)
    return build.write(tmp_path / "run.kprof").path


def edit(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    with editing_manifest(run) as manifest:
        change(manifest)


def rewrite(run: Path, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
    path = run / "rank-00000.parquet"
    pq.write_table(change(pq.read_table(path)).cast(event_schema()), path, **options)


def rank(manifest: dict[str, Any]) -> dict[str, Any]:
    first: dict[str, Any] = manifest["ranks"][0]
    return first


def first_field(manifest: dict[str, Any]) -> dict[str, Any]:
    field: dict[str, Any] = rank(manifest)["regions"]["regions"][0]["fields"][0]
    return field


def refusal(run: Path) -> str:
    with pytest.raises(CorruptCaptureError) as error:
        Capture.open(run)
    return str(error.value)


INJECTION = "x, (SELECT 1) AS y FROM raw_events); COPY (SELECT 1) TO 'manifest.json'; --"


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda m: first_field(m).update(name=INJECTION),
        lambda m: first_field(m).update(name='peer"'),
        lambda m: first_field(m).update(name=""),
        lambda m: first_field(m).update(name="SLOT"),
        lambda m: first_field(m).update(bits=0),
        lambda m: first_field(m).update(bits=33),
        lambda m: first_field(m).update(bits=1 << 40),
        lambda m: first_field(m).update(shift=-1),
        lambda m: first_field(m).update(shift=30),
        lambda m: m.update(world_size=10**12),
        lambda m: m.update(missing_ranks=[5]),
        lambda m: m.update(ranks=[], alignment=None),
        lambda m: m["alignment"].update(reference_rank=7),
        lambda m: m["ranks"].append(m["ranks"][0]),
        lambda m: m["alignment"]["ranks"].append(m["alignment"]["ranks"][0]),
        lambda m: m["alignment"]["ranks"][1].update(segments=[]),
        lambda m: m["alignment"]["ranks"][1]["segments"].append({"from_ns": 0, "offset_ns": 1.0}),
        lambda m: m["alignment"]["ranks"][1].update(bound_ns=-1.0),
        lambda m: rank(m)["launches"].append(rank(m)["launches"][0]),
        lambda m: rank(m).update(pid=2**53),
        lambda m: rank(m).update(rank=-1),
        lambda m: rank(m).update(host=None),
        lambda m: m.update(overhead={"kernels": []}),
        lambda m: m.update(
            overhead={"kernels": [{"kernel": "k", "num_launches": 1, "off_us": [0], "on_us": [0]}]}
        ),
        lambda m: m.update(
            overhead={"kernels": [{"kernel": "k", "num_launches": 1, "off_us": [], "on_us": [1]}]}
        ),
    ],
)
def test_a_manifest_that_cannot_be_is_refused_when_it_is_read(run, change):
    edit(run, change)
    assert "manifest.json is damaged (" in refusal(run)


@pytest.mark.parametrize("recorded", [39, 41, 1 << 40])
def test_a_count_of_events_that_the_file_contradicts_is_a_loss(run, recorded):
    assert Capture.open(run).manifest.messages == ()
    edit(run, lambda m: rank(m)["counts"].update(recorded=recorded))
    manifest = Capture.open(run).manifest
    assert [info.counts.recorded for info in manifest.ranks] == [40, 40]
    (loss,) = describe_losses(manifest)
    assert f"rank 0: its file holds 40 events where the manifest counts {recorded:,}," in loss


def test_deep_nesting_is_one_sentence(run):
    path = run / MANIFEST_NAME
    path.write_text(path.read_text().rstrip()[:-1] + ', "x": ' + "[" * 100_000)
    assert "nests too deeply" in refusal(run)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("rank", 1),
        ("launch", -1),
        ("block", -(2**31)),
        ("warp", -(2**15)),
        ("start_ns", -(2**63)),
        ("start_ns", 2**63 - 1),
        ("duration_ns", -1),
        ("duration_ns", 2**63 - 1),
        ("start_ns", None),
        ("region", None),
    ],
)
@pytest.mark.parametrize("has_statistics", [True, False])
def test_events_that_cannot_be_are_refused_when_they_are_opened(run, column, value, has_statistics):
    def change(table: pa.Table) -> pa.Table:
        values = [value, *table[column].to_pylist()[1:]]
        field = table.schema.field(column)
        changed = pa.array(values, field.type)
        return table.set_column(table.schema.get_field_index(column), field, changed)

    rewrite(run, change, write_statistics=has_statistics)
    assert f"rank-00000.parquet is damaged ({column} " in refusal(run)


def test_a_few_bytes_that_claim_many_events_are_refused(run):
    numbers = [0] * 400_000
    rewrite(run, lambda table: table.take(numbers), compression="zstd")
    assert "400,000 rows in" in refusal(run)


def test_a_steady_kernel_compresses_and_is_read(tmp_path):
    """All blocks of a launch begin and end at the same steps of the clock."""
    num_launches, num_blocks = 1000, 500
    launch, block = np.divmod(np.arange(num_launches * num_blocks), num_blocks)
    columns = {"rank": 0, "warp": -1, "region": 0, "flags": 0, "duration_ns": 3200, "payload": 0}
    columns |= {"launch": launch, "block": block, "start_ns": 96_000 * launch, "hw_id": block % 132}
    table = {name: np.broadcast_to(value, len(launch)) for name, value in columns.items()}
    events = pa.table(table).select(event_schema().names).cast(event_schema())
    write_rank_events(tmp_path, 0, events)
    path = tmp_path / "rank-00000.parquet"
    assert len(launch) > 2 * path.stat().st_size
    assert checks.check_events(path, 0, read_footers([path])) == len(launch)


def test_a_file_of_tiny_pieces_is_refused(run):
    rewrite(run, lambda table: table.take(list(range(4)) * 2_000), row_group_size=1)
    assert "8,000 rows are in 8,000 pieces" in refusal(run)


def test_bytes_that_are_read_for_a_time_are_refused_in_a_sentence(run):
    path = run / "rank-00000.parquet"
    metadata = pq.read_metadata(path)
    columns = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    page = metadata.row_group(0).column(columns.index("start_ns")).data_page_offset
    data = bytearray(path.read_bytes())
    data[page : page + 8] = b"\xff" * 8
    path.write_bytes(data)
    seal(run)
    with pytest.raises(CorruptCaptureError, match="record again or restore the file"):
        Trace.open(run).select(time_ns=(0, 1000))


@pytest.mark.slow
@pytest.mark.parametrize("name", [MANIFEST_NAME, "rank-00000.parquet"])
@pytest.mark.parametrize(
    "kind", ["pipe", "directory", "device", "link outside", "broken link", "loop"]
)
def test_what_is_no_plain_file_of_the_capture_is_not_opened(run, tmp_path, name, kind):
    path = run / name
    outside = tmp_path / "private"
    path.rename(outside)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        targets = {"device": "/dev/zero", "link outside": outside, "broken link": tmp_path / "no"}
        path.symlink_to(targets.get(kind, name))
    assert name in refusal(run)


@pytest.mark.parametrize("fault", ["pipe", "link outside", "not UTF-8"])
def test_a_hang_that_is_no_plain_file_of_the_capture_is_not_opened(run, tmp_path, fault):
    """Reading a pipe never ends."""
    path = run / "hang.json"
    if fault == "pipe":
        os.mkfifo(path)
    elif fault == "link outside":
        path.symlink_to(tmp_path / "no")
    else:
        path.write_bytes(b'{"kind": "\xff"}')
    with pytest.raises(CorruptCaptureError, match=r"hang\.json"):
        read_hang(run)


def test_a_link_within_the_capture_is_followed(run):
    (run / "rank-00001.parquet").rename(run / "kept.parquet")
    (run / "rank-00001.parquet").symlink_to("kept.parquet")
    assert Trace.open(run).num_events() == 80


def test_a_capture_of_names_that_sql_reserves_is_read(tmp_path):
    build = TraceBuilder('REGION(A, "a", compute, select:8, RANK:8, Peer:8)', 1)
    build.span(0, "a", 1, 1, select=3, RANK=7, Peer=5)
    trace = Trace.open(build.write(tmp_path / "run.kprof").path)
    assert trace.sql('SELECT "select", rank, peer FROM events').to_pylist() == [
        {"select": 3, "rank": 0, "peer": 5}
    ]


def test_a_payload_field_does_not_change_how_flows_are_paired(tmp_path):
    build = TraceBuilder(REGIONS.replace("order:8", "occurrence:8"), 2)
    for i in range(3):
        build.span(0, "send", i, 1, peer=1, occurrence=9)
        build.span(1, "wait", i, 1, peer=0)
    assert len(build.trace().sql("SELECT * FROM flows")) == 3


def test_ranks_that_the_calibration_left_out_make_the_capture_unaligned(run):
    edit(run, lambda m: m["alignment"]["ranks"].pop())
    manifest = Capture.open(run).manifest
    assert not manifest.is_on_one_clock
    assert manifest.alignment_note == "the calibrations left out rank 1"


@pytest.mark.parametrize(
    "fields",
    [
        (Field("a b", 4, 0),),
        (Field("a", 4, 0), Field("A", 4, 4)),
        (Field("a", 20, 0), Field("b", 20, 0)),
        (Field("a", 20, 20),),
    ],
)
def test_a_table_with_strange_fields_cannot_be_made(fields):
    with pytest.raises(RegionError, match="payload fields of region 'r'"):
        RegionTable((Region(1, "r", fields=fields),))
    with pytest.raises(RegionError, match="need different names"):
        parse_regions('REGION(A, "a", compute, x:4, X:4)')


@pytest.mark.parametrize(
    "statement",
    [
        "COPY (SELECT 1) TO '{run}/rank-00000.parquet'", "COPY events TO '{run}/new.csv'",
        "SELECT 1; COPY (SELECT 1) TO '{run}/rank-00000.parquet'", "ATTACH '{run}/new.db'",
        "INSTALL httpfs", "SET enable_external_access = true", "CREATE TABLE t AS SELECT 1",
        "DROP VIEW events", "EXPORT DATABASE '{run}'", "PRAGMA database_list", "",
    ],
)  # fmt: skip
def test_a_query_is_one_select(run, statement):
    before = {file.name: file.read_bytes() for file in run.iterdir()}
    with pytest.raises(SelectionError, match="not one SELECT statement"):
        Trace.open(run).query(statement.format(run=run))
    assert {file.name: file.read_bytes() for file in run.iterdir()} == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "read_csv('/etc/passwd')",
        "read_text('{run}/manifest.json')",
        "glob('/*')",
        "'{run}/../secret.csv'",
        "secret",
    ],
)
def test_a_query_reads_nothing_but_the_capture(run, source):
    secret = pa.table({"a": [1]})
    (run.parent / "secret.csv").write_text("a\n1\n")
    with pytest.raises(SelectionError):
        Trace.open(run).query(f"SELECT * FROM {source.format(run=run)}")
    del secret


def test_no_statement_lifts_the_lock(run):
    with pytest.raises(KprofError, match="locked"):
        Trace.open(run).sql("SET enable_external_access = true")


@pytest.mark.parametrize("fault", ["pipe", "link", "columns", "numbers", "metadata"])
def test_a_summary_that_cannot_be_is_made_again(run, tmp_path, fault):
    path = write_summary(run, Capture.open(run).manifest.ranks[0], 2)
    assert stored_summaries(Capture.open(run)) == {0: path}
    table = pq.read_table(path)
    if fault == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif fault == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif fault == "columns":
        pq.write_table(table.drop_columns(["peer"]), path)
    elif fault == "metadata":
        pq.write_table(table.replace_schema_metadata({b"kprof_summary": b"[" * 10_000}), path)
    else:
        column = pa.array([2**62] * len(table), pa.int64())
        at = table.schema.get_field_index("total_ns")
        pq.write_table(table.set_column(at, "total_ns", column), path)
    assert stored_summaries(Capture.open(run)) == {}


def test_a_summary_that_contradicts_itself_is_not_believed(run):
    path = write_summary(run, Capture.open(run).manifest.ranks[0], 2)
    Summary.of(Trace.open(run))
    table = pq.read_table(path)
    pq.write_table(table.take([0] * len(table)), path)
    with pytest.raises(CorruptCaptureError, match=f"{path.name} .* delete the file"):
        Summary.of(Trace.open(run))


@pytest.mark.parametrize("chosen", [{}, {"blocks": 0}])
def test_times_whose_sum_is_too_large_are_damage(tmp_path, chosen):
    build = TraceBuilder('REGION(R_COPY, "copy", compute)', 1)
    for start_ns in range(1100):
        build.span(0, "copy", start_ns, 2**53)
    trace = Trace.open(build.write(tmp_path / "long.kprof")).select(**chosen)
    with pytest.raises(CorruptCaptureError, match=r"failed: Conversion Error.*; record again"):
        Summary.of(trace)


def test_ranks_that_a_manifest_only_claims_cost_nothing(run):
    edit(run, lambda m: m.update(world_size=MAX_RANKS))
    trace = Trace.open(run)
    find(Summary.of(trace))
    assert flow_sums._Bounds.of(trace).between_ns.shape == (2, 2)


def test_the_readme_states_the_limits():
    text = (Path(__file__).parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")
    assert f"at most {MAX_RANKS:,} ranks, {MAX_REGION_ID:,} regions a rank" in text
    assert checks.MAX_ROWS_PER_RANK == 1 << 40
    assert "2^40 events a rank" in text
    assert f"{checks.MAX_ROWS_PER_BYTE} events per\n  byte" in text


STRANGE = {
    "no span ended": {"flags": 1, "duration_ns": 0},
    "all durations are 0": {"duration_ns": 0},
    "one moment": {"start_ns": 1000, "duration_ns": 0},
    "as late as may be": {"start_ns": (1 << 62) - 1},
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_seeds(tmp_path_factory.mktemp("seeds"))


def strange(sound: Path, folder: Path, values: dict[str, int]) -> Path:
    run = Path(shutil.copytree(sound, folder / "run.kprof"))
    for path in run.glob("rank-*.parquet"):
        table = pq.read_table(path)
        for name, value in values.items():
            at = table.column_names.index(name)
            field = table.schema.field(at)
            table = table.set_column(at, field, pa.array(np.full(len(table), value), field.type))
        pq.write_table(table, path)
    for path in run.glob("summary-*"):
        path.unlink()
    remove_checksums(run)
    return run


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("name", STRANGE)
def test_every_reader_copes(sound: list[Path], tmp_path: Path, name: str, number: int) -> None:
    run = strange(sound[number], tmp_path, STRANGE[name])
    trace = Trace.open(run)
    assert report.build(trace)
    assert report.build(trace.select(regions="*wait*"))
    write(trace, tmp_path / "trace.pftrace")
    write(trace, tmp_path / "trace.json")
    assert cli(["diff", str(run), str(run)]) in (0, 3)
    assert (tmp_path / "trace.pftrace").stat().st_size > 0
