"""Tables of the documentation that are made from the code, between two comments of a page.

`<!-- kinds -->` and `<!-- end of kinds -->`: what stands there is replaced, everything else in the
page is written by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def with_table(page: str, name: str, rows: Sequence[Sequence[str]]) -> str:
    """A page with the table called `name` made anew; the first row is its head."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    head, *others = [f"| {' | '.join(row)} |\n" for row in rows]
    table = "".join([head, "|---" * len(rows[0]) + "|\n", *others])
    before, _, rest = page.partition(begin)
    return f"{before}{begin}{table}{end}{rest.partition(end)[2]}"


def rewrite(document: Callable[[str], str]) -> None:
    """Make the tables of the page that the command line names anew."""
    path = Path(sys.argv[1])
    path.write_text(document(path.read_text()))
