"""Who may have which stream of a WebSocket, where the application says so itself."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from support.brokers import embedded_kafka
from support.gateways import build_config
from support.in_process_gateway import running_in_process_gateway
from support.multiplex import MultiplexClient
from support.records import produce_records
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from gateway import RequestError
from gateway.kafka.embedded import EmbeddedKafka

OLD, NEW, STOCK, BAD = "tok-old.a-b_c", "tok-new.a-b_c", "tok-stock.a-b_c", "tok-bad.a-b_c"


class Doorman:
    """may: the topics that each token opens."""

    def __init__(self) -> None:
        self.may = {OLD: {"orders"}, NEW: {"orders", "stock"}, STOCK: {"stock"}}

    async def __call__(self, route: Any, params: Any, connection: Any, token: str | None) -> None:
        await asyncio.sleep(0)  # as one that asks elsewhere
        if token is None:
            raise RequestError(401, "Unauthorized", "bring a token")
        if route.with_.topic.literal not in self.may.get(token, set()):
            raise RequestError(403, "Forbidden", "this token opens another stream")


kafka = embedded_kafka({"orders": 1, "stock": 1})


@pytest.fixture
def door() -> Doorman:
    return Doorman()


@pytest.fixture
async def url(kafka: EmbeddedKafka, door: Doorman) -> AsyncIterator[str]:
    config = build_config(kafka.bootstrap, ["orders", "stock"])
    async with running_in_process_gateway(config, access=door) as (url, _):
        yield url


@pytest.fixture(autouse=True)
def no_token_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """By anyone but the client, which stands in this process."""
    caplog.set_level(logging.DEBUG)
    yield
    server = [each for each in caplog.records if not each.name.startswith("websockets.client")]
    assert not [each for each in server if "tok-" in each.getMessage() + str(each.exc_text)]


def bearing(token: str) -> dict[str, Any]:
    return {"subprotocols": ["gateway.v1", f"bearer.{token}"]}


async def heard(
    socket: MultiplexClient, label: str | None, kafka: EmbeddedKafka, topic: str
) -> None:
    count = socket.record_counts.get(label, 0)
    await produce_records(kafka.bootstrap, topic, [b"1"])
    await socket.wait_until(lambda: socket.record_counts.get(label, 0) == count + 1)


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({}, 401),
        (bearing(BAD), 403),
        (bearing(STOCK), 403),
        ({"additional_headers": {"Authorization": f"Bearer {BAD}"}}, 403),
        ({"additional_headers": {"Authorization": f"Basic {OLD}"}}, 401),
        (bearing(OLD), 101),
        # Without a subprotocol that the gateway may select, browsers give the socket up.
        ({"subprotocols": [f"bearer.{OLD}"]}, 400),
        ({"additional_headers": {"Authorization": f"bearer {OLD}"}}, 101),
    ],
)
async def test_a_routes_own_socket_opens_for_those_who_may(
    url: str, kafka: EmbeddedKafka, options: dict[str, Any], status: int, caplog
):
    socket = MultiplexClient(url, "/records/orders", **options)
    if status != 101:
        with pytest.raises(InvalidStatus) as refused:
            await socket.__aenter__()
        assert refused.value.response.status_code == status
        problem = json.loads(refused.value.response.body or b"")
        assert problem["status"] == status
        assert status != 400 or problem["detail"] in caplog.text
        return
    async with socket:
        asked = options.get("subprotocols", [])
        assert socket.socket.subprotocol == ("gateway.v1" if "gateway.v1" in asked else None)
        await socket.wait_for_message(None, "begin")
        await heard(socket, None, kafka, "orders")


async def test_a_bearer_subprotocol_is_never_echoed(url: str):
    offered: Any = [f"bearer.{OLD}", "gateway.v1"]
    async with connect(f"{url.replace('http', 'ws')}/ws", subprotocols=offered, proxy=None) as ws:
        assert ws.response is not None
        assert ws.response.headers["Sec-WebSocket-Protocol"] == "gateway.v1"


async def test_every_stream_of_a_session_is_asked_for_and_a_denied_one_ends_nothing(
    url: str, kafka: EmbeddedKafka
):
    async with MultiplexClient(url) as socket:
        await socket.send_message("subscribe", id="a", path="/records/orders")
        assert (await socket.wait_for_message("a", "error"))["code"] == "unauthorized"
    async with MultiplexClient(url, **bearing(OLD)) as socket:
        await socket.subscribe("a", "/records/orders")
        for n, (kind, members) in enumerate(
            [
                ("subscribe", {"id": "b"}),
                ("change", {"id": "a"}),
                ("produce", {"id": "c", "value": 1}),
            ]
        ):
            await socket.send_message(kind, path="/records/stock", **members)
            assert (await socket.wait_for_message(members["id"], "error"))["code"] == "forbidden", n
        await heard(socket, "a", kafka, "orders")


async def test_a_token_is_renewed_on_the_socket_and_one_that_is_refused_changes_nothing(
    url: str, kafka: EmbeddedKafka, door: Doorman
):
    async with (
        MultiplexClient(url, **bearing(OLD)) as socket,
        MultiplexClient(url, "/records/orders", **bearing(OLD)) as own,
    ):
        await socket.subscribe("a", "/records/orders")
        await own.wait_for_message(None, "begin")
        for each in (socket, own):
            for n, token in enumerate((BAD, STOCK)):  # the stream of orders is not for these
                await each.send_message("token", jwt=token)
                error = await each.wait_for_message(None, "error", n)
                assert error["code"] == "forbidden" and token not in str(error)
        await socket.subscribe("still", "/records/orders")
        for each in (socket, own):
            await each.send_message("token", jwt=NEW)
            await each.wait_for_message(None, "renewed")
        door.may.pop(OLD)
        await socket.subscribe("b", "/records/stock")
        await heard(socket, "b", kafka, "stock")
        await heard(socket, "a", kafka, "orders")
        await own.wait_until(lambda: own.record_counts.get(None, 0) > 0)

        door.may.pop(NEW)  # what runs, runs; what is chosen anew is asked for
        await socket.send_message("change", id="a", path="/records/orders")
        assert (await socket.wait_for_message("a", "error"))["code"] == "forbidden"
        await heard(socket, "a", kafka, "orders")


async def test_a_renewal_is_asked_of_what_a_stream_changes_to(url: str, door: Doorman):
    """And of streams that end meanwhile: the session broke over the dictionary they left."""
    async with MultiplexClient(url, **bearing(NEW)) as socket:
        for n in range(20):
            await socket.send_message("subscribe", id=f"{n}", path="/records/orders")
        for n in range(20):
            await socket.send_message("change", id=f"{n}", path="/records/stock")
            await socket.send_message("token", jwt=OLD)
            await socket.send_message("unsubscribe", id=f"{n}")
            await socket.send_message("token", jwt=NEW)
        await socket.wait_for_pong()
        refused = [each for each in socket.messages if each.get("code") == "forbidden"]
        assert len(refused) >= 1 and len(socket.get_messages(None, "renewed")) >= 20
