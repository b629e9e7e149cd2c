"""Spans that hold nothing, because the compiler has moved what stood in them.

Triton pipelines loops: copies for a later turn are begun in an earlier one, and only calls of ours
stay where they were. Then two readings of the clock follow each other in the compiled code.
"""

from __future__ import annotations

import re
from typing import Final

from kprof import abi
from kprof.recording.endings.complaints import complain
from kprof.regions import RegionTable

_CLOCK: Final = re.compile(r"mov\.u64\s+(%rd\d+), %globaltimer;")
# What is no instruction: directives, comments, and labels of debug information.
_NOTHING: Final = re.compile(r"\s*(?:\.loc\b[^\n]*|//[^\n]*|\$L__tmp\d+:[^\n]*)?")


def empty_regions(ptx: str) -> set[int]:
    """Ids of the regions that have a span whose two clock readings follow each other in PTX."""
    before = ""
    found = set()
    for line in ptx.splitlines():
        clock = _CLOCK.match(line.strip())
        if clock:
            if before:
                found |= _regions_begun(ptx, before)
            before = clock[1]
        elif not _NOTHING.fullmatch(line):
            before = ""
    return found


def _regions_begun(ptx: str, begin: str) -> set[int]:
    """The regions of records that begin at the reading in this register."""
    masked = re.findall(rf"and\.b64\s+(%rd\d+), {begin}, {abi.START_MASK};", ptx)
    bits = (re.findall(rf"or\.b64\s+%rd\d+, {word}, (-?\d+);", ptx) for word in masked)
    return {(int(each) & (1 << 64) - 1) >> abi.START_BITS for several in bits for each in several}


class Looked:
    """What was said of the compiled code of a kernel, once for each region."""

    def __init__(self, kernel: str, table: RegionTable) -> None:
        self._kernel, self._table = kernel, table
        self._seen: set[str] = set()
        self._said: set[int] = set()

    def look_at(self, compiled: object) -> None:
        """Says on stderr which spans of a launched kernel measure nothing."""
        code = getattr(compiled, "hash", None)
        if code is None or code in self._seen:
            return
        self._seen.add(code)
        empty = empty_regions(getattr(compiled, "asm", {}).get("ptx", "")) - self._said
        for region in sorted(empty & set(range(1, len(self._table) + 1))):
            self._said.add(region)
            complain(
                f"span {self._table[region].name!r} of {self._kernel} measures nothing: the "
                "compiler has moved what stands in it, as it does in a pipelined loop; put it "
                "around the whole loop, or launch with num_stages=1"
            )
