from __future__ import annotations

import pytest
from support.keyed import PARTITIONS, Topic

from gateway.core.client.private_positions import Own
from gateway.core.client.shared_cursor import Ride
from gateway.core.client.write_batch import Portion
from gateway.core.log import tail
from gateway.core.log.position import Place
from gateway.core.log.record import Gap, Reason, Skip

A, B = PARTITIONS


class Made:
    """A portion of a client that reads the first partition alone, and its three records."""

    def __init__(self, **terms: int) -> None:
        topic = Topic()
        self.records = [topic.write(0, b"a") for _ in range(3)]
        self.ride = Ride(topic.channel, **terms)  # type: ignore[arg-type]
        self.own = Own(self.ride)
        self.portion = Portion(self.ride, self.own, 1000)

    def send(self, *offsets: int) -> None:
        for offset in offsets:
            place = Place(offset + 1)
            self.own.put(A, place)
            self.portion.send(self.records[offset], place)

    def lines(self) -> list[str]:
        self.portion.sign()
        self.portion.render()
        return b"".join(self.portion.pieces).decode().splitlines()


def test_each_event_has_the_id_of_where_its_client_stands_after_it():
    made = Made()
    made.send(0, 1)
    assert made.lines() == ["record 0 0 -> 1 0", "record 0 1 -> 2 0"]


def test_of_a_flush_the_last_event_has_the_id_past_what_is_not_seen():
    made = Made()
    made.portion.flush = True
    made.send(0, 1)
    made.portion.send(Skip(A, 2, 3, 0), Place(3))
    assert made.lines() == ["record 0 0", "record 0 1 -> 3 0"]


def test_where_ids_come_in_batches_one_comes_behind_it_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tail, "EXACT_TOKEN", 0)
    made = Made()
    made.send(0, 1)
    assert made.lines() == ["record 0 0", "record 0 1", "position -> 2 0"]


def test_what_is_not_seen_takes_nothing_and_moves_the_next_id():
    made = Made()
    made.portion.send(Skip(A, 0, 1, 0), Place(1))
    assert made.lines() == []
    made.own.put(A, Place(1))
    made.send(1)
    made.portion.move(B, Place(5))
    made.send(2)
    assert made.lines() == ["record 0 1 -> 2 0", "record 0 2 -> 3 5"]


def test_gaps_are_told_at_once_with_one_id_for_all():
    made = Made()
    for tp in PARTITIONS:
        made.own.put(tp, Place(2))
    gaps = [Gap(tp, 0, 2, 0, Reason.SKIPPED) for tp in PARTITIONS]
    made.portion.tell(gaps)
    told = b"".join(made.portion.pieces).decode().splitlines()
    assert [line.partition(" -> ")[2] for line in told] == ["", "2 2"]


def test_records_are_taken_off_what_the_client_may_be_sent():
    made = Made(credit=5, count=2)
    made.send(0)
    assert (made.ride.credit, made.ride.count, made.ride.ended) == (4, 1, None)
    made.send(1)
    assert (made.ride.credit, made.ride.count, made.ride.ended) == (3, 0, "until")
    assert made.portion.left < 1000
