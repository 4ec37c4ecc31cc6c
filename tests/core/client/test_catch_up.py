from __future__ import annotations

from support.snapshot_model import PARTITIONS, KeyedTopic

from gateway.core.channel.filters import Condition, Filter, Filters
from gateway.core.client.catch_up import QUANTUM_BYTES, CatchUp, WriteBatch
from gateway.core.client.read_buffer import ReadBuffer
from gateway.core.client.shared_cursor import PrivatePositions, SharedCursor
from gateway.core.client.terms import SubscriptionTerms
from gateway.core.log.record import UNVERIFIED_LINEAGE, Gap, GapReason, PartitionPosition

A, B = PARTITIONS


class PrivateReader:
    """One that reads both partitions from their first record."""

    def __init__(self, topic: KeyedTopic, credit: int | None = None) -> None:
        self.cursor = SharedCursor(topic.channel, SubscriptionTerms(credit=credit))
        self.positions = PrivatePositions(self.cursor)
        self.catch_up = CatchUp(self.cursor, self.positions, ReadBuffer(self.cursor))
        for tp in PARTITIONS:
            self.positions.put(tp, PartitionPosition(0))

    def read_lines(self, budget: int = 1 << 20) -> list[str]:
        portion = WriteBatch(self.cursor, self.positions, budget)
        self.catch_up.read_into(portion)
        portion.flush_events()
        return b"".join(portion.pieces).decode().splitlines()


def build_topic(first: int, second: int) -> KeyedTopic:
    topic = KeyedTopic()
    for p, count in ((0, first), (1, second)):
        for _ in range(count):
            topic.write_record(p, b"a")
    return topic


def test_a_long_partition_does_not_hold_up_a_short_one():
    reader = PrivateReader(build_topic(QUANTUM_BYTES // 10, 1))
    took = reader.read_lines(2 * QUANTUM_BYTES)
    assert [line.split()[1] for line in took].index("1") < len(took) - 1
    assert A in reader.positions and B not in reader.positions


def test_a_turn_is_the_shorter_the_more_a_filter_asks():
    topic = build_topic(2000, 0)
    topic.channel.accepts = Filters(
        (Filter(fields=tuple((f"/{n}", Condition(exists=True)) for n in range(64))),)
    )
    reader = PrivateReader(topic)
    reader.read_lines(QUANTUM_BYTES)
    assert 0 < (reader.positions[A].offset or 0) < 20


def test_the_next_turn_is_of_the_one_that_had_none():
    reader = PrivateReader(build_topic(1000, 1000))
    first = {line.split()[1] for line in reader.read_lines(1)}
    second = {line.split()[1] for line in reader.read_lines(1)}
    assert (first, second) == ({"0"}, {"1"})


def test_a_partition_that_stands_where_the_tail_does_is_given_back():
    reader = PrivateReader(build_topic(2, 0))
    assert reader.read_lines() == ["record 0 0 -> 1 0", "record 0 1 -> 2 0"]
    assert reader.positions == {}


def test_one_that_is_conflated_is_sent_the_latest_until_it_rides():
    topic = build_topic(3, 2)
    reader = PrivateReader(topic)
    reader.catch_up.conflate([A])
    assert reader.read_lines() == ["record 0 2", "record 1 0", "record 1 1 -> 3 2"]
    reader.positions.put(A, PartitionPosition(1))
    assert reader.read_lines() == ["record 0 1 -> 2 2", "record 0 2 -> 3 2"]


def test_what_no_log_holds_is_lacking_where_it_may_be_read():
    topic = KeyedTopic(max_log_bytes=1)
    for _ in range(3):
        topic.write_record(0, b"a")
    reader = PrivateReader(topic)
    assert reader.catch_up.needs_backfill(A, PartitionPosition(0))
    assert not reader.catch_up.needs_backfill(A, PartitionPosition(3))
    assert not reader.catch_up.needs_backfill(A, PartitionPosition(0, 0, UNVERIFIED_LINEAGE))
    assert not reader.catch_up.needs_backfill(A, PartitionPosition(None))


def test_a_place_of_a_log_that_went_back_waits_until_that_is_in_the_log_here():
    """It was held against what the shared read had just seen, and then read from the log as
    that still was: the client got the old topic's records again, and its gap twice."""
    topic = build_topic(2, 1)
    reader = PrivateReader(topic)
    reader.positions.put(A, PartitionPosition(0, 0, lineage=1))
    assert [line.split()[1] for line in reader.read_lines()] == ["1"]
    gap = Gap(A, 2, 0, 1, GapReason.RECREATED)
    topic.logs[A].append(gap, 0.0)
    topic.tail.apply_entries([gap], 1)
    assert reader.read_lines() == []
    assert reader.positions == {}


def test_without_credit_nothing_is_read():
    topic = build_topic(3, 0)
    reader = PrivateReader(topic, credit=2)
    assert len(reader.read_lines()) == 2
    assert reader.read_lines() == [] and reader.positions[A].offset == 2
