"""The CPU target under the compilers' sanitizers: the same kernels, every fiber known to the tool.

ThreadSanitizer sees each fiber as a thread, ordered only by barriers and fences, so a missing release or acquire is a
reported race although x86 would never show it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kprof.devices.targets import Target, find_compiler

pytestmark = [pytest.mark.native, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
RACE_EXIT_CODE = 66

ALL_TO_ALLS = """
import sys
from ranks import Run, run_ranks
from instrumented_kernels.all_to_all import Problem
variants, *broken = sys.argv[1:]
wrong = 0
for variant in variants.split():
    run = Run(Problem(8, 3, 40, 6), 2, variant, num_calls=4, grid=3, warps_per_block=1, broken=tuple(broken))
    wrong += sum(result.num_wrong for result in run_ranks(run))
print("wrong values:", wrong)
"""

ALL_REDUCES = """
import sys
from reductions import VARIANTS, Call, Setting, run_calls
variants = [name for name in VARIANTS if name in sys.argv[1:]] or VARIANTS
setting = Setting(2, broken=tuple(name for name in sys.argv[1:] if name not in VARIANTS))
wrong = sum(sum(run_calls(setting, [Call(300, variant=variant)] * 4)) for variant in variants)
print("wrong values:", wrong)
"""


SINGLE_GPU = """
import sys
import torch
from changed_kernels import breaking
from single_gpu import cpu_options
from instrumented_kernels import moe_align_sort, rms_norm_fp8, skinny_gemm, swiglu_fp8
options = cpu_options(32)
gemm = breaking(skinny_gemm.Plan, *sys.argv[1:])(options=options)
x, w = torch.randn(3, 1040).to(gemm.fp8), torch.randn(20, 1040).to(gemm.fp8)
roles = skinny_gemm.Roles(2, 2, 2)
out = gemm(x, w, variant="specialised", roles=roles).double()
wrong = int(((out - x.double() @ w.double().t()).abs() > 0.5).sum())
if len(sys.argv) == 1:
    ids = torch.randint(0, 20, (200, 4), dtype=torch.int32)
    sort = moe_align_sort.Plan(options=options)
    for variant in ("single_block", "dcp", "chained"):
        for got, right in zip(sort(ids, 20, 8, variant=variant), moe_align_sort.reference(ids, 20, 8)):
            wrong += int((got != right).sum())
    rows = torch.randn(3, 600).half()
    rms_norm_fp8.Plan(options=options)(rows, rows, rows[0].contiguous(), 1.0)
    swiglu_fp8.Plan(options=options)(rows, 1.0)
print("wrong values:", wrong)
"""


def runtime(*names: str) -> str:
    """Paths of the sanitizer runtimes for LD_PRELOAD: Python itself is not instrumented."""
    compiler = find_compiler(Target.CPU)
    if compiler is None:
        pytest.skip("no C++ compiler")
    paths = []
    for name in names:
        command = [compiler.path, f"-print-file-name={name}"]
        path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        if not Path(path).is_absolute():
            pytest.skip(f"{compiler.path} has no {name}")
        paths.append(path)
    return " ".join(paths)


def sanitized(
    sanitizers: str, preload: str, options: dict[str, str], arguments: list[str]
) -> subprocess.CompletedProcess[str]:
    python_path = os.pathsep.join(
        str(ROOT / each) for each in ("", "tests/kernels", "tests/support")
    )
    environment = (
        os.environ
        | {"KPROF_SANITIZE": sanitizers, "LD_PRELOAD": preload, "PYTHONPATH": python_path}
        | options
    )
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


# What runs every variant of every kernel, at both warp widths: of these files the tests that amd-test selects as well, for they
# run code of devices. The other files are about clocks and planted faults. One process for each line, and of each test a third
# of the cases; `make soak` runs all.
KERNEL_TESTS = [
    ("test_skinny_gemm.py",),
    ("test_all_reduce.py",),
    ("test_all_to_all.py", "test_profile.py"),
    ("test_moe_align_sort.py", "test_fp8_rows.py"),
]
# Of other values at the addresses that other tests have.
OF_VALUES_ALONE = [
    "test_every_value_of_fp8",
    "test_numbers_that_are_none",
    "test_too_large_for_fp16_is_infinite",
    "test_values_that_are_no_numbers",
    "test_negative_zeros_keep_their_sign",
    "test_what_is_too_large_or_too_small_or_no_number",
]
PYTEST = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "amd"]
PYTEST += ["-k", f"not ({' or '.join(OF_VALUES_ALONE)})"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("files", KERNEL_TESTS, ids=" ".join)
def test_kernel_tests_pass_under_address_and_undefined_behaviour_sanitizer(
    files: tuple[str, ...],
) -> None:
    result = sanitized(
        "address,undefined",
        runtime("libasan.so", "libubsan.so"),
        {
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "KPROF_TEST_EVERY": os.environ.get("KPROF_TEST_EVERY", "3"),
        },
        [*PYTEST, *(f"tests/kernels/{name}" for name in files)],
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert "runtime error" not in result.stderr + result.stdout


# Each program in a fork of a process that has imported torch, which takes longer than most of them. Without DuckDB: its
# allocator's locks are no longer what ThreadSanitizer knows of them where a process forks that is a fork.
FORKS = """
import os, sys
import ranks, reductions
assert "duckdb" not in sys.modules
for program, *arguments in eval(sys.argv[1]):
    if (child := os.fork()) == 0:
        sys.argv[1:] = arguments
        exec(program)
        sys.exit()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print("exit code:", code, file=sys.stderr, flush=True)
"""


def thread_sanitized(*runs: tuple[str, ...]) -> tuple[list[tuple[str, int]], str]:
    """Of each program with its arguments what it wrote to stderr, and its exit code; and what all wrote to stdout."""
    # Its detector of deadlocks gives up where a thread holds 64 locks, as DuckDB's allocator does when Python forks.
    options = {"TSAN_OPTIONS": f"exitcode={RACE_EXIT_CODE} detect_deadlocks=0"}
    result = sanitized("thread", runtime("libtsan.so"), options, ["-c", FORKS, repr(runs)])
    said = re.findall(r"(.*?)exit code: (-?\d+)\n", result.stderr, flags=re.DOTALL)
    assert result.returncode == 0, result.stderr[-3000:]
    assert len(said) == len(runs)
    return [(errors, int(code)) for errors, code in said], result.stdout


def test_no_kernel_has_a_race() -> None:
    """Packets need no fence: data and flag are one access, so that without any there is nothing that could race."""
    runs, printed = thread_sanitized(
        (ALL_TO_ALLS, "rank_flags token_flags fused balanced pipelined"),
        (ALL_REDUCES,),
        (ALL_REDUCES, "release", "acquire", "oneshot", "twoshot_packets"),
        (SINGLE_GPU,),
    )
    for errors, code in runs:
        assert code == 0, errors[:3000]
    assert printed.count("wrong values: 0\n") == len(runs)


def test_a_fence_or_sync_that_is_missing_is_a_race() -> None:
    """The last one: a release by lane 0 does not cover what the other lanes have stored."""
    planted = {
        (ALL_TO_ALLS, "token_flags", "release"): "rows::",
        (ALL_TO_ALLS, "pipelined", "acquire"): "rows::",
        (ALL_REDUCES, "release", "oneshot_lock"): "all_reduce::",
        (ALL_REDUCES, "acquire", "twoshot"): "all_reduce::",
        (SINGLE_GPU, "warp sync"): "skinny_gemm::",
    }
    runs, _ = thread_sanitized(*planted)
    for run, where, (errors, code) in zip(planted, planted.values(), runs, strict=True):
        assert code == RACE_EXIT_CODE, run[1:]
        assert "ThreadSanitizer: data race" in errors, run[1:]
        assert where in errors, run[1:]
