"""`kprof new`: a folder with an instrumented kernel that runs at once, ready to be replaced."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from typer import Argument

from kprof.errors import OutputExistsError, SelectionError
from kprof_cli.options import command
from kprof_cli.output import say

# The templates are real files of a kernel with this name, so they are compiled and tested as they
# are.
_TEMPLATE_NAME: Final = "my_kernel"
TEMPLATE: Final = Path(__file__).parent / "templates" / _TEMPLATE_NAME
FILES: Final = ("kernel.hip", "regions.h", "workload.py", "Makefile")
_IDENTIFIER: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@command(path=Argument(metavar="NAME", help="The kernel's name, or a path that ends with it."))
def new(path: Path) -> None:
    """Create a folder with an instrumented kernel that runs at once, with or without a GPU.

    It holds the kernel, its regions, a workload that runs it on all ranks, and a Makefile.
    """
    name = path.name
    texts = {file: (TEMPLATE / file).read_text() for file in FILES}
    _check_name(name, " ".join(texts.values()))
    if path.exists():
        raise OutputExistsError(f"{path} exists; choose another name, or remove it")
    path.mkdir(parents=True)
    for file, text in texts.items():
        (path / file).write_text(re.sub(rf"\b{_TEMPLATE_NAME}\b", name, text))
        say(f"wrote    {path / file}")
    say(f"next     cd {path} && make")


def _check_name(name: str, text: str) -> None:
    """Refuse names that are not identifiers, and words that the files use, such as C++ keywords."""
    is_taken = name != _TEMPLATE_NAME and re.search(rf"\b{re.escape(name)}\b", text)
    if not _IDENTIFIER.fullmatch(name) or is_taken:
        raise SelectionError(
            f"{name!r} cannot be the name of a kernel: "
            + ("its files use that word" if is_taken else "use letters, digits and _")
            + "; choose another, such as my_kernel"
        )
