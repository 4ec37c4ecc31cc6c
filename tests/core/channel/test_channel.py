from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.rendering import Rendering

from gateway.core.channel.channel import FEW, Channel
from gateway.core.log import tail as tails
from gateway.core.log.partition_log import Log
from gateway.core.log.position import Place, Position
from gateway.core.log.record import Entry, Ready, Record, Skip, TopicPartition
from gateway.core.log.tail import Tail
from gateway.core.token.resume_token import decode

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Lines(Rendering):
    def head(self, entry: Entry) -> bytes | None:
        return b"%d" % entry.offset if type(entry) is Record else None

    def position(self) -> bytes:
        return b"position"

    def end(self, token: bytes | None) -> bytes:
        if token is None:
            return b"\n"
        return (f" -> {decode(token.decode()).topics[0].offsets}\n").encode()


class Follower:
    cursor = 0
    fell: Position | None = None
    slow: bool | None = None
    notices: Sequence[bytes] = ()

    def wake(self) -> None:
        pass

    def fall(
        self, position: Position, notices: Sequence[bytes] = (), *, is_slow: bool = True
    ) -> None:
        self.fell, self.notices, self.slow = position, notices, is_slow


def record(tp: TopicPartition, offset: int, size: int = 1) -> Record:
    return Record(tp, offset, 0, 0, b"odd" if offset % 2 else b"even", b"v" * size)


def opened() -> Tail:
    logs = [Log(tp, 1 << 20, 60.0) for tp in (A, B)]
    for log in logs:
        log.open(0, 0)
    return Tail("cluster", logs, {"orders": "id"})


def publish(tail: Tail, channel: Channel, *entries: Entry) -> bytes:
    for entry in entries:
        tail.logs[entry.tp].append(entry, 0.0)
    chunk = channel.publish(tail.turn(entries, 1))
    return chunk.data if chunk is not None else b""


def test_a_turn_is_one_chunk_and_every_event_has_its_own_id():
    tail = opened()
    channel = Channel(tail, b"view-", Lines())
    assert publish(tail, channel, record(A, 0), record(B, 0)) == b"0 -> [1, 0]\n0 -> [1, 1]\n"


def test_what_is_filtered_moves_the_next_id_and_idle_clients_hear_of_it():
    tail = opened()
    channel = Channel(tail, b"view-", Lines(), lambda record: record.key == b"even")
    assert publish(tail, channel, record(A, 0), record(A, 1), record(A, 2)) == (
        b"0 -> [1, 0]\n2 -> [3, 0]\n"
    )
    assert publish(tail, channel, record(A, 3), Skip(A, 4, 6, 0)) == b""
    chunk = channel.announce()
    assert chunk is not None
    assert chunk.data == b"position -> [6, 0]\n"
    assert channel.announce() is None


def test_a_cohort_gets_the_same_events_without_its_partitions_and_ids_of_its_own():
    tail = opened()
    channel = Channel(tail, b"view-", Lines())
    publish(tail, channel, record(A, 0), record(B, 0), record(A, 1))
    own = {B: Place(7)}
    data = channel.cohort(channel.chunk(0), own, ("key",), None)
    assert data == b"0 -> [1, 7]\n1 -> [2, 7]\n"
    assert channel.cohort(channel.chunk(0), own, ("key",), None) is data


def test_long_ids_do_not_go_with_every_event(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tails, "EXACT_TOKEN", 0)
    tail = opened()
    channel = Channel(tail, b"view-", Lines())
    assert publish(tail, channel, record(A, 0), record(A, 1)) == b"0\n1\n"
    chunk = channel.announce()
    assert chunk is not None
    assert chunk.data == b"position -> [2, 0]\n"


def test_who_falls_out_of_the_ring_is_told_the_position_before_what_it_lost():
    tail = opened()
    channel, follower = Channel(tail, b"view-", Lines(), max_bytes=1), Follower()
    channel.followers.add(follower)
    publish(tail, channel, record(A, 0))
    follower.cursor = channel.head
    publish(tail, channel, record(A, 1))
    assert follower.fell is None
    publish(tail, channel, record(A, 2))
    assert follower.fell is not None
    assert follower.fell[A] == Place(1, 0)
    assert channel.head - channel.first == 1


def test_a_chunk_of_ready_partitions_alone_says_so():
    tail = opened()
    encoder = Lines()
    encoder.head = lambda entry: b"ready"  # type: ignore[method-assign]
    channel = Channel(tail, b"view-", encoder)
    chunk = channel.publish(tail.turn([Ready(A, 0, 0, 0)], 1))
    assert chunk is not None
    assert chunk.only_ready


def test_what_a_few_all_have_is_not_held_and_what_one_lacks_is():
    tail = opened()
    channel = Channel(tail, b"view-", Lines())
    one, other = Follower(), Follower()
    channel.followers = {one, other}
    publish(tail, channel, record(A, 0))
    publish(tail, channel, record(A, 1))
    one.cursor, other.cursor = 2, 1
    channel.let_go()
    assert channel.joined(1).startswith(b"1")
    other.cursor = 2
    channel.let_go()
    assert (channel.first, channel.head, channel.bytes) == (2, 2, 0)
    assert channel.oldest == tail.position
    publish(tail, channel, record(A, 2))
    assert channel.joined(2).startswith(b"2")
    assert one.fell is other.fell is None


def test_what_many_have_is_held_for_those_who_come_back():
    tail = opened()
    channel = Channel(tail, b"view-", Lines())
    channel.followers = {Follower() for _ in range(FEW + 1)}
    publish(tail, channel, record(A, 0))
    for follower in channel.followers:
        follower.cursor = channel.head
    channel.let_go()
    assert channel.first == 0 and channel.joined(0).startswith(b"0")


def falling(*cursors: int, sleeping: bool) -> tuple[Channel, list[Follower]]:
    """A channel of three chunks, which its followers have as far as this, that drops them all."""
    tail = opened()
    channel = Channel(tail, b"view-", Lines())
    followers = [Follower() for _ in cursors]
    channel.followers = set(followers)
    channel.sleepers = set(followers) if sleeping else set()
    for offset in range(3):
        publish(tail, channel, record(A, offset))
    for follower, cursor in zip(followers, cursors, strict=True):
        follower.cursor = cursor
    channel.drop_all()
    return channel, followers


def test_whoever_is_written_to_in_rounds_is_not_slow_when_room_is_made():
    """Clients that kept up skipped records, or were disconnected, because the rings of others
    were full within the turn that brought the records."""
    channel, followers = falling(0, 2, 3, sleeping=False)
    assert [follower.slow for follower in followers] == [False, False, None]
    assert channel.bytes == channel.rings.bytes == 0


def test_whoever_is_not_is_slow_if_it_lacks_more_than_the_newest_chunk():
    _, followers = falling(0, 1, 2, 3, sleeping=True)
    assert [follower.slow for follower in followers] == [True, True, False, None]


def test_readiness_in_dropped_chunks_is_told_all_the_same():
    """No log has it: a client was never told that a partition was ready."""

    class Telling(Lines):
        def head(self, entry: Entry) -> bytes | None:
            return b"ready" if type(entry) is Ready else super().head(entry)

    tail = opened()
    channel = Channel(tail, b"view-", Telling())
    follower = Follower()
    channel.followers = {follower}
    channel.publish(tail.turn([Ready(B, 0, 0, 0)], 1))
    publish(tail, channel, record(A, 0))
    channel.announce()
    channel.drop_all()
    assert follower.notices == [b"ready"]


def test_a_position_is_the_same_however_it_is_asked_for():
    tail = opened()
    for offset in range(6):
        for tp in (A, B):
            tail.logs[tp].append(record(tp, offset), 0.0)
            tail.turn([record(tp, offset)], 1)
    fresh = [opened() for _ in range(13)]
    for other in fresh:
        for offset in range(6):
            for tp in (A, B):
                other.logs[tp].append(record(tp, offset), 0.0)
                other.turn([record(tp, offset)], 1)
    wanted = [other.position_before(seq) for seq, other in enumerate(fresh)]
    for seq in (3, 3, 9, 12, 5, 6, 0, 12):
        assert tail.position_before(seq) == wanted[seq]
    tail.forget(5)
    for seq in (12, 5, 7):
        assert tail.position_before(seq) == wanted[seq]
