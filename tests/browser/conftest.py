"""The browser of a module of tests, and the folder for its screenshots."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browsing import SCREENSHOTS_VARIABLE, chromium


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Keeps what pages log. Modules that need other flags have their own."""
    with chromium(tmp_path_factory.mktemp("profile"), logs=("browser",)) as driver:
        yield driver


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chosen = os.environ.get(SCREENSHOTS_VARIABLE)
    return Path(chosen) if chosen else tmp_path_factory.mktemp("screens")
