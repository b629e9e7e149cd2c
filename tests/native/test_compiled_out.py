"""What runs when nobody records: kernels that are compiled without kprof are those that never heard of it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from device_code import build_device_code

from kept_sources import kept_files
from kprof.devices.build import BuildOptions
from kprof.devices.targets import Target
from machine_code import disassemble, linked_device_code, require

pytestmark = pytest.mark.native

KERNELS = Path(__file__).parents[2] / "instrumented_kernels"
DEVICE_DIR = KERNELS / "device"
# Kernels in their device code.
OF_RANKS = {"all_reduce": 21, "all_to_all": 18}
OF_ONE_GPU = {"moe_align_sort": 11, "rms_norm_fp8": 18, "swiglu_fp8": 8, "skinny_gemm": 26}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*OF_RANKS, *OF_ONE_GPU])
@pytest.mark.parametrize("target", [Target.HIP, Target.CUDA])
def test_compiled_out_is_the_code_of_a_kernel_without_kprof(target: Target, name: str) -> None:
    require(target)
    source = KERNELS / name / "kernel.hip"
    # What those of one GPU are compiled for on a Hopper GPU, and other tests, too.
    is_sm_90a = target is Target.CUDA and name in OF_ONE_GPU
    recorded = BuildOptions(
        target, "sm_90a" if is_sm_90a else "", include_dirs=(DEVICE_DIR,), sanitizers=()
    )
    off = replace(recorded, defines=(("KPROF_ENABLED", "0"),))
    plain = build_device_code(uninstrumented(source), replace(recorded, include_dirs=()))
    expected = sorted(disassemble(plain, target).values())
    assert len(expected) >= (OF_RANKS | OF_ONE_GPU)[name]
    assert sorted(disassemble(build_device_code(source, off), target).values()) == expected
    build = build_device_code if is_sm_90a else linked_device_code
    assert sorted(disassemble(build(source, recorded), target).values()) != expected


def uninstrumented(source: Path) -> Path:
    """Kept: what is compiled of it serves in the next run."""
    has_phases = source.parent.name == "all_reduce"
    return kept_files(
        {
            file.name: without_kprof(without_phase_spans(text) if has_phases else text)
            for file in [source, *DEVICE_DIR.glob("*.h"), *source.parent.glob("*.h")]
            if file.name != "packet_spans.h" and (text := file.read_text())
        }
    )


def without_phase_spans(source: str) -> str:
    """The all-reduce without spans in its arguments, and without what packet_spans.h records of its kernels in packets."""
    source = source.replace(", span, track)", ")")
    source = re.sub(r",\s*kprof::Span& span,\s*kprof::Track& track", "", source)
    source = source.replace('#include "packet_spans.h"\n', "")
    statement = (
        r"\n *const (Moment|kprof::(Short|Early)Track) \w+ = "
        r"(clock_now|open_records|ask_for_records|(spans|results)\.write_made)\([^;]*;"
    )
    source = re.sub(statement, "", source)
    source = source.replace("[[maybe_unused]] const uint32_t missing_before = missing;", "")
    source = re.sub(r"\n *(PhaseSpans<|(spans|sums|results)\.|close_records\().*;", "", source)
    source = source.replace(" typename Spans,", "").replace(" Spans& spans,", "")
    return re.sub(r" (spans|sums|results),", "", source)


def without_kprof(source: str) -> str:
    """The kernel as it would be had its author never heard of kprof."""
    if "namespace block_laps" in source:
        return ""  # which does nothing else than record
    recording = r"(?:\n//[^\n]*)*\nKPROF_DEVICE void record_\w+\(.*?\n}\n"
    source = re.sub(recording, "", source, flags=re.DOTALL)
    source = re.sub(r"\n *record_\w+\([^;]*;", "", source)
    source = re.sub(r"\n *const kprof::ShortTrack \w+ = [^;]*;", "", source)
    source = source.replace("#include <kprof/short_track.h>\n", "")
    source = re.sub(r"\n[^\n]*\b(?:block_laps|laps)\b[^\n]*;", "", source)
    source = source.replace('#include "block_laps.h"\n', "")
    statement = (
        r"\n *(?:if \([^\n]*?\)\s+)?(?:(?:const )?kprof::(?:Span|Track) \w+ = |span = )?"
        r"(?:kprof::)?(?:profile_\w+|open_track)\([^;]*;(?: +\\(?=\n))?"
    )
    source = re.sub(statement, "", source)
    late = r"\n *(?:kprof::LateWait late|late\.\w+)\([^\n]*;"
    source = re.sub(late, "", source).replace("  kprof::Buffer prof{};\n", "")
    source = re.sub(r"\n *KPROF_DEVICE kprof::WaitFor with.*?\n  }", "", source, flags=re.DOTALL)
    source = source.replace("#include <kprof/late_wait.h>", "#include <kprof/platform.h>")
    source = re.sub(r",\s*kprof::Track& track", "", source)
    source = re.sub(r",\s*track(?=[),])", "", source)
    source = re.sub(r"struct Profiled .*?\n};", "using Profiled = Call;", source, flags=re.DOTALL)
    source = re.sub(r", kprof::make_buffer\((\*[\w>-]+|kprof::LaunchBuffer\{\})\)", "", source)
    source = re.sub(r"using kprof::(payload|profile_\w+);\n", "", source)
    source = source.replace("#include <kprof/kprof.h>", "#include <kprof/platform.h>")
    assert "profile_" not in source.split("*/")[-1].replace("profiled", "")
    assert "track" not in re.sub(r"//.*", "", source)
    return source
