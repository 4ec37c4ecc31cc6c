from __future__ import annotations

from support.snapshot_model import PARTITIONS, KeyedTopic

from gateway.core.channel.tail import Tail
from gateway.core.client.catch_up import WriteBatch
from gateway.core.client.shared_cursor import PrivatePositions, SharedCursor
from gateway.core.client.terms import SubscriptionTerms
from gateway.core.log.record import Gap, GapReason, PartitionPosition, Skip

A, B = PARTITIONS


class BatchFixture:
    """A portion of a client that reads the first partition alone, and its three records."""

    def __init__(self, tail: type[Tail] = Tail, **terms: int) -> None:
        topic = KeyedTopic(tail)
        self.records = [topic.write_record(0, b"a") for _ in range(3)]
        self.cursor = SharedCursor(topic.channel, SubscriptionTerms(**terms))  # type: ignore[arg-type]
        self.positions = PrivatePositions(self.cursor)
        self.batch = WriteBatch(self.cursor, self.positions, 1000)

    def add_records(self, *offsets: int) -> None:
        for offset in offsets:
            place = PartitionPosition(offset + 1)
            self.positions.put(A, place)
            self.batch.add_entry(self.records[offset], place)

    def encode_lines(self) -> list[str]:
        self.batch.add_id()
        self.batch.flush_events()
        return b"".join(self.batch.pieces).decode().splitlines()


def test_each_event_has_the_id_of_where_its_client_stands_after_it():
    made = BatchFixture()
    made.add_records(0, 1)
    assert made.encode_lines() == ["record 0 0 -> 1 0", "record 0 1 -> 2 0"]


def test_of_a_flush_the_last_event_has_the_id_past_what_is_not_seen():
    made = BatchFixture()
    made.batch.has_single_id = True
    made.add_records(0, 1)
    made.batch.add_entry(Skip(A, 2, 3, 0), PartitionPosition(3))
    assert made.encode_lines() == ["record 0 0", "record 0 1 -> 3 0"]


class LongTokenTail(Tail):
    MAX_EXACT_TOKEN_CHARS = 0


def test_where_ids_come_in_batches_one_comes_behind_it_all():
    made = BatchFixture(LongTokenTail)
    made.add_records(0, 1)
    assert made.encode_lines() == ["record 0 0", "record 0 1", "position -> 2 0"]


def test_what_is_not_seen_takes_nothing_and_moves_the_next_id():
    made = BatchFixture()
    made.batch.add_entry(Skip(A, 0, 1, 0), PartitionPosition(1))
    assert made.encode_lines() == []
    made.positions.put(A, PartitionPosition(1))
    made.add_records(1)
    made.batch.move(B, PartitionPosition(5))
    made.add_records(2)
    assert made.encode_lines() == ["record 0 1 -> 2 0", "record 0 2 -> 3 5"]


def test_gaps_are_told_at_once_with_one_id_for_all():
    made = BatchFixture()
    for tp in PARTITIONS:
        made.positions.put(tp, PartitionPosition(2))
    gaps = [Gap(tp, 0, 2, 0, GapReason.SKIPPED) for tp in PARTITIONS]
    made.batch.add_gaps(gaps)
    told = b"".join(made.batch.pieces).decode().splitlines()
    assert [line.partition(" -> ")[2] for line in told] == ["", "2 2"]


def test_records_are_taken_off_what_the_client_may_be_sent():
    made = BatchFixture(credit=5, max_records=2)
    made.add_records(0)
    assert (made.cursor.credit, made.cursor.remaining_records, made.cursor.end_reason) == (
        4,
        1,
        None,
    )
    made.add_records(1)
    assert (made.cursor.credit, made.cursor.remaining_records, made.cursor.end_reason) == (
        3,
        0,
        "until",
    )
    assert made.batch.remaining_bytes < 1000
