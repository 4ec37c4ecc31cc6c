"""What of a token is believed: how much it may name, and how far back it may go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.forged_tokens import forge_token
from support.gateways import build_config
from support.records import RecordToSend, produce_records
from support.topic_reads import open_cluster
from support.waiting import wait_until

from gateway.config import Settings, Tokens
from gateway.core.channel.filters import Filters
from gateway.core.log.record import TopicPartition
from gateway.core.token.resume_token import ResumeToken, parse_token
from gateway.errors import BrokerUnavailable, TokenForeign, TokenTooOld
from gateway.hub.fanout.client import Client, ClientOptions
from gateway.hub.fanout.hub import Hub
from gateway.hub.reads.position_resolver import StreamStart
from gateway.hub.reads.token_verifier import MAX_UNKNOWN_PARTITIONS, TokenVerifier
from gateway.hub.reads.view import View
from gateway.hub.wires.sse import SseWire
from gateway.kafka.embedded import EmbeddedKafka

ORDERS = View(("orders",), Filters(), "value", "error")


@asynccontextmanager
async def running_hub(kafka: EmbeddedKafka) -> AsyncIterator[Hub]:
    topic = {"name": "orders", "partitionReadyTimeout": "2s"}
    async with open_cluster(kafka.bootstrap) as kafkas:
        hub = Hub(kafkas, Settings.model_validate(build_config(kafka.bootstrap, [topic])))
        await hub.start()
        try:
            yield hub
        finally:
            await hub.close()


async def subscribe_client(hub: Hub, view: View = ORDERS, **start: Any) -> Client:
    client = await hub.subscribe(view, StreamStart(**start), SseWire(), ClientOptions(heartbeat=60))
    await client.wait_until_ready()
    return client


async def build_made_up_token(hub: Hub, counts: Mapping[str, int], **options: Any) -> ResumeToken:
    """A token of the cluster that a hub is of."""
    await wait_until(lambda: hub.cluster.cluster_id)
    client = await subscribe_client(hub)
    try:
        return parse_token(forge_token(client.subscription.token.decode(), counts, **options))
    finally:
        client.close()


def get_fetched_partitions(hub: Hub) -> set[TopicPartition]:
    """Those that are fetched."""
    return set(hub.shared_reads.fetcher.partition_fetches)


@pytest.mark.parametrize("beyond", [1, MAX_UNKNOWN_PARTITIONS])
async def test_partitions_that_only_a_token_knows_are_not_fetched(embedded, beyond):
    """They stayed in the shared reads while anybody looked at the topic: 12 % of a core for 60,000,
    long after their client had left."""
    embedded.create_topic("orders", 2)
    embedded.create_topic("payments", 1)
    async with running_hub(embedded) as hub:
        token = await build_made_up_token(hub, {"orders": 2 + beyond})
        client = await subscribe_client(
            hub, View(("orders", "payments"), Filters(), "value", "error"), token=token
        )
        assert get_fetched_partitions(hub) == {
            *(TopicPartition("orders", p) for p in range(2)), TopicPartition("payments", 0)
        }  # fmt: skip
        assert len(client.subscription.private_positions) == 2 + beyond
        assert len(client.subscription.channel.tail.logs) == 3


async def test_one_partition_more_is_refused(embedded: EmbeddedKafka):
    embedded.create_topic("orders", 2)
    async with running_hub(embedded) as hub:
        token = await build_made_up_token(hub, {"orders": 2 + MAX_UNKNOWN_PARTITIONS + 1})
        with pytest.raises(TokenForeign, match="67 partitions of orders, which has 2"):
            await subscribe_client(hub, token=token)
        assert len(get_fetched_partitions(hub)) == 2


async def test_many_partitions_of_a_topic_that_nobody_knows_are_to_come_again(embedded):
    """The token may be good: refused, an EventSource would lose its place."""
    embedded.create_topic("orders", 1)
    async with running_hub(embedded) as hub:
        token = await build_made_up_token(hub, {"later": MAX_UNKNOWN_PARTITIONS + 1})
        with pytest.raises(BrokerUnavailable, match="how many partitions later has; try again"):
            await subscribe_client(hub, View(("later",), Filters(), "value", "error"), token=token)


async def test_all_who_come_while_metadata_is_asked_for_wait_for_it():
    """Of the clients of a drained replica, only the first one was not refused."""
    count, listen, error = 1, lambda listener: lambda: None, BrokerUnavailable("it is away")

    async def refresh(reason: str) -> None:
        nonlocal count
        await asyncio.sleep(0)
        if error is not None:
            raise error
        count = 100

    cluster: Any = SimpleNamespace(
        metadata=SimpleNamespace(add_listener=listen, refresh=refresh, is_doubtful=lambda _: False),
        get_topic=lambda name: SimpleNamespace(partitions=range(count)),
    )
    no_topics: Any = None
    topics: Any = {"orders": SimpleNamespace(partition_count=99)}
    verifier = TokenVerifier(cluster, no_topics, Tokens())
    with pytest.raises(BrokerUnavailable, match="how many partitions orders has; try again"):
        await verifier._check_partition_counts(topics)
    error = None
    verifier = TokenVerifier(cluster, no_topics, Tokens())
    await asyncio.gather(*(verifier._check_partition_counts(topics) for _ in range(5)))
    await verifier.close()


async def test_many_partitions_of_a_topic_that_was_created_again_are_not_refused():
    """The token was of the new topic. It was refused for good, as only one broker had named the new
    topic yet."""
    with EmbeddedKafka({"orders": 1}, nodes=3) as kafka:
        config = Settings.model_validate(build_config(kafka.bootstrap, ["orders"]))
        async with open_cluster(kafka.bootstrap, "orders", metadata_max_age=3600.0) as cluster:
            hub = Hub(cluster, config)
            await hub.start()
            token = await build_made_up_token(hub, {"orders": MAX_UNKNOWN_PARTITIONS + 2})
            kafka.delete_topic("orders")
            kafka.create_topic("orders", MAX_UNKNOWN_PARTITIONS + 2)
            # As long as brokers do not agree, it is to come again; it is not refused.
            with suppress(BrokerUnavailable):
                (await subscribe_client(hub, token=token)).close()
            await wait_until(lambda: not cluster.metadata.is_doubtful("orders"))
            (await subscribe_client(hub, token=token)).close()
            await hub.close()


async def test_tokens_that_name_too_much_do_not_keep_the_brokers_busy(embedded: EmbeddedKafka):
    embedded.create_topic("orders", 1)
    async with running_hub(embedded) as hub:
        token = await build_made_up_token(hub, {"orders": 5_000})
        asked = hub.cluster.request_counts["Metadata"]
        for _ in range(200):
            with pytest.raises(TokenForeign):
                await subscribe_client(hub, token=token)
        assert hub.cluster.request_counts["Metadata"] - asked < 20


async def test_a_topic_that_is_known_only_later_is_resumed_where_the_token_stood(embedded):
    """Partitions that the token does not speak of begin with their first record, the others where
    it stood, and nobody reads what was there before."""
    embedded.create_topic("orders", 1)
    later = View(("later",), Filters(), "value", "error")
    async with running_hub(embedded) as hub:
        token = await build_made_up_token(hub, {"later": 1}, offset=2)
        client = await subscribe_client(hub, later, token=token)
        assert get_fetched_partitions(hub) == {TopicPartition("orders", 0)}
        first = client.begin()
        assert b'"pending":[{"topic":"later","partition":0}]' in first
        embedded.create_topic("later", 2)
        for p in range(2):
            records = [b"%d.%d" % (p, n) for n in range(4)]
            await produce_records(
                embedded.bootstrap, "later", [RecordToSend(each, partition=p) for each in records]
            )
        got, stream = b"", client.pull()
        async with asyncio.timeout(30):
            while not all(each in got for each in (b"0.2", b"0.3", b"1.0", b"1.3")):
                got += await anext(stream)
        assert b"0.1" not in got and b"0.0" not in got
        client.close()


# how far back


async def test_what_the_gateway_heard_itself_is_recent_and_kafka_is_not_asked(embedded):
    embedded.create_topic("orders", 1)
    async with running_hub(embedded) as hub:
        client = await subscribe_client(hub)
        log = hub.shared_reads.by_partition[TopicPartition("orders", 0)].log
        await wait_until(lambda: log.next_offset == 0)
        client.begin()
        position = client.subscription.token.decode()
        await produce_records(embedded.bootstrap, "orders", [b"1", b"2"])
        await wait_until(lambda: log.next_offset == 2)
        asked = hub.cluster.request_counts["ListOffsets"]
        again = await subscribe_client(hub, token=parse_token(position), max_age=0.0)
        assert hub.cluster.request_counts["ListOffsets"] == asked
        assert again.subscription.private_positions[TopicPartition("orders", 0)].offset == 0
        client.close()


async def test_kafka_is_asked_once_for_all_who_come_back_from_before_that(embedded: EmbeddedKafka):
    embedded.create_topic("orders", 3)
    await produce_records(
        embedded.bootstrap, "orders", [RecordToSend(b"x", partition=p) for p in range(3)]
    )
    async with running_hub(embedded) as hub:
        token = await build_made_up_token(hub, {"orders": 3})
        asked = hub.cluster.request_counts["ListOffsets"]
        tried = [subscribe_client(hub, token=token, max_age=0.0) for _ in range(50)]
        refused = await asyncio.gather(*tried, return_exceptions=True)
        assert {type(each) for each in refused} == {TokenTooOld}
        assert hub.cluster.request_counts["ListOffsets"] - asked <= 2  # and where logs end


@pytest.mark.parametrize(
    "claim",
    [{"offset": 10**9}, {"offset": 63}],
    ids=["beyond the end, so that it is cut back", "pending since 1970"],
)
async def test_a_place_that_leads_back_leads_no_further_than_the_route(embedded, claim):
    """What was found out about a place after the connect was believed, however far back."""
    embedded.create_topic("orders", 1)
    await produce_records(embedded.bootstrap, "orders", [b"old"] * 5)
    async with running_hub(embedded) as hub:
        width = 6 if claim["offset"] > 63 else 1
        token = await build_made_up_token(hub, {"orders": 1}, width=width, issued_at=0, **claim)
        client = await subscribe_client(hub, token=token, max_age=0.0)
        got, stream = b"", client.pull()
        await produce_records(embedded.bootstrap, "orders", [b"new"])
        async with asyncio.timeout(30):
            while b"new" not in got:
                got += await anext(stream)
        assert b"data: old" not in got
        client.close()


async def test_what_is_found_out_later_is_read_no_further_back_than_the_route(embedded):
    embedded.create_topic("orders", 1)
    await produce_records(embedded.bootstrap, "orders", [b"old"] * 5)
    async with running_hub(embedded) as hub:
        client = await subscribe_client(hub)
        sent = parse_token(client.subscription.token.decode())
        for token, start in ((replace(sent, max_age=0.0), 5), (sent, 2), (None, 2)):
            assert start == await hub.read_services.token_verifier.limit_start(
                token, client.subscription.channel.tail, TopicPartition("orders", 0), 2
            )
        client.close()
