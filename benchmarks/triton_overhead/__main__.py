"""What recording costs in Triton, on one GPU: kprof beside its C++ probe, Proton, and
Triton-distributed's scheme.

    python -m benchmarks.triton_overhead [--repeats 40] [--json FILE] [--no-proton]

The copy is that of benchmarks.probe_overhead, 8192 rows of 14 KiB with an event each. The matmul is
4096^3 in fp16 with two events a program. Schemes are interleaved within every repeat and timed by
events on the GPU. Proton works on the host around each launch: its kernel is timed alone, by CUPTI,
after the others. Takes two minutes, without Proton one.
"""

from __future__ import annotations

import traceback
from functools import partial

import torch
import triton

from benchmarks import harness
from benchmarks.harness import interleaved, slowdowns
from benchmarks.probe_overhead.bench import NUM_TOKENS, Bench
from benchmarks.probe_overhead.bench import SCHEMES as CPP_SCHEMES
from benchmarks.triton_overhead.bench import (
    MATMUL_SIZE,
    SCHEMES,
    TILE,
    TritonBench,
    proton_scheme,
    records_of_distributed,
    records_of_kprof,
)

PROGRAMS_PER_SM = (2, 4)
CPP = {
    "C++, none": "none",
    "C++, kprof per warp": "kprof per warp",
    "C++, kprof per block": "kprof per block",
}


def copy_table(
    cpp: Bench, bench: TritonBench, programs_per_sm: int, repeats: int
) -> dict[str, object]:
    """Slowdowns of the copy; the C++ probe's against the C++ copy, Triton's against Triton's."""
    num_programs = programs_per_sm * bench.num_sms
    works = {name: partial(bench.copy, scheme, num_programs) for name, scheme in SCHEMES.items()}
    for name, scheme_name in CPP.items():
        works[name] = partial(cpp.copy, CPP_SCHEMES[scheme_name], programs_per_sm)
    times = interleaved(works, repeats, bench.reset)
    of_triton = slowdowns({name: times[name] for name in SCHEMES})
    of_cpp = slowdowns({name: times[name] for name in CPP}, base="C++, none")
    assert torch.equal(bench.source, bench.target)
    return of_triton | of_cpp


def matmul_table(bench: TritonBench, repeats: int) -> dict[str, object]:
    """Slowdowns of the matmul."""
    works = {name: partial(bench.matmul, scheme) for name, scheme in SCHEMES.items()}
    table = slowdowns(interleaved(works, repeats, bench.reset))
    torch.testing.assert_close(bench.c, bench.a @ bench.b, atol=0.05, rtol=0.02)
    return table


def records_table(bench: TritonBench, programs_per_sm: int) -> dict[str, object]:
    """What one launch of each kernel left: every row once, and nothing lost?"""
    num_programs = programs_per_sm * bench.num_sms
    num_tiles = MATMUL_SIZE**2 // (TILE["M"] * TILE["N"])
    table: dict[str, object] = {"rows": NUM_TOKENS, "tiles": num_tiles}
    for name in ("kprof", "kprof, no chunk reserved", "kprof, without at_most"):
        bench.reset()
        table[f"copy, {name}"] = records_of_kprof(bench, bench.copy(SCHEMES[name], num_programs))
    bench.reset()
    table["matmul, kprof"] = records_of_kprof(bench, bench.matmul(SCHEMES["kprof"]))
    scheme = SCHEMES["Triton-distributed's scheme"]
    for name, launch, num_records in (
        ("copy", bench.copy(scheme, num_programs), 2 * NUM_TOKENS),
        ("matmul", bench.matmul(scheme), 4 * num_tiles),
    ):
        bench.reset()
        table[f"{name}, Triton-distributed's scheme"] = records_of_distributed(
            bench, launch, num_records
        )
    return table


def proton_tables(bench: TritonBench, num_programs: int, repeats: int) -> dict[str, object]:
    """Both kernels with Proton. It is not ours: where it fails, the table says how."""
    num_tiles = MATMUL_SIZE**2 // (TILE["M"] * TILE["N"])
    plain, recorded = SCHEMES["none"], proton_scheme()
    tables: dict[str, object] = {}
    try:
        from benchmarks.triton_overhead.proton import enable, proton_table

        enable()
        tables["copy with Proton"] = proton_table(
            "copy",
            bench.copy(plain, num_programs),
            bench.copy(recorded, num_programs),
            {"row": NUM_TOKENS},
            repeats,
        )
        tables["matmul with Proton"] = proton_table(
            "matmul",
            bench.matmul(plain),
            bench.matmul(recorded),
            {"tile": num_tiles, "stored": num_tiles},
            repeats,
        )
    except Exception:
        tables["Proton failed"] = traceback.format_exc(limit=3)
    return tables


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--no-proton", action="store_true", help="leave Proton out")
    arguments = parser.parse_args()
    cpp = Bench("cuda:0")
    bench = TritonBench("cuda:0", cpp.arena)
    result: dict[str, object] = {
        **harness.context(
            f"python -m benchmarks.triton_overhead --repeats {arguments.repeats}"
            + " --no-proton" * arguments.no_proton,
            bench.device,
        ),
        "triton": triton.__version__,
    }
    for programs_per_sm in PROGRAMS_PER_SM:
        name = f"copy, {programs_per_sm} programs per SM"
        result[name] = copy_table(cpp, bench, programs_per_sm, arguments.repeats)
    result["matmul"] = matmul_table(bench, arguments.repeats)
    result["records"] = records_table(bench, PROGRAMS_PER_SM[0])
    num_programs = PROGRAMS_PER_SM[0] * bench.num_sms
    if not arguments.no_proton:
        result |= proton_tables(bench, num_programs, arguments.repeats)
    harness.show_and_write(result, arguments.output)


if __name__ == "__main__":
    main()
