"""The command lines of the kernels for one GPU: what they refuse, and that no option is ignored."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from typer.testing import CliRunner

from instrumented_kernels.skinny_gemm import Plan, Roles

GEMM = "skinny_gemm --rows 64 --depth 512 --repeats 1 --target cpu"


def run(line: str) -> Any:
    name, *arguments = line.split()
    module = importlib.import_module(f"instrumented_kernels.{name}.__main__")
    return CliRunner().invoke(module.app, arguments)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("moe_align_sort --experts 0", "moe_align_sort: 0 experts: give 1 to 1024"),
        ("moe_align_sort --experts -3", "moe_align_sort: -3 experts: give 1 to 1024"),
        ("rms_norm_fp8 --rows -1", "rms_norm_fp8: -1 rows of 16384: give 0 or more rows"),
        ("swiglu_fp8 --columns 0", "swiglu_fp8: 64 rows of 0: give 0 or more rows of 1 or more"),
        ("skinny_gemm --depth 0", "skinny_gemm: 8 x 2304 x 0: give 1 or more of each"),
        (f"{GEMM} --variant specialised --slots 99", "skinny_gemm: a queue of 99 slots"),
        (f"{GEMM} --consumers 4", "skinny_gemm: direct has no roles; they are for specialised"),
        (f"{GEMM} --consumers 4 --tokens 40", "skinny_gemm: 40 tokens: a skinny GEMM has up to"),
    ],
)
def test_bad_options_end_in_one_line(line: str, sentence: str) -> None:
    result = run(f"{line} --target cpu")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(sentence)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "roles"),
    [
        ("", None),
        ("--consumers 4", Roles(2, 4, 2)),
        ("--slots 3", Roles(2, 1, 3)),
        ("--token-producers 2", Roles(2, 1, 2, 2)),
        ("--producers 3 --slots 4", Roles(3, 1, 4)),
    ],
)
def test_options_of_roles_work_alone(
    options: str, roles: Roles | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    call = Plan.__call__

    def noted(self: Plan, *arguments: Any, **how: Any) -> Any:
        found.append(how["roles"])
        return call(self, *arguments, **how)

    monkeypatch.setattr(Plan, "__call__", noted)
    assert run(f"{GEMM} --variant specialised {options}").exit_code == 0
    assert set(found) == {roles}
