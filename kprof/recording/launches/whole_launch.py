"""Launches of a kernel whose blocks have one event each: what they have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kprof.abi import RECORDS_PER_CHUNK
from kprof.recording.launches.launch_buffer import LaunchBuffer

if TYPE_CHECKING:
    from kprof.recording.launches.launch_log import Plan
    from kprof.regions import RegionTable

Words = tuple[int, int, int, int]


class Whole:
    """A kernel with so many blocks, and what its launches have in common.

    `words_of` makes a kernel's arguments of a buffer. `made` has the limits of the arena that it
    holds for, the least chunk that a launch may reserve, and the words of launch 0 with chunk 0:
    those of the next launch and the next chunk are larger by 2. It is one object, because threads
    launch.
    """

    __slots__ = ("made", "name", "num_blocks", "num_chunks", "plan", "regions", "words_of")
    plan: Plan

    def __init__(
        self,
        name: str,
        regions: RegionTable,
        num_blocks: int,
        words_of: Callable[[LaunchBuffer], Words],
    ) -> None:
        self.name, self.regions, self.words_of = name, regions, words_of
        self.num_blocks, self.num_chunks = num_blocks, -(-num_blocks // RECORDS_PER_CHUNK)
        self.made: tuple[tuple[int, int] | None, int, Words] = None, 0, (0, 0, 0, 0)

    def make_for(self, plan: Plan, arena: tuple[int, tuple[int, int]] | None) -> None:
        """A launch had this plan, and others may use the arena with this address and these limits,
        if any."""
        self.plan = plan
        if self.num_chunks and arena is not None:
            address, limits = arena
            words = self.words_of(LaunchBuffer(address, 0, 0, 1, self.num_chunks, *limits))
            self.made = limits, limits[0] * limits[1], words
