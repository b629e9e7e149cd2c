"""Collectives in Triton: an all-reduce in one shot and in two, and the dispatch of an all-to-all.

Every rank has a heap that all ranks can write; `bases` has the addresses of all heaps. A flag is
the number of a call, stored with release and awaited with acquire, at the scope of the system.
Calls of all kinds are counted together. Data lies in two copies, used in turn: when a rank begins
call e, all others have begun call e - 1, and so have read what call e - 2 left.

    one shot    every program publishes its part, and sums that part of all ranks
    two shots   every program sums a share of its part, stores the sum on all ranks, and takes the
                others' shares
    dispatch    some programs send rows to their ranks; one program per source takes rows as they
                come
"""

from __future__ import annotations

import triton
import triton.language as tl

import kprof.triton as kp

# "triton/" keeps the names apart from those of the C++ kernels in the same trace.
regions = kp.Regions()
PUBLISH = regions.define("triton/publish", category="compute", bytes=32)
SIGNAL = regions.define("triton/signal", category="send", peer=8, slot=24)
WAIT = regions.define("triton/wait", category="wait", peer=8, slot=24)
SUM = regions.define("triton/sum", category="compute", bytes=32)
SIGNAL_SUM = regions.define("triton/signal-sum", category="send", peer=8, slot=24)
WAIT_SUM = regions.define("triton/wait-sum", category="wait", peer=8, slot=24)
GATHER = regions.define("triton/gather", category="compute", bytes=32)
SEND_COUNT = regions.define("triton/dispatch-send-count", category="send", peer=8, slot=24)
WAIT_COUNT = regions.define("triton/dispatch-wait-count", category="wait", peer=8, slot=24)
SEND_ROW = regions.define("triton/dispatch-send", category="send", peer=8, slot=24)
WAIT_ROW = regions.define("triton/dispatch-wait-row", category="wait", peer=8, slot=24)
COPY_ROW = regions.define("triton/dispatch-copy", category="compute", bytes=32)
regions.flow(SIGNAL, WAIT)
regions.flow(SIGNAL_SUM, WAIT_SUM)
regions.flow(SEND_COUNT, WAIT_COUNT)
regions.flow(SEND_ROW, WAIT_ROW)

FLOAT_BYTES = tl.constexpr(4)
# Triton compiles again for a number that is 1 or divisible by 16, in the middle of a run.
EACH_CALL = ["rank", "epoch"]


@triton.jit
def floats_at(bases: tl.tensor, rank: tl.tensor, offset: tl.tensor) -> tl.tensor:
    """The fp32 numbers at `offset` of a rank's heap."""
    return (tl.load(bases + rank) + offset).to(tl.pointer_type(tl.float32))


@triton.jit
def flags_at(bases: tl.tensor, rank: tl.tensor, offset: tl.tensor) -> tl.tensor:
    """The int32 numbers at `offset` of a rank's heap."""
    return (tl.load(bases + rank) + offset).to(tl.pointer_type(tl.int32))


@triton.jit
def raise_flag(flag: tl.tensor, epoch: tl.tensor) -> None:
    """Sets the flag. Whoever sees it also sees everything that the program stored before."""
    tl.debug_barrier()
    tl.atomic_xchg(flag, epoch, sem="release", scope="sys")


@triton.jit
def await_flag(flag: tl.tensor, epoch: tl.tensor) -> None:
    """Waits until the flag reaches `epoch`."""
    while tl.atomic_add(flag, 0, sem="acquire", scope="sys") < epoch:
        pass
    tl.debug_barrier()


@triton.jit
def meet(
    track: kp.Track,
    bases: tl.tensor,
    flags_offset: tl.tensor,
    rank: tl.tensor,
    epoch: tl.tensor,
    send: tl.constexpr,
    wait: tl.constexpr,
    WORLD: tl.constexpr,
) -> kp.Track:
    """Program p signals program p of all other ranks, then waits for them."""
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    for step in tl.static_range(1, WORLD):
        peer = (rank + step) % WORLD
        begin = kp.start(track)
        flags = flags_at(bases, peer, flags_offset)
        raise_flag(flags + rank * num_programs + program, epoch)
        track = kp.stop(track, begin, send, peer, program)
    flags = flags_at(bases, rank, flags_offset)
    for step in tl.static_range(1, WORLD):
        peer = (rank + step) % WORLD
        begin = kp.start(track)
        await_flag(flags + peer * num_programs + program, epoch)
        track = kp.stop(track, begin, wait, peer, program)
    return track


@triton.jit(do_not_specialize=EACH_CALL)
def one_shot(
    x, out, n, bases, rank, epoch, data_offset, flags_offset, prof,
    WORLD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[i] = the sum of x[i] over all ranks. Every rank reads everything."""
    track = kp.open_track(prof, at_most=2 * WORLD)
    begin = kp.start(track)
    numbers = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = numbers < n
    own = floats_at(bases, rank, data_offset)
    tl.store(own + numbers, tl.load(x + numbers, mask=mask), mask=mask)
    track = kp.stop(track, begin, PUBLISH, BLOCK * FLOAT_BYTES)
    track = meet(track, bases, flags_offset, rank, epoch, SIGNAL, WAIT, WORLD)
    begin = kp.start(track)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for peer in tl.static_range(WORLD):
        total += tl.load(floats_at(bases, peer, data_offset) + numbers, mask=mask, other=0.0)
    tl.store(out + numbers, total, mask=mask)
    track = kp.stop(track, begin, SUM, WORLD * BLOCK * FLOAT_BYTES)


@triton.jit(do_not_specialize=EACH_CALL)
def two_shot(
    x, out, n, bases, rank, epoch, data_offset, sums_offset, flags_offset, sum_flags_offset, prof,
    WORLD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[i] = the sum of x[i] over all ranks.

    A program has a share of BLOCK numbers for every rank.
    """
    track = kp.open_track(prof, at_most=4 * WORLD - 1)
    begin = kp.start(track)
    first = tl.program_id(0) * WORLD * BLOCK
    within = tl.arange(0, BLOCK)
    own = floats_at(bases, rank, data_offset)
    for share in tl.static_range(WORLD):
        numbers = first + share * BLOCK + within
        tl.store(own + numbers, tl.load(x + numbers, mask=numbers < n), mask=numbers < n)
    track = kp.stop(track, begin, PUBLISH, WORLD * BLOCK * FLOAT_BYTES)
    track = meet(track, bases, flags_offset, rank, epoch, SIGNAL, WAIT, WORLD)
    begin = kp.start(track)
    numbers = first + rank * BLOCK + within
    mask = numbers < n
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for peer in tl.static_range(WORLD):
        total += tl.load(floats_at(bases, peer, data_offset) + numbers, mask=mask, other=0.0)
    for peer in tl.static_range(WORLD):
        tl.store(floats_at(bases, peer, sums_offset) + numbers, total, mask=mask)
    track = kp.stop(track, begin, SUM, WORLD * BLOCK * FLOAT_BYTES)
    track = meet(track, bases, sum_flags_offset, rank, epoch, SIGNAL_SUM, WAIT_SUM, WORLD)
    begin = kp.start(track)
    sums = floats_at(bases, rank, sums_offset)
    for share in tl.static_range(WORLD):
        numbers = first + share * BLOCK + within
        tl.store(out + numbers, tl.load(sums + numbers, mask=numbers < n), mask=numbers < n)
    track = kp.stop(track, begin, GATHER, WORLD * BLOCK * FLOAT_BYTES)


@triton.jit(do_not_specialize=EACH_CALL)
def dispatch(
    x, targets, rows, counts, out, num_received, num_tokens, bases, rank, epoch,
    data_offset, flags_offset, counts_offset, prof,
    WORLD: tl.constexpr, MOST_ROWS: tl.constexpr, HIDDEN: tl.constexpr, SENDERS: tl.constexpr,
):  # fmt: skip
    """Sends row i of x to rank targets[i], as row rows[i] from this rank. out is (WORLD, MOST_ROWS,
    HIDDEN).

    The first SENDERS programs send. One more program per rank receives that rank's rows.
    """
    track = kp.open_track(prof)
    columns = tl.arange(0, HIDDEN)
    program = tl.program_id(0)
    if program < SENDERS:
        for peer in range(program, WORLD, SENDERS):
            begin = kp.start(track)
            words = flags_at(bases, peer, counts_offset) + 2 * rank
            tl.store(words + 1, tl.load(counts + peer))
            raise_flag(words, epoch)
            track = kp.stop(track, begin, SEND_COUNT, peer, 0)
        for token in range(program, num_tokens, SENDERS):
            begin = kp.start(track)
            peer, row = tl.load(targets + token), tl.load(rows + token)
            place = rank * MOST_ROWS + row
            there = floats_at(bases, peer, data_offset) + tl.cast(place, tl.int64) * HIDDEN
            tl.store(there + columns, tl.load(x + tl.cast(token, tl.int64) * HIDDEN + columns))
            raise_flag(flags_at(bases, peer, flags_offset) + place, epoch)
            track = kp.stop(track, begin, SEND_ROW, peer, row)
    else:
        peer = program - SENDERS
        begin = kp.start(track)
        words = flags_at(bases, rank, counts_offset) + 2 * peer
        await_flag(words, epoch)
        # An atomic returns the same value to all threads. A loop with barriers needs the same
        # number of iterations in all of them.
        count = tl.atomic_add(words + 1, 0, sem="relaxed", scope="sys")
        tl.store(num_received + peer, count)
        track = kp.stop(track, begin, WAIT_COUNT, peer, 0)
        here = floats_at(bases, rank, data_offset)
        flags = flags_at(bases, rank, flags_offset)
        for row in range(count):
            begin = kp.start(track)
            place = peer * MOST_ROWS + row
            await_flag(flags + place, epoch)
            track, begin = kp.lap(track, begin, WAIT_ROW, peer, row)
            numbers = tl.cast(place, tl.int64) * HIDDEN + columns
            tl.store(out + numbers, tl.load(here + numbers))
            track = kp.stop(track, begin, COPY_ROW, HIDDEN * FLOAT_BYTES)
