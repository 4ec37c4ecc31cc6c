from __future__ import annotations

from support.snapshot_model import PARTITIONS, KeyedTopic

from gateway.core.client.shared_cursor import SharedCursor
from gateway.core.log.position import PartitionPosition

A, B = PARTITIONS


def split_lines(data: bytes) -> list[str]:
    return data.decode().splitlines()


def test_it_is_sent_whole_chunks_until_the_budget_is_spent():
    topic = KeyedTopic()
    ride = SharedCursor(topic.channel)
    topic.channel.followers.add(ride)  # type: ignore[arg-type]
    for _ in range(3):
        topic.write_record(0, b"a")
    assert split_lines(ride.read_chunks(1)) == ["record 0 0 -> 1 0"]
    assert ride.has_more
    assert split_lines(ride.read_chunks(1000)) == ["record 0 1 -> 2 0", "record 0 2 -> 3 0"]
    assert not ride.has_more and ride.read_chunks(1) == b""


def test_with_a_credit_it_is_sent_what_that_pays_for_and_says_where_it_pays_for_a_part():
    topic = KeyedTopic(is_stepped=True)
    ride = SharedCursor(topic.channel, credit=2)
    topic.channel.followers.add(ride)  # type: ignore[arg-type]
    for keys in ([b"a"], [b"a", b"b"]):
        for key in keys:
            topic.write_record(0, key)
        topic.publish_pending()
    assert split_lines(ride.read_chunks(1000)) == ["record 0 0 -> 1 0"]
    assert (ride.credit, ride.has_more, ride.read_chunks(1000)) == (1, True, b"")
    ride.credit = 0
    assert ride.read_chunks(1000) == b"" and not ride.has_more
    ride.credit = 2
    assert split_lines(ride.read_chunks(1000)) == ["record 0 1", "record 0 2 -> 3 0"]


def test_on_its_way_it_stands_where_its_next_chunk_begins():
    topic = KeyedTopic()
    ride = SharedCursor(topic.channel)
    topic.channel.followers.add(ride)  # type: ignore[arg-type]
    topic.write_record(0, b"a")
    topic.write_record(1, b"c")
    own = {B: PartitionPosition(7)}
    assert {tp: place.offset for tp, place in ride.merge_positions(own).items()} == {A: 0, B: 7}
    ride.read_chunks(1)
    assert ride.merge_positions({}) == {A: PartitionPosition(1, 0), B: PartitionPosition(0, 0)}
