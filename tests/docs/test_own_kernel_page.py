"""docs/own_kernel.md, followed literally: all that it says to write and to run, from an empty folder on."""

from __future__ import annotations

import ctypes
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from pages import DOCS, Reader, blocks_of, write_command

import kprof
from kprof.abi import CHUNK_BYTES, RECORDS_PER_CHUNK
from kprof.devices.build import BuildOptions, load_library
from kprof.devices.cuda import link_flags
from kprof.devices.targets import Target, find_compiler
from kprof.recording.rank.recorder import DEFAULT_ARENA_BYTES
from kprof.regions import RegionTable
from kprof_cli.new import FILES, TEMPLATE

PAGE = DOCS / "own_kernel.md"
BLOCKS = blocks_of(PAGE)


def test_the_page_shows_what_kprof_new_writes() -> None:
    shown = {block.title: block.text for block in BLOCKS if block.title in FILES}
    assert set(shown) == set(FILES) - {"Makefile"}
    for name, text in shown.items():
        assert text == (TEMPLATE / name).read_text(), (
            f"{name} of the page is not that of the template"
        )


def _has(what: str) -> bool:
    """What can be followed without a GPU: compilers are enough for the sections that only compile."""
    if what == "nvcc":
        return find_compiler(Target.CUDA) is not None
    if what == "hipcc":
        return find_compiler(Target.HIP) is not None
    return "gpu" not in what and shutil.which(what) is not None


def _write_compilers(folder: Path) -> None:
    """nvcc and hipcc as the page calls them, wherever kprof has found them."""
    nvcc, hip = find_compiler(Target.CUDA), find_compiler(Target.HIP)
    if nvcc is not None:
        write_command(folder / "nvcc", f'exec "{nvcc.path}" "$@" {" ".join(link_flags(nvcc))}')
    if hip is not None:
        extra = ""
        if hip.device_library_dir is not None:
            from kprof.devices.hip import _device_libraries

            libraries = _device_libraries(hip.device_library_dir)
            extra = (
                f"--rocm-path=/usr --hip-version=6.2 --rocm-device-lib-path={libraries} -lamdhip64"
            )
        write_command(folder / "hipcc", f'exec "{hip.path}" "$@" {extra}')


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """Somebody who has come to the end of the page."""
    # On one core the two ranks share it, whatever the machine: findings are then about counts, not about the scheduler.
    reader = Reader(tmp_path_factory.mktemp("own"), _has, one_core=True)
    _write_compilers(reader.folder / ".home" / "bin")
    # Behind the commands of the first section the page is in the folder that `kprof new` made.
    reader.follow(BLOCKS)
    return reader


def test_it_leads_to_findings(reader: Reader) -> None:
    assert reader.folder.name == "my_kernel"
    for name in ("run.kprof", "torch.kprof", "cmake.kprof"):
        if not (reader.folder / name).exists():
            assert name != "run.kprof"
            continue
        run = kprof.open(reader.folder / name)
        assert run.findings()["sentence"][0].startswith("Rank 0 has 4.0x as much to do"), name
        assert len(run.flows()) == 8 * 16 * 2 * 2


def test_what_the_template_records_is_what_its_kernel_does(reader: Reader) -> None:
    """Eight calls, 16 rows."""
    run = kprof.open(reader.folder / "run.kprof")
    table = RegionTable.from_header(TEMPLATE / "regions.h")
    assert set(run.frame("SELECT DISTINCT region FROM events")["region"]) == set(table.names)
    tiles = run.frame(
        "SELECT rank, count(*) AS n FROM events WHERE region = 'add' GROUP BY ALL ORDER BY rank"
    )
    assert tiles["n"].tolist() == [8 * 16 * 64, 8 * 16 * 16]
    assert set(run.frame("SELECT DISTINCT kernel FROM launches")["kernel"]) == {"my_kernel"}


def test_warps_of_the_queue_are_joined(reader: Reader, tmp_path: Path) -> None:
    library = load_library(reader.folder / "queue.hip", BuildOptions(Target.CPU))
    items, total = np.arange(100, dtype=np.float32), ctypes.c_float()
    regions = reader.folder / "queue_regions.h"
    with kprof.session(tmp_path / "run.kprof", regions=regions) as recorder:
        buffer = recorder.launch("add_up", num_blocks=1, threads_per_block=2 * 64)
        at = items.ctypes.data_as(ctypes.c_void_p)
        assert library.launch_add_up(buffer.packed(), at, len(items), ctypes.byref(total)) == 0
    assert total.value == items.sum()
    flows = kprof.open(tmp_path / "run.kprof").flows()
    assert flows["send_region"].value_counts().to_dict() == {
        "producer/load": 100,
        "consumer/use": 96,
    }


def test_the_change_for_symm_mem_fits_the_workload(reader: Reader) -> None:
    changed = (reader.folder / "symm_mem_workload.py").read_text()
    compile(changed, "symm_mem_workload.py", "exec")
    assert "SymmetricHeap" not in changed
    assert "heap" not in changed


def test_nothing_is_left_out_but_what_needs_gpus(reader: Reader) -> None:
    missing = {block.needs for block in reader.left_out if "gpu" not in block.needs}
    if missing:
        pytest.skip(
            f"this machine lacks {', '.join(sorted(missing))}: their sections were left out"
        )
    gpus = {block.needs for block in reader.left_out}
    assert gpus == {"gpu", "2 gpus", "gpu and cmake"}


def test_the_columns_are_those_that_there_are(reader: Reader) -> None:
    run = kprof.open(reader.folder / "run.kprof")
    for view in ("events", "flows"):
        (table,) = re.findall(
            rf"^\| column of `{view}` \|.*?\n\n", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE
        )
        cells = [line.split("|")[1] for line in table.splitlines()[2:] if line]
        named = re.findall(r"`(\w+)`", " ".join(cells))
        assert sorted(named) == sorted(run.frame(f"SELECT * FROM {view} LIMIT 0").columns), view


def test_the_numbers_are_those_of_the_layout() -> None:
    assert CHUNK_BYTES == 1024
    assert (
        f"pieces of 1 KiB, each with room for {RECORDS_PER_CHUNK} events"
        in PAGE.read_text().replace("\n", " ")
    )
    assert f"{DEFAULT_ARENA_BYTES >> 20} MiB per rank" in PAGE.read_text()


def test_the_page_names_what_exists() -> None:
    text = PAGE.read_text()
    for name in set(re.findall(r"\bkprof\.(\w+)", text)) - {"h"}:
        assert hasattr(kprof, name), name
    headers = "".join(path.read_text() for path in kprof.include_dir().rglob("*.h"))
    called = set(re.findall(r"`(?:kprof::(?:platform::)?)?(\w+)\(", text)) | set(
        re.findall(r"`([A-Z_]{6,})\(", text)
    )
    unknown = {
        name for name in called if name not in headers and not name.startswith(("init_", "set_"))
    }
    assert unknown <= {"FLOW"}, unknown
