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
from support.app_server import running_app
from support.clients.client import ProcessClient, ReceivedEvent
from support.requirements import require_tools

PAGE_PATH = Path(__file__).parent / "page.html"
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM_FLAGS = (
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
    reconnects_itself: ClassVar[bool] = True

    def __init__(
        self, url: str, *, last_event_id: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        if headers or last_event_id:
            raise ValueError("EventSource sets no headers; use the query (?lastEventId=)")
        super().__init__(url)
        self._page_url = ""
        self._profile_directory = ""
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        require_tools("chromium")
        self._profile_directory = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        )
        app = Starlette(
            routes=[
                Route("/", lambda request: FileResponse(PAGE_PATH)),
                Route("/heard", self._handle_post, methods=["POST"]),
            ]
        )
        self._page_url = await self._stack.enter_async_context(running_app(app))
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        await self._stack.aclose()

    async def build_command(self) -> Sequence[str]:
        browser = next(found for name in CHROMIUM_NAMES if (found := shutil.which(name)))
        page = f"{self._page_url}/?url={quote(self.url, safe='')}"
        return [browser, *CHROMIUM_FLAGS, f"--user-data-dir={self._profile_directory}", page]

    def feed_output(self, piece: bytes) -> None:
        """What it prints is not for us: the page posts."""

    def _feed_errors(self, piece: bytes) -> None:
        """It complains of missing buses and drivers on every machine without a screen."""

    async def _handle_post(self, request: Request) -> Response:
        for told in await request.json():
            if "opened" in told:
                self.open_count += 1
            elif "error" in told:
                self.errors.append(told["error"])
                self.is_closed |= told["closed"]
            else:
                self.events.append(
                    ReceivedEvent(event=told["event"], id=told["id"], data=told["data"])
                )
        return Response(status_code=204)
