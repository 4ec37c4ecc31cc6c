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

RENEWAL_PATH_PREFIX, RENEWAL_PATH_SUFFIX = "/streams/", "/token"
OTHER_CLIENT_MESSAGE = "this token is another client's; open a stream of its own"
UNKNOWN_STREAM_MESSAGE = "no stream that runs has this name; connect again with Last-Event-ID"

RenewalOutcome: TypeAlias = Literal["renewed", "other"]


def parse_renewal_path(path: str) -> str | None:
    """Of the stream that a path renews; None if it is no such path."""
    name = path.removeprefix(RENEWAL_PATH_PREFIX).removesuffix(RENEWAL_PATH_SUFFIX)
    return (
        name
        if path == f"{RENEWAL_PATH_PREFIX}{name}{RENEWAL_PATH_SUFFIX}" and name and "/" not in name
        else None
    )


class TokenRenewer:
    """Of the streams of all processes on a bus."""

    def __init__(self, routes: Routes, bus: Bus) -> None:
        self._routes = routes
        self._bus = bus
        bus.add_handler("stream-path", self._handle_path)
        bus.add_handler("stream-renew", self._handle_renew)

    async def renew(self, name: str, request: Request) -> Response:
        """204 once it is renewed. Raises RequestError: 404 for a stream that does not run, 401 and
        403 as for a stream, and 403 where the token is another client's."""
        path = await self._ask_owner("stream-path", name)
        match = await self._routes.admit(self._routes.match(path), request)
        outcome: RenewalOutcome = await self._ask_owner(
            "stream-renew", [name, match.granted.to_json()]
        )
        if outcome == "other":
            raise RequestError(403, "Forbidden", OTHER_CLIENT_MESSAGE)
        return Response(status_code=204, headers={"Cache-Control": "no-store"})

    async def _ask_owner(self, topic: str, data: Any) -> Any:
        """What the one worker says that has the stream."""
        answers = await self._bus.request(topic, data)
        said = [answer for answer in answers.by_worker.values() if answer is not None]
        if not said and answers.missing:
            raise RequestError(503, "Busy", "a worker does not answer; try again", retry_after=1.0)
        if not said:
            raise RequestError(404, "Unknown stream", UNKNOWN_STREAM_MESSAGE)
        return said[0]

    def _handle_path(self, worker: int, name: str) -> str | None:
        stream = self._routes.stream_registry.find_by_renewal_name(name)
        return None if stream is None else stream.match.path

    def _handle_renew(self, worker: int, data: tuple[str, list[Any]]) -> RenewalOutcome | None:
        name, told = data
        stream, granted = (
            self._routes.stream_registry.find_by_renewal_name(name),
            Granted.from_json(told),
        )
        if stream is None:
            return None
        if granted.subject != stream.match.granted.subject:
            return "other"
        self._routes.stream_registry.start_task(
            self._routes.stream_registry.renew_or_end(stream, granted)
        )
        return "renewed"
