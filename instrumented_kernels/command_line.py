"""What the command lines of the kernels share: options, a late rank, errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from kprof.errors import KprofError

# What an output is filled with before a call: a value that is never right, so that an unwritten
# element shows.
POISON = float("nan")

DelayOption = Annotated[
    float, typer.Option(help="the rank of --delay-rank starts each call later by this")
]
DelayRankOption = Annotated[int, typer.Option(help="the rank that is late")]
WarpsOption = Annotated[int | None, typer.Option(help="warps per block")]
TargetOption = Annotated[
    str, typer.Option(help="cpu, cuda or hip; auto takes GPUs when every rank has one")
]
SeedOption = Annotated[int, typer.Option(help="of the inputs")]
ScheduleSeedOption = Annotated[
    int, typer.Option(help="of the CPU target's interleaving; 0 is first come")
]


@dataclass(frozen=True)
class Delay:
    """Rank `rank` starts each call this much later than the others."""

    seconds: float = 0.0
    rank: int = 0


@contextmanager
def errors_in_one_line(command: str, *expected: type[Exception]) -> Iterator[None]:
    """End `command` with exit code 1 and one line for wrong or impossible arguments.

    The same for errors of the `expected` types, which its calls raise.
    """
    caught: tuple[type[Exception], ...] = (ValueError, KprofError, *expected)
    try:
        yield
    except caught as error:
        typer.echo(f"{command}: {error}", err=True)
        raise typer.Exit(1) from None
