"""What the log says of a client that does not get its records."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from support.gateways import build_config
from support.log_lines import LogLine, collect_lines
from support.outlet import FakeOutlet
from support.records import produce_records
from support.single_client import drain_outlet
from support.topic_reads import open_cluster
from support.waiting import wait_until

from gateway.config import Rate, Settings
from gateway.core.channel.filters import Filters
from gateway.core.token.resume_token import parse_token
from gateway.hub.fanout.client import Client, ClientOptions
from gateway.hub.fanout.hub import Hub
from gateway.hub.reads.position_resolver import StreamStart
from gateway.hub.reads.view import View
from gateway.hub.wires.sse import SseWire
from gateway.kafka.embedded import EmbeddedKafka

VIEW = View(("orders",), Filters(), "value", "error")
LOGGER = "gateway.hub"


class OrdersHub:
    """A hub of the topic `orders`, and who writes to it."""

    def __init__(self, hub: Hub, kafka: EmbeddedKafka) -> None:
        self.hub = hub
        self._kafka = kafka

    async def produce(self, values: Iterable[int]) -> None:
        await produce_records(self._kafka.bootstrap, "orders", [b"%d" % value for value in values])

    async def follow(
        self, outlet: FakeOutlet, start: StreamStart | None = None, rate: Rate | None = None
    ) -> Client:
        options = ClientOptions(heartbeat=60, route="/orders", rate=rate)
        client = await self.hub.subscribe(VIEW, start or StreamStart(), SseWire(), options)
        await client.wait_until_ready()
        client.attach(outlet)
        return client


@asynccontextmanager
async def orders(kafka: EmbeddedKafka) -> AsyncIterator[OrdersHub]:
    kafka.create_topic("orders")
    async with open_cluster(kafka.bootstrap) as cluster:
        hub = Hub(cluster, Settings.model_validate(build_config(kafka.bootstrap, ["orders"])))
        await hub.start()
        try:
            yield OrdersHub(hub, kafka)
        finally:
            await hub.close()


def lines_of(client: Client, lines: Iterable[LogLine]) -> list[str]:
    """The texts of the lines about a client; each must have its route, too."""
    return [
        line.text.removeprefix("stream ")
        for line in lines
        if line.ids == {"route": "/orders", "stream": client.number}
    ]


async def test_each_change_of_a_client_is_a_line_with_its_cause(embedded: EmbeddedKafka):
    with collect_lines(LOGGER) as lines:
        async with orders(embedded) as hub:
            outlets = [FakeOutlet() for _ in range(4)]
            witness = await hub.follow(outlets[0])
            token = re.findall(rb"id: (\S+)", outlets[0].chunks[0])[0].decode()
            await hub.produce(range(10))
            await wait_until(lambda: outlets[0].values == list(range(10)))

            # The first that resumes from a position reads alone, the next share one read.
            start = StreamStart(parse_token(token))
            others = [await hub.follow(outlet, start) for outlet in outlets[1:3]]
            client, outlet = await hub.follow(outlets[3], start), outlets[3]
            await wait_until(lambda: outlet.values == list(range(10)) and client.state is None)

            outlet.capacity = 0
            await hub.produce(range(10, 12))
            await wait_until(lambda: outlets[0].values == list(range(12)) and outlet.full)
            await hub.produce(range(12, 30))
            await wait_until(lambda: outlets[0].values == list(range(30)))
            client.subscription.channel.evict_before(1 << 30)
            await wait_until(lambda: any("cause=slow" in line.text for line in lines))
            outlet.capacity = float("inf")
            drain_outlet(client)
            await wait_until(lambda: outlet.values == list(range(30)) and client.state is None)
            for each in (witness, *others, client):
                each.close()
    logged = lines_of(client, lines)
    fell_at = next(line for line in logged if "cause=slow" in line)
    assert re.fullmatch(r"reads privately partitions=orders-0@1[1-9] cause=slow", fell_at), fell_at
    assert [line for line in logged if line not in (fell_at, "state=catching-up")] == [
        "began topics=orders pending=none",
        "reads privately partitions=orders-0@0 cause=start",
        "joined shared catch-up",
        "left shared catch-up cause=caught-up",
        "follows again partitions=orders-0",
        "state=live",
        "state=slow",
        "follows again partitions=orders-0",
        "state=live",
        "ended reason=left",
    ]
    assert lines_of(witness, lines) == [
        "began topics=orders pending=none", "state=live", "ended reason=left"
    ]  # fmt: skip
    assert "position verified offset=0 gap=none topic=orders partition=0" in lines_of(
        others[0], lines
    )
    assert {line.ids["stream"] for line in lines if line.text.startswith("stream ")} == {
        each.number for each in (witness, *others, client)
    }, "the leader of a shared catch-up is no client"


async def test_a_client_without_credit_and_one_above_its_rate_say_so(embedded: EmbeddedKafka):
    with collect_lines(LOGGER) as lines:
        async with orders(embedded) as hub:
            outlets = FakeOutlet(), FakeOutlet()
            short = await hub.follow(outlets[0], StreamStart(credit=2))
            fast = await hub.follow(outlets[1], rate=Rate(3, 3600.0))
            await hub.produce(range(10))
            await wait_until(lambda: (len(outlets[0].values), len(outlets[1].values)) == (2, 3))
            short.grant_credit(100)
            await wait_until(lambda: outlets[0].values == list(range(10)))
            await wait_until(lambda: lines_of(short, lines)[-1] == "state=live")
    assert "state=no-credit" in lines_of(short, lines)
    assert lines_of(fast, lines)[-2:] == ["state=max-rate", "ended reason=left"]


async def test_levels_that_change_at_run_time_show_where_clients_stand(embedded: EmbeddedKafka):
    async with orders(embedded) as hub:
        outlet = FakeOutlet()
        client = await hub.follow(outlet)
        await wait_until(lambda: client.state is None)
        outlet.capacity = 0
        await hub.produce(range(2))
        await wait_until(lambda: outlet.full)
        with collect_lines(LOGGER) as lines:
            await wait_until(lambda: lines_of(client, lines))
        assert lines_of(client, lines)[:1] == ["state=slow"]
