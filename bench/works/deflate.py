"""Measure what compression saves and costs: bytes and CPU of a delivery, by coding.

One client reads every byte and decompresses it; the others, which get the same, only count bytes.
Values are orders, one record at a time and ten joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from support.waiting import wait_until

from ..client_pool import ClientPool
from ..feed import Wire, send_steadily
from ..kafka import Kafka
from ..ledger import Ledger
from ..machine import Cost, measure_cost
from ..peers.peer import Coding, Peer, RunningServer, ServerShape
from ..results import Cell
from .work import note_failure, open_reader, wait_until_quiet

SAMPLE_RECORDS = 200  # that there are before the dictionary is made


@dataclass(frozen=True)
class Size:
    """rate: of what is sent at once. seconds: of one repeat."""

    clients: int = 200
    rate: float = 100.0
    repeat_s: float = 0.8
    batch_sizes: Sequence[int] = (1, 10)
    repeats: int = 5


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell = Cell()
    codings: list[Coding] = ["", "compressed"]
    if peer.wire is Wire.SSE:  # browsers have no dictionaries for WebSockets
        codings.append("dictionary")
    for coding in codings:
        for joined in size.batch_sizes:
            shape = ServerShape(batch_records=joined, has_orders=True, coding=coding)
            case = f"{coding or 'plain'}, {joined} joined"
            with note_failure(cell, case):
                async with peer.serve(kafka, shape) as served, ClientPool() as crowd:
                    if coding == "dictionary":
                        await _load_dictionary(served, joined)
                    # Without a greeting, which may be compressed.
                    await crowd.open_clients(
                        served.port, size.clients - 1, partial(_build_request, served)
                    )
                    async with open_reader(served) as reader:
                        await wait_until_quiet(lambda crowd=crowd: crowd.byte_count)  # type: ignore[misc]
                        await _measure_case(cell, case, served, crowd, reader, size, joined)
                        if coding and not reader.is_compressed:
                            cell.add_note(f"{case}: the server did not compress")
    return cell


async def _load_dictionary(server: RunningServer, batch_records: int) -> None:
    assert server.load_dictionary is not None
    await send_steadily(server.feed, SAMPLE_RECORDS, 1.0, batch_records=batch_records)
    await server.feed.flush()
    await server.load_dictionary()


def _build_request(server: RunningServer, n: int) -> bytes:
    return server.build_request(n, b"")


async def _measure_case(
    cell: Cell,
    case: str,
    server: RunningServer,
    pool: ClientPool,
    reader: Ledger,
    size: Size,
    batch_records: int,
) -> None:
    before, own, got = pool.byte_count, reader.byte_count, reader.record_count
    costs, records = list[Cost](), list[int]()
    for _ in range(size.repeats):
        sent = server.feed.sent_count
        with measure_cost(server.pid) as spent:
            await send_steadily(
                server.feed, size.rate * batch_records, size.repeat_s, batch_records=batch_records
            )
            await wait_until(
                partial(reader.has_received, got + sum(records) + server.feed.sent_count - sent),
                timeout_s=30,
            )
        with suppress(TimeoutError):  # what was sent with it is on its way
            await wait_until(
                lambda: pool.byte_count - before >= (reader.byte_count - own) * len(pool),
                timeout_s=2,
            )
        records.append(server.feed.sent_count - sent)
        costs.append(spent)
    own = reader.byte_count - own
    cell.add_row(case, "bytes of a delivery", "bytes", own / sum(records))
    spent_each = [1e6 * c.cpu_s / n / size.clients for c, n in zip(costs, records, strict=True)]
    cell.add_row(case, "CPU of a delivery", "us", *spent_each)
    share = (pool.byte_count - before) / own / len(pool)
    if not 0.98 < share < 1.02:
        cell.add_note(f"{case}: the others got {share:.0%} of the bytes that the reader got")
    if reader.damaged_count or reader.duplicate_count:
        cell.add_note(
            f"{case}: {reader.damaged_count} records were damaged, "
            f"{reader.duplicate_count} came twice"
        )
    cell.add_cost_notes(case, costs)
