"""A real browser without a window, which says what is wrong with a page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

WIDTHS = {"desktop": 1280, "telephone": 390}
"""CSS pixels."""

BROKEN = "[...document.images].filter(i => !i.naturalWidth).map(i => i.src)"
BEYOND = "document.documentElement.scrollWidth - window.innerWidth"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start Chromium."""
    if CHROMIUM is None and "CI" not in os.environ:
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright  # All tests import this file.

    with sync_playwright() as playwright:
        # As root, as in a container, Chromium refuses to start with its sandbox.
        found = playwright.chromium.launch(
            executable_path=CHROMIUM or "chromium", args=["--no-sandbox"]
        )
        yield found
        found.close()


def faults(browser: Browser, paths: list[Path]) -> list[str]:
    """Open pages one after the other, and return what is wrong with them.

    That is an error of a script, a picture that does not load, a request to another
    host, and text that makes the page wider than the window of a desktop or telephone.
    """
    said: list[str] = []
    requests: list[str] = []
    page = browser.new_page()
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    found = []
    for path in paths:
        said.clear()
        requests.clear()
        page.goto(path.as_uri())
        said += [f"{each} does not load" for each in page.evaluate(BROKEN)]
        for width in WIDTHS.values():
            page.set_viewport_size({"width": width, "height": 844})
            beyond = page.evaluate(BEYOND)
            if beyond > 0:
                said.append(f"{beyond} pixels wider than a window of {width}")
        local = ("file:", "data:", "blob:")
        said += [f"asks for {each}" for each in requests if not each.startswith(local)]
        found += [f"{path.name}: {each}" for each in said]
    page.close()
    return found
