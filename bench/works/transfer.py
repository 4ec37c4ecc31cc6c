"""Measure what HTTP costs: the sidecar beside the library that it is built on.

Both run, and work in turns, so that the machine's other load affects them alike; the share is of
the library's turn in the same round. CPU is that of the server's process alone: the clients are
on another core. Each is warmed by a round that is not counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import confluent_kafka

from gateway.sidecar.http.requests import RequestIds

from ..goals import LIBRARY_SHARE
from ..kafka import Kafka
from ..machine import Cost, measure_cost
from ..peers import orders, transfer_servers
from ..peers.transfer_servers import LIBRARY, RECORDS_PER_CPU, TransferServer, TransferTask
from ..results import Cell

TURN_TIMEOUT_S = 60.0  # s, for a turn


@dataclass(frozen=True)
class Size:
    """records: of a turn."""

    work: str
    records: int = 20_000
    clients: int = 8
    batch_records: int = 100
    partitions: int = 12
    rounds: int = 5
    formats: tuple[str, ...] = ("json", "string", "binary")


async def run(kafka: Kafka, peer: transfer_servers.TransferPeer, size: Size) -> Cell:
    """peer: says whose sidecar it is; both take part in each round."""
    cell, servers = Cell(), kafka.bootstrap_servers
    topic = kafka.create_unique_topic(size.partitions)
    if size.work == "consume":
        await asyncio.to_thread(fill_topic, servers, topic, size.records)
    task = TransferTask(
        size.work, servers, topic, size.partitions, size.clients, size.batch_records
    )
    spent: dict[str, list[tuple[float, Cost]]] = {}
    async with (
        transfer_servers.running_library(task) as library,
        transfer_servers.running_sidecar(task, size.formats, peer.checkout) as sidecars,
    ):
        every = [library, *sidecars]
        for round in range(1 + size.rounds):
            for each in every[round % len(every) :] + every[: round % len(every)]:
                done = await _run_turn(each, size.records)
                if round:
                    spent.setdefault(each.name, []).append(done)
    _add_rows(cell, spent)
    return cell


async def _run_turn(server: TransferServer, count: int) -> tuple[float, Cost]:
    """Records of a CPU second, and what it took."""
    async with asyncio.timeout(TURN_TIMEOUT_S):
        await server.rewind()
        with measure_cost(server.pid) as spent:
            await server.transfer(count)
        await server.finish()
    return count / spent.cpu_s, spent


def _add_rows(cell: Cell, turns_by_server: Mapping[str, Sequence[tuple[float, Cost]]]) -> None:
    base = [rate for rate, _ in turns_by_server[LIBRARY]]
    for name, turns in turns_by_server.items():
        rates, costs = [rate for rate, _ in turns], [spent for _, spent in turns]
        cell.add_row(name, RECORDS_PER_CPU, "1/s", *rates)
        shares = (rate / of for rate, of in zip(rates, base, strict=True))
        cell.add_row(name, LIBRARY_SHARE, "", *shares)
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
