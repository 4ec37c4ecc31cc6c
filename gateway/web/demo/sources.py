"""Generate and write the records of the demo: metrics of this machine, and invented orders."""

from __future__ import annotations

import asyncio
import logging
import platform
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import orjson
import psutil

from gateway.core.log.record import TopicPartition
from gateway.kafka.client.cluster import Cluster, ClusterSettings, get_existing_topic
from gateway.kafka.produce.pending_records import compute_partition
from gateway.kafka.produce.producer import Producer

Clock: TypeAlias = Callable[[], float]
"""Returns the time in seconds since 1970."""
KeyValue: TypeAlias = tuple[bytes, bytes]
"""The key and the value of a record."""

CUSTOMERS = ("ada", "edsger", "frances", "grace", "hedy", "katherine", "linus", "radia")
STATUSES = ("created", "paid", "shipped")

_ITEM_PRICES = {
    "Drip kettle": 59.0,
    "Fountain pen": 34.5,
    "Globe": 89.0,
    "Headphones": 129.0,
    "Notebook": 12.9,
    "Slide rule": 45.0,
}
_MAX_OPEN_ORDERS = 12  # orders that are not shipped yet


class HostMetrics:
    """Samples this machine. Rates are per second, between one sample and the one before."""

    def __init__(self, clock: Clock = time.time) -> None:
        self._clock = clock
        self._hostname = platform.node() or "localhost"
        self._root_path = Path.home().anchor
        self._last_sample = clock(), _read_counters()
        psutil.cpu_percent(percpu=True)  # psutil's first result is meaningless

    def sample_metrics(self) -> list[KeyValue]:
        """Return one record for each of CPU, memory, disk and network, keyed by the host's name."""
        now, counters = self._clock(), _read_counters()
        last_time, last_counters = self._last_sample
        self._last_sample = now, counters
        seconds = max(now - last_time, 0.001)
        rates = {n: max(0, round((counters[n] - last_counters[n]) / seconds)) for n in counters}
        groups = {
            "cpu": _sample_cpu(),
            "memory": _sample_memory(),
            "disk": {
                **_sample_disk(self._root_path),
                "read": rates["read"],
                "written": rates["written"],
            },
            "network": {"received": rates["received"], "sent": rates["sent"]},
        }
        at = round(now * 1000)
        return [
            _encode_record(
                self._hostname, {"host": self._hostname, "metric": name, "at": at, **values}
            )
            for name, values in groups.items()
        ]


def _sample_cpu() -> dict[str, Any]:
    cores = psutil.cpu_percent(percpu=True)
    return {
        "percent": round(sum(cores) / max(1, len(cores)), 1),
        "cores": cores,
        "load": round(psutil.getloadavg()[0], 2),
    }


def _sample_memory() -> dict[str, Any]:
    memory = psutil.virtual_memory()
    used = memory.total - memory.available
    return {"percent": round(100 * used / memory.total, 1), "used": used, "total": memory.total}


def _sample_disk(path: str) -> dict[str, Any]:
    disk = psutil.disk_usage(path)
    return {"percent": disk.percent, "used": disk.used, "total": disk.total}


def _read_counters() -> dict[str, int]:
    """Return the bytes since boot; 0 for disks if there are none, as in some containers."""
    disk, network = psutil.disk_io_counters(), psutil.net_io_counters()
    return {
        "read": disk.read_bytes if disk else 0,
        "written": disk.write_bytes if disk else 0,
        "received": network.bytes_recv if network else 0,
        "sent": network.bytes_sent if network else 0,
    }


def generate_orders(rng: random.Random, clock: Clock = time.time) -> Iterator[KeyValue]:
    """Yield order events without end, keyed by customer; each order passes through `STATUSES`.

    The first events are one order of each customer, so that no customer's stream is empty for long.
    """
    number = 1000
    new_customers = rng.sample(CUSTOMERS, len(CUSTOMERS))
    open_orders: list[dict[str, Any]] = []
    while True:
        is_new_wanted = not open_orders or rng.random() < 0.4
        if new_customers or (len(open_orders) < _MAX_OPEN_ORDERS and is_new_wanted):
            number += 1
            customer = new_customers.pop() if new_customers else rng.choice(CUSTOMERS)
            order = _create_order(rng, number, customer)
            open_orders.append(order)
        else:
            order = rng.choice(open_orders)
            order["status"] = STATUSES[STATUSES.index(order["status"]) + 1]
            if order["status"] == STATUSES[-1]:
                open_orders.remove(order)
        yield _encode_record(order["customer"], {**order, "at": round(clock() * 1000)})


def _create_order(rng: random.Random, number: int, customer: str) -> dict[str, Any]:
    item, quantity = rng.choice(list(_ITEM_PRICES)), rng.choice((1, 1, 1, 2, 3))
    return {
        "order": f"A-{number}",
        "customer": customer,
        "status": STATUSES[0],
        "item": item,
        "quantity": quantity,
        "total": round(quantity * _ITEM_PRICES[item], 2),
    }


def _encode_record(key: str, value: dict[str, Any]) -> KeyValue:
    return key.encode(), orjson.dumps(value)


log = logging.getLogger(__name__)

SEND_TIMEOUT_S = 30.0  # seconds until a record that could not be sent is dropped


class RecordSender:
    """Write records to topics by name. `open_sender` creates it and closes what it uses.

    Records that Kafka does not accept within `timeout_s` are dropped. The first of them is logged,
    and the first that is written again, with the number that was dropped.
    """

    def __init__(
        self, cluster: Cluster, producer: Producer, timeout_s: float = SEND_TIMEOUT_S
    ) -> None:
        self._cluster = cluster
        self._producer = producer
        self._timeout_s = timeout_s
        self._dropped_count = 0  # since the last record that was written

    async def send(self, topic: str, key: bytes | None, value: bytes) -> asyncio.Future[int]:
        """Hand a record over, without waiting until it is written.

        The key decides the partition; without one it is the first. The offset need not be awaited.
        """
        count = len((await get_existing_topic(self._cluster, topic)).partitions)
        partition = 0 if key is None else compute_partition(key, count)
        written = self._producer.send(
            TopicPartition(topic, partition), key, value, timeout_s=self._timeout_s
        )
        written.add_done_callback(self._report_written)
        return written

    def _report_written(self, written: asyncio.Future[int]) -> None:
        if written.cancelled():
            return
        error = written.exception()
        if error is None:
            if self._dropped_count:
                log.info("records are written again; %d were dropped", self._dropped_count)
            self._dropped_count = 0
            return
        if not self._dropped_count:
            reason = str(error).partition("; ")[0]  # without the advice for clients that write
            log.warning("records of the demo are dropped until Kafka accepts them: %s", reason)
        self._dropped_count += 1


@asynccontextmanager
async def open_sender(
    servers: Sequence[str], timeout_s: float = SEND_TIMEOUT_S
) -> AsyncIterator[RecordSender]:
    async with Cluster(ClusterSettings(servers, client_id="gateway-demo")) as cluster:
        producer = Producer(cluster)
        try:
            yield RecordSender(cluster, producer, timeout_s)
        finally:
            await producer.close()
