"""Headless Chromium, the system's own, driven by playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.requirement import report_missing

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
SCREENSHOTS_VARIABLE = "WALGATE_SCREENSHOTS"
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# A page of two busy cores; what it shows has a deadline of its own in each test.
_TIMEOUT_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Lend a browser to the tests of a module."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        report_missing("Chromium", "install Debian's chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Lend an empty tab."""
    page = browser.new_page(viewport={"width": 1500, "height": 950})
    page.set_default_timeout(_TIMEOUT_MS)
    yield page
    page.close()


@pytest.fixture
def screenshot(page: Page, tmp_path: Path) -> Callable[[str], None]:
    """Lend a function that keeps what the tab shows, in `$WALGATE_SCREENSHOTS` where it is set."""
    folder = Path(os.environ.get(SCREENSHOTS_VARIABLE) or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)

    def take(name: str) -> None:
        page.screenshot(path=folder / f"{name}.png")

    return take
