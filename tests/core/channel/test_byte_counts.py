"""What a client got is the sum of its rides and of what it got besides."""

from __future__ import annotations

from support.one_client import TP, client_of, write

from gateway.core.channel.byte_counts import Counted, Ledger
from gateway.core.log.position import Place
from gateway.hub.wires.gzip import Gzip
from gateway.hub.wires.sse import Sse
from gateway.wire.crc import Sum


def counted(data: bytes) -> Counted:
    return Counted.of(b"on the wire", Sum.of(data))


def test_rides_and_pieces_of_ones_own_are_put_together_in_order():
    ledger = Ledger()
    ledger.add([counted(b"begin "), b"", counted(b"own ")])
    ledger.ride(Sum.of(b"before me "))
    ledger.stop(Sum.of(b"before me ridden "))
    ledger.add([counted(b"own again ")])
    ledger.ride(None)  # of a channel that has said nothing yet
    ledger.stop(Sum.of(b"all of it"))
    assert ledger.sum == Sum.of(b"begin own ridden own again all of it")


def test_a_ride_on_which_nothing_came_is_none():
    ledger = Ledger()
    ledger.ride(None)
    ledger.stop(None)
    assert ledger.sum is None
    ledger.ride(Sum.of(b"before"))
    ledger.stop(Sum.of(b"before"))
    assert ledger.sum == Sum()


async def test_one_whose_bytes_are_not_counted_has_no_sum():
    client = client_of(Sse())
    assert client.begin()
    write(client, b"1")
    assert client.subscription.take(1000) and client.subscription.got is None


async def test_one_that_stepped_aside_is_not_asked_where_it_rode():
    """Its cursor is of a chunk that is gone: nobody kept it in the ring."""
    client = client_of(Gzip(Sse()), ring=2000)
    subscription = client.subscription
    subscription.add(counted(b"begin"))
    subscription.part({TP: Place(0, 0)})
    subscription.close()
    for n in range(100):
        write(client, b"%d" % n)
    assert subscription.channel.first > subscription.cursor
    subscription.add(counted(b"own"))
    assert subscription.got == Sum.of(b"beginown")
