"""Names in back-ticks exist: files, modules, functions, options and variables that documents and
docstrings mention.

Judged are paths, which must exist, and words that only code has: with an underscore, a capital
inside, a call's brackets or the dashes of an option. They must occur in the project's code, where
comments and docstrings do not count. Names that others use are listed in docs/public.md, and those
that moved warn.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from kprof.analysis.findings.kinds import named

ROOT = Path(__file__).parents[2]
CODE = ("kprof", "cli", "instrumented_kernels", "benchmarks", "tests")
DOCUMENTED = CODE[:3]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "instrumented_kernels/**/*.md")
# What users have, an optional tool beside the checkout, an option of typer, placeholders,
# instructions.
FOREIGN = {"driver.py", "ragged.py", "run.kprof/", "shared/amd-emulator/"}
FOREIGN_NAMES = {
    "--install-completion",
    "exit_actor",
    "for_rank_N_ns",
    "v_smfmac_f32_16x16x64_fp8_fp8",
}
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PATH = re.compile(r"\w[\w./*-]*(?:/|\.(?:py|h|hip|md|toml))(?![\w.*-])")
NAME = re.compile(
    r"--[a-z][a-z-]+|\b[a-z]\w*_\w+|\b[A-Z]+_\w+|\b[A-Z]?[a-z]+[A-Z]\w*|\b\w+(?=\(\))"
)
WORD = re.compile(r"--[a-z][a-z-]+|\w+")
DOCSTRING = re.compile(r'^\s*"""(.*?)"""', re.M | re.S)


@pytest.mark.slow
def test_names_in_back_ticks_exist() -> None:
    unknown = [
        f"{where}: {name}"
        for where, text in texts()
        for span in SPAN.findall(text)
        for name in unknown_in(span)
    ]
    assert not unknown, "\n".join(unknown)


@pytest.mark.parametrize(
    ("span", "missing"),
    [
        ("kprof/abi.py", []),
        ("kprof/no_such_file.py", ["kprof/no_such_file.py"]),
        ("kprof/no_such_folder/", ["kprof/no_such_folder/"]),
        ("kprof record --no-such-option", ["--no-such-option"]),
        ("recorder.launch(kernel)", []),
        ("NoSuchClass.launch()", ["NoSuchClass"]),
        ("-DKPROF_NO_SUCH_MACRO=1", ["KPROF_NO_SUCH_MACRO"]),
        ("run.kprof", []),
    ],
)
def test_what_is_judged(span: str, missing: list[str]) -> None:
    assert unknown_in(span) == missing


def unknown_in(span: str) -> list[str]:
    span = span.removeprefix("-D")
    paths, names = PATH.findall(span), NAME.findall(PATH.sub("", span))
    missing = [
        path for path in paths if not any(fnmatch(file, f"*{path}") for file in known_files())
    ]
    return missing + [name for name in names if name not in known_names() | FOREIGN_NAMES]


def texts() -> Iterator[tuple[str, str]]:
    """Documents without their blocks of code, and docstrings."""
    for pattern in DOCUMENTS:
        for path in ROOT.glob(pattern):
            yield path.name, re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    for path in source_files(".py", DOCUMENTED):
        for docstring in DOCSTRING.findall(path.read_text()):
            yield str(path.relative_to(ROOT)), docstring


@functools.cache
def known_files() -> frozenset[str]:
    found = {*ROOT.glob("*"), *(path for folder in CODE for path in (ROOT / folder).rglob("*"))}
    found |= {*(ROOT / "docs").rglob("*"), *(ROOT / ".ci").rglob("*")}
    relative = (path.relative_to(ROOT).as_posix() + "/" * path.is_dir() for path in found)
    return frozenset(relative) | FOREIGN


@functools.cache
def known_names() -> frozenset[str]:
    """Identifiers, words of strings, and options that are made of the names of parameters."""
    names = set(WORD.findall((ROOT / "Makefile").read_text()))
    names |= {Path(file).stem for file in known_files()}
    for path in source_files(".py", CODE):
        if path != Path(__file__):
            names |= set(WORD.findall(re.sub(r"#.*", "", DOCSTRING.sub("", path.read_text()))))
    for path in [*source_files(".h", CODE), *source_files(".hip", CODE)]:
        names |= set(WORD.findall(re.sub(r"//.*", "", path.read_text())))
    return frozenset(names | {"--" + name.replace("_", "-") for name in names})


def source_files(suffix: str, folders: tuple[str, ...]) -> Iterator[Path]:
    return (path for folder in folders for path in sorted((ROOT / folder).rglob("*" + suffix)))


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
