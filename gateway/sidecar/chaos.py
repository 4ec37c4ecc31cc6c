"""The chaos monkey: some requests are late, fail, or lose their connection, for tests of teams.

Off, and refused unless `admin.chaos` is true. Never on /health and /adm: who let it loose must be
able to stop it, also for requests that wait already. As light-4j has it: an assault that is
`enabled` and not in `bypass` meets one of `level` requests, by chance.
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
ASSAULT_NAMES: Mapping[str, str] = {
    **{name: name for name in (LATENCY, EXCEPTION, KILL)},
    "com.networknt.chaos.LatencyAssaultHandler": LATENCY,
    "com.networknt.chaos.ExceptionAssaultHandler": EXCEPTION,
}
"""What an assault is called, by us and by clients of light-4j."""

_DISABLED: Mapping[str, Any] = {"enabled": False, "bypass": True}
_DEFAULT_ASSAULTS: Mapping[str, Mapping[str, Any]] = {
    LATENCY: {**_DISABLED, "level": 10, "latencyRangeStart": 1000, "latencyRangeEnd": 3000},
    EXCEPTION: {**_DISABLED, "level": 5},
    KILL: {**_DISABLED, "level": 10},
}


class ChaosMonkey:
    """The assaults as they are set, and what they did.

    met: requests, by assault. chance: draws from [0, 1).
    """

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self.assault_counts: Counter[str] = Counter()
        self._assaults = {name: dict(at_first) for name, at_first in _DEFAULT_ASSAULTS.items()}
        self._draw = draw
        self._latency_changed = asyncio.Event()  # set, and replaced, when latency is set

    @property
    def assaults(self) -> Mapping[str, Mapping[str, Any]]:
        return self._assaults

    def set_assault(self, name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Those that are named, from now on. Raises Refusal 400."""
        wanted = {**self._assaults[name], **values}
        for key in values.keys() - _DEFAULT_ASSAULTS[name].keys():
            raise StatusError(
                400, f"{key}: is nothing of {name}; use {', '.join(_DEFAULT_ASSAULTS[name])}"
            )
        if wanted.get("latencyRangeStart", 0) > wanted.get("latencyRangeEnd", 0):
            what = "latencyRangeEnd: is less than latencyRangeStart; exchange them"
            raise StatusError(400, what)
        self._assaults[name] = wanted
        if name == LATENCY:
            self._latency_changed.set()
            self._latency_changed = asyncio.Event()
        log.warning("chaos monkey: %s is %s", name, wanted)
        return wanted

    def draw_assault(self, name: str) -> Mapping[str, Any] | None:
        """The assault, if it is this request's turn."""
        found = self._assaults[name]
        if not found["enabled"] or found["bypass"] or self._draw() * found["level"] >= 1.0:
            return None
        self.assault_counts[name] += 1
        return found

    async def delay(self) -> None:
        """Wait if it is this request's turn, at most until latency is set to something else."""
        late = self.draw_assault(LATENCY)
        if late is None:
            return
        low, high = late["latencyRangeStart"], late["latencyRangeEnd"]
        with suppress(TimeoutError):
            async with asyncio.timeout(random.uniform(low, high) / 1000):
                await self._latency_changed.wait()


class ChaosMiddleware:
    """Middleware: see the module."""

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
            what = "the chaos monkey met this request; switch it off by /adm/chaosmonkey"
            await build_error_response(StatusError(500, what, code="ASSAULT"))(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_exempt(path: str) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in EXEMPT_PATHS)


async def _kill_connection(scope: Scope, send: Send) -> None:
    """At once under our own server; under another the answer is cut behind its head."""
    offer = (scope.get("extensions") or {}).get("gateway.takeover")
    transport = getattr(getattr(offer, "cycle", None), "transport", None)
    if isinstance(transport, asyncio.Transport):
        transport.abort()
        return
    length = [(b"content-length", b"1")]
    await send({"type": "http.response.start", "status": 500, "headers": length})
    raise ConnectionAbortedError("the chaos monkey met this request")
