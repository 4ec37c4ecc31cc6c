"""Chromium's own EventSource, in a page of another origin than the stream's, without a head."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from support.clients.client import Event, ProcessClient
from support.needs import need
from support.served import served

PAGE = Path(__file__).parent / "page.html"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-proxy-server",
)


class ChromiumClient(ProcessClient):
    """A browser of its own, with an empty profile. It takes no headers: EventSource cannot."""

    name: ClassVar[str] = "chromium"
    reconnects: ClassVar[bool] = True

    def __init__(
        self, url: str, *, last_event_id: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        if headers or last_event_id:
            raise ValueError("EventSource sets no headers; use the query (?lastEventId=)")
        super().__init__(url)
        self._page = ""
        self._profile = ""
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        need("chromium")
        self._profile = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        )
        app = Starlette(
            routes=[
                Route("/", lambda request: FileResponse(PAGE)),
                Route("/heard", self._heard, methods=["POST"]),
            ]
        )
        self._page = await self._stack.enter_async_context(served(app))
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        await self._stack.aclose()

    async def command(self) -> Sequence[str]:
        browser = next(found for name in BROWSERS if (found := shutil.which(name)))
        page = f"{self._page}/?url={quote(self.url, safe='')}"
        return [browser, *FLAGS, f"--user-data-dir={self._profile}", page]

    def heard(self, piece: bytes) -> None:
        """What it prints is not for us: the page posts."""

    def _complained(self, piece: bytes) -> None:
        """It complains of missing buses and drivers on every machine without a screen."""

    async def _heard(self, request: Request) -> Response:
        for told in await request.json():
            if "opened" in told:
                self.opened += 1
            elif "error" in told:
                self.errors.append(told["error"])
                self.closed |= told["closed"]
            else:
                self.events.append(Event(event=told["event"], id=told["id"], data=told["data"]))
        return Response(status_code=204)
