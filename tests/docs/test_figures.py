"""Figures in the documentation are those of benchmarks/results, but for a list of others.

`figures_elsewhere.txt` has the others: limits and defaults, figures of other tools, of earlier versions, and of measurements
whose files are not kept. `python tests/docs/figures.py > tests/docs/figures_elsewhere.txt` writes it anew. What stories.md and
traces/README.md say of recordings, tests/unit/test_recorded_traces.py reads.
"""

from __future__ import annotations

from pathlib import Path

from figures import Figure, is_from, sections, without_source


def test_every_figure_has_a_source_or_is_listed() -> None:
    listed = (Path(__file__).parent / "figures_elsewhere.txt").read_text().splitlines()
    found = without_source()
    new = {figure: around for figure, around in found.items() if figure not in listed}
    assert new == {}, "name their file of benchmarks/results there"
    assert sorted(set(listed) - set(found)) == [], "these have a source now, or are gone"


def test_a_figure_is_a_number_of_its_source_as_it_would_be_rounded(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\nIt takes 49 ns, `99 ns`, or 0.9 to 1.2 us (`benchmarks/results/launch_cost.json`).\n"
    )
    (section,) = sections(page)
    assert [(figure.number, figure.unit) for figure in section.figures] == [
        ("49", "ns"),
        ("0.9", "us"),
        ("1.2", "us"),
    ]
    assert [is_from(figure, section.sources) for figure in section.figures] == [False, True, True]
    assert not is_from(Figure("0.97", "us", ""), section.sources)
