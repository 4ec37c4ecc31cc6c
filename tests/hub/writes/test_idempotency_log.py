from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from support.reading import cluster
from support.records import Sent, produce, transaction
from support.until import until

from gateway.core.log.record import TopicPartition
from gateway.core.produce.idempotency import Key, Once, Written, digest
from gateway.hub.writes import idempotency_log as seen
from gateway.hub.writes.idempotency_log import Seen
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.embedded import EmbeddedKafka

T = TopicPartition("t", 0)


@asynccontextmanager
async def seeing(
    bootstrap: Sequence[str], tp: TopicPartition = T
) -> AsyncIterator[tuple[Cluster, Seen, Once[object]]]:
    once: Once[object] = Once()
    async with cluster(bootstrap, tp.topic, metadata_max_age=0.1) as kafkas, asyncio.timeout(60):
        yield kafkas, Seen(kafkas, tp, once, 600.0), once


def keyed(text: str, value: bytes = b"v", scope: str | None = None) -> Sent:
    own = [("idempotency-key", text.encode())]
    own += [("idempotency-scope", scope.encode())] if scope is not None else []
    return Sent(value, b"k", 0, headers=(("h", b"x"), *own))


def known(once: Once[object], text: str, scope: str = "", topic: str = "t") -> Written | None:
    return once.known(Key(topic, scope, text), digest(b"k", b"v", [("h", b"x")]), 0.0)


@pytest.fixture
def one(embedded: EmbeddedKafka) -> EmbeddedKafka:
    embedded.create_topic("t")
    return embedded


async def test_the_keys_in_the_log_are_known_with_their_scope_and_record(one):
    await produce(one.bootstrap, "t", [keyed("1"), Sent(b"plain"), keyed("2", scope="/a")])
    async with seeing(one.bootstrap) as (_, log, once):
        await log.catch_up()
        assert known(once, "1") == Written(0, 0)
        assert known(once, "2", "/a") == Written(0, 2)
        assert known(once, "2") is None
        assert len(once) == 2


async def test_an_empty_log_has_none(one):
    async with seeing(one.bootstrap) as (kafkas, log, once):
        await log.catch_up()
        assert (len(once), kafkas.requests["Fetch"]) == (0, 0)


async def test_only_what_is_new_is_read_again(one):
    await produce(one.bootstrap, "t", [keyed("1")])
    async with seeing(one.bootstrap) as (kafkas, log, once):
        await log.catch_up()
        await produce(one.bootstrap, "t", [keyed("2")])
        fetches = kafkas.requests["Fetch"]
        await log.catch_up()
        assert (known(once, "2"), kafkas.requests["Fetch"]) == (Written(0, 1), fetches + 1)


async def test_who_comes_during_a_reading_hears_of_what_was_written_before_he_came(one):
    async with seeing(one.bootstrap) as (kafkas, log, once):
        one.delay(1, 0.2)
        early = asyncio.create_task(log.catch_up())
        await until(lambda: kafkas.requests["ListOffsets"])
        await produce(one.bootstrap, "t", [keyed("1")])
        await asyncio.gather(*(log.catch_up() for _ in range(5)))
        assert known(once, "1") == Written(0, 0)
        assert kafkas.requests["ListOffsets"] <= 5  # of three readings
        await early


async def test_a_log_whose_start_has_moved_on_is_read_from_there(one):
    async with seeing(one.bootstrap) as (_, log, once):
        await produce(one.bootstrap, "t", [keyed("0")])
        await log.catch_up()
        await produce(one.bootstrap, "t", [keyed(f"{number}") for number in range(1, 10)])
        one.delete_records("t", {0: 8})
        await produce(one.bootstrap, "t", [keyed("10")])
        await log.catch_up()
        assert known(once, "10") == Written(0, 10)


async def test_what_cannot_be_read_for_a_while_is_read_then(one, monkeypatch):
    monkeypatch.setattr(seen, "AGAIN", 0.01)
    await produce(one.bootstrap, "t", [keyed("1")])
    async with seeing(one.bootstrap) as (_, log, once):
        one.fail(2, 5, 6)
        one.fail(1, 6, 13)
        await log.catch_up()
        assert known(once, "1") == Written(0, 0)


async def test_a_topic_made_anew_is_read_from_its_beginning(one):
    await produce(one.bootstrap, "t", [keyed("old")])
    async with seeing(one.bootstrap) as (kafkas, log, once):
        await log.catch_up()
        before = kafkas.topic("t")
        one.delete_topic("t")
        one.create_topic("t")
        await produce(one.bootstrap, "t", [keyed("new"), keyed("more")])
        await until(lambda: (now := kafkas.topic("t")) and now.topic_id != before.topic_id)
        await log.catch_up()
        assert known(once, "new") == Written(0, 0)


async def test_an_open_transaction_hides_nothing(kafka, topic):
    name = topic()
    async with transaction(kafka.bootstrap) as holding:
        await holding.write(name, [b"open"])
        await produce(kafka.bootstrap, name, [keyed("1")])
        async with seeing(kafka.bootstrap, TopicPartition(name, 0)) as (_, log, once):
            await log.catch_up()
            assert known(once, "1", topic=name) == Written(0, 1)
