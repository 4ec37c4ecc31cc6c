from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from support.kafka_proxy import ApiKey
from support.records import RecordToSend, open_transaction, produce_records
from support.topic_reads import open_cluster
from support.waiting import wait_until

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import TopicPartition
from gateway.core.produce.idempotency import (
    IdempotencyKey,
    IdempotencyWindow,
    RecordLocation,
    hash_record,
)
from gateway.hub.writes.idempotency_log import IdempotencyLog
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.embedded import EmbeddedKafka

T = TopicPartition("t", 0)


@asynccontextmanager
async def running_log(
    bootstrap: Sequence[str], tp: TopicPartition = T, max_keys: int = 100_000
) -> AsyncIterator[tuple[Cluster, IdempotencyLog, IdempotencyWindow[object]]]:
    once: IdempotencyWindow[object] = IdempotencyWindow(max_keys)
    async with (
        open_cluster(bootstrap, tp.topic, metadata_max_age=0.1) as kafkas,
        asyncio.timeout(60),
    ):
        yield kafkas, IdempotencyLog(kafkas, tp, once, 600.0), once


def build_keyed_record(text: str, value: bytes = b"v", scope: str | None = None) -> RecordToSend:
    own = [("idempotency-key", text.encode())]
    own += [("idempotency-scope", scope.encode())] if scope is not None else []
    return RecordToSend(value, b"k", 0, headers=(("h", b"x"), *own))


def lookup_written(
    once: IdempotencyWindow[object], text: str, scope: str = "", topic: str = "t"
) -> RecordLocation | None:
    return once.lookup_written(
        IdempotencyKey(topic, scope, text), hash_record(b"k", b"v", [("h", b"x")]), 0.0
    )


@pytest.fixture
def one(embedded: EmbeddedKafka) -> EmbeddedKafka:
    embedded.create_topic("t")
    return embedded


async def test_the_keys_in_the_log_are_known_with_their_scope_and_record(one):
    await produce_records(
        one.bootstrap,
        "t",
        [build_keyed_record("1"), RecordToSend(b"plain"), build_keyed_record("2", scope="/a")],
    )
    async with running_log(one.bootstrap) as (_, log, once):
        await log.catch_up()
        assert lookup_written(once, "1") == RecordLocation(0, 0)
        assert lookup_written(once, "2", "/a") == RecordLocation(0, 2)
        assert lookup_written(once, "2") is None
        assert len(once) == 2


async def test_an_empty_log_has_none(one):
    async with running_log(one.bootstrap) as (kafkas, log, once):
        await log.catch_up()
        assert (len(once), kafkas.request_counts["Fetch"]) == (0, 0)


async def test_only_what_is_new_is_read_again(one):
    await produce_records(one.bootstrap, "t", [build_keyed_record("1")])
    async with running_log(one.bootstrap) as (kafkas, log, once):
        await log.catch_up()
        await produce_records(one.bootstrap, "t", [build_keyed_record("2")])
        fetches = kafkas.request_counts["Fetch"]
        await log.catch_up()
        assert (lookup_written(once, "2"), kafkas.request_counts["Fetch"]) == (
            RecordLocation(0, 1),
            fetches + 1,
        )


async def test_who_comes_during_a_reading_hears_of_what_was_written_before_he_came(one):
    async with running_log(one.bootstrap) as (kafkas, log, once):
        one.delay(1, 0.2)
        early = asyncio.create_task(log.catch_up())
        await wait_until(lambda: kafkas.request_counts["ListOffsets"])
        await produce_records(one.bootstrap, "t", [build_keyed_record("1")])
        await asyncio.gather(*(log.catch_up() for _ in range(5)))
        assert lookup_written(once, "1") == RecordLocation(0, 0)
        assert kafkas.request_counts["ListOffsets"] <= 5  # of three readings
        await early


async def test_a_log_whose_start_has_moved_on_is_read_from_there(one):
    async with running_log(one.bootstrap) as (_, log, once):
        await produce_records(one.bootstrap, "t", [build_keyed_record("0")])
        await log.catch_up()
        await produce_records(
            one.bootstrap, "t", [build_keyed_record(f"{number}") for number in range(1, 10)]
        )
        one.delete_records("t", {0: 8})
        await produce_records(one.bootstrap, "t", [build_keyed_record("10")])
        await log.catch_up()
        assert lookup_written(once, "10") == RecordLocation(0, 10)


async def test_what_cannot_be_read_for_a_while_is_read_then(one):
    await produce_records(one.bootstrap, "t", [build_keyed_record("1")])
    async with running_log(one.bootstrap) as (_, log, once):
        one.fail(
            ApiKey.LIST_OFFSETS, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER
        )
        one.fail(ApiKey.FETCH, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NETWORK_EXCEPTION)
        await log.catch_up()
        assert lookup_written(once, "1") == RecordLocation(0, 0)


async def test_a_topic_made_anew_is_read_from_its_beginning(one):
    await produce_records(one.bootstrap, "t", [build_keyed_record("old")])
    async with running_log(one.bootstrap) as (kafkas, log, once):
        await log.catch_up()
        before = kafkas.get_topic("t")
        one.delete_topic("t")
        one.create_topic("t")
        await produce_records(
            one.bootstrap, "t", [build_keyed_record("new"), build_keyed_record("more")]
        )
        await wait_until(lambda: (now := kafkas.get_topic("t")) and now.topic_id != before.topic_id)
        await log.catch_up()
        assert lookup_written(once, "new") == RecordLocation(0, 0)


async def test_a_dropped_key_is_found_by_a_short_read(kafka, topic):
    """All that was written in ten minutes was read for each repeat of such a key."""
    name = topic()
    tp = TopicPartition(name, 0)
    await produce_records(
        kafka.bootstrap, name, [build_keyed_record(f"{n}", bytes(2000)) for n in range(5000)]
    )
    async with running_log(kafka.bootstrap, tp, max_keys=10) as (kafkas, log, once):
        await log.catch_up()
        fetches = kafkas.request_counts["Fetch"]
        dropped, missing = (IdempotencyKey(name, "", text) for text in ("4005", "none"))
        await log.find_dropped(dropped)
        await log.find_dropped(missing)
        assert kafkas.request_counts["Fetch"] - fetches <= fetches / 4
        digest = hash_record(b"k", bytes(2000), [("h", b"x")])
        now = asyncio.get_running_loop().time()
        assert once.lookup_written(dropped, digest, now) == RecordLocation(0, 4005)


async def test_a_search_for_a_dropped_key_holds_up_no_other_key(one):
    """No other key could be written to the partition meanwhile, be it for a minute."""
    await produce_records(one.bootstrap, "t", [build_keyed_record(f"{n}") for n in range(100)])
    async with running_log(one.bootstrap, max_keys=10) as (kafkas, log, once):
        await log.catch_up()
        fetches = kafkas.request_counts["Fetch"]
        one.fail(ApiKey.FETCH, *[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 1000)
        search = asyncio.create_task(log.find_dropped(IdempotencyKey("t", "", "0")))
        await wait_until(lambda: kafkas.request_counts["Fetch"] > fetches)
        await log.catch_up()
        assert not search.done()
        one.forgive(ApiKey.FETCH)
        await search
        assert lookup_written(once, "0") == RecordLocation(0, 0)


async def test_an_open_transaction_hides_nothing(kafka, topic):
    name = topic()
    async with open_transaction(kafka.bootstrap) as holding:
        await holding.write_records(name, [b"open"])
        await produce_records(kafka.bootstrap, name, [build_keyed_record("1")])
        async with running_log(kafka.bootstrap, TopicPartition(name, 0)) as (_, log, once):
            await log.catch_up()
            assert lookup_written(once, "1", topic=name) == RecordLocation(0, 1)
