"""Serve `/adm` for the control plane and for operators.

Only clients with the scope `admin` may use it. Where no guard is configured, only programs of this
machine may, by the rules of the gateway's own admin port: no other machine, no host name that
resolves to here, no page of a browser. Changes concern this process only, until it ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ruamel.yaml import YAML
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.config.source.substitution import suggest
from gateway.config.source.yaml_document import dumps
from gateway.config.types.address import is_loopback
from gateway.sidecar.http.middleware import ADMIN_SCOPE
from gateway.sidecar.http.status import StatusError, build_json_response
from gateway.telemetry import catalog, logs
from gateway.telemetry.samples import MetricSamples
from gateway.version import __version__
from gateway.wire.host import get_requested_host

from .chaos import ASSAULT_NAMES, ChaosMiddleware, ChaosMonkey
from .component import Component
from .context import Context
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
        configuration = await asyncio.to_thread(_parse_configuration, dumps(settings))
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


def _parse_configuration(text: str) -> Any:
    """Parse the effective configuration, in which secrets are still written as references."""
    return YAML(typ="safe", pure=True).load(text)


def _format_levels() -> Sequence[Mapping[str, str]]:
    levels = logs.get_levels()
    return [{"name": name or ROOT_LOGGER, "level": level.upper()} for name, level in levels.items()]


def _parse_level(name: str, level: str) -> tuple[str, str]:
    module = "" if name == ROOT_LOGGER else name.removeprefix("gateway.")
    known_modules = [
        *logs.LIBRARIES,
        *(logger.removeprefix("gateway.") for logger in _list_loggers()),
    ]
    if module and module not in known_modules:
        suggestion = suggest(name, [ROOT_LOGGER, *known_modules], "use ROOT for all")
        raise StatusError(400, f"no module logs as '{name}'; {suggestion}", code="INVALID_REQUEST")
    # WARN and TRACE are light-4j's words.
    normalized = {"WARN": "warning", "TRACE": "debug"}.get(level.upper(), level.lower())
    if normalized not in logs.LEVELS:
        suggestion = suggest(normalized, logs.LEVELS, f"use one of {', '.join(logs.LEVELS)}")
        raise StatusError(400, f"'{level}' is no level; {suggestion}", code="INVALID_REQUEST")
    return module, normalized


def _list_loggers() -> Sequence[str]:
    return [name for name in logging.Logger.manager.loggerDict if name.startswith("gateway.")]


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
