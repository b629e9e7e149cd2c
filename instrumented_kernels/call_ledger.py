"""The sequence of calls that each rank of a group makes, in memory that the hosts of all ranks can
read.

Ranks must make the same calls in the same order. Otherwise peers would wait forever or get wrong
values, so every call is compared before it is launched: the rank that comes second sees that the
calls differ, and refuses. That takes a store and a load per peer. Captured calls are compared at
capture, not when the graph is replayed.

A call that raises an error counts, too: without its number the next one would meet the peers' call
that this one was for. Where a peer has launched that call, the ranks are out of step for good, and
all later calls of the rank that refused raise. Where no peer has, none will: each raises, and the
next calls of all ranks meet.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import time
import zlib
from typing import Final

from kprof.capture.processes import Condition, process_of
from kprof.devices.groups import Group
from kprof.devices.symmetric import SymmetricHeap

# A rank can never be this many calls ahead of another, because the queue of a GPU holds 1024
# launches.
LENGTH: Final = 4096
_NUM_TEXTS: Final = 128
_TEXT_BYTES: Final = 192
_WORD_BYTES: Final = 8
_MEETING_POLL_S: Final = 0.001
# Of a call's word: the number << 32 | whether it was refused | whether that is not decided yet |
# the fingerprint.
_REFUSED: Final = 1 << 31
_PENDING: Final = 1 << 30
_FINGERPRINT: Final = _PENDING - 1
# Deciding takes microseconds; a rank that takes longer has died in between.
_DECISION_S: Final = 1.0


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
    """One rank's part: a ring of calls (a word each), and the text of the latest."""

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
        return "its call"


class _Preparing:
    """While a call is prepared, an error takes its number. Every call enters this: it is cheap."""

    def __init__(self, ledger: CallLedger) -> None:
        self._ledger = ledger

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._ledger.refuse()


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
        self.preparing: Final = _Preparing(self)
        self._processes = group.all_gather(process_of(os.getpid()))
        self._number = 0
        # Calls that this rank refused, as long as peers may have launched them.
        self._refused: list[int] = []
        # Numbers that people do not count: calls that make a plan.
        self._meetings: list[int] = []
        self._fingerprints: dict[str, int] = {}

    def fingerprint(self, text: str) -> int:
        """The fingerprint of a call for `note`. Peers can read the text."""
        known = self._fingerprints.get(text)
        if known is None:
            known = self._fingerprints[text] = zlib.crc32(text.encode()) & _FINGERPRINT
            self._pages[self._rank].write_text(len(self._fingerprints), known, text)
        return known

    def note(self, fingerprint: int) -> None:
        """Note that this rank makes its next call.

        Raises DifferentCallsError when a peer's call of the same number differs, or when a peer has
        launched a call that this rank refused.
        """
        self._number = number = self._number + 1
        idx, word = number % LENGTH, number << 32 | fingerprint
        self._own[idx] = word | _PENDING
        if self._refused:
            self._check_refused()
        for calls in self._peers:
            seen = calls[idx]
            if seen & ~_PENDING != word and seen >> 32 == number:
                self._raise_difference(number)
        self._own[idx] = word

    def refuse(self) -> None:
        """The next call of this rank raises an error before it could be noted."""
        self._number += 1
        self._own[self._number % LENGTH] = self._number << 32
        self.withdraw()

    def withdraw(self) -> None:
        """The call that was noted last is not launched."""
        word = self._own[self._number % LENGTH]
        self._own[self._number % LENGTH] = word & ~_PENDING | _REFUSED
        self._refused.append(self._number)

    def meet(self, text: str, timeout_s: float) -> None:
        """Wait until all ranks call this with the same text.

        Raises PeerTimeoutError or DifferentCallsError.
        """
        self._meetings.append(self._number + 1)
        self.note(self.fingerprint(text))
        number, deadline = self._number, time.monotonic() + timeout_s
        while (late := self._first_behind(number)) is not None:
            self._raise_difference(number)
            if time.monotonic() > deadline:
                explanation = self.explain(late)
                self.withdraw()
                raise PeerTimeoutError(
                    f"rank {self._rank} waited {timeout_s:.1f} s for rank {late} in {text}; "
                    f"{explanation}"
                )
            time.sleep(_MEETING_POLL_S)
        self._raise_difference(number)

    def explain(self, peer: int) -> str:
        """A clause that says what has become of `peer`, or of others, and where its calls first
        differ from ours; or empty."""
        ranks = [peer, *range(len(self._pages))]
        found = [
            next(filter(None, map(of, ranks)), "") for of in (self._fate, self._first_difference)
        ]
        return "; ".join(filter(None, found))

    def _fate(self, rank: int) -> str:
        process = self._processes[rank]
        match process.condition():
            case Condition.ENDED:
                return f"the process of rank {rank} ({process.pid}) has ended"
            case Condition.STOPPED:
                return f"rank {rank} is stopped: kill -CONT {process.pid} lets it go on"
        return ""

    def _first_difference(self, peer: int) -> str:
        for number in range(max(1, self._number - LENGTH + 1), self._number + 1):
            if self._pages[peer].calls[number % LENGTH] >> 32 < number:
                counted = number - bisect.bisect_left(self._meetings, number)
                text = self._text(self._rank, number)
                return f"rank {peer} has not made call {counted}, {text}"
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

    def _check_refused(self) -> None:
        """Raise DifferentCallsError when a peer has launched a call that this rank refused."""
        for number in list(self._refused):
            words = [_decided(page.calls, number) for page in self._pages]
            there = [rank for rank, word in enumerate(words) if word >> 32 == number]
            for rank in there:
                if not words[rank] & _REFUSED:
                    self.withdraw()
                    raise DifferentCallsError(
                        f"rank {rank} has launched {self._text(rank, number)}, which rank "
                        f"{self._rank} refused, so that their calls are out of step; close the "
                        "plans on all ranks and make new ones"
                    )
            if len(there) == len(words) or number <= self._number - LENGTH:
                self._refused.remove(number)

    def _raise_difference(self, number: int) -> None:
        if difference := self._difference(number):
            self.withdraw()
            raise DifferentCallsError(difference)

    def _difference(self, number: int, peer: int | None = None) -> str:
        """A clause that names the first rank whose call with this number differs."""
        own = self._own[number % LENGTH]
        for rank, page in enumerate(self._pages):
            seen = page.calls[number % LENGTH]
            is_other = (seen ^ own) & ~_PENDING
            if seen >> 32 == number and is_other and peer in (None, rank):
                return (
                    f"rank {rank} {self._deed(rank, number)}, rank {self._rank} "
                    f"{self._deed(self._rank, number)}; all ranks must make the same calls in the "
                    "same order"
                )
        return ""

    def _deed(self, rank: int, number: int) -> str:
        is_refused = self._pages[rank].calls[number % LENGTH] & _REFUSED
        verb = "raised an error instead of making" if is_refused else "calls"
        return f"{verb} {self._text(rank, number)}"

    def _text(self, rank: int, number: int) -> str:
        page = self._pages[rank]
        return page.text_of(page.calls[number % LENGTH] & _FINGERPRINT)


def _decided(calls: memoryview, number: int) -> int:
    """The word of a call, once its rank knows whether it launches it."""
    deadline = time.monotonic() + _DECISION_S
    while (word := calls[number % LENGTH]) & _PENDING and time.monotonic() < deadline:
        time.sleep(0)
    return word
