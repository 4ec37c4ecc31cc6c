"""Streams in a page of a real browser, of another origin than theirs: WebSocket on a route's own
path and on /ws, EventSource, and fetch of lines of JSON. The page takes orders, so that one start
of a browser is enough for many tests.

async with page_in("firefox") as page:
    async with page.client("eventsource", url) as client:
        ...
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from support.browser import browser, firefox
from support.clients.client import Event
from support.clients.sockets import Kind, SocketClient
from support.lines import LineParser
from support.served import served
from support.until import until

PAGE = Path(__file__).parent / "streams.html"
WITHIN = 60.0  # s

BrowserName: TypeAlias = Literal["chromium", "firefox"]
KINDS: tuple[Kind, ...] = ("eventsource", "path", "multiplex", "ndjson")


class Page:
    """browser: its name. asked: how often it has come for orders."""

    def __init__(self, browser: BrowserName) -> None:
        self.browser = browser
        self.asked = 0
        self.app = Starlette(
            routes=[
                Route("/", lambda request: FileResponse(PAGE)),
                Route("/orders", self._give),
                Route("/blocked", self._blocked),
                Route("/heard", self._heard, methods=["POST"]),
            ]
        )
        self._orders: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self._streams: dict[str, PageClient] = {}
        self._names = map(str, itertools.count(1))
        self._free = True
        self._spinning = False

    def client(self, kind: Kind, url: str) -> PageClient:
        return PageClient(self, kind, url)

    def order(self, **what: Any) -> None:
        self._orders.put_nowait(what)

    def add(self, client: PageClient) -> str:
        """A name for its stream."""
        name = next(self._names)
        self._streams[name] = client
        return name

    async def block(self) -> None:
        """Keep its one thread busy until `free`; returns when it is."""
        self._free, self._spinning = False, False
        self.order(block=True)
        await until(lambda: self._spinning, "a busy page", WITHIN)

    def free(self) -> None:
        self._free = True

    async def _give(self, request: Request) -> Response:
        self.asked += 1
        orders = [await self._orders.get()]
        while not self._orders.empty():
            orders.append(self._orders.get_nowait())
        return JSONResponse(orders)

    async def _blocked(self, request: Request) -> Response:
        self._spinning = True
        return Response(status_code=204 if self._free else 200)

    async def _heard(self, request: Request) -> Response:
        for told in await request.json():
            self._streams[told["of"]].heard(told)
        return Response(status_code=204)


class PageClient(SocketClient):
    """One stream of the page.

    final: how often its EventSource gave up for good; the page then made another one.
    """

    reconnects = True

    def __init__(self, page: Page, kind: Kind, url: str) -> None:
        self.name = f"{kind} in {page.browser}"
        self.kind = kind
        self.final = 0
        self._page = page
        self._order = ""
        super().__init__(url)
        self._lines = LineParser()

    async def start(self) -> None:
        self._order = self._page.add(self)
        self._page.order(open=self._order, kind=self.kind, url=self.url, position=self._first_id)

    async def stop(self) -> None:
        self._page.order(close=self._order)

    async def hold(self) -> None:
        await self._page.block()

    def release(self) -> None:
        self._page.free()

    async def say(self, text: str, *, times: int = 1, binary: bool = False) -> None:
        self._page.order(say=self._order, text=text, times=times, binary=binary)

    def heard(self, told: Mapping[str, Any]) -> None:
        """A line of the page about it."""
        if "opened" in told:
            self.opened += 1
        elif "closed" in told:
            self.lost(told["closed"])
        elif "error" in told:
            self.errors.append(told["error"])
            self.final += told["final"]
        elif "message" in told:
            self.got(told["message"])
        elif "line" in told:
            for each in self._lines.feed(told["line"].encode() + b"\n"):
                self.events.append(Event(event=each.type, id=each.last_event_id, data=each.data))
        else:
            self.events.append(Event(event=told["event"], id=told["id"], data=told["data"]))


@asynccontextmanager
async def page_in(name: BrowserName) -> AsyncIterator[Page]:
    """A browser of its own, ended with the block."""
    page = Page(name)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(served(page.app))
        if name == "firefox":
            await stack.enter_async_context(firefox(url))
        else:
            await (await stack.enter_async_context(browser())).open(url)
        await until(lambda: page.asked, f"a page in {name}", WITHIN)
        yield page
