"""The table of docs/import.md, made from the formats themselves.

python -m kprof.importers.document docs/import.md
"""

from __future__ import annotations

from typing import Final

from kprof.importers import format_of, own_names
from kprof.importers.foreign import OPTIONS
from kprof.pages import rewrite, with_table

_HEAD: Final = ("format", "files of", "what comes over", "what cannot", "tested with", "options")


def document(page: str) -> str:
    """A page with its table made anew."""
    rows = [_HEAD]
    for name in own_names():
        each = format_of(name)
        uses = ", ".join(f"`{OPTIONS[use]}`" for use in each.uses)
        rows.append((f"`{name}`", each.tool, each.brings, each.lacks, each.tested, uses))
    return with_table(page, "formats", rows)


if __name__ == "__main__":
    rewrite(document)
