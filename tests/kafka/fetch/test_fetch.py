"""Fetching from a real broker, and from librdkafka's mock."""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

import pytest
from support.record_sets import decode_record_set
from support.records import RecordToSend, open_transaction, produce_records
from support.topic_reads import build_targets, fetch_from_leaders, open_cluster, read_entries
from support.waiting import wait_until

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import Record, Skip, TopicPartition
from gateway.kafka.client.cluster import FetchLimits
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.protocol.fetch_messages import FetchSession


def get_values(read: list) -> list[bytes | None]:
    return [entry.value for entry in read if isinstance(entry, Record)]


def get_error_codes(answers: dict) -> list[int]:
    return [answer.error_code for answer in answers.values()]


@pytest.mark.smoke
async def test_every_partition_is_read_from_its_first_record_to_its_last(kafka, topic):
    name = topic(partitions=12)
    sent = [RecordToSend(b"%d" % number, b"k", number % 12) for number in range(600)]
    await produce_records(kafka.bootstrap, name, sent, linger_ms=5)
    async with open_cluster(kafka.bootstrap, name) as kafkas:
        for partition in range(12):
            read = await read_entries(kafkas, TopicPartition(name, partition), 0, 50)
            assert get_values(read) == [b"%d" % number for number in range(partition, 600, 12)]
            assert {entry.epoch for entry in read} == {0}


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_what_a_producer_compressed_is_read(kafka, topic, codec):
    name = topic()
    sent = [b"%d" % number * 40 for number in range(200)]
    await produce_records(kafka.bootstrap, name, sent, compression_type=codec, linger_ms=20)
    async with open_cluster(kafka.bootstrap, name) as kafkas:
        assert get_values(await read_entries(kafkas, TopicPartition(name, 0), 0, 200)) == sent


@pytest.mark.smoke
async def test_aborted_records_are_left_out_and_the_position_passes_them(kafka, topic):
    name = topic()
    await produce_records(kafka.bootstrap, name, [b"plain"])
    async with open_transaction(kafka.bootstrap) as aborted:
        await aborted.write_records(name, [b"no", b"no"])
    async with open_transaction(kafka.bootstrap) as committed:
        await committed.write_records(name, [b"yes"])
        await committed.commit()
    async with open_cluster(kafka.bootstrap, name) as kafkas:
        read = await read_entries(kafkas, TopicPartition(name, 0), 0, 6)
    assert get_values(read) == [b"plain", b"yes"]
    # Kafka answers the abort before its marker is in the log, which may come after b"yes".
    assert isinstance(read[-1], Skip)
    assert read[-1].next_offset == 6


async def test_an_open_transaction_shows_as_the_last_stable_offset(kafka, topic):
    name = topic()
    await produce_records(kafka.bootstrap, name, [b"plain"])
    async with (
        open_transaction(kafka.bootstrap) as open_one,
        open_cluster(kafka.bootstrap, name) as kafkas,
    ):
        await open_one.write_records(name, [b"held"])
        (answer,) = (await fetch_from_leaders(kafkas, build_targets(kafkas, name))).values()
        assert (answer.high_watermark, answer.last_stable_offset) == (2, 1)
        await open_one.commit()


@pytest.mark.smoke
async def test_a_session_tells_news_only(kafka, topic):
    name = topic(partitions=3)
    await produce_records(kafka.bootstrap, name, [RecordToSend(b"a", partition=1)])
    async with open_cluster(kafka.bootstrap, name) as kafkas:
        session, asked = FetchSession(), build_targets(kafkas, name)
        first = await fetch_from_leaders(kafkas, asked, session=session)
        assert len(first) == 3
        tp = TopicPartition(name, 1)
        asked[tp] = asked[tp]._replace(offset=1)
        assert await fetch_from_leaders(kafkas, asked, session=session) == {}
        await produce_records(kafka.bootstrap, name, [RecordToSend(b"b", partition=1)])
        assert (await fetch_from_leaders(kafkas, asked, session=session)).keys() == {tp}
        assert session.epoch == 3


async def test_a_broker_that_forgot_the_session_is_asked_in_full_at_once(kafka, topic):
    name = topic(partitions=2)
    async with open_cluster(kafka.bootstrap, name) as kafkas:
        session = FetchSession()
        await fetch_from_leaders(kafkas, build_targets(kafkas, name), session=session)
        session.id += 1
        assert get_error_codes(
            await fetch_from_leaders(kafkas, build_targets(kafkas, name), session=session)
        ) == [0, 0]
        session.epoch += 7
        assert get_error_codes(
            await fetch_from_leaders(kafkas, build_targets(kafkas, name), session=session)
        ) == [0, 0]


async def test_a_cancelled_fetch_leaves_a_session_that_still_works(kafka, topic):
    name = topic()
    async with open_cluster(kafka.bootstrap, name) as kafkas:
        session, asked = FetchSession(), build_targets(kafkas, name)
        await fetch_from_leaders(kafkas, asked, session=session)
        fetches = kafkas.request_counts["Fetch"]
        waiting = asyncio.create_task(
            fetch_from_leaders(kafkas, asked, session=session, max_wait=30.0)
        )
        await wait_until(lambda: kafkas.request_counts["Fetch"] > fetches)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert session.epoch == 0  # whether the broker counted that fetch is not known
        await produce_records(kafka.bootstrap, name, [b"a"])
        (answer,) = (await fetch_from_leaders(kafkas, asked, session=session)).values()
        assert answer.records


async def test_a_fetch_waits_for_records_and_not_longer(kafka, topic):
    name = topic()
    async with open_cluster(kafka.bootstrap, name) as kafkas:
        waiting = asyncio.create_task(
            fetch_from_leaders(kafkas, build_targets(kafkas, name), max_wait=25.0)
        )
        began = time.monotonic()
        await wait_until(lambda: kafkas.request_counts["Fetch"])
        await produce_records(kafka.bootstrap, name, [b"a"])
        (answer,) = (await waiting).values()
        assert answer.records
        assert time.monotonic() - began < 20


@pytest.mark.smoke
async def test_offsets_out_of_range_are_told_for_their_partition_alone(kafka, topic):
    name = topic(partitions=2)
    sent = [RecordToSend(b"%d" % number, partition=number % 2) for number in range(10)]
    await produce_records(kafka.bootstrap, name, sent)
    await asyncio.to_thread(kafka.admin.delete_records, name, {0: 3})
    async with open_cluster(kafka.bootstrap, name) as kafkas:
        below, fine = (await fetch_from_leaders(kafkas, build_targets(kafkas, name))).values()
        assert (below.error_code, fine.error_code) == (ErrorCode.OFFSET_OUT_OF_RANGE, 0)
        at = await fetch_from_leaders(kafkas, build_targets(kafkas, name, {0: 3, 1: 99}))
        assert [answer.error_code for answer in at.values()] == [0, ErrorCode.OFFSET_OUT_OF_RANGE]
        assert at[TopicPartition(name, 0)].log_start_offset == 3


async def test_who_knows_another_leader_epoch_is_told(kafka, topic):
    name = topic()
    async with open_cluster(kafka.bootstrap, name) as kafkas:
        (answer,) = (
            await fetch_from_leaders(kafkas, build_targets(kafkas, name, leader_epoch=9))
        ).values()
        assert answer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_a_log_that_ends_before_our_epoch_did_diverges(kafka, topic):
    """A log truncated under us is told by the fetch itself: KIP-320 without another request."""
    name = topic()
    await produce_records(kafka.bootstrap, name, [b"a", b"b"])
    async with open_cluster(kafka.bootstrap, name) as kafkas:
        asked = build_targets(kafkas, name, {0: 5}, last_fetched_epoch=0)
        (answer,) = (await fetch_from_leaders(kafkas, asked)).values()
        assert answer.diverging_epoch == (0, 2)
        (answer,) = (
            await fetch_from_leaders(
                kafkas, build_targets(kafkas, name, {0: 1}, last_fetched_epoch=0)
            )
        ).values()
        assert answer.diverging_epoch is None


@pytest.mark.smoke
async def test_a_topic_made_anew_is_an_error_and_not_other_records(kafka, topic):
    name = topic()
    await produce_records(kafka.bootstrap, name, [b"old"])
    async with open_cluster(kafka.bootstrap, name) as kafkas:
        asked, session = build_targets(kafkas, name), FetchSession()
        await fetch_from_leaders(kafkas, asked, session=session)
        await asyncio.to_thread(kafka.admin.delete_topic, name)
        await asyncio.to_thread(kafka.admin.create_topic, name)
        await produce_records(kafka.bootstrap, name, [b"new"])
        # metadata may have been asked for, by its age, while there was no such topic
        await wait_until(
            lambda: kafkas.leader_for_partition(TopicPartition(name, 0)) is not None, "a leader"
        )
        (answer,) = (await fetch_from_leaders(kafkas, asked)).values()
        assert answer.error_code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID)
        await kafkas.metadata.refresh("test")
        again = build_targets(kafkas, name)
        assert again != asked
        (answer,) = (await fetch_from_leaders(kafkas, again, session=session)).values()
        tp = TopicPartition(name, 0)
        assert get_values(decode_record_set(tp, answer.records, 0).entries) == [b"new"]


async def test_topics_without_an_id_go_by_name(kafka, topic):
    name = topic()
    await produce_records(kafka.bootstrap, name, [b"a"])
    async with open_cluster(kafka.bootstrap, name) as kafkas:
        session = FetchSession()
        for _ in range(2):
            asked = build_targets(kafkas, name, topic_id=None)
            answers = await fetch_from_leaders(kafkas, asked, session=session)
        assert session.epoch == 2
        assert [answer.error_code for answer in answers.values()] == [0]


async def test_an_unknown_id_is_an_error_of_its_partition(kafka, topic):
    name = topic()
    async with open_cluster(kafka.bootstrap, name) as kafkas:
        asked = build_targets(kafkas, name, topic_id=UUID(int=5))
        (answer,) = (await fetch_from_leaders(kafkas, asked)).values()
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_at_most_max_bytes_come_of_a_partition_but_always_one_batch(kafka, topic):
    name = topic()
    for _ in range(3):
        await produce_records(kafka.bootstrap, name, [b"x" * 5000])
    async with open_cluster(kafka.bootstrap, name) as kafkas:
        (answer,) = (
            await fetch_from_leaders(kafkas, build_targets(kafkas, name, max_bytes=100))
        ).values()
        decoded = decode_record_set(TopicPartition(name, 0), answer.records, 0)
        assert (decoded.next_offset, decoded.error) == (1, None)


async def test_roles_fetch_side_by_side(kafka, topic):
    name = topic()
    async with open_cluster(kafka.bootstrap, name) as kafkas:
        asked = build_targets(kafkas, name)
        node, _ = kafkas.leader_for_partition(TopicPartition(name, 0)) or (0, 0)
        tail = asyncio.create_task(
            kafkas.fetch(node, ConnectionRole.TAIL, asked, FetchLimits(max_wait=20.0))
        )
        await wait_until(lambda: kafkas.request_counts["Fetch"])
        began = time.monotonic()
        await kafkas.fetch(node, ConnectionRole.CATCHUP, asked, FetchLimits(max_wait=0.01))
        assert time.monotonic() - began < 10
        assert not tail.done()
        tail.cancel()


async def test_the_mock_cluster_is_read_too(embedded):
    embedded.create_topic("orders", 2)
    await produce_records(
        embedded.bootstrap,
        "orders",
        [RecordToSend(b"a", partition=1), RecordToSend(b"b", partition=1)],
    )
    async with open_cluster(embedded.bootstrap, "orders") as kafkas:
        read = await read_entries(kafkas, TopicPartition("orders", 1), 0, 2)
        assert get_values(read) == [b"a", b"b"]
