"""The kinds of findings, one file each.

A file here that has a `KIND` is a kind: nothing else has to be registered.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from kprof.analysis.findings.finding import Kind, RestsOn


@cache
def all_kinds() -> tuple[Kind, ...]:
    """Every kind, in the order in which they look for candidates."""
    modules = (
        import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)
    )
    return tuple(sorted((m.KIND for m in modules), key=lambda kind: (kind.order, kind.name)))


def named(name: str) -> Kind:
    """The kind of this name; KeyError where there is none."""
    return {kind.name: kind for kind in all_kinds()}[name]


def resting_on(doubted: frozenset[RestsOn]) -> frozenset[Kind]:
    """The kinds that rest on any of these."""
    return frozenset(kind for kind in all_kinds() if kind.rests_on & doubted)
