from __future__ import annotations

from typing import Any

import pytest
from support.rendering import Rendering

from gateway.core.channel.channel import Channel
from gateway.core.channel.dispatcher import Spread
from gateway.core.channel.filters import Filters
from gateway.core.channel.rings import Rings
from gateway.core.client.slow_client import SlowClient
from gateway.core.client.subscription import Subscription
from gateway.core.log.partition_log import Log
from gateway.core.log.position import NO_EPOCH, RETIRED, UNVERIFIED, Place
from gateway.core.log.record import Entry, Gap, Ready, Reason, Record, Skip, TopicPartition
from gateway.core.log.tail import Tail
from gateway.core.token.resume_token import decode

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Lines(Rendering):
    """One line an event: what it is, and the offsets of its id."""

    def head(self, entry: Entry) -> bytes | None:
        if type(entry) is Skip or type(entry) is Ready:
            return None
        name = b"gap" if type(entry) is Gap else b"record"
        return b"%b %d %d" % (name, entry.tp.partition, entry.offset)

    def position(self) -> bytes:
        return b"position"

    def end(self, token: bytes | None) -> bytes:
        if token is None:
            return b"\n"
        offsets = decode(token.decode()).topics[0].offsets
        return (" -> " + " ".join(map(str, offsets)) + "\n").encode()


class Gateway:
    """A tail of two partitions from 0 on, and one channel."""

    def __init__(self, ring: int = 1 << 20, cache: int = 1 << 20, **channel: Any) -> None:
        self.logs = {tp: Log(tp, cache, 60.0) for tp in (A, B)}
        self.tail = Tail("cluster", self.logs.values(), {"orders": "id"})
        self.channel = Channel(self.tail, b"view-", Lines(), max_bytes=ring, **channel)
        self.spread = Spread(self.tail)
        self.spread.add(self.channel, Filters())
        for log in self.logs.values():
            log.open(0, 0)
        self.turn(Ready(A, 0, 0, 0), Ready(B, 0, 0, 0))

    def turn(self, *entries: Entry) -> None:
        for entry in entries:
            if type(entry) is not Ready:
                self.logs[entry.tp].append(entry, 0.0)
        self.spread.publish(self.tail.turn(entries, 1))

    def records(self, tp: TopicPartition, *offsets: int, epoch: int = 0) -> None:
        for offset in offsets:
            self.turn(record(tp, offset, epoch))

    def subscribe(self, *own: tuple[TopicPartition, Place], **more: Any) -> Subscription:
        return Subscription(self.channel, dict(own), **more)


def record(tp: TopicPartition, offset: int, epoch: int = 0) -> Record:
    return Record(tp, offset, epoch, 0, None, b"v" * 20)


def taken(sub: Subscription, budget: int = 1 << 20) -> list[str]:
    return sub.take(budget).decode().splitlines()


def test_a_live_client_rides():
    gateway = Gateway()
    gateway.records(A, 0)
    sub = gateway.subscribe()
    gateway.records(A, 1)
    gateway.records(B, 0)
    assert taken(sub) == ["record 0 1 -> 2 0", "record 1 0 -> 2 1"]


def test_one_that_resumes_behind_reads_alone_to_where_the_channel_stands_and_then_rides():
    gateway = Gateway()
    gateway.records(A, 0, 1, 2)
    sub = gateway.subscribe((A, Place(1)))
    assert taken(sub) == ["record 0 1 -> 2 0", "record 0 2 -> 3 0"]
    assert not sub.own
    gateway.records(A, 3)
    assert taken(sub) == ["record 0 3 -> 4 0"]


def test_one_that_resumes_ahead_waits_for_the_head_while_others_flow():
    gateway = Gateway()
    sub = gateway.subscribe((A, Place(2)))
    gateway.records(A, 0)
    gateway.records(B, 0)
    assert taken(sub) == ["record 1 0 -> 2 1"]
    gateway.records(A, 1, 2)
    assert taken(sub) == ["record 0 2 -> 3 1"]
    assert not sub.own


def test_an_unverified_place_is_neither_read_nor_moved():
    gateway = Gateway()
    gateway.records(A, 0, 1)
    sub = gateway.subscribe((A, Place(1, 0, UNVERIFIED)))
    gateway.records(B, 0)
    assert taken(sub) == ["record 1 0 -> 1 1"]
    assert sub.unverified() == [(A, Place(1, 0, UNVERIFIED))]
    sub.verified(A, Place(1))
    assert taken(sub) == ["record 0 1 -> 2 1"]


def test_no_id_holds_what_was_not_told():
    gateway = Gateway()
    sub = gateway.subscribe((A, Place(9, 0, UNVERIFIED)))
    sub.verified(A, Place(0), Gap(A, 9, 0, 0, Reason.TRUNCATED))
    assert decode(sub.begin()[1].decode()).topics[0].offsets == [9, 0]
    assert taken(sub) == ["gap 0 9 -> 0 0"]


def test_what_no_log_holds_comes_from_kafka_and_a_late_answer_does_not():
    gateway = Gateway(cache=1)
    gateway.records(A, 0, 1, 2)
    sub = gateway.subscribe((A, Place(0)))
    assert sub.lacks() == [(A, Place(0))]
    sub.feed(A, Place(0), [record(A, 0), record(A, 1)])
    assert taken(sub) == ["record 0 0 -> 1 0", "record 0 1 -> 2 0", "record 0 2 -> 3 0"]
    sub.feed(A, Place(0), [record(A, 0)])
    assert taken(sub) == []


def test_who_falls_out_of_the_ring_catches_up_or_skips_or_is_let_go():
    for slow, wanted in (
        (SlowClient.CATCH_UP, [f"record 0 {n} -> {n + 1} 0" for n in range(8)]),
        (SlowClient.SKIP, ["gap 0 0 -> 8 0"]),
        (SlowClient.DISCONNECT, []),
    ):
        gateway = Gateway(ring=1)
        sub = gateway.subscribe(slow=slow)
        gateway.records(A, *range(8))
        assert taken(sub) == wanted
        assert sub.ended == ("slow" if slow is SlowClient.DISCONNECT else None)


def test_one_that_is_let_go_before_its_first_id_resumes_where_it_fell():
    gateway = Gateway(ring=1)
    sub = gateway.subscribe(slow=SlowClient.DISCONNECT)
    gateway.records(A, *range(8))
    assert decode(sub.begin()[1].decode()).topics[0].offsets == [0, 0]


def test_what_was_read_for_a_place_before_a_skip_is_not_sent_after_it():
    gateway = Gateway(ring=1, cache=1)
    sub = gateway.subscribe(slow=SlowClient.SKIP)
    gateway.records(A, *range(8))
    for tp, place in sub.lacks():
        sub.feed(tp, place, [record(A, 0), record(A, 1)])
    assert taken(sub) == ["gap 0 0 -> 8 0"]


def test_a_place_in_a_log_that_went_back_is_led_over_with_a_gap():
    gateway = Gateway()
    gateway.records(A, 0, 1, 2)
    sub = gateway.subscribe((A, Place(2)))
    gateway.turn(Gap(A, 3, 1, 1, Reason.TRUNCATED))
    gateway.records(A, 1, epoch=1)
    assert taken(sub) == ["gap 0 2 -> 1 0", "record 0 1 -> 2 0"]


def test_one_that_is_ahead_of_a_log_that_was_cut_is_told_where():
    gateway = Gateway()
    gateway.records(A, 0, 1)
    sub = gateway.subscribe((A, Place(5, 0)))
    assert taken(sub) == []
    gateway.records(A, 2, epoch=1)
    assert taken(sub) == ["gap 0 5 -> 2 0", "record 0 2 -> 3 0"]


def test_what_a_private_read_saw_of_a_log_that_went_back_waits_for_the_shared_read():
    gateway = Gateway(cache=1)
    gateway.records(A, 0, 1, 2)
    sub = gateway.subscribe((A, Place(0)))
    sub.feed(A, Place(0), [record(A, 0), record(A, 1, epoch=2)])
    assert taken(sub) == ["record 0 0 -> 1 0"]
    assert sub.lacks() == [(A, Place(1, 0))]


def test_a_partition_that_only_the_token_knows_keeps_its_place():
    gateway, new = Gateway(), TopicPartition("orders", 2)
    sub = gateway.subscribe((new, Place(7, 0, UNVERIFIED)))
    gateway.records(A, 0)
    assert taken(sub) == ["record 0 0 -> 1 0 7"]
    assert sub.unverified() == []
    gateway.tail.add(Log(new, 1 << 20, 60.0), Place(0))
    assert sub.unverified() == [(new, Place(7, 0, UNVERIFIED))]


def test_a_count_ends_after_so_many_records():
    gateway = Gateway()
    gateway.records(A, *range(5))
    sub = gateway.subscribe((A, Place(0)), count=3)
    assert len(taken(sub)) == 3
    assert sub.ended == "until"


def test_an_end_is_reached_when_all_partitions_have():
    gateway = Gateway()
    gateway.records(A, 0, 1)
    sub = gateway.subscribe((A, Place(0)), until={A: 2, B: 1})
    assert len(taken(sub)) == 2
    assert sub.ended is None
    gateway.records(A, 2)
    gateway.records(B, 0)
    assert taken(sub) == ["record 1 0 -> 2 1"]
    assert sub.ended == "until"


def test_only_what_retention_took_ends_those_who_want_to_fail():
    gateway = Gateway(fails=["orders"])
    skipping, failing = gateway.subscribe((A, Place(0, NO_EPOCH))), gateway.subscribe()
    gateway.turn(Gap(B, 0, 4, 0, Reason.SKIPPED))
    taken(skipping)
    assert skipping.ended is None
    gateway.turn(Gap(B, 4, 6, 0, Reason.RETENTION))
    assert taken(failing)[-1] == "gap 1 4 -> 0 6"
    assert failing.ended == "offset-out-of-range"


def test_one_that_ends_at_an_offset_hears_first_what_became_of_its_place():
    """It had read further than the topic that was made anew goes: it ended at once, untold."""
    gateway = Gateway()
    gateway.records(A, 0, 1)
    sub = gateway.subscribe((A, Place(9, 0, UNVERIFIED)), until={A: 2, B: 0})
    assert taken(sub) == [] and sub.ended is None
    gap = Gap(A, 9, 0, NO_EPOCH, Reason.RECREATED)
    sub.verified(A, Place(0, NO_EPOCH, 0), gap)
    assert taken(sub) == ["gap 0 9 -> 0 0", "record 0 0 -> 1 0", "record 0 1 -> 2 0"]
    assert sub.ended == "until"


def test_a_client_gets_no_more_than_was_granted_and_rides_again_once_there_is_enough():
    gateway = Gateway()
    sub = gateway.subscribe(credit=1)
    gateway.turn(*(record(A, offset) for offset in range(3)))
    assert taken(sub) == ["record 0 0 -> 1 0"]
    gateway.records(B, 0)
    assert taken(sub) == []
    sub.credit = 9
    assert taken(sub) == ["record 1 0 -> 1 1", "record 0 1 -> 2 1", "record 0 2 -> 3 1"]
    assert (sub.credit, sub.own) == (6, {})


def test_without_credit_one_that_stands_where_the_channel_stands_rides():
    gateway = Gateway()
    gateway.records(A, 0)
    sub = gateway.subscribe((A, Place(0)), credit=1)
    assert taken(sub) == ["record 0 0 -> 1 0"]
    sub.part({A: Place(1)})
    taken(sub)
    assert not sub.own


@pytest.mark.parametrize("credit", [0, 1])
def test_one_without_credit_that_the_ring_is_past_is_slow(credit: int):
    """Whether it waits in the ring, or reads alone since a chunk held more than it may get."""

    def behind(slow: SlowClient) -> tuple[Subscription, list[str]]:
        gateway = Gateway(ring=2000)
        sub = gateway.subscribe(credit=credit, slow=slow)
        gateway.turn(*(record(A, offset) for offset in range(3)))
        got = taken(sub)
        gateway.records(A, *range(3, 20))
        got += taken(sub)
        if slow is SlowClient.SKIP:
            assert not sub.own, "it rides again"
        gateway.records(A, 20)
        sub.credit = 100
        return sub, got + taken(sub)

    first = ["record 0 0 -> 1 0"] if credit else []
    sub, got = behind(SlowClient.SKIP)
    assert got == [*first, f"gap 0 {credit} -> 20 0", "record 0 20 -> 21 0"]
    sub, got = behind(SlowClient.DISCONNECT)
    assert (got, sub.ended) == (first, "slow")
    sub, got = behind(SlowClient.CATCH_UP)
    assert [line.split()[2] for line in got] == [str(offset) for offset in range(21)]


def test_one_that_catches_up_with_less_credit_than_records_come_is_conflated_too():
    """A partition that was read alone from the start was in no ring, so nothing told that its
    client was slow: with `maxRate` below what was written it lagged further with each record."""

    def keyed(offset: int) -> Record:
        return record(A, offset)._replace(key=b"key %d" % (offset % 3))

    gateway = Gateway(ring=2000)
    gateway.turn(*map(keyed, range(30)))
    sub = gateway.subscribe((A, Place(0)), credit=0, slow=SlowClient.CONFLATE)
    got: list[int] = []
    lags: list[int] = []
    for end in range(40, 1040, 10):
        gateway.turn(*map(keyed, range(end - 10, end)))
        sub.credit = 4
        got += [int(line.split()[2]) for line in taken(sub)]
        lags.append(end - 1 - got[-1])
    assert got == sorted(set(got))
    assert max(lags) < 100, "it never lags further than the ring and what it began with"
    assert lags.count(0) > 10, "and is live again and again"


@pytest.mark.parametrize("slow", SlowClient)
def test_one_that_keeps_up_loses_nothing_when_its_chunks_make_room(slow: SlowClient):
    """It was treated as its route treats slow clients."""
    gateway = Gateway(rings=Rings(0, lambda: [gateway.channel]))
    sub = gateway.subscribe(slow=slow)
    gateway.channel.sleepers.clear()  # it is written to in rounds
    got: list[str] = []
    for offset in range(5):
        gateway.records(A, offset)
        got += taken(sub)
    assert [line.split()[2] for line in got] == [str(offset) for offset in range(5)]
    assert sub.ended is None


@pytest.mark.parametrize("slow", [SlowClient.SKIP, SlowClient.DISCONNECT])
def test_one_without_credit_is_not_slow_because_the_others_have_everything(slow: SlowClient):
    """The ring was let go as if it had run past it: it skipped, or was disconnected, at once."""
    gateway = Gateway()
    rider, sub = gateway.subscribe(), gateway.subscribe(credit=1, slow=slow)
    gateway.turn(*(record(A, offset) for offset in range(3)))
    assert taken(sub) == ["record 0 0 -> 1 0"]
    taken(rider)
    gateway.channel.let_go()
    assert taken(sub) == [] and sub.ended is None
    sub.credit = 9
    assert taken(sub) == ["record 0 1 -> 2 0", "record 0 2 -> 3 0"]
    assert taken(sub) == [] and sub.alone is None
    gateway.channel.let_go()
    assert gateway.channel.first == gateway.channel.head, "all have everything now"


def not_b(tp: TopicPartition) -> bool:
    return tp != B


def test_what_holds_nothing_for_a_client_is_taken_to_where_the_channel_stands_unread():
    gateway = Gateway()
    gateway.records(A, 0, 1)
    gateway.records(B, 0, 1, 2)
    token = (A, Place(1, 0, UNVERIFIED)), (B, Place(1, 0, UNVERIFIED))
    sub = gateway.subscribe(*token, reads=not_b)
    assert sub.unverified() == [(A, Place(1, 0, UNVERIFIED))]
    assert decode(sub.begin()[1].decode()).topics[0].offsets == [1, 3]
    sub.verified(A, Place(1))
    assert taken(sub) == ["record 0 1 -> 2 3"]
    gateway.records(B, 3)
    assert taken(sub) == ["record 1 3 -> 2 4"]


def test_it_is_not_taken_back_nor_past_a_topic_that_was_made_anew():
    gateway = Gateway()
    gateway.records(B, 0)
    ahead, anew = (B, Place(2, 0, UNVERIFIED)), (B, Place(0, RETIRED, UNVERIFIED))
    for place in (ahead, anew):
        sub = gateway.subscribe(place, reads=not_b)
        assert sub.unverified() == [place]


def test_it_waits_until_it_is_known_where_the_channel_stands():
    gateway, new = Gateway(), TopicPartition("orders", 2)
    gateway.tail.add(Log(new, 1 << 20, 60.0), Place(None))
    sub = gateway.subscribe((new, Place(7, 0, UNVERIFIED)), reads=lambda tp: tp != new)
    assert sub.unverified() == [] and taken(sub) == []
    assert list(sub.own) == [new]
    gateway.tail.logs[new].open(9, 0)
    gateway.turn(Ready(new, 9, 9, 0))
    gateway.records(A, 0)
    assert taken(sub)[-1] == "record 0 0 -> 1 0 7"  # published before it was passed by
    gateway.records(A, 1)
    assert taken(sub) == ["record 0 1 -> 2 0 9"]
    assert sub.own == {}


def test_what_may_hold_something_after_all_by_then_is_read():
    """The number of partitions changed while it was not known where the channel stands."""
    gateway, new, grown = Gateway(), TopicPartition("orders", 2), set[TopicPartition]()
    gateway.tail.add(Log(new, 1 << 20, 60.0), Place(None))
    place = (new, Place(7, 0, UNVERIFIED))
    sub = gateway.subscribe(place, reads=grown.__contains__)
    grown.add(new)
    gateway.tail.logs[new].open(9, 0)
    gateway.turn(Ready(new, 9, 9, 0))
    taken(sub)
    assert sub.unverified() == [place]


def test_with_an_end_what_holds_nothing_does_not_hold_it_up():
    gateway = Gateway()
    gateway.records(A, 0)
    gateway.records(B, 0, 1)
    token = (A, Place(0, 0, UNVERIFIED)), (B, Place(0, 0, UNVERIFIED))
    sub = gateway.subscribe(*token, reads=not_b, until={A: 1, B: 2})
    sub.verified(A, Place(0))
    assert taken(sub) == ["record 0 0 -> 1 2"]
    assert sub.ended == "until"


def test_one_that_goes_on_reads_a_partition_that_came_meanwhile_from_its_first_record():
    """It was not among the places it went on from, and was taken to stand where the tail does."""
    gateway, new = Gateway(), TopicPartition("orders", 2)
    gateway.records(A, 0)
    sub = gateway.subscribe()
    places = sub.places()
    sub.step_aside()
    log = gateway.logs[new] = Log(new, 1 << 20, 60.0)
    gateway.tail.add(log, Place(0))
    log.open(0, 0)
    gateway.turn(Ready(new, 0, 0, 0))
    gateway.records(new, 0)
    gateway.records(A, 1)
    sub.go_on(places)
    assert sorted(line.partition(" -> ")[0] for line in taken(sub)) == ["record 0 1", "record 2 0"]
    gateway.records(new, 1)
    assert taken(sub) == ["record 2 1 -> 2 0 2"]
