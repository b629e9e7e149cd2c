"""Torch, imported when something of it is used: see kprof.on_use."""

from typing import TYPE_CHECKING

from kprof.on_use import OnUse

if TYPE_CHECKING:
    import torch as torch
else:
    torch = OnUse("torch")
