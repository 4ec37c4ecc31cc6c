"""Pass requests of the page on to the clients' port and to the sidecar, within the process.

The page cannot ask the clients' port itself: its address is of another origin. A request gets no
headers but those that it needs, and the credentials with which the operator wants to make it.
Whoever may use the admin port may not do everything there, so the guards of that port decide.

The sidecar's API of dead letters and replays is used where one runs in this process. The page gets
those of its operations that are listed, and its guards, its audit and its metrics apply. A sidecar
in another process has a port of its own, and this gateway knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.config import Settings
from gateway.web.admin.app import OperatorAuthorizer, log_action

from .groups import read_query

CREDENTIALS_HEADER = "gateway-stream-authorization"
"""The header with the value of `Authorization` that the passed request gets."""


class PassedResponse:
    """A response that is another application's answer to another request."""

    def __init__(
        self, app: ASGIApp, scope: Scope, on_start: Callable[[int], None] | None = None
    ) -> None:
        """Prepare the request of `scope`, whose body is that of the page's request."""
        self._app = app
        self._scope = scope
        self._on_start = on_start

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_without_challenge(message: Message) -> None:
            if message["type"] == "http.response.start":
                # For a challenge of `Basic`, the browser would ask in a window of its own.
                kept = [each for each in message["headers"] if each[0] != b"www-authenticate"]
                message = {**message, "headers": kept}
                if self._on_start is not None:
                    self._on_start(message["status"])
            await send(message)

        await self._app(self._scope, receive, send_without_challenge)


def build_scope(
    request: Request,
    path: str,
    query: str,
    passed_headers: Iterable[bytes],
    *,
    method: str = "GET",
    **fields: Any,
) -> Scope:
    """Return the scope of a request to the clients' port; the path is percent-encoded."""
    scope, passed = request.scope, frozenset(passed_headers)
    headers = [(name, value) for name, value in scope["headers"] if name in passed]
    authorization = request.headers.get(CREDENTIALS_HEADER, request.headers.get("authorization"))
    if authorization:
        headers.append((b"authorization", authorization.encode("latin-1")))
    return {
        "type": "http",
        "asgi": scope["asgi"],
        "http_version": scope["http_version"],
        "method": method,
        "scheme": scope["scheme"],
        "path": unquote(path),
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": headers,
        "client": scope["client"],
        "server": scope["server"],
        # Without extensions, a stream does not take the connection over.
        "extensions": {},
        "state": {},
        **fields,
    }


MAX_LETTERS = 50  # that are shown at a time
MAX_LETTER_BYTES = 1 << 20  # of their keys and values
PASSED_HEADERS = (b"content-type", b"content-length", b"user-agent")
# An operator was let in by the guards of `admin`. The name of that port means nothing here, and
# is none of this machine where the sidecar asks for one.
HOST_HEADER = (b"host", b"localhost")


class SidecarCall(NamedTuple):
    """An operation of the sidecar that the page may use, at `path` below `/console`.

    One that changes something is no GET, which a page of another site could cause without a
    preflight request, and has an `action` for the log.
    """

    path: str
    method: str
    target: str
    target_method: str = "GET"
    parameters: tuple[str, ...] = ()
    fixed: Mapping[str, str] = {}
    action: str = ""


DEAD_LETTER_CALLS = (
    SidecarCall(
        "/dead-letters", "GET", "/consumers/deadLetter/active",
        parameters=("group", "topic"),
        # As bytes: the page shows also those that cannot be decoded.
        fixed={
            "maxRecords": str(MAX_LETTERS), "max_bytes": str(MAX_LETTER_BYTES),
            "keyFormat": "binary", "valueFormat": "binary",
        },
    ),
    SidecarCall(
        "/dead-letters/retry", "POST", "/consumers/deadLetter/reactive",
        parameters=("group", "topic", "lastretry"), action="retry dead letters",
    ),
    SidecarCall(
        "/dead-letters/drop", "POST", "/consumers/deadLetter/active/offsets", "POST",
        action="drop dead letters",
    ),
)  # fmt: skip
REPLAY_CALLS = (
    SidecarCall("/replays", "GET", "/replays"),
    SidecarCall(
        "/replays/{id}", "DELETE", "/replays/{id}", "DELETE", action="cancel replay"
    ),
)  # fmt: skip


def build_routes(app: ASGIApp, settings: Settings, authorizer: OperatorAuthorizer) -> list[Route]:
    """Return the routes of the sidecar's operations; the section is read at the start only."""
    section = settings.sidecar
    calls: list[SidecarCall] = []
    if section is not None and section.dead_letter is not None:
        calls += DEAD_LETTER_CALLS
    if section is not None and section.replay is not None:
        calls += REPLAY_CALLS
    return [
        Route(
            f"/console{call.path}",
            authorizer.require_operator(partial(_pass_on, app, call)),
            methods=[call.method],
        )
        for call in calls
    ]


def describe_sidecar(settings: Settings) -> dict[str, Any]:
    section = settings.sidecar
    groups = () if section is None or section.reactive is None else section.reactive.groups
    return {
        "deadLetters": section is not None and section.dead_letter is not None,
        "replays": section is not None and section.replay is not None,
        "groups": [{"group": each.group, "topics": list(each.topics)} for each in groups],
    }


async def _pass_on(app: ASGIApp, call: SidecarCall, request: Request) -> PassedResponse:
    parameters = read_query(request, call.parameters)
    path = call.target.format(**{k: quote(v, safe="") for k, v in request.path_params.items()})
    scope = build_scope(
        request,
        path,
        urlencode({**parameters, **call.fixed}),
        PASSED_HEADERS,
        method=call.target_method,
    )
    scope["headers"].append(HOST_HEADER)

    def log_call(status: int) -> None:
        if call.action:
            log_action(request, call.action, **parameters, **request.path_params, status=status)

    return PassedResponse(app, scope, log_call)
