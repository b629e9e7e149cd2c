"""Rates of regions, links and processors against the ceilings that were measured, on paper."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest

from kprof import analysis
from kprof.analysis import Summary
from kprof.capture.manifest import Ceilings
from kprof.recording.rank import ceilings
from kprof.report import build, render_terminal
from kprof.trace import Trace
from kprof_cli.main import run
from synthetic import TraceBuilder, with_rank_fields

BYTES = """
REGION(R_PUT, "put", send, peer:8, bytes:24)
REGION(R_COPY, "copy", compute, bytes:32)
"""
FLOPS = BYTES + 'REGION(R_GEMM, "gemm", compute, flops:32)'


def exchange(regions: str, measured: Ceilings | None) -> Trace:
    """Rank 0 puts 3,000 bytes to rank 1 in 30 ns of two blocks, and copies 1,000 in 100."""
    build = TraceBuilder(regions, num_ranks=2)
    build.span(0, "put", 0, 20, block=0, peer=1, bytes=2000)
    build.span(0, "put", 10, 20, block=1, peer=1, bytes=1000)
    build.span(0, "copy", 30, 100, block=1, bytes=1000)
    if "gemm" in regions:
        build.span(1, "gemm", 0, 50, block=2, flops=4000)
    return build.trace({"ceilings": measured, "num_processors": 4})


@pytest.mark.parametrize("regions", [BYTES, FLOPS], ids=["summaries", "events"])
def test_regions_are_compared_with_a_copy_to_a_peer_or_within(regions: str) -> None:
    """A measurement wins over the data sheet."""
    trace = exchange(regions, Ceilings(copy_gb_s=400.0, peer_gb_s=200.0))
    summary = Summary.of(with_rank_fields(trace, device="NVIDIA H200"))
    rows = analysis.achieved_by_region(summary).set_index("region").to_dict("index")
    put, copy = rows["put"], rows["copy"]
    assert (put["bytes"], put["busy_ns"], put["gb_s"]) == (3000, 30, 100.0)
    assert (put["ceiling_gb_s"], put["ceiling_share"]) == (200.0, 0.5)
    assert (copy["gb_s"], copy["ceiling_gb_s"], copy["ceiling_share"]) == (10.0, 400.0, 0.025)


def test_a_warm_up_has_no_part_in_rates() -> None:
    build = TraceBuilder(BYTES, num_ranks=1)
    for call in range(6):
        build.launch(call + 1, "kernel", num_blocks=1)
        build.span(0, "copy", 100_000 * call, 50_000 if call == 0 else 100, launch=call + 1, block=0, bytes=1000)  # fmt: skip
    (row,) = analysis.achieved_by_region(Summary.of(build.trace())).to_dict("records")
    assert (row["bytes"], row["busy_ns"], row["gb_s"]) == (5000, 500, 10.0)


def test_operations_have_a_rate() -> None:
    table = analysis.achieved_by_region(Summary.of(exchange(FLOPS, None)))
    (row,) = table[table["region"] == "gemm"].to_dict("records")
    assert (row["rank"], row["flops"], row["bytes"], row["gflop_s"]) == (1, 4000, 0, 80.0)
    assert math.isnan(row["ceiling_share"])


def test_links_and_processors() -> None:
    summary = Summary.of(exchange(BYTES, Ceilings(copy_gb_s=400.0, peer_gb_s=200.0)))
    (link,) = analysis.achieved_by_link(summary).to_dict("records")
    assert (link["rank"], link["peer"], link["gb_s"], link["ceiling_share"]) == (0, 1, 100.0, 0.5)
    processors = analysis.achieved_by_processor(summary)
    assert processors["hw_id"].tolist() == [0, 1]
    assert processors["gb_s"].tolist() == [100.0, 2000 / 120]
    # A quarter of the device: it has four processors.
    assert processors["ceiling_share"].tolist() == [1.0, 2000 / 120 / 100]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "copy_gb_s", "peer_gb_s"),
    [
        ("NVIDIA H200", 2400.0, 450.0),
        ("NVIDIA H200 NVL", 2400.0, 450.0),
        ("NVIDIA H100 PCIe", 1000.0, math.nan),
        ("NVIDIA H2000", math.nan, math.nan),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", math.nan, math.nan),
        ("AMD Instinct MI300X", 2650.0, 64.0),
    ],
)
def test_without_a_measurement_ceilings_are_those_of_the_data_sheet(
    device: str, copy_gb_s: float, peer_gb_s: float
) -> None:
    trace = exchange(BYTES, None)
    rows = analysis.achieved_by_region(Summary.of(with_rank_fields(trace, device=device)))
    ceilings = rows.set_index("region")["ceiling_gb_s"]
    assert ceilings["copy"] == pytest.approx(copy_gb_s, nan_ok=True)
    assert ceilings["put"] == pytest.approx(peer_gb_s, nan_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [
        (96_000, "copy reaches 40 % of a copy's speed"),
        (192_000, "copy reaches 80 % of a copy's speed: near the device's limit"),
        (0, "copy counts no bytes to compare with the device's limit"),
    ],
)
def test_a_kernel_that_only_works_is_compared_with_its_device(num_bytes: int, words: str) -> None:
    build = TraceBuilder(BYTES, num_ranks=1)
    build.span(0, "copy", 0, 100, block=0, bytes=num_bytes)
    found = analysis.find(Summary.of(build.trace({"device": "NVIDIA H200"})))
    assert found.headline == f"Nothing stands out: blocks do useful work 100 % of the time; {words}"


@pytest.mark.slow
@pytest.mark.parametrize("measured", [None, Ceilings(copy_gb_s=400.0, peer_gb_s=200.0)])
def test_the_report_shows_them(measured: Ceilings | None) -> None:
    from rich.console import Console

    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render_terminal(build(exchange(BYTES, measured))))
    text = console.export_text()
    assert "Rates" in text
    assert ("50 %" in text) == (measured is not None)
    assert ("kprof doctor --measure" in text) == (measured is None)


def test_what_is_measured_is_kept_for_the_same_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KPROF_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(ceilings, "_FAR_BYTES", 1 << 16)
    monkeypatch.setattr(ceilings, "_NEAR_COPIES", 1)
    monkeypatch.setattr(ceilings, "_count_gpus", lambda: 0)
    assert ceilings.kept_ceilings("cpu") is None
    assert run(["doctor", "--measure"]) == 0
    assert "GB/s" in capsys.readouterr().out
    kept = ceilings.kept_ceilings("cpu")
    assert kept is not None
    assert min(kept.copy_gb_s, kept.near_gb_s) > 0
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    assert ceilings.kept_ceilings("cpu") is None


def test_a_damaged_file_is_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KPROF_CACHE_DIR", str(tmp_path))
    (tmp_path / "ceilings.json").write_text("{")
    assert ceilings.kept_ceilings("cpu") is None
