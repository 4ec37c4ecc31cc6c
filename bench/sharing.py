"""Measure what workers would gain if one of them read Kafka for all.

    python -m bench.sharing

Each of 2,000 clients has its own key. Two workers both read and filter all records, so each costs
what one worker with half of the clients costs. If one worker read for both, each batch of records
would have to be handed to the other process. The table has the CPU time of a record for one worker
with all clients, one with half of them and two workers, the CPU time to hand a batch over, and the
most that two workers could deliver then, as a multiple of what they deliver today.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import uvloop

from .feed import Wire, send_steadily
from .figure import median
from .kafka import Kafka, real_kafka
from .machine import measure_cost
from .peers.gateway_peer import GatewayPeer
from .peers.peer import Peer, ServerShape
from .works.work import open_pool

# Records arrive in bursts about a millisecond apart, see `send_steadily`.
BATCHES_PER_SECOND = 1000


@dataclass(frozen=True)
class Size:
    """keys: as many clients have one each. batch_bytes: of what is handed over."""

    keys: int = 2000
    rates: Sequence[float] = (4000, 12_000)
    seconds: float = 2.0
    repeats: int = 3
    batch_bytes: int = 1500


@dataclass(frozen=True)
class SharingResult:
    """The CPU time of one record, in microseconds, at one rate.

    Attributes:
        rate: Records a second.
        one_worker: With all clients.
        half: One worker with half of the clients; the other half's records match nobody.
        two_workers: Both together.
        hand_over: The share of a record in what handing its batch over costs.
    """

    rate: float
    one_worker: float
    half: float
    two_workers: float
    hand_over: float

    @property
    def best_gain(self) -> float:
        """Return how much more two workers would deliver at most, at equal CPU time."""
        return self.two_workers / (self.one_worker + self.hand_over)


async def measure(kafka: Kafka, size: Size = Size()) -> list[SharingResult]:
    """Measure at each rate, with a gateway on SSE."""
    batch_us = await measure_hand_over(size.batch_bytes)
    results = []
    for rate in size.rates:
        one, half, two = [
            await _measure_record(kafka, GatewayPeer(Wire.SSE), size, rate, clients, workers)
            for clients, workers in ((size.keys, 1), (size.keys // 2, 1), (size.keys, 2))
        ]
        batch_records = max(1.0, rate / BATCHES_PER_SECOND)
        results.append(SharingResult(rate, one, half, two, batch_us / batch_records))
    return results


async def measure_hand_over(batch_bytes: int, count: int = 1000) -> float:
    """Return the microseconds of CPU time, in both processes, to send one batch to another."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = socket.socketpair()
    answer, to_answer = context.Pipe(duplex=False)
    receiver = context.Process(target=_receive_batches, args=(theirs, to_answer), daemon=True)
    await asyncio.to_thread(receiver.start)
    theirs.close()
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    await asyncio.to_thread(answer.recv)  # it has started
    sent_s = 0.0
    for _ in range(count):
        began = time.thread_time()
        transport.write(bytes(batch_bytes))
        sent_s += time.thread_time() - began
        await asyncio.sleep(1 / BATCHES_PER_SECOND)
    transport.close()
    received_s = await asyncio.to_thread(answer.recv)
    await asyncio.to_thread(receiver.join)
    return 1e6 * (sent_s + received_s) / count


def _receive_batches(connection: socket.socket, to_answer: Connection) -> None:
    """Read to the end, in a process of its own, and answer with the seconds of CPU it took."""

    async def receive() -> float:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        class Receiver(asyncio.Protocol):
            def connection_lost(self, exc: Exception | None) -> None:
                ended.set_result(None)

        await loop.create_connection(Receiver, sock=connection)
        to_answer.send("started")
        began = time.process_time()
        await ended
        return time.process_time() - began

    to_answer.send(uvloop.run(receive()))


async def _measure_record(
    kafka: Kafka, peer: Peer, size: Size, rate: float, clients: int, workers: int
) -> float:
    """Return the microseconds of CPU time of a record, in all workers."""
    taken = []
    async with peer.serve(kafka, ServerShape(has_own_keys=True, workers=workers)) as served:
        for _ in range(size.repeats):
            async with open_pool(served, peer, clients, has_own_keys=True, timed_every=10) as crowd:
                sent, before = served.feed.sent_count, crowd.record_count
                with measure_cost(served.pid) as spent:
                    await send_steadily(served.feed, rate, size.seconds, size.keys)
                    count = served.feed.sent_count - sent
                    due = count * clients // size.keys
                    if not await crowd.wait_for_records(before + due, timeout_s=10):
                        raise RuntimeError(f"{clients} clients did not get their records")
                taken.append(1e6 * spent.cpu_s / count)
    return median(taken)


async def print_results() -> None:
    with real_kafka(1) as kafka:
        results = await measure(kafka)
    print("records/s   one worker   half of the clients   two workers   hand over   best gain")
    for it in results:
        print(
            f"{it.rate:9,.0f} {it.one_worker:9.1f} us {it.half:18.1f} us {it.two_workers:10.1f} us"
            f" {it.hand_over:8.1f} us {it.best_gain:10.2f}x"
        )


if __name__ == "__main__":
    uvloop.run(print_results())
