"""A page in the system's Chromium, driven by Playwright.

async with open_page(f"{admin_url}/console") as page:
    await expect(page.locator("#connection")).to_have_text("live")

`browser.py` drives the same Chromium by chromedriver. Playwright waits by itself until a page shows
what a test expects, and sees every message of the console; its own browsers are not installed.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from support.clients.chromium import CHROMIUM_FLAGS, CHROMIUM_NAMES
from support.requirements import require_tools, skip_or_fail
from support.waiting import WAIT_TIMEOUT_S

if TYPE_CHECKING:
    from playwright.async_api import Page

if find_spec("playwright") is None:  # `open_page` says how to get it
    expect: Any = None
else:
    from playwright.async_api import expect

    expect.set_options(timeout=WAIT_TIMEOUT_S * 1000)

DESKTOP, PHONE = (1280, 900), (390, 844)


@asynccontextmanager
async def open_page(
    url: str,
    size: tuple[int, int] = DESKTOP,
    colors: Literal["light", "dark"] = "light",
    scale: float = 1,
) -> AsyncIterator[Page]:
    """A page of a browser of its own. Errors that the page had fail the test at its end."""
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
            width, height = size
            page = await browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme=colors,
                device_scale_factor=scale,
            )
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
        finally:
            await browser.close()


def is_fault(message: str) -> bool:
    """Whether a message of the console says that the page is wrong, not that a server is away."""
    return "Content Security Policy" in message or "Uncaught" in message
