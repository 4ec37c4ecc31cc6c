"""Serve the console: a page, the events that feed it, and what the admin API does not have.

The files of the page are served to everyone who reaches the port, since a browser sends no token
when it opens a page. They hold no data: whatever the page shows, it asks for with the operator's
token, and the `OperatorAuthorizer` of the admin API decides.

Its feed is a stream of server-sent events. One task asks the workers for all clients of a process
while somebody watches, and each event is encoded once:

    event: snapshot     all that is known, at the start and after a client was too slow
    event: delta        what has changed since, in the same shape

The page cannot ask the clients' port itself, whose address is of another origin: its requests are
passed on within the process. They get no headers but those that they need, and the credentials with
which the operator wants to make them. Whoever may use the admin port may not do everything there,
so the guards of that port decide.

The sidecar's API of dead letters and replays is used where one runs in this process. The page gets
those of its operations that are listed, and its guards, its audit and its metrics apply. A sidecar
in another process has a port of its own, and this gateway knows nothing of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

import orjson
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.background_tasks import BackgroundTasks
from gateway.config import Settings
from gateway.errors import RequestError
from gateway.hub.fanout.hubs import Hubs
from gateway.telemetry.process import LoopLag
from gateway.version import __version__
from gateway.web.access import Granted
from gateway.web.admin.app import AdminApi, Handler, OperatorAuthorizer, log_action
from gateway.web.admin.configuration import build_report, fetch_file_settings
from gateway.web.http.browsers import PAGE_HEADERS
from gateway.web.http.content import StaticDocument
from gateway.web.routing.routes import Routes
from gateway.web.workers.bus import Bus
from gateway.wire.sse import encode_event, encode_retry

from .kafka_lookup import (
    GroupEndpoints,
    JobEndpoints,
    KafkaLookup,
    RecordEndpoints,
    build_json,
    list_served_topics,
    read_query,
)
from .overview import Overview
from .worker_report import BUS_TOPIC, WorkerReport

PAGE_DIRECTORY = Path(__file__).parent / "page"
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
MAX_FEED_S = 300.0  # seconds until the page connects again, and its operator is authorized again
FEED_HEADERS = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would wait for a buffer to fill
}


class Console:
    """The console of one process, whose `routes` are added to the admin application."""

    def __init__(
        self, app: ASGIApp, hubs: Hubs, routes: Routes, admin: AdminApi, loop_lag: LoopLag, bus: Bus
    ) -> None:
        self._app = app
        self._stream_routes = routes
        self._admin = admin
        self._bus = bus
        self._report = WorkerReport(hubs, loop_lag, bus)
        self._feed = Feed(bus)
        hubs.drain_callbacks.add(self._feed.close)
        lookup = KafkaLookup(hubs)
        groups, jobs = GroupEndpoints(lookup), JobEndpoints(lambda: self._settings, lookup)
        records = RecordEndpoints(lambda: self._settings, lookup)
        self._documents = _load_documents()
        self.routes: list[BaseRoute] = [
            Route("/", self._redirect),
            Route("/console", self._serve_page),
            self._build_route("/console/events", self._stream_events),
            self._build_route("/console/about", self._describe),
            self._build_route("/console/config", self._compare_configuration),
            self._build_route("/console/try", self._try_stream),
            self._build_route("/console/groups", groups.list_groups),
            self._build_route("/console/group", groups.describe_group),
            self._build_route("/console/jobs", jobs.list_jobs),
            self._build_route("/console/records", records.list_records),
            *build_routes(app, self._settings, admin.authorizer),
            # Last: the name of a file is whatever the others are not.
            Route("/console/{name}", self._serve_file),
        ]

    async def run(self) -> None:
        await self._report.run()

    @property
    def _settings(self) -> Settings:
        return self._stream_routes.settings

    def _build_route(self, path: str, handler: Handler, method: str = "GET") -> Route:
        return Route(path, self._admin.authorizer.require_operator(handler), methods=[method])

    async def _redirect(self, request: Request) -> Response:
        return RedirectResponse("console", 307)

    async def _serve_page(self, request: Request) -> Response:
        return self._documents["index.html"].respond(request)

    async def _serve_file(self, request: Request) -> Response:
        document = self._documents.get(request.path_params["name"])
        return Response(status_code=404) if document is None else document.respond(request)

    async def _describe(self, request: Request) -> Response:
        granted: Granted = request.state.operator
        sidecar = describe_sidecar(self._settings)
        about = {
            "name": self._settings.name,
            "version": __version__,
            "operator": granted.identities,
            "listen": {
                "host": self._settings.listen.host,
                "port": self._settings.listen.port,
                "tls": self._settings.listen.tls is not None,
            },
            # Sections that are shown only if there is something to show.
            "sections": {
                "jobs": self._settings.pipelines is not None,
                "dead-letters": sidecar["deadLetters"] or sidecar["replays"],
            },
            "sidecar": sidecar,
            "routes": [when.path for route in self._settings.routes for when in route.when],
            "topics": list_served_topics(self._settings),
        }
        return build_json(about)

    async def _stream_events(self, request: Request) -> Response:
        """Answer the events of the feed, for as long as the operator's token is valid."""
        granted: Granted = request.state.operator
        lifetime_s = MAX_FEED_S
        if granted.expires is not None:
            lifetime_s = min(lifetime_s, max(0.0, granted.expires - time.time()))
        return StreamingResponse(
            self._feed.watch(lifetime_s), headers=FEED_HEADERS, media_type="text/event-stream"
        )

    async def _compare_configuration(self, request: Request) -> Response:
        running = self._settings
        file = await fetch_file_settings(self._admin.reload_coordinator, running, self._bus)
        return build_json(build_report(running, file))

    async def _try_stream(self, request: Request) -> PassedResponse:
        """Answer as a client would be, with the guards of the route."""
        return open_stream(self._app, request, self._stream_routes)


STREAM_HEADERS = (b"accept", b"host", b"last-event-id", b"user-agent")


def open_stream(app: ASGIApp, request: Request, routes: Routes) -> PassedResponse:
    """Return the response of the stream of `url`, as a client would get it.

    The same application answers, with the same guards.
    """
    url = request.query_params.get("url", "")
    parts = urlsplit(url)
    if not parts.path.startswith("/") or parts.scheme or parts.netloc or not url.isascii():
        detail = "?url= is the path of a stream with its query, such as /events/orders?from=-5m"
        raise RequestError(400, "Bad request", detail)
    routes.match(parts.path)
    return PassedResponse(app, build_scope(request, parts.path, parts.query, STREAM_HEADERS))


def _load_documents() -> Mapping[str, StaticDocument]:
    return {
        file.name: StaticDocument(
            file.read_bytes(),
            MEDIA_TYPES[file.suffix],
            PAGE_HEADERS if file.suffix == ".html" else None,
        )
        for file in sorted(PAGE_DIRECTORY.iterdir())
        if file.suffix in MEDIA_TYPES
    }


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


log = logging.getLogger(__name__)

INTERVAL_S = 0.5  # seconds between two questions to the workers
BUS_TIMEOUT_S = 1.0  # seconds for a worker to answer
MAX_PENDING_EVENTS = 20  # events that wait for a client before it gets a snapshot instead
RETRY_MS = 1000  # until a client connects again


class Feed:
    """The events of one process for all that watch. Owned by `Console`.

    Between calls, `_task` runs exactly while there are viewers, and `_overview` has what workers
    answered to the first question. Viewers that come together share that question: `_start_lock` is
    held from the look for viewers until the first of them is one.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._viewers: set[_Viewer] = set()
        self._overview = Overview(bus.worker_count)
        self._start_lock = asyncio.Lock()
        self._tasks = BackgroundTasks(log)
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None

    async def watch(self, lifetime_s: float) -> AsyncIterator[bytes]:
        """Yield events until the feed is closed or the time is up.

        A client that connects again after that is authorized again.
        """
        viewer = _Viewer()
        async with self._start_lock:
            if not self._viewers:
                # What was known may be of long ago.
                overview = Overview(self._bus.worker_count)
                await self._ask_workers(overview)
                self._overview = overview
            self._viewers.add(viewer)
            if self._task is None:
                self._task = self._tasks.start(self._run(), "the feed of the console")
        deadline = asyncio.get_running_loop().time() + lifetime_s
        try:
            yield encode_retry(RETRY_MS)
            while not viewer.is_closed:
                yield viewer.take() or encode_event(
                    "snapshot", orjson.dumps(self._overview.build_snapshot(), default=list)
                )
                try:
                    async with asyncio.timeout_at(deadline):
                        await viewer.event.wait()
                except TimeoutError:
                    return
        finally:
            self._viewers.discard(viewer)

    def close(self) -> None:
        for viewer in self._viewers:
            viewer.close()

    async def _run(self) -> None:
        try:
            while self._viewers:
                await asyncio.sleep(INTERVAL_S)
                overview = self._overview
                event = await self._ask_workers(overview)
                # Viewers who came after all had left begin with another overview.
                if event is not None and overview is self._overview:
                    for viewer in self._viewers:
                        viewer.add(event)
        finally:
            self._task = None

    async def _ask_workers(self, overview: Overview) -> bytes | None:
        """Add the workers' answers; return an event with what has changed, None if nothing has."""
        responses = await self._bus.request(
            BUS_TOPIC, overview.describe_known(), timeout_s=BUS_TIMEOUT_S
        )
        delta = overview.apply(responses.by_worker, asyncio.get_running_loop().time())
        return encode_event("delta", orjson.dumps(delta, default=list)) if delta else None


class _Viewer:
    """The events that one client has not been sent yet.

    `_pending` is None if it is to be sent a snapshot: at the start, and after it was too slow.
    """

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.event.set()
        self.is_closed = False
        self._pending: list[bytes] | None = None

    def add(self, event: bytes) -> None:
        self.event.set()
        if self._pending is not None:
            self._pending.append(event)
            if len(self._pending) > MAX_PENDING_EVENTS:
                self._pending = None

    def take(self) -> bytes | None:
        self.event.clear()
        pending, self._pending = self._pending, []
        return None if pending is None else b"".join(pending)

    def close(self) -> None:
        self.is_closed = True
        self.event.set()
