"""The tables of docs/findings.md, made from the kinds of findings themselves.

python -m kprof.analysis.findings.document docs/findings.md
"""

from __future__ import annotations

from kprof.analysis.findings.kinds import all_kinds
from kprof.analysis.findings.limits import LimitKind
from kprof.pages import rewrite, with_table


def document(page: str) -> str:
    """A page with its tables made anew."""
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


if __name__ == "__main__":
    rewrite(document)
