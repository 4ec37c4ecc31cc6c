"""What a client got is the sum of its rides and of what it got besides."""

from __future__ import annotations

from support.single_client import TP, create_client, write_records

from gateway.core.channel.chunk_ring import ByteCounts, CountedBytes
from gateway.core.log.record import PartitionPosition
from gateway.hub.wires.sse import SseWire
from gateway.hub.wires.wrapping import GzipWire
from gateway.wire.gzip import Crc32Sum


def count_bytes(data: bytes) -> CountedBytes:
    return CountedBytes.create(b"on the wire", Crc32Sum.from_bytes(data))


def test_rides_and_pieces_of_ones_own_are_put_together_in_order():
    ledger = ByteCounts()
    ledger.add([count_bytes(b"begin "), b"", count_bytes(b"own ")])
    ledger.start_shared(Crc32Sum.from_bytes(b"before me "))
    ledger.stop_shared(Crc32Sum.from_bytes(b"before me ridden "))
    ledger.add([count_bytes(b"own again ")])
    ledger.start_shared(None)  # of a channel that has said nothing yet
    ledger.stop_shared(Crc32Sum.from_bytes(b"all of it"))
    assert ledger.sum == Crc32Sum.from_bytes(b"begin own ridden own again all of it")


def test_a_ride_on_which_nothing_came_is_none():
    ledger = ByteCounts()
    ledger.start_shared(None)
    ledger.stop_shared(None)
    assert ledger.sum is None
    ledger.start_shared(Crc32Sum.from_bytes(b"before"))
    ledger.stop_shared(Crc32Sum.from_bytes(b"before"))
    assert ledger.sum == Crc32Sum()


async def test_one_whose_bytes_are_not_counted_has_no_sum():
    client = create_client(SseWire())
    assert client.begin()
    write_records(client, b"1")
    assert client.subscription.take(1000, 0.0) and client.subscription.delivered_sum is None


async def test_one_that_stepped_aside_is_not_asked_where_it_rode():
    """Its cursor is of a chunk that is gone: nobody kept it in the ring."""
    client = create_client(GzipWire(SseWire()), max_ring_bytes=2000)
    subscription = client.subscription
    subscription.count_private(count_bytes(b"begin"))
    subscription.ensure_private_reader().read({TP: PartitionPosition(0, 0)})
    subscription.detach()
    for n in range(100):
        write_records(client, b"%d" % n)
    assert subscription.channel.first_seq > subscription.next_seq
    subscription.count_private(count_bytes(b"own"))
    assert subscription.delivered_sum == Crc32Sum.from_bytes(b"beginown")
