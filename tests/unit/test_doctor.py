"""What `kprof doctor` finds, and what it says about what is missing."""

from __future__ import annotations

import pytest

from kprof.devices import targets
from kprof.devices.targets import Target, TargetStatus
from kprof.doctor import checks

CPU = TargetStatus(Target.CPU, True, "/usr/bin/g++ (12.2)", "1 device", "")
NO_CUDA = TargetStatus(Target.CUDA, False, "", "no compiler found", "install the CUDA toolkit")
CUDA = TargetStatus(Target.CUDA, True, "nvcc (13.0)", "8 devices", "")


@pytest.fixture
def machine(monkeypatch):
    """A machine with these targets, these packages installed, and this torch."""

    def make(statuses, packages, torch="2.13.0"):
        monkeypatch.setattr(targets, "probe", lambda: statuses)
        monkeypatch.setattr(
            "importlib.util.find_spec", lambda name: object() if name in packages else None
        )
        monkeypatch.setattr("importlib.metadata.version", lambda name: torch)
        return {check.name: check for check in checks.examine()}

    return make


def test_what_is_there_needs_no_remedy(machine):
    packages = {"pyarrow", "torch", "viztracer", "plotly", "triton", "distributed"}
    checks = machine([CPU, CUDA], packages)
    assert all(check.is_ok and not check.remedy for check in checks.values())
    assert checks["target cuda"].found == "nvcc (13.0); 8 devices"


def test_what_is_missing_names_its_remedy(machine):
    checks = machine([CPU, NO_CUDA], set())
    assert not checks["target cuda"].is_ok
    assert checks["target cuda"].remedy == "install the CUDA toolkit"
    assert checks["torch"].remedy.startswith("pip install torch ")
    optional = ("pyarrow", "viztracer", "plotly", "triton", "distributed")
    assert {checks[name].found for name in optional} == {"not installed"}


def test_a_torch_without_gpu_support_beside_a_gpu_is_named(machine):
    assert "torch build" in machine([CPU, CUDA], {"torch"}, torch="2.13.0+cpu")
    assert "torch build" not in machine([CPU, NO_CUDA], {"torch"}, torch="2.13.0+cpu")
    assert "torch build" not in machine([CPU, CUDA], {"torch"}, torch="2.13.0+cu130")
