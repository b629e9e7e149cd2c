"""A rank of a torchrun job that is started again: in the first attempt rank 1 fails once rank 0 has launched."""

from __future__ import annotations

import os
import time
from pathlib import Path

import lifetimes

import kprof

ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
RANK = int(os.environ["RANK"])


def main() -> None:
    launched = Path(os.environ["KPROF_RECORD_DIR"]).with_name("launched")
    recorder = kprof.recorder(["event", "wait"])
    lifetimes.launch(recorder, times=3 + ATTEMPT)
    if ATTEMPT:
        return
    if RANK == 0:
        launched.touch()
        # Until torchrun ends it, because rank 1 has failed.
        time.sleep(1200)
    while not launched.exists():
        time.sleep(0.01)
    os._exit(3)


main()
