from __future__ import annotations

from support.snapshot_model import PARTITIONS, KeyedTopic, SnapshotClient

from gateway.core.channel.channel import Channel
from gateway.core.client.snapshot import SnapshotBlocks
from gateway.core.log.record import Record

A = PARTITIONS[0]


def build_topic(count: int) -> KeyedTopic:
    topic = KeyedTopic()
    for n in range(count):
        topic.write_record(0, b"k%d" % n)
    return topic


def test_what_one_client_was_brought_the_next_one_is_brought_too():
    topic = build_topic(5)
    edition = topic.build_edition(A)
    made = SnapshotBlocks.for_channel(edition, topic.channel)
    block = made.get_block(edition, 0)
    assert block is not None
    assert (block.offset, block.next_offset, block.records) == (0, 5, 5)
    assert block.data == b"".join(b"record 0 %d\n" % n for n in range(4))
    assert block.last_payload == b"record 0 4"
    assert SnapshotBlocks.for_channel(edition, topic.channel).get_block(edition, 0) is block
    assert made.has_block(edition, 0)
    assert made.has_block(edition, 5) and made.get_block(edition, 5) is None
    assert made.bytes == len(block.data) + len(block.last_payload)


class SmallBlocks(SnapshotBlocks):
    MAX_BLOCK_BYTES = 30


def test_blocks_follow_each_other_whatever_their_size():
    topic = build_topic(10)
    topic.write_record(0, b"k0", None)
    edition = topic.build_edition(A)
    made, at, count = SmallBlocks.for_channel(edition, topic.channel), 0, 0
    while (block := made.get_block(edition, at)) is not None:
        at, count = block.next_offset, count + block.records
    assert (at, count) == (11, 9)
    client = SnapshotClient(topic, has_snapshot=True, uses_blocks=True)
    assert [line.split()[2] for line in client.take_all_lines()[:-1]] == [
        str(n) for n in range(1, 10)
    ]


def test_a_block_ends_where_time_is_over_and_the_next_one_goes_on():
    """With `fields`, 64 KiB of a block may be made of 400 MB of records."""
    topic = build_topic(5)
    edition = topic.build_edition(A)
    made, remaining = SnapshotBlocks.for_channel(edition, topic.channel), iter([False, True])
    first = made.get_block(edition, 0, lambda: next(remaining))
    assert first is not None and (first.next_offset, first.records) == (2, 2)
    second = made.get_block(edition, 2, lambda: False)
    assert second is not None and (second.next_offset, second.records) == (5, 3)
    assert made.get_block(edition, 0) is first


def test_a_block_of_which_nothing_is_seen_moves_the_position_only():
    topic = build_topic(3)
    edition = topic.build_edition(A)

    def reject_record(record: Record) -> bool:
        return False

    channel = Channel(topic.tail, b"other", topic.channel.encoder, reject_record)
    block = SnapshotBlocks.for_channel(edition, channel).get_block(edition, 0)
    assert block is not None
    assert (block.next_offset, block.data, block.last_payload, block.records) == (3, b"", None, 0)
