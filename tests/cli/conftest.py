"""A capture to read, and a way to run the command line in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kprof.capture.directory import begin_capture, event_schema, finish_capture, write_rank_events
from kprof.trace import Trace
from planted import Plant, simulate
from synthetic import TraceBuilder

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


@pytest.fixture
def kprof(capfd: pytest.CaptureFixture[str]) -> Kprof:
    """Run `kprof ARGUMENTS` in this process."""
    from kprof_cli.main import run

    def call(*arguments: object) -> Result:
        code = run([str(argument) for argument in arguments])
        return Result(code, *capfd.readouterr())

    return call


def write_small_capture(path: Path) -> Path:
    """Two ranks, two blocks each: block 1 of rank 1 waits 900 ns for rank 0."""
    build = TraceBuilder(REGIONS, 2)
    for block in (0, 1):
        longer_ns = 900 * block
        send = {
            "region": "dispatch/send",
            "start_ns": 100,
            "duration_ns": 50 + longer_ns,
            "peer": 1,
        }
        wait = {
            "region": "dispatch/wait-token",
            "start_ns": 110,
            "duration_ns": 60 + longer_ns,
            "peer": 0,
        }
        build.span(rank=0, block=block, slot=block, **send)
        build.span(rank=1, block=block, slot=block, **wait)
        build.span(1, "<script>alert(1)</script>", 1200, 10, block=block)
    return build.write(path).path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A capture of six events."""
    return write_small_capture(tmp_path / "small.kprof")


@pytest.fixture(scope="session")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated run of 8 ranks in which rank 3 sends three times the tokens."""
    return _write(
        simulate(Plant(tokens_of={3: 3.0})), tmp_path_factory.mktemp("skewed") / "run.kprof"
    )


def _write(trace: Trace, output: Path) -> Path:
    directory = begin_capture(output, force=False)
    columns = ", ".join(event_schema().names)
    for info in trace.ranks:
        events = trace.sql(f"SELECT {columns} FROM raw_events WHERE rank = {info.rank}")
        write_rank_events(directory, info.rank, events.cast(event_schema()))
    return finish_capture(directory, output, trace.manifest).path
