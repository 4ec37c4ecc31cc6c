"""Run `gateway demo`: a gateway with an embedded Kafka, example topics and a page.

It needs nothing that pip does not install. Two topics are written to, the routes of `CONFIG` stream
them, and the page shows them. The embedded Kafka uses a few MB per partition, and leaves nothing
behind when the process ends. `cli` calls `run_demo`; the shop demo uses the helpers below it.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
import webbrowser
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.kafka.embedded import EmbeddedKafka

from .sources import HostMetrics, RecordSender, generate_orders, open_sender

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
  - when: [{path: /events/host}]
    with: {topic: host}
  - when: [{path: /events/orders}]
    with: {topic: orders, clientFilters: true, clientFields: true}
  - when: [{path: "/events/orders/{customer}"}]
    with:
      topic: orders
      filters: [{key: "${params.customer}"}]
  - when: [{path: /records/orders}]
    with: {topic: orders, format: envelope}
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
