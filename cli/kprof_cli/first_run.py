"""The collectives for `kprof doctor --first-run`: small, poisoned, checked value by value."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from typing import Final

from kprof.devices.targets import Target, count_devices, target_of_device
from kprof.doctor.checks import Check
from kprof.recording.launcher.record import launch_arguments, module_command

_VARIANTS: Final = {
    "all_reduce": (
        *("oneshot_serial", "oneshot_lock", "oneshot_tree", "oneshot"),
        *("twoshot_packets", "twoshot", "ring"),
    ),
    "all_to_all": ("rank_flags", "token_flags", "fused", "balanced", "pipelined"),
}
# With the time to compile for a new GPU.
_LIMIT_S: Final = 900.0
# Where torchrun begins to tell, on stderr, that ranks have failed.
_OF_TORCHRUN: Final = re.compile(r"^[EW]\d{4} .*torch/distributed/elastic/", re.MULTILINE)


def collectives(device: str) -> Iterator[Check]:
    """Two processes that share memory on this device. Then one check for each variant, on two
    ranks, or on one where the host has one GPU."""
    target = target_of_device(device)
    num_ranks = 2 if target is Target.CPU else min(2, count_devices(target))
    yield Check("memory between processes", *_outcome(_run(2, "shared_memory", device)), "")
    for kernel, variants in _VARIANTS.items():
        for variant in variants:
            yield _try(kernel, variant, target.value, num_ranks)


def _try(kernel: str, variant: str, target: str, num_ranks: int) -> Check:
    answer = _run(num_ranks, kernel, "--variant", variant, "--target", target)
    return Check(f"{kernel} {variant}, {num_ranks} ranks", *_outcome(answer), "")


def _outcome(answer: subprocess.CompletedProcess[str] | None) -> tuple[bool, str]:
    """Whether it went well, and the last line that its ranks have printed."""
    if answer is None:
        return False, f"did not end within {_LIMIT_S:.0f} s"
    is_ok = answer.returncode == 0
    printed = answer.stdout if is_ok else _OF_TORCHRUN.split(answer.stderr)[0]
    lines = printed.strip().splitlines() or [f"exit code {answer.returncode}"]
    return is_ok, lines[-1].strip()


def _run(num_ranks: int, module: str, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    """A module of instrumented_kernels under torchrun. None if it has not ended in time."""
    rank = [*module_command(f"instrumented_kernels.{module}"), *arguments]
    command = launch_arguments(rank, num_ranks)
    with subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed = process.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            # Ranks outlive a torchrun that is killed, and one whose peer is gone may spin for ever.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, *printed)
