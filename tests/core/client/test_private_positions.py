from __future__ import annotations

from support.snapshot_model import PARTITIONS, KeyedTopic

from gateway.core.client.shared_cursor import FastForwardPartitions, PrivatePositions, SharedCursor
from gateway.core.client.terms import SubscriptionTerms
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import (
    RETIRED_EPOCH,
    UNVERIFIED_LINEAGE,
    PartitionPosition,
    TopicPartition,
)

A, B = PARTITIONS


def test_who_leaves_the_ride_reads_alone_what_is_elsewhere_by_now():
    topic = KeyedTopic()
    own = PrivatePositions(SharedCursor(topic.channel))
    own.put(B, PartitionPosition(9))
    before = dict(topic.tail.position)
    for p in (0, 1):
        topic.write_record(p, b"a")
    assert own.detach_at(before) == {A}
    assert own == {A: before[A], B: PartitionPosition(9)}


def test_what_was_pending_there_begins_where_the_shared_read_did():
    topic, new = KeyedTopic(), TopicPartition("prices", 2)
    log = PartitionLog(new, 1 << 20, 60.0)
    topic.tail.add_partition(log, PartitionPosition(None))
    own = PrivatePositions(SharedCursor(topic.channel))
    own.detach(new, PartitionPosition(None, 3))
    assert own[new] == PartitionPosition(None, 3), "nobody knows yet"
    log.open(5, 4)
    own.detach(new, PartitionPosition(None, 3))
    assert own[new] == PartitionPosition(5, 4)


def test_those_who_miss_the_same_share_the_bytes_of_the_rest():
    topic = KeyedTopic()
    first, second = SharedCursor(topic.channel), SharedCursor(topic.channel)
    topic.channel.add_follower(first)  # type: ignore[arg-type]
    topic.write_record(0, b"a")
    chunk = topic.channel.get_chunk(first.next_seq)
    made = []
    for ride in (first, second):
        own = PrivatePositions(ride)
        own.put(B, PartitionPosition(7))
        made.append(own.get_cohort_data(chunk))
    assert made[0] == b"record 0 0 -> 1 7\n"
    assert made[0] is made[1]
    own.put(B, PartitionPosition(8))
    assert own.get_cohort_data(chunk) == b"record 0 0 -> 1 8\n"


def test_an_unverified_place_is_not_at_the_end():
    own = PrivatePositions(
        SharedCursor(KeyedTopic().channel, SubscriptionTerms(end_offsets={A: 3}))
    )
    own.put(A, PartitionPosition(5, 0, UNVERIFIED_LINEAGE))
    assert not own.has_reached_end(A)
    own.put(A, PartitionPosition(3))
    assert own.has_reached_end(A)


def test_what_holds_nothing_is_spared_unless_its_client_would_go_back_or_not_hear_of_it():
    topic = KeyedTopic()
    topic.write_record(1, b"a")
    own = PrivatePositions(SharedCursor(topic.channel))
    for place, passes in (
        (PartitionPosition(0, 0, UNVERIFIED_LINEAGE), True),
        (PartitionPosition(2, 0, UNVERIFIED_LINEAGE), False),
        (PartitionPosition(0, RETIRED_EPOCH, UNVERIFIED_LINEAGE), False),
    ):
        own.put(B, place)
        spared = FastForwardPartitions(lambda tp: tp == A, own)
        assert spared.remaining == {B}
        assert [tp for tp, _ in spared.iter_ready(own, topic.tail)] == ([B] if passes else [])
        assert not spared.remaining
