"""The part `health`: is the sidecar alive, and can it serve, with its parts and its back end.

All checks are made at once, and answered within one timeout: whoever asks is a probe, which counts
one that is late as failed and learns nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Mapping, Sequence

import httpx
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from gateway.config.types.units import format_duration
from gateway.sidecar.http.status import NO_STORE_HEADERS, build_json_response, build_status

from .component import NotReady
from .context import Context

OK = "OK"


class HealthComponent:
    """See the module, and `part.Part`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.section.health
        self._tls = ssl.create_default_context()  # 25 ms, so not for each probe
        routes = [
            Route("/health/liveness", self._liveness, name="liveness"),
            Route("/health/readiness", self._readiness, name="readiness"),
        ]
        self.routes: Sequence[BaseRoute] = routes if self._settings.enabled else []

    async def run(self) -> None:
        return None

    async def check_ready(self) -> None:
        """Nothing of its own."""

    async def _liveness(self, request: Request) -> Response:
        return self._build_response({})

    async def _readiness(self, request: Request) -> Response:
        checks: dict[str, Awaitable[None]] = {"kafka": self._context.check_ready()}
        for name, part in self._context.components.items():
            if part is not self:
                checks[name] = part.check()
        if self._settings.downstream_enabled:
            checks["downstream"] = self._check_downstream()
        found = await asyncio.gather(*(self._run_check(each) for each in checks.values()))
        wrong = {name: why for name, why in zip(checks, found, strict=True) if why is not None}
        return self._build_response(dict.fromkeys(checks, OK) | wrong)

    async def _run_check(self, check: Awaitable[None]) -> str | None:
        """Why not; None if all is well."""
        try:
            async with asyncio.timeout(self._settings.timeout):
                await check
        except TimeoutError:
            return f"no answer within {format_duration(self._settings.timeout)}"
        except NotReady as unready:
            return unready.reason
        return None

    async def _check_downstream(self) -> None:
        url = self._settings.downstream_host.rstrip("/") + self._settings.downstream_path
        try:
            async with httpx.AsyncClient(timeout=None, trust_env=False, verify=self._tls) as client:
                status = (await client.get(url)).status_code
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NotReady("downstream", f"{url}: {error or type(error).__name__}") from None
        if not 200 <= status < 300:
            raise NotReady("downstream", f"{url} answers {status}")

    def _build_response(self, checks: Mapping[str, str]) -> Response:
        wrong = [f"{name}: {why}" for name, why in checks.items() if why != OK]
        status = 503 if wrong else 200
        if not self._settings.use_json:
            return PlainTextResponse("\n".join(wrong) or OK, status, dict(NO_STORE_HEADERS))
        if not wrong:
            return build_json_response({"result": OK, "checks": checks})
        body = build_status(503, "NOT_READY", "; ".join(wrong))
        return build_json_response({**body, "result": "ERROR", "checks": checks}, status)
