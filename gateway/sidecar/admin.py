"""The part `admin`: /adm, for the control plane and for operators.

Only for who has the scope `admin`; where no guard is configured, for programs of this machine, as
the gateway's own admin port decides it: neither another machine, nor by a name that leads here, nor
a page of a browser. What it changes is this process only, and lasts until it ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from ruamel.yaml import YAML
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.config.checks.guards import is_loopback
from gateway.config.source.dump import dump
from gateway.config.source.expression import nearest
from gateway.sidecar.http.body import read
from gateway.sidecar.http.status import Refusal, answer
from gateway.telemetry import catalog, logs
from gateway.telemetry.figures import Figures

from .chaos import NAMES, Assaulted, ChaosMonkey
from .context import Context
from .groups import Groups

log = logging.getLogger(__name__)

SCOPE = "admin"
LARGEST = 64 << 10  # bytes of a request
SOON = 0.2  # seconds before the end, in which the answer leaves
ROOT = "ROOT"  # light-4j's name of the logger of all
FOREIGN = ("origin", "forwarded", "via", "x-forwarded-for", "x-real-ip")
LOCAL = "/adm is for programs of this machine; ask 127.0.0.1, or add sidecar.guarded"
NO_CHAOS = "the chaos monkey is locked up; set sidecar.admin.chaos to true"

Handler = Callable[[Request], Awaitable[Response]]


class Admin:
    """See the module, and `part.Part`.

    middleware: for the application, where the chaos monkey may be let loose.
    """

    def __init__(self, context: Context) -> None:
        settings = context.section.admin
        assert settings is not None
        self._context = context
        self._spec = context.spec
        self._started = time.time()
        self.monkey = ChaosMonkey() if settings.chaos else None
        monkey = [] if self.monkey is None else [Middleware(Assaulted, monkey=self.monkey)]
        self.middleware: Sequence[Middleware] = monkey
        groups = Groups(context)
        self.routes: Sequence[BaseRoute] = [
            self._route("GET", "/adm/server/info", self._info),
            self._route("GET", "/adm/logger", self._levels),
            self._route("POST", "/adm/logger", self._set_levels),
            self._route("GET", "/adm/chaosmonkey", self._chaos),
            self._route("GET", "/adm/chaosmonkey/{assault}", self._assault),
            self._route("POST", "/adm/chaosmonkey/{assault}", self._set_assault),
            self._route("GET", "/adm/groups", groups.listed),
            self._route("GET", "/adm/groups/{group}/lag", groups.lag),
            self._route("POST", "/adm/groups/{group}/offsets", groups.seek),
            self._route("DELETE", "/adm/shutdown", self._shutdown),
        ]

    async def run(self) -> None:
        return None

    async def check(self) -> None:
        """Always ready."""

    def read(self, figures: Figures) -> None:
        """Adds what a scrape wants to know."""
        if self.monkey is not None:
            figures.count(catalog.ASSAULTS, self.monkey.met)

    def _route(self, method: str, path: str, handler: Handler) -> Route:
        async def admitted(request: Request) -> Response:
            await self._admit(request)
            return await handler(request)

        return Route(path, admitted, methods=[method])

    async def _admit(self, request: Request) -> None:
        """Raises NotGranted 401 and 403, Refusal 403."""
        if self._context.section.guarded:
            who = await self._context.scope(request, SCOPE)
        else:
            who = "anyone"
            if not _is_local(request):
                raise Refusal(403, LOCAL)
        if request.method != "GET":
            log.info("admin: %s %s by=%s", request.method, request.url.path, who)

    async def _info(self, request: Request) -> Response:
        cluster, settings = self._context.cluster, self._context.settings
        configuration = await asyncio.to_thread(_configuration, dump(settings))
        told = {
            "name": settings.name,
            "version": version("gateway"),
            "python": sys.version.split()[0],
            "pid": os.getpid(),
            "uptimeSeconds": round(time.time() - self._started, 3),
            "sections": sorted(self._context.parts),
            "kafka": {
                "clusterId": cluster.id,
                "reachable": cluster.reachable,
                "error": None if cluster.error is None else str(cluster.error),
            },
            "configuration": configuration,
        }
        return answer(told)

    async def _levels(self, request: Request) -> Response:
        return answer(_levels())

    async def _set_levels(self, request: Request) -> Response:
        wanted = await self._body(request, "setLevels")
        named = dict(_level(each["name"], each["level"]) for each in wanted)
        levels = {**logs.current_levels(), **named}
        at_all = levels.pop("")
        logs.set_levels(at_all, levels)
        log.info("admin: levels are %s", ", ".join(f"{k or ROOT}={v}" for k, v in named.items()))
        return answer(_levels())

    async def _chaos(self, request: Request) -> Response:
        return answer(self._let_loose().assaults)

    async def _assault(self, request: Request) -> Response:
        return answer(self._let_loose().assaults[_name(request)])

    async def _set_assault(self, request: Request) -> Response:
        monkey, name = self._let_loose(), _name(request)
        return answer(monkey.set(name, await self._body(request, "setAssault")))

    def _let_loose(self) -> ChaosMonkey:
        if self.monkey is None:
            raise Refusal(403, NO_CHAOS, code="CHAOS_OFF")
        return self.monkey

    async def _shutdown(self, request: Request) -> Response:
        response = answer({"status": "ending"}, 202)
        response.background = BackgroundTask(_end, self._context.settings.listen.workers)
        return response

    async def _body(self, request: Request, operation: str) -> Any:
        data = await read(request, LARGEST)
        return self._spec[operation].body(data, request.headers.get("content-type"))


def _is_local(request: Request) -> bool:
    """A program of this machine, as far as can be seen; what a proxy passes on is from anywhere."""
    address = request.client.host if request.client else None
    if any(name in request.headers for name in FOREIGN):
        return False
    return is_loopback(_named(request)) and (address is None or is_loopback(address))


def _named(request: Request) -> str | None:
    """By what host it was asked; None where that is not to be read."""
    try:
        return request.url.hostname
    except ValueError:
        return None


def _configuration(text: str) -> Any:
    """As effective, its secrets as the references that they were written as."""
    return YAML(typ="safe", pure=True).load(text)


def _levels() -> Sequence[Mapping[str, str]]:
    named = logs.current_levels()
    return [{"name": name or ROOT, "level": level.upper()} for name, level in named.items()]


def _level(name: str, level: str) -> tuple[str, str]:
    """As `telemetry.logs` has them. Raises Refusal 400."""
    room = "" if name == ROOT else name.removeprefix("gateway.")
    known = [*logs.LIBRARIES, *(each.removeprefix("gateway.") for each in _loggers())]
    if room and room not in known:
        near = nearest(name, [ROOT, *known], "use ROOT for all")
        raise Refusal(400, f"no module logs as '{name}'; {near}", code="INVALID_REQUEST")
    wanted = {"WARN": "warning", "TRACE": "debug"}.get(level.upper(), level.lower())
    if wanted not in logs.LEVELS:
        near = nearest(wanted, logs.LEVELS, f"use one of {', '.join(logs.LEVELS)}")
        raise Refusal(400, f"'{level}' is no level; {near}", code="INVALID_REQUEST")
    return room, wanted


def _loggers() -> Sequence[str]:
    return [name for name in logging.Logger.manager.loggerDict if name.startswith("gateway.")]


def _name(request: Request) -> str:
    given = request.path_params["assault"]
    if given not in NAMES:
        near = nearest(given, NAMES, f"use one of {', '.join(NAMES)}")
        raise Refusal(404, f"there is no assault '{given}'; {near}", code="UNKNOWN_ASSAULT")
    return NAMES[given]


async def _end(workers: int) -> None:
    """As SIGTERM does it: no connection is taken, what is under way ends, then the process."""
    await asyncio.sleep(SOON)
    os.kill(os.getppid() if workers > 1 else os.getpid(), signal.SIGTERM)
