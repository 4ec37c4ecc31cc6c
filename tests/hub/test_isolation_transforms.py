"""Records are shown as their topic is configured now, whoever read them before that."""

from __future__ import annotations

import pytest
from support.reading import cluster
from support.records import Sent, produce
from support.until import until

from gateway.config import Topic
from gateway.core.log.position import Place
from gateway.core.log.record import Entry, Record, TopicPartition
from gateway.hub.reads.archive import Archive
from gateway.hub.reads.feeds import Feeds
from gateway.kafka.embedded import EmbeddedKafka

TP = TopicPartition("orders", 0)
RECORD = Sent(b'{"owner": "ada", "tenant": "bob"}', b"key")


class Configured:
    """The settings of a topic, which are changed as by a reload."""

    def __init__(self) -> None:
        self.key_from("owner")

    def key_from(self, field: str) -> None:
        transforms = [{"extract-key": f"${{message.value.{field}}}"}]
        self._settings = Topic.model_validate({"name": "orders", "transforms": transforms})

    def remove_transforms(self) -> None:
        self._settings = Topic(name="orders")

    def __call__(self, topic: str) -> Topic:
        return self._settings


def keys(entries: list[Entry]) -> list[bytes | None]:
    return [entry.key for entry in entries if isinstance(entry, Record)]


@pytest.fixture
async def orders(embedded: EmbeddedKafka) -> EmbeddedKafka:
    embedded.create_topic("orders")
    await produce(embedded.bootstrap, "orders", [RECORD])
    return embedded


async def test_what_is_held_of_a_private_read_is_not_used_for_other_transforms(
    orders: EmbeddedKafka,
):
    """It was found by its log and leader alone, and kept the keys of the transforms before."""
    topic = Configured()
    async with cluster(orders.bootstrap, "orders") as kafkas:
        archive = Archive(kafkas, topic)
        try:
            found = [keys(list(await archive.read(TP, Place(0, 0)))) for _ in range(2)]
            topic.key_from("tenant")
            found.append(keys(list(await archive.read(TP, Place(0, 0)))))
            topic.remove_transforms()
            found.append(keys(list(await archive.read(TP, Place(0, 0)))))
        finally:
            await archive.close()
    assert found == [[b"ada"], [b"ada"], [b"bob"], [b"key"]]
    assert archive.asked["orders", "held"] == 1


async def test_a_topic_that_is_opened_again_goes_by_its_transforms_of_then(
    embedded: EmbeddedKafka,
):
    """Those with which it had been opened first were applied for as long as the process lived."""
    embedded.create_topic("orders")
    topic = Configured()
    found: list[list[bytes | None]] = []
    async with cluster(embedded.bootstrap, "orders") as kafkas:
        feeds, known = Feeds(kafkas, topic), kafkas.topic("orders")
        assert known is not None
        try:
            for change in (None, lambda: topic.key_from("tenant"), topic.remove_transforms):
                if change is not None:
                    feeds.close_topic("orders")
                    change()
                    kafkas.metadata.watch("orders", known)
                (feed,) = feeds.open("orders")
                await until(lambda feed=feed: feed.log.next is not None, "where it begins")
                start = feed.log.next
                await produce(embedded.bootstrap, "orders", [RECORD])
                await until(lambda feed=feed, start=start: feed.log.next > start, "the record")
                found.append(keys(list(feed.log.read(start))))
        finally:
            await feeds.close()
    assert found == [[b"ada"], [b"bob"], [b"key"]]
