"""Serve `/adm` for the control plane and for operators, and the chaos monkey for tests of teams.

Only clients with the scope `admin` may use it. Where no guard is configured, only programs of this
machine may, by the rules of the gateway's own admin port: no other machine, no host name that
resolves to here, no page of a browser. Changes concern this process only, until it ends.

The chaos monkey delays, fails or cuts some requests on purpose. It is off, and cannot be enabled
unless `admin.chaos` is true. It never touches /health and /adm, so that an operator can always
disable it again, also for requests that it delays already. By light-4j's rules, an assault that is
`enabled` and not in `bypass` hits one of `level` requests at random.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ruamel.yaml import YAML
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.config.source.yaml_document import dumps
from gateway.config.types.address import is_loopback
from gateway.config.types.substitution import suggest
from gateway.sidecar.http.middleware import ADMIN_SCOPE
from gateway.sidecar.http.status import StatusError, build_error_response, build_json_response
from gateway.telemetry import catalog, logs
from gateway.telemetry.samples import MetricSamples
from gateway.version import __version__
from gateway.wire.host import get_requested_host

from .context import Component, Context
from .groups import GroupEndpoints

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 << 10
SHUTDOWN_DELAY_S = 0.2  # so that the answer is sent before the process ends
ROOT_LOGGER = "ROOT"  # light-4j's name of the root logger
# What the names of headers begin with that a proxy or a page of a browser has added. Programs of
# this machine send none.
PROXY_HEADERS = (
    "origin", "forwarded", "via", "x-forwarded", "x-real-ip", "x-original-", "x-envoy-",
    "x-client-ip", "x-cluster-client-ip", "true-client-ip", "fastly-client-ip", "cf-",
)  # fmt: skip
LOCAL_ONLY_MESSAGE = "/adm is for programs of this machine; ask 127.0.0.1, or add sidecar.guarded"
CHAOS_DISABLED_MESSAGE = "the chaos monkey is locked up; set sidecar.admin.chaos to true"

Handler = Callable[[Request], Awaitable[Response]]


class AdminComponent(Component):
    """Serve the operations of /adm. `monkey` is None unless `admin.chaos` is set."""

    def __init__(self, context: Context) -> None:
        settings = context.section.admin
        assert settings is not None
        self._context = context
        self._started = time.time()
        self.monkey = ChaosMonkey() if settings.chaos else None
        self.middleware = (
            [] if self.monkey is None else [Middleware(ChaosMiddleware, monkey=self.monkey)]
        )
        groups = GroupEndpoints(context)
        self.routes = [
            self._create_route("GET", "/adm/server/info", self._get_info),
            self._create_route("GET", "/adm/logger", self._get_levels),
            self._create_route("POST", "/adm/logger", self._set_levels),
            self._create_route("GET", "/adm/chaosmonkey", self._get_assaults),
            self._create_route("GET", "/adm/chaosmonkey/{assault}", self._get_assault),
            self._create_route("POST", "/adm/chaosmonkey/{assault}", self._set_assault),
            self._create_route("GET", "/adm/groups", groups.list_groups),
            self._create_route("GET", "/adm/groups/{group}/lag", groups.get_lag),
            self._create_route("POST", "/adm/groups/{group}/offsets", groups.seek),
            self._create_route("DELETE", "/adm/shutdown", self._shutdown),
        ]

    def collect_metrics(self, samples: MetricSamples) -> None:
        if self.monkey is not None:
            samples.add_counts(catalog.CHAOS_ASSAULTS, self.monkey.assault_counts)
            samples.add_zeros(catalog.CHAOS_ASSAULTS, self.monkey.assaults)

    def _create_route(self, method: str, path: str, handler: Handler) -> Route:
        async def endpoint(request: Request) -> Response:
            await self._authorize(request)
            return await handler(request)

        return Route(path, endpoint, methods=[method])

    async def _authorize(self, request: Request) -> None:
        """Check that a client may use /adm; raises NotGranted or StatusError 403."""
        if self._context.section.guarded:
            identity = await self._context.authorize(request, ADMIN_SCOPE)
        else:
            identity = "anyone"
            if not _is_local(request):
                raise StatusError(403, LOCAL_ONLY_MESSAGE)
        if request.method != "GET":
            log.info("admin: %s %s by=%s", request.method, request.url.path, identity)

    async def _get_info(self, request: Request) -> Response:
        cluster, settings = self._context.cluster, self._context.settings
        # The effective configuration, in which secrets are still written as references.
        parse = YAML(typ="safe", pure=True).load
        configuration = await asyncio.to_thread(parse, dumps(settings))
        info = {
            "name": settings.name,
            "version": __version__,
            "python": sys.version.split()[0],
            "pid": os.getpid(),
            "uptimeSeconds": round(time.time() - self._started, 3),
            "sections": sorted(self._context.components),
            "kafka": {
                "clusterId": cluster.cluster_id,
                "reachable": cluster.is_reachable,
                "error": None if cluster.error is None else str(cluster.error),
            },
            "configuration": configuration,
        }
        return build_json_response(info)

    async def _get_levels(self, request: Request) -> Response:
        return build_json_response(_format_levels())

    async def _set_levels(self, request: Request) -> Response:
        entries = await self._read_body(request, "setLevels")
        new_levels = dict(_parse_level(entry["name"], entry["level"]) for entry in entries)
        levels = {**logs.get_levels(), **new_levels}
        # The root logger is the entry with the empty name.
        root_level = levels.pop("")
        logs.set_levels(root_level, levels)
        log.info(
            "admin: levels are %s",
            ", ".join(f"{k or ROOT_LOGGER}={v}" for k, v in new_levels.items()),
        )
        return build_json_response(_format_levels())

    async def _get_assaults(self, request: Request) -> Response:
        return build_json_response(self._require_monkey().assaults)

    async def _get_assault(self, request: Request) -> Response:
        return build_json_response(self._require_monkey().assaults[_parse_assault(request)])

    async def _set_assault(self, request: Request) -> Response:
        monkey, name = self._require_monkey(), _parse_assault(request)
        return build_json_response(
            monkey.set_assault(name, await self._read_body(request, "setAssault"))
        )

    def _require_monkey(self) -> ChaosMonkey:
        if self.monkey is None:
            raise StatusError(403, CHAOS_DISABLED_MESSAGE, code="CHAOS_OFF")
        return self.monkey

    async def _shutdown(self, request: Request) -> Response:
        response = build_json_response({"status": "ending"}, 202)
        # After the response, so that the client gets it.
        response.background = BackgroundTask(_terminate, self._context.settings.listen.workers)
        return response

    async def _read_body(self, request: Request, operation: str) -> Any:
        return await self._context.spec[operation].read_body(request, MAX_BODY_BYTES)


def _is_local(request: Request) -> bool:
    """Return whether a program of this machine sent a request.

    A proxy may forward requests from anywhere, so its headers make a request a foreign one.
    """
    address = request.client.host if request.client else None
    if any(name.startswith(PROXY_HEADERS) for name in request.headers):
        return False
    host = get_requested_host(request.scope)
    return is_loopback(host) and (address is None or is_loopback(address))


def _format_levels() -> Sequence[Mapping[str, str]]:
    levels = logs.get_levels()
    return [{"name": name or ROOT_LOGGER, "level": level.upper()} for name, level in levels.items()]


def _parse_level(name: str, level: str) -> tuple[str, str]:
    module = "" if name == ROOT_LOGGER else name.removeprefix("gateway.")
    loggers = [each for each in logging.Logger.manager.loggerDict if each.startswith("gateway.")]
    known_modules = [*logs.LIBRARIES, *(each.removeprefix("gateway.") for each in loggers)]
    if module and module not in known_modules:
        suggestion = suggest(name, [ROOT_LOGGER, *known_modules], "use ROOT for all")
        raise StatusError(400, f"no module logs as '{name}'; {suggestion}", code="INVALID_REQUEST")
    # WARN and TRACE are light-4j's words.
    normalized = {"WARN": "warning", "TRACE": "debug"}.get(level.upper(), level.lower())
    if normalized not in logs.LEVELS:
        suggestion = suggest(normalized, logs.LEVELS, f"use one of {', '.join(logs.LEVELS)}")
        raise StatusError(400, f"'{level}' is no level; {suggestion}", code="INVALID_REQUEST")
    return module, normalized


def _parse_assault(request: Request) -> str:
    name = request.path_params["assault"]
    if name not in ASSAULT_NAMES:
        suggestion = suggest(name, ASSAULT_NAMES, f"use one of {', '.join(ASSAULT_NAMES)}")
        raise StatusError(
            404, f"there is no assault '{name}'; {suggestion}", code="UNKNOWN_ASSAULT"
        )
    return ASSAULT_NAMES[name]


async def _terminate(workers: int) -> None:
    """Send SIGTERM to the server, or to the supervisor of several workers, which ends them all."""
    await asyncio.sleep(SHUTDOWN_DELAY_S)
    os.kill(os.getppid() if workers > 1 else os.getpid(), signal.SIGTERM)


EXEMPT_PATHS = ("/health/", "/adm/")

LATENCY, EXCEPTION, KILL = "latency", "exception", "kill-connection"
# The canonical name of each assault, by that name and by the class name that light-4j has for it.
ASSAULT_NAMES: Mapping[str, str] = {
    **{name: name for name in (LATENCY, EXCEPTION, KILL)},
    "com.networknt.chaos.LatencyAssaultHandler": LATENCY,
    "com.networknt.chaos.ExceptionAssaultHandler": EXCEPTION,
}

_DISABLED: Mapping[str, Any] = {"enabled": False, "bypass": True}
_DEFAULT_ASSAULTS: Mapping[str, Mapping[str, Any]] = {
    LATENCY: {**_DISABLED, "level": 10, "latencyRangeStart": 1000, "latencyRangeEnd": 3000},
    EXCEPTION: {**_DISABLED, "level": 5},
    KILL: {**_DISABLED, "level": 10},
}


class ChaosMonkey:
    """Hold the settings of the assaults, and decide which requests they hit.

    The admin component creates and owns it; `ChaosMiddleware` carries out its decisions.
    """

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self.assault_counts: Counter[str] = Counter()
        self._assaults = {name: dict(defaults) for name, defaults in _DEFAULT_ASSAULTS.items()}
        self._draw = draw
        # Set and then replaced whenever the settings of latency change, which ends all delays.
        self._latency_changed = asyncio.Event()

    @property
    def assaults(self) -> Mapping[str, Mapping[str, Any]]:
        return self._assaults

    def set_assault(self, name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change some settings of an assault, and return all of them; raises StatusError 400."""
        settings = {**self._assaults[name], **values}
        for key in values.keys() - _DEFAULT_ASSAULTS[name].keys():
            raise StatusError(
                400, f"{key}: is no setting of {name}; use {', '.join(_DEFAULT_ASSAULTS[name])}"
            )
        if settings.get("latencyRangeStart", 0) > settings.get("latencyRangeEnd", 0):
            problem = "latencyRangeEnd: is less than latencyRangeStart; exchange them"
            raise StatusError(400, problem)
        self._assaults[name] = settings
        if name == LATENCY:
            self._latency_changed.set()
            self._latency_changed = asyncio.Event()
        log.warning("chaos monkey: %s is %s", name, settings)
        return settings

    def draw_assault(self, name: str) -> Mapping[str, Any] | None:
        settings = self._assaults[name]
        # A draw from [0, 1) times N is below 1 once in N draws.
        if not settings["enabled"] or settings["bypass"] or self._draw() * settings["level"] >= 1.0:
            return None
        self.assault_counts[name] += 1
        return settings

    async def delay(self) -> None:
        """Wait if latency hits this request, at most until the settings of latency change."""
        settings = self.draw_assault(LATENCY)
        if settings is None:
            return
        low, high = settings["latencyRangeStart"], settings["latencyRangeEnd"]
        with suppress(TimeoutError):
            async with asyncio.timeout(random.uniform(low, high) / 1000):  # milliseconds
                await self._latency_changed.wait()


class ChaosMiddleware:
    def __init__(self, app: ASGIApp, monkey: ChaosMonkey) -> None:
        self._app = app
        self._monkey = monkey

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or f"{scope['path']}/".startswith(EXEMPT_PATHS):
            await self._app(scope, receive, send)
            return
        await self._monkey.delay()
        if self._monkey.draw_assault(KILL) is not None:
            await _kill_connection(scope, send)
            return
        if self._monkey.draw_assault(EXCEPTION) is not None:
            detail = "the chaos monkey met this request; switch it off by /adm/chaosmonkey"
            error = StatusError(500, detail, code="ASSAULT")
            await build_error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


async def _kill_connection(scope: Scope, send: Send) -> None:
    """Abort the connection under our own server; under another, cut the answer after its head."""
    offer = (scope.get("extensions") or {}).get("gateway.takeover")
    transport = getattr(getattr(offer, "cycle", None), "transport", None)
    if isinstance(transport, asyncio.Transport):
        transport.abort()
        return
    # One byte is promised and never sent, so the client sees a broken answer.
    length = [(b"content-length", b"1")]
    await send({"type": "http.response.start", "status": 500, "headers": length})
    raise ConnectionAbortedError("the chaos monkey met this request")
