"""Serve liveness and readiness of the sidecar, its components and its back end.

All checks run at the same time, within one timeout: a probe counts a late answer as a failure and
learns nothing from it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Mapping

import httpx
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gateway.config.types.address import join_url
from gateway.config.types.units import format_duration
from gateway.sidecar.http.status import (
    NO_STORE_HEADERS,
    NotReady,
    build_json_response,
    build_status,
)

from .context import Component, Context

OK = "OK"


class HealthComponent(Component):
    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.section.health
        self._tls = ssl.create_default_context()  # takes 25 ms, so not for each probe
        routes = [
            Route("/health/liveness", self._liveness, name="liveness"),
            Route("/health/readiness", self._readiness, name="readiness"),
        ]
        self.routes = routes if self._settings.enabled else []

    async def _liveness(self, request: Request) -> Response:
        return self._build_response({})

    async def _readiness(self, request: Request) -> Response:
        checks: dict[str, Awaitable[None]] = {"kafka": self._context.check_ready()}
        for name, component in self._context.components.items():
            if component is not self:
                checks[name] = component.check_ready()
        if self._settings.downstream_enabled:
            checks["downstream"] = self._check_downstream()
        reasons = await asyncio.gather(*(self._run_check(check) for check in checks.values()))
        failed = {
            name: reason for name, reason in zip(checks, reasons, strict=True) if reason is not None
        }
        return self._build_response(dict.fromkeys(checks, OK) | failed)

    async def _run_check(self, check: Awaitable[None]) -> str | None:
        try:
            async with asyncio.timeout(self._settings.timeout):
                await check
        except TimeoutError:
            return f"no answer within {format_duration(self._settings.timeout)}"
        except NotReady as exc:
            return exc.reason
        return None

    async def _check_downstream(self) -> None:
        url = join_url(self._settings.downstream_host, self._settings.downstream_path)
        try:
            async with (
                httpx.AsyncClient(timeout=None, trust_env=False, verify=self._tls) as client,
                client.stream("GET", url) as response,  # its body may be of any size
            ):
                status = response.status_code
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NotReady("downstream", f"{url}: {error or type(error).__name__}") from None
        if not 200 <= status < 300:
            raise NotReady("downstream", f"{url} answers {status}")

    def _build_response(self, checks: Mapping[str, str]) -> Response:
        failed = [f"{name}: {reason}" for name, reason in checks.items() if reason != OK]
        status = 503 if failed else 200
        if not self._settings.use_json:
            return PlainTextResponse("\n".join(failed) or OK, status, dict(NO_STORE_HEADERS))
        if not failed:
            return build_json_response({"result": OK, "checks": checks})
        body = build_status(503, "NOT_READY", "; ".join(failed))
        return build_json_response({**body, "result": "ERROR", "checks": checks}, status)
