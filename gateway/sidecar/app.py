"""Serve all components of the sidecar as one application, beside the streams or alone.

A sidecar serves the programs of its pod. Requests of pages in a browser, which `Origin` and
`Sec-Fetch-Site` show, are refused, because a page could come from anywhere.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.background_tasks import run_supervised
from gateway.client_memory import ClientMemory
from gateway.config import Settings
from gateway.config.types.address import is_loopback
from gateway.errors import GatewayError, RequestError
from gateway.formats.codec import Codecs
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.produce.producer import Producer
from gateway.sidecar.consumer.dialect import CONFLUENT, CONTRACT, is_confluent_request
from gateway.sidecar.http.middleware import (
    AUTHENTICATED,
    Authorizer,
    DrainMiddleware,
    EncodedSlashMiddleware,
    EndpointCounts,
    NameConvertor,
    RequestCountMiddleware,
    allow_anyone,
)
from gateway.sidecar.http.requests import (
    BODY_TIMEOUT_S,
    ParsedBodyMiddleware,
    RequestIdMiddleware,
    check_ids,
)
from gateway.sidecar.http.spec import SPEC_DIRECTORY, UNLIMITED_PREFIX, Spec
from gateway.sidecar.http.status import (
    EXCEPTION_HANDLERS,
    StatusError,
    build_error_response,
    build_status,
    describe_error,
)
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples
from gateway.wire.host import parse_host

from .context import Component, Context, DocumentLocks
from .http import docs
from .turns import current_client

log = logging.getLogger(__name__)

NDJSON = b"application/x-ndjson"
MIN_MAX_BODY_BYTES = 4 << 20  # the largest limit of an endpoint that is no option

# The components of each section as `module:class`, imported only if the section is configured. The
# operations of a module are in `http/spec/MODULE.yaml`.
COMPONENTS: Mapping[str, Sequence[str]] = {
    "audit": ["audit:AuditComponent"],
    "producer": ["producer:ProducerComponent", "producer.confluent:Writing"],
    "consumer": [
        "consumer.consumers:ConsumerComponent",
        "consumer.topics:Stateless",
        "consumer.topics:Topics",
    ],
    "reactive": ["reactive:ReactiveComponent"],
    "ksqldb": ["ksqldb:KsqldbComponent"],
    "dead_letter": ["dead_letter_retry:DeadLetterComponent"],
    "replay": ["replay:ReplayComponent"],
    "admin": ["admin:AdminComponent"],
    "health": ["health:HealthComponent"],
}
# The gateway's own, which it serves also when the sidecar has the port for itself.
GATEWAY_HEALTH_PATHS = frozenset({"/health/live", "/health/ready"})
PUBLIC_PATHS = frozenset({"/docs", "/docs.css", "/openapi.json"})  # for browsers, too


class SidecarApplication:
    """Run the components of the configured sections, and serve their routes as `app`.

    `gateway.cli` creates it. `gateway.web` calls `owns_path`, serves `app` and runs `run` beside
    it. The caller runs the cluster.

    Args:
        standalone: Whether only the gateway's health and metrics are also served on its port.
    """

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        *,
        authorize: Authorizer = allow_anyone,
        standalone: bool = False,
        documents: Callable[[], DocumentLocks] | None = None,
        client_memory: ClientMemory | None = None,
    ) -> None:
        assert settings.sidecar is not None, "there is no section sidecar"
        section = settings.sidecar
        served = [name for name in COMPONENTS if getattr(section, name) is not None]
        modules = {path.partition(":")[0]: None for name in served for path in COMPONENTS[name]}
        spec = Spec(name for name in modules if (SPEC_DIRECTORY / f"{name}.yaml").is_file())
        self.settings = settings
        codecs = Codecs(get_catalog(settings))
        self.context = Context(
            settings, cluster, codecs, authorize, spec,
            documents=documents, client_memory=client_memory or ClientMemory(),
        )  # fmt: skip
        producer = settings.sidecar.producer
        self._max_body_bytes = (
            MIN_MAX_BODY_BYTES if producer is None else max(MIN_MAX_BODY_BYTES, producer.max_bytes)
        )
        self._is_standalone = standalone
        self._gateway_paths = {settings.telemetry.metrics.prometheus or "", *GATEWAY_HEALTH_PATHS}
        self._component_paths = [(name, path) for name in served for path in COMPONENTS[name]]
        self.components: list[Component] = [
            self._create_component(name, path) for name, path in self._component_paths
        ]
        self.routes: list[BaseRoute] = [
            route for component in self.components for route in component.routes
        ]
        self.routes += docs.build_routes(spec, settings.name)
        for route in self.routes:
            if isinstance(route, Route):
                route.param_convertors = dict.fromkeys(route.param_convertors, NameConvertor())
        self._request_counts = EndpointCounts(self.routes)
        self._first_segments = {
            _get_first_segment(route.path) for route in self.routes if isinstance(route, Route)
        }
        # The gateway has paths below /health, too, so those are compared one by one.
        self._first_segments -= {"health"}
        self.app = self._create_app(authorize)

    def _create_app(self, authorize: Authorizer) -> ASGIApp:
        app = Starlette(
            routes=self.routes,
            # The first is the outermost: refused requests are counted and have ids, too.
            middleware=[
                Middleware(RequestCountMiddleware, requests=self._request_counts),
                Middleware(RequestIdMiddleware),
                Middleware(DrainMiddleware, is_draining=lambda: self.context.draining.is_set()),
                Middleware(EncodedSlashMiddleware),
                Middleware(OriginCheckMiddleware, settings=self.settings),
                Middleware(
                    AuthenticationMiddleware, authorize=authorize, is_unlimited=self.is_unlimited
                ),
                Middleware(ParsedBodyMiddleware, client_memory=self.context.client_memory),
                *(
                    middleware
                    for component in self.components
                    for middleware in component.middleware
                ),
            ],
            exception_handlers=EXCEPTION_HANDLERS,
        )
        app.router.redirect_slashes = False  # the paths that may end in a slash say so
        return app

    def _create_component(self, section: str, path: str) -> Component:
        module, _, name = path.partition(":")
        component: Component = getattr(import_module(f"{__package__}.{module}"), name)(self.context)
        # The first component of a section is known by the section's name, others by theirs, too.
        key = f"{section}:{name}" if section in self.context.components else section
        self.context.components[key] = component
        return component

    def owns_path(self, path: str) -> bool:
        """Return whether a path, already percent-decoded, is the sidecar's."""
        if self._is_standalone:
            return path not in self._gateway_paths
        if _get_first_segment(path) in self._first_segments:
            return True
        scope = {"type": "http", "path": path, "method": "GET"}
        return any(route.matches(scope)[0] is not Match.NONE for route in self.routes)

    def get_body_limits(self, path: str, content_type: bytes) -> tuple[float, float]:
        """Return the limits of a request body: bytes, and seconds to arrive."""
        if path.startswith("/producers/") and content_type.lower().startswith(NDJSON):
            return math.inf, math.inf  # a stream of lines; its reader limits both
        if self.context.section.guarded:
            # Only an authenticated client learns that a body is too large: the endpoint's own
            # `read_body` says so, after the guards.
            return math.inf, BODY_TIMEOUT_S
        return self._max_body_bytes, BODY_TIMEOUT_S

    def format_error(self, error: RequestError) -> tuple[str, bytes]:
        """Return content type and body of a server error, for both the contract and v2."""
        body = build_status(*describe_error(StatusError(error.status, str(error))))
        return "application/json", orjson.dumps({**body, "error_code": error.status})

    def is_unlimited(self, path: str) -> bool:
        return path in PUBLIC_PATHS or path.startswith(UNLIMITED_PREFIX)

    async def run(self) -> None:
        """Run the components until cancelled. The cluster must be running."""
        producer = self.context.section.producer
        compression = "none" if producer is None else producer.compression
        self.context.draining = asyncio.Event()  # the last run may have set it
        self.context.producer = Producer(self.context.cluster, compression=compression)
        self.context.gzip_producer = Producer(self.context.cluster, compression="gzip")
        try:
            async with asyncio.TaskGroup() as group:
                for component in self.components:
                    group.create_task(run_supervised(component.run, type(component).__name__))
                group.create_task(asyncio.Event().wait())  # components may return; this never does
        finally:
            await self.context.producer.close()
            await self.context.gzip_producer.close()
            await self.context.codecs.close()

    def collect_metrics(self, samples: MetricSamples) -> None:
        self._request_counts.collect_metrics(samples)
        missing = self.context.cluster.coordinators.stats.missing_records
        samples.add_counts(catalog.CONSUMER_MISSING_RECORDS, missing)
        reactive = self.settings.sidecar.reactive if self.settings.sidecar is not None else None
        groups = [group.group for group in reactive.groups] if reactive is not None else []
        samples.add_zeros(catalog.CONSUMER_MISSING_RECORDS, groups)
        for component in self.components:
            component.collect_metrics(samples)

    def drain(self) -> None:
        """Let long requests end: the server is about to stop."""
        self.context.draining.set()


class OriginCheckMiddleware:
    """Refuse requests that a browser sends for a page.

    An unguarded sidecar on a loopback address also refuses a `Host` that is not this machine's.
    That stops DNS rebinding, where a page's own host name resolves to 127.0.0.1.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        section = settings.sidecar
        is_guarded = section is None or section.guarded
        self._is_local_only = not is_guarded and is_loopback(settings.listen.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None if scope["type"] != "http" else self._check_request(scope)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await build_error_response(refusal)(scope, receive, send)

    def _check_request(self, scope: Scope) -> StatusError | None:
        if scope["path"] in PUBLIC_PATHS:
            return None
        headers = Headers(scope=scope)
        if "origin" in headers or set(headers.getlist("sec-fetch-site")) - {"none"}:
            return StatusError(403, "requests from pages in a browser are refused; use a program")
        host = headers.get("host", "localhost")
        name = parse_host(host)
        is_local = is_loopback(name) or name.endswith(".localhost")
        if self._is_local_only and not is_local:
            problem = f"{host[:80]} is no name of this machine"
            return StatusError(403, f"{problem}; ask localhost, or add sidecar.guarded")
        return None


class AuthenticationMiddleware:
    """Authenticate a client before anything else of its request is looked at.

    A stranger must not learn which paths exist, nor why a request is invalid. No particular scope
    is required here: the endpoints check what a client may do.
    """

    def __init__(
        self, app: ASGIApp, authorize: Authorizer, is_unlimited: Callable[[str], bool]
    ) -> None:
        self._app = app
        self._authorize = authorize
        self._is_unlimited = is_unlimited

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            if not self._is_unlimited(scope["path"]):
                identity = await self._authorize(request, AUTHENTICATED)
                current_client.set(identity or (request.client.host if request.client else ""))
            check_ids(scope)
        except GatewayError as exc:
            dialect = CONFLUENT if is_confluent_request(request.headers) else CONTRACT
            await dialect.build_error_response(request, exc)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _get_first_segment(path: str) -> str:
    segment = path[1:].partition("/")[0]
    return "" if segment.startswith("{") else segment


def get_catalog(settings: Settings) -> Any:
    """Return the catalog of the sidecar's schemas: the named one, or the only one."""
    name = settings.sidecar.catalog if settings.sidecar is not None else None
    if name is not None:
        return settings.catalogs[name]
    return next(iter(settings.catalogs.values())) if len(settings.catalogs) == 1 else None
