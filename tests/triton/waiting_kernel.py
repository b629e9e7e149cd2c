"""A kernel whose programs wait for flags: the one of program 2 never comes, until kprof has said so.

TRITON_INTERPRET=1 kprof record --hang-after 1 -- python waiting_kernel.py
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import torch
import triton
import triton.language as tl

import kprof.triton as kp

NEVER, EPOCH, HELD = 2, 9, 4
regions = kp.Regions()
WAIT = regions.define("wait", category="wait", peer=8, slot=24)


@triton.jit
def consume(flags, epoch, prof):
    track = kp.open_track(prof)
    place = tl.program_id(0)
    wait = kp.waiting(track)
    held = tl.atomic_add(flags + place, 0, sem="acquire", scope="sys")
    while held < epoch:
        wait = kp.still_waiting(track, wait, WAIT, 0, slot=place + 5, held=held, wanted=epoch)
        held = tl.atomic_add(flags + place, 0, sem="acquire", scope="sys")
    track = kp.stop(track, wait, WAIT, 0, slot=place + 5)


def release(flags: torch.Tensor) -> None:
    """Ends the wait once a hang has been written in which it is old: an earlier one may be about a kernel that is
    slow to begin. In the end without one, for a test to fail."""
    path = Path(os.environ["KPROF_RECORD_DIR"]) / "hang.json"
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        if path.exists() and any(
            wait["age_s"] >= 1 for wait in json.loads(path.read_text())["waits"]
        ):
            break
        time.sleep(0.05)
    flags[NEVER] = EPOCH


def main() -> None:
    flags = torch.full((4,), EPOCH, dtype=torch.int32)
    flags[NEVER] = HELD
    buffer = kp.buffer("consume", 4, regions)
    threading.Thread(target=release, args=(flags,), daemon=True).start()
    consume[(4,)](flags, EPOCH, buffer)
    print("ends", flags.tolist())


if __name__ == "__main__":
    main()
