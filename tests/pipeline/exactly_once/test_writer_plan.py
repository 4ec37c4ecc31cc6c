"""The rules of exactly once: by example, and against a Kafka of a few lines whose drivers crash at
any step, while what they started lives on and others run by copies of the checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import CheckpointRefused
from gateway.pipeline.exactly_once.writer_plan import (
    LedgerEntry,
    PlanSuperseded,
    WriterPlan,
    build_fencing_plan,
    choose_plan,
    must_write,
    verify_entries,
    verify_owner,
    verify_plan,
    verify_settings,
)


def test_a_writer_without_an_entry_or_with_an_older_one_has_to_write():
    assert must_write(None, 0, 2)
    assert must_write(LedgerEntry(6, 2), 7, 2)
    assert must_write(LedgerEntry(6, 2), 7, 3)


def test_a_writer_that_has_committed_the_epoch_does_not_write_it_again():
    assert not must_write(LedgerEntry(7, 2, "a"), 7, 2, "a")
    assert not must_write(LedgerEntry(7, 2), 7, 2, "a")


@pytest.mark.parametrize("entry", [LedgerEntry(9, 2), LedgerEntry(7, 2, "other")])
def test_a_checkpoint_that_was_put_back_is_refused(entry: LedgerEntry):
    with pytest.raises(CheckpointRefused, match="put back to another state"):
        must_write(entry, 7, 2, "this")


def test_a_writer_does_not_skip_rows_that_were_divided_among_another_number_of_writers():
    with pytest.raises(CheckpointRefused, match="written by 2 and by 3 writers"):
        must_write(LedgerEntry(7, 2, "a"), 7, 3, "a")


def test_an_epoch_that_two_numbers_of_writers_wrote_is_refused_until_it_is_over():
    entries = [LedgerEntry(7, 1, "seven"), LedgerEntry(7, 2, "seven")]
    with pytest.raises(CheckpointRefused, match="batch 7 were written by 1 and by 2 writers"):
        verify_entries(entries, 7, lambda _: "seven")
    verify_entries(entries, 8, lambda _: "seven")


@pytest.mark.parametrize(
    "entries",
    [
        [LedgerEntry(6, 2, "six"), LedgerEntry(8, 2, "eight")],  # it is older
        [
            LedgerEntry(6, 2, "six"),
            LedgerEntry(7, 2, "other"),
        ],  # batch 7 was written with other records
        [LedgerEntry(5, 2, "other")],  # it is newer, and of another history
        [
            LedgerEntry(6, 3, "six"),
            LedgerEntry(6, 3, "six"),
            LedgerEntry(8, 3, "eight"),
        ],  # of a former plan
    ],
)
def test_one_writer_that_knows_of_another_history_refuses_the_checkpoint_for_all(entries):
    """Each writer asked for its own entry alone, so those with older ones wrote their rows while
    the one that knew better refused."""
    marks = {5: "five", 6: "six", 7: "seven"}
    with pytest.raises(CheckpointRefused):
        verify_entries(entries, 7, lambda epoch: marks.get(epoch, ""))


def test_a_checkpoint_that_wrote_what_the_ledger_has_goes_on():
    marks = {6: "six", 7: "seven"}
    entries = [LedgerEntry(3, 2, "forgotten"), LedgerEntry(6, 2, "six"), LedgerEntry(7, 2, "seven")]
    verify_entries(entries, 7, lambda epoch: marks.get(epoch, ""))
    verify_entries(entries, 8, lambda epoch: marks.get(epoch, ""))
    verify_entries([], 0, lambda _: "")


def test_changed_settings_are_refused_while_some_writers_have_committed_the_epoch_only():
    before, now = {"to.key": "a", "sql": "b"}, {"to.key": "c", "sql": "b"}
    begun = LedgerEntry(7, 2, "seven", before)
    with pytest.raises(
        CheckpointRefused, match=r"1 of 2 writers .* since: to\.key; take that back"
    ):
        verify_settings([LedgerEntry(6, 2, "six", before), begun], 7, now)
    verify_settings([begun], 7, before | {"new with this version": "d"})
    verify_settings([begun], 8, now)
    verify_settings([begun, begun], 7, now)  # all have: nothing is written again
    # But what was no row then would not be written now.
    read = LedgerEntry(7, 2, "seven", {"input clicks": "before"})
    with pytest.raises(CheckpointRefused, match=r"2 of 2 writers .* since: input clicks; take"):
        verify_settings([read, read], 7, {"input clicks": "now"})
    verify_settings([LedgerEntry(7, 2, "seven")], 7, now)  # of a former version


def test_what_an_older_generation_started_does_not_write():
    verify_plan(WriterPlan(2, 3), WriterPlan(2, 3))
    with pytest.raises(PlanSuperseded):
        verify_plan(WriterPlan(3, 3), WriterPlan(2, 3))


def test_only_an_earlier_checkpoint_of_the_job_is_refused_by_its_owner():
    plan = WriterPlan(3, 2)
    verify_owner(None, "first", plan, "/v1", is_first=True)  # no owner yet
    verify_owner("first", "first", plan, "/v1", is_first=True)
    verify_owner("first", "second", None, "/v1", is_first=False)  # has not written
    with pytest.raises(CheckpointRefused, match="query second has written the job's rows since"):
        verify_owner("second", "first", plan, "/v1", is_first=True)


def test_the_number_of_writers_changes_between_epochs_only():
    fencing = build_fencing_plan(WriterPlan(4, 2, "before"), 3, "now")
    assert fencing == WriterPlan(5, 2, "now")
    before, begun = [LedgerEntry(9, 2), LedgerEntry(9, 2)], [LedgerEntry(9, 2), LedgerEntry(10, 2)]
    assert choose_plan(fencing, before, 10, 3) == WriterPlan(6, 3, "now")
    assert choose_plan(fencing, begun, 10, 3) == WriterPlan(5, 2, "now")
    assert choose_plan(build_fencing_plan(None, 3, ""), [], 0, 3) == WriterPlan(1, 3)


@pytest.mark.parametrize("planned", [1, 3])
def test_an_epoch_that_has_begun_is_finished_by_as_many_writers_whatever_the_plan_says(planned):
    fencing = build_fencing_plan(WriterPlan(4, planned, "copy"), planned, "now")
    entries = [LedgerEntry(6, planned), LedgerEntry(7, 2)]
    assert choose_plan(fencing, entries, 7, planned) == WriterPlan(6, 2, "now")


RECORDS = 12  # of the input; the key is the offset


@dataclass
class Kafka:
    """What of it matters: a commit needs the newest producer of its transactional id."""

    plan: WriterPlan | None = None
    entries: dict[int, LedgerEntry] = field(default_factory=dict)
    producers: Counter[str] = field(default_factory=Counter)
    rows: Counter[int] = field(default_factory=Counter)

    def begin(self, identity: str) -> int:
        self.producers[identity] += 1
        return self.producers[identity]

    def commit(self, writer: int, producer: int, entry: LedgerEntry, rows: Iterable[int]) -> bool:
        if self.producers[f"writer-{writer}"] != producer:
            return False
        self.entries[writer] = entry
        self.rows.update(rows)
        return True

    def register(self, producer: int, plan: WriterPlan) -> bool:
        if self.producers["plan"] != producer:
            return False
        self.plan = plan
        return True


class Interrupted(Exception):
    """Another producer has the id."""


Steps = Iterator[None]
"""Others may come before each `next`."""


@dataclass
class Checkpoint:
    """ends: of the batches that were planned, behind the input's begin. done: how many of them."""

    ends: list[int] = field(default_factory=lambda: [0])
    done: int = 0

    def mark(self, epoch: int) -> str:
        return str(self.ends[: epoch + 2]) if epoch < len(self.ends) - 1 else ""

    def rows(self, epoch: int) -> range:
        return range(*list(pairwise(self.ends))[epoch])

    def copy(self) -> Checkpoint:
        return replace(self, ends=list(self.ends))


def task(
    kafka: Kafka, plan: WriterPlan, writer: int, epoch: int, mark: str, given: range, key: str
) -> Steps:
    yield
    rows = [row for row in given if KEYS[key](row) % plan.writers == writer]
    if not rows:
        return
    producer = kafka.begin(f"writer-{writer}")
    yield
    verify_plan(kafka.plan or plan, plan)
    yield
    if must_write(kafka.entries.get(writer), epoch, plan.writers, mark):
        yield
        entry = LedgerEntry(epoch, plan.writers, mark, {"to.key": key})
        if not kafka.commit(writer, producer, entry, rows):
            raise Interrupted


KEYS: dict[str, Callable[[int], int]] = {"offset": lambda row: row, "half": lambda row: row // 2}


@dataclass
class Driver:
    """Processes that run batches by a checkpoint, one after the other. left: tasks of the dead."""

    kafka: Kafka
    checkpoint: Checkpoint
    wanted: int
    name: str
    key: str = "offset"
    refused: bool = False
    left: list[Steps] = field(default_factory=list)
    tasks: dict[int, Steps] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.crash(self.wanted, self.key)

    @property
    def finished(self) -> bool:
        return self.checkpoint.done == len(self.checkpoint.ends) - 1 and (
            self.checkpoint.ends[-1] == RECORDS
        )

    def crash(self, wanted: int, key: str) -> None:
        self.left += self.tasks.values()
        self.name += "+"
        self.wanted, self.key = wanted, key
        self.tasks, self.owns, self.refused = {}, False, False
        self.steps = self.run()

    def step(self, choice: int) -> None:
        """The choice: how many records a batch has, or which task is next."""
        self.choice = choice
        try:
            next(self.steps, None)
        except (Interrupted, PlanSuperseded):
            self.crash(self.wanted, self.key)
        except CheckpointRefused:
            self.refused = True

    def zombie(self, choice: int) -> None:
        if self.left:
            at = choice % len(self.left)
            try:
                next(self.left[at])
            except (StopIteration, Interrupted, PlanSuperseded, CheckpointRefused):
                del self.left[at]

    def run(self) -> Steps:
        checkpoint = self.checkpoint
        while not self.finished:
            epoch = checkpoint.done
            if epoch == len(checkpoint.ends) - 1:
                checkpoint.ends.append(min(RECORDS, checkpoint.ends[-1] + self.choice % 4))
            yield
            if not self.owns or (self.kafka.plan and self.kafka.plan.writers != self.wanted):
                yield from self.take_over(epoch)
            plan = self.kafka.plan
            assert plan is not None
            if plan.driver != self.name:
                raise PlanSuperseded
            rows, mark = checkpoint.rows(epoch), checkpoint.mark(epoch)
            every = range(plan.writers)
            self.tasks = {w: task(self.kafka, plan, w, epoch, mark, rows, self.key) for w in every}
            while self.tasks:
                yield
                writer = sorted(self.tasks)[self.choice % len(self.tasks)]
                try:
                    next(self.tasks[writer])
                except StopIteration:
                    del self.tasks[writer]
            checkpoint.done += 1

    def take_over(self, epoch: int) -> Steps:
        kafka, mark = self.kafka, self.checkpoint.mark
        verify_entries(kafka.entries.values(), epoch, mark)
        verify_settings(kafka.entries.values(), epoch, {"to.key": self.key})
        yield
        producer = kafka.begin("plan")
        yield
        before = kafka.plan
        if self.owns and (before is None or before.driver != self.name):
            raise PlanSuperseded
        yield
        fencing = build_fencing_plan(before, self.wanted, self.name)
        if not kafka.register(producer, fencing):
            raise Interrupted
        yield
        for writer in range(before.writers if before else 0):
            kafka.begin(f"writer-{writer}")
            yield
        entries = list(kafka.entries.values())
        verify_entries(entries, epoch, mark)
        verify_settings(entries, epoch, {"to.key": self.key})
        settled = choose_plan(fencing, entries, epoch, self.wanted)
        yield
        if settled != fencing and not kafka.register(producer, settled):
            raise Interrupted
        self.owns = True


def run_until(driver: Driver, condition: Callable[[], bool]) -> None:
    for _ in range(400):
        if condition():
            return
        driver.step(1)  # one record for each batch
    raise AssertionError("the driver never gets there")


@pytest.mark.parametrize("begun, planned", [(1, 2), (2, 1)])
def test_an_epoch_that_a_copy_of_the_checkpoint_has_written_is_not_divided_by_the_plan_after_it(
    begun, planned
):
    """The copy committed an epoch and then changed the plan. The other driver repeated the epoch
    with the new number of writers: the writer that got the row then had no entry, and wrote it
    again."""
    kafka = Kafka()
    behind = Driver(kafka, Checkpoint(), begun, "behind")
    run_until(behind, lambda: behind.checkpoint.done == 1 and len(behind.checkpoint.ends) == 3)
    ahead = Driver(kafka, behind.checkpoint.copy(), begun, "ahead")
    run_until(ahead, lambda: ahead.checkpoint.done == 2)
    ahead.crash(planned, ahead.key)
    run_until(ahead, lambda: ahead.owns)
    assert kafka.plan is not None and kafka.plan.writers == planned
    run_until(behind, lambda: behind.finished)
    assert kafka.rows == Counter(range(RECORDS))


ACTIONS = st.lists(
    st.tuples(st.sampled_from("s" * 12 + "rrrrzzzzcckp"), st.integers(0, 11), st.integers(1, 4)),
    min_size=40,
    max_size=200,
)


@given(actions=ACTIONS, wanted=st.integers(1, 4))
@settings(max_examples=400, deadline=None)
def test_every_row_is_written_once_whoever_crashes_lives_on_or_runs_by_a_copy(actions, wanted):
    """Crashes, zombies of dead processes, other numbers of writers, other keys, and copies of the
    checkpoint that are put back or run beside it: a row is never there twice, and never lost, as
    one of the checkpoints is always that of what was written.

    A key that was changed while some writers had committed a batch gave rows to other writers."""
    kafka = Kafka()
    drivers = [Driver(kafka, Checkpoint(), wanted, "d0")]
    copies = [drivers[0].checkpoint.copy()]
    for what, choice, writers in actions:
        at = choice % len(drivers)
        if what == "s":
            drivers[at].step(choice)
        elif what == "r":  # long enough for a batch: single steps seldom let a driver go on so far
            for _ in range(8 * writers):
                drivers[at].step(choice)
        elif what == "z":
            drivers[at].zombie(choice)
        elif what == "c":
            drivers[at].crash(writers, drivers[at].key)
        elif what == "k":
            drivers[at].crash(writers, "half" if drivers[at].key == "offset" else "offset")
        else:
            copies.append(drivers[at].checkpoint.copy())
            put_back, name = copies[choice % len(copies)], f"d{len(drivers)}"
            drivers.append(Driver(kafka, put_back.copy(), writers, name))
        assert max(kafka.rows.values(), default=1) == 1
    for _ in range(3):  # those that were taken over, again
        for each in drivers:
            for key in (*KEYS, *KEYS):  # of a batch that was interrupted; then another one
                if not each.finished:
                    each.crash(each.wanted, key)
                for _ in range(400):
                    each.step(1)
    for each in drivers:
        for _ in range(4 * len(each.left)):
            each.zombie(0)
    assert kafka.rows == Counter(range(RECORDS))
    assert any(each.finished and not each.refused for each in drivers)
