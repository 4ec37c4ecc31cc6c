"""Measure what HTTP costs: the sidecar, the library that it is built on, and a bridge by hand.

All three run, and work in turns, so that the machine's other load affects all alike; the share is
of the library's turn in the same round. CPU is that of the server's process alone: the clients are
on another core. Each is warmed by a round that is not counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka

from gateway.sidecar.http.requests import RequestIds

from .. import orders
from ..kafka import Kafka
from ..machine import Cost, measure_cost
from ..peers import transfer_servers
from ..peers.transfer import TransferServer, TransferTask
from .work import Cell

RECORDS_PER_CPU = "records of a CPU second"
TURN_TIMEOUT_S = 60.0  # s, for a turn
LIBRARY_SHARE = "of the library's"


@dataclass(frozen=True)
class Size:
    """records: of a turn. by_hand: of a turn of the bridge, which writes one at a time."""

    work: str
    records: int = 20_000
    bridge_records: int = 20_000
    clients: int = 8
    batch_records: int = 100
    partitions: int = 12
    rounds: int = 5
    formats: tuple[str, ...] = ("json", "string", "binary")


async def run(kafka: Kafka, peer: transfer_servers.TransferPeer, size: Size) -> Cell:
    """peer: says whose sidecar it is; all take part in each round."""
    cell = Cell()
    topic = kafka.create_topic(size.partitions)
    if size.work == "consume":
        await asyncio.to_thread(fill_topic, kafka.bootstrap_servers, topic, size.records)
    errand = TransferTask(
        size.work, kafka.bootstrap_servers, topic, size.partitions, size.clients, size.batch_records
    )
    spent: dict[str, list[tuple[float, Cost]]] = {}
    async with _running_servers(errand, size, peer.checkout) as every:
        for round in range(1 + size.rounds):
            for each in every[round % len(every) :] + every[: round % len(every)]:
                done = await _run_turn(each, size)
                if round:
                    spent.setdefault(each.name, []).append(done)
    _add_rows(cell, spent)
    return cell


@asynccontextmanager
async def _running_servers(
    task: TransferTask, size: Size, checkout: Path
) -> AsyncIterator[list[TransferServer]]:
    async with (
        transfer_servers.running_library(task) as library,
        transfer_servers.running_sidecar(task, size.formats, checkout) as ours,
        transfer_servers.running_bridge(task) as bridge,
    ):
        yield [library, *ours, bridge]


async def _run_turn(server: TransferServer, size: Size) -> tuple[float, Cost]:
    """Records of a CPU second, and what it took."""
    count = size.bridge_records if server.name == transfer_servers.BRIDGE else size.records
    async with asyncio.timeout(TURN_TIMEOUT_S):
        await server.rewind()
        with measure_cost(server.pid) as spent:
            await server.transfer(count)
        await server.finish()
    return count / spent.cpu_s, spent


def _add_rows(cell: Cell, turns_by_server: Mapping[str, Sequence[tuple[float, Cost]]]) -> None:
    base = [rate for rate, _ in turns_by_server[transfer_servers.LIBRARY]]
    for name, turns in turns_by_server.items():
        rates, costs = [rate for rate, _ in turns], [spent for _, spent in turns]
        cell.add_row(name, RECORDS_PER_CPU, "1/s", *rates)
        cell.add_row(
            name, LIBRARY_SHARE, "", *(rate / of for rate, of in zip(rates, base, strict=True))
        )
        cell.add_row(name, "CPU of a record", "us", *(1e6 / rate for rate in rates))
        paces = (rate * spent.cpu_s / spent.wall_s for rate, spent in turns)
        cell.add_row(name, "records of a second", "1/s", *paces)
        cell.add_cost_notes(name, costs)


def fill_topic(servers: str, topic: str, count: int) -> None:
    """With orders, under their keys, with headers as the sidecar gives them."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "linger.ms": 5, "partitioner": "murmur2_random"}
    )
    for n in range(count):
        while True:
            try:
                producer.produce(
                    topic,
                    orders.encode_order(n),
                    orders.build_key(n),
                    headers=RequestIds.create().to_http_headers(),
                )
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(60.0)
    assert not left, f"{left} records were not taken"
