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
from gateway.sidecar.http.authorization import AUTHENTICATED, Authorizer, allow_anyone
from gateway.sidecar.http.ids import RequestIdMiddleware, check_ids
from gateway.sidecar.http.request_counts import EndpointCounts, RequestCountMiddleware
from gateway.sidecar.http.spec import SPEC_DIRECTORY, UNLIMITED_PREFIX, Spec
from gateway.sidecar.http.status import (
    EXCEPTION_HANDLERS,
    StatusError,
    build_error_response,
    build_status,
    describe_error,
)
from gateway.sidecar.v2 import media
from gateway.sidecar.v2.dialect import CONFLUENT
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

from .component import Component
from .context import Context, DocumentLocks
from .supervision import run_supervised

log = logging.getLogger(__name__)

NDJSON = b"application/x-ndjson"
DEFAULT_MAX_BODY_BYTES = 1_000_000  # bytes of a body, where no option says more

# Which parts a section brings: `module:class`, imported where it is there. A module's operations
# are in `http/spec/MODULE.yaml`.
COMPONENTS: Mapping[str, Sequence[str]] = {
    "audit": ["audit:AuditComponent"],
    "producer": ["producer:ProducerComponent", "v2.produce:Writing"],
    "consumer": [
        "consumer.consumers:ConsumerComponent",
        "consumer.stateless:Stateless",
        "v2.topics:Topics",
    ],
    "reactive": ["reactive:ReactiveComponent"],
    "ksqldb": ["ksqldb:KsqldbComponent"],
    "dead_letter": ["deadletter:DeadLetterComponent"],
    "replay": ["replay:ReplayComponent"],
    "admin": ["admin:AdminComponent"],
    "health": ["health:HealthComponent"],
}
DEFAULT_SECTIONS = frozenset({"health"})  # sections that need not be written
GATEWAY_HEALTH_PATHS = frozenset({"/health/live", "/health/ready"})  # the gateway's own, also alone
PUBLIC_PATHS = frozenset({"/docs", "/docs.css", "/openapi.json"})  # what pages are


class SidecarApplication:
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
        authorize: Authorizer = allow_anyone,
        standalone: bool = False,
        documents: Callable[[], DocumentLocks] | None = None,
    ) -> None:
        assert settings.sidecar is not None, "there is no section sidecar"
        sections = [name for name in COMPONENTS if getattr(settings.sidecar, name) is not None]
        missing = [
            name for name in sections if not COMPONENTS[name] and name not in DEFAULT_SECTIONS
        ]
        if missing:
            what = "is not served by this version; remove it"
            raise ConfigError([f"sidecar.{name}: {what}" for name in missing])
        served = [name for name in sections if COMPONENTS[name]]
        modules = [path.partition(":")[0] for name in served for path in COMPONENTS[name]]
        spec = Spec(name for name in modules if (SPEC_DIRECTORY / f"{name}.yaml").is_file())
        self.settings = settings
        codecs = Codecs(get_catalog(settings))
        self.context = Context(settings, cluster, codecs, authorize, spec, documents=documents)
        producer = settings.sidecar.producer
        self._max_body_bytes = (
            DEFAULT_MAX_BODY_BYTES
            if producer is None
            else max(DEFAULT_MAX_BODY_BYTES, producer.max_bytes)
        )
        self._is_standalone = standalone
        self._gateway_paths = {settings.telemetry.metrics.prometheus or "", *GATEWAY_HEALTH_PATHS}
        self._component_paths = [(name, path) for name in served for path in COMPONENTS[name]]
        self.components: list[Component] = [
            self._create_component(name, path) for name, path in self._component_paths
        ]
        self.routes: list[BaseRoute] = [route for part in self.components for route in part.routes]
        self.routes += docs.build_routes(spec, settings.name)
        self._request_counts = EndpointCounts(self.routes)
        self._first_segments = {
            _get_first_segment(route.path) for route in self.routes if isinstance(route, Route)
        }
        self._first_segments -= {"health"}  # shared with the gateway
        self.app: ASGIApp = Starlette(
            routes=self.routes,
            middleware=[
                Middleware(RequestCountMiddleware, requests=self._request_counts),
                Middleware(RequestIdMiddleware),
                Middleware(OriginCheckMiddleware, settings=settings),
                Middleware(
                    AuthenticationMiddleware, authorize=authorize, is_unlimited=self.is_unlimited
                ),
                *(each for part in self.components for each in getattr(part, "middleware", ())),
            ],
            exception_handlers=EXCEPTION_HANDLERS,
        )
        self.app.router.redirect_slashes = False

    def _create_component(self, section: str, path: str) -> Component:
        module, _, name = path.partition(":")
        part: Component = getattr(import_module(f"{__package__}.{module}"), name)(self.context)
        self.context.components[
            f"{section}:{name}" if section in self.context.components else section
        ] = part
        return part

    def owns_path(self, path: str) -> bool:
        """Is a path, decoded, the sidecar's?"""
        if self._is_standalone:
            return path not in self._gateway_paths
        if _get_first_segment(path) in self._first_segments:
            return True
        asked = {"type": "http", "path": path, "method": "GET"}
        return any(route.matches(asked)[0] is not Match.NONE for route in self.routes)

    def get_body_limits(self, content_type: bytes) -> tuple[float, float]:
        """For a body, by its content type: bytes, and seconds until it is there."""
        if content_type.lower().startswith(NDJSON):
            return math.inf, math.inf  # for as long as it lasts; its reader minds both
        if self.context.section.guarded:
            return (
                math.inf,
                body.BODY_TIMEOUT_S,
            )  # whether it is too large is said to who is known only
        return self._max_body_bytes, body.BODY_TIMEOUT_S

    def format_error(self, error: RequestError) -> tuple[str, bytes]:
        """What the server itself refuses, in the sidecar's words, and Confluent's: content type and
        body."""
        body = build_status(*describe_error(StatusError(error.status, str(error))))
        return "application/json", orjson.dumps({**body, "error_code": error.status})

    def is_unlimited(self, path: str) -> bool:
        """Pages and health are not limited."""
        return path in PUBLIC_PATHS or path.startswith(UNLIMITED_PREFIX)

    async def run(self) -> None:
        """Beside the application until it is cancelled. The cluster runs by now."""
        producer = self.context.section.producer
        compression = "none" if producer is None else producer.compression
        self.context.draining = asyncio.Event()
        self.context.producer = Producer(self.context.cluster, compression=compression)
        try:
            async with asyncio.TaskGroup() as group:
                for part in self.components:
                    group.create_task(run_supervised(part.run, type(part).__name__))
                group.create_task(asyncio.Event().wait())
        finally:
            await self.context.producer.close()
            await self.context.codecs.close()

    def collect_metrics(self, samples: MetricSamples) -> None:
        """Adds what a scrape wants to know, of requests and of the parts that count anything."""
        self._request_counts.collect_metrics(samples)
        missing = self.context.cluster.coordinators.stats.missing_records
        samples.add_counts(catalog.CONSUMER_MISSING_RECORDS, missing)
        for part in self.components:
            count = getattr(part, "collect_metrics", None)
            if count is not None:
                count(samples)

    def drain(self) -> None:
        """The server is about to end: long requests end theirs."""
        self.context.draining.set()


class OriginCheckMiddleware:
    """Middleware that refuses pages; see the module."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        section = settings.sidecar
        # Unguarded and for this machine only: a name that a stranger made lead here is refused.
        self._is_local_only = section is not None and not section.guarded
        self._is_local_only = self._is_local_only and is_loopback(settings.listen.host)

    async def __call__(self, scope: Asked, receive: Receive, send: Send) -> None:
        refused = None if scope["type"] != "http" else self._check_request(scope)
        if refused is None:
            await self._app(scope, receive, send)
        else:
            await build_error_response(refused)(scope, receive, send)

    def _check_request(self, scope: Asked) -> StatusError | None:
        if scope["path"] in PUBLIC_PATHS:
            return None
        headers = Headers(scope=scope)
        if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
            return StatusError(403, "a page of a browser may ask for nothing here; use a program")
        host = headers.get("host", "localhost")
        if self._is_local_only and not _is_local_host(host):
            what = f"{host[:80]} is no name of this machine"
            return StatusError(403, f"{what}; ask localhost, or add sidecar.guarded")
        return None


class AuthenticationMiddleware:
    """Middleware that asks who a client is before anything else is looked at: what there is, and
    what is wrong with a request, is nothing to tell a stranger.

    scope: asked for no scope in particular; what may be done is asked where it is done.
    free:  whether a path is for anybody.
    """

    def __init__(
        self, app: ASGIApp, authorize: Authorizer, is_unlimited: Callable[[str], bool]
    ) -> None:
        self._app = app
        self._authorize = authorize
        self._is_unlimited = is_unlimited

    async def __call__(self, scope: Asked, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            if not self._is_unlimited(scope["path"]):
                await self._authorize(request, AUTHENTICATED)
            check_ids(scope)
        except GatewayError as exc:
            of_v2 = media.is_confluent_request(request.headers)
            refused = (
                CONFLUENT.build_error_response(request, exc) if of_v2 else build_error_response(exc)
            )
            await refused(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_local_host(host: str) -> bool:
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.strip("[]").rstrip(".").lower()
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def _get_first_segment(path: str) -> str:
    """The first segment of a path; empty for a parameter, and for `/`."""
    segment = path[1:].partition("/")[0]
    return "" if segment.startswith("{") else segment


def get_catalog(settings: Settings) -> Any:
    """Where the sidecar's schemas are; None where no catalog is."""
    wanted = settings.sidecar.catalog if settings.sidecar is not None else None
    if wanted is not None:
        return settings.catalogs[wanted]
    return next(iter(settings.catalogs.values())) if len(settings.catalogs) == 1 else None
