from __future__ import annotations

import pytest
from support.records import RecordToSend, produce_records
from support.topic_reads import open_cluster

from gateway.core.log.record import TopicPartition
from gateway.errors import PartitionFailed
from gateway.kafka.client.offsets import EARLIEST, LATEST
from gateway.kafka.fetch.scan import fetch_offset, iter_scan

T = TopicPartition("t", 0)


async def test_a_stretch_is_read_to_its_end_and_from_its_start(embedded):
    embedded.create_topic("t")
    for number in range(3):  # three batches of four
        await produce_records(
            embedded.bootstrap, "t", [RecordToSend(b"%d" % (4 * number + n)) for n in range(4)]
        )
    async with open_cluster(embedded.bootstrap, "t") as kafkas:
        assert [await fetch_offset(kafkas, T, spec) for spec in (EARLIEST, LATEST)] == [0, 12]
        pieces = [piece async for piece in iter_scan(kafkas, T, 2, 7)]
        values = [record.value for piece in pieces for record in piece.records]
        assert values == [b"%d" % n for n in range(2, 8)]  # batches are whole
        assert [piece.next_offset for piece in pieces] == [4, 8]


async def test_a_partition_that_cannot_be_read_says_why(embedded):
    embedded.create_topic("t")
    async with open_cluster(embedded.bootstrap, "t") as kafkas:
        embedded.fail(1, 6)
        with pytest.raises(PartitionFailed, match=r"t-0 cannot be read \(code 6\)"):
            [piece async for piece in iter_scan(kafkas, T, 0, 1)]
        embedded.fail(2, 29)
        with pytest.raises(PartitionFailed, match="code 29"):
            await fetch_offset(kafkas, T, LATEST)
        nowhere = TopicPartition("t", 7)
        with pytest.raises(PartitionFailed, match="code 5"):
            [piece async for piece in iter_scan(kafkas, nowhere, 0, 1)]
