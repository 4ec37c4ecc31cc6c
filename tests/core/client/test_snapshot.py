from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.snapshot_model import KEYS, PARTITIONS, KeyedTopic, SnapshotClient
from support.snapshot_model import list_keyless as keyless_of

from gateway.core.client.read_buffer import MAX_BUFFER_BYTES, ReadAnswer
from gateway.core.client.snapshot import Snapshot
from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import EndReason, SubscriptionTerms
from gateway.core.log.record import UNVERIFIED_LINEAGE, PartitionPosition, SnapshotEnd

A, B = PARTITIONS


def snapshot(*fresh: Any) -> Snapshot:
    return Snapshot(("prices",), set(PARTITIONS), set(fresh))


def test_it_is_closed_once_when_every_partition_is_at_its_end():
    made = snapshot(A, B)
    made.end_offsets.update({A: 3, B: 0})
    made.on_moved(A, PartitionPosition(2))
    made.on_moved(B, PartitionPosition(0))
    assert made.close_if_complete() is None
    made.on_moved(A, PartitionPosition(3))
    made.records = 7
    assert made.close_if_complete() == SnapshotEnd(("prices",), 7)
    assert made.close_if_complete() is None


def test_a_partition_at_its_end_waits_for_the_others():
    made = snapshot(A, B)
    made.end_offsets.update({A: 0, B: 9})
    made.on_moved(A, PartitionPosition(0))
    assert (made.withholds(A), made.withholds(B)) == (True, False)


def test_what_cannot_be_read_is_told_as_pending_and_comes_later():
    made = snapshot(A, B)
    made.end_offsets[A] = 0
    made.on_moved(A, PartitionPosition(0))
    made.is_overdue = True
    assert made.close_if_complete() == SnapshotEnd(("prices",), 0, (B,))
    assert not made.withholds(A), "it is live"
    assert made.is_fresh(B) and made.needs_data(B)


def test_a_table_is_held_until_its_end_or_until_its_log_goes_back():
    """Each client held the tables that it began with for as long as it was connected."""
    made, topic = snapshot(A, B), KeyedTopic()
    table = topic.build_edition(A)
    made.set_end(A, 3, PartitionPosition(0), table)
    made.set_end(B, 3, PartitionPosition(0), table)
    assert made.tables == {A: table, B: table}
    made.on_moved(A, PartitionPosition(3))
    made.forget_end(B)
    assert made.tables == {}


def test_a_place_that_was_not_held_against_the_log_is_at_no_end():
    made = snapshot()
    made.end_offsets[A] = 3
    made.on_moved(A, PartitionPosition(9, 0, UNVERIFIED_LINEAGE))
    assert A in made.remaining


def test_a_snapshot_is_the_latest_of_each_key_without_tombstones_in_the_order_of_offsets():
    topic = KeyedTopic()
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"gone", b"1"), (b"gone", None)):
        topic.write_record(0, key, value)
    client = SnapshotClient(topic, has_snapshot=True)
    assert client.take_all_lines() == ["record 0 1", "record 0 2", "snapshot-end 2 -> 5 0"]
    topic.write_record(0, b"a", None)
    assert client.take_all_lines() == ["record 0 5 -> 6 0"]
    assert client.subscription.private_reader is None


def test_what_comes_meanwhile_comes_after_its_end():
    topic = KeyedTopic()
    for _ in range(8):
        topic.write_record(0, None)
    client = SnapshotClient(topic, has_snapshot=True)
    first = client.take_lines(1)
    topic.write_record(0, b"a")
    topic.write_record(1, b"c")
    rest = client.take_all_lines()
    assert first[0] == "record 0 0 -> 1 0"
    assert rest.index("snapshot-end 8 -> 8 0") < rest.index("record 1 0 -> 8 1")


def test_a_snapshot_alone_has_what_is_written_between_its_request_and_its_table():
    """Such keys were missing: in the table they stand behind the end that was found before."""
    topic = KeyedTopic()
    for key in (b"a", b"b"):
        topic.write_record(0, key)
    client = SnapshotClient(topic, has_snapshot=True, end_offsets={A: 2, B: 0})
    topic.write_record(0, b"a")
    topic.write_record(1, b"c")
    assert client.take_all_lines() == ["record 0 1", "record 0 2", "snapshot-end 2 -> 3 0"]
    assert client.subscription.end_reason is EndReason.UNTIL


def test_a_partition_that_is_through_does_not_go_live_before_the_others():
    topic = KeyedTopic()
    topic.write_record(0, b"a")
    for _ in range(8):
        topic.write_record(1, None)
    client = SnapshotClient(topic, has_snapshot=True)
    while not client.state.table:
        client.take_lines(1)
    topic.write_record(0, b"b")
    rest = client.take_all_lines()
    end = next(n for n, line in enumerate(rest) if line.startswith("snapshot-end 9"))
    assert rest.index("record 0 1 -> 2 8") > end


@pytest.mark.parametrize("start", [0, 1], ids=["that came with its last ones", "read meanwhile"])
def test_a_partition_that_waits_for_the_others_holds_no_later_records(start: int):
    """Once they filled the buffer, no partition was read any more, and the snapshot never ended."""
    topic = KeyedTopic(max_log_bytes=1)
    for _ in range(3):
        topic.write_record(0, None, bytes(MAX_BUFFER_BYTES))
    for _ in range(2):
        topic.write_record(1, b"c")
    positions = {A: PartitionPosition(start), B: PartitionPosition(0)}
    subscription = Subscription(topic.channel, positions, SubscriptionTerms(snapshot=snapshot()))
    reader = subscription.private_reader
    assert reader is not None
    reader.set_snapshot_end(A, 1)
    if start == 0:
        reader.feed(A, positions[A], ReadAnswer(topic.written_records[A]).get_run())
        assert subscription.take(1 << 20, 0.0) == b"record 0 0 -> 1 0\n"
    reader.set_snapshot_end(B, 1)
    assert reader.list_backfills() == [(B, PartitionPosition(0))]
    reader.feed(B, positions[B], ReadAnswer(topic.written_records[B][:1]).get_run())
    assert b"snapshot-end" in subscription.take(1 << 20, 0.0)
    assert A in dict(reader.list_backfills())


def test_one_that_is_cut_within_it_goes_on_from_there_and_hears_what_was_deleted():
    topic = KeyedTopic()
    for key in (b"a", b"b", b"x", b"y"):
        topic.write_record(0, key)
    client = SnapshotClient(topic, has_snapshot=True)
    client.take_lines(1)
    assert client.state.table == {b"a": b"v"}
    topic.write_record(0, b"a", None)
    client.reconnect()
    taken = client.take_all_lines()
    assert taken == [
        "record 0 1", "record 0 2", "record 0 3", "record 0 4", "snapshot-end 4 -> 5 0"
    ]  # fmt: skip
    assert client.state.table == topic.build_table([5, 0])


def test_an_empty_topic_has_an_empty_snapshot():
    assert SnapshotClient(KeyedTopic(), has_snapshot=True).take_all_lines() == [
        "snapshot-end 0 -> 0 0"
    ]


scripts = st.lists(
    st.one_of(
        st.tuples(
            st.just("write"),
            st.integers(0, 1),
            st.integers(0, 2),
            st.sampled_from([None, b"1", b"2"]),
        ),
        st.tuples(st.sampled_from(["step", "cut"])),
        st.tuples(st.just("take"), st.integers(1, 400)),
    ),
    max_size=50,
)


@given(
    scripts,
    scripts,
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 1 << 20]),
    st.sampled_from([1, 900]),
)
def test_whoever_begins_with_a_snapshot_knows_the_topic_after_any_history(
    before, after, steps, blocks, ring, cache
):
    """At the end of a first snapshot that was not cut it knows the topic as of its id."""
    topic = KeyedTopic(is_stepped=steps, max_ring_bytes=ring, max_log_bytes=cache)
    client: SnapshotClient | None = None
    for name, *rest in (*before, ("begin",), *after, ("step",)):
        if name == "write":
            p, key, value = rest
            topic.write_record(p, KEYS[PARTITIONS[p]][key], value)
        elif name == "step":
            topic.publish_pending()
        elif name == "begin":
            client = SnapshotClient(topic, has_snapshot=True, uses_blocks=blocks)
        elif client is not None and name == "cut":
            client.reconnect()
        elif client is not None:
            client.take_lines(rest[0])
    assert client is not None
    client.take_all_lines()
    assert client.state.ended_snapshots
    assert client.state.table == topic.build_table(topic.get_end_offsets())
    assert sorted(client.state.keyless_records) == keyless_of(topic.written_records)


@given(scripts, scripts)
def test_at_its_end_a_client_knows_the_topic_as_of_its_id(before, meanwhile):
    topic = KeyedTopic()
    for name, *rest in before:
        if name == "write":
            topic.write_record(rest[0], KEYS[PARTITIONS[rest[0]]][rest[1]], rest[2])
    client = SnapshotClient(topic, has_snapshot=True)
    for name, *rest in (*meanwhile, *[("take", 1)] * 200):
        if name == "write":
            topic.write_record(rest[0], KEYS[PARTITIONS[rest[0]]][rest[1]], rest[2])
        elif name == "take":
            lines = client.take_lines(1)
            if client.state.ended_snapshots:
                assert lines[-1].startswith("snapshot-end")
                assert client.last_offsets is not None
                assert client.state.table == topic.build_table(client.last_offsets)
                return
    raise AssertionError("no end of the snapshot")
