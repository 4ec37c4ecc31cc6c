"""Pages of the gateway's JavaScript module, of another origin than the gateway.

async with site(gateway_url) as pages:
    await tab.open(pages.url("one", "/records/orders", share="worker"))
    await pages.live("one")
    pages["one"].events
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from support.app_server import running_app
from support.clients.client import ReceivedEvent
from support.waiting import wait_until

from gateway.web.http import assets

PAGE_PATH = Path(__file__).parent / "module.html"
PAGE_TIMEOUT_S = 60.0  # s


@dataclass
class PageLog:
    """What one page has told.

    states: All states, each with its reason in `reasons`. troubles: what was said of failed
    attempts, as `onstate` got it. warnings: what the module wrote to the console.
    """

    events: list[ReceivedEvent] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    troubles: list[dict[str, Any]] = field(default_factory=list)
    reasons: list[str | None] = field(default_factory=list)


class ModulePages:
    """origin: theirs. Each is known by the name of its tab."""

    def __init__(self, gateway_url: str) -> None:
        self.gateway_url = gateway_url
        self.origin = ""
        self.app = Starlette(
            routes=[
                *assets.build_routes(),
                Route("/", lambda request: FileResponse(PAGE_PATH)),
                Route("/heard", self._handle_post, methods=["POST"]),
            ]
        )
        self._logs_by_tab: dict[str, PageLog] = defaultdict(PageLog)

    def __getitem__(self, tab: str) -> PageLog:
        return self._logs_by_tab[tab]

    def build_url(self, tab: str, path: str, **options: Any) -> str:
        """A page with one stream. options: of the Stream; `base` is the gateway."""
        given = json.dumps({"base": self.gateway_url, **options})
        return f"{self.origin}/?{urlencode({'tab': tab, 'path': path, 'options': given})}"

    async def wait_until_live(self, *tabs: str) -> None:
        """Until all these are."""

        def are_live() -> bool:
            return all(self[tab].states[-1:] == ["live"] for tab in tabs)

        await wait_until(are_live, lambda: self.describe_state(tabs), PAGE_TIMEOUT_S)

    async def wait_for_trouble(self, tab: str) -> dict[str, Any]:
        """Until it is told why its stream does not begin; that."""
        await wait_until(
            lambda: self[tab].troubles and self[tab].warnings,
            lambda: self.describe_state([tab]),
            PAGE_TIMEOUT_S,
        )
        return self[tab].troubles[0]

    async def wait_for_events(
        self, tab: str, condition: Callable[[Sequence[ReceivedEvent]], object]
    ) -> None:
        """Until the condition on a tab's events holds."""
        await wait_until(
            lambda: condition(self[tab].events), lambda: self.describe_state([tab]), PAGE_TIMEOUT_S
        )

    def describe_state(self, tabs: Sequence[str]) -> str:
        """For messages of failure."""
        told = [(tab, self[tab]) for tab in tabs]
        return "; ".join(
            f"{tab}: {len(each.events)} events, {each.states[-3:]}, {each.errors[-3:]}"
            for tab, each in told
        )

    async def _handle_post(self, request: Request) -> Response:
        told = self[request.query_params["tab"]]
        for line in await request.json():
            if "hint" in line:
                told.troubles.append(line)
            elif "state" in line:
                told.states.append(line["state"])
                told.reasons.append(line.get("reason"))
            elif "warning" in line:
                told.warnings.append(line["warning"])
            elif "error" in line:
                told.errors.append(line["error"])
            else:
                told.events.append(
                    ReceivedEvent(event=line["event"], id=line["id"], data=line["data"])
                )
        return Response(status_code=204)


@asynccontextmanager
async def serve_pages(gateway_url: str) -> AsyncIterator[ModulePages]:
    """base: of the gateway, `http://host:port`."""
    pages = ModulePages(gateway_url)
    async with running_app(pages.app) as pages.origin:
        yield pages
