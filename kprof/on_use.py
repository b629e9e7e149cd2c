"""Packages that are imported when something of them is used: they take long to load, and torch may
not be there (kprof.devices.on_use has it).

    from kprof.on_use import pa, pd

Each is the package for type checkers, and as good as that at run time.
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
    from importlib import metadata

    import duckdb
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
else:
    duckdb, np, pd, pa = map(OnUse, ("duckdb", "numpy", "pandas", "pyarrow"))
    pc, pq = OnUse("pyarrow.compute"), OnUse("pyarrow.parquet")
    metadata = OnUse("importlib.metadata")

__all__ = ["OnUse", "duckdb", "metadata", "np", "pa", "pc", "pd", "pq"]
