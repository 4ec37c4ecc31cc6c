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
from support.clients.client import Event
from support.served import served
from support.until import until

from gateway.web.app import assets

PAGE = Path(__file__).parent / "module.html"
WITHIN = 60.0  # s


@dataclass
class Told:
    """What one page has told."""

    events: list[Event] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Pages:
    """origin: theirs. Each is known by the name of its tab."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.origin = ""
        self.app = Starlette(
            routes=[
                *assets.routes(),
                Route("/", lambda request: FileResponse(PAGE)),
                Route("/heard", self._heard, methods=["POST"]),
            ]
        )
        self._told: dict[str, Told] = defaultdict(Told)

    def __getitem__(self, tab: str) -> Told:
        return self._told[tab]

    def url(self, tab: str, path: str, **options: Any) -> str:
        """A page with one stream. options: of the Stream; `base` is the gateway."""
        given = json.dumps({"base": self.base, **options})
        return f"{self.origin}/?{urlencode({'tab': tab, 'path': path, 'options': given})}"

    async def live(self, *tabs: str) -> None:
        """Until all these are."""

        def met() -> bool:
            return all(self[tab].states[-1:] == ["live"] for tab in tabs)

        await until(met, lambda: self.state(tabs), WITHIN)

    async def wait(self, tab: str, met: Callable[[Sequence[Event]], object]) -> None:
        """Until the condition on a tab's events holds."""
        await until(lambda: met(self[tab].events), lambda: self.state([tab]), WITHIN)

    def state(self, tabs: Sequence[str]) -> str:
        """For messages of failure."""
        told = [(tab, self[tab]) for tab in tabs]
        return "; ".join(
            f"{tab}: {len(each.events)} events, {each.states[-3:]}, {each.errors[-3:]}"
            for tab, each in told
        )

    async def _heard(self, request: Request) -> Response:
        told = self[request.query_params["tab"]]
        for line in await request.json():
            if "state" in line:
                told.states.append(line["state"])
            elif "error" in line:
                told.errors.append(line["error"])
            else:
                told.events.append(Event(event=line["event"], id=line["id"], data=line["data"]))
        return Response(status_code=204)


@asynccontextmanager
async def site(base: str) -> AsyncIterator[Pages]:
    """base: of the gateway, `http://host:port`."""
    pages = Pages(base)
    async with served(pages.app) as pages.origin:
        yield pages
