"""Files of other tools in another guise, or damaged, against the detection of their format.

    python tests/fuzz/guises.py --minutes 10 --seed 1 --jobs 2      (or --count 8000)

What is packed, renamed or written in other words keeps its format; what is damaged is not taken for another one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import harness
from harness import Broken

import foreign_files
from foreign_files.mutations import damaged, disguised
from kprof.errors import ForeignFormatError
from kprof.importers import format_of, own_names, recognise

Make = Callable[[Path], list[Path]]

# Each format with each of its makers: make, and what begins with make_.
MADE: dict[str, tuple[str, Make]] = {
    f"{name}-{maker}": (name, getattr(module, maker))
    for name, module in foreign_files.modules().items()
    for maker in dir(module)
    if maker == "make" or maker.startswith("make_")
}
# Without looking for plug-ins, which takes longer than all the rest.
OWN = {name: format_of(name) for name in own_names()}
# These are Chrome traces with more in them.
CHROME = {"iris", "torch_profiler", "proton_chrome", "nccl_profiler"}


def check_guise(what: str, seed: int, folder: Path) -> str:
    """The format of these files, whatever was done on their way."""
    name, make = MADE[what]
    files = disguised(make(folder), seed, keeps_name=name == "npkit")
    if (found := recognise(files, OWN)) != name:
        raise Broken(f"{what} is taken for {found} (seed {seed})")
    return name


def check_damage(what: str, seed: int, folder: Path) -> str:
    """Their format, "refused", or "chrome" where what marks the tool is gone."""
    name, make = MADE[what]
    try:
        found = recognise(damaged(make(folder), seed), OWN)
    except ForeignFormatError:
        return "refused"
    if found != name and not (found == "chrome" and name in CHROME):
        raise Broken(f"damaged {what} is taken for {found} (seed {seed})")
    return found


def case(seed: int, number: int, folder: Path) -> str:
    """One guise and one damage of one maker's files."""
    what, draw = list(MADE)[number % len(MADE)], seed * 1_000_003 + number
    for kind in ("guise", "damage"):
        (folder / kind).mkdir()
    check_guise(what, draw, folder / "guise")
    return f"{what}: {check_damage(what, draw, folder / 'damage')}"


if __name__ == "__main__":
    sys.exit(harness.main(case, "guises of imports", "tests/fuzz/guises.py"))
