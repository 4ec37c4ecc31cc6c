from __future__ import annotations

from support.keyed import PARTITIONS, Topic

from gateway.core.client.catch_up import QUANTUM, CatchUp
from gateway.core.client.private_positions import Own
from gateway.core.client.read_buffer import Backlog
from gateway.core.client.shared_cursor import Ride
from gateway.core.client.write_batch import Portion
from gateway.core.log.position import UNVERIFIED, Place
from gateway.core.log.record import Gap, Reason

A, B = PARTITIONS


class Reader:
    """One that reads both partitions from their first record."""

    def __init__(self, topic: Topic, credit: int | None = None) -> None:
        self.ride = Ride(topic.channel, credit=credit)
        self.own = Own(self.ride)
        self.catch_up = CatchUp(self.ride, self.own, Backlog(self.ride))
        for tp in PARTITIONS:
            self.own.put(tp, Place(0))

    def read(self, budget: int = 1 << 20) -> list[str]:
        portion = Portion(self.ride, self.own, budget)
        self.catch_up.read(portion)
        portion.render()
        return b"".join(portion.pieces).decode().splitlines()


def topic_of(first: int, second: int) -> Topic:
    topic = Topic()
    for p, count in ((0, first), (1, second)):
        for _ in range(count):
            topic.write(p, b"a")
    return topic


def test_a_long_partition_does_not_hold_up_a_short_one():
    reader = Reader(topic_of(QUANTUM // 10, 1))
    took = reader.read(2 * QUANTUM)
    assert [line.split()[1] for line in took].index("1") < len(took) - 1
    assert A in reader.own and B not in reader.own


def test_the_next_turn_is_of_the_one_that_had_none():
    reader = Reader(topic_of(1000, 1000))
    first = {line.split()[1] for line in reader.read(1)}
    second = {line.split()[1] for line in reader.read(1)}
    assert (first, second) == ({"0"}, {"1"})


def test_a_partition_that_stands_where_the_tail_does_is_given_back():
    reader = Reader(topic_of(2, 0))
    assert reader.read() == ["record 0 0 -> 1 0", "record 0 1 -> 2 0"]
    assert reader.own == {}


def test_one_that_is_conflated_is_sent_the_latest_until_it_rides():
    topic = topic_of(3, 2)
    reader = Reader(topic)
    reader.catch_up.conflate([A])
    assert reader.read() == ["record 0 2", "record 1 0", "record 1 1 -> 3 2"]
    reader.own.put(A, Place(1))
    assert reader.read() == ["record 0 1 -> 2 2", "record 0 2 -> 3 2"]


def test_what_no_log_holds_is_lacking_where_it_may_be_read():
    topic = Topic(cache=1)
    for _ in range(3):
        topic.write(0, b"a")
    reader = Reader(topic)
    assert reader.catch_up.lacks(A, Place(0))
    assert not reader.catch_up.lacks(A, Place(3))
    assert not reader.catch_up.lacks(A, Place(0, 0, UNVERIFIED))
    assert not reader.catch_up.lacks(A, Place(None))


def test_a_place_of_a_log_that_went_back_waits_until_that_is_in_the_log_here():
    """It was held against what the shared read had just seen, and then read from the log as
    that still was: the client got the old topic's records again, and its gap twice."""
    topic = topic_of(2, 1)
    reader = Reader(topic)
    reader.own.put(A, Place(0, 0, lineage=1))
    assert [line.split()[1] for line in reader.read()] == ["1"]
    gap = Gap(A, 2, 0, 1, Reason.RECREATED)
    topic.logs[A].append(gap, 0.0)
    topic.tail.turn([gap], 1)
    assert reader.read() == []
    assert reader.own == {}


def test_without_credit_nothing_is_read():
    topic = topic_of(3, 0)
    reader = Reader(topic, credit=2)
    assert len(reader.read()) == 2
    assert reader.read() == [] and reader.own[A].offset == 2
