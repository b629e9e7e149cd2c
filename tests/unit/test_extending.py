"""The recipes of docs/extending.md, followed once each.

Kernels: tests/kernels/test_third_kernel.py.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kprof.analysis
import kprof.importers.formats
from kprof import report
from kprof.analysis import Summary
from kprof.analysis.findings import kinds
from kprof.devices import targets
from kprof.devices.build import BuildOptions, load_library
from kprof.devices.record import Target, TargetRecord
from kprof.importers import format_names, import_events
from kprof.trace import Trace
from simulation import Scenario, Sizes, simulate

ROOT = Path(__file__).parents[2]

KIND = '''
import numpy as np

from kprof.analysis.findings.candidates.candidate import Candidate, Place
from kprof.analysis.findings.candidates.excess import ALL
from kprof.analysis.findings.finding import Kind, RestsOn
from kprof.analysis.replay.elements import Family


class Halved(Kind):
    """Some work twice as fast."""

    name = "halved"
    finds = "a region would be worth optimising"
    replays = "it takes half the time everywhere"
    rests_on = frozenset({RestsOn.TIMES})
    fixing = "making it twice as fast"

    def candidates(self, comparable):
        if comparable.family is not Family.OWN:
            return []
        everywhere = (Place(ALL, ALL),)
        twice = np.full(comparable.basis.num_calls, np.log(2.0))
        half = comparable.value_ns / 2
        chosen = comparable.chosen
        its = comparable.classes
        return [Candidate(self.name, everywhere, its, twice, chosen, half, is_alone=True)]

    def fact(self, finding):
        return f"Calls take long for {finding.region}"

    def advice(self, finding):
        return "optimise it"


KIND = Halved()
'''
# What the recipes leave out.
FOR_A_METRIC = """
import pandas as pd
from kprof.analysis.metric import metric
from kprof.analysis.summary import Summary
"""
FOR_AN_IMPORTER = """
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kprof.importers.collector import Collector, Place
from kprof.importers.foreign import CERTAIN, ForeignEvents, Format, ReadOptions
from kprof.importers.sample import Sample
"""


def recipe(title: str) -> str:
    """The first code under a title."""
    page = (ROOT / "docs" / "extending.md").read_text()
    return page.partition(f"## {title}")[2].partition("```python\n")[2].partition("```")[0]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for one more module of a package; what was imported from it is forgotten."""
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.slow
def test_a_metric_is_one_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is imported for the first time below would be known there only.
    kprof.analysis.all_metrics()
    (folder / "busiest.py").write_text(FOR_A_METRIC + recipe("A metric"))
    metrics = importlib.import_module("kprof.analysis.metric")
    known = dict(metrics.METRICS)
    monkeypatch.setattr(metrics, "METRICS", known)
    monkeypatch.setattr(kprof.analysis, "METRICS", known)
    monkeypatch.setattr(kprof.analysis, "__path__", [*kprof.analysis.__path__, str(folder)])
    trace = simulate(Scenario(topology="halo", sizes=Sizes(2, 2, 2), num_calls=3, seed=1)).trace()
    tables = json.loads(report.to_json(report.build(trace)))["tables"]
    work = Summary.of(trace).frame("SELECT launch, sum(work_ns) AS work_ns FROM tracks GROUP BY 1")
    assert [row["work_ns"] for row in tables["busiest_launch"]] == [work["work_ns"].max()]


@pytest.mark.slow
def test_a_kind_of_finding_is_one_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "halved.py").write_text(KIND)
    monkeypatch.setattr(kinds, "__path__", [*kinds.__path__, str(folder)])
    kinds.all_kinds.cache_clear()
    try:
        scenario = Scenario("halo", sizes=Sizes(4, 6, 4), num_calls=12, seed=3)
        built = report.build(simulate(scenario).trace())
    finally:
        kinds.all_kinds.cache_clear()
    row = json.loads(report.to_json(built))["findings"][0]
    assert (row["kind"], row["region"], row["id"]) == ("halved", "work", "halved/work")
    assert row["sentence"].startswith(
        "Calls take long for work; making it twice as fast would save "
    )
    assert row["advice"] == "optimise it"
    assert row["factor"] == pytest.approx(2.0)
    assert row["where_ns"]


def test_an_importer_is_one_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "plain.py").write_text(FOR_AN_IMPORTER + recipe("An importer"))
    package = kprof.importers.formats
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    assert "plain" in format_names()
    (folder / "events.txt").write_text("#mine\n0 100 5\n1 105.5 7\n")
    summary = import_events(None, [folder / "events.txt"], folder / "run.kprof")
    assert summary.kind == "plain"
    events = Trace.open(summary.path).frame("SELECT block, start_ns, duration_ns FROM events")
    assert events.to_numpy().tolist() == [[0, 0, 5000], [1, 5500, 7000]]


@pytest.fixture
def no_compilers_remembered() -> Iterator[None]:
    targets.find_compiler.cache_clear()
    yield
    # Else later tests of this process would compile with what this one made up.
    targets.find_compiler.cache_clear()


@pytest.mark.usefixtures("no_compilers_remembered")
def test_a_target_is_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A make-believe target with the CPU's compiler in the place of one that exists."""
    cpu = targets.record_of(Target.CPU)
    mine = TargetRecord(
        target=Target.HIP,
        default_arch="mine",
        clock="CLOCK_MONOTONIC",
        build_remedy="install it",
        find_compiler=cpu.find_compiler,
        find_devices=cpu.find_devices,
        arch_of=lambda _: "mine",
        library_flags=lambda options, compiler: [*cpu.library_flags(options, compiler), "-DMINE=7"],
    )
    monkeypatch.setitem(targets._RECORDS, Target.HIP, mine)
    (tmp_path / "kernel.hip").write_text('extern "C" int mine() { return MINE; }\n')
    monkeypatch.setenv("KPROF_CACHE_DIR", str(tmp_path))
    library: ctypes.CDLL = load_library(str(tmp_path / "kernel.hip"), BuildOptions(Target.HIP))
    assert library.mine() == 7
    assert targets.best_target() is Target.HIP


@pytest.mark.parametrize("target", list(Target))
def test_every_target_is_where_the_recipe_says(target: Target) -> None:
    header = ROOT / "kprof" / "include" / "kprof" / "platform" / f"{target.value}.h"
    assert header.exists()
    assert f'"platform/{header.name}"' in (header.parents[1] / "platform.h").read_text()
    module = importlib.import_module(f"kprof.devices.{target.value}")
    assert targets.record_of(target) is module.RECORD
    assert module.RECORD.target is target
