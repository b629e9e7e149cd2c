"""Other people's events as captures: then every analysis, report and export works on them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kprof.importers import formats

if TYPE_CHECKING:
    from kprof.importers.foreign import Format, ImportSummary, ReadOptions
    from kprof.regions import RegionTable


def format_names() -> list[str]:
    """The formats that can be imported: the modules of kprof.importers.formats."""
    return [module.name for module in pkgutil.iter_modules(formats.__path__)]


def format_of(name: str) -> Format:
    """How files of the format called `name` are read."""
    found: Format = importlib.import_module(f"{formats.__name__}.{name}").FORMAT
    return found


def import_events(
    name: str,
    files: Sequence[Path],
    output: Path,
    options: ReadOptions | None = None,
    *,
    regions: RegionTable | None = None,
    bound_ns: float | None = None,
    force: bool = False,
) -> ImportSummary:
    """Make a capture of files of the format called `name`.

    `regions` gives categories and kinds by name; `bound_ns` states that the ranks share a clock
    within that bound. Raises ForeignFormatError for files that are not of the format,
    OutputExistsError, CaptureError.
    """
    from kprof.importers.foreign import ReadOptions, write_foreign

    events = format_of(name).read([Path(file) for file in files], options or ReadOptions())
    return write_foreign(
        events, output, origin=files[0].name, regions=regions, bound_ns=bound_ns, force=force
    )
