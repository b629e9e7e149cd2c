"""Delays cost nothing unless they are compiled in: the machine code is that of headers without a word about them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kept_sources import kept_files
from kprof.devices import build
from kprof.devices.targets import Target
from machine_code import count, disassemble, only_kernel, probe, require, require_arch

pytestmark = pytest.mark.native
ARCHS = {Target.CUDA: "sm_90", Target.HIP: "gfx942"}
CLOCK = {Target.CUDA: r"GLOBALTIMER", Target.HIP: r"s_memrealtime"}
BRANCHES = (
    r"#if KPROF_DELAYS\n(?:(?!#if|#endif)[^\n]*\n)*?(?:#else\n((?:(?!#endif)[^\n]*\n)*))?#endif\n"
)


def require_compiler(target: Target) -> None:
    require(target)
    if target is Target.HIP:
        require_arch(ARCHS[target])


def headers_without_delays() -> Path:
    include = build.include_dir()
    files = {str(path.relative_to(include)): path.read_text() for path in include.rglob("*.h")}
    text = re.sub(r"#ifndef KPROF_DELAYS\n.*?#endif\n", "", files["kprof/kprof.h"], flags=re.DOTALL)
    text = re.sub(BRANCHES, lambda found: found[1] or "", text)
    text = re.sub(r"\n[^\n]*delay_end\([^\n]*", "", text)
    assert "delay" not in text.split("#pragma once")[1]
    return kept_files(files | {"kprof/kprof.h": text}).parent


@pytest.mark.parametrize("target", [Target.HIP, Target.CUDA])
def test_without_delays_the_code_is_as_if_there_were_none(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_compiler(target)
    found = disassemble(probe(target, 1, arch=ARCHS[target]), target)
    include = headers_without_delays()
    monkeypatch.setattr(build, "include_dir", lambda: include)
    assert disassemble(probe(target, 1, arch=ARCHS[target]), target) == found


@pytest.mark.parametrize("target", [Target.HIP, Target.CUDA])
def test_with_delays_a_span_ends_with_a_loop_on_the_clock(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_compiler(target)
    plain = only_kernel(disassemble(probe(target, 1, arch=ARCHS[target]), target))
    monkeypatch.setenv(build.DELAYS_VARIABLE, "{}")
    delayed = only_kernel(disassemble(probe(target, 1, arch=ARCHS[target]), target))
    assert count(delayed, CLOCK[target]) >= count(plain, CLOCK[target]) + 2
