"""Descriptors in a process whose workload closes what it did not open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kprof.capture.descriptors import OwnDescriptor
from kprof.capture.directory import writing_events


@pytest.fixture
def own(tmp_path: Path) -> Iterator[OwnDescriptor]:
    descriptor = OwnDescriptor(os.open(tmp_path / "own", os.O_RDWR | os.O_CREAT))
    yield descriptor
    descriptor.close()


def test_no_program_that_is_started_gets_it(own: OwnDescriptor) -> None:
    assert own.is_open()
    assert not os.get_inheritable(own.number)


def test_what_was_closed_behind_its_back_is_not_closed_again(own: OwnDescriptor) -> None:
    os.close(own.number)
    assert not own.is_open()
    own.close()
    own.close()


def test_another_file_with_its_number_is_left_alone(own: OwnDescriptor, tmp_path: Path) -> None:
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    os.dup2(other, own.number)
    os.close(other)
    assert not own.is_open()
    own.close()
    os.write(own.number, b"still open")
    os.close(own.number)
    assert (tmp_path / "other").read_bytes() == b"still open"


def test_processes_of_the_workload_do_not_get_a_file_of_events(tmp_path: Path) -> None:
    with writing_events(tmp_path / "rank-00000.parquet"):
        # The listing itself has a descriptor, which is closed by then.
        links = [link for link in Path("/proc/self/fd").iterdir() if link.exists()]
        ours = [link.name for link in links if link.readlink().is_relative_to(tmp_path)]
        inherited = [number for number in ours if os.get_inheritable(int(number))]
    assert ours
    assert inherited == []
