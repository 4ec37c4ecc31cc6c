"""Ask a running gateway: two scrapes some seconds apart, then its admin API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import httpx

from gateway.cli.admin_address import AdminAddress
from gateway.errors import GatewayError
from gateway.telemetry import catalog

from .observation import Observation
from .scrape import Scrape

REQUEST_TIMEOUT_S = 10.0  # the answers of one that has 10,000 partitions take a second
MAX_STREAMS = 1000  # streams of the list that are looked at
# All workers accept from one socket. A worker that is stopped accepts, too, and does not answer.
MAX_ATTEMPTS = 3


async def observe_gateway(
    address: AdminAddress, interval_s: float, headers: Mapping[str, str] = MappingProxyType({})
) -> Observation:
    """Observe a gateway for some seconds, by its admin API or another port that has `/metrics`."""
    base_url = address.url.rstrip("/")
    try:
        async with httpx.AsyncClient(
            base_url=base_url, headers=dict(headers), timeout=REQUEST_TIMEOUT_S,
            verify=address.verify, trust_env=False,
        ) as http:  # fmt: skip
            before, began = await _scrape_all_workers(http), time.monotonic()
            await asyncio.sleep(interval_s)
            after, ended = await _scrape(http), time.monotonic()
            routes, health = await _get_json(http, "/routes"), await _get_json(http, "/health")
            streams = await _get_json(http, f"/streams?limit={MAX_STREAMS}")
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        reason = str(exc) or type(exc).__name__
        raise GatewayError(
            f"no gateway answers at {address.url} ({reason}); see `admin on` in its log"
        ) from None
    return Observation(
        base_url,
        ended - began,
        time.time(),
        before,
        after,
        None if routes is None else routes["routes"],
        None if streams is None else streams["streams"],
        health,
        () if routes is None else routes["missing"],
    )


async def _scrape_all_workers(http: httpx.AsyncClient) -> Scrape:
    """Return a scrape that includes all workers, if there is one within some attempts.

    Otherwise all counts of a missing worker would have grown until the next scrape.
    """
    for _ in range(MAX_ATTEMPTS):
        scrape = await _scrape(http)
        if not scrape.sum(catalog.WORKERS_MISSING):
            break
    return scrape


async def _scrape(http: httpx.AsyncClient) -> Scrape:
    response = await _get(http, "/metrics")
    if response.status_code in (401, 403):
        hint = "give a token of an operator by --token or GATEWAY_ADMIN_TOKEN"
        raise GatewayError(f"{response.url} answers {response.status_code}; {hint}")
    is_metrics = response.headers.get("content-type", "").startswith("text/plain")
    if response.status_code != 200 or not is_metrics:
        hint = "give the address that the gateway logs as `admin on`"
        raise GatewayError(f"{response.url} has no metrics ({response.status_code}); {hint}")
    try:
        return Scrape.parse(response.text)
    except ValueError as exc:
        raise GatewayError(f"{response.url} has no metrics ({exc})") from None


async def _get_json(http: httpx.AsyncClient, path: str) -> Any:
    """Return an answer of the admin API; None where there is none, as at a sidecar's port."""
    response = await _get(http, path)
    is_json = response.headers.get("content-type", "").startswith("application/json")
    return response.json() if response.status_code == 200 and is_json else None


async def _get(http: httpx.AsyncClient, path: str) -> httpx.Response:
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            return await http.get(path)
        except httpx.ReadTimeout:
            if attempt == MAX_ATTEMPTS:
                raise
            # The connection that is open is to the worker that does not answer.
    raise AssertionError
