"""The sequence of calls that each rank of a group makes, in memory that the hosts of all ranks can
read.

Ranks must make the same calls in the same order. Otherwise peers would wait forever or get wrong
values, so every call is compared before it is launched: the rank that comes second sees that the
calls differ, and refuses. That takes a store and a load per peer. Captured calls are compared at
capture, not when the graph is replayed.
"""

from __future__ import annotations

import ctypes
import time
import zlib
from typing import TYPE_CHECKING, Final

from kprof.devices.symmetric import SymmetricHeap

if TYPE_CHECKING:
    from kprof.groups import Group

# A rank can never be this many calls ahead of another, because the queue of a GPU holds 1024
# launches.
LENGTH: Final = 4096
_NUM_TEXTS: Final = 128
_TEXT_BYTES: Final = 192
_WORD_BYTES: Final = 8
_MEETING_POLL_S: Final = 0.001


class PeerError(RuntimeError):
    """A collective call failed on this rank. Its results are invalid."""


class PeerTimeoutError(PeerError):
    """A rank waited for a peer longer than the limit.

    The message says which rank waited, for which rank and for what.
    """


class DifferentCallsError(PeerError):
    """Ranks made different calls; the message names both.

    Nothing was launched on the rank that raises it.
    """


class _Page:
    """One rank's part: a ring of calls (number << 32 | fingerprint), and the text of the last
    one."""

    def __init__(self, address: int) -> None:
        words = (ctypes.c_uint64 * LENGTH).from_address(address)
        self.calls = memoryview(words).cast("B").cast("Q")
        begin = address + LENGTH * _WORD_BYTES
        texts = (ctypes.c_char * (_NUM_TEXTS * _TEXT_BYTES)).from_address(begin)
        self._texts = memoryview(texts).cast("B")

    def write_text(self, idx: int, fingerprint: int, text: str) -> None:
        begin = idx % _NUM_TEXTS * _TEXT_BYTES
        line = fingerprint.to_bytes(4, "little") + text.encode()[: _TEXT_BYTES - 4]
        self._texts[begin : begin + _TEXT_BYTES] = line.ljust(_TEXT_BYTES, b"\0")

    def text_of(self, fingerprint: int) -> str:
        wanted = fingerprint.to_bytes(4, "little")
        for begin in range(0, len(self._texts), _TEXT_BYTES):
            line = bytes(self._texts[begin : begin + _TEXT_BYTES])
            if line.startswith(wanted):
                return line[4:].rstrip(b"\0").decode(errors="replace")
        return "another call"


class CallLedger:
    """The ledger of one group. Creation is collective.

    Raises kprof's TargetError if ranks share no memory.
    """

    def __init__(self, group: Group) -> None:
        self._rank = group.rank
        size_bytes = LENGTH * _WORD_BYTES + _NUM_TEXTS * _TEXT_BYTES
        self._heap = SymmetricHeap(group, size_bytes)
        self._pages = [_Page(base) for base in self._heap.bases]
        self._own = self._pages[group.rank].calls
        self._peers = [page.calls for rank, page in enumerate(self._pages) if rank != group.rank]
        self._number = 0
        self._fingerprints: dict[str, int] = {}

    def fingerprint(self, text: str) -> int:
        """The fingerprint of a call for `note`. Peers can read the text."""
        known = self._fingerprints.get(text)
        if known is None:
            known = self._fingerprints[text] = zlib.crc32(text.encode())
            self._pages[self._rank].write_text(len(self._fingerprints), known, text)
        return known

    def note(self, fingerprint: int) -> None:
        """Note that this rank makes its next call.

        Raises DifferentCallsError if a peer's call with the same number differs.
        """
        number = self._number + 1
        idx, word = number % LENGTH, number << 32 | fingerprint
        self._own[idx] = word
        for calls in self._peers:
            seen = calls[idx]
            if seen != word and seen >> 32 == number:
                raise DifferentCallsError(self._difference(number) or "")
        self._number = number

    def retract(self) -> None:
        """Take back the last call, which could not be launched. The next one gets its number."""
        self._own[self._number % LENGTH] = 0
        self._number -= 1

    def meet(self, text: str, timeout_s: float) -> None:
        """Wait until all ranks call this with the same text.

        Raises PeerTimeoutError or DifferentCallsError.
        """
        self.note(self.fingerprint(text))
        number, deadline = self._number, time.monotonic() + timeout_s
        while (late := self._first_behind(number)) is not None:
            if difference := self._difference(number):
                raise DifferentCallsError(difference)
            if time.monotonic() > deadline:
                raise PeerTimeoutError(
                    f"rank {self._rank} waited {timeout_s:.1f} s for rank {late} in {text}; "
                    f"{self.explain(late)}"
                )
            time.sleep(_MEETING_POLL_S)
        if difference := self._difference(number):
            raise DifferentCallsError(difference)

    def explain(self, peer: int) -> str:
        """A clause that says where the calls of `peer`, or of others, first differ from ours; or
        empty."""
        ranks = [peer, *range(len(self._pages))]
        return next(filter(None, map(self._first_difference, ranks)), "")

    def _first_difference(self, peer: int) -> str:
        for number in range(max(1, self._number - LENGTH + 1), self._number + 1):
            if self._pages[peer].calls[number % LENGTH] >> 32 < number:
                text = self._text(self._rank, number)
                return f"rank {peer} has not made call {number}, {text}"
            if difference := self._difference(number, peer):
                return difference
        return ""

    def close(self) -> None:
        """Release the memory. Peers may still read it."""
        self._peers.clear()
        self._pages.clear()
        self._own = memoryview(bytearray(LENGTH * _WORD_BYTES)).cast("Q")
        self._heap.close()

    def _first_behind(self, number: int) -> int | None:
        for rank, page in enumerate(self._pages):
            if page.calls[number % LENGTH] >> 32 < number:
                return rank
        return None

    def _difference(self, number: int, peer: int | None = None) -> str:
        """A clause that names the first rank whose call with this number differs."""
        own = self._own[number % LENGTH]
        for rank, page in enumerate(self._pages):
            seen = page.calls[number % LENGTH]
            if seen >> 32 == number and seen != own and peer in (None, rank):
                return (
                    f"rank {rank} calls {self._text(rank, number)}, rank {self._rank} calls "
                    f"{self._text(self._rank, number)}; all ranks must make the same calls in the "
                    "same order"
                )
        return ""

    def _text(self, rank: int, number: int) -> str:
        page = self._pages[rank]
        return page.text_of(page.calls[number % LENGTH] & 0xFFFF_FFFF)
