"""The tables of docs/findings.md, made from the kinds of findings themselves.

    python -m kprof.analysis.findings.document docs/findings.md

Each table stands between two comments, `<!-- kinds -->` and `<!-- end of kinds -->`; what stands
there is replaced, everything else in the page is written by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from kprof.analysis.findings.kinds import all_kinds
from kprof.analysis.findings.limits import WORDS


def document(page: str) -> str:
    """A page with its tables made anew."""
    for name, table in (("kinds", _kinds()), ("limits", _limits())):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}{table}{end}{rest.partition(end)[2]}"
    return page


def _kinds() -> str:
    rows = [
        (
            f"`{kind.name}`",
            kind.finds,
            kind.replays,
            ", ".join(f"`{needed.value}`" for needed in sorted(kind.rests_on)),
        )
        for kind in sorted(all_kinds(), key=lambda kind: kind.name)
    ]
    return _table(("kind", "what is found", "what the replay changes", "rests on"), rows)


def _limits() -> str:
    rows = [(f"`{kind.value}`", words.replays, words.advice) for kind, words in WORDS.items()]
    return _table(("limit", "what the replay changes", "what to do"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |\n" for row in (head, *rows)]
    return "".join([lines[0], "|---" * len(head) + "|\n", *lines[1:]])


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(document(path.read_text()))
