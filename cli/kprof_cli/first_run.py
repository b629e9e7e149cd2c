"""The collectives for `kprof doctor --first-run`: small, poisoned, checked value by value."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from kprof.devices.doctor import Check

_VARIANTS: Final = {
    "all_reduce": (
        *("oneshot_serial", "oneshot_lock", "oneshot_tree", "oneshot"),
        *("twoshot_packets", "twoshot", "ring"),
    ),
    "all_to_all": ("rank_flags", "token_flags", "fused", "balanced", "pipelined"),
}
# With the time to compile for a new GPU.
_LIMIT_S: Final = 900.0


def collectives(device: str) -> Iterator[Check]:
    """One check for each variant, on two ranks, or on one where the host has one GPU."""
    from kprof.devices.targets import Target, count_devices, target_of_device

    target = target_of_device(device)
    num_ranks = 2 if target is Target.CPU else min(2, count_devices(target))
    for kernel, variants in _VARIANTS.items():
        for variant in variants:
            yield _try(kernel, variant, target.value, num_ranks)


def _try(kernel: str, variant: str, target: str, num_ranks: int) -> Check:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(num_ranks), "-m", f"instrumented_kernels.{kernel}"),
        *("--variant", variant, "--target", target),
    ]
    name = f"{kernel} {variant}, {num_ranks} ranks"
    try:
        answer = subprocess.run(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Check(name, False, f"did not end within {_LIMIT_S:.0f} s", "")
    lines = (answer.stdout if answer.returncode == 0 else answer.stderr).strip().splitlines()
    found = next(
        (line for line in reversed(lines) if line.strip()), f"exit code {answer.returncode}"
    )
    return Check(name, answer.returncode == 0, found.strip(), "")
