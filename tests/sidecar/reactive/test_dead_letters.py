"""Dead letters on their way, to a double of Kafka that says what it is told to."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.core.delivery.batch import Dead
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import BrokerUnavailable, KafkaError, PartitionFailed, UnknownTopic
from gateway.kafka.produce.partitioner import partition_of
from gateway.kafka.protocol.requests import PartitionAnswer, TopicAnswer
from gateway.sidecar.reactive.dead_letters import DeadLetters

MESSAGE_TOO_LARGE = 10


class Kafka:
    """A context's part that is used. most: bytes of headers that it takes. refuses: by value."""

    def __init__(self, partitions: int = 3, most: int = 1 << 20) -> None:
        self.producer = self
        self.partitions = partitions
        self.most = most
        self.refuses: dict[bytes, KafkaError] = {}
        self.has: list[tuple[TopicPartition, bytes | None, dict[str, bytes | None]]] = []

    async def topic(self, name: str) -> TopicAnswer:
        if not self.partitions:
            raise UnknownTopic(f"no broker knows the topic {name}", topic=name)
        one = PartitionAnswer(0, 0, (), (), 0)
        return TopicAnswer(name, None, 0, dict.fromkeys(range(self.partitions), one))

    def put(
        self, tp: TopicPartition, key: bytes | None, value: bytes | None, headers: Any, **_: Any
    ) -> asyncio.Future[int]:
        said: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if sum(len(text or b"") for _, text in headers) > self.most:
            why = PartitionFailed(
                "too large", topic=tp.topic, partition=tp.partition, code=MESSAGE_TOO_LARGE
            )
            said.set_exception(why)
        elif (error := self.refuses.get(value or b"")) is not None:
            said.set_exception(error)
        else:
            self.has.append((tp, value, dict(headers)))
            said.set_result(len(self.has))
        return said


def letters(kafka: Kafka) -> DeadLetters:
    context: Any = kafka
    return DeadLetters(context, "g", ".dlq", make=False)


def dead(value: bytes, partition: int = 0, *, why: str = "boom", key: bytes | None = b"k") -> Dead:
    return Dead(Record(TopicPartition("orders", partition), 7, 0, 5, key, value), why)


async def test_letters_keep_their_order_and_their_partitions_number():
    kafka = Kafka()
    several = [dead(str(n).encode(), n % 3) for n in range(9)]
    assert await letters(kafka).write(several) == ([], "")
    assert [value for _, value, _ in kafka.has] == [each.record.value for each in several]
    assert {(tp, int(value or b"") % 3) for tp, value, _ in kafka.has} == {
        (TopicPartition("orders.dlq", n), n) for n in range(3)
    }


async def test_where_there_are_fewer_partitions_the_key_decides():
    kafka = Kafka(partitions=2)
    await letters(kafka).write([dead(b"a", 5), dead(b"b", 5, key=None)])
    assert [tp.partition for tp, _, _ in kafka.has] == [partition_of(b"k", 2), 5 % 2]


async def test_those_that_kafka_does_not_take_are_left_and_said():
    kafka = Kafka()
    kafka.refuses[b"b"] = BrokerUnavailable("no leader")
    one, two, three = dead(b"a"), dead(b"b"), dead(b"c")
    left, why = await letters(kafka).write([one, two, three])
    assert left == [two]
    assert why == "dead letters of orders-0 cannot be written: no leader"
    assert [value for _, value, _ in kafka.has] == [b"a", b"c"]


async def test_without_their_topic_all_are_left():
    left, why = await letters(Kafka(partitions=0)).write([dead(b"a"), dead(b"b")])
    assert len(left) == 2
    assert "no broker knows the topic orders.dlq" in why


async def test_a_stack_trace_that_makes_a_record_too_large_is_left_out():
    kafka = Kafka(most=500)
    assert await letters(kafka).write([dead(b"a", why="x" * 5000)]) == ([], "")
    ((_, _, said),) = kafka.has
    assert said["StackTrace"] == b"(too long for the topic)"
    left, why = await letters(Kafka(most=10)).write([dead(b"a")])
    assert len(left) == 1 and "too large" in why
