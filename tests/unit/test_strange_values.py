"""Captures whose values are allowed and unlike any recording: every reader ends with exit code 0 or a sentence."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import write_seeds

from kprof import report
from kprof.export import write
from kprof.trace import Trace
from kprof_cli.main import run as cli
from sealing import remove_checksums

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
