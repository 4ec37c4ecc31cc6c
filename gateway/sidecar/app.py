"""All parts of the sidecar as one application, to stand beside the streams or alone.

A page in a browser is none of its callers: a sidecar serves the programs of its pod, and a page
could come from anywhere. What a browser sends for a page says so, and is refused.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from ipaddress import ip_address
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Asked

from gateway.config import Settings
from gateway.config.checks.guards import is_loopback
from gateway.errors import ConfigError, GatewayError, RequestError
from gateway.formats.codec import Codecs
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.produce.producer import Producer
from gateway.sidecar.http import body, docs
from gateway.sidecar.http.counted import Counted, Requests
from gateway.sidecar.http.ids import Identified, refused_ids
from gateway.sidecar.http.scope import KNOWN, Scope, anyone
from gateway.sidecar.http.spec import DIRECTORY, UNLIMITED, Spec
from gateway.sidecar.http.status import HANDLERS, Refusal, response, status_of, told
from gateway.sidecar.v2 import media
from gateway.sidecar.v2.dialect import CONFLUENT
from gateway.telemetry import catalog
from gateway.telemetry.figures import Figures

from .context import Context, Documents
from .part import Part
from .supervise import kept

log = logging.getLogger(__name__)

NDJSON = b"application/x-ndjson"
MOST = 1_000_000  # bytes of a body, where no option says more

# Which parts a section brings: `module:class`, imported where it is there. A module's operations
# are in `http/spec/MODULE.yaml`.
PARTS: Mapping[str, Sequence[str]] = {
    "audit": ["audit:Audits"],
    "producer": ["producer:Producers", "v2.produce:Writing"],
    "consumer": [
        "consumer.consumers:Consumers",
        "consumer.stateless:Stateless",
        "v2.topics:Topics",
    ],
    "reactive": ["reactive:Reactive"],
    "ksqldb": ["ksqldb:KsqlDb"],
    "dead_letter": ["deadletter:DeadLetterQueues"],
    "replay": ["replay:Replays"],
    "admin": ["admin:Admin"],
    "health": ["health:Healths"],
}
ALWAYS = frozenset({"health"})  # sections that need not be written
BESIDE = frozenset({"/health/live", "/health/ready"})  # the gateway's own, also alone
PUBLIC = frozenset({"/docs", "/docs.css", "/openapi.json"})  # what pages are


class Sidecar:
    """See the module. Raises ConfigError for a section that this version does not serve.

    scope: who may; see there.
    alone: nothing else is served on its port, but for the gateway's own health and metrics.
    documents: as of `Context`.
    """

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        *,
        scope: Scope = anyone,
        alone: bool = False,
        documents: Callable[[], Documents] | None = None,
    ) -> None:
        assert settings.sidecar is not None, "there is no section sidecar"
        sections = [name for name in PARTS if getattr(settings.sidecar, name) is not None]
        missing = [name for name in sections if not PARTS[name] and name not in ALWAYS]
        if missing:
            what = "is not served by this version; remove it"
            raise ConfigError([f"sidecar.{name}: {what}" for name in missing])
        served = [name for name in sections if PARTS[name]]
        modules = [path.partition(":")[0] for name in served for path in PARTS[name]]
        spec = Spec(name for name in modules if (DIRECTORY / f"{name}.yaml").is_file())
        self.settings = settings
        codecs = Codecs(catalog_of(settings))
        self.context = Context(settings, cluster, codecs, scope, spec, documents=documents)
        producer = settings.sidecar.producer
        self._most = MOST if producer is None else max(MOST, producer.max_bytes)
        self._alone = alone
        self._own = {settings.telemetry.metrics.prometheus or "", *BESIDE}
        self._parts = [(name, path) for name in served for path in PARTS[name]]
        self.parts: list[Part] = [self._made(name, path) for name, path in self._parts]
        self.routes: list[BaseRoute] = [route for part in self.parts for route in part.routes]
        self.routes += docs.routes(spec, settings.name)
        self._requests = Requests(self.routes)
        self._first = {_first(route.path) for route in self.routes if isinstance(route, Route)}
        self._first -= {"health"}  # shared with the gateway
        self.app: ASGIApp = Starlette(
            routes=self.routes,
            middleware=[
                Middleware(Counted, requests=self._requests),
                Middleware(Identified),
                Middleware(Programs, settings=settings),
                Middleware(Authenticated, scope=scope, free=self.free),
                *(each for part in self.parts for each in getattr(part, "middleware", ())),
            ],
            exception_handlers=HANDLERS,
        )
        self.app.router.redirect_slashes = False

    def _made(self, section: str, path: str) -> Part:
        module, _, name = path.partition(":")
        part: Part = getattr(import_module(f"{__package__}.{module}"), name)(self.context)
        self.context.parts[f"{section}:{name}" if section in self.context.parts else section] = part
        return part

    def takes(self, path: str) -> bool:
        """Is a path, decoded, the sidecar's?"""
        if self._alone:
            return path not in self._own
        if _first(path) in self._first:
            return True
        asked = {"type": "http", "path": path, "method": "GET"}
        return any(route.matches(asked)[0] is not Match.NONE for route in self.routes)

    def room(self, kind: bytes) -> tuple[float, float]:
        """For a body, by its content type: bytes, and seconds until it is there."""
        if kind.lower().startswith(NDJSON):
            return math.inf, math.inf  # for as long as it lasts; its reader minds both
        if self.context.section.guarded:
            return math.inf, body.SLOWEST  # whether it is too large is said to who is known only
        return self._most, body.SLOWEST

    def refusal(self, error: RequestError) -> tuple[str, bytes]:
        """What the server itself refuses, in the sidecar's words, and Confluent's: content type and
        body."""
        body = told(*status_of(Refusal(error.status, str(error))))
        return "application/json", orjson.dumps({**body, "error_code": error.status})

    def free(self, path: str) -> bool:
        """Pages and health are not limited."""
        return path in PUBLIC or path.startswith(UNLIMITED)

    async def run(self) -> None:
        """Beside the application until it is cancelled. The cluster runs by now."""
        producer = self.context.section.producer
        compression = "none" if producer is None else producer.compression
        self.context.draining = asyncio.Event()
        self.context.producer = Producer(self.context.cluster, compression=compression)
        try:
            async with asyncio.TaskGroup() as group:
                for part in self.parts:
                    group.create_task(kept(part.run, type(part).__name__))
                group.create_task(asyncio.Event().wait())
        finally:
            await self.context.producer.close()
            await self.context.codecs.close()

    def read(self, figures: Figures) -> None:
        """Adds what a scrape wants to know, of requests and of the parts that count anything."""
        self._requests.read(figures)
        missing = self.context.cluster.coordinators.tallies.missing
        figures.count(catalog.CONSUMER_MISSING, missing)
        for part in self.parts:
            count = getattr(part, "read", None)
            if count is not None:
                count(figures)

    def drain(self) -> None:
        """The server is about to end: long requests end theirs."""
        self.context.draining.set()


class Programs:
    """Middleware that refuses pages; see the module."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        section = settings.sidecar
        # Unguarded and for this machine only: a name that a stranger made lead here is refused.
        self._local = section is not None and not section.guarded
        self._local = self._local and is_loopback(settings.listen.host)

    async def __call__(self, scope: Asked, receive: Receive, send: Send) -> None:
        refused = None if scope["type"] != "http" else self._refusal(scope)
        if refused is None:
            await self._app(scope, receive, send)
        else:
            await response(refused)(scope, receive, send)

    def _refusal(self, scope: Asked) -> Refusal | None:
        if scope["path"] in PUBLIC:
            return None
        headers = Headers(scope=scope)
        if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
            return Refusal(403, "a page of a browser may ask for nothing here; use a program")
        host = headers.get("host", "localhost")
        if self._local and not _is_here(host):
            what = f"{host[:80]} is no name of this machine"
            return Refusal(403, f"{what}; ask localhost, or add sidecar.guarded")
        return None


class Authenticated:
    """Middleware that asks who a client is before anything else is looked at: what there is, and
    what is wrong with a request, is nothing to tell a stranger.

    scope: asked for no scope in particular; what may be done is asked where it is done.
    free:  whether a path is for anybody.
    """

    def __init__(self, app: ASGIApp, scope: Scope, free: Callable[[str], bool]) -> None:
        self._app = app
        self._scope = scope
        self._free = free

    async def __call__(self, scope: Asked, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            if not self._free(scope["path"]):
                await self._scope(request, KNOWN)
            refused_ids(scope)
        except GatewayError as exc:
            of_v2 = media.speaks(request.headers)
            refused = CONFLUENT.refusal(request, exc) if of_v2 else response(exc)
            await refused(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_here(host: str) -> bool:
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.strip("[]").rstrip(".").lower()
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def _first(path: str) -> str:
    """The first segment of a path; empty for a parameter, and for `/`."""
    segment = path[1:].partition("/")[0]
    return "" if segment.startswith("{") else segment


def catalog_of(settings: Settings) -> Any:
    """Where the sidecar's schemas are; None where no catalog is."""
    wanted = settings.sidecar.catalog if settings.sidecar is not None else None
    if wanted is not None:
        return settings.catalogs[wanted]
    return next(iter(settings.catalogs.values())) if len(settings.catalogs) == 1 else None
