"""The real trace processor for every test that has a trace file: `processor(path)`, skipped with a reason."""

from __future__ import annotations

import gc
import importlib.util
import os
import resource
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# Under nohup, or in the background of a script, a process starts with these ignored, and hands that
# on to the workloads that tests send them to.
for _signal, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _handler)

if importlib.util.find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    # How long an example takes is up to the machine. `make soak` tries many more.
    settings.register_profile(
        "kprof",
        deadline=None,
        max_examples=int(os.environ.get("KPROF_TEST_EXAMPLES", "40")),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("kprof")


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """What collecting makes stays until the end: the garbage collector need not go through it, now or later."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


# Of tests that take many seconds, each commit runs one in so many.
DEAR_EVERY = 5


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what another commit tries, by a hash of the commit: where all tests run, four in five
    of those in dear.txt; of a test that is marked `sampled(n)`, all but its first case and one in n
    of the others. KPROF_TEST_EVERY gives n for all. Who names a case gets it. Those in dear.txt are
    slow tests."""
    dear = dear_tests()
    deciding = {item: _decides(item, dear) for item in items}
    of_dear = set(dear)
    for item in items:
        if deciding[item] in of_dear:
            item.add_marker("slow")
    if any("[" in argument for argument in config.args):
        return
    given, commit = os.environ.get("KPROF_TEST_EVERY"), _commit()
    are_all = all(Path(each).resolve() == Path(__file__).parent for each in config.args)
    left_out = left_out_of(dear, commit) if are_all and given is None else set()
    seen: set[str] = set()

    def is_chosen(name: str, every: int) -> bool:
        return zlib.crc32(f"{commit} {name}".encode()) % every == 0

    def is_left(item: pytest.Item) -> bool:
        test = item.nodeid.partition("[")[0]
        if deciding[item] in left_out:
            return False
        is_first = test not in seen
        seen.add(test)
        marker = item.get_closest_marker("sampled")
        # By a hash: every third case would be the same kernel where there are three of them.
        return is_first or is_chosen(item.nodeid, int(given or (marker.args[0] if marker else 1)))

    left = [item for item in items if is_left(item)]
    if len(left) < len(items):
        kept = set(left)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = left


def _decides(item: pytest.Item, dear: list[str]) -> str:
    """Whether it runs goes by the dearest fixture of its file that it waits for, or else by itself."""
    test = item.nodeid.partition("[")[0]
    file = test.partition("::")[0]
    waits_for = {f"{file}::{name}" for name in getattr(item, "fixturenames", ())}
    return next((name for name in dear if name in waits_for), test)


def dear_tests() -> list[str]:
    """The tests, and the fixtures of files, that dear.py found, the dearest first."""
    lines = (Path(__file__).parent / "dear.txt").read_text().splitlines()
    return [line.split()[1] for line in lines]


def left_out_of(dear: list[str], commit: str) -> set[str]:
    """All but one of every few neighbours, which cost about as much: so do all commits then."""
    groups = [dear[i : i + DEAR_EVERY] for i in range(0, len(dear), DEAR_EVERY)]
    chosen = [zlib.crc32(f"{commit} {group[0]}".encode()) % DEAR_EVERY for group in groups]
    return {
        test
        for group, number in zip(groups, chosen, strict=True)
        for i, test in enumerate(group)
        if i != number
    }


def _cpu_s() -> float:
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, who))


# Of the fixtures that tests share, so far.
_shared_s = 0.0


def _note_cost(cost_s: float, name: str) -> None:
    """With KPROF_TEST_COSTS=FOLDER, notes a processor time there, for dear.py."""
    if folder := os.environ.get("KPROF_TEST_COSTS"):
        with (Path(folder) / str(os.getpid())).open("a") as notes:
            notes.write(f"{cost_s:.2f} {name}\n")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    begin_s = _cpu_s() - _shared_s
    yield
    _note_cost(_cpu_s() - _shared_s - begin_s, item.nodeid)


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    """Whichever test comes first sets up what others wait for, too."""
    global _shared_s
    begin_s = _cpu_s() - _shared_s
    yield
    if fixturedef.scope != "function" and fixturedef.baseid:
        cost_s = _cpu_s() - _shared_s - begin_s
        _shared_s += cost_s
        _note_cost(cost_s, f"{fixturedef.baseid}::{fixturedef.argname}")


def _engine() -> ModuleType:
    name = "kprof_test_trace_processor"
    if name not in sys.modules:
        path = Path(__file__).parent / "trace_processor" / "engine.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="session")
def _processor() -> Iterator[Any]:
    engine = _engine()
    if missing := engine.missing_parts():
        pytest.skip(missing)
    with engine.TraceProcessor.start() as started:
        yield started


@pytest.fixture
def perfetto_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`trace_processor_shell` is in PATH: the same trace processor behind its HTTP."""
    if missing := _engine().missing_parts():
        pytest.skip(missing)
    script = str(Path(__file__).parent / "trace_processor" / "shell.py")
    path = tmp_path / "bin" / "trace_processor_shell"
    path.parent.mkdir()
    path.write_text(
        f"#!{sys.executable}\nimport runpy, sys\nsys.argv[0] = {script!r}\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def processor(_processor: Any) -> Callable[[Path], Any]:
    """Loads a trace file into the trace processor, in place of the one before (see trace_processor/engine.py)."""

    def load(path: Path) -> Any:
        _processor.load(path)
        return _processor

    return load


@pytest.fixture
def exported(tmp_path: Path, processor: Callable[[Path], Any]) -> Callable[..., Any]:
    """Writes a trace as a pftrace, with these options, and loads it into the trace processor."""
    from kprof.export import write

    def load(trace: Any, **options: Any) -> Any:
        loaded = processor(write(trace, tmp_path / "trace.pftrace", **options).path)
        assert loaded.import_errors() == []
        return loaded

    return load
