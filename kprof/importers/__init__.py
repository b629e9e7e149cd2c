"""Other people's events as captures: then every analysis, report and export works on them."""

from __future__ import annotations

import importlib.util
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kprof.importers import formats
from kprof.on_use import metadata

if TYPE_CHECKING:
    from kprof.importers.foreign import ForeignEvents, Format, ImportSummary, ReadOptions
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

    own = f"{formats.__name__}.{name}"
    if name.isidentifier() and importlib.util.find_spec(own) is not None:
        return importlib.import_module(own).FORMAT
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
    return recognise(files, {name: format_of(name) for name in format_names()})


def recognise(files: Sequence[Path], known: Mapping[str, Format]) -> str:
    """The same among the formats `known` by name."""
    from kprof.errors import ForeignFormatError
    from kprof.importers.sample import Sample

    samples = [Sample.of(file) for file in files]
    sure = {name: min(map(format.sniff, samples)) for name, format in known.items()}
    best = [name for name in known if sure[name] == max(sure.values()) > 0]
    if len(best) == 1:
        return best[0]
    what = "does not recognise" if not best else "finds several formats in"
    shown = ", ".join(map(str, files[:3])) + (" ..." if len(files) > 3 else "")
    raise ForeignFormatError(
        f"kprof {what} {shown}: say which format it is with --kind {'|'.join(best or known)}"
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

    from kprof.errors import require

    require("pyarrow", "importing")
    from kprof.importers.writing import write_foreign

    paths = [Path(file) for file in files]
    kind = name or detect(paths)
    summary = write_foreign(
        read_events(kind, paths, options),
        output,
        origin=paths[0].name,
        regions=regions,
        bound_ns=bound_ns,
        force=force,
    )
    return replace(summary, kind=kind)


def read_events(
    name: str, files: Sequence[Path], options: ReadOptions | None = None
) -> ForeignEvents:
    """What files of the format called `name` hold; raises ForeignFormatError."""
    from kprof.errors import ForeignFormatError
    from kprof.importers.foreign import ReadOptions

    known = format_of(name)
    if not files or (len(files) > 1 and not known.takes_many):
        raise ForeignFormatError(f"format {name} takes one file, not {len(files)}")
    try:
        return known.read(files, options or ReadOptions())
    except OverflowError as error:
        raise ForeignFormatError(
            f"{', '.join(map(str, files[:3]))}: a number in there is too large ({error}); fix or "
            "remove the event, or check --tick-ns"
        ) from error
