"""What all GPU tests ask first."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kprof.devices.targets import Target, count_devices, find_compiler


@pytest.fixture
def require_gpus() -> Callable[[int], None]:
    """Skips the test where this machine has fewer NVIDIA GPUs, or no compiler for them."""

    def require(num_gpus: int) -> None:
        num_devices = count_devices(Target.CUDA)
        if find_compiler(Target.CUDA) is None or num_devices < num_gpus:
            pytest.skip(f"needs {num_gpus} NVIDIA GPUs and nvcc; this machine has {num_devices}")

    return require
