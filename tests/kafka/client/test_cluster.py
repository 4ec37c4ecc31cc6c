from __future__ import annotations

import asyncio

import pytest
from support.fake_broker import FakeBroker
from support.kafka_proxy import ApiKey, KafkaProxy
from support.records import produce_records
from support.topic_reads import build_targets, fetch_from_leaders, open_cluster
from support.waiting import wait_until

from gateway.config.sections.kafka import Kafka
from gateway.core.error_code import ErrorCode
from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable, UnknownTopic
from gateway.kafka.client.cluster import Cluster, ClusterSettings, FetchLimits, parse_address
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.client.metadata_changes import TopicChange
from gateway.kafka.client.offsets import LATEST, OffsetAndTimestamp


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("kafka:9093", ("kafka", 9093)),
        ("kafka", ("kafka", 9092)),
        ("[::1]:9093", ("::1", 9093)),
        ("[::1]", ("::1", 9092)),
        ("::1", ("::1", 9092)),
    ],
)
def test_servers_are_host_and_port(server: str, expected: tuple[str, int]):
    assert parse_address(server) == expected


def test_settings_are_those_of_the_configuration():
    kafka = Kafka.model_validate(
        {
            "servers": ["one:9092", "two:9093"],
            "rack": "a",
            "requestTimeout": "3s",
            "metadataMaxAge": "1s",
            "reconnect": {"initial": "10ms", "max": "2s"},
        }
    )
    made = ClusterSettings.from_config(kafka)
    assert tuple(made.servers) == ("one:9092", "two:9093")
    assert (made.client_id, made.rack, made.request_timeout) == ("gateway", "a", 3.0)
    assert (made.metadata_max_age, made.reconnect) == (1.0, (0.01, 2.0))
    assert ClusterSettings.from_config(kafka, ["mock:1"]).servers == ["mock:1"]


async def test_starting_without_kafka_returns_at_once_and_says_how_it_stands():
    async with FakeBroker() as gone:
        server = f"127.0.0.1:{gone.address[1]}"
    async with Cluster(ClusterSettings([server])) as away:
        assert (away.is_reachable, away.error) == (False, None)
        await wait_until(lambda: away.error)
        assert isinstance(away.error, BrokerUnavailable)
        assert not away.is_reachable


async def test_requests_have_the_client_id_of_the_settings():
    async with FakeBroker() as broker:
        server = f"127.0.0.1:{broker.address[1]}"
        async with Cluster(ClusterSettings([server], client_id="gateway-shop")):
            await wait_until(lambda: broker.requests)
        assert {request.client_id for request in broker.requests} == {"gateway-shop"}


async def test_kafka_that_comes_later_is_found(kafka, topic):
    """Behind a proxy that refuses at first."""
    name = topic()
    async with KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy:
        for broker in proxy.brokers:
            await broker.refuse()
        async with Cluster(ClusterSettings(proxy.bootstrap.split(","))) as late:
            late.metadata.watch(name)
            await wait_until(lambda: late.error)
            await proxy.restore_all()
            await wait_until(lambda: late.leader_for_partition(TopicPartition(name, 0)))
            assert late.is_reachable


async def test_a_broker_that_is_away_for_a_while_is_not_hammered(kafka):
    async with KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy:
        servers = proxy.bootstrap.split(",")
        async with Cluster(ClusterSettings(servers, metadata_max_age=0.1)) as here:
            await wait_until(lambda: here.is_reachable)
            for broker in proxy.brokers:
                await broker.hang_up()
            await wait_until(lambda: not here.is_reachable)
            asked = here.request_counts.total()
            await asyncio.sleep(2)  # the span that is counted over
            connects = proxy.count_connects()
            assert here.request_counts.total() - asked <= 20
            assert connects <= 60
            await proxy.restore_all()
            await wait_until(lambda: here.is_reachable)


async def test_new_partitions_and_deleted_topics_are_noticed(kafka, topic):
    name = topic(partitions=1)
    heard: list[TopicChange] = []
    async with open_cluster(kafka.bootstrap, name, metadata_max_age=0.1) as kafkas:
        kafkas.metadata.add_listener(heard.append)
        await asyncio.to_thread(add_partitions, kafka, name, 3)
        await wait_until(lambda: any(change.added == (1, 2) for change in heard))
        await asyncio.to_thread(kafka.admin.delete_topic, name)
        await wait_until(lambda: any(change.is_deleted for change in heard))
        await asyncio.to_thread(kafka.admin.create_topic, name)
        await wait_until(lambda: any(change.is_recreated for change in heard))


def add_partitions(kafka, name: str, partitions: int) -> None:
    from confluent_kafka.admin import NewPartitions

    for future in kafka.admin.client.create_partitions([NewPartitions(name, partitions)]).values():
        future.result(10)


async def test_unknown_topics_are_unknown_and_not_created(kafka):
    async with open_cluster(kafka.bootstrap) as kafkas:
        for _ in range(2):
            with pytest.raises(UnknownTopic):
                await kafkas.describe_topic("nobody-made-this")
        with pytest.raises(UnknownTopic):
            await kafkas.describe_topic("not a valid name")
    assert not await asyncio.to_thread(kafka.admin.topic_exists, "nobody-made-this")


async def test_an_unavailable_partition_is_told_by_code_and_found_after_a_refresh(embedded):
    embedded.create_topic("orders")
    await produce_records(embedded.bootstrap, "orders", [b"a"])
    tp = TopicPartition("orders", 0)
    async with open_cluster(embedded.bootstrap, "orders") as kafkas:
        embedded.fail(ApiKey.FETCH, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        embedded.fail(ApiKey.LIST_OFFSETS, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        (answer,) = (await fetch_from_leaders(kafkas, build_targets(kafkas, "orders"))).values()
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await kafkas.list_offsets({tp: LATEST}))[tp] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await kafkas.metadata.refresh("not leader")
        (answer,) = (await fetch_from_leaders(kafkas, build_targets(kafkas, "orders"))).values()
        assert answer.error_code == 0
        assert isinstance((await kafkas.list_offsets({tp: LATEST}))[tp], OffsetAndTimestamp)


async def test_requests_are_counted_by_name(kafka, topic):
    name = topic()
    async with open_cluster(kafka.bootstrap, name) as kafkas:
        await fetch_from_leaders(kafkas, build_targets(kafkas, name))
        await kafkas.list_offsets({TopicPartition(name, 0): LATEST})
        await kafkas.metadata.refresh("test")
        assert kafkas.request_counts["Fetch"] == kafkas.request_counts["ListOffsets"] == 1
        assert kafkas.request_counts["Metadata"] >= 1


async def test_closing_leaves_no_task_and_no_connection(kafka, topic):
    name = topic()
    before = asyncio.all_tasks()
    async with KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy:
        async with open_cluster(proxy.bootstrap.split(","), name) as kafkas:
            waiting = asyncio.create_task(
                fetch_from_leaders(kafkas, build_targets(kafkas, name), max_wait=20.0)
            )
            await wait_until(lambda: kafkas.request_counts["Fetch"])
        with pytest.raises(BrokerUnavailable):
            await waiting
        await wait_until(lambda: not any(broker.connection_count for broker in proxy.brokers))
    await wait_until(lambda: asyncio.all_tasks() == before)


async def count_followed(kafkas: Cluster, topic: str, node: int) -> int:
    """How many partitions that `node` does not lead answer a fetch now."""
    parts: dict[int, dict] = {}
    for tp, want in build_targets(kafkas, topic).items():
        leader = kafkas.leader_for_partition(tp)
        if leader is not None and leader[0] != node:
            parts.setdefault(leader[0], {})[tp] = want
    answered = 0
    for other, part in parts.items():
        answers = await kafkas.fetch(other, ConnectionRole.TAIL, part, FetchLimits(max_wait=0.01))
        answered += sum(answer.error_code == 0 for answer in answers.values())
    return answered


async def test_a_frozen_broker_holds_up_nothing_that_others_lead(kafka3):
    """SIGSTOP: the connection stays open and nobody answers on it."""
    assert kafka3.local_kafka is not None
    assignment = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    name = await asyncio.to_thread(
        lambda: kafka3.create_unique_topic(assignment=assignment, replication=3)
    )
    await produce_records(kafka3.bootstrap, name, [b"%d" % number for number in range(30)])
    options = {"request_timeout": 2.0, "metadata_hedge": 0.5, "metadata_max_age": 0.5}
    async with open_cluster(kafka3.bootstrap, name, **options) as kafkas:
        await fetch_from_leaders(kafkas, build_targets(kafkas, name))
        await wait_until(lambda: len(kafkas.metadata.brokers) == 3)
        leaders = {
            tp.partition: kafkas.leader_for_partition(tp) for tp in build_targets(kafkas, name)
        }
        assert {leader[0] for leader in leaders.values() if leader} == {1, 2, 3}
        kafka3.local_kafka.get_node(1).freeze()
        loop = asyncio.get_running_loop()
        longest, began = 0.0, loop.time()
        tp = TopicPartition(name, 0)
        while (leader := kafkas.leader_for_partition(tp)) is None or leader[0] == 1:
            assert loop.time() - began < 60, "nobody took over"
            at = loop.time()
            assert await count_followed(kafkas, name, 1) == 2
            longest = max(longest, loop.time() - at)
            await asyncio.sleep(0.02)
        assert longest < 10
        # a new leader may hear what is committed with its followers' next fetch only
        asked = {tp: build_targets(kafkas, name)[tp]}
        (answer,) = (await fetch_from_leaders(kafkas, asked, max_wait=30.0)).values()
        assert answer.error_code == 0 and answer.records
        ends = await kafkas.list_offsets(dict.fromkeys(build_targets(kafkas, name), LATEST))
        assert all(isinstance(end, OffsetAndTimestamp) for end in ends.values()), ends
