"""Which tests a commit runs: tests/conftest.py, tests/dear.txt."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

TESTS = Path(__file__).parents[1]
_SPEC = importlib.util.spec_from_file_location("conftest_of_all", TESTS / "conftest.py")
assert _SPEC is not None
assert _SPEC.loader is not None
conftest = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(conftest)

COMMITS = [hashlib.sha1(bytes([number])).hexdigest() for number in range(60)]
DEAR = sorted(conftest.dear_tests())
NAMES = ["plain", *(f"sampled[{case}]" for case in range(30)), *DEAR]
# A fixture that tests of a file share, and a test that is cheap beside it.
SHARED = "tests/docs/test_own_kernel_page.py::reader"
NEEDS_SHARED = "tests/docs/test_own_kernel_page.py::test_warps_of_the_queue_are_joined"


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Callable[..., set[str]]:
    monkeypatch.delenv("KPROF_TEST_EVERY", raising=False)

    class Item:
        def __init__(self, nodeid: str) -> None:
            self.nodeid = nodeid
            self.fixturenames = ["reader"] if nodeid == NEEDS_SHARED else []

        def add_marker(self, name: str) -> None:
            pass

        def get_closest_marker(self, name: str) -> SimpleNamespace | None:
            return SimpleNamespace(args=(3,)) if self.nodeid.startswith(name) else None

    def names(commit: str, argument: str = str(TESTS)) -> set[str]:
        monkeypatch.setattr(conftest, "_commit", lambda: commit)
        hook = SimpleNamespace(pytest_deselected=lambda items: None)
        items = [Item(name) for name in NAMES]
        conftest.pytest_collection_modifyitems(SimpleNamespace(args=[argument], hook=hook), items)
        return {each.nodeid for each in items}

    return names


def test_a_commit_tries_a_share_and_many_commits_try_all(
    tried: Callable[..., set[str]],
) -> None:
    of_commits = [tried(commit) for commit in COMMITS]
    assert of_commits == [tried(commit) for commit in COMMITS]
    assert set.intersection(*of_commits) == {"plain", "sampled[0]"}
    assert set.union(*of_commits) == set(NAMES)
    num_dear = sum(len(names.intersection(DEAR)) for names in of_commits) / len(COMMITS)
    assert num_dear / len(DEAR) == pytest.approx(1 / conftest.DEAR_EVERY, abs=0.05)


def test_a_dear_fixture_decides_for_all_tests_that_wait_for_it(
    tried: Callable[..., set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "NAMES", [*NAMES, NEEDS_SHARED])
    monkeypatch.setattr(conftest, "dear_tests", lambda: [*DEAR, SHARED])
    of_commits = [tried(commit) for commit in COMMITS]
    assert 0 < sum(NEEDS_SHARED in names for names in of_commits) < len(COMMITS) / 2


def test_commits_take_about_as_long_as_each_other(tried: Callable[..., set[str]]) -> None:
    lines = map(str.split, (TESTS / "dear.txt").read_text().splitlines())
    cost_s = {test: float(cost_s) for cost_s, test in lines}
    costs_s = [sum(cost_s.get(name, 0.0) for name in tried(commit)) for commit in COMMITS]
    # Where the dearest one runs, it is a third of all.
    assert max(costs_s) - min(costs_s) <= max(cost_s.values())
    assert max(costs_s) < 1.25 * sum(cost_s.values()) / conftest.DEAR_EVERY


def test_who_names_a_file_or_asks_for_all_gets_every_dear_test(
    tried: Callable[..., set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tried(COMMITS[0], __file__).issuperset(DEAR)
    monkeypatch.setenv("KPROF_TEST_EVERY", "1")
    assert tried(COMMITS[0]) == set(NAMES)


@pytest.mark.slow
def test_every_dear_test_exists() -> None:
    def has(file: str, test: str) -> bool:
        tree = ast.parse((TESTS.parent / file).read_text())
        return test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}

    assert [name for name in DEAR if not has(*name.split("::"))] == []
