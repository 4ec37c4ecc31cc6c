from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.budgets import measure_peak_memory

from gateway.core.error_code import ErrorCode
from gateway.core.produce.outbox import Outbox, ProducerIdAndEpoch, WriteOutcome, WriteStatus

ME = ProducerIdAndEpoch(7, 0)


def build_outbox(*items: str, **options: float) -> Outbox[str]:
    made: Outbox[str] = Outbox(**options)  # type: ignore[arg-type]
    made.set_producer(ME)
    for item in items:
        made.put(item, 10)
    return made


def test_what_waits_goes_as_one_batch_and_what_comes_meanwhile_as_the_next():
    box = build_outbox("a", "b")
    assert box.next_batch() == ["a", "b"]
    box.put("c", 10)
    assert box.on_response(0, 0.0) == WriteOutcome(WriteStatus.WRITTEN, ["a", "b"])
    assert (box.sequence, box.next_batch()) == (2, ["c"])


def test_a_batch_is_cut_by_its_bytes_and_a_larger_item_goes_alone():
    box = build_outbox("a", "b", "c", max_batch_bytes=20)
    box.put("large", 500)
    box.put("d", 10)
    sent = []
    while box:
        sent.append(box.next_batch())
        box.on_response(0, 0.0)
    assert sent == [["a", "b"], ["c"], ["large"], ["d"]]


@pytest.mark.parametrize(
    "answer",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        None,
    ],
)
def test_a_batch_of_unknown_fate_goes_again_as_it_was(answer: int | None):
    box = build_outbox("a")
    box.next_batch()
    box.put("b", 10)
    open_ = box.on_no_response(0.0) if answer is None else box.on_response(answer, 0.0)
    assert open_ == WriteOutcome(WriteStatus.PENDING, ())
    assert box.withdraw(["a"]) == []
    assert box.withdraw(["b"]) == ["b"]
    assert (box.producer, box.sequence, box.next_batch()) == (ME, 0, ["a"])
    assert box.on_response(0, 1.0) == WriteOutcome(WriteStatus.WRITTEN, ["a"])


@pytest.mark.parametrize(
    "answer",
    [
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ],
)
def test_a_batch_refused_before_it_was_appended_may_be_withdrawn(answer: int):
    """A record for a topic that was deleted meanwhile was in doubt for two minutes."""
    box = build_outbox("a", "b")
    box.next_batch()
    assert box.on_response(answer, 0.0).status is WriteStatus.PENDING
    assert box.withdraw(["a"]) == ["a"]
    assert (box.sequence, box.next_batch()) == (0, ["b"])


def test_a_refused_batch_leaves_no_hole_in_the_sequence():
    """aiokafka's producer counts it, and the partition takes nothing any more."""
    box = build_outbox("a")
    box.next_batch()
    assert box.on_response(ErrorCode.MESSAGE_TOO_LARGE, 0.0) == WriteOutcome(
        WriteStatus.REJECTED, ["a"]
    )
    box.put("b", 10)
    assert (box.next_batch(), box.sequence, box.producer) == (["b"], 0, ME)


def test_of_a_batch_only_the_records_are_refused_that_the_broker_names():
    box = build_outbox("a", "wrong", "c", "too")
    box.next_batch()
    refused = box.on_response(ErrorCode.INVALID_TIMESTAMP, 0.0, {1: "in 2100", 3: "in 1900"})
    assert refused == (WriteStatus.REJECTED, ["wrong", "too"], ["a", "c"])
    assert box.withdraw(["a"]) == ["a"]
    assert (box.next_batch(), box.sequence) == (["c"], 0)


@given(st.integers(2, 1000), st.data())
def test_one_of_many_records_that_is_refused_costs_few_batches(count: int, data: st.DataObject):
    """All records of the batch were sent one by one, and those behind them waited meanwhile."""
    box = Outbox[int]()
    box.set_producer(ME)
    wrong = data.draw(st.integers(0, count - 1))
    for item in range(count):
        box.put(item, 1)
    told: dict[int, WriteStatus] = {}
    batches = 0
    while box:
        code = ErrorCode.INVALID_RECORD if wrong in box.next_batch() else 0
        outcome = box.on_response(code, 0.0)
        told.update(dict.fromkeys(outcome.items, outcome.status))
        batches += 1
    assert {item for item, status in told.items() if status is WriteStatus.REJECTED} == {wrong}
    assert len(told) == count
    assert batches <= 1 + 2 * (count - 1).bit_length()


def test_batches_get_as_large_as_the_topic_takes():
    """Each batch was of the same size, was refused, and was sent again record by record."""
    box = Outbox[int](max_batch_bytes=500)
    box.set_producer(ME)
    for item in range(50_000):
        box.put(item, 1)
    sizes: list[int] = []
    for _ in range(200):
        sizes.append(len(box.next_batch()))
        outcome = box.on_response(ErrorCode.MESSAGE_TOO_LARGE if sizes[-1] > 200 else 0, 0.0)
        assert len(outcome.items) == (sizes[-1] if sizes[-1] <= 200 else 0)
    assert sum(size > 200 for size in sizes) < 10
    assert min(sizes) > 100
    while len(box.next_batch()) < 500:  # the limit of the topic was raised
        box.on_response(0, 0.0)


def test_a_refusal_of_what_may_be_written_already_is_no_word_on_the_first_attempt():
    box = build_outbox("a")
    box.next_batch()
    box.on_no_response(0.0)
    box.next_batch()
    assert box.on_response(ErrorCode.TOPIC_AUTHORIZATION_FAILED, 1.0) == WriteOutcome(
        WriteStatus.UNKNOWN,
        ["a"],
    )
    assert box.producer is None


def test_doubt_ends_with_the_batch_it_was_about():
    box = build_outbox("a")
    box.next_batch()
    box.on_no_response(0.0)
    box.next_batch()
    box.on_response(0, 1.0)
    box.put("b", 10)
    box.next_batch()
    assert box.on_response(ErrorCode.TOPIC_AUTHORIZATION_FAILED, 2.0) == WriteOutcome(
        WriteStatus.REJECTED,
        ["b"],
    )


def test_a_batch_is_given_up_when_nobody_said_what_became_of_it_for_long():
    box = build_outbox("a", delivery_timeout_s=60.0)
    box.next_batch()
    box.on_no_response(0.0)
    assert box.on_not_sent(59.0).status is WriteStatus.PENDING
    assert box.on_not_sent(60.0) == WriteOutcome(WriteStatus.UNKNOWN, ["a"])
    assert box.producer is None


def test_a_broker_that_failed_unexpectedly_may_have_appended_the_batch():
    """It was told as refused, although brokers answer UNKNOWN_SERVER_ERROR also after an append."""
    box = build_outbox("a", "b")
    box.next_batch()
    assert box.on_response(ErrorCode.UNKNOWN_SERVER_ERROR, 0.0) == WriteOutcome(
        WriteStatus.UNKNOWN,
        ["a", "b"],
    )
    assert box.producer is None


def test_an_answer_to_a_second_attempt_does_not_refuse_the_first():
    box = build_outbox("a")
    box.next_batch()
    box.mark_in_doubt(0.0)
    assert box.on_response(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0.0).status is WriteStatus.PENDING
    assert box.withdraw(["a"]) == []


def test_what_was_sent_is_given_up_as_unknown_and_what_waits_is_not():
    box = build_outbox("a")
    box.next_batch()
    box.put("b", 10)
    assert box.give_up() == WriteOutcome(WriteStatus.UNKNOWN, ["a"])
    assert (box.producer, box.withdraw(["b"])) == (None, ["b"])


def test_what_was_never_sent_is_not_given_up():
    box = build_outbox("a", delivery_timeout_s=60.0)
    assert box.on_not_sent(1e9).status is WriteStatus.PENDING
    assert box.withdraw(["a"]) == ["a"]


def test_a_stranger_introduces_itself_again():
    box = build_outbox("a")
    box.next_batch()
    assert (
        box.on_response(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0.0).status is WriteStatus.PENDING
    )
    assert box.producer is None
    box.set_producer(ProducerIdAndEpoch(8, 0))
    assert (box.next_batch(), box.sequence) == (["a"], 0)


def test_a_duplicate_is_written():
    box = build_outbox("a")
    box.next_batch()
    assert box.on_response(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, 0.0) == WriteOutcome(
        WriteStatus.WRITTEN, ["a"]
    )


def test_the_sequence_wraps():
    box = build_outbox("a", "b")
    box.sequence = (1 << 31) - 1
    box.next_batch()
    box.on_response(0, 0.0)
    assert box.sequence == 1


def test_where_nobody_may_write_all_that_waits_is_refused():
    box: Outbox[str] = Outbox()
    box.put("a", 1)
    box.put("b", 1)
    assert box.reject_waiting() == WriteOutcome(WriteStatus.REJECTED, ["a", "b"])
    assert not box


@dataclass
class PartitionLog:
    """One partition of a Kafka as KIP-98 has it, with all that may go wrong on the way.

    Every seventh item is larger than `max_bytes`, and every fifth is invalid.
    """

    max_bytes: int
    names_invalid: bool
    named: dict[int, str] = field(default_factory=dict)
    items: list[int] = field(default_factory=list)
    next_sequences: dict[int, int] = field(default_factory=dict)
    last_batches: dict[int, tuple[int, int]] = field(default_factory=dict)

    def append_batch(self, producer: int, sequence: int, batch: Sequence[int]) -> int:
        if self.last_batches.get(producer) == (sequence, len(batch)):
            return 0
        if self.next_sequences.get(producer, sequence) != sequence:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if sum(9 if item % 7 == 0 else 1 for item in batch) > self.max_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE
        if invalid := {index: "" for index, item in enumerate(batch) if item % 5 == 0}:
            self.named = invalid if self.names_invalid else {}
            return ErrorCode.INVALID_RECORD
        self.items += batch
        self.next_sequences[producer] = sequence + len(batch)
        self.last_batches[producer] = sequence, len(batch)
        return 0


FAULTS: dict[str, Callable[[PartitionLog, int, int, Sequence[int]], int | None]] = {
    "right": lambda log, *batch: log.append_batch(*batch),
    "the request is lost": lambda log, *batch: None,
    "the answer is lost": lambda log, *batch: (log.append_batch(*batch), None)[1],
    "deposed after the append": lambda log, *batch: (
        log.append_batch(*batch) or ErrorCode.NOT_LEADER_OR_FOLLOWER
    ),
    "failed after the append": lambda log, *batch: (
        log.append_batch(*batch) or ErrorCode.UNKNOWN_SERVER_ERROR
    ),
    "deposed before": lambda log, *batch: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    "too few replicas": lambda log, *batch: ErrorCode.NOT_ENOUGH_REPLICAS,
    "denied": lambda log, *batch: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    "a stranger": lambda log, *batch: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
}


@given(
    st.lists(
        st.sampled_from(["put", "put", *FAULTS, "withdraw", "wait"]), min_size=20, max_size=80
    ),
    st.builds(PartitionLog, st.integers(1, 8), st.booleans()),
)
def test_whatever_happens_a_record_is_written_as_it_is_told_and_once(
    steps: list[str], log: PartitionLog
):
    box = Outbox[int](max_batch_bytes=5, delivery_timeout_s=5.0)
    told: dict[int, WriteStatus] = {}
    withdrawn: set[int] = set()
    now, producers, put = 0.0, 0, 0

    def record_outcome(outcome: WriteOutcome[int]) -> None:
        for item in outcome.items if outcome.status is not WriteStatus.PENDING else ():
            assert item not in told
            told[item] = outcome.status

    for step in [*steps, *["right"] * 200]:
        now += 1.0
        if step == "put":
            put += 1
            box.put(put, 1)
        elif step == "wait":
            record_outcome(box.on_not_sent(now))
        elif step == "withdraw":
            item = next((item for item in box.items() if item not in withdrawn), None)
            if item is not None and box.withdraw([item]):
                withdrawn.add(item)
        elif box:
            if box.producer is None:
                producers += 1
                box.set_producer(ProducerIdAndEpoch(producers, 0))
            assert box.producer is not None
            fault = FAULTS[step]
            code = fault(log, box.producer.id, box.sequence, batch := list(box.next_batch()))
            record_outcome(
                box.on_no_response(now) if code is None else box.on_response(code, now, log.named)
            )
            log.named = {}
            assert len(batch) <= 5
    assert not box
    assert len(log.items) == len(set(log.items))
    assert log.items == sorted(log.items)
    for item in range(1, put + 1):
        assert (item in withdrawn) != (item in told)
        expected = {
            WriteStatus.WRITTEN: True,
            WriteStatus.REJECTED: False,
            WriteStatus.UNKNOWN: item in log.items,
        }
        assert (item in log.items) == (expected[told[item]] if item in told else False)


def test_a_few_of_many_items_are_withdrawn_without_a_look_at_the_others():
    """Each of 1,300 calls built the queue of all that waited anew, which took 43 s in one step."""
    box = Outbox[int]()
    for item in range(10_000):
        box.put(item, 1)
    peak = measure_peak_memory(lambda: [box.withdraw([item]) for item in range(100)])
    assert len(box) == 9_900 and peak < 40_000
