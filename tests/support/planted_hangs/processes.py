"""Starts both ranks of an exchange, and lets their kernels go when the hang was reported.

    kprof record --hang-after 3 -- python -m planted_hangs.processes NAME cpu|cuda

Other reports are waited out: on a busy machine a rank may stand for seconds before it hangs.
"""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Final

from kprof.hangs.diagnosis import Kind
from kprof.hangs.report import Hang, read_hang
from kprof.recording.rank.process import RECORD_DIR_VARIABLE
from planted_hangs.rank import SIZE_BYTES

# What the report must say, and of which ranks.
EXPECTED: Final = {
    "missing_send": (Kind.NEVER_SENT, (1,)), "wrong_slot": (Kind.NEVER_SENT, (1,)),
    "wrong_epoch": (Kind.NOT_SEEN, (1,)), "equal": (Kind.NOT_SEEN, (1,)),
    "cycle": (Kind.CYCLE, (0, 1)), "never_launches": (Kind.NOT_LAUNCHED, (1,)),
    "dies": (Kind.ENDED, (1,)), "grid_too_large": (Kind.NOT_STARTED, (1,)),
    "illegal_address": (Kind.ENDED, (1,)), "trap": (Kind.ENDED, (1,)), "killed": (Kind.ENDED, (1,)),
    "stopped": (Kind.STOPPED, (1,)), "holds_lock": (Kind.CYCLE, (0, 1)),
}  # fmt: skip


_LIMIT_S: Final = 300.0


def is_expected(name: str, found: Hang) -> bool:
    """Whether it is the report of the second call, in which the mistake is. A rank that is slow to answer looks
    like one that holds the interpreter lock."""
    kind, ranks = EXPECTED[name]
    num_under_way = sum(each.num_launches > 0 for each in found.ranks)
    silent = [each.rank for each in found.ranks if each.is_silent]
    is_answered = name != "holds_lock" or silent == [1]
    is_named = (found.kind, found.ranks_at_fault) == (kind.name.lower(), ranks)
    return is_named and num_under_way == 2 and is_answered


def start(name: str, device: str, rank: int, flags: str) -> subprocess.Popen[bytes]:
    """A rank."""
    place = "cpu" if device == "cpu" else f"{device}:{rank}"
    environment = {"RANK": str(rank), "WORLD_SIZE": "2", "EXCHANGE_FLAGS": flags}
    return subprocess.Popen(
        [sys.executable, "-m", "planted_hangs.rank", name, place], env=os.environ | environment
    )


def let_go_when_reported(name: str, file: IO[bytes]) -> None:
    """Let the kernels return when hang.json has what is expected, which is printed. Gives up where that does not
    come."""
    directory = Path(os.environ[RECORD_DIR_VARIABLE])
    end_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < end_s:
        found = read_hang(directory)
        if found and is_expected(name, found):
            print(found.diagnosis, flush=True)
            break
        time.sleep(0.05)
    with mmap.mmap(file.fileno(), SIZE_BYTES) as words:
        words[0] = 1


def main() -> int:
    name, device = sys.argv[1:]
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="exchange-") as file:
        file.truncate(SIZE_BYTES)
        ranks = [start(name, device, rank, file.name) for rank in range(2)]
        let_go_when_reported(name, file.file)
        ranks[1].send_signal(signal.SIGCONT)
        codes = [rank.wait() for rank in ranks]
    return max(128 - code if code < 0 else code for code in codes)


if __name__ == "__main__":
    raise SystemExit(main())
