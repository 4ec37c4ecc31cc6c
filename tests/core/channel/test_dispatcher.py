from __future__ import annotations

import weakref
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from support.filter_strategies import filter_lists, records
from support.per_event_encoder import PerEventEncoder

from gateway.core.channel.channel import Channel
from gateway.core.channel.chunk_ring import RingBudget
from gateway.core.channel.dispatcher import (
    MAX_NOTIFIED_AT_ONCE,
    MAX_UPDATES,
    MIN_HOLDERS,
    ChannelDispatcher,
)
from gateway.core.channel.filters import Filter, Filters
from gateway.core.channel.tail import Tail
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import (
    Entry,
    Fault,
    Gap,
    GapReason,
    PartitionPosition,
    Position,
    Ready,
    Record,
    Skip,
    TopicPartition,
)
from gateway.core.token.resume_token import parse_token

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
EVERYTHING = Filters()


class RecordingEncoder(PerEventEncoder):
    """Says what it is asked for a head of."""

    def __init__(self, encodes_ready: bool = True) -> None:
        self.encoded_entries: list[Entry] = []
        self.encodes_ready = encodes_ready

    def encode_entry(self, entry: Entry) -> bytes | None:
        self.encoded_entries.append(entry)
        if type(entry) is Skip or (type(entry) is Ready and not self.encodes_ready):
            return None
        return f"{type(entry).__name__} {entry.tp.partition} {entry.offset}".encode()

    def encode_position(self) -> bytes:
        return b"position"

    def encode_event_end(self, token: bytes | None) -> bytes:
        if token is None:
            return b"\n"
        return (f" -> {parse_token(token.decode()).topics[0].offsets}\n").encode()


class FakeFollower:
    next_seq = 0
    fallen_position: Position | None = None

    def wake(self) -> None: ...

    def fall_behind(
        self, position: Position, notices: Sequence[bytes] = (), *, is_slow: bool = True
    ) -> None:
        self.fallen_position = position


class FrequentTokenTail(Tail):
    TOKEN_INTERVAL_BYTES = 300


class LongTokenTail(FrequentTokenTail):
    MAX_EXACT_TOKEN_CHARS = 0


class FrequentIdChannel(Channel):
    MAX_BYTES_WITHOUT_ID = 30


def build_tail(kind: type[Tail] = Tail) -> Tail:
    logs = [PartitionLog(tp, 1 << 20, 60.0) for tp in (A, B)]
    for log in logs:
        log.open(0, 0)
    return kind("cluster", logs, {"orders": "id"})


def add_follower(channel: Channel) -> Channel:
    channel.add_follower(FakeFollower())
    return channel


def build_channel(
    tail: Tail,
    filters: Filters,
    encoder: RecordingEncoder | None = None,
    kind: type[Channel] = Channel,
) -> Channel:
    accepts = filters.matches if filters.filters else None
    made = kind(
        tail, b"view-", encoder or RecordingEncoder(), accepts, topics_ending_on_loss=["orders"]
    )
    return add_follower(made)


def build_key_filters(key: bytes) -> Filters:
    return Filters((Filter(key=key),))


def record(tp: TopicPartition, offset: int, key: bytes | None) -> Record:
    return Record(tp, offset, 0, 0, key, b"v")


def entry_strategy(tp: TopicPartition) -> st.SearchStrategy[Entry]:
    """Whatever may happen to a partition; offsets are put right by `turned`."""
    gap = st.sampled_from([GapReason.RETENTION, GapReason.SKIPPED, GapReason.CORRUPT])
    return st.one_of(
        records.map(lambda record: record._replace(tp=tp)),
        records.map(lambda record: record._replace(tp=tp)),
        st.just(Skip(tp, 0, 1, 0)),
        st.builds(lambda reason: Gap(tp, 0, 1, 0, reason), gap),
        st.just(Ready(tp, 0, 0, 0)),
        st.just(Fault(tp, 0, 0, 0, "denied")),
    )


def assign_offsets(entries: list[Entry], nexts: dict[TopicPartition, int]) -> list[Entry]:
    made = []
    for entry in entries:
        at = nexts[entry.tp]
        if type(entry) is Record:
            made.append(entry._replace(offset=at))
        else:
            made.append(entry._replace(offset=at, next_offset=at + entry.next_offset))
        nexts[entry.tp] = made[-1].next_offset
    return made


turns = st.lists(
    st.lists(entry_strategy(A) | entry_strategy(B), max_size=8), min_size=1, max_size=4
)


@given(st.lists(filter_lists, max_size=6), turns, st.booleans())
def test_what_a_channel_is_told_is_what_it_sees_when_it_looks_at_every_entry_itself(
    filters, turns, exact
):
    """Bytes, ids, and whether it ends; where ids come in batches too."""
    tail = build_tail(FrequentTokenTail if exact else LongTokenTail)
    spread = ChannelDispatcher(tail)
    encoders = [RecordingEncoder(), RecordingEncoder(encodes_ready=False)]
    pairs = []
    for n, each in enumerate(filters):
        pairs.append(
            [build_channel(tail, each, encoders[n % 2], FrequentIdChannel) for _ in range(2)]
        )
        spread.add(pairs[-1][0], each, has_fields=n % 3 == 0)
    nexts = {A: 0, B: 0}
    for entries in turns:
        turn = tail.apply_entries(assign_offsets(entries, nexts), 1)
        told = spread.publish(turn)
        for mine, other in pairs:
            chunk, seen = other.publish(turn), told.count(mine)
            assert seen == (chunk is not None)
            if chunk is not None:
                made = mine.get_chunk(mine.next_seq - 1)
                assert made.data == chunk.data
                assert (made.ending_partitions, made.is_only_ready) == (
                    chunk.ending_partitions,
                    chunk.is_only_ready,
                )
                assert made.events == chunk.events


def test_a_record_is_encoded_once_for_all_who_see_it_and_for_nobody_else_at_all():
    tail, encoder = build_tail(), RecordingEncoder()
    spread = ChannelDispatcher(tail)
    either = Filters((Filter(key=b"odd"), Filter(key=b"even")))
    told = [
        build_channel(tail, filters, encoder) for filters in (build_key_filters(b"odd"), either)
    ]
    for channel, filters in zip(told, (build_key_filters(b"odd"), either), strict=True):
        spread.add(channel, filters)
    sees = record(A, 0, b"odd")
    assert spread.publish(tail.apply_entries([sees, record(A, 1, b"none")], 1)) == told
    assert encoder.encoded_entries == [sees]


def test_very_many_channels_are_told_of_a_partition_some_at_a_time_and_in_order():
    tail, encoder = build_tail(), RecordingEncoder()
    spread = ChannelDispatcher(tail)
    filters_of_channels = [
        build_key_filters(b"%d" % n) for n in range(2 * MAX_NOTIFIED_AT_ONCE + 1)
    ]
    channels = [build_channel(tail, filters, encoder) for filters in filters_of_channels]
    for channel, filters in zip(channels, filters_of_channels, strict=True):
        spread.add(channel, filters)
    fault, ready = Fault(A, 0, 0, 0, "denied"), Ready(A, 1, 1, 0)

    assert spread.publish(tail.apply_entries([fault, record(A, 0, b"7")], 1)) == [channels[7]]
    told = spread.publish_notices()
    assert len(told) == MAX_NOTIFIED_AT_ONCE
    kept = [*channels[:10], *told[:10]]
    # Few are left, half of which were not told yet.
    for channel, filters in zip(channels, filters_of_channels, strict=True):
        if channel not in kept:
            channel.followers = ()
            spread.remove(channel, filters)
    assert spread.publish(tail.apply_entries([ready], 1)) == []
    while spread.has_notices:
        spread.publish_notices()

    for channel in kept:
        heard = channel.join_chunks(channel.first_seq).splitlines()
        expected = [b"Ready 0 1 -> [1, 0]"]
        if channel in told:  # the others are not told of what is over
            expected.insert(0, b"Fault 0 0 -> [1, 0]")
        if channel is channels[7]:
            expected.insert(0, b"Record 0 0 -> [1, 0]")
        assert heard == expected


def test_nobody_is_told_of_a_partition_after_the_last_channel_is_gone():
    tail = build_tail()
    spread = ChannelDispatcher(tail)
    filters_of_channels = [build_key_filters(b"%d" % n) for n in range(MAX_NOTIFIED_AT_ONCE + 1)]
    channels = [build_channel(tail, filters) for filters in filters_of_channels]
    for channel, filters in zip(channels, filters_of_channels, strict=True):
        spread.add(channel, filters)
    spread.publish(tail.apply_entries([Ready(A, 1, 1, 0)], 1))
    assert spread.has_notices
    for channel, filters in zip(channels, filters_of_channels, strict=True):
        channel.followers = ()
        spread.remove(channel, filters)
    assert not spread.has_notices
    assert spread.publish_notices() == []


def test_a_channel_that_nobody_follows_is_told_nothing():
    tail = build_tail()
    spread = ChannelDispatcher(tail)
    for filters in (EVERYTHING, build_key_filters(b"k")):
        channel = build_channel(tail, filters)
        channel.followers = ()
        spread.add(channel, filters)
    assert spread.publish(tail.apply_entries([record(A, 0, b"k")], 1)) == []


def test_what_was_removed_is_told_nothing_and_holds_nothing():
    tail = build_tail()
    spread = ChannelDispatcher(tail)
    for filters in (EVERYTHING, build_key_filters(b"k")):
        channel = build_channel(tail, filters)
        spread.add(channel, filters)
        assert spread.publish(tail.apply_entries([record(A, tail.seq, b"k")], 1)) == [channel]
        spread.remove(channel, filters)
        assert (channel.bytes, channel.next_seq - channel.first_seq) == (0, 0)
        assert spread.publish(tail.apply_entries([record(A, tail.seq, b"k")], 1)) == []


def test_a_tail_with_few_records_does_not_keep_the_channels_that_are_gone():
    """Each was kept until `MAX_UPDATES` later updates, which can take days."""
    tail = build_tail()
    spread = ChannelDispatcher(tail)
    spread.add(build_channel(tail, EVERYTHING), EVERYTHING)
    filters, gone = build_key_filters(b"k"), list[weakref.ref[Channel]]()
    for offset in range(MIN_HOLDERS // 10):
        channels = [build_channel(tail, filters) for _ in range(10)]
        for channel in channels:
            spread.add(channel, filters)
        spread.publish(tail.apply_entries([record(A, offset, b"k")], 1))
        for channel in channels:
            spread.remove(channel, filters)
            gone.append(weakref.ref(channel))
    del channel, channels
    assert not any(each() for each in gone[: len(gone) // 2])


def test_the_last_channel_is_not_kept_when_it_is_gone():
    """It was kept as long as the topic was read."""
    tail = build_tail()
    spread = ChannelDispatcher(tail)
    filters = build_key_filters(b"k")
    channel = build_channel(tail, filters)
    spread.add(channel, filters)
    spread.publish(tail.apply_entries([record(A, 0, b"k")], 1))
    spread.remove(channel, filters)
    gone = weakref.ref(channel)
    del channel
    assert gone() is None


def test_a_channel_that_still_has_an_older_chunk_lets_go_of_it_in_time():
    """Forgetting those that have none must not forget one that has."""
    tail = build_tail()
    spread = ChannelDispatcher(tail)
    filters = build_key_filters(b"k")
    slow, others = build_channel(tail, filters), build_key_filters(b"other")
    spread.add(slow, filters)
    spread.publish(tail.apply_entries([record(A, 0, b"k")], 1))
    quick = [build_channel(tail, others) for _ in range(10)]
    for channel in quick:
        spread.add(channel, others)
    for offset in range(1, MAX_UPDATES + 3):
        spread.publish(tail.apply_entries([record(A, offset, b"other")], 1))
        for channel in quick:
            for follower in channel.followers:
                follower.next_seq = channel.next_seq
            channel.drop_consumed()
    assert slow.first_seq == slow.next_seq == 1


def test_turns_are_bounded_and_whoever_holds_older_chunks_lets_go_of_them_first():
    tail = build_tail()
    spread = ChannelDispatcher(tail)
    own, all_, idle = (
        build_key_filters(b"k"),
        build_channel(tail, EVERYTHING),
        build_channel(tail, build_key_filters(b"x")),
    )
    mine = build_channel(tail, own)
    for channel, filters in ((mine, own), (all_, EVERYTHING), (idle, build_key_filters(b"x"))):
        spread.add(channel, filters)
    spread.publish(tail.apply_entries([record(A, 0, b"k")], 1))
    assert spread.announce_position(idle)
    for offset in range(1, MAX_UPDATES + 3):
        spread.publish(tail.apply_entries([Skip(A, offset, offset + 1, 0)], 1))
    assert tail.seq - tail.oldest_seq == 1  # nobody holds an older chunk
    for channel in (mine, all_, idle):
        assert channel.next_seq == 1 and channel.first_seq == 1
        (follower,) = channel.followers
        assert follower.fallen_position is not None
    assert next(iter(mine.followers)).fallen_position == {
        A: PartitionPosition(0, 0),
        B: PartitionPosition(0, 0),
    }
    assert next(iter(idle.followers)).fallen_position == {
        A: PartitionPosition(1, 0),
        B: PartitionPosition(0, 0),
    }


def test_an_update_is_forgotten_with_its_last_chunk():
    """A tail of hundreds of partitions kept the positions of 4096 updates, which nobody needed."""
    tail = build_tail()
    spread = ChannelDispatcher(tail)
    channel = build_channel(tail, EVERYTHING)
    (follower,) = channel.followers
    spread.add(channel, EVERYTHING)
    for offset in range(5):
        spread.publish(tail.apply_entries([record(A, offset, None)], 1))
    assert (tail.oldest_seq, tail.move_count) == (0, 5)
    follower.next_seq = 3
    channel.drop_consumed()
    spread.publish(tail.apply_entries([record(A, 5, None)], 1))
    assert (tail.oldest_seq, tail.move_count) == (3, 3)


def test_a_tail_that_has_turned_before_is_trimmed_alike():
    tail = build_tail()
    for offset in range(5):
        tail.apply_entries([Skip(A, offset, offset + 1, 0)], 1)
    spread = ChannelDispatcher(tail)
    channel = add_follower(
        Channel(tail, b"view-", RecordingEncoder(), ring_budget=RingBudget(max_ring_bytes=1 << 24))
    )
    spread.add(channel, EVERYTHING)
    for offset in range(5, MAX_UPDATES + 10):
        spread.publish(tail.apply_entries([record(A, offset, None)], 1))
    assert tail.seq - tail.oldest_seq == MAX_UPDATES
    assert channel.next_seq - channel.first_seq == MAX_UPDATES
    assert channel.oldest_position[A] == PartitionPosition(tail.oldest_seq, 0)


def test_idle_clients_hear_of_the_position_once():
    tail = build_tail()
    spread = ChannelDispatcher(tail)
    channel = build_channel(tail, build_key_filters(b"k"))
    spread.add(channel, build_key_filters(b"k"))
    assert not spread.announce_position(channel)
    spread.publish(tail.apply_entries([record(A, 0, b"x")], 1))
    assert spread.announce_position(channel)
    assert channel.get_chunk(0).data == b"position -> [1, 0]\n"
    assert not spread.announce_position(channel)
