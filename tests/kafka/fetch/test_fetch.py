"""Fetching from a real broker, and from librdkafka's mock."""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

import pytest
from support.reading import cluster, entries, fetched, wants
from support.records import Sent, produce, transaction
from support.until import until

from gateway.core.log.record import Record, Skip, TopicPartition
from gateway.kafka.client.connections import Role
from gateway.kafka.fetch.batches import decode
from gateway.kafka.fetch.fetch import FetchSession

OUT_OF_RANGE, FENCED, UNKNOWN_EPOCH, UNKNOWN_ID, INCONSISTENT_ID = 1, 74, 75, 100, 103


def values(read: list) -> list[bytes | None]:
    return [entry.value for entry in read if isinstance(entry, Record)]


def codes(answers: dict) -> list[int]:
    return [answer.error_code for answer in answers.values()]


async def test_every_partition_is_read_from_its_first_record_to_its_last(kafka, topic):
    name = topic(partitions=12)
    sent = [Sent(b"%d" % number, b"k", number % 12) for number in range(600)]
    await produce(kafka.bootstrap, name, sent, linger_ms=5)
    async with cluster(kafka.bootstrap, name) as kafkas:
        for partition in range(12):
            read = await entries(kafkas, TopicPartition(name, partition), 0, 50)
            assert values(read) == [b"%d" % number for number in range(partition, 600, 12)]
            assert {entry.epoch for entry in read} == {0}


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_what_a_producer_compressed_is_read(kafka, topic, codec):
    name = topic()
    sent = [b"%d" % number * 40 for number in range(200)]
    await produce(kafka.bootstrap, name, sent, compression_type=codec, linger_ms=20)
    async with cluster(kafka.bootstrap, name) as kafkas:
        assert values(await entries(kafkas, TopicPartition(name, 0), 0, 200)) == sent


async def test_aborted_records_are_left_out_and_the_position_passes_them(kafka, topic):
    name = topic()
    await produce(kafka.bootstrap, name, [b"plain"])
    async with transaction(kafka.bootstrap) as aborted:
        await aborted.write(name, [b"no", b"no"])
    async with transaction(kafka.bootstrap) as committed:
        await committed.write(name, [b"yes"])
        await committed.commit()
    async with cluster(kafka.bootstrap, name) as kafkas:
        read = await entries(kafkas, TopicPartition(name, 0), 0, 6)
    assert values(read) == [b"plain", b"yes"]
    # Kafka answers the abort before its marker is in the log, which may come after b"yes".
    assert isinstance(read[-1], Skip)
    assert read[-1].next == 6


async def test_an_open_transaction_shows_as_the_last_stable_offset(kafka, topic):
    name = topic()
    await produce(kafka.bootstrap, name, [b"plain"])
    async with transaction(kafka.bootstrap) as open_one, cluster(kafka.bootstrap, name) as kafkas:
        await open_one.write(name, [b"held"])
        (answer,) = (await fetched(kafkas, wants(kafkas, name))).values()
        assert (answer.high_watermark, answer.last_stable_offset) == (2, 1)
        await open_one.commit()


async def test_a_session_tells_news_only(kafka, topic):
    name = topic(partitions=3)
    await produce(kafka.bootstrap, name, [Sent(b"a", partition=1)])
    async with cluster(kafka.bootstrap, name) as kafkas:
        session, asked = FetchSession(), wants(kafkas, name)
        first = await fetched(kafkas, asked, session=session)
        assert len(first) == 3
        tp = TopicPartition(name, 1)
        asked[tp] = asked[tp]._replace(offset=1)
        assert await fetched(kafkas, asked, session=session) == {}
        await produce(kafka.bootstrap, name, [Sent(b"b", partition=1)])
        assert (await fetched(kafkas, asked, session=session)).keys() == {tp}
        assert session.epoch == 3


async def test_a_broker_that_forgot_the_session_is_asked_in_full_at_once(kafka, topic):
    name = topic(partitions=2)
    async with cluster(kafka.bootstrap, name) as kafkas:
        session = FetchSession()
        await fetched(kafkas, wants(kafkas, name), session=session)
        session.id += 1
        assert codes(await fetched(kafkas, wants(kafkas, name), session=session)) == [0, 0]
        session.epoch += 7
        assert codes(await fetched(kafkas, wants(kafkas, name), session=session)) == [0, 0]


async def test_a_cancelled_fetch_leaves_a_session_that_still_works(kafka, topic):
    name = topic()
    async with cluster(kafka.bootstrap, name) as kafkas:
        session, asked = FetchSession(), wants(kafkas, name)
        await fetched(kafkas, asked, session=session)
        fetches = kafkas.requests["Fetch"]
        waiting = asyncio.create_task(fetched(kafkas, asked, session=session, max_wait=30.0))
        await until(lambda: kafkas.requests["Fetch"] > fetches)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert session.epoch == 0  # whether the broker counted that fetch is not known
        await produce(kafka.bootstrap, name, [b"a"])
        (answer,) = (await fetched(kafkas, asked, session=session)).values()
        assert answer.records


async def test_a_fetch_waits_for_records_and_not_longer(kafka, topic):
    name = topic()
    async with cluster(kafka.bootstrap, name) as kafkas:
        waiting = asyncio.create_task(fetched(kafkas, wants(kafkas, name), max_wait=25.0))
        began = time.monotonic()
        await until(lambda: kafkas.requests["Fetch"])
        await produce(kafka.bootstrap, name, [b"a"])
        (answer,) = (await waiting).values()
        assert answer.records
        assert time.monotonic() - began < 20


async def test_offsets_out_of_range_are_told_for_their_partition_alone(kafka, topic):
    name = topic(partitions=2)
    sent = [Sent(b"%d" % number, partition=number % 2) for number in range(10)]
    await produce(kafka.bootstrap, name, sent)
    await asyncio.to_thread(kafka.admin.delete_records, name, {0: 3})
    async with cluster(kafka.bootstrap, name) as kafkas:
        below, fine = (await fetched(kafkas, wants(kafkas, name))).values()
        assert (below.error_code, fine.error_code) == (OUT_OF_RANGE, 0)
        at = await fetched(kafkas, wants(kafkas, name, {0: 3, 1: 99}))
        assert [answer.error_code for answer in at.values()] == [0, OUT_OF_RANGE]
        assert at[TopicPartition(name, 0)].log_start_offset == 3


async def test_who_knows_another_leader_epoch_is_told(kafka, topic):
    name = topic()
    async with cluster(kafka.bootstrap, name) as kafkas:
        (answer,) = (await fetched(kafkas, wants(kafkas, name, leader_epoch=9))).values()
        assert answer.error_code == UNKNOWN_EPOCH


async def test_a_log_that_ends_before_our_epoch_did_diverges(kafka, topic):
    """A log truncated under us is told by the fetch itself: KIP-320 without another request."""
    name = topic()
    await produce(kafka.bootstrap, name, [b"a", b"b"])
    async with cluster(kafka.bootstrap, name) as kafkas:
        asked = wants(kafkas, name, {0: 5}, last_epoch=0)
        (answer,) = (await fetched(kafkas, asked)).values()
        assert answer.diverging == (0, 2)
        (answer,) = (await fetched(kafkas, wants(kafkas, name, {0: 1}, last_epoch=0))).values()
        assert answer.diverging is None


async def test_a_topic_made_anew_is_an_error_and_not_other_records(kafka, topic):
    name = topic()
    await produce(kafka.bootstrap, name, [b"old"])
    async with cluster(kafka.bootstrap, name) as kafkas:
        asked, session = wants(kafkas, name), FetchSession()
        await fetched(kafkas, asked, session=session)
        await asyncio.to_thread(kafka.admin.delete_topic, name)
        await asyncio.to_thread(kafka.admin.create_topic, name)
        await produce(kafka.bootstrap, name, [b"new"])
        # metadata may have been asked for, by its age, while there was no such topic
        await until(lambda: kafkas.leader(TopicPartition(name, 0)) is not None, "a leader")
        (answer,) = (await fetched(kafkas, asked)).values()
        assert answer.error_code in (UNKNOWN_ID, INCONSISTENT_ID)
        await kafkas.metadata.refresh("test")
        again = wants(kafkas, name)
        assert again != asked
        (answer,) = (await fetched(kafkas, again, session=session)).values()
        tp = TopicPartition(name, 0)
        assert values(decode(tp, answer.records, 0).entries) == [b"new"]


async def test_topics_without_an_id_go_by_name(kafka, topic):
    name = topic()
    await produce(kafka.bootstrap, name, [b"a"])
    async with cluster(kafka.bootstrap, name) as kafkas:
        session = FetchSession()
        for _ in range(2):
            asked = wants(kafkas, name, topic_id=None)
            answers = await fetched(kafkas, asked, session=session)
        assert session.epoch == 2
        assert [answer.error_code for answer in answers.values()] == [0]


async def test_an_unknown_id_is_an_error_of_its_partition(kafka, topic):
    name = topic()
    async with cluster(kafka.bootstrap, name) as kafkas:
        asked = wants(kafkas, name, topic_id=UUID(int=5))
        (answer,) = (await fetched(kafkas, asked)).values()
        assert answer.error_code == UNKNOWN_ID


async def test_at_most_max_bytes_come_of_a_partition_but_always_one_batch(kafka, topic):
    name = topic()
    for _ in range(3):
        await produce(kafka.bootstrap, name, [b"x" * 5000])
    async with cluster(kafka.bootstrap, name) as kafkas:
        (answer,) = (await fetched(kafkas, wants(kafkas, name, max_bytes=100))).values()
        decoded = decode(TopicPartition(name, 0), answer.records, 0)
        assert (decoded.next_offset, decoded.error) == (1, None)


async def test_roles_fetch_side_by_side(kafka, topic):
    name = topic()
    async with cluster(kafka.bootstrap, name) as kafkas:
        asked = wants(kafkas, name)
        node, _ = kafkas.leader(TopicPartition(name, 0)) or (0, 0)
        tail = asyncio.create_task(kafkas.fetch(node, Role.TAIL, asked, max_wait=20.0))
        await until(lambda: kafkas.requests["Fetch"])
        began = time.monotonic()
        await kafkas.fetch(node, Role.CATCHUP, asked, max_wait=0.01)
        assert time.monotonic() - began < 10
        assert not tail.done()
        tail.cancel()


async def test_the_mock_cluster_is_read_too(embedded):
    embedded.create_topic("orders", 2)
    await produce(embedded.bootstrap, "orders", [Sent(b"a", partition=1), Sent(b"b", partition=1)])
    async with cluster(embedded.bootstrap, "orders") as kafkas:
        read = await entries(kafkas, TopicPartition("orders", 1), 0, 2)
        assert values(read) == [b"a", b"b"]
