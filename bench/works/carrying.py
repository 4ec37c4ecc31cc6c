"""What HTTP costs: the sidecar beside the library that it is built on, and a bridge by hand.

All three run, and are worked in turns, so that what else the machine does meets all alike; the
share is of the library's turn in the same round. CPU is that of the server's process alone: the
clients are on another core. Each is warmed by a round that is not counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import confluent_kafka

from gateway.sidecar.http.ids import Ids

from .. import orders
from ..kafka import Kafka
from ..machine import Cost, cost
from ..peers import carriers
from ..peers.carrier import Carrier, Errand
from .work import Cell

RECORDS = "records of a CPU second"
WITHIN = 60.0  # s, for a turn
SHARE = "of the library's"


@dataclass(frozen=True)
class Size:
    """records: of a turn. by_hand: of a turn of the bridge, which writes one at a time."""

    work: str
    records: int = 20_000
    by_hand: int = 20_000
    clients: int = 8
    batch: int = 100
    partitions: int = 12
    rounds: int = 5
    formats: tuple[str, ...] = ("json", "string", "binary")


async def run(kafka: Kafka, peer: object, size: Size) -> Cell:
    """peer: has nothing to say; all take part in each round."""
    cell = Cell()
    topic = kafka.topic(size.partitions)
    if size.work == "consume":
        await asyncio.to_thread(fill, kafka.servers, topic, size.records)
    errand = Errand(size.work, kafka.servers, topic, size.partitions, size.clients, size.batch)
    spent: dict[str, list[tuple[float, Cost]]] = {}
    async with _all(errand, size) as every:
        for round in range(1 + size.rounds):
            for each in every[round % len(every) :] + every[: round % len(every)]:
                done = await _turn(each, size)
                if round:
                    spent.setdefault(each.name, []).append(done)
    _tell(cell, spent)
    return cell


@asynccontextmanager
async def _all(errand: Errand, size: Size) -> AsyncIterator[list[Carrier]]:
    async with (
        carriers.library(errand) as library,
        carriers.sidecar(errand, size.formats) as ours,
        carriers.bridge(errand) as bridge,
    ):
        yield [library, *ours, bridge]


async def _turn(carrier: Carrier, size: Size) -> tuple[float, Cost]:
    """Records of a CPU second, and what it took."""
    count = size.by_hand if carrier.name == carriers.BRIDGE else size.records
    async with asyncio.timeout(WITHIN):
        await carrier.rewind()
        with cost(carrier.pid) as spent:
            await carrier.carry(count)
        await carrier.rest()
    return count / spent.cpu, spent


def _tell(cell: Cell, found: Mapping[str, Sequence[tuple[float, Cost]]]) -> None:
    base = [rate for rate, _ in found[carriers.LIBRARY]]
    for name, turns in found.items():
        rates, costs = [rate for rate, _ in turns], [spent for _, spent in turns]
        cell.add(name, RECORDS, "1/s", *rates)
        cell.add(name, SHARE, "", *(rate / of for rate, of in zip(rates, base, strict=True)))
        cell.add(name, "CPU of a record", "us", *(1e6 / rate for rate in rates))
        paces = (rate * spent.cpu / spent.wall for rate, spent in turns)
        cell.add(name, "records of a second", "1/s", *paces)
        cell.watch(name, costs)


def fill(servers: str, topic: str, count: int) -> None:
    """With orders, under their keys, with headers as the sidecar gives them."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "linger.ms": 5, "partitioner": "murmur2_random"}
    )
    for n in range(count):
        while True:
            try:
                producer.produce(
                    topic, orders.written(n), orders.key(n), headers=Ids.made().pairs()
                )
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(60.0)
    assert not left, f"{left} records were not taken"
