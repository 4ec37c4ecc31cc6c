from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.delivery.batch import Bury, Dead, Probe, Rules, Send, Settled, Step, Wait
from gateway.core.delivery.lane import Lane
from gateway.core.delivery.verdict import Answered, Away, Item, Suspect, Verdict
from gateway.core.log.record import Record, TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
GOOD = Item(True)


def record(tp: TopicPartition, offset: int, value: bytes = b"v") -> Record:
    return Record(tp, offset, 0, 0, b"k", value)


def run_of(tp: TopicPartition, count: int, start: int = 0) -> list[Record]:
    return [record(tp, start + index) for index in range(count)]


def lane(records: Sequence[Record], /, **rules: object) -> Lane:
    made = Lane(Rules(draw=lambda: 1.0, **rules))  # type: ignore[arg-type]
    made.put(records)
    return made


def offsets(step: Step | None) -> list[int]:
    assert isinstance(step, Send)
    return [each.offset for each in step.records]


def all_good(step: Step | None) -> Answered:
    assert isinstance(step, Send)
    return Answered([GOOD] * len(step.records))


def after(made: Lane, now: float) -> tuple[Step | None, float]:
    """The next step that is no wait, and when."""
    step = made.next(now)
    while isinstance(step, Wait):
        now = step.until
        step = made.next(now)
    return step, now


# what goes


def test_a_batch_is_cut_by_records_and_bytes_and_a_larger_record_goes_alone():
    large = record(A, 3, b"x" * 500)
    made = lane([*run_of(A, 3), large, *run_of(A, 2, 4)], records=2, bytes=100)
    sent = []
    while (step := made.next(0.0)) is not None:
        sent.append(offsets(step))
        made.answered(all_good(step), 0.0)
    assert sent == [[0, 1], [2], [3], [4, 5]]


def test_one_batch_is_under_way_and_its_answer_moves_the_points_of_its_partitions():
    made = lane([*run_of(A, 2, 10), *run_of(B, 1, 5)])
    step = made.next(0.0)
    made.put(run_of(A, 1, 12))
    assert made.next(0.0) is None
    settled = made.answered(all_good(step), 0.0)
    assert settled == Settled([*run_of(A, 2, 10), *run_of(B, 1, 5)], [], {A: 12, B: 6})
    assert offsets(made.next(0.0)) == [12]


def test_a_lane_is_full_once_another_batch_waits():
    made = lane(run_of(A, 3), records=4)
    assert not made.full
    made.put(run_of(A, 1, 3))
    assert made.full
    assert lane([record(A, 0, b"x" * 99)], bytes=100).full


def test_nothing_goes_while_a_lane_is_held_and_what_is_under_way_is_settled():
    made = lane(run_of(A, 2), records=1)
    step = made.next(0.0)
    made.held = True
    assert made.answered(all_good(step), 0.0) is not None
    assert made.next(0.0) is None
    made.held = False
    assert offsets(made.next(0.0)) == [1]


# failed records


def test_a_failed_record_is_settled_once_it_is_among_the_dead_letters():
    made = lane(run_of(A, 4))
    made.next(0.0)
    assert made.answered(Answered([GOOD, Item(False, "boom"), GOOD, GOOD]), 0.0) is None
    dead = Dead(record(A, 1), "boom")
    assert made.next(0.0) == Bury([dead])
    settled = made.buried([], 0.0)
    assert settled == Settled([record(A, 0), record(A, 2), record(A, 3)], [dead], {A: 4})


def test_while_dead_letters_cannot_be_written_the_lane_stands_and_says_why():
    made = lane(run_of(A, 4), threshold=None)
    made.next(0.0)
    made.answered(Answered([Item(False, "a"), GOOD, Item(False, "c"), GOOD]), 0.0)
    first, second = Dead(record(A, 0), "a"), Dead(record(A, 2), "c")
    assert made.next(0.0) == Bury([first, second])
    assert made.buried([second], 7.0, "no topic orders.dlq") is None
    assert (made.trouble, made.since) == ("no topic orders.dlq", 7.0)
    step, now = after(made, 7.0)
    assert step == Bury([second]), "what is written is not written again"
    assert now > 7.0
    settled = made.buried([], now)
    assert settled is not None and settled.dead == [first, second]
    assert made.trouble == ""


@pytest.mark.parametrize(("size", "failing"), [(1, 1), (3, 1), (10, 3), (10, 10)])
def test_a_batch_is_rolled_back_by_its_threshold_and_never_for_ever(size: int, failing: int):
    made, now = lane(run_of(A, size), retries=3, threshold=30), 0.0
    bad = [Item(False, "boom")] * failing + [GOOD] * (size - failing)
    for _ in range(4):
        step, now = after(made, now)
        assert offsets(step) == list(range(size))
        assert made.answered(Answered(bad), now) is None
    step, now = after(made, now)
    assert isinstance(step, Bury) and len(step.dead) == failing
    settled = made.buried([], now)
    assert settled is not None and settled.points == {A: size}


def test_below_the_threshold_or_without_one_nothing_is_rolled_back():
    for rules in ({"threshold": 30}, {"threshold": None}):
        made = lane(run_of(A, 10), **rules)
        made.next(0.0)
        made.answered(Answered([Item(False, "boom")] * 2 + [GOOD] * 8), 0.0)
        assert isinstance(made.next(0.0), Bury)


def test_a_record_that_cannot_be_read_rolls_nothing_back():
    made = lane(run_of(A, 1))
    made.next(0.0)
    made.answered(Answered([Item(False, "not JSON", hopeless=True)]), 0.0)
    assert isinstance(made.next(0.0), Bury)


def test_without_dead_letters_a_failed_record_is_tried_for_ever():
    made, now = lane(run_of(A, 2), dead_letters=False), 0.0
    for verdict in (Answered([GOOD, Item(False, "boom")]), Suspect("500")):
        for _ in range(30):
            step, now = after(made, now)
            if isinstance(step, Probe):
                made.probed(True, now)
            else:
                assert isinstance(step, Send)
                answer = verdict if isinstance(verdict, Suspect) else _cut(verdict, step)
                assert made.answered(answer, now) is None
    assert now > 600


def _cut(answer: Answered, step: Send) -> Answered:
    return Answered([answer.items[each.offset] for each in step.records])


# away


def test_a_back_end_that_is_away_for_five_minutes_costs_no_record_and_few_requests():
    made, now, tries = lane(run_of(A, 100)), 0.0, 0
    while now < 300.0:
        step, now = after(made, now)
        assert offsets(step) == list(range(100))
        tries += 1
        if now < 300.0:
            assert made.answered(Away("refused"), now) is None
    assert 10 < tries < 30
    settled = made.answered(all_good(step), now)
    assert settled is not None and (settled.dead, settled.points) == ([], {A: 100})


def test_a_back_end_is_not_asked_before_the_time_that_it_gave():
    made = lane(run_of(A, 1), ceiling=30.0)
    made.next(0.0)
    made.answered(Away("429", retry_after=90.0), 0.0)
    assert made.next(1.0) == Wait(90.0)


def test_a_back_end_that_is_late_with_large_batches_gets_smaller_ones_and_then_larger_again():
    made, now, sizes = lane(run_of(A, 64), records=64, retries=1), 0.0, []
    while made.waiting:
        step, now = after(made, now)
        sizes.append(len(offsets(step)))
        late = sizes[-1] > 16
        made.answered(Away("timeout", late=True) if late else all_good(step), now)
    assert sizes == [64, 64, 32, 16, 16, 32, 16, 16]
    made.put(run_of(A, 64, 64))
    assert len(offsets(made.next(now))) == 64, "it kept up with two small ones"


# suspect


def test_a_suspect_batch_is_tried_again_and_then_halved_down_to_the_record_at_fault():
    made, now, sent = lane(run_of(A, 8), retries=3), 0.0, []
    step, now = after(made, now)
    while isinstance(step, Send):
        sent.append(offsets(step))
        bad = 5 in sent[-1]
        made.answered(Suspect("500: boom") if bad else all_good(step), now)
        step, now = after(made, now)
    assert sent == [[*range(8)]] * 4 + [[0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [4], [5]]
    assert step == Probe("500: boom")
    made.probed(True, now)
    assert made.next(now) == Bury([Dead(record(A, 5), "500: boom")])
    settled = made.buried([], now)
    assert settled is not None and settled.points == {A: 6}
    assert offsets(made.next(now)) == [6, 7]


def test_no_record_is_given_up_while_the_back_end_is_not_well():
    made, now = lane(run_of(A, 1), retries=0), 0.0
    for _ in range(50):
        step, now = after(made, now)
        if isinstance(step, Send):
            made.answered(Suspect("500"), now)
        else:
            assert step == Probe("500")
            made.probed(False, now, "its /health says 503")
            assert made.trouble == "500; no dead letter: its /health says 503"
    assert made.waiting == 1


def test_a_batch_that_is_too_large_is_halved_at_once():
    made = lane(run_of(A, 2), retries=3)
    made.next(0.0)
    made.answered(Suspect("413", too_large=True), 0.0)
    assert offsets(made.next(0.0)) == [0]


# partitions that go


def test_what_is_given_up_is_settled_if_it_was_under_way_and_not_tried_again():
    made = lane([*run_of(A, 2), *run_of(B, 2)], records=3)
    step = made.next(0.0)
    made.leave([A])
    assert made.carries([A])
    settled = made.answered(all_good(step), 0.0)
    assert settled is not None and settled.points == {A: 2, B: 1}
    assert not made.carries([A])

    made = lane([*run_of(A, 2), *run_of(B, 2)], records=3)
    made.next(0.0)
    made.leave([A])
    made.answered(Away("refused"), 0.0)
    assert not made.carries([A]), "it goes to another member now"
    step, _ = after(made, 0.0)
    assert isinstance(step, Send) and step.records == [record(B, 0)]


def test_a_record_on_its_way_to_the_dead_letters_gets_there_before_its_partition_goes():
    made = lane(run_of(A, 4))
    made.next(0.0)
    made.answered(Answered([Item(False, "boom"), GOOD, GOOD, GOOD]), 0.0)
    made.leave([A])
    assert made.carries([A])
    assert isinstance(made.next(0.0), Bury)
    settled = made.buried([], 0.0)
    assert settled is not None and settled.points == {A: 4}


def test_a_lane_tells_the_first_offset_that_is_not_settled():
    made = lane([*run_of(A, 2, 5), *run_of(B, 2, 9)], records=3)
    assert (made.first(A), made.first(B)) == (5, 9)
    step = made.next(0.0)
    assert (made.first(A), made.first(B)) == (5, 9)
    made.answered(all_good(step), 0.0)
    assert (made.first(A), made.first(B)) == (None, 10)
    made.next(0.0)
    made.drop([B])
    made.put(run_of(B, 1, 40))
    assert made.first(B) == 40, "what is under way is another's"


def test_nothing_of_a_lost_partition_is_settled_whatever_is_answered():
    made = lane([*run_of(A, 2), *run_of(B, 1)])
    step = made.next(0.0)
    made.drop([A])
    assert not made.abandoned
    settled = made.answered(all_good(step), 0.0)
    assert settled is not None and settled.points == {B: 1}
    made.put(run_of(A, 1))
    step = made.next(0.0)
    made.drop([A])
    assert made.abandoned
    made.put(run_of(A, 1, 40))
    assert made.answered(Suspect("500"), 0.0) is None
    assert offsets(made.next(0.0)) == [40], "it came back, and starts where it is read from now"


def test_a_lost_partition_is_not_waited_for():
    made = lane([*run_of(A, 1)])
    made.next(0.0)
    made.answered(Away("refused", retry_after=900.0), 0.0)
    made.drop([A])
    made.put(run_of(B, 1))
    assert offsets(made.next(0.0)) == [0]


def test_what_waited_of_a_lost_partition_takes_no_room():
    made = lane(run_of(A, 100, 1), bytes=1000)
    assert made.full
    made.drop([A])
    made.put([record(B, 0, b"x" * 900)])
    assert not made.full and made.waiting == 1


def test_a_lane_whose_partitions_went_while_it_waited_is_in_no_trouble():
    """It went on saying so, was taken for full, and what came next was never fetched."""
    made = lane(run_of(A, 3), records=3)
    made.next(0.0)
    made.answered(Away("refused"), 0.0)
    assert made.trouble and isinstance(made.next(0.0), Wait) and made.full is False
    made.drop([A])
    assert (made.trouble, made.waiting, made.next(0.0)) == ("", 0, None)
    made.put(run_of(B, 1))
    assert offsets(made.next(0.0)) == [0]


def test_the_trouble_of_what_is_dropped_amid_its_call_is_over_with_it():
    made = lane(run_of(A, 1))
    made.next(0.0)
    made.answered(Away("refused"), 0.0)
    step, now = after(made, 0.0)
    assert isinstance(step, Send)
    made.drop([A])
    assert made.trouble == ""
    assert made.answered(Away("refused"), now) is None
    assert (made.trouble, made.waiting) == ("", 0)


def test_it_counts_what_is_done_with():
    made = lane([*run_of(A, 2), record(B, 0)], threshold=None)
    made.next(0.0)
    made.answered(Answered([GOOD, Item(False, "boom"), GOOD]), 0.0)
    assert made.settled == 0
    made.next(0.0)
    made.buried([], 0.0)
    assert made.settled == 3


# whatever happens

SEVERAL = [A, B, TopicPartition("pay", 0)]
Reply = Callable[[Sequence[Record]], Verdict]


@dataclass
class World:
    """Kafka, the back end and the dead letters around one lane. logs: what each partition holds."""

    counts: dict[TopicPartition, int]
    made: Lane
    poison: frozenset[tuple[TopicPartition, int]]
    now: float = 0.0
    read: dict[TopicPartition, int] = field(default_factory=dict)  # where the consumer stands
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    processed: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    order: list[tuple[TopicPartition, int]] = field(default_factory=list)
    dead: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)

    def poll(self, tp: TopicPartition, count: int) -> None:
        start = self.read.get(tp, 0)
        end = min(self.counts[tp], start + count)
        self.made.put([record(tp, offset) for offset in range(start, end)])
        self.read[tp] = end

    def took(self, settled: Settled | None) -> None:
        for tp, point in (settled.points if settled else {}).items():
            for offset in range(self.committed.get(tp, 0), point):
                assert self.processed.get((tp, offset)) or self.dead.get((tp, offset)), "skipped"
            assert point >= self.committed.get(tp, 0)
            self.committed[tp] = point

    def goes_away(self, tp: TopicPartition) -> None:
        """To another member and back: it is read again from what was committed."""
        self.made.drop([tp])
        self.read[tp] = self.committed.get(tp, 0)

    def reply(self, records: Sequence[Record], kind: str) -> Verdict:
        """The back end of this moment; poison is bad for one that works at all."""
        match kind:
            case "away":
                return Away("refused")
            case "late":
                return self._work(records, Away("timeout", late=True))
            case "garbage":
                return self._work(records, Suspect("garbage"))
            case "stumbles" if any((each.tp, each.offset) in self.poison for each in records):
                return Suspect("500")
        bad = [(each.tp, each.offset) in self.poison for each in records]
        self._work([each for each, ill in zip(records, bad, strict=True) if not ill], None)
        return Answered([Item(not ill, "poison" if ill else "") for ill in bad])

    def _work(self, records: Sequence[Record], said: Verdict | None) -> Verdict:
        for each in records:
            place = (each.tp, each.offset)
            self.processed[place] = self.processed.get(place, 0) + 1
            self.order.append(place)
        return said or Answered([GOOD] * len(records))

    def step(self, kind: str, well: bool, written: int) -> None:
        step = self.made.next(self.now)
        match step:
            case Wait(until):
                self.now = until
            case Send(records):
                self.took(self.made.answered(self.reply(records, kind), self.now))
            case Probe():
                self.made.probed(well, self.now)
            case Bury(dead):
                for each in dead[:written]:
                    place = (each.record.tp, each.record.offset)
                    self.dead[place] = self.dead.get(place, 0) + 1
                self.took(self.made.buried(dead[written:], self.now, "no topic"))


KINDS = ["good", "stumbles", "away", "late", "garbage"]
happening = st.one_of(
    st.tuples(st.just("poll"), st.sampled_from(SEVERAL), st.integers(1, 7)),
    st.tuples(st.just("go"), st.sampled_from(SEVERAL)),
    st.tuples(st.just("step"), st.sampled_from(KINDS), st.booleans(), st.integers(0, 4)),
)
worlds = st.builds(
    World,
    st.fixed_dictionaries({tp: st.integers(0, 12) for tp in SEVERAL}),
    st.builds(
        lambda records, size, retries, threshold: Lane(
            Rules(records, size, retries, threshold, draw=lambda: 0.5)
        ),
        st.integers(1, 8),
        st.integers(1, 20),
        st.integers(0, 2),
        st.none() | st.integers(1, 100),
    ),
    st.frozensets(st.tuples(st.sampled_from(SEVERAL), st.integers(0, 12)), max_size=5),
)


@given(worlds, st.lists(happening, max_size=60))
def test_every_record_is_processed_or_a_dead_letter_in_order_and_none_is_skipped(
    world: World, happenings: Sequence[tuple[object, ...]]
):
    for what in happenings:
        match what:
            case ("poll", tp, count):
                world.poll(tp, count)  # type: ignore[arg-type]
            case ("go", tp):
                world.goes_away(tp)  # type: ignore[arg-type]
            case ("step", kind, well, written):
                world.step(kind, well, written)  # type: ignore[arg-type]
    for tp in SEVERAL:
        world.poll(tp, 99)
    for _ in range(2000):
        if not world.made.waiting:
            break
        world.step("stumbles", True, 99)
    assert world.committed == {tp: count for tp, count in world.counts.items() if count}
    everything = {(tp, n) for tp, count in world.counts.items() for n in range(count)}
    assert world.processed.keys() | world.dead.keys() == everything
    first = {}
    for position, place in enumerate(world.order):
        first.setdefault(place, position)
    for tp in SEVERAL:
        firsts = [position for place, position in sorted(first.items()) if place[0] == tp]
        assert firsts == sorted(firsts), "a record overtook one of its partition"


@given(worlds, st.lists(st.sampled_from(["away", "late"]), max_size=60))
def test_a_back_end_that_is_away_or_late_makes_no_dead_letters(world: World, kinds: Sequence[str]):
    for tp in SEVERAL:
        world.poll(tp, 99)
    for kind in kinds:
        world.step(kind, True, 99)
    assert not world.dead


@given(worlds, st.lists(st.sampled_from(["stumbles", "garbage"]), max_size=60))
def test_while_the_probe_fails_a_suspect_batch_makes_no_dead_letters(
    world: World, kinds: Sequence[str]
):
    for tp in SEVERAL:
        world.poll(tp, 99)
    for kind in kinds:
        world.step("garbage" if kind == "stumbles" else kind, False, 99)
    assert not world.dead
