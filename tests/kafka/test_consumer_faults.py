"""What a consumer does about partitions that it may not read, that were cut off, or are damaged."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from support.elections import UNCLEAN_CONFIGS, elect_follower, kill_follower
from support.group_members import fetch_committed, running_member, wait_for_coordinator
from support.kafka_proxy import ApiKey, KafkaProxy
from support.raw_produce import produce_raw
from support.record_sets import ZSTD, BatchRecord, encode_varint, flip_byte
from support.records import produce_records
from support.topic_reads import open_cluster
from support.waiting import wait_until

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import AccessDenied, PartitionFailed, PartitionUnreadable
from gateway.kafka.fetch.record_batch import MAX_DECOMPRESSED_BYTES
from gateway.kafka.group.consumer import ConsumerOptions, GroupConsumer, OffsetAndMetadata

LONG = 60.0  # s
TOO_LARGE = [BatchRecord(0, bytes(MAX_DECOMPRESSED_BYTES + 1))]
BROKEN = [BatchRecord(0, encoded_fields=b"\0\0" + encode_varint(0) + encode_varint(900) + b"short")]


@asynccontextmanager
async def running_proxied_cluster(kafka: Any, *topics: str) -> AsyncIterator[Any]:
    async with (
        KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy,
        open_cluster([proxy.bootstrap], *topics) as made,
    ):
        yield proxy, made


@asynccontextmanager
async def open_reader(made: Any, group: str, *topics: str) -> AsyncIterator[GroupConsumer]:
    """Partition 0 of each, assigned by hand."""
    consumer = GroupConsumer(made, group, ConsumerOptions(auto_offset_reset="earliest"))
    consumer.assign([TopicPartition(name, 0) for name in topics])
    try:
        yield consumer
    finally:
        await consumer.close()


async def poll_records(consumer: GroupConsumer, count: int) -> list[Record]:
    found: list[Record] = []
    async with asyncio.timeout(LONG):
        while len(found) < count:
            found += await consumer.poll(1.0)
    return found


async def test_a_denied_topic_is_told_once_and_asked_for_seldom_and_others_go_on(kafka, topic):
    """It may be allowed at any time: then it goes on where it was."""
    shut, open_ = topic(), topic()
    async with running_proxied_cluster(kafka, shut, open_) as (proxy, made):
        injection = proxy.inject_error(
            ApiKey.FETCH, ErrorCode.TOPIC_AUTHORIZATION_FAILED, topic=shut
        )
        await produce_records(kafka.bootstrap, shut, [b"secret"])
        async with open_reader(made, "", shut, open_) as consumer:
            with pytest.raises(AccessDenied, match=shut) as denied:
                await poll_records(consumer, 1)
            assert denied.value.topic == shut
            seen: list[bytes | None] = []
            written = 0
            async with asyncio.timeout(LONG):
                while len(seen) < 40:
                    await produce_records(kafka.bootstrap, open_, [b"%d" % written])
                    written += 1
                    with suppress(AccessDenied):  # of the next attempt, seconds later
                        seen += [each.value for each in await poll_records(consumer, 1)]
            assert seen == [b"%d" % number for number in range(len(seen))]
            assert injection.hit_count < 20
            proxy.remove_injection(injection)
            consumer.seek(TopicPartition(shut, 0), 0)
            assert [each.value for each in await poll_records(consumer, 1)] == [b"secret"]


async def test_a_log_that_was_cut_off_is_read_from_its_new_end(kafka, topic):
    """An unclean election: what was committed is of records that no replica has any more."""
    name, group = topic(), f"group-{uuid.uuid4().hex[:8]}"
    tp = TopicPartition(name, 0)
    await produce_records(kafka.bootstrap, name, [b"a", b"b"])
    async with open_cluster(kafka.bootstrap, name) as made:
        await wait_for_coordinator(made, group)
        async with open_reader(made, group, name) as before:
            await before.commit({tp: OffsetAndMetadata(5, 0)})
        async with open_reader(made, group, name) as consumer:
            await wait_until(lambda: consumer.position(tp) == 5)
            await consumer.poll(0.1)
            await wait_until(lambda: consumer.position(tp) == 2)
            await produce_records(kafka.bootstrap, name, [b"c"])
            assert [(each.offset, each.value) for each in await poll_records(consumer, 1)] == [
                (2, b"c")
            ]


@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("name_of_group", ["group", ""])
async def test_an_offset_above_the_end_of_the_log_is_followed_by_what_is_written_next(
    kafka, topic, reset, name_of_group
):
    """After an unclean election a back end got the whole topic again: an offset above the end of
    the log led to its start. No epoch tells where the log was cut off."""
    name = topic()
    tp, group = TopicPartition(name, 0), name_of_group and f"group-{uuid.uuid4().hex[:8]}"
    await produce_records(kafka.bootstrap, name, [b"a", b"b"])
    gaps: list[tuple[TopicPartition, int, int]] = []
    async with open_cluster(kafka.bootstrap, name) as made:
        consumer = GroupConsumer(
            made,
            group,
            ConsumerOptions(auto_offset_reset=reset),
            on_gap=lambda *gap: gaps.append(gap),
        )
        if group:
            await wait_for_coordinator(made, group)
            async with open_reader(made, group, name) as before:
                await before.commit({tp: 5})
        consumer.assign([tp])
        if not group:
            consumer.seek(tp, 5)
        poll = asyncio.create_task(consumer.poll(LONG))
        await wait_until(lambda: consumer.position(tp) == 2)
        await produce_records(kafka.bootstrap, name, [b"c"])
        assert [(each.offset, each.value) for each in await poll] == [(2, b"c")]
        assert gaps == [(tp, 5, 2)]
        await consumer.close()


async def test_after_an_unclean_election_a_group_goes_on_at_the_cut_and_not_at_the_start(
    kafka3, caplog
):
    """The new leader has more records than the old one lost: only epochs show where they part. A
    reader without an epoch is above the end at first, and began at the start of the topic."""
    name = await asyncio.to_thread(
        lambda: kafka3.create_unique_topic(configs=UNCLEAN_CONFIGS, assignment=[[1, 2]])
    )
    tp, group = TopicPartition(name, 0), f"group-{uuid.uuid4().hex[:8]}"
    await produce_records(kafka3.bootstrap, name, [b"a", b"b"])
    async with open_cluster(kafka3.bootstrap, name) as made:
        await wait_for_coordinator(made, group)
        async with open_reader(made, group, name) as running, open_reader(made, "", name) as other:
            await kill_follower(kafka3, name)
            await produce_records(kafka3.bootstrap, name, [b"lost %d" % n for n in range(3)])
            assert (await poll_records(running, 5))[-1].offset == 4
            await running.commit({tp: 5})
            await elect_follower(kafka3, name)
            other.seek(tp, 5)
            polls = [asyncio.create_task(poll_records(each, 1)) for each in (running, other)]
            await wait_until(
                lambda: other.position(tp) == running.position(tp) == 2, timeout_s=LONG
            )
            await produce_records(kafka3.bootstrap, name, [b"%d" % n for n in range(6)])
            for poll in polls:
                assert [each.offset for each in await poll][:1] == [2]
        async with open_reader(made, group, name) as next_owner:
            assert (await poll_records(next_owner, 1))[0].offset == 2
    assert caplog.text.count(f"{name}-0 was truncated to 2 by an unclean election") == 2


async def test_an_answer_that_is_out_of_range_for_no_reason_takes_nothing_back(kafka, topic):
    """The group began at the start of the topic whenever a broker that was behind answered."""
    name = topic()
    await produce_records(kafka.bootstrap, name, [b"%d" % number for number in range(4)])
    async with running_proxied_cluster(kafka, name) as (proxy, made):
        proxy.inject_error(ApiKey.FETCH, ErrorCode.OFFSET_OUT_OF_RANGE, topic=name, times=3)
        consumer = GroupConsumer(made, "", ConsumerOptions(auto_offset_reset="earliest"))
        consumer.assign([TopicPartition(name, 0)])
        consumer.seek(TopicPartition(name, 0), 2)
        assert [each.value for each in await poll_records(consumer, 2)] == [b"2", b"3"]
        await consumer.close()


async def test_an_epoch_that_no_leader_had_yet_is_of_a_topic_that_was_deleted(kafka, topic):
    """Its log is another one: it is read from the start, not from the end."""
    name, group = topic(), f"group-{uuid.uuid4().hex[:8]}"
    tp = TopicPartition(name, 0)
    await produce_records(kafka.bootstrap, name, [b"a"])
    async with open_cluster(kafka.bootstrap, name) as made:
        await wait_for_coordinator(made, group)
        async with open_reader(made, group, name) as before:
            await before.commit({tp: OffsetAndMetadata(5, 90)})
        async with open_reader(made, group, name) as consumer:
            assert [each.value for each in await poll_records(consumer, 1)] == [b"a"]


async def test_commits_carry_the_leader_epoch_of_the_record_before_them(kafka, topic):
    """Groups that commit by offset had none in their commits: where a log was cut off, the next
    owner of a partition could not find out."""
    name, group = topic(), f"group-{uuid.uuid4().hex[:8]}"
    tp = TopicPartition(name, 0)
    await produce_records(kafka.bootstrap, name, [b"a", b"b", b"c"])
    async with open_cluster(kafka.bootstrap, name) as made:
        await wait_for_coordinator(made, group)
        async with open_reader(made, group, name) as consumer:
            epoch = (await poll_records(consumer, 3))[0].epoch
            await consumer.commit({tp: 2})
            assert await fetch_committed(consumer, [tp]) == {tp: OffsetAndMetadata(2, epoch)}
            await consumer.commit({tp: 9})  # up to there nothing was read
            assert await fetch_committed(consumer, [tp]) == {tp: OffsetAndMetadata(9)}


@asynccontextmanager
async def corrupt_fetches(
    proxy: KafkaProxy, byte_offset: int, times: int | None = None
) -> AsyncIterator[list[int]]:
    """One byte is changed of the records of so many fetches; `at` from their start."""
    hits: list[int] = []

    def corrupt_answer(request: Any, answer: Any) -> Any:
        for each in answer.get("topics") or () if request.api_key == ApiKey.FETCH else ():
            for entry in each["partitions"]:
                if entry["records"] and (times is None or len(hits) < times):
                    hits.append(byte_offset)
                    entry["records"] = flip_byte(entry["records"], byte_offset)
        return answer

    proxy.on_response = corrupt_answer
    yield hits
    proxy.on_response = None


LENGTH = 8  # where it stands in a batch


@pytest.mark.parametrize(
    ("batch", "problem"),
    [(TOO_LARGE, "is too large from 3 to 4"), (BROKEN, "is damaged from 3 to 4")],
)
async def test_what_cannot_be_read_stops_its_partition_until_it_is_sought_past(
    embedded, batch, problem
):
    """It was passed over, and so were its offsets by the next commit."""
    embedded.create_topic("t")
    tp = TopicPartition("t", 0)
    for items in ([BatchRecord(n) for n in range(3)], batch, [BatchRecord(0, b"after")]):
        produce_raw(embedded.bootstrap[0], "t", 0, items, ZSTD)
    async with (
        open_cluster(embedded.bootstrap, "t") as made,
        open_reader(made, "", "t") as consumer,
    ):
        for _ in range(3):
            assert len(await consumer.poll(LONG, max_records=1)) == 1
        for _ in range(2):
            with pytest.raises(PartitionUnreadable, match=f"{problem}.*seek to 4 to go on"):
                await poll_records(consumer, 1)
            assert consumer.position(tp) == 3
        consumer.seek(tp, 4)
        assert [each.value for each in await poll_records(consumer, 1)] == [b"after"]


async def test_records_that_make_no_sense_are_fetched_again(kafka, topic):
    name = topic()
    await produce_records(kafka.bootstrap, name, [b"a"])
    async with (
        running_proxied_cluster(kafka, name) as (proxy, made),
        open_reader(made, "", name) as consumer,
        corrupt_fetches(proxy, LENGTH, times=2) as hits,
    ):
        assert [each.value for each in await poll_records(consumer, 1)] == [b"a"]
        assert len(hits) == 2


async def test_what_never_makes_sense_is_told_until_it_is_sought_past(kafka, topic):
    name = topic()
    for value in (b"a", b"b"):
        await produce_records(kafka.bootstrap, name, [value])
    async with (
        running_proxied_cluster(kafka, name) as (proxy, made),
        open_reader(made, "", name) as consumer,
    ):
        async with corrupt_fetches(proxy, LENGTH) as hits:
            for _ in range(2):
                with pytest.raises(PartitionFailed, match=r"is damaged.*seek past it"):
                    await poll_records(consumer, 1)
            assert len(hits) == 3
        consumer.seek(TopicPartition(name, 0), 1)
        assert [each.value for each in await poll_records(consumer, 1)] == [b"b"]


async def test_a_partition_with_nowhere_to_go_on_from_is_told_and_holds_up_no_other(kafka, topic):
    """Once while there is something to return, and again by each poll that has nothing else."""
    lost, name = topic(), topic()
    await produce_records(kafka.bootstrap, lost, [b"x"])
    await produce_records(kafka.bootstrap, name, [b"a"])
    tp = TopicPartition(lost, 0)
    async with open_cluster(kafka.bootstrap, lost, name) as made:
        consumer = GroupConsumer(made, "", ConsumerOptions(auto_offset_reset="none"))
        consumer.assign([tp, TopicPartition(name, 0)])
        consumer.seek(tp, 7)
        consumer.seek(TopicPartition(name, 0), 0)
        told: list[str] = []
        seen: list[bytes | None] = []
        async with asyncio.timeout(LONG):
            while not (told and seen):
                try:
                    seen += [each.value for each in await consumer.poll(1.0)]
                except PartitionFailed as exc:
                    told.append(exc.topic)
            await produce_records(kafka.bootstrap, name, [b"b"])
            assert [each.value for each in await poll_records(consumer, 1)] == [b"b"]
        assert (told, seen, set(consumer.failures)) == ([lost], [b"a"], {tp})
        with pytest.raises(PartitionFailed, match="seek"):
            await consumer.poll(0.1)
        consumer.seek(tp, 0)
        assert [each.value for each in await poll_records(consumer, 1)] == [b"x"]
        assert not consumer.failures
        await consumer.close()


async def test_a_listener_says_from_where_what_it_was_given_is_read(kafka, topic):
    """Whatever is committed, and before anything of it is returned."""
    name, group = topic(partitions=2), f"group-{uuid.uuid4().hex[:8]}"
    tps = [TopicPartition(name, each) for each in range(2)]
    async with open_cluster(kafka.bootstrap, name) as made:
        await produce_records(
            kafka.bootstrap, name, [b"%d" % number for number in range(20)], linger_ms=5
        )
        ends = {tp: kafka.admin.get_high_watermark(name, tp.partition) for tp in tps}
        await wait_for_coordinator(made, group)
        async with open_reader(made, group, name) as before:
            await before.commit(dict.fromkeys(tps, 1))
        async with running_member(made, group, [name]) as one:
            assigned = one.on_partitions_assigned

            async def seek_on_assignment(some: frozenset[TopicPartition]) -> None:
                await assigned(some)
                for tp in some:
                    one.consumer.seek(tp, ends[tp] - 1)

            one.on_partitions_assigned = seek_on_assignment  # type: ignore[method-assign]
            count = sum(end > 0 for end in ends.values())
            await wait_until(lambda: len(one.records) >= count, timeout_s=LONG)
            assert {each.tp: each.offset for each in one.records} == {
                tp: end - 1 for tp, end in ends.items() if end
            }
            assert len(one.records) == count
