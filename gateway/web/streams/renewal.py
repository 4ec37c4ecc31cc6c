"""Renew the tokens of open streams: `POST /streams/NAME/token`, at any worker.

The name is sent only to the client of the stream, by its `challenge` event. The guards of the
stream's route check the request as they would check a request for the stream, and it must come from
the same client.
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
"""What the stream's worker responds with: `other` for the token of another client."""


def parse_renewal_path(path: str) -> str | None:
    """Return the name of the stream that a path renews; None for any other path."""
    name = path.removeprefix(RENEWAL_PATH_PREFIX).removesuffix(RENEWAL_PATH_SUFFIX)
    return (
        name
        if path == f"{RENEWAL_PATH_PREFIX}{name}{RENEWAL_PATH_SUFFIX}" and name and "/" not in name
        else None
    )


class TokenRenewer:
    """Renews the tokens of the streams of all workers.

    A request may come to any worker, so this worker asks all others over the bus for the stream.
    """

    def __init__(self, routes: Routes, bus: Bus) -> None:
        self._routes = routes
        self._bus = bus
        bus.add_handler("stream-path", self._handle_path)
        bus.add_handler("stream-renew", self._handle_renew)

    async def renew(self, name: str, request: Request) -> Response:
        """Renew the token of the stream with this name, which its `challenge` has.

        Without such a stream it is a 404, and 403 for the token of another client.
        """
        path = await self._ask_owner("stream-path", name)
        match = await self._routes.admit(self._routes.match(path), request)
        outcome: RenewalOutcome = await self._ask_owner(
            "stream-renew", [name, match.granted.to_json()]
        )
        if outcome == "other":
            raise RequestError(403, "Forbidden", OTHER_CLIENT_MESSAGE)
        return Response(status_code=204, headers={"Cache-Control": "no-store"})

    async def _ask_owner(self, topic: str, data: Any) -> Any:
        responses = await self._bus.request(topic, data)
        # Workers without the stream respond with None.
        found = [response for response in responses.by_worker.values() if response is not None]
        if not found and responses.missing:
            raise RequestError(503, "Busy", "a worker does not answer; try again", retry_after=1.0)
        if not found:
            raise RequestError(404, "Unknown stream", UNKNOWN_STREAM_MESSAGE)
        return found[0]

    def _handle_path(self, worker: int, name: str) -> str | None:
        stream = self._routes.stream_registry.find_by_renewal_name(name)
        return None if stream is None else stream.match.path

    def _handle_renew(self, worker: int, data: tuple[str, list[Any]]) -> RenewalOutcome | None:
        """Give a stream the present grants of its client; None if this worker does not have it."""
        name, granted_json = data
        stream = self._routes.stream_registry.find_by_renewal_name(name)
        granted = Granted.from_json(granted_json)
        if stream is None:
            return None
        if granted.subject != stream.match.granted.subject:
            return "other"
        # A handler of the bus must return at once, and the new view may have to ask Kafka.
        self._routes.stream_registry.start_task(
            self._routes.stream_registry.renew_or_end(stream, granted)
        )
        return "renewed"
