"""A span around each program of a kernel for NVIDIA that Triton has compiled: put into its PTX.

A kernel with a few more statements in its source is another kernel to LLVM. Where two products are
added, what stands around them decides which of them becomes part of an fma, and with it the last
bit of the sum. So the source stays as it is, and so does every instruction that is made of it. We
read the clock before the first one, and its first warp stores a record before each `ret`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import compiler
from triton.compiler.compiler import ASTSource, CompiledKernel, make_backend
from triton.knobs import NvidiaTool
from triton.language import constexpr, tensor
from triton.runtime.cache import get_cache_manager

from kprof import abi
from kprof.errors import RecorderError
from kprof.triton import platform
from kprof.triton.buffer import source_digest
from kprof.triton.programs import record_whole

_BEGIN: Final = "%kprof_began"
_NUM_WORDS: Final = 4
# Triton cuts the names of its files to so many characters.
_MAX_NAME: Final = 150
_NUM_FILES: Final = 3
_PTXAS_OF_TORCH: Final = Path(torch.__file__).parent / "bin" / "ptxas"
# What stands in front of the first instruction of a kernel's body.
_DECLARED: Final = re.compile(r"(?:\s*\.(?:reg|local|shared)\b[^\n]*\n|\s*\n)*")
_RET: Final = re.compile(r"^[ \t]*ret;[ \t]*(?://.*)?$", re.MULTILINE)
# Triton up to 3.6 passes the result of an atomic from lane 0 to the others through shared memory.
_BROADCAST: Final = re.compile(
    r"@%\w+ st\.shared\.b32 \[ %\w+ \+ 0 \], (%\w+);(.*?)"
    r"ld\.shared\.b32(\s+%\w+), \[global_smem\];",
    re.DOTALL,
)


@triton.jit
def _end(
    word_0: tensor,
    word_1: tensor,
    word_2: tensor,
    word_3: tensor,
    began: tensor,
    region: constexpr,
    bits: constexpr,
    build: constexpr,  # noqa: ARG001 (Triton compiles anew for another)
) -> None:
    now = platform.realtime_ticks()
    record_whole(word_0, word_1, word_2, word_3, began, now, region, bits)


# The span's region is the only one of its kernel.
_REGION: Final = 1


def compiled_with_span(
    plain: ASTSource,
    copy: ASTSource,
    target: GPUTarget,
    options: dict[str, Any],
    folder: str = "",
) -> CompiledKernel:
    """A kernel with a span around each of its programs, as if it were compiled from `copy`.

    `copy` takes four arguments more, at the end: those of a Buffer whose launch shares chunks. Its
    code is that of `plain`, from Triton's cache: from its `folder` there, where that is known.
    Raises RecorderError for a kernel whose code is not what we know, and what Triton raises.
    """
    kernel = _kept(plain, folder) or _compiled(plain, target, options)
    ptx = kernel.asm.get("ptx")
    if ptx is None:
        raise RecorderError("Triton keeps no PTX (TRITON_STORE_BINARY_ONLY)")
    text = with_span(ptx, end_for(target))
    # The first hash is also that of the options, and of ptxas.
    key = hashlib.sha256(f"{kernel.hash} {text}".encode()).hexdigest()
    files = get_cache_manager(key)
    name = copy.name[:_MAX_NAME]
    group = files.get_group(f"{name}.json") or {}
    # Triton up to 3.6 leaves out files that are lost.
    if len(group) < _NUM_FILES:
        # Triton warns of options that name no fusion, on the user's stderr.
        fusion = {"enable_fp_fusion": kernel.metadata.enable_fp_fusion}
        cubin = _assembled(text, target, options | fusion)
        metadata = json.dumps({**kernel.metadata._asdict(), "hash": key}, default=vars)
        contents = {f"{name}.ptx": text, f"{name}.cubin": cubin, f"{name}.json": metadata}
        group = {file: files.put(content, file) for file, content in contents.items()}
        files.put_group(f"{name}.json", group)
    return CompiledKernel(copy, group, key)


def _kept(plain: ASTSource, folder: str) -> CompiledKernel | None:
    """The kernel in a folder of Triton's cache, which names it for the ptxas of who compiled it."""
    key = base64.b32decode(folder + "=" * (-len(folder) % 8)).hex()
    name = plain.name[:_MAX_NAME]
    group = (get_cache_manager(key).get_group(f"{name}.json") if key else None) or {}
    is_whole = {f"{name}.json", f"{name}.ptx"} <= set(group)
    return CompiledKernel(plain, group, key) if is_whole else None


def _compiled(source: ASTSource, target: GPUTarget, options: dict[str, Any]) -> CompiledKernel:
    """What Triton compiles, which then asks for its ptxas as if it were for the first time.

    It remembers the first one, and Inductor names another when it compiles.
    """
    has_asked = compiler.get_ptxas_version.cache_info().currsize
    try:
        return triton.compile(source, target=target, options=options)
    finally:
        if not has_asked:
            compiler.get_ptxas_version.cache_clear()


def _assembled(ptx: str, target: GPUTarget, options: dict[str, Any]) -> bytes:
    """The cubin of PTX, made by Triton, whose print of a failure would be in the user's output."""
    backend = make_backend(target)
    assembler = _assembler_for(ptx, target)
    original = type(backend).make_cubin
    ours = {"get_ptxas": lambda _: assembler, "print": lambda *_: None}
    make_cubin = FunctionType(original.__code__, {**original.__globals__, **ours})
    return make_cubin(backend, ptx, {}, backend.parse_options(dict(options)), target.arch)


def _assembler_for(ptx: str, target: GPUTarget) -> NvidiaTool:
    """Triton's ptxas, or torch's if only that knows this version of PTX.

    Inductor sets TRITON_PTXAS_PATH to torch's when it compiles, but not when its cache has the
    kernel.
    """
    version = re.search(r"^\.version (\d+)\.(\d+)", ptx, re.MULTILINE)
    needed = 10 * int(version[1]) + int(version[2]) if version else 0
    tools = compiler.get_ptxas(target.arch), NvidiaTool.from_path(str(_PTXAS_OF_TORCH))
    for tool in tools:
        if tool is not None and compiler.ptx_get_version(tool.version) >= needed:
            return tool
    raise RecorderError(f"no ptxas here knows its PTX, of version {needed // 10}.{needed % 10}")


@cache
def end_for(target: GPUTarget) -> str:
    """The PTX of `_end`, for a warp."""
    words = {f"word_{idx}": "i64" for idx in range(_NUM_WORDS)}
    constants = {"region": _REGION, "bits": _REGION << abi.START_BITS, "build": source_digest()}
    signature = {**words, "began": "i64", **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(_end, signature, constants)
    options = {"num_warps": 1, "enable_fp_fusion": True}
    return str(_compiled(source, target, options).asm["ptx"])


def with_span(kernel: str, end: str) -> str:
    """The PTX of a kernel with that of `_end` in it, and with the words as its last arguments."""
    end_name, end_parameters, end_begin, end_stop = _entry(end)
    # Behind the arguments, Triton adds the same pointers to both.
    kernel, first_word = _with_words(kernel, end_parameters - _NUM_WORDS - 1)
    name, _, begin, stop = _entry(kernel)
    tail = _of_one_warp(end[end_begin:end_stop])
    for idx in range(_NUM_WORDS):
        tail = tail.replace(f"[{end_name}_param_{idx}]", f"[{name}_param_{first_word + idx}]")
    began = rf"ld\.param\.[bu]64(\s+%\w+, )\[{end_name}_param_{_NUM_WORDS}\];"
    tail, num_begins = re.subn(began, rf"mov.b64\1{_BEGIN};", tail)
    body = kernel[begin:stop]
    if not num_begins or f"{end_name}_param" in tail:
        raise RecorderError("the arguments in its PTX are not where we know them")
    if len(re.findall(r"\b(?:ret|exit)\b(?:\.\w+)?;", body)) != len(_RET.findall(body)):
        raise RecorderError("single threads of it end")
    if ".reqnctapercluster" in kernel:
        raise RecorderError("its programs are clusters")
    head = _DECLARED.match(body)
    assert head is not None
    clock = f"\t.reg .b64 {_BEGIN};\n\tmov.u64 {_BEGIN}, %globaltimer;\n"
    places = iter(range(len(body)))
    rest = _RET.sub(lambda _: _placed(tail, next(places)), body[head.end() :])
    return kernel[:begin] + head[0] + clock + rest + kernel[stop:]


def _with_words(kernel: str, num_behind: int) -> tuple[str, int]:
    """A kernel with the words as parameters before its last ones, and the number of the first."""
    name, num_parameters, _, _ = _entry(kernel)
    first = num_parameters - num_behind
    if first < 0:
        raise RecorderError("the arguments in its PTX are not where we know them")

    def moved(found: re.Match[str]) -> str:
        idx = int(found[1])
        return f"{name}_param_{idx if idx < first else idx + _NUM_WORDS}"

    text = re.sub(rf"\b{name}_param_(\d+)\b", moved, kernel)
    entry = re.search(rf"\.entry\s+{name}\s*\(([^)]*)\)", text)
    assert entry is not None
    parameters = entry[1].split(",") if num_parameters else []
    words = [f"\n\t.param .u64 {name}_param_{first + idx}" for idx in range(_NUM_WORDS)]
    listed = ",".join(parameters[:first] + words + parameters[first:])
    return f"{text[: entry.start(1)]}{listed}{text[entry.end(1) :]}", first


def _entry(ptx: str) -> tuple[str, int, int, int]:
    """A kernel's name, how many parameters it has, and where its body begins and ends."""
    found = re.search(r"\.entry\s+(\w+)\s*\(([^)]*)\)[^{]*\{", ptx)
    if found is None:
        raise RecorderError("its PTX has no kernel")
    depth = 1
    for brace in re.finditer(r"[{}]", ptx[found.end() :]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return found[1], found[2].count(".param"), found.end(), found.end() + brace.start()
    raise RecorderError("the kernel in its PTX has no end")


def _of_one_warp(body: str) -> str:
    """Code of a program that has one warp, to be executed by one of several."""
    lines = [
        line
        for line in body.splitlines()
        if not re.match(r"\s*(?:\.loc\b|//)|\$L__(?:tmp|func)", line)
    ]
    text = "\n".join(lines)
    # Shared memory of ours would move the kernel's own, whose place wgmma and TMA rely on.
    text = _BROADCAST.sub(r"\2shfl.sync.idx.b32\3, \1, 0, 31, -1;", text)
    text = re.sub(r"(mov\.[bu]\d+\s+%\w+, )global_smem;", r"\g<1>0;", text)
    if "shared" in text or "global_smem" in text:
        raise RecorderError("storing its span takes shared memory")
    return re.sub(r"\b(?:bar|barrier)(?:\.cta)?\.sync\s+0;", "bar.warp.sync 0xffffffff;", text)


def _placed(tail: str, idx: int) -> str:
    """The tail instead of one `ret`, with labels of its own."""
    text = re.sub(r"\$L__(\w+)", rf"$L__kprof_{idx}_\1", tail)
    return (
        "\t{\n\t.reg .pred %kprof_other;\n\t.reg .b32 %kprof_thread;\n"
        "\tmov.u32 %kprof_thread, %tid.x;\n\tsetp.gt.u32 %kprof_other, %kprof_thread, 31;\n"
        f"\t@%kprof_other bra $L__kprof_{idx}_over;\n\t{{\n{text}\n\t}}\n"
        f"$L__kprof_{idx}_over:\n\tret;\n\t}}"
    )
