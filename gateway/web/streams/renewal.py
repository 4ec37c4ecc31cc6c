"""New tokens for streams that run: `POST /streams/NAME/token`, to whichever worker it comes.

The name is told to the stream's client alone, by its `challenge`. Who posts is asked by the guards
of the stream's route, as for a stream of its own, and must be who opened it.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import RequestError
from gateway.web.access import Granted
from gateway.web.routing.routes import Routes
from gateway.web.workers.bus import Bus

BEFORE, BEHIND = "/streams/", "/token"
OTHER = "this token is another client's; open a stream of its own"
GONE = "no stream that runs has this name; connect again with Last-Event-ID"

Outcome: TypeAlias = Literal["renewed", "other"]


def name_in(path: str) -> str | None:
    """Of the stream that a path renews; None if it is no such path."""
    name = path.removeprefix(BEFORE).removesuffix(BEHIND)
    return name if path == f"{BEFORE}{name}{BEHIND}" and name and "/" not in name else None


class Renewals:
    """Of the streams of all processes on a bus."""

    def __init__(self, routes: Routes, bus: Bus) -> None:
        self._routes = routes
        self._bus = bus
        bus.on("stream-path", self._path)
        bus.on("stream-renew", self._renew)

    async def renew(self, name: str, request: Request) -> Response:
        """204 once it is renewed. Raises RequestError: 404 for a stream that does not run, 401 and
        403 as for a stream, and 403 where the token is another client's."""
        path = await self._ask("stream-path", name)
        match = await self._routes.admit(self._routes.match(path), request)
        outcome: Outcome = await self._ask("stream-renew", [name, match.granted.told()])
        if outcome == "other":
            raise RequestError(403, "Forbidden", OTHER)
        return Response(status_code=204, headers={"Cache-Control": "no-store"})

    async def _ask(self, topic: str, data: Any) -> Any:
        """What the one worker says that has the stream."""
        answers = await self._bus.ask(topic, data)
        said = [answer for answer in answers.said.values() if answer is not None]
        if not said and answers.missing:
            raise RequestError(503, "Busy", "a worker does not answer; try again", retry_after=1.0)
        if not said:
            raise RequestError(404, "Unknown stream", GONE)
        return said[0]

    def _path(self, worker: int, name: str) -> str | None:
        stream = self._routes.openings.find(name)
        return None if stream is None else stream.match.path

    def _renew(self, worker: int, said: tuple[str, list[Any]]) -> Outcome | None:
        name, told = said
        stream, granted = self._routes.openings.find(name), Granted.of(told)
        if stream is None:
            return None
        if granted.subject != stream.match.granted.subject:
            return "other"
        self._routes.openings.do(self._routes.openings.renew(stream, granted))
        return "renewed"
