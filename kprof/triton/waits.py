"""Lines for waits that last: late_wait.h and wait_lines.h in Triton.

Threads of a program may read a flag, or the clock, at different moments, and Triton's atomics and
branches may have barriers. So all of this is one piece of PTX without any, which only the writer of
the track executes, or plain Python in the interpreter. Kernels for AMD tell of no waits.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any, Final

import numpy as np
import triton
import triton.language as tl
from triton.language import tensor

from kprof import abi
from kprof.triton.device import offset_of
from kprof.triton.platform import INTERPRETED, NOT_THE_WRITER, builtin, is_amd, number

# 50 us, as in wait_lines.h.
_LATE_NS: Final = 50_000
_MAX_LINES_TRIED: Final = 256
_LINE_BYTES: Final = abi.WAIT_LINE.itemsize


_CONTROL: Final = {
    name: offset_of(abi.CONTROL, name)
    for name in ("num_shared_lines", "shared_lines", "line_claims")
}
_CHUNK: Final = {
    name: offset_of(abi.CHUNK_HEADER, name) for name in ("warp", "block", "launch", "chunk_idx")
}
_LINE: Final = {
    name: offset_of(abi.WAIT_LINE, name) for name in ("region", "launch", "warp", "held", "wanted")
}
# From the word with the region, by which an open line is known.
_HELD: Final = _LINE["held"] - _LINE["region"]

_TELL: Final = f"""{{
  .reg .pred over, more;
  .reg .b32 low, high, bits, size, last, place, tries, claimed, block, launch, warp;
  .reg .b64 time, chunk, arena, lines, claims, at, word;
  mov.b64 $0, $7;
  mov.b64 {{low, high}}, $1;
  and.b32 bits, low, {NOT_THE_WRITER};
  setp.ne.u32 over, bits, 0;
  @over bra $$KPROF_TOLD_${{:uid}};
  setp.eq.u64 over, $7, 0;
  @over bra $$KPROF_CLOSED_${{:uid}};
  setp.eq.u32 over, $5, $8;
  @over bra $$KPROF_TOLD_${{:uid}};
  add.u64 at, $7, {_HELD};
  st.relaxed.sys.global.b32 [at], $5;
  bra $$KPROF_TOLD_${{:uid}};
$$KPROF_CLOSED_${{:uid}}:
  mov.u64 time, %globaltimer;
  sub.u64 time, time, $3;
  setp.lt.u64 over, time, {_LATE_NS};
  @over bra $$KPROF_TOLD_${{:uid}};
  and.b64 chunk, $1, {-abi.CHUNK_BYTES};
  setp.eq.u64 over, chunk, 0;
  @over bra $$KPROF_TOLD_${{:uid}};
  ld.global.b32 bits, [chunk+{_CHUNK["chunk_idx"]}];
  setp.lt.s32 over, bits, 0;
  @over bra $$KPROF_TOLD_${{:uid}};
  and.b64 arena, $2, -2;
  ld.global.b32 size, [arena+{_CONTROL["num_shared_lines"]}];
  setp.eq.u32 over, size, 0;
  @over bra $$KPROF_TOLD_${{:uid}};
  ld.global.b64 lines, [arena+{_CONTROL["shared_lines"]}];
  ld.global.b64 claims, [arena+{_CONTROL["line_claims"]}];
  ld.global.b32 block, [chunk+{_CHUNK["block"]}];
  ld.global.b32 launch, [chunk+{_CHUNK["launch"]}];
  ld.global.b32 warp, [chunk+{_CHUNK["warp"] - 2}];
  shr.u32 warp, warp, 16;
  mov.u32 bits, %ntid.x;
  add.u32 bits, bits, 31;
  shr.u32 bits, bits, 5;
  add.u32 bits, bits, 1;
  mul.lo.u32 place, block, bits;
  mul.lo.u32 bits, launch, 61;
  add.u32 place, place, bits;
  setp.eq.u32 more, warp, {abi.BLOCK_TRACK_WARP};
  add.u32 bits, warp, 1;
  selp.b32 bits, 0, bits, more;
  add.u32 place, place, bits;
  sub.u32 last, size, 1;
  and.b32 place, place, last;
  mov.u32 tries, 0;
$$KPROF_TRY_${{:uid}}:
  setp.eq.u32 over, place, last;
  @over bra $$KPROF_NEXT_${{:uid}};
  mul.wide.u32 at, place, 4;
  add.u64 at, at, claims;
  atom.global.cas.b32 claimed, [at], 0, 1;
  setp.eq.u32 over, claimed, 0;
  @over bra $$KPROF_FOUND_${{:uid}};
$$KPROF_NEXT_${{:uid}}:
  add.u32 place, place, 1;
  and.b32 place, place, last;
  add.u32 tries, tries, 1;
  setp.lt.u32 more, tries, {_MAX_LINES_TRIED};
  @more bra $$KPROF_TRY_${{:uid}};
  mov.u32 place, last;
$$KPROF_FOUND_${{:uid}}:
  mul.wide.u32 at, place, {_LINE_BYTES};
  add.u64 at, at, lines;
  st.relaxed.sys.global.b64 [at], $3;
  add.u64 $0, at, {_LINE["region"]};
  setp.eq.u32 over, place, last;
  @over bra $$KPROF_TOLD_${{:uid}};
  mov.b64 word, {{launch, block}};
  st.relaxed.sys.global.b64 [at+{_LINE["launch"]}], word;
  mov.b64 word, {{warp, $5}};
  st.relaxed.sys.global.b64 [at+{_LINE["warp"]}], word;
  cvt.u64.u32 word, $6;
  st.relaxed.sys.global.b64 [at+{_LINE["wanted"]}], word;
  fence.acq_rel.sys;
  st.relaxed.sys.global.b64 [at+{_LINE["region"]}], $4;
$$KPROF_TOLD_${{:uid}}:
}}"""

_CLOSE: Final = f"""{{
  .reg .pred over;
  .reg .b64 arena, lines, claims, at;
  mov.u32 $0, 0;
  setp.eq.u64 over, $1, 0;
  @over bra $$KPROF_SHUT_${{:uid}};
  st.relaxed.sys.global.b64 [$1], 0;
  fence.acq_rel.sys;
  and.b64 arena, $2, -2;
  ld.global.b64 lines, [arena+{_CONTROL["shared_lines"]}];
  ld.global.b64 claims, [arena+{_CONTROL["line_claims"]}];
  sub.u64 at, $1, lines;
  shr.u64 at, at, {_LINE_BYTES.bit_length() - 1};
  shl.b64 at, at, 2;
  add.u64 at, at, claims;
  st.global.b32 [at], 0;
$$KPROF_SHUT_${{:uid}}:
}}"""


@triton.jit
def low_word(value: tensor) -> tensor:
    """The low 32 bits of a number."""
    return value.to(tl.int32)


@builtin
def tell(
    cursor: Any,
    arena_word: Any,
    begin: Any,
    region_and_payload: Any,
    held: Any,
    wanted: Any,
    line: Any,
    told: Any,
    _semantic: Any = None,
) -> Any:
    """Opens a line for a wait that lasts since `begin`, if that is long ago, or says there what the
    flag holds by now. Returns the line: the address of its word with the region, or 0.
    """
    words = [cursor, arena_word, begin, region_and_payload, held, wanted, line, told]
    if INTERPRETED:
        return number(_tell(*map(_number, words)))
    if is_amd(_semantic):
        return line
    constraints = "=&l,l,l,l,l,r,r,l,r,~{memory}"
    return tl.inline_asm_elementwise(
        _TELL, constraints, words, dtype=tl.int64, is_pure=False, pack=1, _semantic=_semantic
    )


@builtin
def close(line: Any, arena_word: Any, _semantic: Any = None) -> None:
    """The wait has ended: takes back its line, if it has one."""
    if INTERPRETED:
        _close(_number(line), _number(arena_word))
    elif not is_amd(_semantic):
        tl.inline_asm_elementwise(
            _CLOSE, "=r,l,l,~{memory}", [line, arena_word], dtype=tl.int32, is_pure=False, pack=1,
            _semantic=_semantic,
        )  # fmt: skip


def _number(value: Any) -> int:
    return int(value.handle.data.item()) & (1 << 8 * value.handle.data.itemsize) - 1


def _word(address: int, bits: int = 64) -> Any:
    kind = ctypes.c_uint64 if bits == 64 else ctypes.c_uint32
    return kind.from_address(address)


def _tell(
    cursor: int, arena: int, begin: int, region: int, held: int, wanted: int, line: int, told: int
) -> int:
    """`tell` in the interpreter, whose programs run one after the other: no line is in use."""
    if line:
        if held != told:
            _word(line + _HELD, 32).value = held
        return line
    chunk, arena = cursor & -abi.CHUNK_BYTES, arena & ~1
    if time.monotonic_ns() - begin < _LATE_NS or not chunk:
        return 0
    header = (ctypes.c_uint8 * abi.CHUNK_HEADER_BYTES).from_address(chunk)
    track = np.frombuffer(bytes(header), abi.CHUNK_HEADER)[0]
    num_lines = _word(arena + _CONTROL["num_shared_lines"], 32).value
    if track["chunk_idx"].astype(np.int32) < 0 or not num_lines:
        return 0
    # A program has one warp there, and the last line is nobody's.
    place = (2 * int(track["block"]) + 61 * int(track["launch"])) % (num_lines - 1)
    at = int(_word(arena + _CONTROL["shared_lines"]).value) + place * _LINE_BYTES
    _word(at).value = begin
    _word(at + _LINE["launch"]).value = int(track["block"]) << 32 | int(track["launch"])
    _word(at + _LINE["warp"]).value = held << 32 | int(track["warp"])
    _word(at + _LINE["wanted"]).value = wanted
    _word(at + _LINE["region"]).value = region
    return at + _LINE["region"]


def _close(line: int, arena: int) -> None:
    del arena
    if line:
        _word(line).value = 0
