"""Who shares what: tails by topic set, channels by view, reads by partition."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.gateways import config_for
from support.reading import cluster
from support.records import Sent, produce
from support.sse import Event, Parser
from support.until import until

from gateway.config import Settings
from gateway.core.channel.filters import Filter, Filters
from gateway.core.client.slow_client import SlowClient
from gateway.core.log.record import TopicPartition
from gateway.errors import UnknownTopic
from gateway.hub.fanout import hub as hubs
from gateway.hub.fanout.client import Client
from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.view import View
from gateway.hub.reads.resume import Start
from gateway.hub.wires.sse import Sse
from gateway.kafka.embedded import EmbeddedKafka

ALL = View(("orders",), Filters(), "value", "error")
ADA = View(("orders",), Filters((Filter(key=b"ada"),)), "value", "error")


@asynccontextmanager
async def hub_on(kafka: EmbeddedKafka, **section: Any) -> AsyncIterator[Hub]:
    config = config_for(kafka.bootstrap, ["orders"], kafka=section)
    async with cluster(kafka.bootstrap) as kafkas:
        hub = Hub(kafkas, Settings.model_validate(config))
        await hub.start()
        try:
            yield hub
        finally:
            await hub.close()


async def join(hub: Hub, view: View = ALL, start: Start = Start()) -> Client:  # noqa: B008
    client = await hub.subscribe(view, start, Sse(), heartbeat=60, slow=SlowClient.CATCH_UP)
    await client.ready()
    return client


async def hear(client: Client, until: str) -> list[Event]:
    """The events of a client up to one of that name."""
    parser, heard = Parser(), list[Event]()
    async for piece in client.stream():
        heard += parser.feed(piece)
        if any(event.type == until for event in heard):
            return heard
    raise AssertionError(f"ended without {until}: {heard}")


async def test_clients_of_one_view_share_a_channel_and_all_views_the_reads(
    embedded: EmbeddedKafka,
):
    embedded.create_topic("orders", 3)
    async with hub_on(embedded) as hub:
        first, second, other = await join(hub), await join(hub), await join(hub, ADA)
        channels = [each.subscription.channel for each in (first, second, other)]
        assert channels[0] is channels[1] is not channels[2]
        assert channels[0].tail is channels[2].tail
        assert len(hub.feeds.fetcher.jobs) == 3


async def test_a_client_that_left_is_forgotten(embedded: EmbeddedKafka):
    embedded.create_topic("orders")
    async with hub_on(embedded) as hub:
        client = await join(hub)
        channel = client.subscription.channel
        await hear(client, "begin")
        client.close()
        assert (hub.clients, channel.followers) == (set(), set())


async def test_a_topic_is_no_longer_read_some_time_after_its_last_client(
    embedded: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hubs, "LINGER", 0.0)
    embedded.create_topic("orders")
    async with hub_on(embedded) as hub:
        client = await join(hub)
        assert hub.feeds.topics == {"orders"}
        client.close()
        await until(lambda: not hub.feeds.topics, "nobody looks at it")
        assert not hub.feeds.fetcher.jobs


async def test_a_bootstrap_topic_is_read_before_anyone_comes_and_goes_on_being(
    embedded: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hubs, "LINGER", 0.0)
    embedded.create_topic("orders")
    async with hub_on(embedded, bootstrap=["orders"]) as hub:
        assert hub.topics.cold() == ["orders"]
        await until(lambda: not hub.topics.cold(), "it is warm")
        (await join(hub)).close()
        await until(lambda: not hub._tails, "the client is forgotten")
        assert hub.feeds.topics == {"orders"}
        assert hub.topics.cold() == []


async def test_a_bootstrap_topic_that_is_not_there_yet_is_waited_for(embedded: EmbeddedKafka):
    async with hub_on(embedded, bootstrap=["orders"]) as hub:
        with pytest.raises(UnknownTopic, match="orders"):
            await join(hub)
        embedded.create_topic("orders")
        await until(lambda: not hub.topics.cold(), "it is warm")


async def test_draining_ends_every_stream_with_a_word(embedded: EmbeddedKafka):
    embedded.create_topic("orders")
    async with hub_on(embedded) as hub:
        client = await join(hub)
        hub.drain()
        *_, end = await hear(client, "end")
        assert end.json() == {"reason": "drain"}


async def test_a_count_ends_a_stream_after_so_many_records(embedded: EmbeddedKafka):
    embedded.create_topic("orders")
    await produce(embedded.bootstrap, "orders", [b"%d" % number for number in range(5)])
    async with hub_on(embedded) as hub:
        client = await join(hub, start=Start(origin="earliest", count=3))
        heard = await hear(client, "end")
        assert [event.data for event in heard if event.type == "message"] == ["0", "1", "2"]
        assert heard[-1].json() == {"reason": "until"}


async def test_ids_that_a_proxy_may_refuse_are_warned_of_once(
    embedded: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(hubs, "SWEEP", 0.01)
    embedded.create_topic("orders", 40)
    async with hub_on(embedded) as hub:
        client = await join(hub)
        tail = client.subscription.channel.tail
        swept = hub._sweep
        sweeps = []
        monkeypatch.setattr(hub, "_sweep", lambda now: (sweeps.append(now), swept(now)))
        await until(lambda: len(sweeps) > 2, "some sweeps")
        assert not caplog.records
        monkeypatch.setattr(hubs, "LONG_ID", len(tail.text) - 1)
        before = len(sweeps)
        await until(lambda: len(sweeps) > before + 5, "more sweeps")
        (warning,) = [each for each in caplog.records if each.levelno == logging.WARNING]
        assert warning.getMessage().startswith(f"ids of orders have {len(tail.text)} characters; ")


async def test_the_sweep_leaves_a_topic_alone_while_another_of_its_view_is_opened(
    embedded: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
):
    """A route of two topics once began without the first: opened, and not looked at by anybody
    yet, it was swept away in the moment in which the second was being opened."""
    for topic in ("one", "two"):
        embedded.create_topic(topic, 2)
    async with hub_on(embedded) as hub:
        opened = hub.topics._open

        async def swept(name: str) -> None:
            await opened(name)
            hub._sweep(asyncio.get_running_loop().time())

        monkeypatch.setattr(hub.topics, "_open", swept)
        client = await join(hub, View(("one", "two"), Filters(), "value", "error"))
        partitions = set(client.subscription.channel.tail.logs)
        assert partitions == {TopicPartition(t, p) for t in ("one", "two") for p in (0, 1)}


async def test_a_client_whose_start_is_looked_up_rides_the_channel_that_is_fed(
    embedded: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
):
    """Its channel was made first, and, followed by nobody yet, swept away while Kafka was asked
    for the start: the client then followed a channel that nothing was published to."""
    embedded.create_topic("orders", 1)
    async with hub_on(embedded) as hub:
        await join(hub)
        resolve = hub.archive.resolve

        async def swept(*asked: Any) -> Any:
            hub._sweep(asyncio.get_running_loop().time())
            return await resolve(*asked)

        monkeypatch.setattr(hub.archive, "resolve", swept)
        view = View(("orders",), Filters(), "envelope", "error")
        client = await join(hub, view, Start(origin="earliest"))
        (shared,) = hub._tails.values()
        assert client.subscription.channel in shared.channels.values()


async def test_the_cache_is_one_for_all_partitions_of_a_topic(embedded: EmbeddedKafka):
    """Each partition could hold all of it: twelve of them held twelve times as much."""
    embedded.create_topic("orders", partitions=4)
    config = config_for(embedded.bootstrap, [{"name": "orders", "cache": {"bytes": "40KiB"}}])
    async with cluster(embedded.bootstrap) as kafkas:
        hub = Hub(kafkas, Settings.model_validate(config))
        await hub.start()
        try:
            client = await join(hub)
            for p in range(4):
                many = [Sent(b"x" * 1000, None, p) for _ in range(30)]
                await produce(embedded.bootstrap, "orders", many)
            logs = [feed.log for feed in hub.feeds.by_partition.values()]
            await until(lambda: all(log.next == 30 for log in logs), "the records")
            await until(lambda: sum(log.bytes for log in logs) <= 40 * 1024, "less in memory")
            assert all(len(log) for log in logs), "each has its share"
            client.close()
        finally:
            await hub.close()
