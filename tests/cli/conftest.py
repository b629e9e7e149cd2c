"""A capture to read, and a way to run the command line in this process."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer.main

from planted import Plant, simulate
from synthetic import TraceBuilder, write_trace

REGIONS = """
REGION(R_SEND, "dispatch/send", send, peer:8, slot:24)
REGION(R_WAIT, "dispatch/wait-token", wait, peer:8, slot:24)
REGION(R_EVIL, "<script>alert(1)</script>", compute)
FLOW(R_SEND, R_WAIT)
"""


@dataclass(frozen=True)
class Result:
    """What a command line did."""

    code: int
    out: str
    err: str

    @property
    def error_line(self) -> str:
        """The one line of an error."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("kprof: ")
        assert self.out == ""
        return lines[0]


Kprof = Callable[..., Result]


# Typer makes its commands anew for every line, which takes longer than some of them.
_get_command = functools.cache(typer.main.get_command)


@pytest.fixture
def kprof(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Kprof:
    """Run `kprof ARGUMENTS` in this process."""
    from kprof_cli.main import run

    monkeypatch.setattr("typer.main.get_command", _get_command)

    def call(*arguments: object) -> Result:
        code = run([str(argument) for argument in arguments])
        return Result(code, *capfd.readouterr())

    return call


def write_small_capture(path: Path) -> Path:
    """Two ranks, two blocks each: block 1 of rank 1 waits 900 ns for rank 0."""
    build = TraceBuilder(REGIONS, 2)
    for block in (0, 1):
        longer_ns = 900 * block
        build.span(0, "dispatch/send", 100, 50 + longer_ns, block=block, peer=1, slot=block)
        build.span(1, "dispatch/wait-token", 110, 60 + longer_ns, block=block, peer=0, slot=block)
        build.span(1, "<script>alert(1)</script>", 1200, 10, block=block)
    return build.write(path).path


@pytest.fixture(scope="session")
def _small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_capture(tmp_path_factory.mktemp("small") / "small.kprof")


@pytest.fixture
def small(_small: Path, tmp_path: Path) -> Path:
    """A capture of six events, of which every test has a copy."""
    return Path(shutil.copytree(_small, tmp_path / "small.kprof"))


@pytest.fixture(scope="session")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated run of 8 ranks in which rank 3 sends three times the tokens."""
    trace = simulate(Plant(tokens_of={3: 3.0}))
    return write_trace(trace, tmp_path_factory.mktemp("skewed") / "run.kprof").path
