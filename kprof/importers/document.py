"""The table of docs/import.md, made from the formats themselves.

    python -m kprof.importers.document docs/import.md

It stands between `<!-- formats -->` and `<!-- end of formats -->`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from kprof.importers import format_of, own_names

_BEGIN: Final = "<!-- formats -->\n"
_END: Final = "<!-- end of formats -->"


def document(page: str) -> str:
    """A page with its table made anew."""
    rows = [("format", "files of", "what comes over", "what cannot", "tested with", "options")]
    rows.append(("---",) * 6)
    options = {"tick_ns": "`--tick-ns`", "names": "`--names`", "is_rank_in_tid": "`--rank-in-tid`"}
    for name in own_names():
        each = format_of(name)
        uses = ", ".join(options[use] for use in each.uses)
        rows.append((f"`{name}`", each.tool, each.brings, each.lacks, each.tested, uses))
    before, _, rest = page.partition(_BEGIN)
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"{before}{_BEGIN}{table}{_END}{rest.partition(_END)[2]}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(document(path.read_text()))
