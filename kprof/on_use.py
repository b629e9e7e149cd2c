"""Packages that are imported when something of them is used: they take long to load, and torch may
not be there (kprof.devices.on_use has it).

    from kprof.on_use import pd

It is the package for type checkers, and as good as that at run time.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any


class OnUse:
    """A package by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def _module(self) -> Any:
        return import_module(self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
else:
    pd, pa = OnUse("pandas"), OnUse("pyarrow")

__all__ = ["OnUse", "pa", "pd"]
