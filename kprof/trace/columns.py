"""Tables of arrays, a column per field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Columns:
    """Arrays of shape (n,) by name: the base of dataclasses that have nothing else."""

    start_ns: NDArray[Any]

    def __len__(self) -> int:
        """The number of rows, n."""
        return len(self.start_ns)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Columns by name, in the order of the fields."""
        return dict(vars(self))

    def rows(self, which: Any) -> Self:
        """The rows at `which`: a slice, a mask or row numbers."""
        return type(self)(**{name: column[which] for name, column in vars(self).items()})
