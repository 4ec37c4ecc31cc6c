"""The latest record of a key, on the embedded broker."""

from __future__ import annotations

import asyncio

import pytest
from support.brokers import embedded_kafka

from gateway.api.gateway import Gateway
from gateway.config import Settings
from gateway.errors import BrokerUnavailable, TableTooLarge, UnknownTopic
from gateway.hub.reads.documents import DocumentReader
from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"orders": 3, "many": 1})

TOPICS = [{"name": "orders"}, {"name": "many", "cache": {"bytes": "64KiB"}}]


def build_settings(kafka: EmbeddedKafka) -> Settings:
    servers = {"servers": list(kafka.bootstrap), "topics": TOPICS}
    return Settings.model_validate({"kafka": servers})


async def test_it_is_the_last_one_wherever_it_was_written(kafka: EmbeddedKafka):
    async with Gateway(build_settings(kafka)) as gateway:
        documents = gateway.hub.documents
        assert await documents.get_latest("orders", b"a") is None
        for partition in (0, 2, 1):
            await gateway.produce("orders", str(partition), key="a", partition=partition)
            await asyncio.sleep(0.002)  # their times are of whole milliseconds
        await gateway.produce("orders", "other", key="b")
        found = await documents.get_latest("orders", b"a")
        assert found is not None and found.value == b"1"
        await gateway.produce("orders", None, key="b")
        assert await documents.get_latest("orders", b"b") is None


async def test_a_topic_is_read_once_for_many_questions(kafka: EmbeddedKafka):
    async with Gateway(build_settings(kafka)) as gateway:
        await gateway.produce("orders", "1", key="c")
        await gateway.hub.documents.get_latest("orders", b"c")
        asked = gateway.hub.backfill_reader.read_counts.total()
        await asyncio.gather(
            *(gateway.hub.documents.get_latest("orders", b"c") for _ in range(100))
        )
        assert gateway.hub.backfill_reader.read_counts.total() == asked


async def test_what_cannot_be_had_is_told(kafka: EmbeddedKafka):
    async with Gateway(build_settings(kafka)) as gateway:
        with pytest.raises(UnknownTopic):
            await gateway.hub.documents.get_latest("nowhere", b"a")
        for n in range(32):
            await gateway.produce("many", bytes(4096), key=str(n))
        with pytest.raises(TableTooLarge, match=r"cache\.bytes"):
            await gateway.hub.documents.get_latest("many", b"1")


async def test_where_keys_are_placed_no_other_partition_is_waited_for():
    topics = [{"name": "placed", "partitioner": "murmur2"}, {"name": "orders"}]
    with EmbeddedKafka(topics={"placed": 2, "orders": 2}, fetch_version=11) as kafka:
        servers = {"servers": list(kafka.bootstrap), "topics": topics}
        made = Settings.model_validate({"kafka": servers})
        async with Gateway(made) as gateway:
            placed = await gateway.produce("placed", "1", key="a")
            await gateway.produce("orders", "1", key="a")
            for name in ("placed", "orders"):
                kafka.lead(name, 1 - placed.partition, None)
            found = await gateway.hub.documents.get_latest("placed", b"a")
            assert found is not None and found.value == b"1"
            hub = gateway.hub
            hasty = DocumentReader(
                hub.read_services, hub.key_partitions, hub.keep_open, timeout_s=0.5
            )
            with pytest.raises(BrokerUnavailable, match="try again"):
                await hasty.get_latest("orders", b"a")
