"""Torch, imported when something of it is used: it takes seconds to load, and may not be there.

    from kprof.devices.on_use import torch

It is torch for type checkers, and as good as torch at run time.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any


class _Torch:
    @cached_property
    def _module(self) -> Any:
        return import_module("torch")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


if TYPE_CHECKING:
    import torch as torch
else:
    torch = _Torch()
