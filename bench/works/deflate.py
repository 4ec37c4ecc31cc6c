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
from ..exact import Exact
from ..feed import steadily
from ..kafka import Kafka
from ..machine import Cost, cost
from ..peers.peer import Peer, Served, Shape
from .work import Cell, alone, quiet, reader_of


@dataclass(frozen=True)
class Size:
    """rate: of what is sent at once. seconds: of one repeat."""

    clients: int = 200
    rate: float = 100.0
    seconds: float = 0.8
    joined: Sequence[int] = (1, 10)
    repeats: int = 5


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell = Cell()
    for compressed in (False, True):
        for joined in size.joined:
            shape = Shape(joined=joined, prose=True, compressed=compressed)
            case = f"{'compressed' if compressed else 'plain'}, {joined} joined"
            with alone(cell, case):
                async with peer.serve(kafka, shape) as served, Crowd() as crowd:
                    await crowd.open(served.port, size.clients - 1, partial(_request, served))
                    async with reader_of(served, peer) as reader:
                        await quiet(lambda crowd=crowd: crowd.bytes)  # type: ignore[misc]
                        await _measure(cell, case, served, crowd, reader, size, joined)
                        if compressed and not reader.compressed:
                            cell.note(f"{case}: the server did not compress")
    return cell


def _request(served: Served, n: int) -> bytes:
    return served.request(n, b"")


async def _measure(
    cell: Cell, case: str, served: Served, crowd: Crowd, reader: Exact, size: Size, joined: int
) -> None:
    before, own, got, costs, records = crowd.bytes, reader.bytes, reader.got, list[Cost](), []
    for _ in range(size.repeats):
        sent = served.feed.sent
        with cost(served.pid) as spent:
            await steadily(served.feed, size.rate * joined, size.seconds, joined=joined)
            await until(
                partial(reader.has, got + sum(records) + served.feed.sent - sent), within=30
            )
        with suppress(TimeoutError):  # what was sent with it is on its way
            await until(lambda: crowd.bytes - before >= (reader.bytes - own) * len(crowd), within=2)
        records.append(served.feed.sent - sent)
        costs.append(spent)
    own = reader.bytes - own
    cell.add(case, "bytes of a delivery", "bytes", own / sum(records))
    spent_each = [1e6 * c.cpu / n / size.clients for c, n in zip(costs, records, strict=True)]
    cell.add(case, "CPU of a delivery", "us", *spent_each)
    share = (crowd.bytes - before) / own / len(crowd)
    if not 0.98 < share < 1.02:
        cell.note(f"{case}: the others got {share:.0%} of the bytes that the reader got")
    if reader.damaged or reader.twice:
        cell.note(f"{case}: {reader.damaged} records were damaged, {reader.twice} came twice")
    cell.watch(case, costs)
