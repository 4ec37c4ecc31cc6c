from __future__ import annotations

from gateway.core.log.partition_log import Log
from gateway.core.log.position import NO_EPOCH, RETIRED, Place
from gateway.core.log.record import Entry, Fault, Gap, Ready, Reason, Record, TopicPartition
from gateway.core.log.tail import Tail
from gateway.core.token.resume_token import TokenTopic, decode, digest, seal

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


def record(tp: TopicPartition, offset: int) -> Record:
    return Record(tp, offset, 0, 0, None, b"v")


def gap(tp: TopicPartition, at: int, to: int, reason: Reason) -> Gap:
    return Gap(tp, at, to, NO_EPOCH, reason)


def tail_of(*tps: TopicPartition) -> Tail:
    return Tail("cluster", [Log(tp, 1 << 20, 60.0) for tp in tps], {"orders": "id"})


def turn(tail: Tail, *entries: Entry, now: int = 1) -> list[TokenTopic]:
    """The topic as each entry's token has it."""
    for entry in entries:
        log = tail.logs[entry.tp]
        if type(entry) is Ready and log.next is None:
            log.open(entry.next, entry.epoch)
        elif type(entry) is not Fault:
            log.append(entry, 0.0)
    return [topic(item.text) for item in tail.turn(entries, now).items if item.text]


def topic(text: bytes) -> TokenTopic:
    return decode(seal(text, digest("view")).decode()).topics[0]


def test_after_every_entry_the_position_is_known():
    tail = tail_of(A, B)
    told = turn(tail, Ready(A, 5, 5, 0), record(A, 7), Ready(B, 2, 2, 0), record(B, 2))
    assert [t.offsets for t in told] == [[5, None], [8, None], [8, 2], [8, 3]]
    assert tail.position == {A: Place(8, 0), B: Place(3, 0)}


def test_positions_of_turns_past_can_be_found_until_they_are_forgotten():
    tail = tail_of(A)
    turn(tail, Ready(A, 0, 0, 0))
    for offset in range(4):
        turn(tail, record(A, offset))
    assert [tail.position_before(n)[A].offset for n in range(6)] == [None, 0, 1, 2, 3, 4]
    tail.forget(3)
    assert tail.oldest == 3
    assert tail.position_before(3)[A] == Place(2, 0)


def test_while_a_partition_is_pending_tokens_keep_the_time_of_the_first_who_waits():
    tail = tail_of(A, B)
    tail.await_since(A, 4, since=100)
    tail.await_since(A, 6, since=200)
    turn(tail, Ready(B, 0, 0, 0), now=300)
    token = decode(seal(tail.text, digest("view")).decode())
    assert token.issued == 100
    assert token.topics[0].epochs[0] == 4
    turn(tail, Ready(A, 9, 9, 0), now=301)
    turn(tail, record(B, 0), now=302)
    assert decode(seal(tail.text, digest("view")).decode()).issued == 302


def test_a_fault_moves_nothing_and_its_partition_is_pending():
    tail = tail_of(A)
    turn(tail, Ready(A, 3, 3, 0))
    turn(tail, Fault(A, 0, 0, 0, "access-denied"))
    assert tail.position[A] == Place(3, 0)
    assert list(tail.readiness.pending()) == [A]


def test_a_partition_that_came_into_being_starts_at_its_first_record():
    tail = tail_of(A)
    turn(tail, Ready(A, 3, 3, 0))
    tail.add(Log(B, 1 << 20, 60.0), Place(0))
    assert topic(tail.text).offsets == [3, 0]
    assert tail.position_before(0)[B] == Place(0)


def test_places_of_an_earlier_topic_are_marked_from_the_new_id_on_to_their_gap():
    """Partitions learn one after the other that the topic was created anew; a token cut
    between two gaps must not hold an old offset as if it were the new topic's."""
    tail = tail_of(A, B)
    turn(tail, Ready(A, 5, 5, 0), Ready(B, 9, 9, 0))
    tail.identify("orders", "another")
    now = topic(tail.text)
    assert now.is_topic("another")
    assert now.epochs == [RETIRED, RETIRED]
    (after,) = turn(tail, gap(A, 5, 0, Reason.RECREATED))
    assert (after.offsets, after.epochs) == ([0, 9], [NO_EPOCH, RETIRED])
    assert tail.is_retiring(B)
    assert topic(tail.writer({A: Place(3, 0, 0)}).text()).epochs == [RETIRED, RETIRED]
    turn(tail, gap(B, 9, 0, Reason.RECREATED))
    assert RETIRED not in topic(tail.text).epochs


def test_an_id_that_was_unknown_marks_nothing():
    tail = Tail("cluster", [Log(A, 1, 1.0)], {"orders": ""})
    tail.identify("orders", "id")
    assert topic(tail.text).epochs == [NO_EPOCH]
