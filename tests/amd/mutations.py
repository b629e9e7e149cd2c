"""Mistakes of one line in device code, and the tests that see them on a weak memory model (`make amd-faults`).

Words of "Memory Model GFX942" in LLVM's AMDGPU guide: a store at system scope (sc0 sc1) goes through both caches; a plain one
stays in the vector L1 of its CU and the L2 of its XCC until a release writes back; a wave does not see what others have stored in
a line that its L1 holds until an acquire invalidates. Lanes of a wave run in lockstep.
"""

from __future__ import annotations

from dataclasses import dataclass, field

READ_WHILE_RUNNING = (
    "tests/kernels/test_announced.py",
    "tests/kernels/test_first_run.py",
    "tests/kernels/test_planted_hangs.py",
    "tests/kernels/test_wait_lines.py",
    "tests/triton/test_triton_headers.py",
)
# Nothing leaves a cache by chance, and nothing waits in a queue.
STRICT = {
    f"EMU_K_{knob}": value
    for knob, value in zip(("SLOW", "DRAIN", "WB", "TEAR", "PAUSE"), "01000", strict=True)
}
# A wave may stand still for milliseconds: until other ranks are a call ahead.
STANDING = {"EMU_K_PAUSE_ROUNDS": "1000000"}
# Stores wait in their queue.
QUEUED = {"EMU_K_DRAIN": "0"}

_HIP = "kprof/include/kprof/platform/hip.h"
_KPROF = "kprof/include/kprof/kprof.h"
_LINES = "kprof/include/kprof/wait_lines.h"
_KERNELS = "instrumented_kernels"
_SIGNALS = f"{_KERNELS}/device/signals.h"
_HANGS = "tests/kernels/test_planted_hangs.py"
_WAITS = "tests/kernels/test_wait_lines.py"
_SPANS = "tests/kernels/test_announced.py"
_REPLAYS = "tests/kernels/test_replays.py"


@dataclass(frozen=True)
class Fault:
    """`old` stands once in the file `path`, `new` takes its place. `survives` says why no test can see it, if none can.

    `in_ci`: `make amd-test` plants it, too. `settings` are the emulator's.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    survives: str = ""
    in_ci: bool = False
    num_seeds: int = 3
    settings: dict[str, str] = field(default_factory=dict)


def _all_to_all(*variants: str) -> tuple[str, ...]:
    names = " or ".join(variants)
    return (
        "tests/kernels/test_all_to_all.py",
        "-k",
        f"matches_float64 and 4 and ranks and ({names})",
    )


def _all_reduce(*variants: str) -> tuple[str, ...]:
    return (
        "tests/kernels/test_all_reduce.py",
        "-k",
        f"other_numbers and ({' or '.join(variants)})",
    )


# Blocks of several waves.
_MANY_WARPS = ("tests/kernels/test_all_reduce.py", "-k", "sizes_of_models and (twoshot or ring)")


def _sort(variant: str) -> tuple[str, ...]:
    return (
        "tests/kernels/test_moe_align_sort.py",
        "-k",
        f"(stable_sort or any_grid) and {variant}",
    )


_PLAIN_PAIR = "[](uint64_t* at, uint64_t a, uint64_t b) { at[0] = a, at[1] = b; }(reinterpret_cast<uint64_t*>(address),"
_LOCKSTEP = "lanes of a wave run in lockstep, and the compiler moves nothing here: the code is the same or in the same order"
_WAITED_FOR = "loads of the arena's words lie between the two stores and are waited for, and vmcnt counts loads and stores in order"
_SAME_CODE = "clang emits the same instruction: atomics are performed behind the L1 at every scope"

FAULTS = (
    # What the host reads while a kernel runs.
    Fault(
        "header: plain store",
        _HIP,
        "store_system((GlobalWord*)(chunk) + i, words.of[i])",
        "((GlobalWord*)(chunk))[i] = words.of[i]",
        READ_WHILE_RUNNING,
        in_ci=True,
        num_seeds=1,
        settings=STRICT,
    ),
    Fault(
        "header of Triton: plain store",
        "kprof/triton/platform.py",
        "if INTERPRETED or not is_amd(semantic) or semantic.builder.options.arch not in _MI300:",
        "if True:",
        ("tests/triton/test_triton_headers.py",),
        num_seeds=1,
        settings=STRICT,
    ),
    Fault(
        "announced span: plain store",
        _HIP,
        "  store_system_pair(reinterpret_cast<uint64_t*>(address),",
        f"  {_PLAIN_PAIR}",
        (_SPANS,),
        in_ci=True,
        settings=STRICT,
        num_seeds=1,
    ),
    Fault(
        "announced span: end is not told",
        _HIP,
        "kHostSeesRecords = false",
        "kHostSeesRecords = true",
        (_SPANS,),
        in_ci=True,
        settings=STRICT,
        num_seeds=1,
    ),
    Fault(
        "announced span: no tag", _LINES, " | tag << kStateChunkBits", "", (_SPANS,), num_seeds=1
    ),
    Fault(
        "announced span: line of another region",
        _KPROF,
        "track.state_lines + static_cast<uint32_t>(line) * sizeof(StateLine)",
        "track.state_lines",
        (_SPANS,),
        num_seeds=1,
    ),
    Fault(
        "wait line: region is plain",
        _LINES,
        "platform::store_system(words + 1, static_cast<uint64_t>(payload) << 32 | region)",
        "words[1] = static_cast<uint64_t>(payload) << 32 | region",
        (_WAITS,),
        settings=STRICT,
        num_seeds=1,
    ),
    Fault(
        "wait line: block is plain",
        _LINES,
        "platform::store_system(words + 2, static_cast<uint64_t>(block) << 32 | launch)",
        "words[2] = static_cast<uint64_t>(block) << 32 | launch",
        (_WAITS,),
        num_seeds=1,
        settings=STRICT,
    ),
    Fault(
        "wait line: flag is plain",
        _LINES,
        "platform::store_system(words + 4, static_cast<uint64_t>(flag.wanted))",
        "words[4] = flag.wanted",
        (_HANGS,),
        settings=STRICT,
        num_seeds=1,
    ),
    Fault(
        "wait line: change of the flag is plain",
        _LINES,
        "platform::store_system(reinterpret_cast<uint32_t*>(line) + 5, held)",
        "reinterpret_cast<uint32_t*>(line)[5] = held",
        (_WAITS, "-k", "change_of_the_flag"),
        settings=STRICT,
        num_seeds=1,
    ),
    Fault(
        "wait line: end is plain",
        _LINES,
        "platform::store_system(line, uint64_t{0})",
        "*line = 0",
        (_WAITS,),
        settings=STRICT,
        num_seeds=1,
    ),
    Fault(
        "wait line: region before the rest",
        _LINES,
        "  platform::order_system_stores();\n  platform::store_system(words + 1",
        "  platform::store_system(words + 1",
        (_WAITS, "-k", "looked_at"),
        settings=QUEUED,
    ),
    Fault(
        "wait line: given back before its end has arrived",
        _LINES,
        "  platform::order_system_stores();\n  release_wait_line(arena, line);",
        "  release_wait_line(arena, line);",
        (_WAITS,),
        survives=_WAITED_FOR,
    ),
    Fault(
        "wait line: never given back",
        _LINES,
        "  release_wait_line(arena, line);\n",
        "",
        (_WAITS,),
        num_seeds=1,
    ),
    Fault(
        "wait line: two waits in one",
        _LINES,
        "platform::exchange_if_zero_device(claims + place, 1u) != 0",
        "platform::exchange_if_zero_device(claims + place, 1u) > 1",
        (_WAITS,),
        num_seeds=1,
    ),
    Fault(
        "wait line: the last one is taken",
        _LINES,
        "(place == last || platform::",
        "(platform::",
        (_WAITS,),
        num_seeds=1,
    ),
    Fault(
        "late wait: never late",
        _LINES,
        "kRealtimeTicksPerSecond / 20000",
        "kRealtimeTicksPerSecond * 20000",
        (_WAITS,),
        num_seeds=1,
        settings={"EMU_TIMEOUT": "20"},
    ),
    Fault(
        "flag: plain store",
        _HIP,
        "__hip_atomic_store(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM)",
        "*address = value",
        (_HANGS,),
        settings=STRICT,
        num_seeds=1,
    ),
    # The recorder.
    Fault(
        "claim: one chunk too many",
        _KPROF,
        "turn < cursors.chunks_per_cursor ?",
        "turn <= cursors.chunks_per_cursor ?",
        (_REPLAYS, "-k", "overflow"),
        num_seeds=1,
    ),
    Fault(
        "refill: loses the chunk before",
        _KPROF,
        "header.previous_chunk_idx = previous_chunk_idx",
        "header.previous_chunk_idx = kNoChunk",
        (_REPLAYS,),
        num_seeds=1,
    ),
    Fault(
        "refill: full chunks are not noticed",
        _KPROF,
        "(~low_of_cursor & kFullMask) == 0",
        "(~low_of_cursor & kFullMask) == 16",
        (_REPLAYS,),
        num_seeds=1,
    ),
    Fault(
        "drop: not counted by region",
        _KPROF,
        "platform::at_most(region, kNumDropCounters - 1)",
        "0",
        ("tests/kernels/test_profile.py", "-k", "overflow_is_counted"),
        num_seeds=1,
    ),
    Fault(
        "drop: a track without a chunk is not counted",
        _KPROF,
        "  platform::add_global(&arena->cursors[block & (cursors.num_cursors - 1)].num_tracks_without_chunk, uint64_t{1});\n",
        "",
        (_REPLAYS, "-k", "overflow"),
        num_seeds=1,
    ),
    Fault(
        "switches: read through the L1",
        _HIP,
        "__hip_atomic_load(pairs, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)",
        "*pairs",
        (_REPLAYS, "-k", "goes_on_and_off"),
        survives="every dispatch of the model begins with an empty L1; hip.h says why that is not relied on",
    ),
    Fault(
        "claim: at the scope of a block",
        _HIP,
        "__hip_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);\n}\nKPROF_DEVICE uint64_t",
        "__hip_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);\n}\nKPROF_DEVICE uint64_t",
        (_REPLAYS, "-k", "overflow"),
        survives=_SAME_CODE,
    ),
    # Signals between ranks.
    Fault(
        "release of a warp: removed",
        _SIGNALS,
        "  fence_release_system();\n  sync_warp();",
        "  sync_warp();",
        _all_to_all("token_flags"),
    ),
    Fault(
        "release of a warp: flag before the data",
        _SIGNALS,
        "  release_warp();\n  if (lane_id() == 0) store_system(flag, value);",
        "  if (lane_id() == 0) store_system(flag, value);\n  release_warp();",
        _all_to_all("token_flags"),
        settings=STANDING,
    ),
    Fault(
        "release of a warp: no sync behind the fence",
        _SIGNALS,
        "  fence_release_system();\n  sync_warp();",
        "  fence_release_system();",
        _all_to_all("token_flags"),
        survives=_LOCKSTEP,
    ),
    Fault(
        "release: of a block only",
        _HIP,
        '__builtin_amdgcn_fence(__ATOMIC_RELEASE, "");',
        '__builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");',
        _all_reduce("oneshot_serial", "ring"),
    ),
    Fault(
        "release of a block: one thread's fence",
        _HIP,
        "  fence_release_system();\n  __syncthreads();",
        "  __syncthreads();\n  if (thread_id() == 0) fence_release_system();",
        _MANY_WARPS,
    ),
    Fault(
        "release of a block: no barrier",
        _HIP,
        "  fence_release_system();\n  __syncthreads();",
        "  fence_release_system();",
        _MANY_WARPS,
    ),
    Fault(
        "release of a block: removed",
        _SIGNALS,
        "  release_block_system();\n",
        "  sync_block();\n",
        _all_reduce("oneshot_serial", "ring"),
    ),
    Fault(
        "acquire: removed",
        _SIGNALS,
        "{ fence_acquire_system(); }",
        "{}",
        _all_reduce("oneshot_serial", "ring"),
    ),
    Fault(
        "acquire: of a block only",
        _HIP,
        '__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "");',
        '__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");',
        _all_reduce("oneshot_serial", "ring"),
    ),
    Fault(
        "acquire: before the flags of all",
        _SIGNALS,
        "  acquire();\n  sync_warp();\n  return {true, last};",
        "  sync_warp();\n  return {true, last};",
        _all_to_all("balanced", "fused"),
    ),
    Fault(
        "wait of a block: nobody waits for thread 0",
        _SIGNALS,
        "    acquire();\n  }\n  sync_block();",
        "    acquire();\n  }",
        _MANY_WARPS,
        settings=STANDING,
    ),
    # Collectives.
    Fault(
        "lock: given on without a release",
        f"{_KERNELS}/all_reduce/ladder_variants.h",
        "signals::publish_block([&] { store_system(call.turn(peer), exchange.epoch()); })",
        "if (thread_id() == 0) store_system(call.turn(peer), exchange.epoch())",
        _all_reduce("oneshot_lock"),
    ),
    Fault(
        "lock: not waited for",
        f"{_KERNELS}/all_reduce/ladder_variants.h",
        "return peer == 0 || signals::poll(",
        "return peer != ~0u || signals::poll(",
        _all_reduce("oneshot_lock"),
    ),
    Fault(
        "tree: sends what it has not got",
        f"{_KERNELS}/all_reduce/ladder_variants.h",
        "    if (!await<R_TREE_WAIT>(call, exchange, kSummands, source, block_id(), span, track)) return;\n",
        "    (void)source;\n",
        _all_reduce("oneshot_tree"),
    ),
    Fault(
        "twoshot: results are not waited for",
        f"{_KERNELS}/all_reduce/bulk_variants.h",
        "  if (!await_all<R_BROADCAST_WAIT>(call, exchange, kResults, span, track)) return;\n",
        "",
        _all_reduce("twoshot"),
    ),
    Fault(
        "exchange: one buffer for all calls",
        f"{_KERNELS}/all_reduce/call.h",
        "static_cast<uint64_t>(epoch_ & 1u) * num_bytes",
        "uint64_t{0} * num_bytes",
        _all_reduce("oneshot_serial", "ring", "twoshot"),
        settings=STANDING,
    ),
    Fault(
        "packets: half of one is enough",
        f"{_KERNELS}/device/packets.h",
        " &&\n         static_cast<uint32_t>(packet.words[1]) != 0 && static_cast<uint32_t>(packet.words[1] >> 32) != 0;",
        ";",
        _all_reduce("oneshot", "packets"),
    ),
    Fault(
        "packets: never emptied",
        f"{_KERNELS}/device/packets.h",
        "{ store_system_pair(cell->words, 0, 0); }",
        "{ (void)cell; }",
        _all_reduce("oneshot", "packets"),
    ),
    Fault(
        "rows: sent without a release",
        f"{_KERNELS}/all_to_all/dispatch.h",
        "signals::publish_warp(call.row_flag(row.peer, call.rank, row.position), call.epoch())",
        "if (lane_id() == 0) store_system(call.row_flag(row.peer, call.rank, row.position), call.epoch())",
        _all_to_all("token_flags"),
        settings=STANDING,
    ),
    Fault(
        "rows: returned without a release",
        f"{_KERNELS}/all_to_all/combine.h",
        "signals::publish_warp(call.combine_flag(origin.place, origin.flat_token), call.epoch())",
        "if (lane_id() == 0) store_system(call.combine_flag(origin.place, origin.flat_token), call.epoch())",
        _all_to_all("fused"),
    ),
    Fault(
        "pipelined: rows returned without a release",
        f"{_KERNELS}/all_to_all/pipelined.h",
        "  signals::release_warp();\n",
        "",
        _all_to_all("pipelined"),
    ),
    Fault(
        "rank_flags: no release of its own",
        f"{_KERNELS}/all_to_all/rank_flags.h",
        "    profile_stop(track, span, R_COMBINE_SEND, payload<R_COMBINE_SEND>(origin.place, origin.flat_token));\n  });\n  fence_release_system();\n",
        "    profile_stop(track, span, R_COMBINE_SEND, payload<R_COMBINE_SEND>(origin.place, origin.flat_token));\n  });\n",
        _all_to_all("rank_flags"),
        survives="the kernel ends before the flag is stored, and the end of a kernel releases",
    ),
    # One GPU.
    Fault(
        "grid: barrier without a release",
        f"{_KERNELS}/moe_align_sort/dcp.h",
        "signals::publish_block([&] { add_device(arrivals, 1u); })",
        "sync_block();\n  if (thread_id() == 0) add_device(arrivals, 1u)",
        _sort("dcp"),
    ),
    Fault(
        "grid: second barrier removed",
        f"{_KERNELS}/moe_align_sort/dcp.h",
        "  if (!sync_grid(call, 1, R_SCANNED)) return;\n",
        "",
        _sort("dcp"),
    ),
    Fault(
        "look-back: words from the L1",
        f"{_KERNELS}/moe_align_sort/chained.h",
        "load_global(call.counts_of(left > j ? left - 1 - j : 0) + expert)",
        "call.counts_of(left > j ? left - 1 - j : 0)[expert]",
        _sort("chained"),
        survives="a stale word is the count of one slice in place of the sum up to it: the look-back goes on, and adds up to the same",
    ),
)
