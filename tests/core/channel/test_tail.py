from __future__ import annotations

from gateway.core.channel.tail import Tail
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import (
    NO_EPOCH,
    RETIRED_EPOCH,
    Entry,
    Fault,
    Gap,
    GapReason,
    PartitionPosition,
    Ready,
    Record,
    TopicPartition,
)
from gateway.core.token.resume_token import TokenTopic, digest_text, parse_token, seal_token

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


def record(tp: TopicPartition, offset: int) -> Record:
    return Record(tp, offset, 0, 0, None, b"v")


def gap(tp: TopicPartition, at: int, to: int, reason: GapReason) -> Gap:
    return Gap(tp, at, to, NO_EPOCH, reason)


def build_tail(*tps: TopicPartition) -> Tail:
    return Tail("cluster", [PartitionLog(tp, 1 << 20, 60.0) for tp in tps], {"orders": "id"})


def apply_entries(tail: Tail, *entries: Entry, now: int = 1) -> list[TokenTopic]:
    """The topic as each entry's token has it."""
    for entry in entries:
        log = tail.logs[entry.tp]
        if type(entry) is Ready and log.next_offset is None:
            log.open(entry.next_offset, entry.epoch)
        elif type(entry) is not Fault:
            log.append(entry, 0.0)
    return [
        parse_topic(item.token_text)
        for item in tail.apply_entries(entries, now).entries
        if item.token_text
    ]


def parse_topic(text: bytes) -> TokenTopic:
    return parse_token(seal_token(text, digest_text("view")).decode()).topics[0]


def test_after_every_entry_the_position_is_known():
    tail = build_tail(A, B)
    told = apply_entries(tail, Ready(A, 5, 5, 0), record(A, 7), Ready(B, 2, 2, 0), record(B, 2))
    assert [t.offsets for t in told] == [[5, None], [8, None], [8, 2], [8, 3]]
    assert tail.position == {A: PartitionPosition(8, 0), B: PartitionPosition(3, 0)}


def test_events_keep_their_tokens_when_offsets_and_epochs_make_them_longer():
    """`begin` had said `resume: exact`, and records came twice after a cut."""
    tps = [TopicPartition("orders", n) for n in range(160)]
    tail = build_tail(*tps)
    apply_entries(tail, *(Ready(tp, 5, 5, 0) for tp in tps))
    short = len(tail.token_text)
    for n, tp in enumerate(tps):
        tail.logs[tp].append(gap(tp, 5, 10**10, GapReason.COMPACTED), 0.0)
        tail.apply_entries([gap(tp, 5, 10**10, GapReason.COMPACTED)], n)
    told = apply_entries(tail, record(A, 10**10), record(B, 10**10))
    assert [t.offsets[:2] for t in told] == [[10**10 + 1, 10**10], [10**10 + 1, 10**10 + 1]]
    assert len(tail.token_text) > 4 * short


def test_positions_of_turns_past_can_be_found_until_they_are_forgotten():
    tail = build_tail(A)
    apply_entries(tail, Ready(A, 0, 0, 0))
    for offset in range(4):
        apply_entries(tail, record(A, offset))
    assert [tail.position_before(n)[A].offset for n in range(6)] == [None, 0, 1, 2, 3, 4]
    tail.forget_updates(3)
    assert tail.oldest_seq == 3
    assert tail.position_before(3)[A] == PartitionPosition(2, 0)


def test_while_a_partition_is_pending_tokens_keep_the_time_of_the_first_who_waits():
    tail = build_tail(A, B)
    tail.mark_pending_since(A, 4, since=100)
    tail.mark_pending_since(A, 6, since=200)
    apply_entries(tail, Ready(B, 0, 0, 0), now=300)
    token = parse_token(seal_token(tail.token_text, digest_text("view")).decode())
    assert token.issued == 100
    assert token.topics[0].epochs[0] == 4
    apply_entries(tail, Ready(A, 9, 9, 0), now=301)
    apply_entries(tail, record(B, 0), now=302)
    assert parse_token(seal_token(tail.token_text, digest_text("view")).decode()).issued == 302


def test_a_fault_moves_nothing_and_its_partition_is_pending():
    tail = build_tail(A)
    apply_entries(tail, Ready(A, 3, 3, 0))
    apply_entries(tail, Fault(A, 0, 0, 0, "access-denied"))
    assert tail.position[A] == PartitionPosition(3, 0)
    assert list(tail.readiness.list_pending()) == [A]


def test_a_partition_that_came_into_being_starts_at_its_first_record():
    tail = build_tail(A)
    apply_entries(tail, Ready(A, 3, 3, 0))
    tail.add_partition(PartitionLog(B, 1 << 20, 60.0), PartitionPosition(0))
    assert parse_topic(tail.token_text).offsets == [3, 0]
    assert tail.position_before(0)[B] == PartitionPosition(0)


def test_places_of_an_earlier_topic_are_marked_from_the_new_id_on_to_their_gap():
    """Partitions learn one after the other that the topic was created anew; a token cut
    between two gaps must not hold an old offset as if it were the new topic's."""
    tail = build_tail(A, B)
    apply_entries(tail, Ready(A, 5, 5, 0), Ready(B, 9, 9, 0))
    tail.set_topic_id("orders", "another")
    now = parse_topic(tail.token_text)
    assert now.matches_id("another")
    assert now.epochs == [RETIRED_EPOCH, RETIRED_EPOCH]
    (after,) = apply_entries(tail, gap(A, 5, 0, GapReason.RECREATED))
    assert (after.offsets, after.epochs) == ([0, 9], [NO_EPOCH, RETIRED_EPOCH])
    assert tail.is_retiring(B)
    assert parse_topic(
        tail.create_token_writer({A: PartitionPosition(3, 0, 0)}).to_text()
    ).epochs == [
        RETIRED_EPOCH,
        RETIRED_EPOCH,
    ]
    apply_entries(tail, gap(B, 9, 0, GapReason.RECREATED))
    assert RETIRED_EPOCH not in parse_topic(tail.token_text).epochs


def test_an_id_that_was_unknown_marks_nothing():
    tail = Tail("cluster", [PartitionLog(A, 1, 1.0)], {"orders": ""})
    tail.set_topic_id("orders", "id")
    assert parse_topic(tail.token_text).epochs == [NO_EPOCH]
