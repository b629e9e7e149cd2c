"""Skips tests, with a sentence, where Triton or a tool is missing."""

from __future__ import annotations

import importlib.util
import shutil
from importlib import metadata

import numpy as np
import pytest

MISSING = "Triton is missing: pip install torch triton"


def version_of(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def require_triton() -> None:
    """For the whole module that calls it."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip(MISSING, allow_module_level=True)


def require_interpreter() -> None:
    """For the whole module that calls it."""
    require_triton()
    if reason := interpreter_fails():
        pytest.skip(reason, allow_module_level=True)


def interpreter_fails() -> str:
    """Why Triton's interpreter does not work here; empty where it does."""
    triton = metadata.version("triton")
    if version_of(triton) < FIRST_WITH_NEW_NUMPY and version_of(np.__version__) >= (2, 4):
        return f"the interpreter of Triton {triton} fails with numpy {np.__version__}"
    return ""


def require_nvdisasm() -> None:
    if shutil.which("nvdisasm") is None:
        pytest.skip("nvdisasm is missing: `make native-deps` installs it")


FIRST_WITH_NEW_NUMPY = (3, 9)
