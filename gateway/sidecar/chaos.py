"""Delay, fail or cut some requests on purpose, for tests of teams (the chaos monkey).

It is off, and cannot be enabled unless `admin.chaos` is true. It never touches /health and /adm, so
that an operator can always disable it again, also for requests that it delays already. By
light-4j's rules, an assault that is `enabled` and not in `bypass` hits one of `level` requests at
random.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.sidecar.http.status import StatusError, build_error_response

log = logging.getLogger(__name__)

EXEMPT_PATHS = ("/health", "/adm")

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
        if scope["type"] != "http" or _is_exempt(scope["path"]):
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


def _is_exempt(path: str) -> bool:
    return any(path == exempt or path.startswith(f"{exempt}/") for exempt in EXEMPT_PATHS)


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
