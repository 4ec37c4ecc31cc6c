from __future__ import annotations

import pytest
from support.keyed import PARTITIONS, Client, Topic

from gateway.core.channel.channel import Channel
from gateway.core.client import snapshot_blocks as blocks
from gateway.core.client.snapshot_blocks import Blocks
from gateway.core.log.record import Record

A = PARTITIONS[0]


def filled(count: int) -> Topic:
    topic = Topic()
    for n in range(count):
        topic.write(0, b"k%d" % n)
    return topic


def test_what_one_client_was_brought_the_next_one_is_brought_too():
    topic = filled(5)
    edition = topic.edition(A)
    made = Blocks.of(edition, topic.channel)
    block = made.at(edition, 0)
    assert block is not None
    assert (block.offset, block.next, block.records) == (0, 5, 5)
    assert block.data == b"".join(b"record 0 %d\n" % n for n in range(4))
    assert block.last == b"record 0 4"
    assert Blocks.of(edition, topic.channel).at(edition, 0) is block
    assert made.at(edition, 5) is None
    assert made.bytes == len(block.data)


def test_blocks_follow_each_other_whatever_their_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blocks, "MOST", 30)
    topic = filled(10)
    topic.write(0, b"k0", None)
    edition = topic.edition(A)
    made, at, count = Blocks.of(edition, topic.channel), 0, 0
    while (block := made.at(edition, at)) is not None:
        at, count = block.next, count + block.records
    assert (at, count) == (11, 9)
    client = Client(topic, snapshot=True, blocks=True)
    assert [line.split()[2] for line in client.take_all()[:-1]] == [str(n) for n in range(1, 10)]


def test_a_block_of_which_nothing_is_seen_moves_the_position_only():
    topic = filled(3)
    edition = topic.edition(A)

    def none(record: Record) -> bool:
        return False

    channel = Channel(topic.tail, b"other", topic.channel.encoder, none)
    block = Blocks.of(edition, channel).at(edition, 0)
    assert block is not None
    assert (block.next, block.data, block.last, block.records) == (3, b"", None, 0)
