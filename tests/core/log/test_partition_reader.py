from __future__ import annotations

from typing import Any

import pytest

from gateway.core.log.partition_reader import (
    EARLIEST,
    LATEST,
    REPORT_AFTER_S,
    EpochEndCommand,
    FetchCommand,
    FetchResult,
    ListOffsetCommand,
    LiveStart,
    OffsetStart,
    OutOfRangePolicy,
    PartitionReader,
    Start,
    TimestampStart,
)
from gateway.core.log.record import (
    NO_EPOCH,
    Entry,
    Fault,
    Gap,
    GapReason,
    PartitionPosition,
    Ready,
    Record,
    TopicPartition,
)
from gateway.core.log.recovery import Backoff, Cause

TP = TopicPartition("orders", 0)
BORN = 100.0


def build_reader(
    start: Start, policy: OutOfRangePolicy = OutOfRangePolicy.EARLIEST, epoch: int = 1
) -> PartitionReader:
    made = PartitionReader(TP, start, policy, Backoff(1.0, lambda: 0.5), topic_id="id")
    made.on_leader_change(1, epoch, now=BORN)
    return made


def build_live_start(**more: Any) -> LiveStart:
    return LiveStart(connected_at_ms=1_000_000, connected_at=BORN, **more)


def record(offset: int, epoch: int = 1) -> Record:
    return Record(TP, offset, epoch, 0, None, b"v")


def build_fetched(*entries: Entry, next: int, epoch: int = 1) -> FetchResult:
    return FetchResult(
        entries, next, epoch, high_watermark=99, last_stable_offset=99, log_start_offset=0
    )


def gap(at: int, to: int, reason: GapReason, epoch: int = 1) -> Gap:
    return Gap(TP, at, to, epoch, reason)


def ready(at: int, epoch: int = 1, approximate: bool = False) -> Ready:
    return Ready(TP, at, at, epoch, approximate)


# where it starts


def test_a_live_start_is_the_end_that_the_leader_says_at_once():
    read = build_reader(build_live_start())
    assert read.next_command(BORN) == ListOffsetCommand(LATEST)
    assert read.on_list_offsets(7, 1, BORN + 0.2) == [ready(7)]
    assert read.next_command(BORN + 0.2) == FetchCommand(7)


def test_an_end_told_late_by_a_frozen_leader_is_not_that_of_the_connect():
    """Its records since then would be lost; so it is by time, and says approximate."""
    read = build_reader(build_live_start(clock_skew_ms=60_000))
    assert read.next_command(BORN) == ListOffsetCommand(LATEST)
    assert read.on_list_offsets(50, 1, BORN + 30.0) == []
    assert read.next_command(BORN + 30.0) == ListOffsetCommand(1_000_000 - 60_000)
    assert read.on_list_offsets(12, 1, BORN + 30.1) == [ready(12, approximate=True)]


def test_an_end_told_after_a_client_was_begun_without_it_is_not_where_to_start():
    """A new topic of 500 partitions: leaders that refused at first were asked again after BEGIN,
    and what had been written meanwhile lay below the end they told."""
    read = build_reader(build_live_start(clock_skew_ms=60_000))
    assert read.next_command(BORN) == ListOffsetCommand(LATEST)
    read.pin_start()
    assert read.on_list_offsets(2, 1, BORN + 0.2) == []
    assert read.next_command(BORN + 0.2) == ListOffsetCommand(1_000_000 - 60_000)
    assert read.on_list_offsets(0, 1, BORN + 0.3) == [ready(0, approximate=True)]


@pytest.mark.parametrize("start", [build_live_start(), TimestampStart(500_000)])
def test_a_record_written_while_a_time_is_looked_up_is_not_passed_over(start: Start):
    """No record was as young as asked for; by the time the end is known one may have come."""
    read = build_reader(start)
    now = BORN + 30.0
    assert read.next_command(now) == ListOffsetCommand(LATEST)
    read.on_list_offsets(5, 1, now)
    read.next_command(now)
    (told,) = read.on_list_offsets(None, NO_EPOCH, now)
    assert told.next_offset == 5


def test_a_leaderless_start_is_the_end_of_the_epoch_known_then():
    read = build_reader(build_live_start(epoch=4, was_leaderless=True), epoch=5)
    assert read.next_command(BORN + 60.0) == EpochEndCommand(4)
    assert read.on_epoch_end(3, 20, BORN + 60.0) == [ready(20, epoch=3)]


def test_without_epochs_at_the_broker_a_leaderless_start_is_by_time():
    read = build_reader(build_live_start(epoch=4, was_leaderless=True), epoch=5)
    read.next_command(BORN + 60.0)
    read.on_epoch_end(-1, -1, BORN + 60.0)
    assert read.next_command(BORN + 60.0) == ListOffsetCommand(LATEST)


def test_earliest_asks_once():
    read = build_reader(TimestampStart(EARLIEST))
    assert read.next_command(BORN) == ListOffsetCommand(EARLIEST)
    assert read.on_list_offsets(3, 0, BORN) == [ready(3, epoch=0)]


def test_a_topic_created_anew_before_the_start_was_found_is_read_from_its_first_record():
    read = build_reader(build_live_start(epoch=4, was_leaderless=True), epoch=5)
    read.on_topic_id("another")
    read.on_leader_change(1, 0, BORN)
    assert read.next_command(BORN) == FetchCommand(0)
    told = read.on_fetch(build_fetched(next=0), BORN)
    assert told == [ready(0, NO_EPOCH), gap(0, 0, GapReason.RECREATED, NO_EPOCH)]


# out of range


def answer_out_of_range(reader: PartitionReader, *listed: int, now: float = BORN) -> None:
    for offset in listed:
        assert isinstance(reader.next_command(now), FetchCommand)
        reader.on_error(Cause.OUT_OF_RANGE, now)
        reader.retry_at = now
        assert isinstance(reader.next_command(now), ListOffsetCommand)
        reader.on_list_offsets(offset, 1, now)


def test_chasing_a_moving_log_start_is_one_gap_told_when_a_fetch_succeeds():
    read = build_reader(OffsetStart(10, 1))
    answer_out_of_range(read, 20, 30, 40)
    assert read.resets == 3
    told = read.on_fetch(build_fetched(record(40), next=41), BORN)
    assert told == [ready(10), gap(10, 40, GapReason.RETENTION), record(40)]
    assert read.on_fetch(build_fetched(next=41), BORN) == []


def test_the_policy_latest_goes_to_the_last_stable_offset_and_says_skipped():
    read = build_reader(OffsetStart(10, 1), OutOfRangePolicy.LATEST)
    answer_out_of_range(read, 90)
    assert read.on_fetch(build_fetched(next=90), BORN)[1] == gap(10, 90, GapReason.SKIPPED)


def test_above_the_end_of_a_stale_broker_nothing_is_told():
    read = build_reader(OffsetStart(10, 1))
    answer_out_of_range(read, 0)  # the log starts below: above, then
    answer_out_of_range(read, 12)  # the leader has it
    assert read.on_fetch(build_fetched(record(10), next=11), BORN) == [ready(10), record(10)]


def test_above_the_end_of_the_leader_the_epochs_say_where_the_log_was_cut():
    read = build_reader(OffsetStart(10, 1), epoch=1)
    answer_out_of_range(read, 0, 8)
    assert read.next_command(BORN) == EpochEndCommand(1)
    read.on_epoch_end(1, 7, BORN)
    assert read.on_fetch(build_fetched(next=7), BORN) == [
        ready(10),
        gap(10, 7, GapReason.TRUNCATED),
    ]


def test_a_jump_of_offsets_is_no_gap():
    read = build_reader(OffsetStart(10, 1))
    assert read.on_fetch(build_fetched(record(15), next=16), BORN) == [ready(10), record(15)]


# another leader


def test_a_place_of_an_older_epoch_is_held_against_the_new_leaders_log():
    read = build_reader(OffsetStart(10, 1), epoch=1)
    read.on_fetch(build_fetched(next=10), BORN)
    read.on_leader_change(2, 3, BORN)
    assert not read.can_validate(1)
    assert read.next_command(BORN) == EpochEndCommand(1)
    read.on_epoch_end(1, 6, BORN)
    assert not read.can_validate(1)
    assert read.lineage == 0
    assert read.on_fetch(build_fetched(next=6), BORN) == [gap(10, 6, GapReason.TRUNCATED)]
    assert read.lineage == 1
    assert read.can_validate(3)
    assert not read.can_validate(4)


def test_it_is_asked_once_per_leader():
    read = build_reader(OffsetStart(10, 1), epoch=3)
    assert read.next_command(BORN) == EpochEndCommand(1)
    read.on_epoch_end(1, 10, BORN)
    assert read.next_command(BORN) == FetchCommand(10)
    assert read.on_fetch(build_fetched(record(10), next=11), BORN) == [ready(10), record(10)]
    assert read.next_command(BORN) == FetchCommand(11)


def test_a_cut_after_an_untold_jump_is_told_from_where_the_stream_stands():
    """Retention led to 80, then the log was cut to 40: the stream stood at 50 all the time."""
    read = build_reader(OffsetStart(50, 1), epoch=1)
    answer_out_of_range(read, 80)
    read.on_leader_change(2, 3, BORN)
    read.next_command(BORN)
    read.on_epoch_end(1, 40, BORN)
    told = read.on_fetch(build_fetched(next=40), BORN)
    assert told == [ready(50), gap(50, 40, GapReason.TRUNCATED)]


def test_a_cut_beyond_the_stream_takes_an_untold_jump_back():
    read = build_reader(OffsetStart(50, 1), epoch=1)
    answer_out_of_range(read, 80)
    read.on_leader_change(2, 3, BORN)
    read.next_command(BORN)
    read.on_epoch_end(1, 60, BORN)
    assert read.position == PartitionPosition(50, 1)
    assert read.on_fetch(build_fetched(record(50), next=51), BORN) == [ready(50), record(50)]


def test_retention_after_an_untold_cut_is_a_second_gap():
    read = build_reader(OffsetStart(100, 1), epoch=3)
    read.next_command(BORN)
    read.on_epoch_end(1, 40, BORN)
    answer_out_of_range(read, 80)
    told = read.on_fetch(build_fetched(next=80), BORN)
    assert told[1:] == [gap(100, 40, GapReason.TRUNCATED), gap(40, 80, GapReason.RETENTION)]
    assert read.lineage == 1


def test_older_metadata_is_not_believed():
    read = build_reader(OffsetStart(0), epoch=5)
    read.on_leader_change(9, 4, BORN)
    assert (read.leader, read.leader_epoch) == (1, 5)


def test_without_a_leader_there_is_nothing_to_do_and_with_one_it_is_done_at_once():
    read = build_reader(OffsetStart(0, 1))
    read.on_error(Cause.CONNECTION, BORN)
    assert read.next_command(BORN) is None
    read.on_leader_change(None, 2, BORN)
    assert read.next_command(BORN + 60.0) is None
    read.on_leader_change(2, 3, BORN)
    assert read.next_command(BORN) is not None


def test_what_its_clients_should_hear_of_is_told_once():
    read = build_reader(OffsetStart(3, 1))
    assert read.on_error(Cause.DENIED, BORN) == [Fault(TP, 3, 3, 1, "access-denied")]
    assert read.on_error(Cause.DENIED, BORN + 60.0) == []
    read.on_fetch(build_fetched(next=3), BORN + 90.0)
    assert len(read.on_error(Cause.DENIED, BORN + 99.0)) == 1
    assert read.on_error(Cause.CONNECTION, BORN) == []


@pytest.mark.parametrize("cause", [Cause.CONNECTION, Cause.TIMEOUT])
def test_what_passes_mostly_is_told_once_if_it_lasts(cause: Cause):
    """Clients heard nothing of an outage of all brokers, however long it was."""

    read = build_reader(OffsetStart(3, 1))
    read.on_fetch(build_fetched(next=3), BORN)
    assert read.on_error(cause, BORN) == []
    assert read.on_error(cause, BORN + REPORT_AFTER_S - 0.1) == []
    assert read.on_error(cause, BORN + REPORT_AFTER_S) == [Fault(TP, 3, 3, 1, str(cause))]
    assert read.on_error(Cause.STORAGE, BORN + 60.0) == []
    (ready,) = read.on_fetch(build_fetched(next=3), BORN + 90.0)
    assert isinstance(ready, Ready)
    assert read.on_error(cause, BORN + 91.0) == []


def test_a_topic_created_anew_is_read_from_its_first_record_and_told():
    read = build_reader(OffsetStart(10, 7), epoch=7)
    read.on_fetch(build_fetched(next=10, epoch=7), BORN)
    read.on_topic_id("another")
    assert read.next_command(BORN) is None
    read.on_leader_change(1, 0, BORN)
    assert read.next_command(BORN) == FetchCommand(0)
    told = read.on_fetch(build_fetched(record(0, 0), next=1, epoch=0), BORN)
    assert gap(10, 0, GapReason.RECREATED, NO_EPOCH) in told
    assert read.lineage == 1


def test_a_topic_without_an_id_that_was_created_again_is_read_from_its_first_record():
    """The epochs of the new topic are lower, which looked like a stale leader: nothing was read
    until they had reached those of the former topic."""
    read = PartitionReader(
        TP, OffsetStart(10, 7), OutOfRangePolicy.EARLIEST, Backoff(1.0, lambda: 0.5)
    )
    read.on_leader_change(1, 7, BORN)
    read.on_fetch(build_fetched(next=10, epoch=7), BORN)
    read.forget_leader()
    assert read.next_command(BORN) is None
    read.on_leader_change(2, 0, BORN)
    answer_out_of_range(read, 0, 3)  # the log is below the position, and ends below it
    assert read.next_command(BORN) == FetchCommand(0)
    told = read.on_fetch(build_fetched(record(0, 0), next=1, epoch=0), BORN)
    assert gap(10, 0, GapReason.RECREATED, NO_EPOCH) in told


# no progress


def test_a_fetch_that_brings_nothing_is_a_stall_only_when_none_has_for_some_seconds():
    """A private read of a partition began as if nothing had come since the clock's zero: the
    first answer that was full of another partition's records started the conversation over,
    and asked for metadata, for each of 4 partitions read from the start."""
    read = build_reader(OffsetStart(0, 1))
    read.on_fetch(build_fetched(next=0), BORN)
    assert not read.is_stalled(BORN)
    assert not read.is_stalled(BORN + 4.9)
    assert read.is_stalled(BORN + 5.1)
    read.on_fetch(build_fetched(record(0), next=1), BORN + 6.0)
    assert not read.is_stalled(BORN + 6.0)


# open transactions


def test_a_transaction_holds_since_the_stable_offset_stopped_moving():
    reader = build_reader(OffsetStart(5, 1))

    def fetch(high: int, stable: int, now: float) -> float | None:
        reader.on_fetch(FetchResult((), 5, 1, high, stable, 0), now)
        return reader.held_since

    assert fetch(high=5, stable=5, now=1.0) is None
    assert fetch(high=9, stable=5, now=2.0) == 2.0
    assert fetch(high=12, stable=5, now=3.0) == 2.0, "the same transaction"
    assert fetch(high=14, stable=12, now=4.0) == 4.0, "another one, behind it"
    assert fetch(high=14, stable=14, now=5.0) is None
