"""Autotuning without recording, so that events do not influence choices and tuning runs are not
kept."""

from __future__ import annotations

from functools import wraps
from typing import Any

from triton.runtime.autotuner import Autotuner


def leave_tuning_alone(buffer_class: type) -> None:
    """Make tuners time every configuration with None in place of a buffer.

    A second call does nothing.
    """
    original = Autotuner._bench
    if hasattr(original, "__wrapped__"):
        return

    def without(argument: Any) -> Any:
        return None if isinstance(argument, buffer_class) else argument

    @wraps(original)
    def bench(tuner: Any, *args: Any, config: Any, **meta: Any) -> Any:
        plain = {name: without(argument) for name, argument in meta.items()}
        return original(tuner, *map(without, args), config=config, **plain)

    Autotuner._bench = bench
