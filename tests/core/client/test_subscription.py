from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.per_event_encoder import PerEventEncoder

from gateway.core.channel.channel import Channel
from gateway.core.channel.chunk_ring import RingBudget
from gateway.core.channel.dispatcher import ChannelDispatcher
from gateway.core.channel.filters import Filters
from gateway.core.channel.tail import Tail
from gateway.core.client.private_reader import PrivateReader
from gateway.core.client.read_buffer import MAX_BUFFER_BYTES, EntryRun, ReadAnswer
from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import SlowClientPolicy, SubscriptionTerms
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import (
    NO_EPOCH,
    RETIRED_EPOCH,
    UNVERIFIED_LINEAGE,
    Entry,
    Fault,
    Gap,
    GapReason,
    PartitionPosition,
    Ready,
    Record,
    Skip,
    TopicPartition,
)
from gateway.core.token.resume_token import parse_token

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


class OffsetsEncoder(PerEventEncoder):
    """One line an event: what it is, and the offsets of its id."""

    def encode_entry(self, entry: Entry) -> bytes | None:
        if type(entry) is Skip or type(entry) is Ready:
            return None
        if type(entry) is Fault:
            return b"fault %b" % entry.cause.encode()
        name = b"gap" if type(entry) is Gap else b"record"
        return b"%b %d %d" % (name, entry.tp.partition, entry.offset)

    def encode_position(self) -> bytes:
        return b"position"

    def encode_event_end(self, token: bytes | None) -> bytes:
        if token is None:
            return b"\n"
        offsets = parse_token(token.decode()).topics[0].offsets
        return (" -> " + " ".join(map(str, offsets)) + "\n").encode()


class TailFixture:
    """A tail of two partitions from 0 on, and one channel."""

    def __init__(self, ring: int = 1 << 20, cache: int = 1 << 20, **channel: Any) -> None:
        self.logs = {tp: PartitionLog(tp, cache, 60.0) for tp in (A, B)}
        self.tail = Tail("cluster", self.logs.values(), {"orders": "id"})
        channel = {"ring_budget": RingBudget(max_ring_bytes=ring), **channel}
        self.channel = Channel(self.tail, b"view-", OffsetsEncoder(), **channel)
        self.spread = ChannelDispatcher(self.tail)
        self.spread.add(self.channel, Filters())
        for log in self.logs.values():
            log.open(0, 0)
        self.apply_entries(Ready(A, 0, 0, 0), Ready(B, 0, 0, 0))

    def apply_entries(self, *entries: Entry) -> None:
        for entry in entries:
            if type(entry) not in (Ready, Fault):
                self.logs[entry.tp].append(entry, 0.0)
        self.spread.publish(self.tail.apply_entries(entries, 1))

    def append_records(self, tp: TopicPartition, *offsets: int, epoch: int = 0) -> None:
        for offset in offsets:
            self.apply_entries(record(tp, offset, epoch))

    def subscribe(
        self, *own: tuple[TopicPartition, PartitionPosition], **more: Any
    ) -> Subscription:
        return Subscription(self.channel, dict(own), SubscriptionTerms(**more))


def record(tp: TopicPartition, offset: int, epoch: int = 0) -> Record:
    return Record(tp, offset, epoch, 0, None, b"v" * 20)


def build_run(entries: Sequence[Entry]) -> EntryRun:
    return ReadAnswer(entries).get_run()


def take_lines(sub: Subscription, budget: int = 1 << 20) -> list[str]:
    return sub.take(budget, 0.0).decode().splitlines()


def get_reader(sub: Subscription) -> PrivateReader:
    assert sub.private_reader is not None
    return sub.private_reader


def test_a_live_client_rides():
    gateway = TailFixture()
    gateway.append_records(A, 0)
    sub = gateway.subscribe()
    gateway.append_records(A, 1)
    gateway.append_records(B, 0)
    assert take_lines(sub) == ["record 0 1 -> 2 0", "record 1 0 -> 2 1"]


def test_one_that_resumes_behind_reads_alone_to_where_the_channel_stands_and_then_rides():
    gateway = TailFixture()
    gateway.append_records(A, 0, 1, 2)
    sub = gateway.subscribe((A, PartitionPosition(1)))
    assert take_lines(sub) == ["record 0 1 -> 2 0", "record 0 2 -> 3 0"]
    assert not sub.private_positions
    gateway.append_records(A, 3)
    assert take_lines(sub) == ["record 0 3 -> 4 0"]


def test_one_that_resumes_ahead_waits_for_the_head_while_others_flow():
    gateway = TailFixture()
    sub = gateway.subscribe((A, PartitionPosition(2)))
    gateway.append_records(A, 0)
    gateway.append_records(B, 0)
    assert take_lines(sub) == ["record 1 0 -> 2 1"]
    gateway.append_records(A, 1, 2)
    assert take_lines(sub) == ["record 0 2 -> 3 1"]
    assert not sub.private_positions


def test_an_unverified_place_is_neither_read_nor_moved():
    gateway = TailFixture()
    gateway.append_records(A, 0, 1)
    sub = gateway.subscribe((A, PartitionPosition(1, 0, UNVERIFIED_LINEAGE)))
    gateway.append_records(B, 0)
    assert take_lines(sub) == ["record 1 0 -> 1 1"]
    assert get_reader(sub).list_unverified() == [(A, PartitionPosition(1, 0, UNVERIFIED_LINEAGE))]
    get_reader(sub).on_verified(A, PartitionPosition(1))
    assert take_lines(sub) == ["record 0 1 -> 2 1"]


def test_no_id_holds_what_was_not_told():
    gateway = TailFixture()
    sub = gateway.subscribe((A, PartitionPosition(9, 0, UNVERIFIED_LINEAGE)))
    get_reader(sub).on_verified(A, PartitionPosition(0), Gap(A, 9, 0, 0, GapReason.TRUNCATED))
    assert parse_token(sub.begin()[1].decode()).topics[0].offsets == [9, 0]
    assert take_lines(sub) == ["gap 0 9 -> 0 0"]


def test_what_no_log_holds_comes_from_kafka_and_a_late_answer_does_not():
    gateway = TailFixture(cache=1)
    gateway.append_records(A, 0, 1, 2)
    sub = gateway.subscribe((A, PartitionPosition(0)))
    assert get_reader(sub).list_backfills() == [(A, PartitionPosition(0))]
    get_reader(sub).feed(A, PartitionPosition(0), build_run([record(A, 0), record(A, 1)]))
    assert take_lines(sub) == ["record 0 0 -> 1 0", "record 0 1 -> 2 0", "record 0 2 -> 3 0"]
    sub.ensure_private_reader().feed(A, PartitionPosition(0), build_run([record(A, 0)]))
    assert take_lines(sub) == []


def test_without_credit_nothing_is_asked_of_kafka_and_what_was_read_may_be_dropped():
    """What was read for clients without credit kept all others from reading."""
    gateway = TailFixture(cache=1)
    gateway.append_records(A, 0, 1, 2)
    sub = gateway.subscribe((A, PartitionPosition(0)), credit=0)
    assert get_reader(sub).list_backfills() == []
    sub.limit_credit(2)
    for _ in range(2):
        assert get_reader(sub).list_backfills() == [(A, PartitionPosition(0))]
        run = build_run([record(A, 0), record(A, 1)])
        get_reader(sub).feed(A, PartitionPosition(0), run)
        assert get_reader(sub).buffered_bytes
        get_reader(sub).discard_buffer()
        assert not get_reader(sub).buffered_bytes
    assert take_lines(sub) == []


def test_who_falls_out_of_the_ring_catches_up_or_skips_or_is_let_go():
    for slow, wanted in (
        (SlowClientPolicy.CATCH_UP, [f"record 0 {n} -> {n + 1} 0" for n in range(8)]),
        (SlowClientPolicy.SKIP, ["gap 0 0 -> 8 0"]),
        (SlowClientPolicy.DISCONNECT, []),
    ):
        gateway = TailFixture(ring=1)
        sub = gateway.subscribe(slow_policy=slow)
        gateway.append_records(A, *range(8))
        assert take_lines(sub) == wanted
        assert sub.end_reason == ("slow" if slow is SlowClientPolicy.DISCONNECT else None)


def test_who_falls_out_of_the_ring_is_told_of_all_faults_up_to_where_it_goes_on():
    """What the ring kept was lost to it: it heard of an error, and not that this was over."""
    gateway = TailFixture(ring=150)
    sub = gateway.subscribe()
    states = [Fault(A, 0, 0, 0, "denied"), Fault(A, 0, 0, 0, "recovering")] * 3
    for state in states:
        gateway.apply_entries(state)
    assert gateway.channel.first_seq > 0  # it dropped some, and kept others
    told = take_lines(sub) + take_lines(sub)
    assert told == [f"fault {state.cause}" for state in states]


def test_one_that_is_let_go_before_its_first_id_resumes_where_it_fell():
    gateway = TailFixture(ring=1)
    sub = gateway.subscribe(slow_policy=SlowClientPolicy.DISCONNECT)
    gateway.append_records(A, *range(8))
    assert parse_token(sub.begin()[1].decode()).topics[0].offsets == [0, 0]


def test_without_credit_nothing_is_read_that_could_not_be_sent():
    """Streams with `credit: 0` filled the memory for such records, and nobody else was read any."""
    gateway = TailFixture(cache=1)
    gateway.append_records(A, 0, 1, 2)
    sub = gateway.subscribe((A, PartitionPosition(0)), credit=0)
    assert get_reader(sub).list_backfills() == []
    sub.grant_credit(1)
    assert get_reader(sub).list_backfills() == [(A, PartitionPosition(0))]


def test_what_was_read_for_a_place_before_a_skip_is_not_sent_after_it():
    gateway = TailFixture(ring=1, cache=1)
    sub = gateway.subscribe(slow_policy=SlowClientPolicy.SKIP)
    gateway.append_records(A, *range(8))
    for tp, place in get_reader(sub).list_backfills():
        get_reader(sub).feed(tp, place, build_run([record(A, 0), record(A, 1)]))
    assert take_lines(sub) == ["gap 0 0 -> 8 0"]


def test_a_place_in_a_log_that_went_back_is_led_over_with_a_gap():
    gateway = TailFixture()
    gateway.append_records(A, 0, 1, 2)
    sub = gateway.subscribe((A, PartitionPosition(2)))
    gateway.apply_entries(Gap(A, 3, 1, 1, GapReason.TRUNCATED))
    gateway.append_records(A, 1, epoch=1)
    assert take_lines(sub) == ["gap 0 2 -> 1 0", "record 0 1 -> 2 0"]


def test_one_that_is_ahead_of_a_log_that_was_cut_is_told_where():
    gateway = TailFixture()
    gateway.append_records(A, 0, 1)
    sub = gateway.subscribe((A, PartitionPosition(5, 0)))
    assert take_lines(sub) == []
    gateway.append_records(A, 2, epoch=1)
    assert take_lines(sub) == ["gap 0 5 -> 2 0", "record 0 2 -> 3 0"]


def test_what_a_private_read_saw_of_a_log_that_went_back_waits_for_the_shared_read():
    gateway = TailFixture(cache=1)
    gateway.append_records(A, 0, 1, 2)
    sub = gateway.subscribe((A, PartitionPosition(0)))
    get_reader(sub).feed(A, PartitionPosition(0), build_run([record(A, 0), record(A, 1, epoch=2)]))
    assert take_lines(sub) == ["record 0 0 -> 1 0"]
    assert get_reader(sub).list_backfills() == [(A, PartitionPosition(1, 0))]


def test_a_partition_that_only_the_token_knows_keeps_its_place():
    gateway, new = TailFixture(), TopicPartition("orders", 2)
    sub = gateway.subscribe((new, PartitionPosition(7, 0, UNVERIFIED_LINEAGE)))
    gateway.append_records(A, 0)
    assert take_lines(sub) == ["record 0 0 -> 1 0 7"]
    assert get_reader(sub).list_unverified() == []
    gateway.tail.add_partition(PartitionLog(new, 1 << 20, 60.0), PartitionPosition(0))
    assert get_reader(sub).list_unverified() == [(new, PartitionPosition(7, 0, UNVERIFIED_LINEAGE))]


def test_a_count_ends_after_so_many_records():
    gateway = TailFixture()
    gateway.append_records(A, *range(5))
    sub = gateway.subscribe((A, PartitionPosition(0)), max_records=3)
    assert len(take_lines(sub)) == 3
    assert sub.end_reason == "until"


def test_an_end_is_reached_when_all_partitions_have():
    gateway = TailFixture()
    gateway.append_records(A, 0, 1)
    sub = gateway.subscribe((A, PartitionPosition(0)), end_offsets={A: 2, B: 1})
    assert len(take_lines(sub)) == 2
    assert sub.end_reason is None
    gateway.append_records(A, 2)
    gateway.append_records(B, 0)
    assert take_lines(sub) == ["record 1 0 -> 2 1"]
    assert sub.end_reason == "until"


def test_records_behind_the_end_of_one_partition_do_not_stop_the_others():
    """They stayed in the buffer: once it was full of them, no partition was read any more."""
    gateway = TailFixture(cache=1)
    gateway.append_records(A, *range(3))
    gateway.append_records(B, 0, 1)
    start = PartitionPosition(0)
    sub = gateway.subscribe((A, start), (B, start), end_offsets={A: 1, B: 1})
    large = [record(A, n)._replace(value=bytes(MAX_BUFFER_BYTES)) for n in range(3)]
    get_reader(sub).feed(A, start, build_run(large))
    assert take_lines(sub) == ["record 0 0 -> 1 0"]
    assert get_reader(sub).list_backfills() == [(B, start)]
    assert sub.buffered_bytes == 0


def test_only_what_retention_took_ends_those_who_want_to_fail():
    gateway = TailFixture(topics_ending_on_loss=["orders"])
    skipping, failing = gateway.subscribe((A, PartitionPosition(0, NO_EPOCH))), gateway.subscribe()
    gateway.apply_entries(Gap(B, 0, 4, 0, GapReason.SKIPPED))
    take_lines(skipping)
    assert skipping.end_reason is None
    gateway.apply_entries(Gap(B, 4, 6, 0, GapReason.RETENTION))
    assert take_lines(failing)[-1] == "gap 1 4 -> 0 6"
    assert failing.end_reason == "offset-out-of-range"


def test_one_that_ends_at_an_offset_hears_first_what_became_of_its_place():
    """It had read further than the topic that was made anew goes: it ended at once, untold."""
    gateway = TailFixture()
    gateway.append_records(A, 0, 1)
    sub = gateway.subscribe(
        (A, PartitionPosition(9, 0, UNVERIFIED_LINEAGE)), end_offsets={A: 2, B: 0}
    )
    assert take_lines(sub) == [] and sub.end_reason is None
    gap = Gap(A, 9, 0, NO_EPOCH, GapReason.RECREATED)
    get_reader(sub).on_verified(A, PartitionPosition(0, NO_EPOCH, 0), gap)
    assert take_lines(sub) == ["gap 0 9 -> 0 0", "record 0 0 -> 1 0", "record 0 1 -> 2 0"]
    assert sub.end_reason == "until"


def test_a_turn_ends_by_what_is_parsed_for_it_however_little_is_sent():
    """A view of one field, or a filter that drops everything, had 64 KiB of what is sent parsed in
    one turn, or 2,000 large values: others waited for seconds."""
    gateway = TailFixture(parses_values=True)
    for offset in range(4):
        gateway.apply_entries(record(A, offset)._replace(value=bytes(100_000)))
    sub = gateway.subscribe((A, PartitionPosition(0)))
    assert take_lines(sub, 20_000) == ["record 0 0 -> 1 0"]
    assert sub.has_more
    assert take_lines(sub, 20_000) == ["record 0 1 -> 2 0"]


@pytest.mark.parametrize(
    ("gap", "rest"),
    [
        (Gap(A, 4, 0, 1, GapReason.RECREATED), ["gap 0 1 -> 0 0"]),
        (Gap(A, 4, 2, 1, GapReason.TRUNCATED), ["record 0 1 -> 2 0"]),
    ],
)
def test_a_partition_whose_log_went_back_ends_before_what_was_written_since(gap, rest):
    """Offsets of the former log were the end of the new one: it was sent later records, and did not
    end."""
    gateway = TailFixture()
    gateway.append_records(A, *range(4))
    sub = gateway.subscribe((A, PartitionPosition(0)), end_offsets={A: 4, B: 0}, credit=1)
    assert take_lines(sub) == ["record 0 0 -> 1 0"]
    gateway.apply_entries(gap)
    gateway.append_records(A, gap.next_offset, epoch=1)
    # What was before the cut comes from Kafka.
    log = gateway.logs[A]
    before_cut = [record(A, n) for n in range(1, gap.next_offset)]
    sub.grant_credit(9)
    lines = take_lines(sub)
    if before_cut:
        get_reader(sub).feed(A, PartitionPosition(1, 0, log.lineage), build_run(before_cut))
        lines += take_lines(sub)
    assert lines == rest
    assert sub.end_reason == "until"


def test_a_client_gets_no_more_than_was_granted_and_rides_again_once_there_is_enough():
    gateway = TailFixture()
    sub = gateway.subscribe(credit=1)
    gateway.apply_entries(*(record(A, offset) for offset in range(3)))
    assert take_lines(sub) == ["record 0 0 -> 1 0"]
    gateway.append_records(B, 0)
    assert take_lines(sub) == []
    sub.limit_credit(9)
    assert take_lines(sub) == ["record 1 0 -> 1 1", "record 0 1 -> 2 1", "record 0 2 -> 3 1"]
    assert (sub.credit, sub.private_positions) == (6, {})


def test_without_credit_one_that_stands_where_the_channel_stands_rides():
    gateway = TailFixture()
    gateway.append_records(A, 0)
    sub = gateway.subscribe((A, PartitionPosition(0)), credit=1)
    assert take_lines(sub) == ["record 0 0 -> 1 0"]
    sub.ensure_private_reader().read({A: PartitionPosition(1)})
    take_lines(sub)
    assert not sub.private_positions


@pytest.mark.parametrize("credit", [0, 1])
def test_one_without_credit_that_the_ring_is_past_is_slow(credit: int):
    """Whether it waits in the ring, or reads alone since a chunk held more than it may get."""

    def build_late_subscription(slow: SlowClientPolicy) -> tuple[Subscription, list[str]]:
        gateway = TailFixture(ring=2000)
        sub = gateway.subscribe(credit=credit, slow_policy=slow)
        gateway.apply_entries(*(record(A, offset) for offset in range(3)))
        got = take_lines(sub)
        gateway.append_records(A, *range(3, 20))
        got += take_lines(sub)
        if slow is SlowClientPolicy.SKIP:
            assert not sub.private_positions, "it rides again"
        gateway.append_records(A, 20)
        sub.limit_credit(100)
        return sub, got + take_lines(sub)

    first = ["record 0 0 -> 1 0"] if credit else []
    sub, got = build_late_subscription(SlowClientPolicy.SKIP)
    assert got == [*first, f"gap 0 {credit} -> 20 0", "record 0 20 -> 21 0"]
    sub, got = build_late_subscription(SlowClientPolicy.DISCONNECT)
    assert (got, sub.end_reason) == (first, "slow")
    sub, got = build_late_subscription(SlowClientPolicy.CATCH_UP)
    assert [line.split()[2] for line in got] == [str(offset) for offset in range(21)]


def test_one_that_catches_up_with_less_credit_than_records_come_is_conflated_too():
    """A partition that was read alone from the start was in no ring, so nothing told that its
    client was slow: with `maxRate` below what was written it lagged further with each record."""

    def build_keyed_record(offset: int) -> Record:
        return record(A, offset)._replace(key=b"key %d" % (offset % 3))

    gateway = TailFixture(ring=2000)
    gateway.apply_entries(*map(build_keyed_record, range(30)))
    sub = gateway.subscribe(
        (A, PartitionPosition(0)), credit=0, slow_policy=SlowClientPolicy.CONFLATE
    )
    got: list[int] = []
    lags: list[int] = []
    for end in range(40, 1040, 10):
        gateway.apply_entries(*map(build_keyed_record, range(end - 10, end)))
        sub.limit_credit(4)
        got += [int(line.split()[2]) for line in take_lines(sub)]
        lags.append(end - 1 - got[-1])
    assert got == sorted(set(got))
    assert max(lags) < 100, "it never lags further than the ring and what it began with"
    assert lags.count(0) > 10, "and is live again and again"


@pytest.mark.parametrize("slow", SlowClientPolicy)
def test_one_that_keeps_up_loses_nothing_when_its_chunks_make_room(slow: SlowClientPolicy):
    """It was treated as its route treats slow clients."""
    gateway = TailFixture(ring_budget=RingBudget(0, lambda: [gateway.channel]))
    sub = gateway.subscribe(slow_policy=slow)
    for follower in gateway.channel.followers:
        gateway.channel.stop_waking(follower)  # it is written to in rounds
    got: list[str] = []
    for offset in range(5):
        gateway.append_records(A, offset)
        got += take_lines(sub)
    assert [line.split()[2] for line in got] == [str(offset) for offset in range(5)]
    assert sub.end_reason is None


@pytest.mark.parametrize("slow", [SlowClientPolicy.SKIP, SlowClientPolicy.DISCONNECT])
def test_one_without_credit_is_not_slow_because_the_others_have_everything(slow: SlowClientPolicy):
    """The ring was let go as if it had run past it: it skipped, or was disconnected, at once."""
    gateway = TailFixture()
    rider, sub = gateway.subscribe(), gateway.subscribe(credit=1, slow_policy=slow)
    gateway.apply_entries(*(record(A, offset) for offset in range(3)))
    assert take_lines(sub) == ["record 0 0 -> 1 0"]
    take_lines(rider)
    gateway.channel.drop_if_caught_up()
    assert take_lines(sub) == [] and sub.end_reason is None
    sub.limit_credit(9)
    assert take_lines(sub) == ["record 0 1 -> 2 0", "record 0 2 -> 3 0"]
    assert take_lines(sub) == [] and sub.private_reader is None
    gateway.channel.drop_if_caught_up()
    assert gateway.channel.first_seq == gateway.channel.next_seq, "all have everything now"


def is_not_b(tp: TopicPartition) -> bool:
    return tp != B


def test_what_holds_nothing_for_a_client_is_taken_to_where_the_channel_stands_unread():
    gateway = TailFixture()
    gateway.append_records(A, 0, 1)
    gateway.append_records(B, 0, 1, 2)
    token = (
        (A, PartitionPosition(1, 0, UNVERIFIED_LINEAGE)),
        (B, PartitionPosition(1, 0, UNVERIFIED_LINEAGE)),
    )
    sub = gateway.subscribe(*token, reads_partition=is_not_b)
    assert get_reader(sub).list_unverified() == [(A, PartitionPosition(1, 0, UNVERIFIED_LINEAGE))]
    assert parse_token(sub.begin()[1].decode()).topics[0].offsets == [1, 3]
    get_reader(sub).on_verified(A, PartitionPosition(1))
    assert take_lines(sub) == ["record 0 1 -> 2 3"]
    gateway.append_records(B, 3)
    assert take_lines(sub) == ["record 1 3 -> 2 4"]


def test_it_is_not_taken_back_nor_past_a_topic_that_was_made_anew():
    gateway = TailFixture()
    gateway.append_records(B, 0)
    ahead, anew = (
        (B, PartitionPosition(2, 0, UNVERIFIED_LINEAGE)),
        (B, PartitionPosition(0, RETIRED_EPOCH, UNVERIFIED_LINEAGE)),
    )
    for place in (ahead, anew):
        sub = gateway.subscribe(place, reads_partition=is_not_b)
        assert get_reader(sub).list_unverified() == [place]


def test_it_waits_until_it_is_known_where_the_channel_stands():
    gateway, new = TailFixture(), TopicPartition("orders", 2)
    gateway.tail.add_partition(PartitionLog(new, 1 << 20, 60.0), PartitionPosition(None))
    sub = gateway.subscribe(
        (new, PartitionPosition(7, 0, UNVERIFIED_LINEAGE)), reads_partition=lambda tp: tp != new
    )
    assert get_reader(sub).list_unverified() == [] and take_lines(sub) == []
    assert list(sub.private_positions) == [new]
    gateway.tail.logs[new].open(9, 0)
    gateway.apply_entries(Ready(new, 9, 9, 0))
    gateway.append_records(A, 0)
    assert take_lines(sub)[-1] == "record 0 0 -> 1 0 7"  # published before it was passed by
    gateway.append_records(A, 1)
    assert take_lines(sub) == ["record 0 1 -> 2 0 9"]
    assert sub.private_positions == {}


def test_what_may_hold_something_after_all_by_then_is_read():
    """The number of partitions changed while it was not known where the channel stands."""
    gateway, new, grown = TailFixture(), TopicPartition("orders", 2), set[TopicPartition]()
    gateway.tail.add_partition(PartitionLog(new, 1 << 20, 60.0), PartitionPosition(None))
    place = (new, PartitionPosition(7, 0, UNVERIFIED_LINEAGE))
    sub = gateway.subscribe(place, reads_partition=grown.__contains__)
    grown.add(new)
    gateway.tail.logs[new].open(9, 0)
    gateway.apply_entries(Ready(new, 9, 9, 0))
    take_lines(sub)
    assert get_reader(sub).list_unverified() == [place]


def test_with_an_end_what_holds_nothing_does_not_hold_it_up():
    gateway = TailFixture()
    gateway.append_records(A, 0)
    gateway.append_records(B, 0, 1)
    token = (
        (A, PartitionPosition(0, 0, UNVERIFIED_LINEAGE)),
        (B, PartitionPosition(0, 0, UNVERIFIED_LINEAGE)),
    )
    sub = gateway.subscribe(*token, reads_partition=is_not_b, end_offsets={A: 1, B: 2})
    get_reader(sub).on_verified(A, PartitionPosition(0))
    assert take_lines(sub) == ["record 0 0 -> 1 2"]
    assert sub.end_reason == "until"


def test_one_that_goes_on_reads_a_partition_that_came_meanwhile_from_its_first_record():
    """It was not among the places it went on from, and was taken to stand where the tail does."""
    gateway, new = TailFixture(), TopicPartition("orders", 2)
    gateway.append_records(A, 0)
    sub = gateway.subscribe()
    places = sub.get_position()
    sub.detach()
    log = gateway.logs[new] = PartitionLog(new, 1 << 20, 60.0)
    gateway.tail.add_partition(log, PartitionPosition(0))
    log.open(0, 0)
    gateway.apply_entries(Ready(new, 0, 0, 0))
    gateway.append_records(new, 0)
    gateway.append_records(A, 1)
    sub.reattach(places)
    assert sorted(line.partition(" -> ")[0] for line in take_lines(sub)) == [
        "record 0 1",
        "record 2 0",
    ]
    gateway.append_records(new, 1)
    assert take_lines(sub) == ["record 2 1 -> 2 0 2"]


def test_a_pending_position_of_a_token_is_still_to_be_resolved_after_a_shared_catch_up():
    """It was taken to be where the shared read had begun: what came before was lost, and came
    twice if the client's own start was found meanwhile."""
    gateway = TailFixture()
    pending = PartitionPosition(None, NO_EPOCH, UNVERIFIED_LINEAGE)
    sub = gateway.subscribe((A, pending), resolve_since=1)
    position = sub.get_position()
    sub.detach()
    gateway.append_records(A, 0, 1, 2)
    sub.reattach(position)
    assert get_reader(sub).list_unverified() == [(A, pending)]
    assert take_lines(sub) == []
    get_reader(sub).on_verified(A, PartitionPosition(1))
    assert take_lines(sub) == ["record 0 1 -> 2 0", "record 0 2 -> 3 0"]
