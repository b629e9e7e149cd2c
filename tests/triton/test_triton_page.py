"""docs/triton.md, followed literally in Triton's interpreter: the kernel, the changes, the commands, the finding."""

from __future__ import annotations

import re
from pathlib import Path

from needed import require_interpreter
from page import PAGE, block, finding, follow, side

require_interpreter()

MOST_CHANGED_LINES = 10


def test_the_changes_apply_to_the_kernel_and_are_few() -> None:
    assert side("-") == block("python")
    added = [line for line in block("diff").splitlines() if line.startswith("+")]
    assert len(added) < MOST_CHANGED_LINES


def test_the_page_leads_to_its_finding(tmp_path: Path) -> None:
    assert re.search(finding(1), follow(tmp_path, TRITON_INTERPRET="1"))


def test_the_page_names_what_exists() -> None:
    import kprof.triton as kp

    named = set(re.findall(r"\bkp\.(\w+)", PAGE))
    assert named <= set(kp.__all__)
    in_table = set(re.findall(r"^\| `[^`]*kp\.(\w+)", PAGE, flags=re.MULTILINE))
    assert in_table == {
        "open_track",
        "start",
        "stop",
        "lap",
        "span",
        "mark",
        "value",
        "waiting",
        "still_waiting",
    }
