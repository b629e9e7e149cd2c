"""Shared parts of the kernels' command lines: options, a late rank, errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from kprof.errors import KprofError

# Fills outputs before a call. It is never a right value, so unwritten elements show.
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
    """Rank `rank` starts each call this much after the others."""

    seconds: float = 0.0
    rank: int = 0


@contextmanager
def errors_in_one_line(command: str, *expected: type[Exception]) -> Iterator[None]:
    """End `command` with exit code 1 and one line if its arguments are wrong or impossible.

    Treats errors of the `expected` types, which its calls raise, in the same way.
    """
    caught: tuple[type[Exception], ...] = (ValueError, KprofError, *expected)
    try:
        yield
    except caught as error:
        typer.echo(f"{command}: {error}", err=True)
        raise typer.Exit(1) from None
