"""More connections of one client than it may have, or more often: it is told, and others are not
harmed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from support.brokers import embedded_kafka
from support.clients.raw import RawClient
from support.crowd import WITHIN, ask, event_sources, let_in, of, refused
from support.gateways import config_for
from support.multiplex import Multiplex
from support.oracle import Oracle
from support.scrape import scraped
from support.workers import running_workers

from gateway.kafka.embedded import EmbeddedKafka

GUARDED, OPEN = "/events/orders", "/open"
LINES = {"Accept": "application/x-ndjson"}

kafka = embedded_kafka({"orders": 1}, scope="function")


def config(kafka: EmbeddedKafka, **limits: Any) -> dict[str, Any]:
    users = {name: {"token": f"{name}s-secret"} for name in ("ada", "bob")}
    routes = [
        {"when": [{"path": GUARDED}], "guarded": {"users": []}, "with": {"topic": "orders"}},
        {"when": [{"path": OPEN}], "with": {"topic": "orders"}},
    ]
    return config_for(
        kafka.bootstrap, ["orders"], routes,
        listen={"limits": limits, "forwarded": True},
        guards={"users": {"type": "inline", "users": users}},
    )  # fmt: skip


def by(name: str, address: str = "192.0.2.1", **headers: str) -> dict[str, str]:
    return of(address, Authorization=f"Bearer {name}s-secret", **headers)


async def all_have(records: int, *clients: RawClient) -> None:
    for client in clients:
        await client.wait(
            lambda told: sum(each["event"] == "message" for each in told) == records, WITHIN
        )


async def closed_as_busy(socket: Multiplex, label: str | None = None) -> None:
    assert await socket.closed() == 1013
    (error,) = socket.of(label)
    assert (error["type"], error["code"]) == ("error", "busy") and error["message"]


async def test_one_identity_has_so_many_connections_of_all_workers_and_takes_nobody_elses(
    kafka: EmbeddedKafka,
):
    async with (
        running_workers(config(kafka, perIdentity=4), 2) as gateway,
        Oracle(",".join(kafka.bootstrap)) as oracle,
        AsyncExitStack() as stack,
    ):
        url = gateway.base_url
        from_everywhere = [by("ada", f"192.0.2.{n}") for n in range(12)]
        many = await event_sources(stack, gateway, GUARDED, from_everywhere)
        held = let_in(many)
        assert len(held) == 4
        for headers in (by("ada"), by("ada", **LINES)):
            await refused(gateway, GUARDED, 429, **headers)
        async with Multiplex(url, GUARDED, additional_headers=by("ada")) as own:
            await closed_as_busy(own)
        async with Multiplex(url, additional_headers=by("ada")) as late:
            await late.say("subscribe", id="a", path=GUARDED)
            await closed_as_busy(late, "a")

        bobs = await event_sources(stack, gateway, GUARDED, 3 * [by("bob")])
        assert len(let_in(bobs)) == 3
        async with Multiplex(url, additional_headers=by("ada")) as both:
            await both.subscribe("open", OPEN)
            await both.say("subscribe", id="mine", path=GUARDED)
            assert (await both.next("mine", "error"))["code"] == "busy"
            await oracle.produce("orders", 5)
            await both.wait(lambda: len(both.records("open")) == 5)
            await all_have(5, *held, *bobs)
            told = await scraped(gateway)
            limit = "gateway_refused_connections_total", {"limit": "perIdentity"}
            assert told[limit] >= 8 + 5
            await held[0].stop()
            for client in many:
                if client not in held:
                    await client.stop()
            async with asyncio.timeout(WITHIN):
                while both.of("mine")[-1]["type"] != "begin":
                    count = len(both.of("mine"))
                    await both.say("subscribe", id="mine", path=GUARDED)
                    await both.wait(lambda count=count: len(both.of("mine")) > count)
        assert await gateway.stop() == 0


async def test_an_address_connects_so_often_whoever_it_says_that_it_is(kafka: EmbeddedKafka):
    """Those that no guard lets in count, too; pages do not."""
    soon = 100.0, 300.0 + 10  # of 300 s some have passed
    async with (
        running_workers(config(kafka, rate="12/h"), 2) as gateway,
        Oracle(",".join(kafka.bootstrap)) as oracle,
        AsyncExitStack() as stack,
    ):
        for guess in range(6):
            answer = await ask(gateway, GUARDED, **by(f"guess-{guess}"))
            assert answer.status_code == 401
        held = await event_sources(stack, gateway, GUARDED, 10 * [by("ada")])
        assert len(let_in(held, soon)) == 6
        assert (await ask(gateway, "/health/live", **of("192.0.2.1"))).status_code == 200
        assert (await ask(gateway, "/nowhere", **of("192.0.2.1"))).status_code == 404
        for headers in (by("ada"), by("eve"), by("ada", **LINES)):
            await refused(gateway, GUARDED, 429, soon, **headers)
        for path in (GUARDED, "/ws"):
            async with Multiplex(gateway.base_url, path, additional_headers=by("ada")) as late:
                await closed_as_busy(late)
        others = await event_sources(stack, gateway, GUARDED, 3 * [by("ada", "192.0.2.2")])
        assert len(let_in(others)) == 3
        await oracle.produce("orders", 5)
        await all_have(5, *let_in(held, soon), *others)
        told = await scraped(gateway)
        assert told["gateway_refused_connections_total", {"limit": "rate"}] == 4 + 3 + 2
        assert await gateway.stop() == 0
