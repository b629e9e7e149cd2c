"""A rank of a torchrun job with a real recorder: rank 1 dies if told so, the others wait for ever."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import kprof
from kprof.capture.started import read_ranks_started


def main() -> None:
    recorder = kprof.recorder(["work"])
    recorder.launch("kernel")
    directory = Path(os.environ["KPROF_RECORD_DIR"])
    # Everybody has a recorder before anything happens.
    while len(read_ranks_started(directory)) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)
    if sys.argv[1:] == ["die"] and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    # One write: the ranks share their standard output.
    os.write(1, b"ready\n")
    time.sleep(1200)


main()
