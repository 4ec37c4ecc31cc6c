from __future__ import annotations

from support.keyed import PARTITIONS, Topic

from gateway.core.client.private_positions import Own, Spared
from gateway.core.client.shared_cursor import Ride
from gateway.core.log.partition_log import Log
from gateway.core.log.position import RETIRED, UNVERIFIED, Place
from gateway.core.log.record import TopicPartition

A, B = PARTITIONS


def test_who_leaves_the_ride_reads_alone_what_is_elsewhere_by_now():
    topic = Topic()
    own = Own(Ride(topic.channel))
    own.put(B, Place(9))
    before = dict(topic.tail.position)
    for p in (0, 1):
        topic.write(p, b"a")
    assert own.part(before) == {A}
    assert own == {A: before[A], B: Place(9)}


def test_what_was_pending_there_begins_where_the_shared_read_did():
    topic, new = Topic(), TopicPartition("prices", 2)
    log = Log(new, 1 << 20, 60.0)
    topic.tail.add(log, Place(None))
    own = Own(Ride(topic.channel))
    own.leave(new, Place(None, 3))
    assert own[new] == Place(None, 3), "nobody knows yet"
    log.open(5, 4)
    own.leave(new, Place(None, 3))
    assert own[new] == Place(5, 4)


def test_those_who_miss_the_same_share_the_bytes_of_the_rest():
    topic = Topic()
    first, second = Ride(topic.channel), Ride(topic.channel)
    topic.channel.followers.add(first)  # type: ignore[arg-type]
    topic.write(0, b"a")
    chunk = topic.channel.chunk(first.cursor)
    made = []
    for ride in (first, second):
        own = Own(ride)
        own.put(B, Place(7))
        made.append(own.without(chunk))
    assert made[0] == b"record 0 0 -> 1 7\n"
    assert made[0] is made[1]
    own.put(B, Place(8))
    assert own.without(chunk) == b"record 0 0 -> 1 8\n"


def test_an_unverified_place_is_not_at_the_end():
    own = Own(Ride(Topic().channel, until={A: 3}))
    own.put(A, Place(5, 0, UNVERIFIED))
    assert not own.is_through(A)
    own.put(A, Place(3))
    assert own.is_through(A)


def test_what_holds_nothing_is_spared_unless_its_client_would_go_back_or_not_hear_of_it():
    topic = Topic()
    topic.write(1, b"a")
    own = Own(Ride(topic.channel))
    for place, passes in (
        (Place(0, 0, UNVERIFIED), True),
        (Place(2, 0, UNVERIFIED), False),
        (Place(0, RETIRED, UNVERIFIED), False),
    ):
        own.put(B, place)
        spared = Spared(lambda tp: tp == A, own)
        assert spared.left == {B}
        assert [tp for tp, _ in spared.passed(own, topic.tail)] == ([B] if passes else [])
        assert not spared.left
