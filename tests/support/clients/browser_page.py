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
from support.app_server import running_app
from support.browser import running_browser, running_firefox
from support.clients.client import ReceivedEvent
from support.clients.websocket_clients import SocketClient, StreamKind
from support.ndjson_parser import NdjsonParser
from support.waiting import wait_until

PAGE_PATH = Path(__file__).parent / "streams.html"
PAGE_TIMEOUT_S = 60.0  # s

BrowserName: TypeAlias = Literal["chromium", "firefox"]
STREAM_KINDS: tuple[StreamKind, ...] = ("eventsource", "path", "multiplex", "ndjson")


class BrowserPage:
    """browser: its name. asked: how often it has come for orders."""

    def __init__(self, browser_name: BrowserName) -> None:
        self.browser_name = browser_name
        self.poll_count = 0
        self.app = Starlette(
            routes=[
                Route("/", lambda request: FileResponse(PAGE_PATH)),
                Route("/orders", self._handle_orders),
                Route("/blocked", self._handle_blocked),
                Route("/heard", self._handle_post, methods=["POST"]),
            ]
        )
        self._orders: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self._streams: dict[str, PageClient] = {}
        self._names = map(str, itertools.count(1))
        self._is_free = True
        self._is_blocked = False

    def create_client(self, stream_kind: StreamKind, url: str) -> PageClient:
        return PageClient(self, stream_kind, url)

    def send_order(self, **order: Any) -> None:
        self._orders.put_nowait(order)

    def register_client(self, client: PageClient) -> str:
        """A name for its stream."""
        name = next(self._names)
        self._streams[name] = client
        return name

    async def block_thread(self) -> None:
        """Keep its one thread busy until `free`; returns when it is."""
        self._is_free, self._is_blocked = False, False
        self.send_order(block=True)
        await wait_until(lambda: self._is_blocked, "a busy page", PAGE_TIMEOUT_S)

    def unblock_thread(self) -> None:
        self._is_free = True

    async def _handle_orders(self, request: Request) -> Response:
        self.poll_count += 1
        orders = [await self._orders.get()]
        while not self._orders.empty():
            orders.append(self._orders.get_nowait())
        return JSONResponse(orders)

    async def _handle_blocked(self, request: Request) -> Response:
        self._is_blocked = True
        return Response(status_code=204 if self._is_free else 200)

    async def _handle_post(self, request: Request) -> Response:
        for told in await request.json():
            self._streams[told["of"]].apply_report(told)
        return Response(status_code=204)


class PageClient(SocketClient):
    """One stream of the page.

    final: how often its EventSource gave up for good; the page then made another one.
    """

    reconnects_itself = True

    def __init__(self, page: BrowserPage, stream_kind: StreamKind, url: str) -> None:
        self.name = f"{stream_kind} in {page.browser_name}"
        self.stream_kind = stream_kind
        self.final_error_count = 0
        self._page = page
        self._stream_name = ""
        super().__init__(url)
        self._ndjson_parser = NdjsonParser()

    async def start(self) -> None:
        self._stream_name = self._page.register_client(self)
        self._page.send_order(
            open=self._stream_name, kind=self.stream_kind, url=self.url, position=self._initial_id
        )

    async def stop(self) -> None:
        self._page.send_order(close=self._stream_name)

    async def stop_reading(self) -> None:
        await self._page.block_thread()

    def resume_reading(self) -> None:
        self._page.unblock_thread()

    async def send_text(self, text: str, *, times: int = 1, binary: bool = False) -> None:
        self._page.send_order(say=self._stream_name, text=text, times=times, binary=binary)

    def apply_report(self, report: Mapping[str, Any]) -> None:
        """A line of the page about it."""
        if "opened" in report:
            self.open_count += 1
        elif "closed" in report:
            self.on_closed(report["closed"])
        elif "error" in report:
            self.errors.append(report["error"])
            self.final_error_count += report["final"]
        elif "message" in report:
            self.apply_message(report["message"])
        elif "line" in report:
            for each in self._ndjson_parser.feed(report["line"].encode() + b"\n"):
                self.events.append(
                    ReceivedEvent(event=each.event_type, id=each.last_event_id, data=each.data)
                )
        else:
            self.events.append(
                ReceivedEvent(event=report["event"], id=report["id"], data=report["data"])
            )


@asynccontextmanager
async def open_page(browser_name: BrowserName) -> AsyncIterator[BrowserPage]:
    """A browser of its own, ended with the block."""
    page = BrowserPage(browser_name)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(running_app(page.app))
        if browser_name == "firefox":
            await stack.enter_async_context(running_firefox(url))
        else:
            await (await stack.enter_async_context(running_browser())).open_url(url)
        await wait_until(lambda: page.poll_count, f"a page in {browser_name}", PAGE_TIMEOUT_S)
        yield page
