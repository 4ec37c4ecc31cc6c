"""More connections of one client than it may have, or more often: it is told, and others are not
harmed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from support.admission import (
    RESPONSE_TIMEOUT_S,
    build_client_headers,
    check_admitted,
    check_refused,
    connect_event_sources,
    fetch_response,
)
from support.brokers import embedded_kafka
from support.clients.raw import RawClient
from support.gateways import build_config
from support.multiplex import MultiplexClient
from support.oracle import StreamOracle
from support.scrape import fetch_metrics
from support.workers import running_workers

from gateway.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.needs("process")

GUARDED, OPEN = "/events/orders", "/open"
LINES = {"Accept": "application/x-ndjson"}

kafka = embedded_kafka({"orders": 1}, scope="function")


def config(kafka: EmbeddedKafka, **limits: Any) -> dict[str, Any]:
    users = {name: {"token": f"{name}s-secret"} for name in ("ada", "bob")}
    routes = [
        {
            "when": [{"path": GUARDED}],
            "guarded": {"users": []},
            "with": {"topic": "orders", "produce": True},
        },
        {"when": [{"path": OPEN}], "with": {"topic": "orders"}},
    ]
    return build_config(
        kafka.bootstrap, ["orders"], routes,
        listen={"limits": limits, "forwarded": True},
        guards={"users": {"type": "inline", "users": users}},
    )  # fmt: skip


def by(name: str, address: str = "192.0.2.1", **headers: str) -> dict[str, str]:
    return build_client_headers(address, Authorization=f"Bearer {name}s-secret", **headers)


async def all_have(records: int, *clients: RawClient) -> None:
    for client in clients:
        await client.wait_for_events(
            lambda told: sum(each["event"] == "message" for each in told) == records,
            RESPONSE_TIMEOUT_S,
        )


async def closed_as_busy(socket: MultiplexClient, label: str | None = None) -> None:
    assert await socket.wait_closed() == 1013
    (error,) = socket.get_messages(label)
    assert (error["type"], error["code"]) == ("error", "busy") and error["message"]


async def test_one_identity_has_so_many_connections_of_all_workers_and_takes_nobody_elses(
    kafka: EmbeddedKafka,
):
    async with (
        running_workers(config(kafka, perIdentity=4), 2) as gateway,
        StreamOracle(",".join(kafka.bootstrap)) as oracle,
        AsyncExitStack() as stack,
    ):
        url = gateway.base_url
        from_everywhere = [by("ada", f"192.0.2.{n}") for n in range(12)]
        many = await connect_event_sources(stack, gateway, GUARDED, from_everywhere)
        held = check_admitted(many)
        assert len(held) == 4
        for headers in (by("ada"), by("ada", **LINES)):
            await check_refused(gateway, GUARDED, 429, **headers)
        async with MultiplexClient(url, GUARDED, additional_headers=by("ada")) as own:
            await closed_as_busy(own)
        async with MultiplexClient(url, additional_headers=by("ada")) as late:
            await late.send_message("subscribe", id="a", path=GUARDED)
            await closed_as_busy(late, "a")
        # Sockets that only write were in no count.
        async with MultiplexClient(url, additional_headers=by("ada")) as writer:
            await writer.send_message("produce", id="b", path=GUARDED, value=1)
            assert (await writer.wait_for_message("b", "error"))["code"] == "busy"

        bobs = await connect_event_sources(stack, gateway, GUARDED, 3 * [by("bob")])
        assert len(check_admitted(bobs)) == 3
        async with MultiplexClient(url, additional_headers=by("ada")) as both:
            await both.subscribe("open", OPEN)
            await both.send_message("subscribe", id="mine", path=GUARDED)
            assert (await both.wait_for_message("mine", "error"))["code"] == "busy"
            await oracle.produce_records("orders", 5)
            await both.wait_until(lambda: len(both.get_records("open")) == 5)
            await all_have(5, *held, *bobs)
            told = await fetch_metrics(gateway)
            limit = "gateway_refused_connections_total", {"limit": "perIdentity"}
            assert told[limit] >= 8 + 5
            await held[0].stop()
            for client in many:
                if client not in held:
                    await client.stop()
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                while both.get_messages("mine")[-1]["type"] != "begin":
                    count = len(both.get_messages("mine"))
                    await both.send_message("subscribe", id="mine", path=GUARDED)
                    await both.wait_until(
                        lambda count=count: len(both.get_messages("mine")) > count
                    )
        assert await gateway.stop() == 0


async def test_an_address_connects_so_often_whoever_it_says_that_it_is(kafka: EmbeddedKafka):
    """Those that no guard lets in count, too; health checks do not."""
    soon = 100.0, 300.0 + 10  # of 300 s some have passed
    async with (
        running_workers(config(kafka, rate="12/h"), 2) as gateway,
        StreamOracle(",".join(kafka.bootstrap)) as oracle,
        AsyncExitStack() as stack,
    ):
        for guess in range(6):
            answer = await fetch_response(gateway, GUARDED, **by(f"guess-{guess}"))
            assert answer.status_code == 401
        held = await connect_event_sources(stack, gateway, GUARDED, 10 * [by("ada")])
        assert len(check_admitted(held, soon)) == 6
        assert (
            await fetch_response(gateway, "/health/live", **build_client_headers("192.0.2.1"))
        ).status_code == 200
        for headers in (by("ada"), by("eve"), by("ada", **LINES)):
            await check_refused(gateway, GUARDED, 429, soon, **headers)
        for path in (GUARDED, "/ws"):
            async with MultiplexClient(
                gateway.base_url, path, additional_headers=by("ada")
            ) as late:
                await closed_as_busy(late)
        others = await connect_event_sources(stack, gateway, GUARDED, 3 * [by("ada", "192.0.2.2")])
        assert len(check_admitted(others)) == 3
        await oracle.produce_records("orders", 5)
        await all_have(5, *check_admitted(held, soon), *others)
        told = await fetch_metrics(gateway)
        assert told["gateway_refused_connections_total", {"limit": "rate"}] == 4 + 3 + 2
        assert await gateway.stop() == 0
