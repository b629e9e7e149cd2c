"""The former place of kprof.SoloGroup and kprof.TorchGroup: works until version 0.2, with a
DeprecationWarning."""

from __future__ import annotations

import warnings
from typing import Any

from kprof.devices import groups


def __getattr__(name: str) -> Any:
    found = getattr(groups, name)
    instead = (
        f"kprof.{name}" if name in ("SoloGroup", "TorchGroup") else f"{groups.__name__}.{name}"
    )
    warnings.warn(
        f"kprof.groups.{name} is {instead} now; kprof.groups goes with version 0.2",
        DeprecationWarning,
        stacklevel=2,
    )
    return found
