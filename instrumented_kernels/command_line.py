"""Shared parts of the kernels' workloads: a late rank, errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import typer

from kprof.errors import KprofError

# Fills outputs before a call. It is never a right value, so unwritten elements show.
POISON = float("nan")


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
