"""Chromium driven by chromedriver (W3C WebDriver): open pages, press keys, look at them.

async with browser() as it:
    await it.open("http://127.0.0.1:8080/")
    await it.until("return document.querySelectorAll('tbody tr').length > 3")
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import shutil
import signal
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx
from support.clients.chromium import BROWSERS, FLAGS
from support.needs import need
from support.until import PATIENCE

TAB, ENTER, SPACE = "\ue004", "\ue007", " "

_PORT = re.compile(rb"started successfully on port (\d+)")


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A browser of its own with an empty profile, ended with the block."""
    need("chromium")
    async with AsyncExitStack() as stack:
        profile = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        )
        port = await stack.enter_async_context(_chromedriver())
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)
        )
        binary = next(found for name in BROWSERS if (found := shutil.which(name)))
        options = {"binary": binary, "args": [*FLAGS, f"--user-data-dir={profile}/profile"]}
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        session = (await _told(http.post("/session", json=wanted)))["sessionId"]
        http.base_url = http.base_url.join(f"/session/{session}/")
        try:
            yield Browser(http)
        finally:
            with suppress(httpx.HTTPError):
                await http.delete("", timeout=5)


class Browser:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def open(self, url: str) -> None:
        """Returns when the page is loaded."""
        await self._post("url", url=url)

    async def run(self, script: str, *arguments: Any) -> Any:
        """What the body of a function returns, as JSON; `arguments` are its arguments."""
        return await self._post("execute/sync", script=script, args=list(arguments))

    async def until(self, script: str, within: float = PATIENCE) -> Any:
        """Until the script returns something true; that."""
        found: list[Any] = []

        async def look() -> None:
            while not found or not found[-1]:
                found[:] = [await self.run(script)]
                await asyncio.sleep(0.02)

        try:
            await asyncio.wait_for(look(), within)
        except TimeoutError:
            raise TimeoutError(f"{script!r}: not within {within:g} s, last {found}") from None
        return found[-1]

    async def text(self, selector: str) -> str:
        return str(await self.run(f"return document.querySelector({selector!r}).textContent"))

    async def press(self, keys: str) -> None:
        """Keys to whatever has the focus."""
        strokes = [{"type": kind, "value": k} for k in keys for kind in ("keyDown", "keyUp")]
        await self._post("actions", actions=[{"type": "key", "id": "keys", "actions": strokes}])

    async def dress(self, *, width: int, height: int, dark: bool, scale: float = 1) -> None:
        """The screen's size in CSS pixels, and the colours that its user prefers."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        size = {"width": width, "height": height, "deviceScaleFactor": scale}
        await self._cdp("Emulation.setDeviceMetricsOverride", **size, mobile=width < 600)
        await self._cdp("Emulation.setEmulatedMedia", features=[scheme])

    async def screenshot(self) -> bytes:
        """A PNG of what is on the screen."""
        return base64.b64decode(await _told(self._http.get("screenshot")))

    async def _cdp(self, command: str, **parameters: Any) -> None:
        await self._post("goog/cdp/execute", cmd=command, params=parameters)

    async def _post(self, verb: str, **body: Any) -> Any:
        return await _told(self._http.post(verb, json=body))


async def _told(asking: Any) -> Any:
    answer = (await asking).json()["value"]
    assert not (isinstance(answer, dict) and "error" in answer), answer["message"]
    return answer


@asynccontextmanager
async def _chromedriver() -> AsyncIterator[int]:
    """Its port, chosen by itself; with all its children it is ended."""
    process, port = await _started()
    try:
        yield port
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _started() -> tuple[Process, int]:
    """It wants one port of two address families: somebody may have the other's."""
    said = b""
    for _ in range(5):
        process = await asyncio.create_subprocess_exec(
            *("chromedriver", "--port=0"),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while line := await process.stdout.readline():
                said += line
                if found := _PORT.search(line):
                    return process, int(found[1])
        await process.wait()
    raise AssertionError(f"chromedriver ended five times: {said.decode()}")
