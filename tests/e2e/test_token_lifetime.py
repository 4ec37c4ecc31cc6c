"""How long a token is good: what it says itself, within what a gateway can tell, and no longer
than its guard allows where it says nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.admin_api import ADMIN_SECTION, list_streams, open_admin_api
from support.brokers import embedded_kafka
from support.clients.raw import RawClient
from support.gateways import GatewayThread, build_config
from support.issuer import TokenIssuer
from support.multiplex import MultiplexClient
from support.topic_gateway import run_gateway_sync
from support.waiting import WAIT_TIMEOUT_S

from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"orders": 1})

ISSUER = TokenIssuer()
LIFETIME_S = 2


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[GatewayThread]:
    own = {"type": "jwt", "keys": ISSUER.jwks, "challenge": "0s"}
    guards = {
        "plain": own,
        "short": {**own, "maxLifetime": f"{LIFETIME_S}s"},
        "dated": {**own, "requireExpiry": True},
    }
    routes = [
        {"when": [{"path": f"/{name}"}], "guarded": {name: []}, "with": {"topic": "orders"}}
        for name in guards
    ]
    config = build_config(kafka.bootstrap, ["orders"], routes, guards=guards, admin=ADMIN_SECTION)
    with run_gateway_sync(config) as running:
        yield running


def bearer(**claims: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {ISSUER.issue_token(**claims)}"}


async def test_an_end_that_no_calendar_has_spoils_nobodys_list(gateway: GatewayThread):
    """One client whose token ended behind the year 9999 took the list of streams from all
    operators."""
    ends = [2**63 - 1, 10**300, 1.5e300, 253_402_300_800]
    clients = [RawClient(f"{gateway.base_url}/plain", headers=bearer(exp=exp)) for exp in ends]
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.__aenter__())
    try:
        for client in clients:
            await client.wait_for_events(1)
        async with open_admin_api(gateway) as http:
            streams = await list_streams(http)
        assert [each["expires"] for each in streams] == ["9999-12-31T23:59:59+00:00"] * len(ends)
    finally:
        for client in clients:
            await client.__aexit__(None, None, None)


async def test_the_stream_of_a_token_without_an_end_has_one(gateway: GatewayThread):
    """Such a token was good for ever, and so was its stream."""
    began = time.time()
    async with httpx.AsyncClient(timeout=WAIT_TIMEOUT_S, trust_env=False) as http:
        answer = await http.get(f"{gateway.base_url}/short", headers=bearer(exp=None))
    assert time.time() - began >= LIFETIME_S
    assert answer.status_code == 200
    assert '"token-expired"' in answer.text.strip().splitlines()[-1]
    async with MultiplexClient(gateway.base_url, additional_headers=bearer(exp=None)) as socket:
        await socket.subscribe("a", "/short")
        assert (await socket.wait_for_message("a", "end"))["reason"] == "token-expired"
