"""Run `gateway demo`: a gateway with an embedded Kafka, example topics and a page.

It needs nothing that pip does not install. Two topics are written to, the routes of `CONFIG` stream
them, and the page shows them. The embedded Kafka uses a few MB per partition, and leaves nothing
behind when the process ends. `cli` calls `run_demo`; the shop demo uses the helpers below it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import platform
import random
import socket
import time
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import orjson
import psutil

from gateway.core.log.record import TopicPartition
from gateway.kafka.client.cluster import Cluster, ClusterSettings, get_existing_topic
from gateway.kafka.embedded import EmbeddedKafka
from gateway.kafka.produce.pending_records import compute_partition
from gateway.kafka.produce.producer import Producer

log = logging.getLogger(__name__)

TOPIC_PARTITIONS = {"host": 12, "orders": 12}

CONFIG = """\
# What `gateway demo` runs. To make it yours: servers, topics, routes.
name: demo
listen: {host: 127.0.0.1, port: 8080}

kafka:
  servers: embedded                    # yours: [localhost:9092]
  bootstrap: [host, orders]            # read before /health/ready says yes
  topics:
    - name: host
    - name: orders

routes:
  - path: /events/host
    topic: host
  - path: /events/orders
    topic: orders
    clientFilters: true
    clientFields: true
  - path: /events/orders/{customer}
    topic: orders
    filters: [{key: "${params.customer}"}]
  - path: /records/orders
    topic: orders
    format: envelope
"""

_PAGE_DIRECTORY = Path(__file__).parent / "page"
PAGES = {
    "/": _PAGE_DIRECTORY / "index.html",
    "/demo.css": _PAGE_DIRECTORY / "demo.css",
    "/demo.js": _PAGE_DIRECTORY / "demo.js",
    "/draw.js": _PAGE_DIRECTORY / "draw.js",
}

_METRICS_INTERVAL_S = 1.0  # seconds between two samples of this machine
_ORDERS_INTERVAL_S = (0.15, 0.6)  # seconds, at random, between two order events
_START_TIMEOUT_S = 15.0  # seconds until the browser is no longer opened


def run_demo(
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    browser: bool = True,
    pages: Path | None = None,
    origins: Sequence[str] = (),
) -> None:
    """Run the demo until SIGTERM or ^C; port 0 is any free one, `pages` are at `/pages/`."""
    from gateway.config import loads
    from gateway.web.app.server import serve

    port = port or find_free_port(host)
    url = build_page_url(host, port)
    with EmbeddedKafka(topics=TOPIC_PARTITIONS) as kafka:
        settings = loads(build_config(kafka.bootstrap, host, port, origins), name="demo")
        startup = [partial(publish_records, kafka.bootstrap)]
        if browser:
            startup.append(partial(open_page, url))
        print(format_invitation(url), flush=True)
        print(f"embedded Kafka on {','.join(kafka.bootstrap)}", flush=True)
        all_pages = PAGES if pages is None else {**PAGES, "/pages": pages}
        serve(settings, pages=all_pages, startup=startup)


def build_config(servers: Sequence[str], host: str, port: int, origins: Sequence[str] = ()) -> str:
    return replace_listen(host, port, origins).replace(
        "servers: embedded ", f"servers: {json.dumps(list(servers))} "
    )


def replace_listen(host: str, port: int, origins: Sequence[str] = ()) -> str:
    listen: dict[str, Any] = {"host": host, "port": port}
    if origins:
        allow = {"origins": list(origins), "credentials": "*" not in origins}
        listen["access-control"] = {"policy": "cross-origin", "allow": allow}
    return CONFIG.replace("{host: 127.0.0.1, port: 8080}", json.dumps(listen))


def format_invitation(url: str) -> str:
    return f"""
  {url}/  the page: this machine and its orders, live (^C ends it)

  In another terminal:
    curl -N {url}/events/orders                          # from now on
    curl -N '{url}/events/orders/ada?from=earliest'      # one customer, from the first
    curl -N '{url}/records/orders?from=earliest'         # key, headers, offset too
    curl -N {url}/events/host                            # this machine
    curl    {url}/health/ready
"""


async def publish_records(servers: Sequence[str]) -> None:
    async with open_sender(servers) as sender, asyncio.TaskGroup() as tasks:
        tasks.create_task(_publish_host(sender))
        tasks.create_task(_publish_orders(sender, random.Random()))


async def _publish_host(sender: RecordSender) -> None:
    metrics = HostMetrics()
    while True:
        await asyncio.sleep(_METRICS_INTERVAL_S)
        for key, value in metrics.sample_metrics():
            await sender.send("host", key, value)


async def _publish_orders(sender: RecordSender, rng: random.Random) -> None:
    for key, value in generate_orders(rng):
        await sender.send("orders", key, value)
        await asyncio.sleep(rng.uniform(*_ORDERS_INTERVAL_S))


async def open_page(url: str) -> None:
    """Open a browser as soon as the address accepts connections; give up after a while."""
    address = urlsplit(url)
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            _, writer = await asyncio.open_connection(address.hostname, address.port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            await asyncio.to_thread(webbrowser.open, url)
            return


def build_page_url(host: str, port: int) -> str:
    """Return the URL of a server; one that listens on every address is reached by localhost."""
    if host in ("0.0.0.0", "::", ""):
        host = "localhost"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def find_free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port: int = server.getsockname()[1]
        return port


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


SEND_TIMEOUT_S = 30.0  # seconds until a record that could not be sent is dropped


@dataclass(eq=False)
class RecordSender:
    """Write records to topics by name. `open_sender` creates it and closes what it uses.

    Records that Kafka does not accept within `SEND_TIMEOUT_S` are dropped. The first of them is
    logged, and the first that is written again, with the number that was dropped.
    """

    _cluster: Cluster
    _producer: Producer
    _dropped_count: int = 0  # since the last record that was written

    async def send(self, topic: str, key: bytes | None, value: bytes) -> asyncio.Future[int]:
        """Hand a record over, without waiting until it is written.

        The key decides the partition; without one it is the first. The offset need not be awaited.
        """
        count = len((await get_existing_topic(self._cluster, topic)).partitions)
        partition = 0 if key is None else compute_partition(key, count)
        written = self._producer.send(
            TopicPartition(topic, partition), key, value, timeout_s=SEND_TIMEOUT_S
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
async def open_sender(servers: Sequence[str]) -> AsyncIterator[RecordSender]:
    async with Cluster(ClusterSettings(servers, client_id="gateway-demo")) as cluster:
        producer = Producer(cluster)
        try:
            yield RecordSender(cluster, producer)
        finally:
            await producer.close()
