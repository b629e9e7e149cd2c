"""What this machine can record and show, and what to do about the rest."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kprof.targets import TargetStatus

# Extra, the package that it brings, and what it is for.
_EXTRAS: Final = (
    ("torch", "torch", "record --nproc, the kernels of the demo"),
    ("view", "viztracer", "view --local, with no internet"),
)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; `remedy` is empty when it is fine."""

    name: str
    is_ok: bool
    found: str
    remedy: str


def examine() -> list[Check]:
    """Look at Python, every target, and every extra; loads none of them and starts no kernel."""
    from kprof import targets

    return [
        Check("python", True, f"{platform.python_version()} on {platform.platform()}", ""),
        *(_check_target(status) for status in targets.probe()),
        *(_check_extra(extra, package, purpose) for extra, package, purpose in _EXTRAS),
    ]


def _check_target(status: TargetStatus) -> Check:
    found = "; ".join(filter(None, (status.compiler, status.detail)))
    return Check(f"target {status.target.value}", status.is_usable, found, status.remedy)


def _check_extra(extra: str, package: str, purpose: str) -> Check:
    name = f"kprof[{extra}]"
    if importlib.util.find_spec(package) is None:
        return Check(name, False, "not installed", f'pip install "{name}" for: {purpose}')
    return Check(name, True, f"{package} {importlib.metadata.version(package)}", "")
