"""Names that others use: docs/public.md lists them, and those that moved warn."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from kprof.analysis.findings.kinds import named

PAGE = (Path(__file__).parents[2] / "docs" / "public.md").read_text()
LISTED = dict(re.findall(r"^- `(kprof[.\w]*)`: ((?:`\w+`,?\s*)+)", PAGE, flags=re.MULTILINE))
MOVED = re.findall(r"^\| [\d.]+ \| `(kprof[.\w]+)` \| `(kprof[.\w]+)` \|", PAGE, flags=re.MULTILINE)


def value_of(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("module", LISTED)
def test_the_page_lists_what_the_package_has(module: str) -> None:
    found = (
        importlib.import_module(module) if module != "kprof.triton" else pytest.importorskip(module)
    )
    names = set(re.findall(r"`(\w+)`", LISTED[module]))
    assert names == set(getattr(found, "__all__", names))
    assert all(hasattr(found, name) for name in names)


def test_the_page_lists_all_public_modules() -> None:
    modules = {"kprof", "kprof.triton", "kprof.analysis", "kprof.export", "kprof.report"}
    assert modules < set(LISTED)


@pytest.mark.parametrize(("old", "now"), MOVED)
def test_a_name_that_moved_works_and_warns(old: str, now: str) -> None:
    with pytest.warns(DeprecationWarning, match=re.escape(f"{old} is {now} now")):
        assert value_of(old) is value_of(now)


def test_kinds_of_findings_have_their_former_names() -> None:
    with pytest.warns(DeprecationWarning, match=r"compare finding\.kind\.name with a name"):
        kinds = value_of("kprof.analysis.FindingKind")
    names = [
        "LATE_START",
        "IDLE_GAP",
        "SLOW",
        "SLOW_TRANSFER",
        "SLOW_EVENTS",
        "SLOW_CALL",
        "UNEVEN_WORK",
        "UNEVEN_BLOCKS",
    ]
    assert [getattr(kinds, name) for name in names] == [named(name.lower()) for name in names]


@pytest.mark.parametrize("module", ["kprof", "kprof.analysis", "kprof.groups"])
def test_names_that_never_were_are_errors(module: str) -> None:
    with pytest.raises(AttributeError, match="Nobody"):
        value_of(f"{module}.Nobody")
