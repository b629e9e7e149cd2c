"""What differs between NVIDIA, AMD and Triton's interpreter: clocks, ids, and storing a record.

Every function here works in two ways. At compile time, Triton calls it with its `_semantic`, and it
emits instructions for the target. In the interpreter (TRITON_INTERPRET=1) it is an ordinary Python
function.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import triton
import triton.language as tl

from kprof import abi
from kprof.errors import TargetError

INTERPRETED: Final[bool] = bool(triton.knobs.runtime.interpret)
_Function = TypeVar("_Function", bound=Callable[..., Any])
# With chiplets, each with an L2 of its own, and with stores that go past it.
_MI300: Final = ("gfx940", "gfx941", "gfx942", "gfx950")

# Bit 0 of a cursor: this thread is not the writer. No other bit differs between the threads of a
# program.
NOT_THE_WRITER: Final = 1


def builtin(function: _Function) -> _Function:
    """Marks a function that kernels may call. The interpreter calls it directly."""
    if INTERPRETED:
        return function
    return tl.core.builtin(function)


def is_amd(semantic: Any) -> bool:
    """Whether the kernel is being compiled for an AMD GPU.

    Raises TargetError if the target is neither AMD (gfx9) nor NVIDIA.
    """
    options = semantic.builder.options
    if options.backend_name == "cuda":
        return False
    if options.backend_name == "hip" and options.arch.startswith("gfx9"):
        return True
    raise TargetError(
        "kprof.triton records on NVIDIA GPUs and on gfx9 of AMD (MI200, MI300, MI350); this kernel "
        f"is compiled for {options.arch}"
    )


@builtin
def number(constant: Any, _semantic: Any = None) -> Any:
    """A constant as a value of the kernel."""
    semantic = interpreter_semantic() if INTERPRETED else _semantic
    return semantic.to_tensor(constant)


@builtin
def realtime_ticks(_semantic: Any = None) -> Any:
    """The clock that all processors of a device share, in ticks (int64)."""
    if INTERPRETED:
        return number(time.monotonic_ns())
    if not is_amd(_semantic):
        return _asm("mov.u64 $0, %globaltimer;", "=l,~{memory}", [], tl.int64, _semantic)
    # Not inline assembly, so that LLVM waits for the value where it is used, and not for all
    # earlier memory operations.
    return _llvm("llvm.amdgcn.s.memrealtime", tl.int64, _semantic)


@builtin
def cycle_ticks(_semantic: Any = None) -> Any:
    """The processor's cycle counter (int64)."""
    if INTERPRETED:
        return number(time.monotonic_ns())
    if is_amd(_semantic):
        return _llvm("llvm.readcyclecounter", tl.int64, _semantic)
    return _asm("mov.u64 $0, %clock64;", "=l,~{memory}", [], tl.int64, _semantic)


@builtin
def hw_id(_semantic: Any = None) -> Any:
    """The id of this processor, encoded as in kprof.h (int32)."""
    if INTERPRETED:
        return number(0)
    if not is_amd(_semantic):
        return _asm("mov.u32 $0, %smid;", "=r", [], tl.int32, _semantic)
    place = _asm("s_getreg_b32 $0, hwreg(4, 8, 8)", "=s", [], tl.int32, _semantic)
    if _semantic.builder.options.arch not in _MI300:
        return place
    chiplet = _asm("s_getreg_b32 $0, hwreg(20, 0, 4)", "=s", [], tl.int32, _semantic)
    return _semantic.or_(place, _semantic.shl(chiplet, _semantic.to_tensor(16)))


@builtin
def drain_memory(_semantic: Any = None) -> None:
    """Waits until the memory operations of the calling thread have completed."""
    if INTERPRETED:
        return
    if is_amd(_semantic):
        _asm("s_waitcnt vmcnt(0)\n  v_mov_b32 $0, 0", "=v,~{memory}", [], tl.int32, _semantic)
    else:
        _asm("membar.gl;\n  mov.u32 $0, 0;", "=r,~{memory}", [], tl.int32, _semantic)


@builtin
def thread_id(_semantic: Any = None) -> Any:
    """The index of the thread in its program (int32); 0 if Triton picks the thread that stores.

    Triton assumes that scalars are equal in all threads. This one is not.
    """
    if INTERPRETED or is_amd(_semantic):
        return number(0) if INTERPRETED else _semantic.to_tensor(0)
    return _asm("mov.u32 $0, %tid.x;", "=r", [], tl.int32, _semantic)


@builtin
def store_record(cursor: Any, word0: Any, word1: Any, _semantic: Any = None) -> Any:
    """Advances the cursor and stores 16 bytes there, unless the cursor says not to. Returns the new
    cursor, which is in the same chunk: only the low word of the address changes.

    On NVIDIA this is one predicated store, as in platform/cuda.h. On AMD it is two stores that LLVM
    merges; Triton stores scalars from thread 0.
    """
    return _store(cursor, word0, word1, abi.RECORD_BYTES, _semantic)


@builtin
def store_first(cursor: Any, word0: Any, word1: Any, _semantic: Any = None) -> Any:
    """Stores the first 16 bytes of a chunk: at the cursor, which does not move.

    The slot before them is in another chunk. If the chunk begins at a multiple of 4 GiB, the high
    word of that slot's address differs, and `store_record` would write 4 GiB too low.
    """
    return _store_past_caches(cursor, word0, word1, 0, _semantic)


@builtin
def store_header(cursor: Any, word0: Any, word1: Any, _semantic: Any = None) -> Any:
    """Like `store_record`, for the rest of a chunk's header."""
    return _store_past_caches(cursor, word0, word1, abi.RECORD_BYTES, _semantic)


def _store_past_caches(cursor: Any, word0: Any, word1: Any, step_bytes: int, semantic: Any) -> Any:
    """Where the host would not see a plain store before the launch ends, see store_header in
    platform/hip.h.

    Triton's ".wt" would wait after each store until memory has it.
    """
    if INTERPRETED or not is_amd(semantic) or semantic.builder.options.arch not in _MI300:
        return _store(cursor, word0, word1, step_bytes, semantic)
    place = semantic.add(cursor, semantic.to_tensor(step_bytes), False)
    unless = semantic.and_(place, semantic.to_tensor(abi.STORES_NOTHING))
    thread = _llvm("llvm.amdgcn.workitem.id.x", tl.int32, semantic)
    unless = semantic.or_(tl.cast(unless, tl.int32, _semantic=semantic), thread)
    _asm(_STORE_PAST_CACHES, _PAST_CACHES, [unless, place, word0, word1], tl.int64, semantic)
    return place


# In the thread where $1 is 0.
_STORE_PAST_CACHES: Final = """
  v_cmp_eq_u32 vcc, 0, $1
  s_and_saveexec_b64 $0, vcc
  global_store_dwordx2 $2, $3, off sc0 sc1
  global_store_dwordx2 $2, $4, off offset:8 sc0 sc1
  s_mov_b64 exec, $0"""
_PAST_CACHES: Final = "=&s,v,v,v,v,~{memory},~{vcc},~{scc}"


def _store(cursor: Any, word0: Any, word1: Any, step_bytes: int, semantic: Any) -> Any:
    if INTERPRETED or is_amd(semantic):
        return _store_in_two(cursor, word0, word1, step_bytes, semantic)
    # "&": the new cursor is written before the words are read, so it must not share their
    # registers.
    text = _STORE.replace("STEP", str(step_bytes))
    return _asm(text, "=&l,l,l,l,~{memory}", [cursor, word0, word1], tl.int64, semantic)


# Only the low word changes, because chunks are aligned. The step comes first, so that nothing
# writes the address registers while the store may still read them.
_STORE: Final = f"""{{
  .reg .pred stored;
  .reg .b32 low, high, bits;
  mov.b64 {{low, high}}, $1;
  and.b32 bits, low, {abi.STORES_NOTHING | NOT_THE_WRITER};
  setp.eq.u32 stored, bits, 0;
  add.u32 low, low, STEP;
  mov.b64 $0, {{low, high}};
  @stored st.global.v2.b64 [$0], {{$2, $3}};
}}"""


def _store_in_two(cursor: Any, word0: Any, word1: Any, step_bytes: int, semantic: Any) -> Any:
    extra = {} if INTERPRETED else {"_semantic": semantic}
    semantic = interpreter_semantic() if INTERPRETED else semantic
    place = semantic.add(cursor, semantic.to_tensor(step_bytes), False)
    if INTERPRETED:
        # As on NVIDIA, so that tests without a GPU see what goes wrong there.
        changed = semantic.xor_(place, cursor)
        low = semantic.and_(changed, semantic.to_tensor(0xFFFF_FFFF))
        place = semantic.xor_(cursor, low)
    bits = semantic.and_(place, semantic.to_tensor(abi.STORES_NOTHING))
    is_stored = semantic.equal(bits, semantic.to_tensor(0))
    first = tl.cast(place, tl.pointer_type(tl.int64), **extra)
    second = semantic.add(first, semantic.to_tensor(1), False)
    for pointer, word in ((first, word0), (second, word1)):
        tl.store(pointer, word, mask=is_stored, **extra)
    return place


def _asm(text: str, constraints: str, args: list[Any], dtype: Any, semantic: Any) -> Any:
    return tl.inline_asm_elementwise(
        text, constraints, args, dtype=dtype, is_pure=False, pack=1, _semantic=semantic
    )


def _llvm(symbol: str, dtype: Any, semantic: Any) -> Any:
    """Calls an LLVM intrinsic without arguments."""
    return tl.core.extern_elementwise(
        "", "", [], {(): (symbol, dtype)}, is_pure=False, _semantic=semantic
    )


def interpreter_semantic() -> Any:
    """The interpreter's arithmetic."""
    from triton.runtime import interpreter

    return interpreter.interpreter_semantic
