from __future__ import annotations

from support.snapshot_model import PARTITIONS, KeyedTopic

from gateway.core.client.shared_cursor import SharedCursor
from gateway.core.client.terms import EndReason, SubscriptionTerms
from gateway.core.log.record import PartitionPosition

A, B = PARTITIONS


def split_lines(data: bytes) -> list[str]:
    return data.decode().splitlines()


def test_it_is_sent_whole_chunks_until_the_budget_is_spent():
    topic = KeyedTopic()
    ride = SharedCursor(topic.channel)
    topic.channel.add_follower(ride)  # type: ignore[arg-type]
    for _ in range(3):
        topic.write_record(0, b"a")
    assert split_lines(ride.read_chunks(1, 0.0)) == ["record 0 0 -> 1 0"]
    assert ride.has_more
    assert split_lines(ride.read_chunks(1000, 0.0)) == ["record 0 1 -> 2 0", "record 0 2 -> 3 0"]
    assert not ride.has_more and ride.read_chunks(1, 0.0) == b""


def test_with_a_credit_it_is_sent_what_that_pays_for_and_says_where_it_pays_for_a_part():
    topic = KeyedTopic(is_stepped=True)
    ride = SharedCursor(topic.channel, SubscriptionTerms(credit=2))
    topic.channel.add_follower(ride)  # type: ignore[arg-type]
    for keys in ([b"a"], [b"a", b"b"]):
        for key in keys:
            topic.write_record(0, key)
        topic.publish_pending()
    assert split_lines(ride.read_chunks(1000, 0.0)) == ["record 0 0 -> 1 0"]
    assert (ride.credit, ride.has_more, ride.read_chunks(1000, 0.0)) == (1, True, b"")
    ride.limit_credit(0)
    assert ride.read_chunks(1000, 0.0) == b"" and not ride.has_more
    ride.limit_credit(2)
    assert split_lines(ride.read_chunks(1000, 0.0)) == ["record 0 1", "record 0 2 -> 3 0"]


def test_on_its_way_it_stands_where_its_next_chunk_begins():
    topic = KeyedTopic()
    ride = SharedCursor(topic.channel)
    topic.channel.add_follower(ride)  # type: ignore[arg-type]
    topic.write_record(0, b"a")
    topic.write_record(1, b"c")
    own = {B: PartitionPosition(7)}
    assert {tp: place.offset for tp, place in ride.merge_positions(own).items()} == {A: 0, B: 7}
    ride.read_chunks(1, 0.0)
    assert ride.merge_positions({}) == {A: PartitionPosition(1, 0), B: PartitionPosition(0, 0)}


def test_the_first_reason_of_an_end_counts():
    cursor = SharedCursor(KeyedTopic().channel)
    cursor.end(EndReason.DRAIN)
    cursor.end(EndReason.SLOW)
    assert cursor.end_reason == "drain"


def test_credit_is_granted_to_those_who_asked_for_a_limit_only():
    topic = KeyedTopic()
    limited = SharedCursor(topic.channel, SubscriptionTerms(credit=1))
    unlimited = SharedCursor(topic.channel)
    for cursor in (limited, unlimited):
        cursor.grant_credit(2)
    assert (limited.credit, unlimited.credit) == (3, None)


def test_the_last_record_that_was_asked_for_ends_the_stream():
    cursor = SharedCursor(KeyedTopic().channel, SubscriptionTerms(max_records=2, credit=5))
    cursor.count_private_record()
    assert (cursor.end_reason, cursor.remaining_records, cursor.credit) == (None, 1, 4)
    cursor.count_private_record()
    assert cursor.end_reason == "until"
