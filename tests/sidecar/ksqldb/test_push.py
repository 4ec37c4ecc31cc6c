from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

import pytest
from support.virtual_time import run_in_virtual_time
from support.waiting import wait_until

from gateway.core.delivery.verdict import BackendUnavailable
from gateway.sidecar.ksqldb.push import RowBatcher, RowDelivery
from gateway.sidecar.reactive.backend import BackendResponse


class FakeBackEnd:
    """answers: of the next calls, a status or that it is away; then 200."""

    def __init__(self, *answers: int | BackendUnavailable) -> None:
        self.batches: list[list[int]] = []
        self.ids: set[str] = set()
        self.answers = list(answers)
        self.choose_status: Callable[[list[int]], int] = lambda rows: 200

    async def __call__(self, body: bytes, id: str) -> BackendResponse | BackendUnavailable:
        rows = json.loads(body)
        self.ids.add(id)
        self.batches.append(rows)
        answer = self.answers.pop(0) if self.answers else self.choose_status(rows)
        return BackendResponse(answer, 0.0, b"") if isinstance(answer, int) else answer

    @property
    def received_rows(self) -> Sequence[int]:
        return [row for batch in self.batches for row in batch]


async def _deliver_rows(
    back_end: FakeBackEnd, rows: int, most: int = 100, size: int = 1000
) -> RowDelivery:
    batches = RowBatcher(most, size, linger=30.0)
    delivery = RowDelivery("q", back_end, retries=2, initial=0.001, max=0.01)
    running = asyncio.create_task(delivery.run(batches))
    for row in range(rows):
        await batches.put(str(row).encode())
    batches.end()
    await asyncio.wait_for(running, 30)
    return delivery


async def test_rows_come_in_order_in_batches_of_the_configured_rows():
    back_end = FakeBackEnd()
    delivery = await _deliver_rows(back_end, 250, most=100)
    assert back_end.received_rows == list(range(250))
    assert max(map(len, back_end.batches)) <= 100
    assert delivery.outcomes == {"delivered": 250}


async def test_a_batch_has_no_more_bytes_than_configured():
    back_end = FakeBackEnd()
    await _deliver_rows(back_end, 90, size=20)
    assert back_end.received_rows == list(range(90))
    assert all(sum(len(str(row)) + 1 for row in batch) <= 20 for batch in back_end.batches)


async def test_a_row_that_waited_goes_alone():
    back_end = FakeBackEnd()
    batches = RowBatcher(100, 1000, linger=0.01)
    running = asyncio.create_task(RowDelivery("q", back_end, 2, 0.01, 0.1).run(batches))
    await batches.put(b"1")
    await wait_until(lambda: back_end.batches == [[1]], "the row without any other")
    batches.end()
    await asyncio.wait_for(running, 30)


@pytest.mark.parametrize(
    "gone", [BackendUnavailable("no"), BackendUnavailable("late", is_late=True), 503, 429]
)
async def test_a_back_end_that_is_away_gets_the_same_batch_until_it_has_it(gone):
    back_end = FakeBackEnd(*[gone] * 20)
    delivery = await _deliver_rows(back_end, 3)
    assert back_end.batches == [[0, 1, 2]] * 21
    assert delivery.outcomes == {"delivered": 3}
    assert delivery.failure is None
    assert len(back_end.ids) == 1


def test_a_back_end_that_is_away_is_asked_at_ever_longer_intervals():
    back_end, times = FakeBackEnd(*[503] * 20), list[float]()

    async def post(body: bytes, id: str) -> BackendResponse | BackendUnavailable:
        times.append(asyncio.get_running_loop().time())
        return await back_end(body, id)

    async def deliver() -> None:
        batches = RowBatcher(100, 1000, linger=30.0)
        await batches.put(b"1")
        batches.end()
        await RowDelivery("q", post, retries=2, initial=0.1, max=60.0).run(batches)

    run_in_virtual_time(deliver())
    assert times[-1] - times[0] > 20 * 0.1, "of delays that are random up to a bound"


async def test_a_row_that_is_refused_is_found_and_the_others_are_delivered_in_order():
    back_end = FakeBackEnd()
    back_end.choose_status = lambda rows: 422 if 5 in rows else 200
    delivery = await _deliver_rows(back_end, 8)
    accepted = [row for batch in back_end.batches if 5 not in batch for row in batch]
    assert accepted == [0, 1, 2, 3, 4, 6, 7]
    assert delivery.outcomes == {"delivered": 7, "dropped": 1}
    assert back_end.batches.count([5]) == 3


async def test_the_reader_of_the_query_waits_while_the_back_end_does_not_answer():
    batches = RowBatcher(2, 1000, linger=30.0)
    await batches.put(b"1")
    await batches.put(b"2")
    third = asyncio.create_task(batches.put(b"3"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not third.done()
    assert await batches.take_batch() == [b"1", b"2"]
    await asyncio.wait_for(third, 30)


async def test_large_rows_wait_by_their_bytes_and_go_at_once():
    """As many as `batch.rows` waited, each of up to 16 MiB: 1.6 GB."""
    batches = RowBatcher(100, 1000, linger=30.0)
    rows = [b"%d" % n * 2000 for n in range(3)]
    await batches.put(rows[0])
    second = asyncio.create_task(batches.put(rows[1]))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not second.done()
    assert await asyncio.wait_for(batches.take_batch(), 10) == rows[:1]
    assert await asyncio.wait_for(batches.take_batch(), 10) == rows[1:2]
    await second
