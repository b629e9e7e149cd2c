"""What errors say of waits that were given up: kernels measure them, and on a busy machine they last longer than their limit."""

from __future__ import annotations

import re


def waited_s(message: str, rank: int, peer: int) -> float:
    """How long `rank` says that it waited for `peer`, in seconds: one decimal, no less than its limit."""
    found = re.match(rf"rank {rank} waited (\d+\.\d) s for rank {peer}, slot \d+, ", message)
    assert found, message
    return float(found[1])
