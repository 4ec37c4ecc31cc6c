"""What compression saves and costs: bytes and CPU of a delivery, plain and compressed.

One client reads every byte and inflates it; the others, who get the same, are counted in bytes.
Values are text, one record at a time and ten joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from support.until import until

from ..crowd import Crowd
from ..exact import Exact, connect
from ..feed import steadily
from ..kafka import Kafka
from ..machine import cost
from ..peers.peer import Peer, Served, Shape
from .work import PER_CPU, Cell


@dataclass(frozen=True)
class Size:
    clients: int = 200
    rate: float = 100.0
    seconds: float = 4.0
    joined: Sequence[int] = (1, 10)


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell = Cell()
    for compressed in (False, True):
        for joined in size.joined:
            shape = Shape(joined=joined, prose=True, compressed=compressed)
            case = f"{'compressed' if compressed else 'plain'}, {joined} joined"
            async with peer.serve(kafka, shape) as served, Crowd() as crowd:
                reader = Exact(peer.wire)
                await crowd.open(served.port, size.clients - 1, partial(_request, served))
                await connect([reader], served.port, served.request)
                await _start(served, reader)
                await _measure(cell, case, served, crowd, reader, size, joined)
                if compressed and reader.connection and not reader.connection.compressed:
                    cell.note(f"{case}: the server did not compress")
                reader.cut()
    return cell


def _request(served: Served, n: int) -> bytes:
    return served.request(n, b"")


async def _measure(
    cell: Cell, case: str, served: Served, crowd: Crowd, reader: Exact, size: Size, joined: int
) -> None:
    assert reader.connection is not None
    before, own, had = crowd.bytes, reader.connection.received, reader.got
    sent = served.feed.sent
    with cost(served.pid) as spent:
        await steadily(served.feed, size.rate * joined, size.seconds, joined=joined)
        due = had + served.feed.sent - sent
        await until(lambda: reader.got >= due, "all records at the reader", 30)
    own = reader.connection.received - own
    with suppress(TimeoutError):  # what was sent with it is on its way
        await until(lambda: crowd.bytes - before >= own * len(crowd.clients), "the others", 2)
    records = due - had
    cell.add(case, PER_CPU, "1/s", records * size.clients / spent.cpu)
    cell.add(case, "bytes of a delivery", "bytes", own / records)
    others = (crowd.bytes - before) / own / len(crowd.clients)
    if not 0.98 < others < 1.02:
        cell.note(f"{case}: the others got {others:.0%} of the bytes that the reader got")
    cell.watch(case, [spent])


async def _start(served: Served, reader: Exact) -> None:
    """Until the reader gets what is sent."""
    for _ in range(60):
        had = reader.got
        for _ in range(12):
            served.feed.send()
        with suppress(TimeoutError):
            await until(partial(_has, reader, had + 12), "the first records", 1)
            return
    raise TimeoutError("no record came in a minute")


def _has(reader: Exact, count: int) -> bool:
    return reader.got >= count
