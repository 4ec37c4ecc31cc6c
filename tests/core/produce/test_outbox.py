from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.produce.outbox import Fate, Outbox, Outcome, Producer

TOO_LARGE, NOT_LEADER, NOT_ENOUGH, OUT_OF_ORDER, DENIED, DUPLICATE = 10, 6, 19, 45, 29, 46
UNKNOWN_TOPIC = 3, 100
ME = Producer(7, 0)


def outbox(*items: str, **options: float) -> Outbox[str]:
    made: Outbox[str] = Outbox(**options)  # type: ignore[arg-type]
    made.adopt(ME)
    for item in items:
        made.put(item, 10)
    return made


def test_what_waits_goes_as_one_batch_and_what_comes_meanwhile_as_the_next():
    box = outbox("a", "b")
    assert box.batch() == ["a", "b"]
    box.put("c", 10)
    assert box.answered(0, 0.0) == (Fate.WRITTEN, ["a", "b"])
    assert (box.sequence, box.batch()) == (2, ["c"])


def test_a_batch_is_cut_by_its_bytes_and_a_larger_item_goes_alone():
    box = outbox("a", "b", "c", most=20)
    box.put("large", 500)
    box.put("d", 10)
    sent = []
    while box:
        sent.append(box.batch())
        box.answered(0, 0.0)
    assert sent == [["a", "b"], ["c"], ["large"], ["d"]]


@pytest.mark.parametrize("answer", [NOT_LEADER, 7, 20, None])
def test_a_batch_of_unknown_fate_goes_again_as_it_was(answer: int | None):
    box = outbox("a")
    box.batch()
    box.put("b", 10)
    open_ = box.unanswered(0.0) if answer is None else box.answered(answer, 0.0)
    assert open_ == (Fate.OPEN, ())
    assert box.withdraw(["a"]) == []
    assert box.withdraw(["b"]) == ["b"]
    assert (box.producer, box.sequence, box.batch()) == (ME, 0, ["a"])
    assert box.answered(0, 1.0) == (Fate.WRITTEN, ["a"])


@pytest.mark.parametrize("answer", [NOT_ENOUGH, *UNKNOWN_TOPIC])
def test_a_batch_refused_before_it_was_appended_may_be_withdrawn(answer: int):
    """A record for a topic that was deleted meanwhile was in doubt for two minutes."""
    box = outbox("a", "b")
    box.batch()
    assert box.answered(answer, 0.0).fate is Fate.OPEN
    assert box.withdraw(["a"]) == ["a"]
    assert (box.sequence, box.batch()) == (0, ["b"])


def test_a_refused_batch_leaves_no_hole_in_the_sequence():
    """aiokafka's producer counts it, and the partition takes nothing any more."""
    box = outbox("a")
    box.batch()
    assert box.answered(TOO_LARGE, 0.0) == (Fate.REFUSED, ["a"])
    box.put("b", 10)
    assert (box.batch(), box.sequence, box.producer) == (["b"], 0, ME)


def test_of_a_batch_only_the_record_that_is_too_large_is_refused():
    box = outbox("a", "large", "c")
    box.batch()
    assert box.answered(TOO_LARGE, 0.0).fate is Fate.OPEN
    told = []
    while box:
        batch = box.batch()
        assert len(batch) == 1
        told.append(box.answered(TOO_LARGE if batch == ["large"] else 0, 0.0))
    assert told == [(Fate.WRITTEN, ["a"]), (Fate.REFUSED, ["large"]), (Fate.WRITTEN, ["c"])]
    assert box.sequence == 2


def test_a_refusal_of_what_may_be_written_already_is_no_word_on_the_first_attempt():
    box = outbox("a")
    box.batch()
    box.unanswered(0.0)
    box.batch()
    assert box.answered(DENIED, 1.0) == (Fate.DOUBTFUL, ["a"])
    assert box.producer is None


def test_doubt_ends_with_the_batch_it_was_about():
    box = outbox("a")
    box.batch()
    box.unanswered(0.0)
    box.batch()
    box.answered(0, 1.0)
    box.put("b", 10)
    box.batch()
    assert box.answered(DENIED, 2.0) == (Fate.REFUSED, ["b"])


def test_a_batch_is_given_up_when_nobody_said_what_became_of_it_for_long():
    box = outbox("a", doubt=60.0)
    box.batch()
    box.unanswered(0.0)
    assert box.delayed(59.0).fate is Fate.OPEN
    assert box.delayed(60.0) == (Fate.DOUBTFUL, ["a"])
    assert box.producer is None


def test_what_was_never_sent_is_not_given_up():
    box = outbox("a", doubt=60.0)
    assert box.delayed(1e9).fate is Fate.OPEN
    assert box.withdraw(["a"]) == ["a"]


def test_a_stranger_introduces_itself_again():
    box = outbox("a")
    box.batch()
    assert box.answered(OUT_OF_ORDER, 0.0).fate is Fate.OPEN
    assert box.producer is None
    box.adopt(Producer(8, 0))
    assert (box.batch(), box.sequence) == (["a"], 0)


def test_a_duplicate_is_written():
    box = outbox("a")
    box.batch()
    assert box.answered(DUPLICATE, 0.0) == (Fate.WRITTEN, ["a"])


def test_the_sequence_wraps():
    box = outbox("a", "b")
    box.sequence = (1 << 31) - 1
    box.batch()
    box.answered(0, 0.0)
    assert box.sequence == 1


def test_where_nobody_may_write_all_that_waits_is_refused():
    box: Outbox[str] = Outbox()
    box.put("a", 1)
    box.put("b", 1)
    assert box.refused() == (Fate.REFUSED, ["a", "b"])
    assert not box


@dataclass
class Log:
    """One partition of a Kafka as KIP-98 has it, with all that may go wrong on the way."""

    items: list[int] = field(default_factory=list)
    next: dict[int, int] = field(default_factory=dict)
    last: dict[int, tuple[int, int]] = field(default_factory=dict)

    def append(self, producer: int, sequence: int, batch: Sequence[int]) -> int:
        if self.last.get(producer) == (sequence, len(batch)):
            return 0
        if self.next.get(producer, sequence) != sequence:
            return OUT_OF_ORDER
        if any(item % 7 == 0 for item in batch):
            return TOO_LARGE
        self.items += batch
        self.next[producer] = sequence + len(batch)
        self.last[producer] = sequence, len(batch)
        return 0


FAULTS: dict[str, Callable[[Log, int, int, Sequence[int]], int | None]] = {
    "right": lambda log, *batch: log.append(*batch),
    "the request is lost": lambda log, *batch: None,
    "the answer is lost": lambda log, *batch: (log.append(*batch), None)[1],
    "deposed after the append": lambda log, *batch: log.append(*batch) or NOT_LEADER,
    "deposed before": lambda log, *batch: NOT_LEADER,
    "too few replicas": lambda log, *batch: NOT_ENOUGH,
    "denied": lambda log, *batch: DENIED,
    "a stranger": lambda log, *batch: OUT_OF_ORDER,
}


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from(["put", "put", *FAULTS, "withdraw", "wait"]), min_size=20, max_size=80)
)
def test_whatever_happens_a_record_is_written_as_it_is_told_and_once(steps: list[str]):
    log, box = Log(), Outbox[int](most=3, doubt=5.0)
    told: dict[int, Fate] = {}
    withdrawn: set[int] = set()
    now, producers, put = 0.0, 0, 0

    def tell(outcome: Outcome[int]) -> None:
        for item in outcome.items:
            assert item not in told
            told[item] = outcome.fate

    for step in [*steps, *["right"] * 200]:
        now += 1.0
        if step == "put":
            put += 1
            box.put(put, 1)
        elif step == "wait":
            tell(box.delayed(now))
        elif step == "withdraw":
            item = next((item for item in box.items() if item not in withdrawn), None)
            if item is not None and box.withdraw([item]):
                withdrawn.add(item)
        elif box:
            if box.producer is None:
                producers += 1
                box.adopt(Producer(producers, 0))
            assert box.producer is not None
            fault = FAULTS[step]
            code = fault(log, box.producer.id, box.sequence, batch := list(box.batch()))
            tell(box.unanswered(now) if code is None else box.answered(code, now))
            assert len(batch) <= 3
    assert not box
    assert len(log.items) == len(set(log.items))
    assert log.items == sorted(log.items)
    for item in range(1, put + 1):
        assert (item in withdrawn) != (item in told)
        expected = {Fate.WRITTEN: True, Fate.REFUSED: False, Fate.DOUBTFUL: item in log.items}
        assert (item in log.items) == (expected[told[item]] if item in told else False)
