"""Whose idempotency key it is: one client's, on one route."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.brokers import embedded_kafka
from support.gateways import (
    GatewayThread,
    build_config,
    create_http_client,
)
from support.multiplex import MultiplexClient
from support.topic_gateway import run_gateway_sync

from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"votes": 3})

USERS = {"ada": {"token": "of-ada"}, "eve": {"token": "of-eve"}}
BEARER = {"headers": {"authorization": "Bearer {credentials}"}}
GUARDS = {
    "dev": {"type": "inline", "credentials": BEARER, "users": USERS},
}


def command(path: str, guard: str | None = None, **options: Any) -> dict[str, Any]:
    with_ = {"capability": "produce", "topic": "votes", **options}
    made: dict[str, Any] = {"when": [{"path": path}], "with": with_}
    return made if guard is None else {**made, "guarded": {guard: []}}


ROUTES = [
    command("/votes", "dev"),
    command("/open"),
    {
        "when": [{"path": "/stream"}],
        "guarded": {"dev": []},
        "with": {"topic": "votes", "produce": True, "format": "envelope"},
    },
    {
        "when": [{"path": "/all"}],
        "with": {"topic": "votes", "format": "envelope"},
    },
]


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[GatewayThread]:
    with run_gateway_sync(
        build_config(kafka.bootstrap, ["votes"], ROUTES, guards=GUARDS)
    ) as running:
        yield running


async def vote(
    http: httpx.AsyncClient, key: str, who: str = "", body: str = "yes"
) -> httpx.Response:
    headers = {"Idempotency-Key": key}
    if who:
        headers["authorization"] = f"Bearer {who}"
    return await http.post("/votes" if who else "/open", content=body, headers=headers)


async def test_equal_keys_of_two_clients_are_two(gateway: GatewayThread):
    """The scope of a key was its route alone: the record of the second client was answered with 200
    and `repeated`, and never written; with another body it was refused, 422."""
    async with create_http_client(gateway) as http:
        ada, eve = await vote(http, "1", "of-ada"), await vote(http, "1", "of-eve")
        assert (ada.status_code, eve.status_code) == (201, 201)
        assert (ada.json()["partition"], ada.json()["offset"]) != (
            eve.json()["partition"], eve.json()["offset"],
        )  # fmt: skip
        for who, first in (("of-ada", ada), ("of-eve", eve)):
            again = await vote(http, "1", who)
            assert (again.status_code, again.json()) == (200, {**first.json(), "repeated": True})
            assert (await vote(http, "1", who, "no")).status_code == 422
        assert (await vote(http, "2", "of-eve", "no")).status_code == 201
        assert (await vote(http, "2", "of-ada", "yes")).status_code == 201


async def test_over_websocket_it_is_the_same(gateway: GatewayThread):
    """As over HTTP: 'repeated', of a record of somebody else."""
    told = []
    for who in ("of-ada", "of-eve", "of-eve"):
        bearer = {"additional_headers": {"authorization": f"Bearer {who}"}}
        async with MultiplexClient(gateway.base_url, **bearer) as socket:
            await socket.send_message(
                "produce", id="1", path="/stream", value="v", idempotencyKey="ws"
            )
            await socket.wait_until(lambda: any(each.get("id") == "1" for each in socket.messages))
            told.append(next(each for each in socket.messages if each.get("id") == "1"))
    assert [each["type"] for each in told] == ["produced"] * 3
    assert ["repeated" in each for each in told] == [False, False, True]


async def test_clients_of_an_open_route_share_theirs(gateway: GatewayThread):
    async with create_http_client(gateway) as one, create_http_client(gateway) as other:
        first, again = await vote(one, "open"), await vote(other, "open")
        assert (first.status_code, again.status_code) == (201, 200)
        assert again.json()["repeated"] is True


async def test_who_it_was_does_not_stand_in_the_record(gateway: GatewayThread):
    """Headers are shown to whoever reads the topic in an envelope."""
    async with create_http_client(gateway) as http:
        assert (await vote(http, "named", "of-ada")).status_code == 201
        lines = {"Accept": "application/x-ndjson"}
        text = (await http.get("/all?from=earliest&until=latest", headers=lines)).text
    assert '"named"' in text and "ada" not in text
