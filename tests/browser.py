"""A real browser, for what only one can tell: layout, focus, colours, what a policy lets through."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = os.environ.get("CHROMIUM") or which("chromium") or which("chromium-browser") or which("google-chrome")
QUIET = (
    "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
    "--autoplay-policy=no-user-gesture-required",
)  # fmt: skip

REFUSAL = "Failed to load resource: the server responded with a status of 4"  # which a page tells of in its own words


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser without a window; where there is none, the test is skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives a browser, and is not installed")
    if CHROMIUM is None:
        pytest.skip("the explorer is tested in Chromium, and there is none here (CHROMIUM=PATH names one)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, address: str | Path, **context: Any) -> Iterator[Page]:
    """A page, of which nothing may go wrong: no script fails, nothing is refused by its policy, and a page by itself
    asks for nothing."""
    tab = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **context})
    page, wrong, asked = tab.new_page(), list[str](), list[str]()
    page.set_default_timeout(15_000)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console", lambda said: wrong.append(said.text) if said.type == "error" and REFUSAL not in said.text else None
    )
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address.as_uri() if isinstance(address, Path) else address)
    try:
        yield page
    finally:
        tab.close()
    assert not wrong, wrong
    if isinstance(address, Path):
        assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]


def scroll_width(page: Page) -> int:
    """How wide all of a page is: more than its window, and it has to be scrolled sideways."""
    return int(page.evaluate("document.documentElement.scrollWidth"))


def until(page: Page, expression: str) -> None:
    """Wait for an expression to be true; the page's policy forbids the browser to evaluate it by itself."""
    for _ in range(300):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"never came true: {expression}")
