"""Other people's events as captures: then every analysis, report and export works on them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kprof.importers import formats

if TYPE_CHECKING:
    from kprof.importers.foreign import Format, ImportSummary, ReadOptions
    from kprof.regions import RegionTable

# Packages outside kprof add a format with an entry point of this group that leads to a Format.
ENTRY_POINTS: Final = "kprof.importers"


def own_names() -> list[str]:
    """The formats that come with kprof: the modules of kprof.importers.formats."""
    return [module.name for module in pkgutil.iter_modules(formats.__path__)]


def format_names() -> list[str]:
    """The formats that can be imported: kprof's, and those of plug-ins."""
    own = own_names()
    return [*own, *sorted(set(metadata.entry_points(group=ENTRY_POINTS).names) - set(own))]


def format_of(name: str) -> Format:
    """How files of the format called `name` are read. Raises ForeignFormatError."""
    from kprof.errors import ForeignFormatError

    if name in own_names():
        found: Format = importlib.import_module(f"{formats.__name__}.{name}").FORMAT
        return found
    for plugin in metadata.entry_points(group=ENTRY_POINTS, name=name):
        try:
            loaded: Format = plugin.load()
        except Exception as error:
            raise ForeignFormatError(
                f"the plug-in for format {name} ({plugin.value}) cannot be loaded: {error}; "
                "mend or uninstall its package"
            ) from error
        return loaded
    raise ForeignFormatError(
        f"there is no format {name!r} (--kind); known are {', '.join(format_names())}"
    )


def detect(files: Sequence[Path]) -> str:
    """The name of the format that all of these files have.

    Raises ForeignFormatError where that is no format, or more than one.
    """
    from kprof.errors import ForeignFormatError
    from kprof.importers.sample import Sample

    samples = [Sample.of(file) for file in files]
    names = format_names()
    sure = {name: min(format_of(name).sniff(sample) for sample in samples) for name in names}
    best = [name for name in names if sure[name] == max(sure.values()) > 0]
    if len(best) == 1:
        return best[0]
    what = "does not recognise" if not best else "finds several formats in"
    shown = ", ".join(map(str, files[:3])) + (" ..." if len(files) > 3 else "")
    raise ForeignFormatError(
        f"kprof {what} {shown}: say which format it is with --kind {'|'.join(best or names)}"
    )


def import_events(
    name: str | None,
    files: Sequence[Path],
    output: Path,
    options: ReadOptions | None = None,
    *,
    regions: RegionTable | None = None,
    bound_ns: float | None = None,
    force: bool = False,
) -> ImportSummary:
    """Make a capture of files of the format called `name`, which is looked for where it is None.

    `regions` gives categories and kinds by name; `bound_ns` states that the ranks share a clock
    within that bound. Raises ForeignFormatError for files that are not of the format,
    OutputExistsError, CaptureError.
    """
    from dataclasses import replace

    from kprof.errors import ForeignFormatError
    from kprof.importers.foreign import ReadOptions
    from kprof.importers.writing import write_foreign

    paths = [Path(file) for file in files]
    kind = name or detect(paths)
    known = format_of(kind)
    if not paths or (len(paths) > 1 and not known.takes_many):
        raise ForeignFormatError(f"format {kind} takes one file, not {len(paths)}")
    try:
        events = known.read(paths, options or ReadOptions())
    except OverflowError as error:
        raise ForeignFormatError(
            f"{', '.join(map(str, paths[:3]))}: a number in there is too large ({error}); fix or "
            "remove the event, or check --tick-ns"
        ) from error
    summary = write_foreign(
        events, output, origin=paths[0].name, regions=regions, bound_ns=bound_ns, force=force
    )
    return replace(summary, kind=kind)
