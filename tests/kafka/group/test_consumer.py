"""A group's consumer against a real broker: by KIP-848, and with partitions assigned by hand."""

from __future__ import annotations

import asyncio
import re
import signal
import time
import uuid
from collections import Counter
from contextlib import AsyncExitStack

import pytest
from support.group_members import (
    FAST_OPTIONS,
    commit_positions,
    fetch_committed,
    running_librdkafka_member,
    running_member,
    running_member_process,
    wait_until_owned,
)
from support.kafka_proxy import KafkaProxy
from support.records import RecordToSend, open_transaction, produce_records
from support.topic_reads import open_cluster
from support.waiting import wait_until

from gateway.core.group.member import MemberState
from gateway.core.group.partition_state import EARLIEST, LATEST
from gateway.core.log.record import TopicPartition
from gateway.errors import NotOwned, PartitionFailed
from gateway.kafka.group.consumer import ConsumerOptions, GroupConsumer

LONG = 60.0  # s; a session's end and more on a busy machine


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


def build_numbered(count: int, partitions: int) -> list[RecordToSend]:
    return [RecordToSend(b"%d" % number, partition=number % partitions) for number in range(count)]


def wait_until_shared(members, topic: str, partitions: int, partitions_each: int):
    """Each has `each` of the partitions, no two the same one."""

    def is_shared() -> bool:
        owned = [tp for one in members for tp in one.owned_partitions]
        whole = sorted(owned) == [TopicPartition(topic, p) for p in range(partitions)]
        return whole and all(len(one.owned_partitions) == partitions_each for one in members)

    return wait_until(
        is_shared, lambda: f"even shares: {[sorted(one.owned_partitions) for one in members]}", LONG
    )


async def read_values(consumer: GroupConsumer, count: int, **how) -> list[bytes | None]:
    """Values, until there are `count` of them."""
    values: list[bytes | None] = []
    async with asyncio.timeout(LONG):
        while len(values) < count:
            values += [record.value for record in await consumer.poll(1.0, **how)]
    return values


# reading


async def test_a_full_answer_comes_in_pieces_as_asked_and_nothing_of_it_is_dropped(kafka, topic):
    name = topic(partitions=3)
    await produce_records(kafka.bootstrap, name, build_numbered(300, 3), linger_ms=5)
    async with open_cluster(kafka.bootstrap, name) as made:
        consumer = GroupConsumer(made, "", ConsumerOptions(auto_offset_reset="earliest"))
        consumer.assign([TopicPartition(name, p) for p in range(3)])
        await wait_until(lambda: consumer.position(TopicPartition(name, 0)) is not None)
        pieces, values = [], list[bytes | None]()
        while len(values) < 300:
            piece = await consumer.poll(5.0, max_records=7)
            pieces.append(len(piece))
            values += [record.value for record in piece]
        assert max(pieces) <= 7
        assert sorted(values) == sorted(b"%d" % number for number in range(300))
        assert made.request_counts["Fetch"] < len(pieces) / 2  # the rest was kept
        await consumer.close()


async def test_bytes_of_one_poll_are_bounded_but_one_record_always_comes(kafka, topic):
    name = topic()
    await produce_records(kafka.bootstrap, name, [b"x" * 1000] * 10, linger_ms=5)
    async with open_cluster(kafka.bootstrap, name) as made:
        consumer = GroupConsumer(made, "", ConsumerOptions(auto_offset_reset="earliest"))
        consumer.assign([TopicPartition(name, 0)])
        assert len(await read_values(consumer, 1, max_bytes=10)) == 1
        assert len(await consumer.poll(5.0, max_bytes=3500)) == 3
        await consumer.close()


async def test_a_poll_waits_in_the_broker_and_is_answered_with_the_first_record(kafka, topic):
    name = topic()
    async with open_cluster(kafka.bootstrap, name) as made:
        consumer = GroupConsumer(made, "", ConsumerOptions(auto_offset_reset="earliest"))
        consumer.assign([TopicPartition(name, 0)])
        poll = asyncio.create_task(consumer.poll(LONG))
        await wait_until(lambda: made.request_counts["Fetch"])
        await produce_records(kafka.bootstrap, name, [b"it"])
        assert [record.value for record in await poll] == [b"it"]
        assert made.request_counts["Fetch"] == 1
        await consumer.close()


async def test_a_poll_of_many_bytes_waits_for_all_of_them(kafka, topic):
    name = topic()
    async with open_cluster(kafka.bootstrap, name) as made:
        consumer = GroupConsumer(made, "", ConsumerOptions(auto_offset_reset="earliest"))
        consumer.assign([TopicPartition(name, 0)])
        poll = asyncio.create_task(consumer.poll(LONG, min_bytes=1000))
        for value in (b"a" * 100, b"b" * 1000):
            await produce_records(kafka.bootstrap, name, [value])
        assert len(await poll) == 2
        await consumer.close()


async def test_a_record_that_comes_after_a_cancelled_poll_is_the_next_ones(kafka, topic):
    name = topic()
    async with open_cluster(kafka.bootstrap, name) as made:
        consumer = GroupConsumer(made, "", ConsumerOptions(auto_offset_reset="earliest"))
        consumer.assign([TopicPartition(name, 0)])
        poll = asyncio.create_task(consumer.poll(LONG))
        await wait_until(lambda: made.request_counts["Fetch"])
        poll.cancel()
        await asyncio.gather(poll, return_exceptions=True)
        await produce_records(kafka.bootstrap, name, [b"it"])
        assert await read_values(consumer, 1) == [b"it"]
        await consumer.close()


async def test_seeks_go_to_an_offset_the_ends_and_a_time(kafka, topic):
    name, now = topic(), int(time.time() * 1000)  # what is older than the retention goes at once
    tp = TopicPartition(name, 0)
    sent = [RecordToSend(b"%d" % n, timestamp=now + n) for n in range(10)]
    await produce_records(kafka.bootstrap, name, sent)
    async with open_cluster(kafka.bootstrap, name) as made:
        consumer = GroupConsumer(made, "")
        consumer.assign([tp])
        consumer.seek(tp, 7)
        assert await read_values(consumer, 3) == [b"7", b"8", b"9"]
        await consumer.seek_to_specs({tp: EARLIEST})
        assert consumer.position(tp) == 0
        await consumer.seek_to_specs({tp: now + 8})
        assert await read_values(consumer, 2) == [b"8", b"9"]
        await consumer.seek_to_specs({tp: now + 1000})
        assert consumer.position(tp) == 10
        await consumer.seek_to_specs({tp: EARLIEST})
        await consumer.seek_to_specs({tp: LATEST})
        assert consumer.position(tp) == 10
        await consumer.close()


async def test_a_paused_partition_gives_nothing_and_goes_on_where_it_was(kafka, topic):
    name = topic(partitions=2)
    one, two = (TopicPartition(name, p) for p in range(2))
    await produce_records(kafka.bootstrap, name, build_numbered(40, 2))
    async with open_cluster(kafka.bootstrap, name) as made:
        consumer = GroupConsumer(made, "", ConsumerOptions(auto_offset_reset="earliest"))
        consumer.assign([one, two])
        await wait_until(lambda: consumer.position(two) == 0)
        consumer.pause([one])
        assert await read_values(consumer, 20) == [b"%d" % n for n in range(1, 40, 2)]
        assert await consumer.poll(0.1) == [] and consumer.position(one) == 0
        consumer.resume([one])
        assert await read_values(consumer, 20) == [b"%d" % n for n in range(0, 40, 2)]
        await consumer.close()


@pytest.mark.parametrize("reset, first", [("earliest", 6), ("latest", 10), ("none", None)])
async def test_an_offset_that_is_gone_goes_on_as_configured(kafka, topic, reset, first):
    name = topic()
    tp = TopicPartition(name, 0)
    await produce_records(kafka.bootstrap, name, build_numbered(10, 1))
    await asyncio.to_thread(kafka.admin.delete_records, name, {0: 6})
    async with open_cluster(kafka.bootstrap, name) as made:
        consumer = GroupConsumer(made, "", ConsumerOptions(auto_offset_reset=reset))
        consumer.assign([tp])
        consumer.seek(tp, 2)
        poll = asyncio.create_task(consumer.poll(LONG))
        if first is None:
            with pytest.raises(PartitionFailed, match="seek"):
                await poll
            consumer.seek(tp, 9)
            assert await read_values(consumer, 1) == [b"9"]
        else:
            await wait_until(lambda: poll.done() or consumer.position(tp) == 10)
            await produce_records(kafka.bootstrap, name, [b"10"])
            assert (await poll)[0].offset == first
        await consumer.close()


async def test_aborted_records_are_passed_and_uncommitted_ones_are_there_for_who_wants_them(
    kafka, topic
):
    name = topic()
    async with open_transaction(kafka.bootstrap) as aborted:
        await aborted.write_records(name, [b"no"])
    await produce_records(kafka.bootstrap, name, [b"yes"])
    async with open_cluster(kafka.bootstrap, name) as made:
        for isolation, expected in (
            ("read_committed", [b"yes"]),
            ("read_uncommitted", [b"no", b"yes"]),
        ):
            consumer = GroupConsumer(
                made, "", ConsumerOptions(auto_offset_reset="earliest", isolation=isolation)
            )
            consumer.assign([TopicPartition(name, 0)])
            assert await read_values(consumer, len(expected)) == expected
            await consumer.close()


async def test_what_is_fetched_ahead_is_bounded_and_is_not_what_a_commit_means(kafka, topic, group):
    name = topic()
    tp = TopicPartition(name, 0)
    await produce_records(kafka.bootstrap, name, [b"x" * 1000] * 400, linger_ms=5)
    async with open_cluster(kafka.bootstrap, name) as made:
        consumer = GroupConsumer(
            made,
            group,
            ConsumerOptions(
                auto_offset_reset="earliest", prefetch=True, max_partition_bytes=40_000
            ),
        )
        consumer.assign([tp])
        await read_values(consumer, 1, max_records=1)
        held = consumer.prefetcher.states[tp]
        assert 0 < held.buffered_bytes < 100_000
        await commit_positions(consumer)
        assert (await fetch_committed(consumer, [tp]))[tp].offset == 1
        assert len(await read_values(consumer, 399)) == 399
        await consumer.close()


# without membership


@pytest.mark.smoke
async def test_offsets_are_committed_by_who_is_no_member_and_the_next_goes_on_there(
    kafka, topic, group
):
    name = topic()
    tp = TopicPartition(name, 0)
    await produce_records(kafka.bootstrap, name, build_numbered(10, 1))
    async with open_cluster(kafka.bootstrap, name) as made:
        first = GroupConsumer(made, group, ConsumerOptions(auto_offset_reset="earliest"))
        first.assign([tp])
        assert await read_values(first, 4, max_records=4) == [b"0", b"1", b"2", b"3"]
        assert (await fetch_committed(first, [tp]))[tp].offset == 0  # where it began
        await commit_positions(first)
        await first.close()
        second = GroupConsumer(made, group, ConsumerOptions(auto_offset_reset="earliest"))
        second.assign([tp])
        assert (await read_values(second, 1))[0] == b"4"
        await second.commit({tp: 8})
        assert (await fetch_committed(second, [tp]))[tp].offset == 8
        await second.close()


# membership


async def test_members_join_and_leave_and_every_record_is_read_once(kafka, topic, group):
    """Positions are committed when partitions are given up, so nothing is read again."""
    name = topic(partitions=6)
    async with open_cluster(kafka.bootstrap, name) as made, AsyncExitStack() as blocks:
        first = await blocks.enter_async_context(running_member(made, group, [name]))
        await wait_until_shared([first], name, 6, 6)
        await produce_records(kafka.bootstrap, name, build_numbered(600, 6), linger_ms=5)
        second = await blocks.enter_async_context(running_member(made, group, [name]))
        await wait_until_shared([first, second], name, 6, 3)
        async with running_member(made, group, [name]) as third:
            await wait_until_shared([first, second, third], name, 6, 2)
            await produce_records(kafka.bootstrap, name, build_numbered(600, 6), linger_ms=5)
            read = [first, second, third]
            await wait_until(lambda: sum(len(one.records) for one in read) >= 1200, timeout_s=LONG)
        await wait_until_shared([first, second], name, 6, 3)
        await produce_records(
            kafka.bootstrap, name, [RecordToSend(b"last", partition=p) for p in range(6)]
        )
        await wait_until(
            lambda: sum(one.values.count(b"last") for one in read) >= 6, timeout_s=LONG
        )
        offsets = Counter((record.tp, record.offset) for one in read for record in one.records)
        assert len(offsets) == 1206 and set(offsets.values()) == {1}
        assert not any(one.get_events("lost") for one in read)


async def test_it_shares_a_group_with_librdkafka(kafka, topic, group):
    name = topic(partitions=4)
    async with (
        open_cluster(kafka.bootstrap, name) as made,
        running_member(made, group, [name]) as ours,
    ):
        await wait_until_shared([ours], name, 4, 4)
        protocol = {"group.protocol": "consumer"}
        async with running_librdkafka_member(
            kafka.bootstrap_servers, group, [name], **protocol
        ) as theirs:
            await wait_until_shared([ours, theirs], name, 4, 2)
            await produce_records(kafka.bootstrap, name, build_numbered(40, 4))
            await wait_until(lambda: len(ours.values) + len(theirs.values) >= 40, timeout_s=LONG)
            assert sorted(ours.values + theirs.values) == sorted(b"%d" % n for n in range(40))
        await wait_until_shared([ours], name, 4, 4)


async def test_what_a_killed_member_had_goes_to_the_others_when_its_session_is_over(
    kafka, topic, group
):
    name = topic(partitions=2)
    async with (
        open_cluster(kafka.bootstrap, name) as made,
        running_member(made, group, [name]) as left,
    ):
        await wait_until_shared([left], name, 2, 2)
        async with running_member_process(kafka.bootstrap_servers, group, name) as killed:
            await wait_until_owned(killed, 1)
            await wait_until_shared([left, OtherMember(name, left)], name, 2, 1)
            killed.send_signal(signal.SIGKILL)
            await wait_until_shared([left], name, 2, 2)


class OtherMember:
    """Who is elsewhere, and has what the other one has not."""

    def __init__(self, topic: str, other) -> None:
        self._all = {TopicPartition(topic, 0), TopicPartition(topic, 1)}
        self._other = other

    @property
    def owned_partitions(self):
        return self._all - self._other.owned_partitions


async def test_who_was_cut_off_for_a_session_has_lost_all_may_not_commit_and_comes_back(
    kafka, topic, group
):
    name = topic(partitions=2)
    async with (
        KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy,
        open_cluster(kafka.bootstrap, name) as direct,
        open_cluster([proxy.bootstrap], name, request_timeout=1.0) as far,
        running_member(far, group, [name]) as cut,
    ):
        await wait_until_shared([cut], name, 2, 2)
        (broker,) = proxy.brokers
        async with running_member(direct, group, [name]) as near:
            await wait_until_shared([cut, near], name, 2, 1)
            await broker.hide()
            await wait_until_shared([near], name, 2, 2)
            await proxy.restore_all()
            await wait_until(lambda: cut.get_events("lost"), "the news that all is lost", LONG)
            await wait_until_shared([cut, near], name, 2, 1)
    assert isinstance(cut.commit_error, NotOwned)


async def test_a_static_member_that_comes_back_gets_its_own_and_nobody_elses_move(
    kafka, topic, group
):
    name = topic(partitions=4)
    async with (
        open_cluster(kafka.bootstrap, name) as made,
        running_member(made, group, [name]) as other,
    ):
        async with running_member(made, group, [name], instance_id="i") as static:
            await wait_until_shared([other, static], name, 4, 2)
            had, before = static.owned_partitions, len(other.events)
        async with running_member(made, group, [name], instance_id="i") as again:
            await wait_until_shared([other, again], name, 4, 2)
            assert again.owned_partitions == had
            assert len(other.events) == before


async def test_a_member_refuses_to_commit_what_is_not_its_own(kafka, topic, group):
    name = topic(partitions=2)
    mine, foreign_one = TopicPartition(name, 0), TopicPartition(name, 7)
    async with (
        open_cluster(kafka.bootstrap, name) as made,
        running_member(made, group, [name]) as one,
    ):
        await wait_until_shared([one], name, 2, 2)
        with pytest.raises(NotOwned, match=f"{name}-7"):
            await one.consumer.commit({mine: 0, foreign_one: 5})
        assert mine in await fetch_committed(one.consumer, [mine, foreign_one])
        assert foreign_one not in await fetch_committed(one.consumer, [mine, foreign_one])


async def test_a_pattern_takes_topics_that_come_later(kafka, group):
    prefix = f"test-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(f"{prefix}-a")
    pattern = re.compile(f"{prefix}-.*")
    async with open_cluster(kafka.bootstrap) as made, running_member(made, group, pattern) as one:
        await wait_until(lambda: len(one.owned_partitions) == 1, timeout_s=LONG)
        await asyncio.to_thread(kafka.create_topic, f"{prefix}-b")
        await produce_records(kafka.bootstrap, f"{prefix}-b", [b"new"])
        await wait_until(lambda: b"new" in one.values, timeout_s=LONG)


async def test_a_topic_that_was_made_anew_is_read_and_committed_from_its_start(kafka, topic, group):
    name = topic()
    tp = TopicPartition(name, 0)
    await produce_records(kafka.bootstrap, name, build_numbered(10, 1))
    async with (
        open_cluster(kafka.bootstrap, name) as made,
        running_member(made, group, [name]) as one,
    ):
        await wait_until(lambda: len(one.records) == 10, timeout_s=LONG)
        await commit_positions(one.consumer)
        await asyncio.to_thread(kafka.admin.delete_topic, name)
        await asyncio.to_thread(kafka.admin.create_topic, name)
        await produce_records(kafka.bootstrap, name, [b"new"])
        await wait_until(lambda: b"new" in one.values, timeout_s=LONG)
        await commit_positions(one.consumer)
        assert (await fetch_committed(one.consumer, [tp]))[tp].offset == 1


async def test_it_lives_through_its_coordinators_end(kafka3, group):
    """Which is a leader, too: records go on from the others, in order, none lost."""
    name = kafka3.create_unique_topic(6, replication=3)
    async with (
        open_cluster(kafka3.bootstrap, name) as made,
        running_member(made, group, [name]) as one,
    ):
        await wait_until_shared([one], name, 6, 6)
        await produce_records(kafka3.bootstrap, name, build_numbered(60, 6))
        await wait_until(lambda: len(one.records) == 60, timeout_s=LONG)
        link = await made.coordinators.connect(group)
        await asyncio.to_thread(kafka3.local_kafka.get_node(link.broker.node).kill)
        await produce_records(
            kafka3.bootstrap, name, build_numbered(60, 6), request_timeout_ms=5000
        )
        await wait_until(lambda: len(one.records) == 120, timeout_s=LONG)
        await commit_positions(one.consumer)
        tps = [TopicPartition(name, p) for p in range(6)]
        found = await fetch_committed(one.consumer, tps)
        assert {tp: each.offset for tp, each in found.items()} == dict.fromkeys(tps, 20)
        assert not one.get_events("lost") and not one.get_events("revoked")


@pytest.mark.smoke
async def test_rebalances_are_counted_and_told_with_the_time_they_took(kafka, topic, group, caplog):
    caplog.set_level("INFO", "gateway.kafka.group.group_member")
    name = topic(partitions=2)
    async with (
        open_cluster(kafka.bootstrap, name) as made,
        running_member(made, group, [name]) as one,
    ):
        await wait_until_shared([one], name, 2, 2)
        async with running_member(made, group, [name]) as two:
            await wait_until_shared([one, two], name, 2, 1)
            await wait_until(
                lambda: one.consumer.state is two.consumer.state is MemberState.RUNNING
            )
        assert sum(made.coordinators.stats.rebalance_seconds[group].counts) >= 3
    said = [record.getMessage() for record in caplog.records]
    assert any(re.search(rf"{group}: RUNNING -> REBALANCING", line) for line in said)
    assert any(re.search(rf"{group}: REBALANCING -> RUNNING after \d+ ms", line) for line in said)


async def test_nothing_is_left_of_a_closed_member(kafka, topic, group):
    name = topic()
    async with open_cluster(kafka.bootstrap, name) as made:
        before = asyncio.all_tasks()
        consumer = GroupConsumer(made, group, ConsumerOptions(**FAST_OPTIONS))
        consumer.subscribe([name])
        await consumer.poll(1.0)
        await consumer.close()
        await wait_until(lambda: not {t for t in asyncio.all_tasks() - before if _is_own_task(t)})
        made.metadata.unwatch(name)
        assert made.get_topic(name) is None, "somebody watches it still"


def _is_own_task(task: asyncio.Task) -> bool:
    """Not of a connection, which is the cluster's."""
    return "AIOKafkaConnection" not in repr(task.get_coro())
