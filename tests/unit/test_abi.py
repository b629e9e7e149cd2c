"""The layout is declared once: the committed C++ header says what abi.py says, and a compiler agrees."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abi_header import HEADER, cpp_header
from kprof import abi
from kprof.abi import ArenaGeometry
from kprof.errors import ArenaError
from kprof.rank_memory import Word
from kprof.recording.launches import launch_buffer
from kprof.recording.launches.launch_buffer import NO_CHUNK, LaunchBuffer


def test_the_committed_header_is_the_generated_one():
    assert HEADER.read_text() == cpp_header(), "run `python tests/support/abi_header.py`"


def test_sizes_and_places():
    assert abi.RECORD.itemsize == 16
    assert abi.CHUNK_HEADER.itemsize + abi.RECORDS_PER_CHUNK * 16 == abi.CHUNK_BYTES == 1024
    assert abi.SINKS_OFFSET % abi.CHUNK_BYTES == abi.CHUNKS_OFFSET % abi.CHUNK_BYTES == 0
    # Each cursor has a cache line of its own.
    assert abi.CURSOR.itemsize == abi.CURSOR_STRIDE_BYTES == 64
    assert abi.CURSORS_OFFSET + abi.NUM_CURSORS * 64 <= abi.CONTROL_BYTES


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler called c++")
@pytest.mark.parametrize("moved_by", [0, 4])
def test_the_compiler_puts_every_member_where_the_dtype_has_it(tmp_path, moved_by):
    """The header asserts sizes only."""
    structs = {
        "Record": abi.RECORD, "ChunkHeader": abi.CHUNK_HEADER, "SinkChunk": abi.SINK,
        "Cursor": abi.CURSOR, "Switches": abi.SWITCHES, "Delays": abi.DELAYS, "Room": abi.ROOM,
        "StateLine": abi.STATE_LINE, "WaitLine": abi.WAIT_LINE, "ControlBlock": abi.CONTROL,
        "LaunchBuffer": abi.LAUNCH_BUFFER,
    }  # fmt: skip
    assert cpp_header().count("struct alignas") == len(structs)
    checks = [
        f'static_assert(offsetof(kprof::{name}, {field}) == {dtype.fields[field][1] + moved_by}, "");'
        for name, dtype in structs.items()
        for field in dtype.names
    ]
    source = tmp_path / "offsets.cpp"
    source.write_text("#include <kprof/abi.h>\n" + "\n".join(checks))
    command = ["c++", "-std=c++17", "-fsyntax-only", f"-I{HEADER.parents[1]}", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.count("static assertion failed") == (len(checks) if moved_by else 0)
    assert (done.returncode == 0) is (moved_by == 0), done.stderr


@given(st.integers(abi.CHUNKS_OFFSET + abi.CHUNK_BYTES, 1 << 40))
def test_a_geometry_never_exceeds_the_bytes_it_was_given(size_bytes):
    geometry = ArenaGeometry.for_bytes(size_bytes)
    assert geometry.size_bytes <= size_bytes
    assert geometry.num_chunks >= 1
    assert (
        geometry.num_chunks
        == geometry.num_reserved + geometry.chunks_per_cursor * geometry.num_cursors
    )
    assert size_bytes - geometry.size_bytes < abi.NUM_CURSORS * abi.CHUNK_BYTES + abi.CHUNK_BYTES


@given(st.integers(1, 1 << 20))
def test_a_geometry_for_chunks_holds_them_on_every_cursor(num_chunks):
    geometry = ArenaGeometry.for_chunks(num_chunks)
    assert geometry.num_chunks >= num_chunks
    assert geometry.num_chunks % geometry.num_cursors == 0
    assert geometry.num_chunks < max(2 * num_chunks, num_chunks + 2 * abi.NUM_CURSORS)
    assert ArenaGeometry.for_bytes(geometry.size_bytes) == geometry


@given(st.integers(0, 1 << 16), st.integers(1, 1 << 16))
def test_a_geometry_for_reserved_chunks_holds_both_kinds(num_claimed, num_reserved):
    geometry = ArenaGeometry.for_chunks(num_claimed, num_reserved)
    assert geometry.num_reserved >= num_reserved
    assert geometry.chunks_per_cursor * geometry.num_cursors >= num_claimed
    assert ArenaGeometry.for_bytes(geometry.size_bytes) == geometry


@pytest.mark.parametrize("size_bytes", [-1, 0, 1024, abi.CHUNKS_OFFSET + abi.CHUNK_BYTES - 1])
def test_an_arena_too_small_for_one_chunk_names_the_least_size(size_bytes):
    with pytest.raises(ArenaError, match="give at least 13312 bytes"):
        ArenaGeometry.for_bytes(size_bytes)


def test_the_host_writes_the_control_block_and_the_sink():
    head = abi.initial_control(ArenaGeometry.for_chunks(128))
    control = head[: abi.CONTROL_BYTES].view(abi.CONTROL)[0]
    sinks = head[abi.SINKS_OFFSET :].view(abi.SINK)
    assert head.nbytes == abi.CHUNKS_OFFSET
    assert head[:8].tobytes() == b"KPROFARN"
    assert control["abi_version"] == abi.ABI_VERSION
    assert (control["num_chunks"], control["num_cursors"], control["chunks_per_cursor"]) == (
        128,
        32,
        2,
    )
    assert control["num_reserved"] == 64
    assert sinks["header"]["chunk_idx"].astype(np.int32).tolist() == list(range(-abi.NUM_SINKS, 0))
    assert not sinks["num_dropped_of_region"].any()


def test_the_recorder_packs_launch_buffers_as_declared():
    packed = LaunchBuffer(0x7F00_1234_5678, 3, 17, 8, 2112, 512, 32, 1, 9).packed()
    assert NO_CHUNK == abi.NO_CHUNK
    for name in ("FIRST_RESERVED", "NUM_WANTED", "NUM_RESERVING"):
        assert getattr(launch_buffer, name) == getattr(Word, name)
    assert np.frombuffer(packed, dtype=abi.LAUNCH_BUFFER).tolist() == [
        (0x7F00_1234_5678, 3, 17, 8, 2112, 512, 32, 1, 9)
    ]
