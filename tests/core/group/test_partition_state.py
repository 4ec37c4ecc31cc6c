"""A partition that is held: what is returned, what is fetched, what is kept between."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.group.partition_state import EARLIEST, PartitionState, prefetched_size
from gateway.core.log.record import Record, Skip, TopicPartition
from gateway.core.log.recovery import Backoff, Cause

TP = TopicPartition("orders", 0)


def build_state(offset: int = 0) -> PartitionState:
    made = PartitionState(TP, Backoff(max_delay=1.0, random=lambda: 0.5))
    made.seek(offset)
    return made


def record(offset: int, epoch: int = 3, size: int = 10) -> Record:
    return Record(TP, offset, epoch, 0, None, b"x" * size)


def test_the_position_is_what_was_returned_not_what_was_fetched():
    one = build_state()
    one.add_fetched([record(0), record(1)], 2, 3)
    assert (one.position, one.fetch_offset) == (0, 2)
    assert [each.offset for each in one.take(1, 1 << 20)] == [0]
    assert (one.position, one.epoch) == (1, 3)


def test_what_holds_nothing_is_passed_when_all_before_it_was_returned():
    one = build_state()
    one.add_fetched([record(0), Skip(TP, 1, 5, 3)], 5, 3)
    assert one.position == 0
    one.take(9, 1 << 20)
    assert one.position == 5
    one.add_fetched([Skip(TP, 5, 7, 3)], 7, 3)
    assert one.position == 7


def test_one_record_comes_however_large_and_no_more_than_fit_after_it():
    one = build_state()
    one.add_fetched([record(n) for n in range(4)], 4, 3)
    each = prefetched_size(record(0))
    assert len(one.take(9, 1)) == 1
    assert len(one.take(9, 2 * each)) == 2
    assert one.buffered_bytes == each


def test_headers_count():
    """Of records that are little else, as many were kept as a fetch could bring."""
    one = build_state()
    one.add_fetched([record(n)._replace(headers=[("h", b"x" * 1000)]) for n in range(3)], 3, 3)
    assert one.buffered_bytes > 3000
    assert len(one.take(9, 2500)) == 2


def test_a_seek_forgets_what_is_kept_and_what_is_under_way_is_of_the_past():
    one = build_state()
    one.add_fetched([record(0), record(1)], 2, 3)
    before = one.lineage
    one.seek(9)
    assert (one.take(9, 99), one.position, one.fetch_offset, one.buffered_bytes) == ([], 9, 9, 0)
    assert one.lineage > before


def test_a_seek_waits_for_nothing_that_is_under_way():
    """A long poll that was left at the broker held it up for up to 300 s."""
    one = build_state()
    one.in_flight = object()
    one.seek(3)
    assert one.in_flight is None
    one.in_flight = object()
    one.reset(EARLIEST)
    assert one.in_flight is None


def test_a_truncation_keeps_what_was_fetched_before_it():
    """It was dropped, and never returned: only what follows was fetched again."""
    one = build_state()
    one.add_fetched([record(n) for n in range(6)], 6, 3)
    one.take(1, 1 << 20)
    before = one.lineage
    one.truncate(4, 3)
    assert (one.position, one.fetch_offset, one.fetch_epoch) == (1, 4, 3)
    assert one.lineage > before
    assert [each.offset for each in one.take(9, 1 << 20)] == [1, 2, 3]
    assert (one.position, one.epoch, one.buffered_bytes) == (4, 3, 0)


def test_what_was_returned_already_of_a_log_that_is_cut_off_is_followed_by_the_new_log():
    one = build_state()
    one.add_fetched([record(n) for n in range(6)], 6, 3)
    one.take(4, 1 << 20)
    one.truncate(2, 2)
    assert (one.position, one.epoch, one.fetch_offset, list(one.records)) == (2, 2, 2, [])


@given(
    st.lists(st.tuples(st.sampled_from([0, 2, 4]), st.booleans()), max_size=8).map(sorted),
    st.lists(st.sampled_from([-1, 1, 3, 5]), max_size=8).map(sorted),
    st.integers(0, 8),
    st.integers(0, 8),
)
def test_after_a_truncation_each_record_of_the_new_log_comes_once(
    old_log, new_epochs, common, taken
):
    """`old_log` has the epoch of each offset, and whether it holds a record; the first `common` are
    in both logs. The broker is asked as KIP-320 has it until it finds no divergence. The replica
    that leads now may have had more of the last common epoch (-1), and epochs between the old."""
    old_epochs = [epoch for epoch, _ in old_log]
    common = min(common, len(old_epochs))
    last_common = old_epochs[common - 1] if common else 0
    following = [last_common if epoch < 0 else epoch for epoch in new_epochs]
    log = old_epochs[:common] + [epoch for epoch in following if epoch >= last_common]
    # A record is told by its offset and epoch: an epoch has one leader.
    while common < len(old_epochs) and log[common : common + 1] == [old_epochs[common]]:
        common += 1
    one = build_state()
    entries = [
        record(n, epoch) if is_record else Skip(TP, n, n + 1, epoch)
        for n, (epoch, is_record) in enumerate(old_log)
    ]
    one.add_fetched(entries, len(old_epochs), old_epochs[-1] if old_epochs else -1)
    # Of a lost record that was returned only its offset is known, so that is not considered here.
    taken = sum(is_record for _, is_record in old_log[: min(taken, common)])
    returned = [each.offset for each in one.take(taken, 1 << 20)] if taken else []
    if one.position is not None and one.position > common:
        return  # the same for offsets without a record that were passed
    for _ in range(20):
        if one.fetch_epoch < 0:
            break
        end = sum(epoch <= one.fetch_epoch for epoch in log)
        epoch = log[end - 1] if end else -1
        if epoch == one.fetch_epoch and end >= one.fetch_offset:
            break
        one.truncate(end, epoch)
    else:
        raise AssertionError("the logs never agree")
    assert one.fetch_offset <= common
    kept = [each.offset for each in one.records]
    assert one.buffered_bytes == sum(map(prefetched_size, one.records))
    assert [*returned, *kept] == [n for n in range(one.fetch_offset) if old_log[n][1]]


def test_a_reset_has_no_position_until_it_is_looked_up():
    one = build_state(4)
    one.reset(EARLIEST)
    assert (one.position, one.offset_spec) == (None, EARLIEST)
    one.seek(2)
    assert (one.position, one.offset_spec) == (2, None)


FORMER_ID, TOPIC_ID = UUID(int=1), UUID(int=2)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_position_of_a_former_topic_is_given_up_with_what_was_committed(is_known: bool):
    """An offset of the new topic that equals the former topic's committed one was not committed."""
    state = build_state(5)
    state.committed = 5
    if is_known:
        state.topic_id = FORMER_ID
    else:
        state.expected_topic_id = FORMER_ID
    assert state.update_topic(TOPIC_ID)
    assert (state.position, state.offset_spec, state.committed) == (None, EARLIEST, None)
    assert not state.update_topic(TOPIC_ID)


@pytest.mark.parametrize("expected", [None, TOPIC_ID])
def test_a_position_of_the_topic_is_kept_once_metadata_knows_the_topic(expected: UUID | None):
    state = build_state(5)
    state.expected_topic_id = expected
    assert not state.update_topic(TOPIC_ID)
    assert (state.position, state.topic_id) == (5, TOPIC_ID)


def test_a_seek_is_to_an_offset_of_whatever_topic_there_is():
    state = build_state(5)
    state.expected_topic_id = FORMER_ID
    state.seek(7)
    assert not state.update_topic(TOPIC_ID)
    assert state.position == 7


def test_a_hindered_one_is_tried_again_later_and_at_its_leader():
    one = build_state()
    one.preferred_replica = 7
    one.back_off(Cause.CONNECTION, 10.0, min_delay=0.5)
    assert one.retry_at >= 10.5 and one.preferred_replica is None


@given(st.lists(st.integers(1, 5), max_size=8), st.lists(st.integers(1, 4), max_size=40))
def test_every_record_is_returned_once_and_in_order_however_it_is_taken(fetches, takes):
    one, taken = build_state(), list[int]()
    sizes = iter(takes)
    for count in fetches:
        start = one.fetch_offset
        one.add_fetched([record(start + n) for n in range(count)], start + count, 3)
        taken += [each.offset for each in one.take(next(sizes, 3), 150)]
        assert one.position == (taken[-1] + 1 if taken else 0)
    while one.records:
        taken += [each.offset for each in one.take(next(sizes, 3), 150)]
    assert taken == list(range(sum(fetches)))
    assert one.buffered_bytes == 0 and one.position == one.fetch_offset


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=20).map(sorted),
    st.integers(0, 5),
    st.integers(1, 7),
)
def test_the_epoch_before_an_offset_is_that_of_the_record_before_it(epochs, first, taken_at_once):
    """Offsets below where reading began, and above what was returned, have none: a commit of them
    says nothing about the log."""
    first = min(first, len(epochs) - 1)
    one = build_state(first)
    entries = [record(n, epoch) for n, epoch in enumerate(epochs)][first:]
    one.add_fetched(entries, len(epochs), epochs[-1])
    while one.take(taken_at_once, 1 << 20):
        assert one.position is not None
        assert [one.epoch_before(n) for n in range(first + 1, one.position + 1)] == epochs[
            first : one.position
        ]
        assert one.epoch_before(one.position + 1) == -1
    assert [one.epoch_before(n) for n in range(first + 1)] == [-1] * (first + 1)


def test_the_epoch_of_a_committed_offset_is_kept_until_records_follow_it():
    one = build_state()
    one.seek(7, 2)
    assert one.epoch_before(7) == 2
    one.add_fetched([Skip(TP, 7, 9, 3)], 9, 3)
    assert (one.epoch_before(7), one.epoch_before(9)) == (2, 3)


def test_after_a_truncation_no_epoch_of_the_lost_log_is_committed():
    one = build_state()
    one.add_fetched([record(0, 1), record(1, 2), record(2, 4), record(3, 4)], 4, 4)
    one.take(3, 1 << 20)
    one.truncate(4, 2)
    assert [one.epoch_before(n) for n in (1, 2, 3)] == [1, 2, 2]


def test_an_offset_beyond_the_cut_is_committed_with_the_epoch_of_the_lost_record():
    """Without an epoch the next reader did not notice that the log was cut off before it."""
    one = build_state()
    one.add_fetched([record(n, 1 if n < 4 else 3) for n in range(7)], 7, 3)
    one.take(7, 1 << 20)
    one.truncate(5, 3)
    assert [one.epoch_before(n) for n in (2, 5, 7, 8)] == [1, 3, 3, -1]
    one.add_fetched([record(n, 4) for n in range(5, 9)], 9, 4)
    one.take(4, 1 << 20)
    assert one.epoch_before(7) == 4
