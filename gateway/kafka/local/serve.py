"""`gateway broker`: a Kafka for whoever wants one, until ^C."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from gateway.errors import LocalBrokerError

from . import jars, java
from .cluster import LocalKafka, ensure_class_archive


def prefetch() -> None:
    """Fetch and make all that a start needs; nothing is done twice.

    Raises LocalBrokerError: no Java, no network, a damaged jar.
    """
    cache = jars.cache_directory()
    found = java.find_java()
    jars.verify_jars(jars.fetch_jars(cache))
    ensure_class_archive(cache)
    print(f"Kafka {jars.KAFKA_VERSION} is ready in {cache}, on Java {found.major} ({found.path})")


def run_broker(nodes: int = 1, port: int | None = None, data: Path | None = None) -> None:
    """Run a cluster until SIGINT or SIGTERM, which end it in order.

    nodes: 1 or 3.  port: of node 1, the others' follow.  data: kept there; else it is temporary.
    Raises LocalBrokerError when it cannot be started or a node ends by itself.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with LocalKafka(nodes, port=port, data=data) as kafka:
            _print_servers(kafka, data)
            while all(node.is_running for node in kafka.nodes):
                time.sleep(0.2)
            dead = next(node for node in kafka.nodes if not node.is_running)
            raise LocalBrokerError(
                f"node {dead.id} of Kafka ended by itself:\n{dead.read_log_tail()}"
            )
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_servers(kafka: LocalKafka, data: Path | None) -> None:
    servers = ",".join(kafka.bootstrap)
    kept = f"data is kept in {data}" if data else "data goes when it ends"
    print(f"bootstrap: {servers}", flush=True)
    print(f"use it as kafka: {{servers: [{servers}]}}; {kept}; ^C ends it", flush=True)
