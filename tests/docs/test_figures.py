"""Every figure in the documentation has a source: a file of benchmarks/results, a constant, a recording.

What stories.md and traces/README.md say of recordings, tests/unit/test_recorded_traces.py reads.
"""

from __future__ import annotations

from pathlib import Path

from figures import Figure, is_from, sections, without_source


def test_every_figure_has_a_source() -> None:
    assert without_source() == {}, "name its file of benchmarks/results there, or write it without"


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
    assert [is_from(figure, section) for figure in section.figures] == [False, True, True]
    assert not is_from(Figure("0.97", "us", ""), section)


def test_numbers_are_compared_in_their_units_and_percentages_with_their_base(
    tmp_path: Path,
) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "2.6 us and 2.6 %, 9.2 % and 8 % (`benchmarks/results/all_reduce_cost.json`).\n"
    )
    (section,) = sections(page)
    assert [is_from(figure, section) for figure in section.figures] == [True, False, True, True]


def test_shapes_are_no_figures(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("16 x 2304 x 16384 is 3.2x as fast.\n")
    (section,) = sections(page)
    assert [figure.number for figure in section.figures] == ["3.2"]
