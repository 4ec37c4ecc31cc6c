from __future__ import annotations

from collections.abc import Sequence

from support.snapshot_model import PARTITIONS, KeyedTopic

from gateway.core.channel.conflation import buffered_size
from gateway.core.client.read_buffer import MAX_BUFFER_BYTES, EntryRun, ReadAnswer, ReadBuffer
from gateway.core.client.shared_cursor import SharedCursor
from gateway.core.client.snapshot import SnapshotBlocks
from gateway.core.client.terms import SubscriptionTerms
from gateway.core.log.record import Entry, Gap, GapReason, PartitionPosition

A, B = PARTITIONS


def build_topic(records: int, cache: int = 1) -> KeyedTopic:
    topic = KeyedTopic(max_log_bytes=cache)
    for _ in range(records):
        topic.write_record(0, b"a")
    return topic


def build_run(entries: Sequence[Entry]) -> EntryRun:
    return ReadAnswer(entries).get_run()


def test_what_comes_from_kafka_waits_and_weighs_until_it_is_taken():
    topic = build_topic(4)
    backlog, log = ReadBuffer(SharedCursor(topic.channel)), topic.logs[A]
    backlog.feed(A, build_run(topic.written_records[A][:3]))
    assert backlog.has_pieces(A) and not backlog.has_pieces(B)
    assert backlog.bytes == sum(map(buffered_size, topic.written_records[A][:3]))
    taken = backlog.iter_following(A, log, PartitionPosition(0))
    assert next(taken) == topic.written_records[A][0]
    assert backlog.bytes == sum(map(buffered_size, topic.written_records[A][1:3]))
    assert list(taken) == topic.written_records[A][1:3]
    assert (backlog.bytes, backlog.has_pieces(A)) == (0, False)


def test_what_a_log_holds_is_read_from_it_and_what_waited_is_dropped():
    topic = build_topic(4, cache=1 << 20)
    backlog = ReadBuffer(SharedCursor(topic.channel))
    backlog.feed(A, build_run(topic.written_records[A][1:3]))
    assert (
        list(backlog.iter_following(A, topic.logs[A], PartitionPosition(1)))
        == topic.written_records[A][1:]
    )
    assert backlog.bytes == 0


def test_nothing_comes_that_the_tail_has_not_seen():
    topic = KeyedTopic(is_stepped=True)
    for _ in range(2):
        topic.write_record(0, b"a")
    backlog = ReadBuffer(SharedCursor(topic.channel))
    assert list(backlog.iter_following(A, topic.logs[A], PartitionPosition(0))) == []
    bounded = ReadBuffer(SharedCursor(topic.channel, SubscriptionTerms(max_records=2)))
    assert (
        list(bounded.iter_following(A, topic.logs[A], PartitionPosition(0)))
        == topic.written_records[A]
    )


def test_more_is_not_taken_in_before_what_is_there_was_taken():
    topic = build_topic(4)
    backlog = ReadBuffer(SharedCursor(topic.channel))
    backlog.feed(A, build_run(topic.written_records[A][:1]))
    backlog.feed(A, build_run(topic.written_records[A][:3]))
    assert (
        list(backlog.iter_following(A, topic.logs[A], PartitionPosition(0)))
        == topic.written_records[A][:1]
    )


def test_it_is_full_by_all_that_waits_and_empty_once_that_is_dropped():
    topic = build_topic(4)
    backlog = ReadBuffer(SharedCursor(topic.channel))
    backlog.feed(A, build_run(topic.written_records[A][:1]))
    backlog.feed_snapshot(
        B,
        topic.written_records[A][1:2]
        * (MAX_BUFFER_BYTES // buffered_size(topic.written_records[A][1]) + 1),
    )
    assert backlog.is_full
    backlog.drop(B)
    assert not backlog.is_full and list(backlog.iter_snapshot(B)) == []


def test_a_stretch_is_gone_on_with_until_it_is_done():
    topic = build_topic(2)
    backlog = ReadBuffer(SharedCursor(topic.channel))
    stretch = backlog.get_window(A, PartitionPosition(0))
    stretch.add(topic.written_records[A][0])
    assert backlog.get_window(A, PartitionPosition(0)) is stretch
    assert backlog.is_gathering(A) and backlog.bytes == buffered_size(topic.written_records[A][0])
    stretch.close()
    assert list(stretch.drain()) == topic.written_records[A][:1]
    assert not backlog.is_gathering(A)
    assert backlog.get_window(A, PartitionPosition(1)).start_offset == 1


def test_one_answer_is_held_once_however_many_clients_it_serves():
    """Each client had a copy, which counted: clients that came back from a killed worker "held"
    hundreds of megabytes, so that no more was read for anybody."""
    topic = build_topic(4)
    answer, log = ReadAnswer(topic.written_records[A]), topic.logs[A]
    first, second = (ReadBuffer(SharedCursor(topic.channel)) for _ in range(2))
    first.feed(A, answer.get_run())
    second.feed(A, answer.find_run(2))
    assert [*first.shared_sizes, *second.shared_sizes] == [(id(answer), answer.bytes)] * 2
    assert (first.own_bytes, second.own_bytes) == (0, 0)
    assert answer.bytes == first.bytes == 2 * second.bytes
    for buffer, offset in (first, 0), (second, 2):
        assert (
            list(buffer.iter_following(A, log, PartitionPosition(offset)))
            == topic.written_records[A][offset:]
        )
        assert (list(buffer.shared_sizes), buffer.bytes) == ([], 0)


def test_a_block_of_a_snapshot_counts_once_however_many_clients_hold_it():
    """Each counted as 64 bytes: 300 clients that read nothing held 1 GB, of 128 MB."""
    topic = build_topic(4)
    edition = topic.build_edition(A)
    block = SnapshotBlocks.for_channel(edition, topic.channel).get_block(edition, 0)
    assert block is not None
    first, second = (ReadBuffer(SharedCursor(topic.channel)) for _ in range(2))
    for buffer in first, second:
        buffer.feed_snapshot(A, [block])
        assert list(buffer.shared_sizes) == [(id(block), block.size)]
        assert buffer.bytes - buffer.own_bytes == block.size == len(block.data) + len("record 0 3")
        assert list(buffer.iter_snapshot(A)) == [block]
        assert (list(buffer.shared_sizes), buffer.bytes) == ([], 0)


def test_entries_of_another_lineage_are_dropped_and_may_be_read_again():
    topic = build_topic(4)
    backlog, log = ReadBuffer(SharedCursor(topic.channel)), topic.logs[A]
    older, other = topic.written_records[A][0], topic.written_records[A][1]._replace(epoch=9)
    rewind = Gap(A, 1, 0, 9, GapReason.TRUNCATED)
    for foreign in other, rewind:
        backlog.feed(A, build_run([older, foreign, topic.written_records[A][2]]))
        assert list(backlog.iter_following(A, log, PartitionPosition(0))) == [older]
        assert not backlog.has_pieces(A)
