"""A real broker, started and put through what the other tests rely on."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, TopicPartition
from support.records import Sent, produce, transaction


async def read(bootstrap, topic, partition=0, *, count, isolation="read_committed", **options):
    """The values of the first `count` records, from the log start."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation, **options)
    async with consumer:
        consumer.assign([TopicPartition(topic, partition)])
        await consumer.seek_to_beginning()
        async with asyncio.timeout(30):
            return [(await consumer.getone()).value for _ in range(count)]


async def test_gives_back_what_was_produced(kafka, topic):
    name = topic(partitions=3)
    sent = await produce(kafka.bootstrap, name, [Sent(b"a", partition=1), Sent(b"b", partition=1)])
    assert sent == [(1, 0), (1, 1)]
    assert await read(kafka.bootstrap, name, 1, count=2) == [b"a", b"b"]


async def test_an_aborted_transaction_is_never_read(kafka, topic):
    name = topic()
    async with transaction(kafka.bootstrap) as open_one:
        await open_one.write(name, [b"aborted"])
        await open_one.abort()
    async with transaction(kafka.bootstrap) as open_one:
        await open_one.write(name, [b"committed"])
        await open_one.commit()
    assert await read(kafka.bootstrap, name, count=1) == [b"committed"]
