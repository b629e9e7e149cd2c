"""A workload of torch.compile, which knows nothing of kprof: an activation, and on a GPU a softmax
as well.

With TRITON_INTERPRET=1 Inductor makes Triton kernels for the CPU, and the interpreter runs them.
"""

from __future__ import annotations

import os

import torch
import torch.utils._triton
from torch._inductor import config

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CALLS = 3
SHAPE = (64, 100) if IS_INTERPRETED else (4096, 1000)


def on_the_cpu() -> None:
    """Inductor asks Triton for a driver, only to name the files of its cache. There is none for the CPU."""
    config.cpu_backend = "triton"
    config.compile_threads = 1
    torch.utils._triton.triton_hash_with_backend = lambda: "interpreted"


def activation(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + y) * 2


def softmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * y, -1)


def main() -> None:
    if IS_INTERPRETED:
        on_the_cpu()
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(SHAPE, generator=generator) for _ in range(2))
    for function in (activation,) if IS_INTERPRETED else (activation, softmax):
        expected = function(x.double(), y.double())
        compiled = torch.compile(function)
        device = "cpu" if IS_INTERPRETED else "cuda"
        a, b = x.to(device), y.to(device)
        for _ in range(CALLS):
            out = compiled(a, b)
            torch.testing.assert_close(out.double().cpu(), expected, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    main()
