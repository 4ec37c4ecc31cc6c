from __future__ import annotations

from support.keyed import PARTITIONS, Topic

from gateway.core.client.shared_cursor import Ride
from gateway.core.log.position import Place

A, B = PARTITIONS


def lines(data: bytes) -> list[str]:
    return data.decode().splitlines()


def test_it_is_sent_whole_chunks_until_the_budget_is_spent():
    topic = Topic()
    ride = Ride(topic.channel)
    topic.channel.followers.add(ride)  # type: ignore[arg-type]
    for _ in range(3):
        topic.write(0, b"a")
    assert lines(ride.along(1)) == ["record 0 0 -> 1 0"]
    assert ride.more
    assert lines(ride.along(1000)) == ["record 0 1 -> 2 0", "record 0 2 -> 3 0"]
    assert not ride.more and ride.along(1) == b""


def test_with_a_credit_it_is_sent_what_that_pays_for_and_says_where_it_pays_for_a_part():
    topic = Topic(steps=True)
    ride = Ride(topic.channel, credit=2)
    topic.channel.followers.add(ride)  # type: ignore[arg-type]
    for keys in ([b"a"], [b"a", b"b"]):
        for key in keys:
            topic.write(0, key)
        topic.step()
    assert lines(ride.along(1000)) == ["record 0 0 -> 1 0"]
    assert (ride.credit, ride.more, ride.along(1000)) == (1, True, b"")
    ride.credit = 0
    assert ride.along(1000) == b"" and not ride.more
    ride.credit = 2
    assert lines(ride.along(1000)) == ["record 0 1", "record 0 2 -> 3 0"]


def test_on_its_way_it_stands_where_its_next_chunk_begins():
    topic = Topic()
    ride = Ride(topic.channel)
    topic.channel.followers.add(ride)  # type: ignore[arg-type]
    topic.write(0, b"a")
    topic.write(1, b"c")
    own = {B: Place(7)}
    assert {tp: place.offset for tp, place in ride.places_with(own).items()} == {A: 0, B: 7}
    ride.along(1)
    assert ride.places_with({}) == {A: Place(1, 0), B: Place(0, 0)}
