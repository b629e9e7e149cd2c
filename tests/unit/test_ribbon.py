"""The wait ribbon, for whom rows wait over time, and its forms; colours that everybody can tell apart."""

from __future__ import annotations

import io
import itertools
import re
import shutil
import struct
import zlib
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from kprof import report as reports
from kprof.analysis import Summary
from kprof.analysis.ribbon import NOBODY, Ribbon, ribbon
from kprof.analysis.summary import CLOSED_SPANS, WAIT
from kprof.analysis.timeline import focus
from kprof.errors import ExportError, OutputExistsError, SelectionError, UnknownFormatError
from kprof.report.figures import all_figures
from kprof.report.figures.base import CATEGORY_COLORS, PALETTE
from kprof.report.figures.ribbon import CULPRITS as COLORS
from kprof.report.figures.ribbon import OWN, RIBBON_COLORS, color_of, png, rgb
from kprof.report.pictures import PICTURES
from kprof.trace import Trace
from planted import CULPRITS, Plant, simulate
from synthetic import TraceBuilder

REGIONS = """
REGION(R_WORK, "work", compute)
REGION(R_WAIT, "wait", wait, peer:8)
REGION(R_LOCK, "lock", sync)
REGION(R_BARRIER, "barrier", sync)
"""
SLOW_3 = Plant(tokens_of={3: 3.0}, send_late_ns={3: 9000})


def of(build: TraceBuilder, num_bins: int, blocks_of: int | None = None) -> Ribbon:
    summary = Summary.of(build.trace())
    return ribbon(summary, focus(summary), num_bins, blocks_of)


def two_ranks() -> TraceBuilder:
    """100 ns: of rank 0's two blocks both wait for rank 1 from 40 to 60, then one goes on alone."""
    build = TraceBuilder(REGIONS, 2)
    build.span(0, "work", 0, 40, block=0)
    build.span(0, "wait", 40, 20, block=0, peer=1)
    build.span(0, "work", 0, 40, block=1)
    build.span(0, "wait", 40, 60, block=1, peer=1)
    build.span(1, "work", 0, 100, block=0)
    return build


def test_cells_say_whom_a_row_waits_for_and_which_share_of_its_blocks() -> None:
    found = of(two_ranks(), 10)
    assert found.rows == ((0, -1), (1, -1))
    assert found.bin_ns == 10
    assert found.cells().to_dict("list") == {
        "rank": [0] * 6,
        "block": [-1] * 6,
        "bin": [4, 5, 6, 7, 8, 9],
        "culprit": [1] * 6,
        "share": [1.0, 1.0, 0.5, 0.5, 0.5, 0.5],
    }
    assert found.present.tolist() == [[1.0] * 6 + [0.5] * 4, [1.0] * 10]
    assert found.worst == (1,)


def test_rows_of_blocks() -> None:
    found = of(two_ranks(), 5, blocks_of=0)
    assert found.rows == ((0, 0), (0, 1))
    assert found.shares[..., 0].tolist() == [[0, 0, 1, 0, 0], [0, 0, 1, 1, 1]]
    assert found.present.tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]


def test_a_bin_has_the_part_of_a_span_that_lies_in_it() -> None:
    build = TraceBuilder(REGIONS, 2)
    build.span(0, "wait", 5, 20, peer=1)
    build.span(0, "wait", 25, 10, peer=0)
    build.span(1, "work", 0, 40)
    found = of(build, 4)
    assert found.shares[0, :, 0].tolist() == [0.5, 1.0, 0.5, 0.5]
    assert found.culprits[0, 2, :2].tolist() == [0, 1]


def test_who_enters_a_barrier_last_is_whom_the_others_wait_for_and_a_lock_has_nobody() -> None:
    build = TraceBuilder(REGIONS, 3)
    for rank, late in enumerate((10, 70, 30)):
        build.span(rank, "work", 0, late)
        build.span(rank, "barrier", late, 80 - late)
        build.span(rank, "lock", 80, 2 + 20 * rank)
    cells = of(build, 13).cells()
    assert set(cells[cells["bin"] < 7]["culprit"]) == {1}
    assert set(cells[cells["bin"] >= 8]["culprit"]) == {NOBODY}


@pytest.mark.slow
@pytest.mark.parametrize("num_bins", [1, 7, 333])
def test_no_wait_is_lost_in_the_bins(num_bins: int) -> None:
    summary = Summary.of(simulate(Plant(num_ranks=4, has_barrier=True, lock_hold_ns=300)))
    over = focus(summary)
    found = ribbon(summary, over, num_bins)
    tracks = summary.frame("SELECT rank, count(DISTINCT (block, warp)) AS n FROM tracks GROUP BY 1")
    of_rank = dict(zip(tracks["rank"], tracks["n"], strict=True))
    kept = found.cells().groupby("rank")["share"].sum()
    spans = summary.frame(
        f"""SELECT rank, sum(least(end_ns, {over.end_ns}) - greatest(start_ns, {over.start_ns})) AS ns
        FROM events WHERE {CLOSED_SPANS} AND {WAIT} AND start_ns < {over.end_ns}
            AND end_ns > {over.start_ns} GROUP BY rank"""
    )
    for rank, ns in zip(spans["rank"], spans["ns"], strict=True):
        # Cells keep three culprits of four.
        assert 0.8 * ns <= kept[rank] * of_rank[rank] * found.bin_ns <= ns * 1.001


@pytest.mark.parametrize("name", CULPRITS)
def test_the_planted_culprit_is_the_worst(name: str) -> None:
    plant, culprit = CULPRITS[name]
    summary = Summary.of(simulate(plant))
    assert ribbon(summary, focus(summary)).worst[0] == culprit


def test_colours_are_deeper_the_more_wait() -> None:
    pixels = color_of(of(two_ranks(), 10)).astype(int)
    assert pixels[0, 0].tolist() == [*rgb(OWN[0]), 255]
    assert pixels[0, 4].tolist() == [*rgb(COLORS[0][0]), 255]
    distance = np.abs(pixels[0, 4, :3] - pixels[0, 6, :3]).sum()
    assert 50 < distance < np.abs(pixels[0, 4, :3] - pixels[0, 0, :3]).sum()
    # Nothing runs: the page's own ground.
    assert of(two_ranks(), 10).present[0, 9] == 0.5
    assert pixels[0, 9, 3] < 255


def test_the_picture_of_the_cells_is_a_png() -> None:
    pixels = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    data = png(pixels)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        chunks[kind] = data[at + 8 : at + 8 + length]
        (check,) = struct.unpack_from(">I", data, at + 8 + length)
        assert check == zlib.crc32(kind + chunks[kind])
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (3, 2, 8, 6, 0, 0, 0)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(2, 13)
    assert rows[:, 0].tolist() == [0, 0]
    assert rows[:, 1:].tolist() == pixels.reshape(2, -1).tolist()


@pytest.mark.slow
def test_letters_where_there_are_no_colours() -> None:
    console = Console(width=70, file=io.StringIO(), color_system=None)
    console.print(reports.render_ribbon(reports.build(two_ranks().trace())))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0].startswith("waits for  a rank 1  . own work")
    cells = {line[:6]: line[7:].rstrip() for line in lines[1:-1]}
    assert re.fullmatch(r"\.+A+", cells["rank 0"])
    assert 0.35 < cells["rank 0"].count(".") / len(cells["rank 0"]) < 0.45
    assert set(cells["rank 1"]) == {"."}
    assert lines[-1].split() == ["0", "100", "ns"]


@pytest.mark.slow
def test_squares_for_markdown_have_the_culprits_colour_where_others_wait() -> None:
    name = "late-sends"
    plant, culprit = CULPRITS[name]
    report = reports.build(simulate(plant))
    lines = reports.render_markdown(report).partition("```text\n")[2].splitlines()
    assert lines[0].startswith(f"waits for 🟥 rank {culprit}  🟦 rank ")
    rows = dict(line.split(" ", 2)[1:] for line in lines[1:-1])
    assert len(rows) == plant.num_ranks
    assert {len(row) for row in rows.values()} <= {39, 40}
    assert "🟥" not in rows.pop(str(culprit))
    assert all(row.count("🟥") > 10 for row in rows.values())
    assert lines[-1] == "```"


@pytest.mark.slow
def test_half_blocks_in_colour_and_the_ground_where_nothing_runs() -> None:
    console = Console(
        width=60, file=io.StringIO(), force_terminal=True, color_system="truecolor", no_color=False
    )
    console.print(reports.render_ribbon(reports.build(simulate(CULPRITS["many-ranks"][0]))))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    rows = [line for line in text.splitlines() if "▀" in line]
    # Two of 24 ranks in a line.
    assert len(rows) == 12
    assert max(row.count("▀") + row.count("▄") for row in rows) > 40
    assert "waits for" in text


def waiting_for_101(num_ranks: int) -> Trace:
    build = TraceBuilder(REGIONS, num_ranks)
    for rank in range(num_ranks):
        build.span(rank, "work", 0, 900 if rank == 101 else 100)
        if rank != 101:
            build.span(rank, "wait", 100, 800, peer=101)
    return build.trace()


def test_of_many_ranks_a_terminal_shows_the_culprits_and_says_so() -> None:
    console = Console(width=70, file=io.StringIO(), color_system=None)
    console.print(reports.render_ribbon(reports.build(waiting_for_101(200))))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"rank 101 \.+$", text, re.M)
    assert "of 200 ranks: those that others wait for" in text


def test_of_more_ranks_than_names_fit_the_culprits_rows_come_first() -> None:
    report = reports.build(waiting_for_101(400))
    (figure,) = (f for f in all_figures(report) if f.id == "ribbon")
    names = re.findall(r">(rank \d+)</text>", figure.svg)
    assert names[:2] == ["rank 101", "rank 13"]
    assert len(names) < 40
    assert figure.svg.count('class="culprit-0"') == 1 + 13 + 1


@pytest.fixture(scope="module")
def report() -> reports.Report:
    return reports.build(simulate(SLOW_3))


@pytest.mark.parametrize("kind", PICTURES)
def test_every_picture_is_an_svg_of_its_own(
    report: reports.Report, tmp_path: Path, kind: str
) -> None:
    path = reports.write_picture(report, kind, tmp_path / f"{kind}.svg")
    root = ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert float(root.attrib["width"]) > 400
    text = path.read_text()
    # Programs that draw SVG know no variables of style sheets.
    assert "var(" not in text
    classes = set(re.findall(r'<(?:rect|path) class="([\w-]+)', text))
    assert classes
    assert [name for name in classes if not re.search(rf"\.{name}[ ,]", text)] == []


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_png_shows_the_colours(report: reports.Report, tmp_path: Path) -> None:
    data = reports.write_picture(report, "ribbon", tmp_path / "ribbon.png").read_bytes()
    width, height = struct.unpack_from(">II", data, 16)
    assert width == 2000
    assert height > 500
    assert len(data) > 10_000


def test_a_png_without_a_browser_is_refused_in_a_sentence(
    report: reports.Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ExportError, match=r"name the file \.svg"):
        reports.write_picture(report, "ribbon", tmp_path / "ribbon.png")
    with pytest.raises(UnknownFormatError, match=r"\.svg or \.png"):
        reports.write_picture(report, "ribbon", tmp_path / "ribbon.pdf")


def test_a_picture_is_not_overwritten_and_one_without_data_is_refused(
    report: reports.Report, tmp_path: Path
) -> None:
    path = tmp_path / "ribbon.svg"
    path.write_text("mine")
    with pytest.raises(OutputExistsError, match="--force"):
        reports.write_picture(report, "ribbon", path)
    reports.write_picture(report, "ribbon", path, force=True)
    assert path.read_text().startswith("<svg")
    build = TraceBuilder(REGIONS, 2)
    build.span(0, "work", 0, 40)
    alone = reports.build(build.trace())
    with pytest.raises(SelectionError, match="no rank waits"):
        reports.write_picture(alone, "ribbon", tmp_path / "none.svg")
    with pytest.raises(SelectionError, match="other pictures: timeline"):
        reports.render_ribbon(alone)


Vector = np.ndarray
# How the colours of a screen look without one kind of cones (Machado et al. 2009, severity 1), in linear RGB.
SIGHT = {
    "all colours": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "no blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip
# Oklab (Ottosson 2020), times 100: from about 2 on eyes see a difference.
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
LEAST_DIFFERENCE = 12


def linear(color: str) -> Vector:
    values = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: Vector) -> Vector:
    return 100 * TO_LAB @ np.cbrt(TO_CONES @ np.clip(rgb, 0, 1))


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("colors", [PALETTE, RIBBON_COLORS], ids=["page", "ribbon"])
def test_any_two_colours_can_be_told_apart(
    colors: dict[str, tuple[str, str]], scheme: int, sight: str
) -> None:
    seen = {name: lab(SIGHT[sight] @ linear(pair[scheme])) for name, pair in colors.items()}
    near = [
        (a, b, float(np.linalg.norm(seen[a] - seen[b])))
        for a, b in itertools.combinations(seen, 2)
        if np.linalg.norm(seen[a] - seen[b]) < LEAST_DIFFERENCE
    ]
    assert near == []


def test_the_palette_has_every_category() -> None:
    assert list(PALETTE)[: len(CATEGORY_COLORS)] == list(CATEGORY_COLORS)
    assert all(PALETTE[name][0] == color for name, color in CATEGORY_COLORS.items())
