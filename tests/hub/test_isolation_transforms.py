"""Records are shown as their topic is configured now, whoever read them before that."""

from __future__ import annotations

import pytest
from support.records import RecordToSend, produce_records
from support.topic_reads import open_cluster
from support.waiting import wait_until

from gateway.config import Topic
from gateway.core.log.record import Entry, PartitionPosition, Record, TopicPartition
from gateway.hub.reads.backfill_reader import BackfillReader
from gateway.hub.reads.shared_reads import SharedReads
from gateway.kafka.embedded import EmbeddedKafka

TP = TopicPartition("orders", 0)
RECORD = RecordToSend(b'{"owner": "ada", "tenant": "bob"}', b"key")


class TopicSettings:
    """The settings of a topic, which are changed as by a reload."""

    def __init__(self) -> None:
        self.set_key_field("owner")

    def set_key_field(self, field: str) -> None:
        transforms = [{"extract-key": f"${{message.value.{field}}}"}]
        self._settings = Topic.model_validate({"name": "orders", "transforms": transforms})

    def remove_transforms(self) -> None:
        self._settings = Topic(name="orders")

    def __call__(self, topic: str) -> Topic:
        return self._settings


def get_keys(entries: list[Entry]) -> list[bytes | None]:
    return [entry.key for entry in entries if isinstance(entry, Record)]


@pytest.fixture
async def orders(embedded: EmbeddedKafka) -> EmbeddedKafka:
    embedded.create_topic("orders")
    await produce_records(embedded.bootstrap, "orders", [RECORD])
    return embedded


async def test_what_is_held_of_a_private_read_is_not_used_for_other_transforms(orders):
    """It was found by its log and leader alone, and kept the keys of the transforms before."""
    topic = TopicSettings()
    async with open_cluster(orders.bootstrap, "orders") as kafkas:
        archive = BackfillReader(kafkas, topic)
        try:
            found = [
                get_keys(list(await archive.read(TP, PartitionPosition(0, 0)))) for _ in range(2)
            ]
            topic.set_key_field("tenant")
            found.append(get_keys(list(await archive.read(TP, PartitionPosition(0, 0)))))
            topic.remove_transforms()
            found.append(get_keys(list(await archive.read(TP, PartitionPosition(0, 0)))))
        finally:
            await archive.close()
    assert found == [[b"ada"], [b"ada"], [b"bob"], [b"key"]]
    assert archive.read_counts["orders", "held"] == 1


async def test_a_topic_that_is_opened_again_goes_by_its_transforms_of_then(embedded):
    """Those with which it had been opened first were applied for as long as the process lived."""
    embedded.create_topic("orders")
    topic = TopicSettings()
    found: list[list[bytes | None]] = []
    async with open_cluster(embedded.bootstrap, "orders") as kafkas:
        feeds, known = SharedReads(kafkas, topic), kafkas.get_topic("orders")
        assert known is not None
        try:
            for change in (None, lambda: topic.set_key_field("tenant"), topic.remove_transforms):
                if change is not None:
                    feeds.close_topic("orders")
                    change()
                    kafkas.metadata.watch("orders", known)
                (feed,) = feeds.open_topic("orders")
                await wait_until(
                    lambda feed=feed: feed.log.next_offset is not None, "where it begins"
                )
                start = feed.log.next_offset
                await produce_records(embedded.bootstrap, "orders", [RECORD])
                await wait_until(
                    lambda feed=feed, start=start: feed.log.next_offset > start, "the record"
                )
                found.append(get_keys(list(feed.log.iter_entries(start))))
        finally:
            await feeds.close()
    assert found == [[b"ada"], [b"bob"], [b"key"]]
