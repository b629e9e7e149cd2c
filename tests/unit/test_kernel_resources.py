"""What kernels take: from a compiler's lines to the recording, its report and `kprof info`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

import kprof
from kprof import analysis
from kprof import report as reports
from kprof.analysis.summary import Summary
from kprof.capture.manifest import KernelResources
from kprof.devices import resources
from kprof.devices.resources import Resources
from kprof.report.page import to_html
from kprof.trace import Trace
from synthetic import TraceBuilder, with_rank_fields, with_ranks

PTXAS = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN3own4recvILi2EEEvPf' for 'sm_90a'
ptxas info    : Function properties for _ZN3own4recvILi2EEEvPf
    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 8 bytes cumulative stack size, 4096 bytes smem, 360 bytes cmem[0]
ptxas info    : Compile time = 2.061 ms
ptxas info    : Compiling entry function 'send' for 'sm_90a'
ptxas info    : Function properties for send
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
"""
CLANG = """
k.hip:5:1: remark: Function Name: _ZN12_GLOBAL__N_14recvEPii [-Rpass-analysis=kernel-resource-usage]
    5 | __global__ void recv(int* p, int n) {
k.hip:5:1: remark:     SGPRs: 11 [-Rpass-analysis=kernel-resource-usage]
k.hip:5:1: remark:     VGPRs: 125 [-Rpass-analysis=kernel-resource-usage]
k.hip:5:1: remark:     AGPRs: AGPRS [-Rpass-analysis=kernel-resource-usage]
k.hip:5:1: remark:     ScratchSize [bytes/lane]: 20 [-Rpass-analysis=kernel-resource-usage]
k.hip:5:1: remark:     Occupancy [waves/SIMD]: 2 [-Rpass-analysis=kernel-resource-usage]
k.hip:5:1: remark:     SGPRs Spill: 0 [-Rpass-analysis=kernel-resource-usage]
k.hip:5:1: remark:     VGPRs Spill: 3 [-Rpass-analysis=kernel-resource-usage]
k.hip:5:1: remark:     LDS Size [bytes/block]: 1024 [-Rpass-analysis=kernel-resource-usage]
"""


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_known", {})


def test_lines_of_compilers_become_numbers() -> None:
    assert resources.said_of_kernels(PTXAS) == {
        "_ZN3own4recvILi2EEEvPf": Resources(64, 12, 4096),
        "send": Resources(12, 0, 0),
    }
    symbol = "_ZN12_GLOBAL__N_14recvEPii"
    assert resources.said_of_kernels(CLANG.replace("AGPRS", "0")) == {
        symbol: Resources(125, 12, 1024)
    }
    # The accumulation registers of gfx90a and gfx942 are the same file, behind a multiple of four.
    assert resources.said_of_kernels(CLANG.replace("AGPRS", "7")) == {
        symbol: Resources(135, 12, 1024)
    }
    assert resources.said_of_kernels("warning: nothing of kernels\n") == {}
    assert resources.said_of_kernels(CLANG.partition("AGPRs")[0]) == {}


@pytest.mark.parametrize(
    "symbol",
    [
        *("recv", "_Z4recvPii", "_Z4recv5Thing", "_ZL4recvPi", "_Z4recvILi2EEvv"),
        *("_ZN3own4recvILi2EEEvPf", "_ZN12_GLOBAL__N_14recvEPii", "_ZN12_GLOBAL__N_1L4recvEv"),
    ],
)
def test_launches_have_the_name_of_the_function_at_their_end(symbol: str) -> None:
    resources.note(symbol, Resources(64, 0, 0))
    for name in ("recv", "exchange/recv"):
        assert resources.of_launches(name) == [Resources(64, 0, 0)]
    for name in ("send", "recv/send", "4recv", "own", ""):
        assert resources.of_launches(name) == []


def test_versions_of_a_kernel_are_told_once_each() -> None:
    for registers in (64, 48, 64):
        resources.note("_Z4recvILi1EEvv", Resources(registers, 0, 0))
    assert resources.of_launches("recv") == [Resources(48, 0, 0), Resources(64, 0, 0)]


def test_a_recording_has_what_the_kernels_of_its_launches_take(tmp_path: Path) -> None:
    resources.note("_Z4recvPii", Resources(64, 12, 4096))
    resources.note("_Z5otherPii", Resources(32, 0, 0))
    with kprof.session(tmp_path / "run.kprof") as recorder:
        for name in ("exchange/recv", "exchange/send", "exchange/recv"):
            recorder.launch(name, num_blocks=1, threads_per_block=128)
    (info,) = kprof.open(tmp_path / "run.kprof").ranks
    assert info.kernels == (KernelResources("exchange/recv", 64, 12, 4096),)


def recorded(arch: str, threads: int, kernel: KernelResources) -> Trace:
    """Two ranks that launch a kernel."""
    build = TraceBuilder('REGION(R_STEP, "step", compute)', 2)
    for rank in range(2):
        build.span(rank, "step", 0, 100)
    trace = build.trace()
    infos = [
        replace(
            info,
            arch=arch,
            launches=tuple(replace(row, threads_per_block=threads) for row in info.launches),
            kernels=(kernel,),
        )
        for info in trace.manifest.ranks
    ]
    return with_ranks(trace, infos)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "threads", "taken", "blocks", "occupancy", "limited_by"),
    [
        ("sm_90", 256, (64, 0, 4096), 4, 0.5, "registers"),
        ("sm_90", 32, (16, 0, 0), 32, 0.5, "blocks"),
        ("sm_90", 1024, (32, 0, 0), 2, 1.0, "threads"),
        ("sm_90", 128, (32, 0, 100_000), 2, 0.125, "shared memory"),
        ("gfx942:sramecc+:xnack-", 256, (128, 0, 0), 4, 0.5, "registers"),
        ("gfx942", 64, (24, 0, 0), 32, 1.0, "threads"),
    ],
)
def test_occupancy_is_what_the_tightest_limit_leaves(
    arch: str,
    threads: int,
    taken: tuple[int, int, int],
    blocks: int,
    occupancy: float,
    limited_by: str,
) -> None:
    trace = recorded(arch, threads, KernelResources("kernel", *taken))
    (row,) = analysis.all_metrics()["compiled"](Summary.of(trace)).to_dict("records")
    assert (row["registers"], row["spill_bytes"], row["shared_bytes"]) == taken
    assert (row["blocks_at_most"], row["occupancy_at_most"]) == (blocks, occupancy)
    assert row["limited_by"] == limited_by


def texts(report: reports.Report) -> list[str]:
    """As a page and in a terminal."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=160)
    console.print(reports.render_terminal(report))
    return [to_html(report), console.file.getvalue()]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("arch", "threads"), [("sm_90", 0), ("sm_75", 256), ("", 256)])
def test_what_is_unknown_is_empty(arch: str, threads: int) -> None:
    report = reports.build(recorded(arch, threads, KernelResources("kernel", 64, 12, 4096)))
    (row,) = json.loads(reports.to_json(report))["tables"]["compiled"]
    assert [row[name] for name in ("blocks_at_most", "occupancy_at_most", "limited_by")] == [
        None
    ] * 3
    for text in texts(report):
        assert "What kernels take" in text
        assert "nan" not in text.lower().replace("nanosecond", "")


@pytest.mark.slow
def test_all_forms_of_the_report_have_them_and_none_where_nobody_said_anything() -> None:
    report = reports.build(recorded("sm_90", 256, KernelResources("kernel", 64, 12, 4096)))
    for text in texts(report):
        assert "What kernels take" in text
        assert "4,096" in text
        assert "50 %" in text
    trace = recorded("sm_90", 256, KernelResources("kernel", 64, 12, 4096))
    for text in texts(reports.build(with_rank_fields(trace, kernels=()))):
        assert "What kernels take" not in text


def test_triton_says_how_many_threads_a_block_has() -> None:
    trace = recorded("sm_90", 0, KernelResources("kernel", 64, 0, 0, threads=128))
    (row,) = analysis.all_metrics()["compiled"](Summary.of(trace)).to_dict("records")
    assert (row["threads"], row["blocks_at_most"]) == (128, 8)
