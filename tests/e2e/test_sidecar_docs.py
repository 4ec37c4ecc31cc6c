"""The sidecar's page for people, in a browser. It needs no Kafka."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from support.browser import ENTER, TAB, Browser, running_browser
from support.sidecars import running_sidecar

METHODS = ("get", "put", "post", "delete", "patch")
GROUP = {"group": "g", "topics": ["t"]}
PARTS: dict[str, Any] = {
    "producer": {}, "consumer": {}, "reactive": {"groups": GROUP}, "ksqldb": {}, "deadLetter": {},
    "replay": {}, "admin": {}, "audit": {"to": "log"},
}  # fmt: skip


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with running_sidecar("127.0.0.1:9", **PARTS) as http:
        yield http


@pytest.mark.needs("chromium")
async def test_the_page_fits_a_phone_is_dark_or_light_and_asks_nobody_else(http):
    served = (await http.get("/openapi.json")).json()
    count = sum(method in item for item in served["paths"].values() for method in METHODS)
    async with running_browser() as tab:
        for width, dark in ((1280, False), (360, True)):
            await tab.emulate_screen(width=width, height=800, is_dark=dark)
            await tab.open_url(f"{http.base_url}/docs")
            details = "document.querySelectorAll('details')"
            assert await tab.run_script(f"return {details}.length") == count
            await tab.run_script(f"{details}.forEach(each => each.open = true)")
            over = "return document.documentElement.scrollWidth - window.innerWidth"
            assert await tab.run_script(over) <= 0
            inside = "[...document.querySelectorAll('main *')].filter(wide).length"
            wide = "const wide = e => e.getBoundingClientRect().right > window.innerWidth"
            assert await tab.run_script(f"{wide}; return {inside}") == 0
            for what, is_light in (("backgroundColor", not dark), ("color", dark)):
                colour = await tab.run_script(
                    f"return getComputedStyle(document.body.parentNode).{what}"
                )
                parts = [int(part) for part in re.findall(r"\d+", colour)[:3]]
                assert (sum(parts) > 3 * 128) is is_light, (what, colour)
        resources = "performance.getEntriesByType('resource').map(each => each.name)"
        assert await tab.run_script(f"return {resources}") == [f"{http.base_url}/docs.css"]
        assert await tab.read_console() == []


@pytest.mark.needs("chromium")
async def test_the_page_is_used_by_keys_alone(http):
    async with running_browser() as tab:
        await tab.emulate_screen(width=1280, height=800, is_dark=False)
        await tab.open_url(f"{http.base_url}/docs")
        await until_focus(tab, "details:has(code) > summary")
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert await tab.run_script(f"return {outline}") == "solid"
        assert not await tab.run_script("return document.querySelector('details').open")
        await tab.press_keys(ENTER)
        await tab.wait_for_script("return document.querySelector('details').open")
        await until_focus(tab, "dd a")
        name = await tab.run_script("return document.activeElement.textContent")
        await tab.press_keys(ENTER)
        place = f"document.getElementById('schema-{name}').getBoundingClientRect().top"
        await tab.wait_for_script(f"return {place} > 0 && {place} < innerHeight")
        assert await tab.run_script("return document.activeElement.id") == f"schema-{name}"


async def until_focus(tab: Browser, selector: str) -> None:
    for _ in range(20):
        if await tab.run_script(f"return document.activeElement.matches({selector!r})"):
            return
        await tab.press_keys(TAB)
    raise AssertionError(f"no way to {selector} by the tab key")
