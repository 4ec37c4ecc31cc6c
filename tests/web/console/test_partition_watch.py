"""What an operator is told of partitions: how each fares, since when, and what changed."""

from __future__ import annotations

from gateway.core.log.partition_reader import (
    EARLIEST,
    FetchResult,
    OutOfRangePolicy,
    PartitionReader,
    TimestampStart,
)
from gateway.core.log.record import TopicPartition
from gateway.core.log.recovery import Backoff, Cause
from gateway.hub.reads.shared_reads import STALE_S
from gateway.web.console.partition_watch import (
    MAX_REMOVED,
    STREAMING_S,
    PartitionRow,
    PartitionWatch,
    Transition,
)

NOW, WALL = 100.0, 1_700_000_000.0
END = 50


def create_reader(partition: int = 3, topic: str = "orders") -> PartitionReader:
    """A reader without a leader."""
    start = TimestampStart(EARLIEST)
    backoff = Backoff(1.0, lambda: 0.5)
    return PartitionReader(
        TopicPartition(topic, partition), start, OutOfRangePolicy.EARLIEST, backoff
    )


def create_ready_reader(partition: int = 3, topic: str = "orders") -> PartitionReader:
    """A reader of a partition that was fetched to its end."""
    reader = create_reader(partition, topic)
    reader.on_leader_change(1, 7, NOW)
    reader.on_list_offsets(END, 7, NOW)
    fetch_to(reader, END, NOW)
    return reader


def fetch_to(reader: PartitionReader, end: int, now: float) -> None:
    reader.on_fetch(FetchResult([], end, 7, end, end, 0), now)
    reader.last_response_at = now


def look(watch: PartitionWatch, *readers: PartitionReader, after: float = 0.0) -> list[Transition]:
    return watch.look([("", each) for each in readers], NOW + after, WALL + after)


def get_row(watch: PartitionWatch) -> PartitionRow:
    (row,), _ = watch.list_changes(0)
    return row


def test_a_partition_without_a_leader_is_resolving_until_one_was_known():
    reader, watch = create_reader(), PartitionWatch()
    look(watch, reader)
    assert get_row(watch).state == "resolving"
    reader.on_leader_change(1, 7, NOW)
    reader.on_leader_change(None, 8, NOW)
    look(watch, reader, after=1)
    row = get_row(watch)
    assert (row.state, row.cause, row.leader) == ("leaderless", "no-leader", None)


def test_a_partition_is_streaming_for_some_seconds_after_each_record():
    reader, watch = create_ready_reader(), PartitionWatch()
    look(watch, reader)
    assert (get_row(watch).state, get_row(watch).lag) == ("ready", 0)
    fetch_to(reader, END + 1, NOW + 1)
    look(watch, reader, after=1)
    assert get_row(watch).state == "streaming"
    for after, state in ((1 + STREAMING_S, "streaming"), (1.1 + STREAMING_S, "ready")):
        reader.last_response_at = NOW + after
        look(watch, reader, after=after)
        assert get_row(watch).state == state


def test_a_leader_that_does_not_answer_is_stalled():
    reader, watch = create_ready_reader(), PartitionWatch()
    look(watch, reader, after=STALE_S)
    assert get_row(watch).state == "ready"
    look(watch, reader, after=STALE_S + 0.1)
    assert get_row(watch).state == "stalled"


def test_it_says_since_when_and_when_it_is_tried_again():
    reader, watch = create_ready_reader(), PartitionWatch()
    look(watch, reader)
    reader.on_error(Cause.DENIED, NOW + 1, delay=2.5)
    look(watch, reader, after=1)
    for after in (1.0, 2.0):
        look(watch, reader, after=after)
        row = get_row(watch)
        assert (row.state, row.cause, row.since) == ("recovering", "access-denied", WALL + 1)
        assert row.retry_at == WALL + 4  # whole seconds: it does not change at every look
    fetch_to(reader, END, NOW + 3)
    look(watch, reader, after=3)
    row = get_row(watch)
    assert (row.state, row.cause, row.since, row.retry_at) == ("ready", None, WALL + 3, None)


def test_an_offset_out_of_range_is_no_trouble():
    reader, watch = create_ready_reader(), PartitionWatch()
    reader.on_error(Cause.OUT_OF_RANGE, NOW)
    assert look(watch, reader) == []
    assert (get_row(watch).state, get_row(watch).cause) == ("resolving", None)


def test_only_what_changed_is_listed():
    one, other, watch = create_ready_reader(1), create_ready_reader(2), PartitionWatch()
    look(watch, one, other)
    version = watch.version
    look(watch, one, other, after=0.5)
    assert (watch.version, watch.list_changes(version)) == (version, ([], []))
    one.on_leader_change(None, 8, NOW + 1)
    look(watch, one, other, after=1)
    (row,), removed = watch.list_changes(version)
    assert (row.partition, removed) == (1, [])
    version = watch.version
    look(watch, one, after=1.2)
    assert watch.list_changes(version) == ([], [("", "orders", 2)])
    version = watch.version
    look(watch, one, other, after=1.4)
    assert [row.partition for row in watch.list_changes(version)[0]] == [2]
    assert watch.list_changes(0)[1] == []


def test_partitions_that_get_into_trouble_together_are_one_transition():
    readers = [create_ready_reader(n) for n in (5, 1, 3)]
    watch = PartitionWatch()
    assert look(watch, *readers) == []
    for reader in readers[:2]:
        reader.on_leader_change(None, 8, NOW + 1)
    lost = Transition("", "orders", (1, 5), "leaderless", "no-leader")
    assert look(watch, *readers, after=1) == [lost]
    assert look(watch, *readers, after=1.5) == []
    readers[0].on_leader_change(2, 9, NOW + 2)
    fetch_to(readers[0], END, NOW + 2)
    for reader in readers[1:]:
        reader.last_response_at = NOW + 2
    assert look(watch, *readers, after=2) == [Transition("", "orders", (5,), "ready", None)]


def test_a_partition_that_is_in_trouble_from_the_start_is_a_transition():
    reader = create_ready_reader()
    reader.on_leader_change(None, 8, NOW)
    assert [each.state for each in look(PartitionWatch(), reader)] == ["leaderless"]


def test_partitions_that_are_back_are_one_transition_whether_records_come_or_not():
    """They were two lines for each topic after every pause of a broker."""
    readers = [create_ready_reader(n) for n in (1, 2)]
    watch = PartitionWatch()
    look(watch, *readers)
    look(watch, *readers, after=STALE_S + 1)
    fetch_to(readers[0], END + 1, NOW + 3)
    fetch_to(readers[1], END, NOW + 3)
    assert look(watch, *readers, after=3) == [Transition("", "orders", (1, 2), "ready", None)]


def test_many_partitions_that_come_and_go_do_not_fill_the_memory():
    watch = PartitionWatch()
    instance = watch.instance
    for topic in ("a", "b"):
        look(watch, *(create_reader(n, topic) for n in range(MAX_REMOVED + 1)))
        look(watch)
    assert watch.instance != instance
    assert watch.list_changes(0) == ([], [])
