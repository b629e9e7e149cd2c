"""Options that the command lines of several kernels have."""

from typing import Annotated

from typer import Option

DelayMs = Annotated[float, Option(help="the rank of --delay-rank starts each call later by this")]
DelayRank = Annotated[int, Option(help="the rank that is late")]
Repeats = Annotated[int, Option(help="calls, back to back, each with its own inputs")]
Graph = Annotated[
    bool, Option(help="capture the calls in one CUDA graph: the host's pace does not show")
]
Target = Annotated[str, Option(help="cpu, cuda or hip; auto takes GPUs when every rank has one")]
# Of kernels for one GPU.
LocalTarget = Annotated[str, Option(help="cpu, cuda or hip; auto takes a GPU if there is one")]
Seed = Annotated[int, Option(help="of the inputs")]
