"""The programs for a GPU, what they need, and the ways to record them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True)
class Program:
    """A file in `programs/` and its arguments. `with_spans` are arguments that kprof's run has on top."""

    file: str
    arguments: tuple[str, ...] = ()
    needs: str = "torch"
    with_spans: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return " ".join([self.file.removesuffix(".py"), *self.arguments])

    @property
    def is_here(self) -> bool:
        return importlib.util.find_spec(self.needs) is not None


PROGRAMS = (
    *[
        Program("llama.py", (mode, "2"), "transformers")
        for mode in ("train", "eval", "decode", "static")
    ],
    Program("resnet.py", needs="torchvision"),
    Program("matmul.py"),
    Program("flex.py"),
    Program("user_kernel.py"),
    Program("tutorials.py"),
    Program("vision.py", needs="timm"),
    Program("graph_network.py", needs="torch_geometric"),
    Program("liger.py", needs="liger_kernel", with_spans=("spans",)),
    Program("linear_attention.py", needs="fla", with_spans=("spans",)),
    *[
        Program("modes.py", (mode,))
        for mode in (
            "backward",
            "graph",
            "graph, warm",
            "default device",
            "deterministic",
            "fake first",
            "inference",
            "profiler",
        )
    ],
)

# The options for each way; the first one drains.
WAYS = {
    "drained": ("--inductor",),
    "in one arena": ("--inductor", "--arena-size", "256MiB"),
    "--ring": ("--inductor", "--ring", "64MiB"),
    "--calls": ("--inductor", "--calls", "2"),
    "host arena": ("--inductor", "--arena", "host"),
    # Of a rank that there is not.
    "switched off": ("--inductor", "--ranks", "7"),
}

OVERFLOW_LAUNCHES, OVERFLOW_PROGRAMS = 12, 200_000
# All of these events fit in arenas of this size.
OVERFLOW_FITS_MIB = 2366
OVERFLOW_ARENAS_MIB = (64, 512, 1024, 2048, OVERFLOW_FITS_MIB, 4096, 8192)
