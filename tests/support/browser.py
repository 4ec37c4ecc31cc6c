"""Chromium driven by chromedriver (W3C WebDriver): open pages, press keys, look at them.

async with running_browser() as tab:
    await tab.open_url("http://127.0.0.1:8080/")
    await tab.wait_for_script("return document.querySelectorAll('tbody tr').length > 3")

One is started for all tests of a process, and ended with it; a test that wants flags of its own has
one of its own. Firefox has no driver here: `running_firefox` shows pages, which tell a server of
the test what they see.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
from support.clients.chromium import CHROMIUM_FLAGS, CHROMIUM_NAMES
from support.requirements import require_tools
from support.waiting import WAIT_TIMEOUT_S

TAB, ENTER, SPACE = "\ue004", "\ue007", " "

_PORT_PATTERN = re.compile(rb"started successfully on port (\d+)")


@asynccontextmanager
async def running_browser(
    *extra_flags: str, http3_address: str = "", records_responses: bool = False
) -> AsyncIterator[Browser]:
    """A browser with one empty tab, and without cookies and a cache. All tabs end with the block.

    extra_flags: after those of every browser.
    http3_address: host:port that it asks by HTTP/3 from the first request; it asks nobody else so.
    records_responses: `read_responses` has them.
    """
    require_tools("chromium")
    flags = [*_list_flags(http3_address), *extra_flags]
    if http3_address or extra_flags or records_responses:
        driver = await asyncio.to_thread(_Driver, flags, records_responses)
        try:
            async with driver.create_client() as http:
                yield Browser(http)
        finally:
            driver.kill()
        return
    driver = await asyncio.to_thread(_get_shared_driver)
    async with driver.create_client() as http:
        try:
            yield Browser(http)
        finally:
            try:
                await Browser(http).reset()
            except (AssertionError, httpx.HTTPError):
                driver.kill()  # the next test has another one


def _list_flags(http3_address: str) -> Sequence[str]:
    if not http3_address:
        return CHROMIUM_FLAGS
    others = [flag for flag in CHROMIUM_FLAGS if flag != "--disable-quic"]
    return [*others, "--enable-quic", f"--origin-to-force-quic-on={http3_address}"]


class BrowserResponse(NamedTuple):
    """A response, when its head has come.

    protocol:   as of ALPN: http/1.1, h2 or h3.
    connection: a number of the connection that it came over.
    coding:     its content coding, "" for none.
    """

    path: str
    status: int
    protocol: str
    connection: int
    coding: str


class Browser:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def open_url(self, url: str) -> None:
        """Returns when the page is loaded."""
        await self._post_command("url", url=url)

    async def open_tab(self, url: str) -> str:
        """One more, which is looked at from now on; its handle for `look_at`."""
        tab = str((await self._post_command("window/new", type="tab"))["handle"])
        await self.switch_to_tab(tab)
        await self.open_url(url)
        return tab

    async def switch_to_tab(self, tab: str) -> None:
        await self._post_command("window", handle=tab)

    async def list_tabs(self) -> list[str]:
        """The handles of all."""
        return [str(tab) for tab in await _read_response(self._http.get("window/handles"))]

    async def close_tab(self) -> None:
        """The one that is looked at; look at another one then."""
        await _read_response(self._http.delete("window"))

    async def reset(self) -> None:
        """Leave one empty tab, and nothing that pages have stored or said."""
        tabs = await self.list_tabs()
        await self.switch_to_tab(tabs[0])  # the one that was looked at may be closed
        empty = str((await self._post_command("window/new", type="tab"))["handle"])
        for tab in tabs:
            await self.switch_to_tab(tab)
            await self.close_tab()
        await self.switch_to_tab(empty)
        await self._run_cdp_command("Network.clearBrowserCookies")
        await self._run_cdp_command("Network.clearBrowserCache")
        await self.read_console()

    async def run_script(self, script: str, *arguments: Any) -> Any:
        """What the body of a function returns, as JSON; `arguments` are its arguments."""
        return await self._post_command("execute/sync", script=script, args=list(arguments))

    async def wait_for_script(self, script: str, timeout_s: float = WAIT_TIMEOUT_S) -> Any:
        """Until the script returns something true; that."""
        found: list[Any] = []

        async def poll_script() -> None:
            while not found or not found[-1]:
                found[:] = [await self.run_script(script)]
                await asyncio.sleep(0.02)

        try:
            await asyncio.wait_for(poll_script(), timeout_s)
        except TimeoutError:
            raise TimeoutError(f"{script!r}: not within {timeout_s:g} s, last {found}") from None
        return found[-1]

    async def get_text(self, selector: str) -> str:
        return str(
            await self.run_script(f"return document.querySelector({selector!r}).textContent")
        )

    async def press_keys(self, keys: str) -> None:
        """Keys to whatever has the focus."""
        strokes = [{"type": kind, "value": k} for k in keys for kind in ("keyDown", "keyUp")]
        await self._post_command(
            "actions", actions=[{"type": "key", "id": "keys", "actions": strokes}]
        )

    async def emulate_screen(
        self, *, width: int, height: int, is_dark: bool, scale: float = 1
    ) -> None:
        """The screen's size in CSS pixels, and the colours that its user prefers."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        size = {"width": width, "height": height, "deviceScaleFactor": scale}
        await self._run_cdp_command(
            "Emulation.setDeviceMetricsOverride", **size, mobile=width < 600
        )
        await self._run_cdp_command("Emulation.setEmulatedMedia", features=[scheme])

    async def read_console(self) -> list[str]:
        """What it said there since it was asked last: errors of pages, and what it has kept them
        from doing."""
        said = await self._post_command("se/log", type="browser")
        return [f"{each['level']} {each['message']}" for each in said]

    async def read_responses(self) -> list[BrowserResponse]:
        """Those since it was asked last, also of streams that go on."""
        entries = await self._post_command("se/log", type="performance")
        messages = [json.loads(entry["message"])["message"] for entry in entries]
        responses = [
            message["params"]["response"]
            for message in messages
            if message["method"] == "Network.responseReceived"
        ]
        return [
            BrowserResponse(
                urlsplit(each["url"]).path,
                each["status"],
                each["protocol"],
                each["connectionId"],
                {name.lower(): value for name, value in each["headers"].items()}.get(
                    "content-encoding", ""
                ),
            )
            for each in responses
        ]

    async def _run_cdp_command(self, command: str, **parameters: Any) -> None:
        await self._post_command("goog/cdp/execute", cmd=command, params=parameters)

    async def _post_command(self, path: str, **body: Any) -> Any:
        return await _read_response(self._http.post(path, json=body))


@asynccontextmanager
async def running_firefox(*urls: str) -> AsyncIterator[Process]:
    """A Firefox without a head and with an empty profile, showing each of these in a tab; ended
    with the block."""
    require_tools("firefox")
    binary = next(found for name in ("firefox-esr", "firefox") if (found := shutil.which(name)))
    with tempfile.TemporaryDirectory(prefix="firefox-", ignore_cleanup_errors=True) as profile:
        _write_preferences(profile)
        process = await asyncio.create_subprocess_exec(
            *(binary, "--headless", "--no-remote", "--profile", profile, *urls),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=DEVNULL,
            start_new_session=True,
            env={**os.environ, "HOME": profile},
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _write_preferences(profile: str) -> None:
    lines = (
        f"user_pref({json.dumps(name)}, {json.dumps(at)});\n" for name, at in _FIREFOX_PREFERENCES
    )
    Path(profile, "user.js").write_text("".join(lines))


# It shows no page of its own, asks nobody in the net for anything, and has all tabs loaded. It
# opens no second connection when one takes more than 250 ms: tests count connections.
_FIREFOX_PREFERENCES: tuple[tuple[str, Any], ...] = (
    ("app.normandy.enabled", False),
    ("app.update.enabled", False),
    ("browser.aboutwelcome.enabled", False),
    ("browser.safebrowsing.downloads.remote.enabled", False),
    ("browser.shell.checkDefaultBrowser", False),
    ("browser.startup.homepage_override.mstone", "ignore"),
    ("browser.startup.page", 0),
    ("datareporting.policy.dataSubmissionEnabled", False),
    ("network.captive-portal-service.enabled", False),
    ("network.connectivity-service.enabled", False),
    ("network.http.connection-retry-timeout", 0),
    ("network.http.speculative-parallel-limit", 0),
    ("network.proxy.type", 0),
    ("services.settings.server", "data:,"),
    ("toolkit.telemetry.reportingpolicy.firstRun", False),
)


async def _read_response(pending_response: Any) -> Any:
    return _parse_response(await pending_response)


def _parse_response(response: httpx.Response) -> Any:
    answer = response.json()["value"]
    assert not (isinstance(answer, dict) and "error" in answer), answer["message"]
    return answer


class _Driver:
    """A chromedriver and its session, which is a browser with an empty profile.

    Killed with all its children: chromedriver itself is asked for nothing, which takes seconds.
    """

    def __init__(self, flags: Sequence[str], records_responses: bool = False) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        self._process, port = _start_chromedriver()
        self._url = f"http://127.0.0.1:{port}"
        binary = next(found for name in CHROMIUM_NAMES if (found := shutil.which(name)))
        arguments = [*flags, f"--user-data-dir={self._profile.name}/profile"]
        options = {"binary": binary, "args": arguments}
        logs = {"browser": "ALL"} | ({"performance": "ALL"} if records_responses else {})
        always = {"goog:chromeOptions": options, "goog:loggingPrefs": logs}
        try:
            with httpx.Client(timeout=WAIT_TIMEOUT_S, trust_env=False) as http:
                wanted = {"capabilities": {"alwaysMatch": always}}
                session = _parse_response(http.post(f"{self._url}/session", json=wanted))
        except BaseException:
            self.kill()
            raise
        self._url += f"/session/{session['sessionId']}/"

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def create_client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self._url, timeout=WAIT_TIMEOUT_S, trust_env=False)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._profile.cleanup()


_shared_drivers: list[_Driver] = []  # at most one


def _get_shared_driver() -> _Driver:
    if not _shared_drivers:
        atexit.register(_kill_shared_driver)
    if not (_shared_drivers and _shared_drivers[0].is_alive):
        _shared_drivers[:] = [_Driver(CHROMIUM_FLAGS)]
    return _shared_drivers[0]


def _kill_shared_driver() -> None:
    for driver in _shared_drivers:
        driver.kill()


def _start_chromedriver() -> tuple[subprocess.Popen[bytes], int]:
    """It wants one port of two address families: somebody may have the other's."""
    said = b""
    for _ in range(5):
        process = subprocess.Popen(
            ("chromedriver", "--port=0"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if found := _PORT_PATTERN.search(line):
                return process, int(found[1])
        process.wait()
    raise AssertionError(f"chromedriver ended five times: {said.decode()}")
