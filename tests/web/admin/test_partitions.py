"""What an operator reads of a stream's partitions: how far it is, and what holds it up."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.partition_reader import (
    EARLIEST,
    FetchResult,
    LiveStart,
    OutOfRangePolicy,
    PartitionReader,
    TimestampStart,
)
from gateway.core.log.record import UNVERIFIED_LINEAGE, PartitionPosition, TopicPartition
from gateway.core.log.recovery import Backoff, Cause
from gateway.hub.reads.shared_reads import STALE_S, SharedRead
from gateway.web.admin.listing import describe_partitions

TP = TopicPartition("orders", 3)
NOW = 100.0
END = 50


def create_reader(start: LiveStart | TimestampStart) -> PartitionReader:
    """Return the reader of a partition whose leader is not known yet."""
    return PartitionReader(TP, start, OutOfRangePolicy.EARLIEST, Backoff(1.0, lambda: 0.5))


def create_read(start: LiveStart | TimestampStart | None = None) -> SharedRead:
    """Return the read of a partition that has a leader, and nothing else yet."""
    reader = create_reader(start or TimestampStart(EARLIEST))
    reader.on_leader_change(1, 7, NOW)
    reader.last_response_at = NOW
    return SharedRead(reader, PartitionLog(TP, 1 << 20, 60.0))


def create_ready_read(end: int = END) -> SharedRead:
    """Return the read of a partition that was fetched up to its last stable offset."""
    read = create_read()
    read.reader.on_list_offsets(0, 7, NOW)
    read.reader.on_fetch(FetchResult([], end, 7, end + 5, end, 0), NOW)
    return read


def describe(
    position: PartitionPosition,
    read: SharedRead | None,
    stop_offsets: dict[TopicPartition, int] | None = None,
    now: float = NOW,
) -> dict[str, Any]:
    reads = {} if read is None else {TP: read}
    (row,) = describe_partitions({TP: position}, reads, stop_offsets, now)
    assert (row["topic"], row["partition"], row["nextOffset"]) == (*TP, position.offset)
    return row


def get_progress(row: dict[str, Any]) -> tuple[int | None, int | None, str]:
    return row["endOffset"], row["lag"], row["state"]


def test_a_stream_with_all_that_a_partition_has_is_live_in_it():
    row = describe(PartitionPosition(END, 7), create_ready_read())
    assert (*get_progress(row), row["cause"]) == (END, 0, "live", None)


def test_a_stream_is_behind_by_what_lies_before_the_last_stable_offset():
    """Not by what an open transaction holds back, which nobody is sent."""
    row = describe(PartitionPosition(END - 8, 7), create_ready_read())
    assert get_progress(row) == (END, 8, "behind")


@pytest.mark.parametrize("lineage", [1, UNVERIFIED_LINEAGE])
def test_offsets_of_another_lineage_have_no_lag(lineage: int):
    row = describe(PartitionPosition(END + 9, 7, lineage), create_ready_read())
    assert get_progress(row) == (END, None, "behind")


def test_a_partition_whose_start_was_found_has_that_as_its_end_until_it_is_fetched():
    read = create_read(LiveStart(0, NOW))
    read.reader.on_list_offsets(END, 7, NOW)
    assert get_progress(describe(PartitionPosition(END, 7), read)) == (END, 0, "live")


@pytest.mark.parametrize("read", [None, create_read()], ids=["not read", "resolving"])
@pytest.mark.parametrize("offset", [None, 5])
def test_a_partition_that_cannot_be_read_yet_is_pending(read, offset):
    row = describe(PartitionPosition(offset), read)
    assert (*get_progress(row), row["cause"]) == (None, None, "pending", None)


def test_a_stream_that_has_no_start_in_a_partition_is_pending_there():
    assert get_progress(describe(PartitionPosition(None), create_ready_read())) == (
        END, None, "pending",
    )  # fmt: skip


def test_a_partition_whose_leader_does_not_answer_is_pending():
    position, read = PartitionPosition(END, 7), create_ready_read()
    assert describe(position, read, now=NOW + STALE_S)["state"] == "live"
    assert describe(position, read, now=NOW + STALE_S + 0.1)["state"] == "pending"


def test_a_partition_without_a_leader_is_leaderless():
    read = create_ready_read()
    read.reader.on_leader_change(None, 8, NOW)
    row = describe(PartitionPosition(END - 1, 7), read)
    assert (*get_progress(row), row["cause"]) == (END, 1, "leaderless", "no-leader")


def test_a_partition_whose_leader_is_not_known_yet_is_leaderless():
    read = SharedRead(create_reader(TimestampStart(EARLIEST)), PartitionLog(TP, 1, 1.0))
    assert describe(PartitionPosition(None), read)["state"] == "leaderless"


@pytest.mark.parametrize("cause", [Cause.CONNECTION, Cause.DENIED, Cause.UNKNOWN_TOPIC])
def test_a_partition_that_cannot_be_read_has_the_cause(cause: Cause):
    read = create_ready_read()
    read.reader.on_error(cause, NOW)
    row = describe(PartitionPosition(END - 1, 7), read)
    assert (*get_progress(row), row["cause"]) == (END, 1, "failing", cause)


def test_an_offset_out_of_range_is_no_failure():
    read = create_ready_read()
    read.reader.on_error(Cause.OUT_OF_RANGE, NOW)
    row = describe(PartitionPosition(END - 1, 7), read)
    assert (row["state"], row["cause"]) == ("behind", "offset-out-of-range")


def test_a_stream_with_an_end_of_its_own_ends_in_each_partition():
    read = create_ready_read()
    assert describe(PartitionPosition(19, 7), read, {TP: 20})["state"] == "behind"
    assert get_progress(describe(PartitionPosition(20, 7), read, {TP: 20})) == (END, 30, "ended")
    read.reader.on_leader_change(None, 8, NOW)
    assert describe(PartitionPosition(20, 7), read, {TP: 20})["state"] == "ended"
    assert describe(PartitionPosition(20, 7), read, {})["state"] == "leaderless"


def test_partitions_are_in_order():
    tps = [TopicPartition("stock", 0), TopicPartition("orders", 10), TopicPartition("orders", 9)]
    rows = describe_partitions(dict.fromkeys(tps, PartitionPosition(0)), {}, None, NOW)
    assert [(row["topic"], row["partition"]) for row in rows] == sorted(tps)
