"""What lets a client in is over at some time: its stream ends then, unless it is renewed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from support.brokers import embedded_kafka
from support.gateways import Gateway, config_for, running_gateway
from support.issuer import AUDIENCE, NAME, Issuer
from support.multiplex import Multiplex
from support.oracle import Oracle

from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"orders": 1})

ISSUER = Issuer()
SOON = 2.0  # seconds
WITHIN = 60.0


@pytest_asyncio.fixture
async def gateway(kafka: EmbeddedKafka) -> AsyncIterator[Gateway]:
    guard = {
        "type": "jwt", "issuer": NAME, "audience": AUDIENCE, "keys": ISSUER.jwks,
        "attributes": {"tenant": "tenant"},
    }  # fmt: skip
    own = [{"key": "${guarded['login'].attributes.tenant}"}]
    route = {
        "when": [{"path": "/mine"}],
        "guarded": {"login": []},
        "with": {"topic": "orders", "filters": own, "format": "envelope"},
    }
    config = config_for(kafka.bootstrap, ["orders"], [route], guards={"login": guard})
    async with running_gateway(config) as running:
        yield running


def bearer(**claims: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(**claims)}"}


def token(**claims: Any) -> str:
    return ISSUER.token(**{"tenant": "a", **claims})


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
async def test_a_stream_ends_with_its_token_and_says_so(gateway: Gateway, accept: str):
    over = time.time() + SOON
    async with httpx.AsyncClient(timeout=WITHIN, headers=bearer(exp=over)) as http:
        answer = await http.get(f"{gateway.base_url}/mine", headers={"Accept": accept})
    assert time.time() >= int(over)
    assert answer.status_code == 200
    assert "token-expired" in answer.text.strip().splitlines()[-1]


async def test_a_token_that_never_ends_ends_nothing_and_one_that_is_over_lets_nobody_in(
    gateway: Gateway,
):
    async with httpx.AsyncClient(timeout=WITHIN) as http:
        came = await http.get(f"{gateway.base_url}/mine?until=latest", headers=bearer(exp=None))
        assert '"reason":"until"' in came.text
        late = await http.get(f"{gateway.base_url}/mine", headers=bearer(exp=time.time() - 1))
        assert late.status_code == 401


async def test_a_socket_goes_on_with_a_new_token_and_ends_without_one(gateway: Gateway):
    headers = bearer(exp=time.time() + SOON)
    async with Multiplex(gateway.base_url, additional_headers=headers) as socket:
        await socket.subscribe("one", "/mine")
        until = time.time() + 3 * SOON
        await socket.say("token", jwt=token(exp=until))
        await socket.next(None, "renewed")
        ended = await socket.next("one", "end")
        assert ended["reason"] == "token-expired"
        assert time.time() >= int(until)


async def test_another_clients_token_renews_nothing(gateway: Gateway):
    async with Multiplex(gateway.base_url, additional_headers=bearer()) as socket:
        await socket.subscribe("one", "/mine")
        await socket.say("token", jwt=token(sub="eve"))
        error = await socket.next(None, "error")
        assert error["code"] == "forbidden"


async def test_what_a_new_token_shows_comes_from_where_the_old_one_stood(
    gateway: Gateway, oracle: Oracle
):
    async with Multiplex(gateway.base_url, additional_headers=bearer()) as socket:
        await socket.subscribe("one", "/mine")
        await oracle.produce("orders", 5, key=b"a")
        await oracle.produce("orders", 5, key=b"b")
        await socket.wait(lambda: len(socket.records("one")) == 5)
        await socket.say("token", jwt=token(tenant="b"))
        await socket.next("one", "begin", 1)
        await oracle.produce("orders", 5, key=b"a")
        await oracle.produce("orders", 5, key=b"b")
        await socket.wait(lambda: len(socket.records("one")) >= 10)
        await socket.wait(lambda: socket.records("one")[-1]["offset"] == 19)
        seen = [(record["offset"], record["key"]) for record in socket.records("one")]
        assert seen[:5] == [(n, "a") for n in range(5)]
        assert seen[-5:] == [(n, "b") for n in range(15, 20)]
        assert seen == sorted(set(seen)) and {key for _, key in seen[5:]} == {"b"}
