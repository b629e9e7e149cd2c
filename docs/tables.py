"""Makes the tables of findings.md that say what the code says: `python docs/tables.py`.

They stand between two comments, such as `<!-- kinds -->` and `<!-- end of kinds -->`. Everything
else there is written by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kprof.analysis.findings.kinds import all_kinds
from kprof.analysis.findings.limits import LimitKind


def findings(page: str) -> str:
    """`findings.md` with the tables of kinds and of limits made anew."""
    kinds = [
        (
            f"`{kind.name}`",
            kind.finds,
            kind.replays,
            ", ".join(f"`{needed.value}`" for needed in sorted(kind.rests_on)),
        )
        for kind in sorted(all_kinds(), key=lambda kind: kind.name)
    ]
    limits = [(f"`{kind.value}`", kind.replays, kind.advice) for kind in LimitKind]
    changes = "what the replay changes"
    page = with_table(page, "kinds", [("kind", "what is found", changes, "rests on"), *kinds])
    return with_table(page, "limits", [("limit", changes, "what to do"), *limits])


def with_table(page: str, name: str, rows: Sequence[Sequence[str]]) -> str:
    """A page with the table called `name` made anew; the first row is its head."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    head, *others = [f"| {' | '.join(row)} |\n" for row in rows]
    table = "".join([head, "|---" * len(rows[0]) + "|\n", *others])
    before, _, rest = page.partition(begin)
    return f"{before}{begin}{table}{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    path = Path(__file__).parent / "findings.md"
    path.write_text(findings(path.read_text()))
