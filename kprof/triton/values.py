"""The values in kernels: a track and a moment.

Triton carries their numbers through loops and branches.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import triton.language as tl


class ValueType(tl.core.base_type):  # type: ignore[misc]
    """A type as Triton requires it: its parts, and what is known at compile time."""

    def __init__(
        self, value_class: type[Value], parts: Sequence[Any], static: tuple[str, ...]
    ) -> None:
        self.value_class = value_class
        self.parts = tuple(parts)
        self.static = static

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ValueType)
            and (self.value_class, self.parts) == (other.value_class, other.parts)
            and self.static == other.static
        )

    def __hash__(self) -> int:
        return hash((self.value_class, self.static))

    def __repr__(self) -> str:
        return f"kprof.triton.{self.value_class.__name__}"

    def mangle(self) -> str:
        """The type's part in the mangled names of functions."""
        static = "_".join(map(str, self.static))
        parts = "_".join(part.mangle() for part in self.parts)
        return re.sub(r"\W", "_", f"kprof_{self.value_class.__name__}_{static}_{parts}")

    def _flatten_ir_types(self, builder: Any, out: list[Any]) -> None:
        for part in self.parts:
            part._flatten_ir_types(builder, out)

    def _unflatten_ir(self, handles: list[Any], cursor: int) -> tuple[Value, int]:
        parts = []
        for part_type in self.parts:
            part, cursor = part_type._unflatten_ir(handles, cursor)
            parts.append(part)
        return self.value_class(parts, self.static), cursor


class Value(tl.core.base_value):  # type: ignore[misc]
    """A group of numbers. An empty one is off: calls with it compile to nothing."""

    def __init__(self, parts: Sequence[Any], static: tuple[str, ...] = ()) -> None:
        self.parts = tuple(parts)
        self.static = static
        self.type = ValueType(type(self), [part.type for part in self.parts], static)

    @property
    def is_on(self) -> bool:
        """Whether anything is recorded."""
        return bool(self.parts)

    def _flatten_ir(self, handles: list[Any]) -> None:
        for part in self.parts:
            part._flatten_ir(handles)

    def _set_name(self, builder: Any, name: str) -> None:
        for idx, part in enumerate(self.parts):
            part._set_name(builder, f"{name}.{idx}")


class Track(Value):
    """The cursor of a program's track. Parts: the cursor and two words of the Buffer, and in builds
    with delays that of the track. A track that may take further chunks also has a third word, and
    the warp.

    `static` is (name of the build, the partition that opened it).
    """


class Moment(Value):
    """A clock reading."""


class Wait(Moment):
    """The beginning of a wait in a loop. Parts: the clock reading, the line that tells of the wait
    (0: none) and what the line says of its flag.
    """
