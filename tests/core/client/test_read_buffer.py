from __future__ import annotations

from support.keyed import PARTITIONS, Topic

from gateway.core.channel.conflation import weight
from gateway.core.client.read_buffer import BACKLOG, Backlog
from gateway.core.client.shared_cursor import Ride
from gateway.core.log.position import Place

A, B = PARTITIONS


def topic_of(records: int, cache: int = 1) -> Topic:
    topic = Topic(cache=cache)
    for _ in range(records):
        topic.write(0, b"a")
    return topic


def test_what_comes_from_kafka_waits_and_weighs_until_it_is_taken():
    topic = topic_of(4)
    backlog, log = Backlog(Ride(topic.channel)), topic.logs[A]
    backlog.feed(A, topic.written[A][:3])
    assert backlog.has(A) and not backlog.has(B)
    assert backlog.bytes == sum(map(weight, topic.written[A][:3]))
    taken = backlog.following(A, log, Place(0))
    assert next(taken) == topic.written[A][0]
    assert backlog.bytes == sum(map(weight, topic.written[A][1:3]))
    assert list(taken) == topic.written[A][1:3]
    assert (backlog.bytes, backlog.has(A)) == (0, False)


def test_what_a_log_holds_is_read_from_it_and_what_waited_is_dropped():
    topic = topic_of(4, cache=1 << 20)
    backlog = Backlog(Ride(topic.channel))
    backlog.feed(A, topic.written[A][1:3])
    assert list(backlog.following(A, topic.logs[A], Place(1))) == topic.written[A][1:]
    assert backlog.bytes == 0


def test_nothing_comes_that_the_tail_has_not_seen():
    topic = Topic(steps=True)
    for _ in range(2):
        topic.write(0, b"a")
    backlog = Backlog(Ride(topic.channel))
    assert list(backlog.following(A, topic.logs[A], Place(0))) == []
    bounded = Backlog(Ride(topic.channel, count=2))
    assert list(bounded.following(A, topic.logs[A], Place(0))) == topic.written[A]


def test_more_is_not_taken_in_before_what_is_there_was_taken():
    topic = topic_of(4)
    backlog = Backlog(Ride(topic.channel))
    backlog.feed(A, topic.written[A][:1])
    backlog.feed(A, topic.written[A][:3])
    assert list(backlog.following(A, topic.logs[A], Place(0))) == topic.written[A][:1]


def test_it_is_full_by_all_that_waits_and_empty_once_that_is_dropped():
    topic = topic_of(4)
    backlog = Backlog(Ride(topic.channel))
    backlog.feed(A, topic.written[A][:1])
    backlog.bring(B, topic.written[A][1:2] * (BACKLOG // weight(topic.written[A][1]) + 1))
    assert backlog.full
    backlog.drop(B)
    assert not backlog.full and list(backlog.given(B)) == []


def test_a_stretch_is_gone_on_with_until_it_is_done():
    topic = topic_of(2)
    backlog = Backlog(Ride(topic.channel))
    stretch = backlog.stretch(A, Place(0))
    stretch.add(topic.written[A][0])
    assert backlog.stretch(A, Place(0)) is stretch
    assert backlog.gathers(A) and backlog.bytes == weight(topic.written[A][0])
    stretch.close()
    assert list(stretch.take()) == topic.written[A][:1]
    assert not backlog.gathers(A)
    assert backlog.stretch(A, Place(1)).start == 1
