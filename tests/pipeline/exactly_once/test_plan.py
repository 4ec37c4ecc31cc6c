"""The rules of exactly once: by example, and against a Kafka of a few lines whose drivers crash at
any step while what they started lives on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import CheckpointRefused
from gateway.pipeline.exactly_once.plan import (
    Change,
    Entry,
    Plan,
    Superseded,
    current,
    due,
    first,
)


def test_a_writer_without_an_entry_or_with_an_older_one_has_to_write():
    assert due(None, 0)
    assert due(Entry(6, 2), 7)


def test_a_writer_that_has_committed_the_epoch_does_not_write_it_again():
    assert not due(Entry(7, 2, "a"), 7, "a")
    assert not due(Entry(7, 2), 7, "a")


@pytest.mark.parametrize("entry", [Entry(9, 2), Entry(7, 2, "other")])
def test_a_checkpoint_that_was_put_back_is_refused(entry: Entry):
    with pytest.raises(CheckpointRefused, match="older state"):
        due(entry, 7, "this")


def test_what_an_older_generation_started_does_not_write():
    current(Plan(2, 3), Plan(2, 3))
    with pytest.raises(Superseded):
        current(Plan(3, 3), Plan(2, 3))


def test_the_number_of_writers_changes_between_epochs_only():
    change = Change(Plan(4, 2), wanted=3, epoch=10)
    assert change.closing == Plan(5, 2)
    assert change.settled([Entry(9, 2), Entry(9, 2)]) == Plan(6, 3)
    assert change.settled([Entry(9, 2), Entry(10, 2)]) == Plan(5, 2)


ROWS = range(12)  # of every epoch; the key is the row
EPOCHS = 4


@dataclass
class Kafka:
    """What of it matters: a commit needs the newest producer of its transactional id."""

    plan: Plan | None = None
    entries: dict[int, Entry] = field(default_factory=dict)
    producers: Counter[str] = field(default_factory=Counter)
    rows: Counter[tuple[int, int]] = field(default_factory=Counter)

    def begin(self, identity: str) -> int:
        self.producers[identity] += 1
        return self.producers[identity]

    def commit(self, writer: int, producer: int, entry: Entry) -> bool:
        if self.producers[f"writer-{writer}"] != producer:
            return False
        self.entries[writer] = entry
        self.rows.update((entry.epoch, row) for row in ROWS if row % entry.writers == writer)
        return True

    def register(self, producer: int, plan: Plan) -> bool:
        if self.producers["plan"] != producer:
            return False
        self.plan = plan
        return True


Steps = Iterator[bool | None]
"""Each `next` is a step that others may come before; the last value says if it succeeded."""


def task(kafka: Kafka, plan: Plan, writer: int, epoch: int) -> Steps:
    yield None
    producer = kafka.begin(f"writer-{writer}")
    yield None
    try:
        current(kafka.plan or plan, plan)
    except Superseded:
        yield False
        return
    yield None
    try:
        written = not due(kafka.entries.get(writer), epoch)
    except CheckpointRefused:  # a later epoch has begun: only a task of a dead driver sees that
        yield False
        return
    if written:
        yield True
        return
    yield None
    yield kafka.commit(writer, producer, Entry(epoch, plan.writers))


def planned(kafka: Kafka, wanted: int, epoch: int) -> Iterator[Plan | None]:
    """As the driver goes about it; ends without a plan if another driver came between."""
    plan = kafka.plan
    yield None
    if plan is not None and plan.writers == wanted:
        yield plan
        return
    closing = first(wanted) if plan is None else Change(plan, wanted, epoch).closing
    producer = kafka.begin("plan")
    yield None
    if not kafka.register(producer, closing):
        return
    yield None
    if plan is None:
        yield closing
        return
    for writer in range(plan.writers):
        kafka.begin(f"writer-{writer}")
        yield None
    old = [kafka.entries[each] for each in range(plan.writers) if each in kafka.entries]
    settled = Change(plan, wanted, epoch).settled(old)
    yield None
    if settled != closing:
        producer = kafka.begin("plan")
        yield None
        if not kafka.register(producer, settled):
            return
    yield settled


class Spark:
    """Runs epochs, each again until all of its writers are done; forgets nothing but its place
    within an epoch. `left` are tasks of drivers that are gone."""

    def __init__(self, kafka: Kafka, wanted: int) -> None:
        self.kafka, self.wanted, self.epoch = kafka, wanted, 0
        self.left: list[Steps] = []
        self._start()

    def _start(self) -> None:
        self.planning = planned(self.kafka, self.wanted, self.epoch)
        self.tasks: list[Steps] = []
        self.waiting: set[int] = set()

    def crash(self, wanted: int) -> None:
        self.left += self.tasks
        self.wanted = wanted
        self._start()

    def step(self, choice: int) -> None:
        if self.tasks:
            self._task(choice)
            return
        plan = next(self.planning, Plan(0, 0))
        if plan == Plan(0, 0):
            self._start()  # superseded: another try
        elif plan is not None:
            made = range(plan.writers)
            self.tasks = [task(self.kafka, plan, each, self.epoch) for each in made]
            self.waiting = set(made)

    def _task(self, choice: int) -> None:
        writer = sorted(self.waiting)[choice % len(self.waiting)]
        done = next(self.tasks[writer])
        if done is False:
            self.crash(self.wanted)
        elif done:
            self.waiting.discard(writer)
            if not self.waiting:
                self.epoch += 1
                self._start()

    def zombie(self, choice: int) -> None:
        if self.left:
            at = choice % len(self.left)
            if next(self.left[at], False) is not None:
                del self.left[at]


ACTIONS = st.lists(
    st.tuples(st.sampled_from("s" * 16 + "zzzzc"), st.integers(0, 11), st.integers(1, 4)),
    min_size=40,
    max_size=160,
)


@given(actions=ACTIONS, wanted=st.integers(1, 4))
@settings(max_examples=400, deadline=None)
def test_every_row_is_written_once_whoever_crashes_lives_on_or_changes_the_number_of_writers(
    actions: list[tuple[str, int, int]], wanted: int
):
    kafka = Kafka()
    spark = Spark(kafka, wanted)
    for what, choice, writers in actions:
        if spark.epoch == EPOCHS:
            break
        if what == "s":
            spark.step(choice)
        elif what == "z":
            spark.zombie(choice)
        else:
            spark.crash(writers)
    while spark.epoch < EPOCHS:
        spark.step(0)
    for _ in range(4 * len(spark.left)):
        spark.zombie(0)
    assert kafka.rows == Counter((epoch, row) for epoch in range(EPOCHS) for row in ROWS)
