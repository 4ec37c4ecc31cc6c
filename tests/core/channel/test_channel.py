from __future__ import annotations

from collections.abc import Sequence

from support.per_event_encoder import PerEventEncoder

from gateway.core.channel.channel import Channel
from gateway.core.channel.chunk_ring import MAX_FOLLOWERS_WITHOUT_RING, RingBudget
from gateway.core.channel.tail import Tail
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import (
    Entry,
    PartitionPosition,
    Position,
    Ready,
    Record,
    Skip,
    TopicPartition,
)
from gateway.core.token.resume_token import parse_token

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


class OffsetEncoder(PerEventEncoder):
    def encode_entry(self, entry: Entry) -> bytes | None:
        return b"%d" % entry.offset if type(entry) is Record else None

    def encode_position(self) -> bytes:
        return b"position"

    def encode_event_end(self, token: bytes | None) -> bytes:
        if token is None:
            return b"\n"
        return (f" -> {parse_token(token.decode()).topics[0].offsets}\n").encode()


class FakeFollower:
    next_seq = 0
    fallen_position: Position | None = None
    is_slow: bool | None = None
    notices: Sequence[bytes] = ()

    def wake(self) -> None:
        pass

    def fall_behind(
        self, position: Position, notices: Sequence[bytes] = (), *, is_slow: bool = True
    ) -> None:
        self.fallen_position, self.notices, self.is_slow = position, notices, is_slow


def record(tp: TopicPartition, offset: int, size: int = 1) -> Record:
    return Record(tp, offset, 0, 0, b"odd" if offset % 2 else b"even", b"v" * size)


def build_tail(kind: type[Tail] = Tail) -> Tail:
    logs = [PartitionLog(tp, 1 << 20, 60.0) for tp in (A, B)]
    for log in logs:
        log.open(0, 0)
    return kind("cluster", logs, {"orders": "id"})


def publish_entries(tail: Tail, channel: Channel, *entries: Entry) -> bytes:
    for entry in entries:
        tail.logs[entry.tp].append(entry, 0.0)
    chunk = channel.publish(tail.apply_entries(entries, 1))
    return chunk.data if chunk is not None else b""


def test_a_turn_is_one_chunk_and_every_event_has_its_own_id():
    tail = build_tail()
    channel = Channel(tail, b"view-", OffsetEncoder())
    assert (
        publish_entries(tail, channel, record(A, 0), record(B, 0)) == b"0 -> [1, 0]\n0 -> [1, 1]\n"
    )


def test_what_is_filtered_moves_the_next_id_and_idle_clients_hear_of_it():
    tail = build_tail()
    channel = Channel(tail, b"view-", OffsetEncoder(), lambda record: record.key == b"even")
    assert publish_entries(tail, channel, record(A, 0), record(A, 1), record(A, 2)) == (
        b"0 -> [1, 0]\n2 -> [3, 0]\n"
    )
    assert publish_entries(tail, channel, record(A, 3), Skip(A, 4, 6, 0)) == b""
    chunk = channel.announce_position()
    assert chunk is not None
    assert chunk.data == b"position -> [6, 0]\n"
    assert channel.announce_position() is None


def test_a_cohort_gets_the_same_events_without_its_partitions_and_ids_of_its_own():
    tail = build_tail()
    channel = Channel(tail, b"view-", OffsetEncoder())
    publish_entries(tail, channel, record(A, 0), record(B, 0), record(A, 1))
    own = {B: PartitionPosition(7)}
    data = channel.get_cohort_data(channel.get_chunk(0), own, ("key",), None)
    assert data == b"0 -> [1, 7]\n1 -> [2, 7]\n"
    assert channel.get_cohort_data(channel.get_chunk(0), own, ("key",), None) is data


class LongTokenTail(Tail):
    MAX_EXACT_TOKEN_CHARS = 0


def test_long_ids_do_not_go_with_every_event():
    tail = build_tail(LongTokenTail)
    channel = Channel(tail, b"view-", OffsetEncoder())
    assert publish_entries(tail, channel, record(A, 0), record(A, 1)) == b"0\n1\n"
    chunk = channel.announce_position()
    assert chunk is not None
    assert chunk.data == b"position -> [2, 0]\n"


def test_who_falls_out_of_the_ring_is_told_the_position_before_what_it_lost():
    tail = build_tail()
    channel, follower = (
        Channel(tail, b"view-", OffsetEncoder(), ring_budget=RingBudget(max_ring_bytes=1)),
        FakeFollower(),
    )
    channel.add_follower(follower)
    publish_entries(tail, channel, record(A, 0))
    follower.next_seq = channel.next_seq
    publish_entries(tail, channel, record(A, 1))
    assert follower.fallen_position is None
    publish_entries(tail, channel, record(A, 2))
    assert follower.fallen_position is not None
    assert follower.fallen_position[A] == PartitionPosition(1, 0)
    assert channel.next_seq - channel.first_seq == 1


def test_a_chunk_of_ready_partitions_alone_says_so():
    tail = build_tail()
    encoder = OffsetEncoder()
    encoder.encode_entry = lambda entry: b"ready"  # type: ignore[method-assign]
    channel = Channel(tail, b"view-", encoder)
    chunk = channel.publish(tail.apply_entries([Ready(A, 0, 0, 0)], 1))
    assert chunk is not None
    assert chunk.is_only_ready


def test_what_a_few_all_have_is_not_held_and_what_one_lacks_is():
    tail = build_tail()
    channel = Channel(tail, b"view-", OffsetEncoder())
    one, other = FakeFollower(), FakeFollower()
    channel.followers = (one, other)
    publish_entries(tail, channel, record(A, 0))
    publish_entries(tail, channel, record(A, 1))
    one.next_seq, other.next_seq = 2, 1
    channel.drop_if_caught_up()
    assert channel.join_chunks(1).startswith(b"1")
    other.next_seq = 2
    channel.drop_if_caught_up()
    assert (channel.first_seq, channel.next_seq, channel.bytes) == (2, 2, 0)
    assert channel.oldest_position == tail.position
    publish_entries(tail, channel, record(A, 2))
    assert channel.join_chunks(2).startswith(b"2")
    assert one.fallen_position is other.fallen_position is None


def test_what_many_have_is_held_for_those_who_come_back():
    tail = build_tail()
    channel = Channel(tail, b"view-", OffsetEncoder())
    channel.followers = tuple(FakeFollower() for _ in range(MAX_FOLLOWERS_WITHOUT_RING + 1))
    publish_entries(tail, channel, record(A, 0))
    for follower in channel.followers:
        follower.next_seq = channel.next_seq
    channel.drop_if_caught_up()
    assert channel.first_seq == 0 and channel.join_chunks(0).startswith(b"0")


def build_dropped_channel(*cursors: int, sleeping: bool) -> tuple[Channel, list[FakeFollower]]:
    """A channel of three chunks, which its followers have as far as this, that drops them all."""
    tail = build_tail()
    channel = Channel(tail, b"view-", OffsetEncoder())
    followers = [FakeFollower() for _ in cursors]
    channel.followers = tuple(followers)
    for follower in followers if sleeping else ():
        channel.start_waking(follower)
    for offset in range(3):
        publish_entries(tail, channel, record(A, offset))
    for follower, cursor in zip(followers, cursors, strict=True):
        follower.next_seq = cursor
    channel.drop_all()
    return channel, followers


def test_whoever_is_written_to_in_rounds_is_not_slow_when_room_is_made():
    """Clients that kept up skipped records, or were disconnected, because the rings of others
    were full within the turn that brought the records."""
    channel, followers = build_dropped_channel(0, 2, 3, sleeping=False)
    assert [follower.is_slow for follower in followers] == [False, False, None]
    assert channel.bytes == channel.ring_budget.bytes == 0


def test_whoever_is_not_is_slow_if_it_lacks_more_than_the_newest_chunk():
    _, followers = build_dropped_channel(0, 1, 2, 3, sleeping=True)
    assert [follower.is_slow for follower in followers] == [True, True, False, None]


def test_readiness_in_dropped_chunks_is_told_all_the_same():
    """No log has it: a client was never told that a partition was ready."""

    class ReadyEncoder(OffsetEncoder):
        def encode_entry(self, entry: Entry) -> bytes | None:
            return b"ready" if type(entry) is Ready else super().encode_entry(entry)

    tail = build_tail()
    channel = Channel(tail, b"view-", ReadyEncoder())
    follower = FakeFollower()
    channel.followers = (follower,)
    channel.publish(tail.apply_entries([Ready(B, 0, 0, 0)], 1))
    publish_entries(tail, channel, record(A, 0))
    channel.announce_position()
    channel.drop_all()
    assert follower.notices == [b"ready"]


def test_a_position_is_the_same_however_it_is_asked_for():
    tail = build_tail()
    for offset in range(6):
        for tp in (A, B):
            tail.logs[tp].append(record(tp, offset), 0.0)
            tail.apply_entries([record(tp, offset)], 1)
    fresh = [build_tail() for _ in range(13)]
    for other in fresh:
        for offset in range(6):
            for tp in (A, B):
                other.logs[tp].append(record(tp, offset), 0.0)
                other.apply_entries([record(tp, offset)], 1)
    wanted = [other.position_before(seq) for seq, other in enumerate(fresh)]
    for seq in (3, 3, 9, 12, 5, 6, 0, 12):
        assert tail.position_before(seq) == wanted[seq]
    tail.forget_updates(5)
    for seq in (12, 5, 7):
        assert tail.position_before(seq) == wanted[seq]
