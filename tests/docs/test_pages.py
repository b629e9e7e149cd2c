"""Every page of the documentation, followed: its commands and its Python run, and what they print
is what it says.

own_kernel.md, triton.md and extending.md have tests of their own. What a machine of ours lacks is
marked with `needs` and left out; its commands must exist with the options that the page gives them.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
from pathlib import Path

import pytest
import typer.main
from nccl_host import build_driver, build_host, record
from pages import DOCS, ROOT, Block, Reader, blocks_of, one_line

import kprof
from docs import tables
from kprof.abi import CHUNK_BYTES, RECORDS_PER_CHUNK, ArenaGeometry
from kprof.capture.shared_memory import memory_of
from kprof.importers import format_of, own_names
from kprof.importers.foreign import OPTIONS
from kprof.recording.launcher.record import session
from kprof.recording.rank.recorder import Recorder
from kprof.recording.retention.retention import Retention
from kprof_cli.main import app

# With a test that follows them from an empty folder.
FOLLOWED_ELSEWHERE = {"own_kernel.md", "triton.md", "extending.md", "nccl.md"}
PAGES = sorted(DOCS.glob("*.md"))
# What a page may ask of a machine, and where that is tested.
TESTED_ELSEWHERE = {
    "a checkout and minutes",  # tests/cli/test_fresh_checkout.py
    "a workload",  # tests/docs/test_own_kernel_page.py, tests/kernels/test_torch_profiler.py
    "a browser",  # tests/browser/
    "a foreign file",  # tests/cli/test_importing.py
    "run-iket and a GPU of SM90 or later",  # tests/cli/test_any_kernel.py, with a stand-in
    "a gpu",  # tests/gpu/
    "a run that hangs",  # tests/docs/test_hang_page.py
}
SMALL = "all_reduce-oneshot-4xH200.kprof"
OTHER = "all_reduce-oneshot_tree-4xH200.kprof"


def blocks(page: Path) -> list[Block]:
    return blocks_of(page)


def test_an_arena_holds_what_the_page_of_long_runs_says() -> None:
    text = (DOCS / "long_runs.md").read_text()
    num_pieces = ArenaGeometry.for_bytes(64 << 20).num_chunks
    assert f"has {num_pieces} pieces of {CHUNK_BYTES >> 10} KiB" in text
    assert f"{RECORDS_PER_CHUNK} events each" in text
    assert f"{10 * num_pieces} where each track has ten" in text
    assert round(RECORDS_PER_CHUNK * num_pieces / 1e6) == 4


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    """Someone in a folder with the recorded traces and two captures of his own."""
    reader = Reader(tmp_path, lambda _: False)
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    shutil.copytree(ROOT / "traces" / SMALL, tmp_path / "run.kprof")
    shutil.copytree(ROOT / "traces" / OTHER, tmp_path / "other.kprof")
    return reader


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name not in FOLLOWED_ELSEWHERE],
    ids=lambda page: page.name,
)
def test_what_a_page_says_can_be_done(page: Path, reader: Reader) -> None:
    reader.follow(blocks(page))
    assert {block.needs for block in reader.left_out} <= TESTED_ELSEWHERE


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_commands_exist_with_their_options(page: Path) -> None:
    for block in blocks(page):
        if block.language == "console":
            for line in re.split(r"\n| && ", block.text.replace("\\\n", " ")):
                check_command(line, f"{page.name}:{block.line}")
        elif block.language == "python":
            ast.parse(block.text)


def check_command(line: str, where: str) -> None:
    """A line that calls kprof names a command that there is, and options that it has."""
    words = shlex.split(line, comments=True)
    if not words or words[0] != "kprof":
        return
    group = typer.main.get_group(app)
    assert words[1] in group.commands, f"{where}: {line}"
    group.commands[words[1]].make_context(words[1], words[2:], parent=typer.Context(group))


def test_the_table_of_commands_is_complete() -> None:
    text = (DOCS / "commands.md").read_text()
    named = set(re.findall(r"^\| `kprof (\w+)", text, flags=re.MULTILINE))
    known = {
        command.name or command.callback.__name__
        for command in app.registered_commands
        if command.callback
    }
    assert named == known


def test_the_tables_of_findings_are_current() -> None:
    text = (DOCS / "findings.md").read_text()
    assert tables.findings(text) == text, "run: python docs/tables.py"


def test_every_format_has_a_row_with_its_options() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \|.*\|([^|]*)\|$", (DOCS / "import.md").read_text(), flags=re.MULTILINE
    )
    options = {name: re.findall("`([^`]*)`", text) for name, text in rows}
    assert options == {name: [OPTIONS[use] for use in format_of(name).uses] for name in own_names()}


def test_every_recording_has_its_story() -> None:
    text = (DOCS / "stories.md").read_text()
    recordings = {path.name.removesuffix(".kprof") for path in (ROOT / "traces").glob("*.kprof")}
    # Earlier recordings of kernels whose later ones are told of.
    earlier = {"all_to_all-token_flags-4xH200-skew3", "all_to_all-balanced-4xH200-skew3"}
    assert {name for name in recordings if f"`{name}`" not in text} == earlier


def test_the_readme_can_be_typed_from_top_to_bottom(tmp_path: Path) -> None:
    # On one core the ranks share it, whatever the machine: the report then compares counts.
    reader = Reader(tmp_path, lambda _: False, one_core=True)
    reader.follow(blocks(ROOT / "README.md"))
    assert {block.needs for block in reader.left_out} <= TESTED_ELSEWHERE
    findings = kprof.open(reader.folder / "mine.kprof").findings()
    assert findings["sentence"][0].startswith("Rank 0 has 4.0x as much to do")


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        prose = re.sub(
            r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE
        )
        for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", prose):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_a_page_that_says_something_false_is_noticed(tmp_path: Path) -> None:
    reader = Reader(tmp_path, lambda _: False)
    page = tmp_path / "page.md"
    page.write_text("```console\necho one\n```\n\n```text\ntwo\n```\n")
    with pytest.raises(AssertionError, match="one"):
        reader.follow(blocks_of(page))
    page.write_text("```console\nkprof nothing | cat\n```\n")
    with pytest.raises(AssertionError, match="No such command"):
        reader.follow(blocks_of(page))
    page.write_text("```console\nkprof nothing\n```\n")
    with pytest.raises(AssertionError, match="No such command"):
        reader.follow(blocks_of(page))
    with pytest.raises(AssertionError, match="page"):
        check_command("kprof reports run.kprof", "page")
    with pytest.raises(Exception, match="No such option"):
        check_command("kprof report run.kprof --colour", "page")
    assert one_line("a\n  b ") == "a b"


FORMAT = Path(__file__).parents[2] / "docs" / "format.md"
# What it becomes, what says whose memory it is, and what is being written.
OTHERS = re.compile(r"(rank|summary)-\d+\.parquet|directory|.*\.tmp")


def kinds() -> list[str]:
    """The first column of the table."""
    section = FORMAT.read_text().split("## An unfinished recording\n")[1].split("\n## ")[0]
    return [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")][1:]


def documented() -> list[re.Pattern[str]]:
    names = re.findall(r"`([^`]+)`", " ".join(kinds()))
    return [
        re.compile(re.sub(r"\\-[NK]", r"-\\d+", re.escape(name)).replace(r"\*", ".*"))
        for name in names
    ]


@pytest.mark.parametrize(
    "retention", [Retention(), Retention(ring_bytes=1 << 20), Retention(keep_slowest=2)]
)
def test_every_file_of_an_unfinished_recording_is_in_the_table(
    tmp_path: Path, retention: Retention
) -> None:
    patterns = documented()
    with session(tmp_path / "run.kprof") as directory:
        recorder = Recorder(directory, rank=0, world_size=1, regions=["work"], retention=retention)
        for _ in range(3):
            recorder.launch("kernel", num_blocks=2)
            recorder.step()
        recorder.listen()
        recorder.dump("the test wants it")
        recorder.save()
        recorder.flush()
        folders = directory, memory_of(directory) or directory
        during = {path.name for folder in folders for path in folder.iterdir()}
        recorder.close()
        after = {path.name for folder in folders for path in folder.iterdir()}
    found = {name for name in during | after if not OTHERS.fullmatch(name)}
    assert "rank-00000.arena" in found
    unknown = {n for n in found if not any(each.fullmatch(n) for each in patterns)}
    assert not unknown


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")
def test_what_the_page_says_can_be_done(tmp_path):
    host, driver = build_host(tmp_path), build_driver(tmp_path)
    options = ("ranks=4", "calls=20", "late=1", "delay=50000")
    run = record(host, tmp_path / "run.kprof", *options, driver=driver)
    assert run.returncode == 0, run.stderr
    reader = Reader(tmp_path, lambda need: need == "a recording of NCCL")
    reader.follow(blocks_of(DOCS / "nccl.md"))
    assert [block.needs for block in reader.left_out] == ["a gpu with NCCL", "kernels beside NCCL"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")
def test_the_sentence_of_a_hang_is_as_on_the_page(tmp_path):
    host = build_host(tmp_path)
    run = record(host, tmp_path / "run.kprof", "ranks=3", "calls=1408", "channels=1", "stuck=2")
    (quoted,) = [
        line.strip()
        for line in (DOCS / "nccl.md").read_text().splitlines()
        if "never ended:" in line
    ]
    assert quoted in run.stderr
