"""Writes dear.txt: the tests that take long, with their processor time in s, summed over their cases.

    mkdir COSTS                                 after a run that has built everything
    KPROF_TEST_EVERY=1 KPROF_TEST_COSTS=COSTS make test
    python tests/dear.py COSTS

Of these, `make test` runs a share, see conftest.py.
"""

import sys
from collections import Counter
from pathlib import Path

DEAR_S = 2.0
# What a user types first, and what every line that is written may break.
ALWAYS = {
    "tests/docs/test_pages.py::test_the_readme_can_be_typed_from_top_to_bottom",
    "tests/unit/test_names_in_docs.py::test_names_in_back_ticks_exist",
}


def main() -> None:
    costs_s: Counter[str] = Counter()
    for notes in Path(sys.argv[1]).iterdir():
        for line in notes.read_text().splitlines():
            cost_s, _, case = line.partition(" ")
            costs_s[case.partition("[")[0]] += float(cost_s)
    lines = [
        f"{cost_s:6.1f} {test}\n"
        for test, cost_s in costs_s.most_common()
        if cost_s >= DEAR_S and test not in ALWAYS
    ]
    (Path(__file__).parent / "dear.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
