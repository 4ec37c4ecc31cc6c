from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.filtering import records, some_filters
from support.rendering import Rendering

from gateway.core.channel import channel as channels
from gateway.core.channel.channel import Channel
from gateway.core.channel.dispatcher import MOST_TURNS, Spread
from gateway.core.channel.filters import Filter, Filters
from gateway.core.log import tail as tails
from gateway.core.log.partition_log import Log
from gateway.core.log.position import Place, Position
from gateway.core.log.record import Entry, Fault, Gap, Ready, Reason, Record, Skip, TopicPartition
from gateway.core.log.tail import Tail
from gateway.core.token.resume_token import decode

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
EVERYTHING = Filters()


class Lines(Rendering):
    """Says what it is asked for a head of."""

    def __init__(self, ready: bool = True) -> None:
        self.asked: list[Entry] = []
        self.ready = ready

    def head(self, entry: Entry) -> bytes | None:
        self.asked.append(entry)
        if type(entry) is Skip or (type(entry) is Ready and not self.ready):
            return None
        return f"{type(entry).__name__} {entry.tp.partition} {entry.offset}".encode()

    def position(self) -> bytes:
        return b"position"

    def end(self, token: bytes | None) -> bytes:
        if token is None:
            return b"\n"
        return (f" -> {decode(token.decode()).topics[0].offsets}\n").encode()


class Follower:
    cursor = 0
    fell: Position | None = None

    def wake(self) -> None: ...

    def fall(
        self, position: Position, notices: Sequence[bytes] = (), *, is_slow: bool = True
    ) -> None:
        self.fell = position


def opened() -> Tail:
    logs = [Log(tp, 1 << 20, 60.0) for tp in (A, B)]
    for log in logs:
        log.open(0, 0)
    return Tail("cluster", logs, {"orders": "id"})


def followed(channel: Channel) -> Channel:
    channel.followers.add(Follower())
    return channel


def channel_of(tail: Tail, filters: Filters, encoder: Lines | None = None) -> Channel:
    accepts = filters.matches if filters.filters else None
    made = Channel(tail, b"view-", encoder or Lines(), accepts, fails=["orders"])
    return followed(made)


def by_key(key: bytes) -> Filters:
    return Filters((Filter(key=key),))


def record(tp: TopicPartition, offset: int, key: bytes | None) -> Record:
    return Record(tp, offset, 0, 0, key, b"v")


def kinds(tp: TopicPartition) -> st.SearchStrategy[Entry]:
    """Whatever may happen to a partition; offsets are put right by `turned`."""
    gap = st.sampled_from([Reason.RETENTION, Reason.SKIPPED, Reason.CORRUPT])
    return st.one_of(
        records.map(lambda record: record._replace(tp=tp)),
        records.map(lambda record: record._replace(tp=tp)),
        st.just(Skip(tp, 0, 1, 0)),
        st.builds(lambda reason: Gap(tp, 0, 1, 0, reason), gap),
        st.just(Ready(tp, 0, 0, 0)),
        st.just(Fault(tp, 0, 0, 0, "denied")),
    )


def turned(entries: list[Entry], nexts: dict[TopicPartition, int]) -> list[Entry]:
    made = []
    for entry in entries:
        at = nexts[entry.tp]
        if type(entry) is Record:
            made.append(entry._replace(offset=at))
        else:
            made.append(entry._replace(offset=at, next=at + entry.next))
        nexts[entry.tp] = made[-1].next
    return made


turns = st.lists(st.lists(kinds(A) | kinds(B), max_size=8), min_size=1, max_size=4)


@given(st.lists(some_filters, max_size=6), turns, st.booleans())
def test_what_a_channel_is_told_is_what_it_sees_when_it_looks_at_every_entry_itself(
    filters: list[Filters], turns: list[list[Entry]], exact: bool
):
    """Bytes, ids, and whether it ends; where ids come in batches too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tails, "EXACT_TOKEN", 512 if exact else 0)
        patch.setattr(tails, "MARK", 300)
        patch.setattr(channels, "ID_BYTES", 30)
        tail = opened()
        spread = Spread(tail)
        encoders = [Lines(), Lines(ready=False)]
        pairs = []
        for n, each in enumerate(filters):
            pairs.append([channel_of(tail, each, encoders[n % 2]) for _ in range(2)])
            spread.add(pairs[-1][0], each)
        nexts = {A: 0, B: 0}
        for entries in turns:
            turn = tail.turn(turned(entries, nexts), 1)
            told = spread.publish(turn)
            for mine, other in pairs:
                chunk, seen = other.publish(turn), told.count(mine)
                assert seen == (chunk is not None)
                if chunk is not None:
                    made = mine.chunk(mine.head - 1)
                    assert made.data == chunk.data
                    assert (made.ends, made.only_ready) == (chunk.ends, chunk.only_ready)
                    assert made.events == chunk.events


def test_a_record_is_encoded_once_for_all_who_see_it_and_for_nobody_else_at_all():
    tail, encoder = opened(), Lines()
    spread = Spread(tail)
    either = Filters((Filter(key=b"odd"), Filter(key=b"even")))
    told = [channel_of(tail, filters, encoder) for filters in (by_key(b"odd"), either)]
    for channel, filters in zip(told, (by_key(b"odd"), either), strict=True):
        spread.add(channel, filters)
    sees = record(A, 0, b"odd")
    assert spread.publish(tail.turn([sees, record(A, 1, b"none")], 1)) == told
    assert encoder.asked == [sees]


def test_a_channel_that_nobody_follows_is_told_nothing():
    tail = opened()
    spread = Spread(tail)
    for filters in (EVERYTHING, by_key(b"k")):
        channel = channel_of(tail, filters)
        channel.followers.clear()
        spread.add(channel, filters)
    assert spread.publish(tail.turn([record(A, 0, b"k")], 1)) == []


def test_what_was_removed_is_told_nothing_and_holds_nothing():
    tail = opened()
    spread = Spread(tail)
    for filters in (EVERYTHING, by_key(b"k")):
        channel = channel_of(tail, filters)
        spread.add(channel, filters)
        assert spread.publish(tail.turn([record(A, tail.seq, b"k")], 1)) == [channel]
        spread.remove(channel)
        assert (channel.bytes, channel.head - channel.first) == (0, 0)
        assert spread.publish(tail.turn([record(A, tail.seq, b"k")], 1)) == []


def test_turns_are_bounded_and_whoever_holds_older_chunks_lets_go_of_them_first():
    tail = opened()
    spread = Spread(tail)
    own, all_, idle = by_key(b"k"), channel_of(tail, EVERYTHING), channel_of(tail, by_key(b"x"))
    mine = channel_of(tail, own)
    for channel, filters in ((mine, own), (all_, EVERYTHING), (idle, by_key(b"x"))):
        spread.add(channel, filters)
    spread.publish(tail.turn([record(A, 0, b"k")], 1))
    assert spread.announce(idle)
    for offset in range(1, MOST_TURNS + 3):
        spread.publish(tail.turn([Skip(A, offset, offset + 1, 0)], 1))
    assert tail.seq - tail.oldest == MOST_TURNS
    for channel in (mine, all_, idle):
        assert channel.head == 1 and channel.first == 1
        (follower,) = channel.followers
        assert follower.fell is not None
    assert next(iter(mine.followers)).fell == {A: Place(0, 0), B: Place(0, 0)}
    assert next(iter(idle.followers)).fell == {A: Place(1, 0), B: Place(0, 0)}


def test_a_tail_that_has_turned_before_is_trimmed_alike():
    tail = opened()
    for offset in range(5):
        tail.turn([Skip(A, offset, offset + 1, 0)], 1)
    spread = Spread(tail)
    channel = followed(Channel(tail, b"view-", Lines(), max_bytes=1 << 24))
    spread.add(channel, EVERYTHING)
    for offset in range(5, MOST_TURNS + 10):
        spread.publish(tail.turn([record(A, offset, None)], 1))
    assert tail.seq - tail.oldest == MOST_TURNS
    assert channel.head - channel.first == MOST_TURNS
    assert channel.oldest[A] == Place(tail.oldest, 0)


def test_idle_clients_hear_of_the_position_once():
    tail = opened()
    spread = Spread(tail)
    channel = channel_of(tail, by_key(b"k"))
    spread.add(channel, by_key(b"k"))
    assert not spread.announce(channel)
    spread.publish(tail.turn([record(A, 0, b"x")], 1))
    assert spread.announce(channel)
    assert channel.chunk(0).data == b"position -> [1, 0]\n"
    assert not spread.announce(channel)
