"""Delays of `kprof verify` in Triton, like delay_of and delay_end in kprof.h.

A branch depends on memory here, and threads leave the loop at different moments: none has a
barrier.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr, tensor

from kprof import abi
from kprof.triton import platform
from kprof.triton.device import STORES_NOTHING, counter_at, low_of, program_number, two_words

WORD_OFFSET = tl.constexpr(abi.DELAYS_OFFSET)
BEYOND_OFFSET = tl.constexpr(abi.DELAYS_OFFSET + 8)
BLOCKS_OFFSET = tl.constexpr(abi.DELAYS_OFFSET + 16)
LAST_BLOCK = tl.constexpr(abi.NUM_DELAYED_BLOCKS - 1)
REGION_SHIFT = tl.constexpr(abi.DELAY_BITS)
LENGTH_MASK = tl.constexpr((1 << abi.DELAY_BITS) - 1)
MANTISSA_BITS = tl.constexpr(abi.DELAY_MANTISSA_BITS)
MANTISSA_MASK = tl.constexpr((1 << abi.DELAY_MANTISSA_BITS) - 1)


@triton.jit
def delay_of(arena_word: tensor, launch_word: tensor, cursor: tensor) -> tensor:
    """What delays the spans of a new track in this launch: the region and a length, or 0."""
    arena = arena_word & -2
    block = program_number()
    word_and_every = two_words(arena + WORD_OFFSET)
    is_beyond_delayed = two_words(arena + BEYOND_OFFSET).to(tl.int32)
    place = tl.minimum(block, LAST_BLOCK)
    bits = tl.load(counter_at(arena + BLOCKS_OFFSET + 4 * (place // 32)))
    is_wanted = tl.where(block == place, (bits >> (block & 31)) & 1, is_beyond_delayed) != 0
    every = tl.maximum((word_and_every >> 32).to(tl.uint32), 1)
    is_wanted &= low_of(launch_word).to(tl.uint32) % every == 0
    is_wanted &= (cursor & STORES_NOTHING) == 0
    return tl.where(is_wanted, word_and_every.to(tl.uint32), 0)


@triton.jit
def delay_end(delay: tensor, region: constexpr) -> None:
    """Spins where the region of a span that ends is the one to delay: every thread for itself."""
    if (delay >> REGION_SHIFT) == region:
        length = delay & LENGTH_MASK
        ticks = (length & MANTISSA_MASK).to(tl.int64) << (length >> MANTISSA_BITS)
        begin = platform.realtime_ticks()
        while platform.realtime_ticks() - begin < ticks:
            pass
