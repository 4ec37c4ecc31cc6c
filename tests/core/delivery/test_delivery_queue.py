from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.delivery.delivery_queue import (
    DeadLetterRecord,
    DeliveryQueue,
    DeliveryRules,
    DeliveryStep,
    ProbeBackend,
    SendRecords,
    SendToDeadLetters,
    SettledRecords,
    WaitUntil,
)
from gateway.core.delivery.verdict import (
    BackendUnavailable,
    BatchResults,
    RecordResult,
    SuspectBatch,
    Verdict,
)
from gateway.core.log.record import Record, TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
GOOD = RecordResult(True)


def record(tp: TopicPartition, offset: int, value: bytes = b"v") -> Record:
    return Record(tp, offset, 0, 0, b"k", value)


def build_records(tp: TopicPartition, count: int, start: int = 0) -> list[Record]:
    return [record(tp, start + index) for index in range(count)]


def build_lane(records: Sequence[Record], /, **rules: object) -> DeliveryQueue:
    made = DeliveryQueue(DeliveryRules(random=lambda: 1.0, **rules))  # type: ignore[arg-type]
    made.put(records)
    return made


def get_offsets(step: DeliveryStep | None) -> list[int]:
    assert isinstance(step, SendRecords)
    return [each.offset for each in step.records]


def accept_all(step: DeliveryStep | None) -> BatchResults:
    assert isinstance(step, SendRecords)
    return BatchResults([GOOD] * len(step.records))


def skip_waits(lane: DeliveryQueue, now: float) -> tuple[DeliveryStep | None, float]:
    """The next step that is no wait, and when."""
    step = lane.next_step(now)
    while isinstance(step, WaitUntil):
        now = step.until
        step = lane.next_step(now)
    return step, now


# what goes


def test_a_batch_is_cut_by_records_and_bytes_and_a_larger_record_goes_alone():
    large = record(A, 3, b"x" * 500)
    made = build_lane(
        [*build_records(A, 3), large, *build_records(A, 2, 4)], max_records=2, max_bytes=100
    )
    sent = []
    while (step := made.next_step(0.0)) is not None:
        sent.append(get_offsets(step))
        made.on_response(accept_all(step), 0.0)
    assert sent == [[0, 1], [2], [3], [4, 5]]


def test_one_batch_is_under_way_and_its_answer_moves_the_points_of_its_partitions():
    made = build_lane([*build_records(A, 2, 10), *build_records(B, 1, 5)])
    step = made.next_step(0.0)
    made.put(build_records(A, 1, 12))
    assert made.next_step(0.0) is None
    settled = made.on_response(accept_all(step), 0.0)
    assert settled == SettledRecords(
        [*build_records(A, 2, 10), *build_records(B, 1, 5)], [], {A: 12, B: 6}
    )
    assert get_offsets(made.next_step(0.0)) == [12]


def test_a_lane_is_full_once_another_batch_waits():
    made = build_lane(build_records(A, 3), max_records=4)
    assert not made.is_full
    made.put(build_records(A, 1, 3))
    assert made.is_full
    assert build_lane([record(A, 0, b"x" * 99)], max_bytes=100).is_full
    with_headers = [each._replace(headers=[("h", b"x" * 50)]) for each in build_records(A, 3)]
    made = build_lane(with_headers, max_bytes=120)
    assert made.is_full and get_offsets(made.next_step(0.0)) == [0, 1]


def test_nothing_goes_while_a_lane_is_held_and_what_is_under_way_is_settled():
    made = build_lane(build_records(A, 2), max_records=1)
    step = made.next_step(0.0)
    made.is_paused = True
    assert made.on_response(accept_all(step), 0.0) is not None
    assert made.next_step(0.0) is None
    made.is_paused = False
    assert get_offsets(made.next_step(0.0)) == [1]


def test_records_of_a_held_partition_wait_and_are_passed_by_those_of_others():
    made = build_lane([*build_records(A, 2), *build_records(B, 2), *build_records(A, 1, 2)])
    made.held_partitions = {A}
    step = made.next_step(0.0)
    assert [(each.tp, each.offset) for each in step.records] == [(B, 0), (B, 1)]
    made.on_response(accept_all(step), 0.0)
    assert made.next_step(0.0) is None
    made.held_partitions = frozenset()
    assert get_offsets(made.next_step(0.0)) == [0, 1, 2]


def test_a_lane_is_not_full_of_what_it_may_not_send():
    made = build_lane(build_records(A, 4), max_records=4)
    made.held_partitions = {A}
    assert not made.is_full
    made.put(build_records(B, 4))
    assert made.is_full


def test_a_batch_that_was_begun_is_sent_again_also_if_its_partition_is_held_by_now():
    made = build_lane(build_records(A, 2))
    step = made.next_step(0.0)
    made.held_partitions = {A}
    made.on_response(BackendUnavailable("away"), 0.0)
    again, _ = skip_waits(made, 0.0)
    assert get_offsets(again) == get_offsets(step)


# failed records


def test_a_failed_record_is_settled_once_it_is_among_the_dead_letters():
    made = build_lane(build_records(A, 4))
    made.next_step(0.0)
    assert (
        made.on_response(BatchResults([GOOD, RecordResult(False, "boom"), GOOD, GOOD]), 0.0) is None
    )
    dead = DeadLetterRecord(record(A, 1), "boom")
    assert made.next_step(0.0) == SendToDeadLetters([dead])
    settled = made.on_dead_letters([], 0.0)
    assert settled == SettledRecords([record(A, 0), record(A, 2), record(A, 3)], [dead], {A: 4})


def test_while_dead_letters_cannot_be_written_the_lane_stands_and_says_why():
    made = build_lane(build_records(A, 4), rollback_percent=None)
    made.next_step(0.0)
    made.on_response(
        BatchResults([RecordResult(False, "a"), GOOD, RecordResult(False, "c"), GOOD]), 0.0
    )
    first, second = DeadLetterRecord(record(A, 0), "a"), DeadLetterRecord(record(A, 2), "c")
    assert made.next_step(0.0) == SendToDeadLetters([first, second])
    assert made.on_dead_letters([second], 7.0, "no topic orders.dlq") is None
    assert (made.problem, made.problem_since) == ("no topic orders.dlq", 7.0)
    step, now = skip_waits(made, 7.0)
    assert step == SendToDeadLetters([second]), "what is written is not written again"
    assert now > 7.0
    settled = made.on_dead_letters([], now)
    assert settled is not None and settled.dead_letters == [first, second]
    assert made.problem == ""


@pytest.mark.parametrize(("size", "failing"), [(1, 1), (3, 1), (10, 3), (10, 10)])
def test_a_batch_is_rolled_back_by_its_threshold_and_never_for_ever(size: int, failing: int):
    made, now = build_lane(build_records(A, size), max_retries=3, rollback_percent=30), 0.0
    bad = [RecordResult(False, "boom")] * failing + [GOOD] * (size - failing)
    for _ in range(4):
        step, now = skip_waits(made, now)
        assert get_offsets(step) == list(range(size))
        assert made.on_response(BatchResults(bad), now) is None
    step, now = skip_waits(made, now)
    assert isinstance(step, SendToDeadLetters) and len(step.dead_letters) == failing
    settled = made.on_dead_letters([], now)
    assert settled is not None and settled.commit_offsets == {A: size}


def test_below_the_threshold_or_without_one_nothing_is_rolled_back():
    for rules in ({"rollback_percent": 30}, {"rollback_percent": None}):
        made = build_lane(build_records(A, 10), **rules)
        made.next_step(0.0)
        made.on_response(BatchResults([RecordResult(False, "boom")] * 2 + [GOOD] * 8), 0.0)
        assert isinstance(made.next_step(0.0), SendToDeadLetters)


def test_a_record_that_cannot_be_read_rolls_nothing_back():
    made = build_lane(build_records(A, 1))
    made.next_step(0.0)
    made.on_response(BatchResults([RecordResult(False, "not JSON", is_permanent=True)]), 0.0)
    assert isinstance(made.next_step(0.0), SendToDeadLetters)


def test_without_dead_letters_a_failed_record_is_tried_for_ever():
    made, now = build_lane(build_records(A, 2), has_dead_letters=False), 0.0
    for verdict in (BatchResults([GOOD, RecordResult(False, "boom")]), SuspectBatch("500")):
        for _ in range(30):
            step, now = skip_waits(made, now)
            if isinstance(step, ProbeBackend):
                made.on_probe(True, now)
            else:
                assert isinstance(step, SendRecords)
                answer = (
                    verdict if isinstance(verdict, SuspectBatch) else _select_items(verdict, step)
                )
                assert made.on_response(answer, now) is None
    assert now > 600


def _select_items(answer: BatchResults, step: SendRecords) -> BatchResults:
    return BatchResults([answer.results[each.offset] for each in step.records])


# away


def test_a_back_end_that_is_away_for_five_minutes_costs_no_record_and_few_requests():
    made, now, tries = build_lane(build_records(A, 100)), 0.0, 0
    while now < 300.0:
        step, now = skip_waits(made, now)
        assert get_offsets(step) == list(range(100))
        tries += 1
        if now < 300.0:
            assert made.on_response(BackendUnavailable("refused"), now) is None
    assert 10 < tries < 30
    settled = made.on_response(accept_all(step), now)
    assert settled is not None and (settled.dead_letters, settled.commit_offsets) == ([], {A: 100})


def test_a_back_end_is_not_asked_before_the_time_that_it_gave():
    made = build_lane(build_records(A, 1), max_delay=30.0)
    made.next_step(0.0)
    made.on_response(BackendUnavailable("429", retry_after=90.0), 0.0)
    assert made.next_step(1.0) == WaitUntil(90.0)


def test_a_back_end_that_is_late_with_large_batches_gets_smaller_ones_and_then_larger_again():
    made, now, sizes = build_lane(build_records(A, 64), max_records=64, max_retries=1), 0.0, []
    while made.unsettled_count:
        step, now = skip_waits(made, now)
        sizes.append(len(get_offsets(step)))
        late = sizes[-1] > 16
        made.on_response(
            BackendUnavailable("timeout", is_late=True) if late else accept_all(step), now
        )
    assert sizes == [64, 64, 32, 16, 16, 32, 16, 16]
    made.put(build_records(A, 64, 64))
    assert len(get_offsets(made.next_step(now))) == 64, "it kept up with two small ones"


# suspect


def test_a_suspect_batch_is_tried_again_and_then_halved_down_to_the_record_at_fault():
    made, now, sent = build_lane(build_records(A, 8), max_retries=3), 0.0, []
    step, now = skip_waits(made, now)
    while isinstance(step, SendRecords):
        sent.append(get_offsets(step))
        bad = 5 in sent[-1]
        made.on_response(SuspectBatch("500: boom") if bad else accept_all(step), now)
        step, now = skip_waits(made, now)
    assert sent == [[*range(8)]] * 4 + [[0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [4], [5]]
    assert step == ProbeBackend("500: boom")
    made.on_probe(True, now)
    assert made.next_step(now) == SendToDeadLetters([DeadLetterRecord(record(A, 5), "500: boom")])
    settled = made.on_dead_letters([], now)
    assert settled is not None and settled.commit_offsets == {A: 6}
    assert get_offsets(made.next_step(now)) == [6, 7]


def test_no_record_is_given_up_while_the_back_end_is_not_well():
    made, now = build_lane(build_records(A, 1), max_retries=0), 0.0
    for _ in range(50):
        step, now = skip_waits(made, now)
        if isinstance(step, SendRecords):
            made.on_response(SuspectBatch("500"), now)
        else:
            assert step == ProbeBackend("500")
            made.on_probe(False, now, "its /health says 503")
            assert made.problem == "500; no dead letter: its /health says 503"
    assert made.unsettled_count == 1


def test_a_batch_that_is_too_large_is_halved_at_once():
    made = build_lane(build_records(A, 2), max_retries=3)
    made.next_step(0.0)
    made.on_response(SuspectBatch("413", is_too_large=True), 0.0)
    assert get_offsets(made.next_step(0.0)) == [0]


# partitions that go


def test_what_is_given_up_is_settled_if_it_was_under_way_and_not_tried_again():
    made = build_lane([*build_records(A, 2), *build_records(B, 2)], max_records=3)
    step = made.next_step(0.0)
    made.release_partitions([A])
    assert made.has_unsettled([A])
    settled = made.on_response(accept_all(step), 0.0)
    assert settled is not None and settled.commit_offsets == {A: 2, B: 1}
    assert not made.has_unsettled([A])

    made = build_lane([*build_records(A, 2), *build_records(B, 2)], max_records=3)
    made.next_step(0.0)
    made.release_partitions([A])
    made.on_response(BackendUnavailable("refused"), 0.0)
    assert not made.has_unsettled([A]), "it goes to another member now"
    step, _ = skip_waits(made, 0.0)
    assert isinstance(step, SendRecords) and step.records == [record(B, 0)]


def test_a_record_on_its_way_to_the_dead_letters_gets_there_before_its_partition_goes():
    made = build_lane(build_records(A, 4))
    made.next_step(0.0)
    made.on_response(BatchResults([RecordResult(False, "boom"), GOOD, GOOD, GOOD]), 0.0)
    made.release_partitions([A])
    assert made.has_unsettled([A])
    assert isinstance(made.next_step(0.0), SendToDeadLetters)
    settled = made.on_dead_letters([], 0.0)
    assert settled is not None and settled.commit_offsets == {A: 4}


def test_a_lane_tells_the_first_offset_that_is_not_settled():
    made = build_lane([*build_records(A, 2, 5), *build_records(B, 2, 9)], max_records=3)
    assert (made.first_unsettled_offset(A), made.first_unsettled_offset(B)) == (5, 9)
    step = made.next_step(0.0)
    assert (made.first_unsettled_offset(A), made.first_unsettled_offset(B)) == (5, 9)
    made.on_response(accept_all(step), 0.0)
    assert (made.first_unsettled_offset(A), made.first_unsettled_offset(B)) == (None, 10)
    made.next_step(0.0)
    made.drop_partitions([B])
    made.put(build_records(B, 1, 40))
    assert made.first_unsettled_offset(B) == 40, "what is under way is another's"


def test_nothing_of_a_lost_partition_is_settled_whatever_is_answered():
    made = build_lane([*build_records(A, 2), *build_records(B, 1)])
    step = made.next_step(0.0)
    made.drop_partitions([A])
    assert not made.is_abandoned
    settled = made.on_response(accept_all(step), 0.0)
    assert settled is not None and settled.commit_offsets == {B: 1}
    made.put(build_records(A, 1))
    step = made.next_step(0.0)
    made.drop_partitions([A])
    assert made.is_abandoned
    made.put(build_records(A, 1, 40))
    assert made.on_response(SuspectBatch("500"), 0.0) is None
    assert get_offsets(made.next_step(0.0)) == [40], (
        "it came back, and starts where it is read from now"
    )


def test_a_lost_partition_is_not_waited_for():
    made = build_lane([*build_records(A, 1)])
    made.next_step(0.0)
    made.on_response(BackendUnavailable("refused", retry_after=900.0), 0.0)
    made.drop_partitions([A])
    made.put(build_records(B, 1))
    assert get_offsets(made.next_step(0.0)) == [0]


def test_what_waited_of_a_lost_partition_takes_no_room():
    made = build_lane(build_records(A, 100, 1), max_bytes=1000)
    assert made.is_full
    made.drop_partitions([A])
    made.put([record(B, 0, b"x" * 900)])
    assert not made.is_full and made.unsettled_count == 1


def test_a_lane_whose_partitions_went_while_it_waited_is_in_no_trouble():
    """It went on saying so, was taken for full, and what came next was never fetched."""
    made = build_lane(build_records(A, 3), max_records=3)
    made.next_step(0.0)
    made.on_response(BackendUnavailable("refused"), 0.0)
    assert made.problem and isinstance(made.next_step(0.0), WaitUntil) and made.is_full is False
    made.drop_partitions([A])
    assert (made.problem, made.unsettled_count, made.next_step(0.0)) == ("", 0, None)
    made.put(build_records(B, 1))
    assert get_offsets(made.next_step(0.0)) == [0]


def test_the_trouble_of_what_is_dropped_amid_its_call_is_over_with_it():
    made = build_lane(build_records(A, 1))
    made.next_step(0.0)
    made.on_response(BackendUnavailable("refused"), 0.0)
    step, now = skip_waits(made, 0.0)
    assert isinstance(step, SendRecords)
    made.drop_partitions([A])
    assert made.problem == ""
    assert made.on_response(BackendUnavailable("refused"), now) is None
    assert (made.problem, made.unsettled_count) == ("", 0)


def test_it_counts_what_is_done_with():
    made = build_lane([*build_records(A, 2), record(B, 0)], rollback_percent=None)
    made.next_step(0.0)
    made.on_response(BatchResults([GOOD, RecordResult(False, "boom"), GOOD]), 0.0)
    assert made.settled_count == 0
    made.next_step(0.0)
    made.on_dead_letters([], 0.0)
    assert made.settled_count == 3


# whatever happens

SEVERAL = [A, B, TopicPartition("pay", 0)]
Reply = Callable[[Sequence[Record]], Verdict]


@dataclass
class LaneWorld:
    """Kafka, the back end and the dead letters around one lane. logs: what each partition holds."""

    counts: dict[TopicPartition, int]
    lane: DeliveryQueue
    poison_records: frozenset[tuple[TopicPartition, int]]
    now: float = 0.0
    consumer_positions: dict[TopicPartition, int] = field(
        default_factory=dict
    )  # where the consumer stands
    committed_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    process_counts: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    process_order: list[tuple[TopicPartition, int]] = field(default_factory=list)
    dead_letter_counts: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)

    def poll_partition(self, tp: TopicPartition, count: int) -> None:
        start = self.consumer_positions.get(tp, 0)
        end = min(self.counts[tp], start + count)
        self.lane.put([record(tp, offset) for offset in range(start, end)])
        self.consumer_positions[tp] = end

    def commit_settled(self, settled: SettledRecords | None) -> None:
        for tp, point in (settled.commit_offsets if settled else {}).items():
            for offset in range(self.committed_offsets.get(tp, 0), point):
                assert self.process_counts.get((tp, offset)) or self.dead_letter_counts.get(
                    (tp, offset)
                ), "skipped"
            assert point >= self.committed_offsets.get(tp, 0)
            self.committed_offsets[tp] = point

    def reassign_partition(self, tp: TopicPartition) -> None:
        """To another member and back: it is read again from what was committed."""
        self.lane.drop_partitions([tp])
        self.consumer_positions[tp] = self.committed_offsets.get(tp, 0)

    def reply(self, records: Sequence[Record], kind: str) -> Verdict:
        """The back end of this moment; poison is bad for one that works at all."""
        match kind:
            case "away":
                return BackendUnavailable("refused")
            case "late":
                return self._process_records(records, BackendUnavailable("timeout", is_late=True))
            case "garbage":
                return self._process_records(records, SuspectBatch("garbage"))
            case "stumbles" if any(
                (each.tp, each.offset) in self.poison_records for each in records
            ):
                return SuspectBatch("500")
        bad = [(each.tp, each.offset) in self.poison_records for each in records]
        self._process_records(
            [each for each, ill in zip(records, bad, strict=True) if not ill], None
        )
        return BatchResults([RecordResult(not ill, "poison" if ill else "") for ill in bad])

    def _process_records(self, records: Sequence[Record], verdict: Verdict | None) -> Verdict:
        for each in records:
            place = (each.tp, each.offset)
            self.process_counts[place] = self.process_counts.get(place, 0) + 1
            self.process_order.append(place)
        return verdict or BatchResults([GOOD] * len(records))

    def run_step(self, kind: str, is_healthy: bool, written_count: int) -> None:
        step = self.lane.next_step(self.now)
        match step:
            case WaitUntil(until):
                self.now = until
            case SendRecords(records):
                self.commit_settled(self.lane.on_response(self.reply(records, kind), self.now))
            case ProbeBackend():
                self.lane.on_probe(is_healthy, self.now)
            case SendToDeadLetters(dead):
                for each in dead[:written_count]:
                    place = (each.record.tp, each.record.offset)
                    self.dead_letter_counts[place] = self.dead_letter_counts.get(place, 0) + 1
                self.commit_settled(
                    self.lane.on_dead_letters(dead[written_count:], self.now, "no topic")
                )


KINDS = ["good", "stumbles", "away", "late", "garbage"]
happening = st.one_of(
    st.tuples(st.just("poll"), st.sampled_from(SEVERAL), st.integers(1, 7)),
    st.tuples(st.just("go"), st.sampled_from(SEVERAL)),
    st.tuples(st.just("step"), st.sampled_from(KINDS), st.booleans(), st.integers(0, 4)),
)
worlds = st.builds(
    LaneWorld,
    st.fixed_dictionaries({tp: st.integers(0, 12) for tp in SEVERAL}),
    st.builds(
        lambda records, size, retries, threshold: DeliveryQueue(
            DeliveryRules(records, size, retries, threshold, random=lambda: 0.5)
        ),
        st.integers(1, 8),
        st.integers(1, 20),
        st.integers(0, 2),
        st.none() | st.integers(1, 100),
    ),
    st.frozensets(st.tuples(st.sampled_from(SEVERAL), st.integers(0, 12)), max_size=5),
)


@given(worlds, st.lists(happening, max_size=60))
def test_every_record_is_processed_or_a_dead_letter_in_order_and_none_is_skipped(world, happenings):
    for what in happenings:
        match what:
            case ("poll", tp, count):
                world.poll_partition(tp, count)  # type: ignore[arg-type]
            case ("go", tp):
                world.reassign_partition(tp)  # type: ignore[arg-type]
            case ("step", kind, well, written):
                world.run_step(kind, well, written)  # type: ignore[arg-type]
    for tp in SEVERAL:
        world.poll_partition(tp, 99)
    for _ in range(2000):
        if not world.lane.unsettled_count:
            break
        world.run_step("stumbles", True, 99)
    assert world.committed_offsets == {tp: count for tp, count in world.counts.items() if count}
    everything = {(tp, n) for tp, count in world.counts.items() for n in range(count)}
    assert world.process_counts.keys() | world.dead_letter_counts.keys() == everything
    first = {}
    for position, place in enumerate(world.process_order):
        first.setdefault(place, position)
    for tp in SEVERAL:
        firsts = [position for place, position in sorted(first.items()) if place[0] == tp]
        assert firsts == sorted(firsts), "a record overtook one of its partition"


@given(worlds, st.lists(st.sampled_from(["away", "late"]), max_size=60))
def test_a_back_end_that_is_away_or_late_makes_no_dead_letters(world, kinds):
    for tp in SEVERAL:
        world.poll_partition(tp, 99)
    for kind in kinds:
        world.run_step(kind, True, 99)
    assert not world.dead_letter_counts


@given(worlds, st.lists(st.sampled_from(["stumbles", "garbage"]), max_size=60))
def test_while_the_probe_fails_a_suspect_batch_makes_no_dead_letters(world, kinds):
    for tp in SEVERAL:
        world.poll_partition(tp, 99)
    for kind in kinds:
        world.run_step("garbage" if kind == "stumbles" else kind, False, 99)
    assert not world.dead_letter_counts
