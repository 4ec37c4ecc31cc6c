from __future__ import annotations

import asyncio

import pytest
from support.fake_broker import FakeBroker
from support.proxy import Api, KafkaProxy
from support.reading import cluster, fetched, wants
from support.records import produce
from support.until import until

from gateway.config.sections.kafka import Kafka
from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable, UnknownTopic
from gateway.kafka.client.cluster import Cluster, ClusterSettings, address
from gateway.kafka.client.connections import Role
from gateway.kafka.client.metadata_changes import Change
from gateway.kafka.client.offsets import LATEST, Offset

NOT_LEADER = 6


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
    assert address(server) == expected


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
    made = ClusterSettings.of(kafka)
    assert tuple(made.servers) == ("one:9092", "two:9093")
    assert (made.client_id, made.rack, made.request_timeout) == ("gateway", "a", 3.0)
    assert (made.metadata_max_age, made.reconnect) == (1.0, (0.01, 2.0))
    assert ClusterSettings.of(kafka, ["mock:1"]).servers == ["mock:1"]


async def test_starting_without_kafka_returns_at_once_and_says_how_it_stands():
    async with FakeBroker() as gone:
        server = f"127.0.0.1:{gone.address[1]}"
    async with Cluster(ClusterSettings([server])) as away:
        assert (away.reachable, away.error) == (False, None)
        await until(lambda: away.error)
        assert isinstance(away.error, BrokerUnavailable)
        assert not away.reachable


async def test_kafka_that_comes_later_is_found(kafka, topic):
    """Behind a proxy that refuses at first."""
    name = topic()
    async with KafkaProxy.around(kafka.servers) as proxy:
        for broker in proxy.brokers:
            await broker.refuse()
        async with Cluster(ClusterSettings(proxy.bootstrap.split(","))) as late:
            late.metadata.watch(name)
            await until(lambda: late.error)
            await proxy.restore()
            await until(lambda: late.leader(TopicPartition(name, 0)))
            assert late.reachable


async def test_a_broker_that_is_away_for_a_while_is_not_hammered(kafka):
    async with KafkaProxy.around(kafka.servers) as proxy:
        servers = proxy.bootstrap.split(",")
        async with Cluster(ClusterSettings(servers, metadata_max_age=0.1)) as here:
            await until(lambda: here.reachable)
            for broker in proxy.brokers:
                await broker.hang_up()
            await until(lambda: not here.reachable)
            asked = here.requests.total()
            await asyncio.sleep(2)  # the span that is counted over
            connects = proxy.connects()
            assert here.requests.total() - asked <= 20
            assert connects <= 60
            await proxy.restore()
            await until(lambda: here.reachable)


async def test_new_partitions_and_deleted_topics_are_noticed(kafka, topic):
    name = topic(partitions=1)
    heard: list[Change] = []
    async with cluster(kafka.bootstrap, name, metadata_max_age=0.1) as kafkas:
        kafkas.metadata.listen(heard.append)
        await asyncio.to_thread(grow, kafka, name, 3)
        await until(lambda: any(change.added == (1, 2) for change in heard))
        await asyncio.to_thread(kafka.admin.delete_topic, name)
        await until(lambda: any(change.deleted for change in heard))
        await asyncio.to_thread(kafka.admin.create_topic, name)
        await until(lambda: any(change.recreated for change in heard))


def grow(kafka, name: str, partitions: int) -> None:
    from confluent_kafka.admin import NewPartitions

    for future in kafka.admin.client.create_partitions([NewPartitions(name, partitions)]).values():
        future.result(10)


async def test_unknown_topics_are_unknown_and_not_created(kafka):
    async with cluster(kafka.bootstrap) as kafkas:
        for _ in range(2):
            with pytest.raises(UnknownTopic):
                await kafkas.describe("nobody-made-this")
        with pytest.raises(UnknownTopic):
            await kafkas.describe("not a valid name")
    assert not await asyncio.to_thread(kafka.admin.exists, "nobody-made-this")


async def test_an_unavailable_partition_is_told_by_code_and_found_after_a_refresh(embedded):
    embedded.create_topic("orders")
    await produce(embedded.bootstrap, "orders", [b"a"])
    tp = TopicPartition("orders", 0)
    async with cluster(embedded.bootstrap, "orders") as kafkas:
        embedded.fail(Api.FETCH, NOT_LEADER)
        embedded.fail(Api.LIST_OFFSETS, NOT_LEADER)
        (answer,) = (await fetched(kafkas, wants(kafkas, "orders"))).values()
        assert answer.error_code == NOT_LEADER
        assert (await kafkas.list_offsets({tp: LATEST}))[tp] == NOT_LEADER
        await kafkas.metadata.refresh("not leader")
        (answer,) = (await fetched(kafkas, wants(kafkas, "orders"))).values()
        assert answer.error_code == 0
        assert isinstance((await kafkas.list_offsets({tp: LATEST}))[tp], Offset)


async def test_requests_are_counted_by_name(kafka, topic):
    name = topic()
    async with cluster(kafka.bootstrap, name) as kafkas:
        await fetched(kafkas, wants(kafkas, name))
        await kafkas.list_offsets({TopicPartition(name, 0): LATEST})
        await kafkas.metadata.refresh("test")
        assert kafkas.requests["Fetch"] == kafkas.requests["ListOffsets"] == 1
        assert kafkas.requests["Metadata"] >= 1


async def test_closing_leaves_no_task_and_no_connection(kafka, topic):
    name = topic()
    before = asyncio.all_tasks()
    async with KafkaProxy.around(kafka.servers) as proxy:
        async with cluster(proxy.bootstrap.split(","), name) as kafkas:
            waiting = asyncio.create_task(fetched(kafkas, wants(kafkas, name), max_wait=20.0))
            await until(lambda: kafkas.requests["Fetch"])
        with pytest.raises(BrokerUnavailable):
            await waiting
        await until(lambda: not any(broker.open_connections for broker in proxy.brokers))
    await until(lambda: asyncio.all_tasks() == before)


async def followed(kafkas: Cluster, topic: str, node: int) -> int:
    """How many partitions that `node` does not lead answer a fetch now."""
    parts: dict[int, dict] = {}
    for tp, want in wants(kafkas, topic).items():
        leader = kafkas.leader(tp)
        if leader is not None and leader[0] != node:
            parts.setdefault(leader[0], {})[tp] = want
    answered = 0
    for other, part in parts.items():
        answers = await kafkas.fetch(other, Role.TAIL, part, max_wait=0.01)
        answered += sum(answer.error_code == 0 for answer in answers.values())
    return answered


async def test_a_frozen_broker_holds_up_nothing_that_others_lead(kafka3):
    """SIGSTOP: the connection stays open and nobody answers on it."""
    assert kafka3.local is not None
    assignment = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    name = await asyncio.to_thread(lambda: kafka3.topic(assignment=assignment, replication=3))
    await produce(kafka3.bootstrap, name, [b"%d" % number for number in range(30)])
    options = {"request_timeout": 2.0, "metadata_hedge": 0.5, "metadata_max_age": 0.5}
    async with cluster(kafka3.bootstrap, name, **options) as kafkas:
        await fetched(kafkas, wants(kafkas, name))
        await until(lambda: len(kafkas.metadata.brokers) == 3)
        leaders = {tp.partition: kafkas.leader(tp) for tp in wants(kafkas, name)}
        assert {leader[0] for leader in leaders.values() if leader} == {1, 2, 3}
        kafka3.local.node(1).freeze()
        loop = asyncio.get_running_loop()
        longest, began = 0.0, loop.time()
        tp = TopicPartition(name, 0)
        while (leader := kafkas.leader(tp)) is None or leader[0] == 1:
            assert loop.time() - began < 60, "nobody took over"
            at = loop.time()
            assert await followed(kafkas, name, 1) == 2
            longest = max(longest, loop.time() - at)
            await asyncio.sleep(0.02)
        assert longest < 10
        # a new leader may hear what is committed with its followers' next fetch only
        asked = {tp: wants(kafkas, name)[tp]}
        (answer,) = (await fetched(kafkas, asked, max_wait=30.0)).values()
        assert answer.error_code == 0 and answer.records
        ends = await kafkas.list_offsets(dict.fromkeys(wants(kafkas, name), LATEST))
        assert all(isinstance(end, Offset) for end in ends.values()), ends
