"""A page in the system's Chromium, driven by Playwright.

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("page_browser")]

async with open_page(f"{admin_url}/console") as page:
    await expect(page.locator("#connection")).to_have_text("live")

With the fixture, tests share one browser and have a profile each; without it, as in another event
loop, a page has a browser of its own.

`browser.py` drives the same Chromium by chromedriver. Playwright waits by itself until a page shows
what a test expects, and sees every message of the console; its own browsers are not installed.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import pytest_asyncio
from support.clients.chromium import CHROMIUM_FLAGS, CHROMIUM_NAMES
from support.requirements import require_tools, skip_or_fail
from support.waiting import WAIT_TIMEOUT_S

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

DESKTOP, PHONE = (1280, 900), (390, 844)

_browsers: dict[asyncio.AbstractEventLoop, Browser] = {}  # those of `page_browser`


def expect(subject: Any) -> Any:
    """As Playwright's own, which is imported by tests of pages alone."""
    from playwright.async_api import expect as expect_by_playwright

    expect_by_playwright.set_options(timeout=WAIT_TIMEOUT_S * 1000)
    return expect_by_playwright(subject)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def page_browser() -> AsyncIterator[None]:
    """The browser of all pages that are opened in the event loop of the session."""
    loop = asyncio.get_running_loop()
    async with _running_browser() as browser:
        _browsers[loop] = browser
        yield
        del _browsers[loop]


@asynccontextmanager
async def _running_browser() -> AsyncIterator[Browser]:
    require_tools("chromium")
    if find_spec("playwright") is None:
        skip_or_fail("needs playwright: make setup")
    from playwright.async_api import async_playwright

    binary = next(found for name in CHROMIUM_NAMES if (found := shutil.which(name)))
    flags = [each for each in CHROMIUM_FLAGS if each != "--headless"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=binary, args=flags, timeout=WAIT_TIMEOUT_S * 1000
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def open_page(
    url: str,
    size: tuple[int, int] = DESKTOP,
    colors: Literal["light", "dark"] = "light",
    scale: float = 1,
) -> AsyncIterator[Page]:
    """A page with an empty profile. Errors that the page had fail the test at its end."""
    async with AsyncExitStack() as stack:
        browser = _browsers.get(asyncio.get_running_loop())
        if browser is None:
            browser = await stack.enter_async_context(_running_browser())
        width, height = size
        context = await browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=colors,
            device_scale_factor=scale,
        )
        stack.push_async_callback(context.close)
        page = await context.new_page()
        page.set_default_timeout(WAIT_TIMEOUT_S * 1000)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "console",
            lambda message: errors.append(message.text) if is_fault(message.text) else None,
        )
        await page.goto(url)
        yield page
        assert not errors, errors


def is_fault(message: str) -> bool:
    """Whether a message of the console says that the page is wrong, not that a server is away."""
    return "Content Security Policy" in message or "Uncaught" in message
