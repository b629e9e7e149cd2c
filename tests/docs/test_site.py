"""The site: it builds without a warning, has every public name and the notebook, and fetches nothing when read."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import ROOT

needs_mkdocs = pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None,
    reason="needs mkdocs-material and mkdocstrings: pip install '.[docs]'",
)


def test_the_notebook_runs() -> None:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    cells = hooks.run_notebook()
    shown = [value for kind, _, value, _ in cells if kind == "code"]
    assert len(shown) >= 5
    assert all(value is not None for value in shown)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    answer = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "WARNING" not in answer.stderr
    return folder


def public_names() -> Iterator[str]:
    for module in ("kprof", "kprof.analysis", "kprof.report", "kprof.export", "kprof.errors"):
        library = importlib.import_module(module)
        for name in getattr(
            library, "__all__", [name for name in vars(library) if name.endswith("Error")]
        ):
            yield f"{module}.{name}"
    text = (ROOT / "kprof" / "triton" / "__init__.py").read_text()
    for name in re.findall(r'^    "(\w+)",$', text, flags=re.MULTILINE):
        yield f"kprof.triton.{name}"


@needs_mkdocs
def test_every_public_name_has_its_entry(site: Path) -> None:
    entries = set(re.findall(r'id="(kprof[^"]*)"', (site / "api.html").read_text()))
    # A function that its module has the name of.
    aliases = {name: f"{name}.{name.rpartition('.')[2]}" for name in public_names()}
    missing = sorted(
        name for name in public_names() if name not in entries and aliases[name] not in entries
    )
    assert missing == [], "docs/api.md lists what is in the reference"


@needs_mkdocs
def test_a_reader_fetches_nothing(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        fetched = re.findall(
            r'<(?:script|img|iframe|link)\b[^>]*?(?:src|href)="(https?:[^"]+)"', text
        )
        assert fetched == [], page


@needs_mkdocs
def test_the_notebook_shows_what_its_code_answers(site: Path) -> None:
    page = (site / "notebook.html").read_text()
    assert "100,216 events" in page
    assert page.count("<table") >= 4
    timeline, ribbon = re.findall(r'<iframe src="([^"]+)"', page)
    assert timeline != ribbon
    assert (site / timeline).exists()
    assert (site / ribbon).exists()
    assert (site / "figures" / "plotly.js").stat().st_size > 1_000_000


@needs_mkdocs
def test_pages_that_are_kept_elsewhere_are_in_it_with_their_pictures(site: Path) -> None:
    for place in ("stories/all_to_all.html", "stories/all_reduce.html", "stories/recordings.html"):
        for picture in re.findall(r'<img[^>]* src="([^"]+)"', (site / place).read_text()):
            assert (site / place).parent.joinpath(picture).exists(), picture
    assert (site / "pictures" / "all_to_all-trace.png").exists()
