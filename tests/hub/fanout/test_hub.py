"""Who shares what: tails by topic set, channels by view, reads by partition."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.gateways import build_config
from support.kafka_wire import ApiKey
from support.key_readers import scan_keys
from support.outlet import FakeOutlet
from support.records import RecordToSend, produce_records
from support.sse import SseEvent, SseParser
from support.topic_reads import open_cluster
from support.waiting import wait_until

from gateway.config import Settings
from gateway.core.channel.filters import Condition, Filter, Filters
from gateway.core.client.terms import EndReason
from gateway.core.error_code import ErrorCode
from gateway.core.log.partition_reader import Start
from gateway.core.log.record import Gap, GapReason, PartitionPosition, TopicPartition
from gateway.core.token.resume_token import (
    TokenWriter,
    TopicPositions,
    digest_text,
    parse_token,
    seal_token,
)
from gateway.errors import AccessDenied, Busy, TokenForeign, UnknownTopic
from gateway.hub.fanout.client import Client, ClientOptions
from gateway.hub.fanout.hub import CLIENTS_PER_SLICE, DEFAULT_LIMITS, Hub, HubLimits
from gateway.hub.reads.position_resolver import MAX_LOOKUPS_AT_ONCE, LookupTurns, StreamStart
from gateway.hub.reads.view import View
from gateway.hub.wires.sse import SseWire
from gateway.kafka.embedded import EmbeddedKafka
from gateway.kafka.protocol.requests import MetadataRequest

ALL = View(("orders",), Filters(), "value", "error")
LIVE_START = StreamStart()
NO_LINGER = HubLimits(linger_s=0.0)
ALWAYS_SWEEPING = HubLimits(sweep_interval_s=0.0)  # in each turn of the loop
ADA = View(("orders",), Filters((Filter(key=b"ada"),)), "value", "error")


@asynccontextmanager
async def running_hub(
    kafka: EmbeddedKafka, limits: HubLimits = DEFAULT_LIMITS, **section: Any
) -> AsyncIterator[Hub]:
    config = build_config(kafka.bootstrap, ["orders"], kafka=section)
    async with open_cluster(kafka.bootstrap) as kafkas:
        hub = Hub(kafkas, Settings.model_validate(config), limits=limits)
        await hub.start()
        try:
            yield hub
        finally:
            await hub.close()


async def subscribe_client(hub: Hub, view: View = ALL, start: StreamStart = LIVE_START) -> Client:
    client = await hub.subscribe(view, start, SseWire(), ClientOptions(heartbeat=60))
    await client.wait_until_ready()
    return client


async def read_until(client: Client, event_name: str) -> list[SseEvent]:
    """The events of a client up to one of that name."""
    parser, heard = SseParser(), list[SseEvent]()
    async for piece in client.pull():
        heard += parser.feed(piece)
        if any(event.event_type == event_name for event in heard):
            return heard
    raise AssertionError(f"ended without {event_name}: {heard}")


def count_clients() -> int:
    """Count those that something refers to, in this process."""
    gc.collect()
    return sum(type(each) is Client for each in gc.get_objects())


@pytest.mark.parametrize("interval", [None, 0.01])
async def test_values_that_filters_cannot_look_into_are_counted(embedded, interval):
    """Clients missed such records, and no metric had them."""
    embedded.create_topic("orders", 1)
    filters = Filters((Filter(fields=(("/customer", "ada"),)),))
    async with running_hub(embedded) as hub:
        client = await subscribe_client(
            hub, View(("orders",), filters, "value", "error", interval=interval)
        )
        await produce_records(embedded.bootstrap, "orders", [RecordToSend(b'{"customer": NaN}')])
        await wait_until(lambda: hub.models.invalid["orders", "not-json"] == 1)
        client.close()


async def test_clients_of_one_view_share_a_channel_and_all_views_the_reads(embedded):
    embedded.create_topic("orders", 3)
    async with running_hub(embedded) as hub:
        first, second, other = (
            await subscribe_client(hub),
            await subscribe_client(hub),
            await subscribe_client(hub, ADA),
        )
        channels = [each.subscription.channel for each in (first, second, other)]
        assert channels[0] is channels[1] is not channels[2]
        assert channels[0].tail is channels[2].tail
        assert len(hub.shared_reads.fetcher.partition_fetches) == 3


async def test_a_client_that_left_is_forgotten(embedded: EmbeddedKafka):
    embedded.create_topic("orders")
    async with running_hub(embedded) as hub:
        client = await subscribe_client(hub)
        channel = client.subscription.channel
        await read_until(client, "begin")
        client.close()
        assert (len(hub.clients), len(channel.followers)) == (0, 0)


async def test_a_topic_is_no_longer_read_some_time_after_its_last_client(embedded):
    embedded.create_topic("orders")
    async with running_hub(embedded, NO_LINGER) as hub:
        client = await subscribe_client(hub)
        assert hub.shared_reads.topics == {"orders"}
        client.close()
        await wait_until(lambda: not hub.shared_reads.topics, "nobody looks at it")
        assert not hub.shared_reads.fetcher.partition_fetches


async def test_topic_sets_that_clients_left_cost_no_records_while_their_topics_are_read(embedded):
    """A thousand sets, each opened once and left, took every record for a minute."""
    for topic in ("one", "two"):
        embedded.create_topic(topic, 2)
    async with running_hub(embedded) as hub:
        views = [View(topics, Filters(), "value", "error") for topics in (("one",), ("one", "two"))]
        clients = [await subscribe_client(hub, view) for view in views]
        hub.sweep(asyncio.get_running_loop().time())
        used_bytes = hub.memory["views"]
        clients.pop().close()
        await wait_until(lambda: len(list(hub.iter_tails())) == 1, "its tail is gone")
        assert hub.memory["views"] < used_bytes
        assert {len(read.tails) for read in hub.shared_reads.by_topic["one"]} == {1}
        assert {len(read.tails) for read in hub.shared_reads.by_topic["two"]} == {0}


async def test_a_bootstrap_topic_is_read_before_anyone_comes_and_goes_on_being(embedded):
    embedded.create_topic("orders")
    async with running_hub(embedded, NO_LINGER, bootstrap=["orders"]) as hub:
        assert hub.topics.list_unread_bootstrap() == ["orders"]
        await wait_until(lambda: not hub.topics.list_unread_bootstrap(), "it is warm")
        (await subscribe_client(hub)).close()
        await wait_until(lambda: not list(hub.iter_tails()), "the client is forgotten")
        assert hub.shared_reads.topics == {"orders"}
        assert hub.topics.list_unread_bootstrap() == []


async def test_a_bootstrap_topic_that_is_not_there_yet_is_waited_for(embedded: EmbeddedKafka):
    async with running_hub(embedded, bootstrap=["orders"]) as hub:
        with pytest.raises(UnknownTopic, match="orders"):
            await subscribe_client(hub)
        embedded.create_topic("orders")
        await wait_until(lambda: not hub.topics.list_unread_bootstrap(), "it is warm")


async def test_draining_ends_every_stream_with_a_word(embedded: EmbeddedKafka):
    embedded.create_topic("orders")
    async with running_hub(embedded) as hub:
        client = await subscribe_client(hub)
        hub.drain()
        *_, end = await read_until(client, "end")
        assert end.parse_json() == {"reason": "drain"}


async def test_draining_many_streams_lets_others_have_their_turn(embedded: EmbeddedKafka):
    embedded.create_topic("orders")
    async with running_hub(embedded) as hub:
        clients = [await subscribe_client(hub) for _ in range(3 * CLIENTS_PER_SLICE)]
        hub.drain()
        assert sum(client.subscription.end_reason is None for client in clients) > 0
        assert (await subscribe_client(hub)).subscription.end_reason is EndReason.DRAIN
        await wait_until(lambda: all(client.subscription.end_reason for client in clients))
        assert {client.subscription.end_reason for client in clients} == {EndReason.DRAIN}


async def test_a_count_ends_a_stream_after_so_many_records(embedded: EmbeddedKafka):
    embedded.create_topic("orders")
    await produce_records(embedded.bootstrap, "orders", [b"%d" % number for number in range(5)])
    async with running_hub(embedded) as hub:
        client = await subscribe_client(hub, start=StreamStart(origin="earliest", max_records=3))
        heard = await read_until(client, "end")
        assert [event.data for event in heard if event.event_type == "message"] == ["0", "1", "2"]
        assert heard[-1].parse_json() == {"reason": "until"}


async def test_ids_that_a_proxy_may_refuse_are_warned_of_once(embedded, caplog):
    embedded.create_topic("orders", 40)
    async with running_hub(embedded) as hub:
        client = await subscribe_client(hub)
        chars = len(client.subscription.channel.tail.token_text)
        sweep_often(hub)
    assert list_warnings(caplog) == []
    async with running_hub(embedded, HubLimits(long_id_chars=chars - 1)) as hub:
        await subscribe_client(hub)
        sweep_often(hub)
    (warning,) = list_warnings(caplog)
    assert warning.startswith(f"ids of orders have {chars} characters; ")


def sweep_often(hub: Hub) -> None:
    for _ in range(5):
        hub.sweep(asyncio.get_running_loop().time())


def list_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


async def test_the_sweep_leaves_a_topic_alone_while_another_of_its_view_is_opened(embedded):
    """A route of two topics once began without the first: opened, and not looked at by anybody
    yet, it was swept away in the moment in which the second was being opened."""
    for topic in ("one", "two"):
        embedded.create_topic(topic, 2)
    async with running_hub(embedded, ALWAYS_SWEEPING) as hub:
        client = await subscribe_client(hub, View(("one", "two"), Filters(), "value", "error"))
        partitions = set(client.subscription.channel.tail.logs)
        assert partitions == {TopicPartition(t, p) for t in ("one", "two") for p in (0, 1)}


async def test_topics_that_a_refused_client_named_are_not_watched(embedded: EmbeddedKafka):
    """A hundred names of each such request were in all metadata requests from then on."""
    embedded.create_topic("orders", 1)
    async with running_hub(embedded) as hub:
        client = await subscribe_client(hub)
        token = parse_token(client.subscription.token.decode())
        names = tuple(f"pay-{n}" for n in range(10))
        view = View(names, Filters(), "value", "error")
        with pytest.raises(TokenForeign, match="another stream"):
            await subscribe_client(hub, view, StreamStart(token))
        await hub.cluster.metadata.refresh("whatever is watched is known then")
        assert hub.cluster.get_topic("orders") is not None
        assert [name for name in names if hub.cluster.get_topic(name) is not None] == []


async def test_a_topic_that_may_not_be_read_is_not_watched_for_long(embedded, monkeypatch):
    """It was found, so it was watched; then access was denied, and nothing ended the watch."""
    embedded.create_topic("orders", 1)
    async with running_hub(embedded) as hub:
        known_when_denied = []

        async def deny_fetch(*_: object, **__: object) -> None:
            known_when_denied.append(hub.cluster.get_topic("orders") is not None)
            raise AccessDenied("allow it READ", topic="orders")

        monkeypatch.setattr(hub.cluster, "fetch", deny_fetch)
        with pytest.raises(AccessDenied):
            await subscribe_client(hub)
        assert known_when_denied == [True]
        await wait_until(lambda: hub.cluster.get_topic("orders") is None, "it is not watched")


async def test_a_topic_that_brokers_show_and_do_not_let_it_read_is_denied(embedded):
    embedded.create_topic("orders", 1)
    embedded.fail(ApiKey.FETCH, *[ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 100)
    async with running_hub(embedded) as hub:
        with pytest.raises(AccessDenied, match="allow it READ"):
            await subscribe_client(hub)


async def test_a_client_that_resumes_gets_a_topic_that_is_created_later(embedded):
    embedded.create_topic("orders", 1)
    async with running_hub(embedded, NO_LINGER) as hub:
        first = await subscribe_client(hub)
        token = parse_token(first.subscription.token.decode())
        view = View(("later", "never", "orders"), Filters(), "value", "error")
        client = await subscribe_client(hub, view, StreamStart(token))
        embedded.create_topic("later", 1)
        logs = client.subscription.channel.tail.logs
        await wait_until(lambda: TopicPartition("later", 0) in logs, "it is read")
        client.close()
        await wait_until(lambda: hub.shared_reads.topics == {"orders"}, "its client has left")
        for name in ("later", "never"):
            assert hub.cluster.get_topic(name) is None, "it is watched no longer"


async def test_a_client_whose_start_is_looked_up_rides_the_channel_that_is_fed(embedded):
    """Its channel was made first, and, followed by nobody yet, swept away while Kafka was asked
    for the start: the client then followed a channel that nothing was published to."""
    embedded.create_topic("orders", 1)
    async with running_hub(embedded, ALWAYS_SWEEPING) as hub:
        await subscribe_client(hub)
        view = View(("orders",), Filters(), "envelope", "error")
        client = await subscribe_client(hub, view, StreamStart(origin="earliest"))
        (shared_tail,) = hub.iter_tails()
        assert client.subscription.channel in shared_tail.channels.values()


@pytest.mark.parametrize("token_topic", ["", "later"])
async def test_streams_of_one_client_take_turns_in_looking_up_where_they_start(
    embedded, monkeypatch, token_topic
):
    """Each had a task for each partition, and all began in one turn of the loop; later only those
    with a token, which look up the topics of a snapshot that it does not have. Streams without a
    key are of any number of clients, and waited for each other."""
    topics = [{"name": name, "partitionReadyTimeout": "1m"} for name in ("orders", "later")]
    asked, go_on = list[TopicPartition](), asyncio.Event()

    for name in ("orders", "later"):
        embedded.create_topic(name, 1)
    async with open_cluster(embedded.bootstrap) as cluster:
        hub = Hub(cluster, Settings.model_validate(build_config(embedded.bootstrap, topics)))
        await hub.start()
        resolve_start = hub.backfill_reader.resolve_start

        async def resolve_late(tp: TopicPartition, start: Start) -> PartitionPosition:
            if tp.topic == "orders":
                asked.append(tp)
                await go_on.wait()
            return await resolve_start(tp, start)

        def subscribe(client_key: str, start: StreamStart) -> asyncio.Task[Client]:
            options = ClientOptions(heartbeat=60, client_key=client_key)
            view = View(("orders", "later"), Filters(), "value", "error")
            return asyncio.create_task(hub.subscribe(view, start, SseWire(), options))

        monkeypatch.setattr(hub.backfill_reader, "resolve_start", resolve_late)
        monkeypatch.setattr(hub, "lookup_turns", LookupTurns(turn_s=60.0))
        token = None
        if token_topic:
            client = await subscribe_client(hub, View((token_topic,), Filters(), "value", "error"))
            token = parse_token(client.subscription.token.decode())
        from_start = StreamStart(snapshot=True, token=token)
        try:
            count = 2 * MAX_LOOKUPS_AT_ONCE
            waiting = [subscribe("a", from_start) for _ in range(count)]
            await asyncio.gather(*(subscribe("a", LIVE_START) for _ in range(count)))
            waiting += [subscribe(key, from_start) for key in ("b", *[""] * count)]
            at_once = MAX_LOOKUPS_AT_ONCE + 1 + count
            await wait_until(lambda: len(asked) >= at_once, "other clients are not held")
            assert len(asked) == at_once
            go_on.set()
            await asyncio.gather(*waiting)
            assert len(asked) == 2 * count + 1
        finally:
            await hub.close()


async def test_an_end_is_of_the_log_that_was_there_when_it_was_asked_for(embedded, monkeypatch):
    """The offset was taken for one of the topic that was created again meanwhile, which sent what
    was written since, and did not end the stream."""
    embedded.create_topic("orders", 1)
    tp = TopicPartition("orders", 0)
    await produce_records(embedded.bootstrap, "orders", [RecordToSend(b"old")])
    async with running_hub(embedded) as hub:
        lookups = hub.backfill_reader.lookups
        log = (await subscribe_client(hub)).shared_tail.tail.logs[tp]
        find_offset = lookups.find_offset

        async def find_late(tp: TopicPartition, timestamp: int) -> object:
            answer = await find_offset(tp, timestamp)
            log.append(Gap(tp, 1, 0, 1, GapReason.RECREATED), 0.0)
            return answer

        monkeypatch.setattr(lookups, "find_offset", find_late)
        client = await subscribe_client(hub, ALL, StreamStart(until="latest"))
        assert client.subscription.end_offsets == {tp: 1}
        client.begin()
        handover = client.build_handover()
        assert (handover.until, handover.end_lineages) == ({tp: 0}, {tp: 1})


async def test_a_stream_that_replaces_another_stays_within_the_share_of_its_client(embedded):
    """While both were counted twice the share could be used, and was for good."""

    def build_wide_view(size: int) -> View:
        listed = Condition(one_of=tuple(f"{size}-{n}" for n in range(size)))
        return View(("orders",), Filters((Filter(key=listed),)), "value", "error")

    async def subscribe(size: int, replaced: Client | None = None) -> Client:
        handover = None
        if replaced is not None:
            replaced.end(EndReason.CHANGED)
            handover = replaced.take_handover()
            replaced.close()
        options = ClientOptions(60, handover=handover, client_key="10.0.0.1")
        return await hub.subscribe(build_wide_view(size), LIVE_START, SseWire(), options)

    embedded.create_topic("orders", 1)
    async with running_hub(embedded) as hub:
        hub.client_shares.max_bytes = build_wide_view(2000).size
        client, _ = await subscribe(990), await subscribe(991)
        with pytest.raises(Busy, match="memory"):
            await subscribe(1500, client)
        await subscribe(993, await subscribe(992))


async def test_rings_are_counted_until_their_channels_are_gone(embedded: EmbeddedKafka):
    embedded.create_topic("orders", 1)
    async with running_hub(embedded) as hub:
        client, filtering = await subscribe_client(hub), await subscribe_client(hub, ADA)
        for each in (client, filtering):
            each.attach(FakeOutlet(0))  # full once it has begun
        records = [RecordToSend(b"x" * 1000, b"ada") for _ in range(10)]
        await produce_records(embedded.bootstrap, "orders", records)
        (shared_tail,) = hub.iter_tails()
        rings = list(shared_tail.channels.values())
        await wait_until(lambda: min(ring.bytes for ring in rings) > 10_000, "nobody takes them")
        filtering.close()
        await wait_until(lambda: len(shared_tail.channels) == 1, "its channel is gone")
        assert hub.rings.bytes == sum(ring.bytes for ring in shared_tail.channels.values())
        assert shared_tail.view_bytes == ALL.size

        topics = [{"name": "orders", "cache": {"bytes": "40KiB"}}]
        hub.apply_settings(Settings.model_validate(build_config(embedded.bootstrap, topics)))
        assert hub.rings.bytes > 10_000  # of a client that is to be moved on
        client.close()
        await wait_until(lambda: not list(hub.iter_tails()), "its tail is gone")
        assert hub.rings.bytes == 0


async def test_equal_filters_of_many_clients_are_kept_once(embedded: EmbeddedKafka):
    """They were counted once, and each client kept its own."""
    embedded.create_topic("orders", 1)
    keys = Condition(one_of=tuple(map(str, range(100))))
    async with running_hub(embedded) as hub:
        clients = [
            await subscribe_client(
                hub, View(("orders",), Filters((Filter(key=keys),)), "value", "error")
            )
            for _ in range(2)
        ]
        first, second = (client.view for client in clients)
        assert first is not None and second is not None and first.filters is second.filters


async def test_one_client_does_not_keep_others_out_by_large_filters(embedded, caplog):
    """It filled the half of `memory` that cannot be freed, all others got 503, and no line said so.

    Several clients may still do so, which is logged.
    """
    embedded.create_topic("orders", 1)
    limits = {"limits": {"perAddress": 100}}
    config = build_config(embedded.bootstrap, ["orders"], memory="64MiB", listen=limits)
    numbers = itertools.count()

    async def subscribe(client_key: str) -> Client:
        keys = Condition(one_of=tuple(f"{next(numbers)}-{n}" for n in range(2000)))
        view = View(("orders",), Filters((Filter(key=keys),)), "value", "error")
        options = ClientOptions(heartbeat=60, client_key=client_key)
        return await hub.subscribe(view, LIVE_START, SseWire(), options)

    async def fill(client_key: str) -> list[Client]:
        clients = [await subscribe(client_key)]
        with pytest.raises(Busy, match="memory") as refusal:
            while True:
                clients.append(await subscribe(client_key))
        assert refusal.value.status == 429
        return clients

    async with open_cluster(embedded.bootstrap) as cluster:
        hub = Hub(cluster, Settings.model_validate(config))
        await hub.start()
        try:
            first = await fill("a")
            sweep_often(hub)
            assert not hub.is_full
            for client_key in "bcde":
                await fill(client_key)
            sweep_often(hub)
            assert hub.is_full
            assert [text for text in list_warnings(caplog) if "half of `memory`" in text]
            for client in first:
                client.close()
            await wait_until(lambda: not hub.is_full, "what one had is free")
            await subscribe("a")
        finally:
            await hub.close()


async def test_an_answer_that_is_kept_for_other_clients_counts_as_backlog(embedded: EmbeddedKafka):
    embedded.create_topic("orders", 1)
    await produce_records(embedded.bootstrap, "orders", [RecordToSend(b"x" * 1000)])
    async with running_hub(embedded) as hub:
        client = await subscribe_client(hub)
        run = await hub.backfill_reader.read(TopicPartition("orders", 0), PartitionPosition(0))
        hub.sweep(asyncio.get_running_loop().time())
        assert hub.memory["backlog"] == run.answer.bytes > 1000
        client.close()


async def test_a_client_that_comes_while_a_reload_replaces_its_tail_leaves_nothing(
    embedded: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
):
    """The tail kept its logs for a follower that no client had."""
    embedded.create_topic("orders", 1)
    topics = [{"name": "orders", "cache": {"bytes": "40KiB"}}]
    settings = [Settings.model_validate(build_config(embedded.bootstrap, topics))]
    limits = HubLimits(linger_s=0.0, sweep_interval_s=0.0)
    async with running_hub(embedded, limits) as hub:
        create = hub._create_subscription

        async def create_while_reloading(*args: Any) -> Any:
            subscription = await create(*args)
            if settings:
                hub.apply_settings(settings.pop())
            return subscription

        monkeypatch.setattr(hub, "_create_subscription", create_while_reloading)
        client = await subscribe_client(hub)
        await wait_until(lambda: len(list(hub.iter_tails())) == 1, "the tail before is gone")
        client.close()


async def test_a_log_gets_an_index_once_many_readers_have_looked_for_keys(embedded):
    embedded.create_topic("orders")
    async with running_hub(embedded) as hub:
        await subscribe_client(hub)
        (log,) = hub.logs
        records = [RecordToSend(b"v", b"%d" % (n % 50)) for n in range(2000)]
        await produce_records(embedded.bootstrap, "orders", records)
        await wait_until(lambda: len(log) >= len(records))
        start = log.start_offset
        assert start is not None
        scan_keys(log)
        await wait_until(lambda: sum(1 for _ in log.iter_key_entries(start, {b"3"})) < len(log))


async def test_the_cache_is_one_for_all_partitions_of_a_topic(embedded: EmbeddedKafka):
    """Each partition could hold all of it: twelve of them held twelve times as much."""
    embedded.create_topic("orders", partitions=4)
    config = build_config(embedded.bootstrap, [{"name": "orders", "cache": {"bytes": "40KiB"}}])
    async with open_cluster(embedded.bootstrap) as kafkas:
        hub = Hub(kafkas, Settings.model_validate(config))
        await hub.start()
        try:
            client = await subscribe_client(hub)
            for p in range(4):
                many = [RecordToSend(b"x" * 1000, None, p) for _ in range(30)]
                await produce_records(embedded.bootstrap, "orders", many)
            logs = [feed.log for feed in hub.shared_reads.by_partition.values()]
            await wait_until(lambda: all(log.next_offset == 30 for log in logs), "the records")
            await wait_until(lambda: sum(log.bytes for log in logs) <= 40 * 1024, "less in memory")
            assert all(len(log) for log in logs), "each has its share"
            client.close()
        finally:
            await hub.close()


async def test_the_check_of_heartbeats_keeps_no_client_that_left(embedded: EmbeddedKafka):
    embedded.create_topic("orders", 1)
    async with running_hub(embedded) as hub:
        before, behind = count_clients(), hub.behind
        client = await subscribe_client(hub)
        await wait_until(lambda: hub.behind is not behind, "a check")
        client.close()
        del client
        assert count_clients() == before


@pytest.mark.parametrize(
    ("is_recreated", "gap"), [(True, ("recreated", 39, 0)), (False, ("truncated", 39, 1))]
)
async def test_a_position_of_a_topic_that_was_created_again_is_not_called_truncated(
    embedded, monkeypatch, is_recreated, gap
):
    """Kafka is asked by the topic's name where the log ends. The answer may be of the new topic
    while metadata still is of the former one."""
    embedded.create_topic("orders", 1)
    await produce_records(embedded.bootstrap, "orders", [b"1"])
    async with running_hub(embedded) as hub:
        await subscribe_client(hub)  # from here on the topic is read
        topic = hub.cluster.get_topic("orders")
        assert topic is not None
        refresh, reasons = hub.cluster.metadata.refresh, list[str]()

        async def refresh_later(reason: str) -> None:
            if is_recreated and not reasons:
                embedded.delete_topic("orders")
                embedded.create_topic("orders", 1)
            reasons.append(reason)
            await refresh(reason)

        monkeypatch.setattr(hub.cluster.metadata, "refresh", refresh_later)
        places = [TopicPositions("orders", str(topic.topic_id), [39], [0])]
        text = TokenWriter(hub.cluster.cluster_id or "", places).to_text()
        token = parse_token(seal_token(text, digest_text("v")).decode())
        client = await subscribe_client(hub, start=StreamStart(token))
        told = json.loads((await read_until(client, "gap"))[-1].data)
        assert (told["reason"], told["from"], told["to"]) == gap


async def test_a_position_of_an_earlier_topic_without_an_id_is_not_waited_for(
    embedded, monkeypatch
):
    """Brokers before Kafka 2.8 have no topic ids. The epochs of the topic that was created again
    are lower than that of the position, and the client waited until one had reached it."""
    monkeypatch.setattr(MetadataRequest, "API", MetadataRequest.API._replace(highest=9))
    embedded.create_topic("orders", 1)
    await produce_records(embedded.bootstrap, "orders", [b"1"])
    async with running_hub(embedded, HubLimits(later_epoch_timeout_s=0.2)) as hub:
        await subscribe_client(hub)
        topic = hub.cluster.get_topic("orders")
        assert topic is not None and topic.topic_id is None
        places = [TopicPositions("orders", "", [39], [7])]
        text = TokenWriter(hub.cluster.cluster_id or "", places).to_text()
        token = parse_token(seal_token(text, digest_text("v")).decode())
        client = await subscribe_client(hub, start=StreamStart(token))
        told = json.loads((await read_until(client, "gap"))[-1].data)
        assert (told["reason"], told["from"], told["to"]) == ("recreated", 39, 0)
