"""Run a local Kafka cluster until ^C, for `gateway broker`."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from gateway.errors import LocalBrokerError

from . import jars, java
from .cluster import LocalKafka, ensure_class_archive


def prefetch() -> None:
    """Fetch and build everything that a start needs and that is not in the cache yet.

    Raises:
        LocalBrokerError: There is no Java or no network, or a jar is damaged.
    """
    cache = jars.cache_directory()
    runtime = java.find_java()
    jars.verify_jars(jars.fetch_jars(cache))
    ensure_class_archive(cache)
    print(
        f"Kafka {jars.KAFKA_VERSION} is ready in {cache}, on Java {runtime.major} ({runtime.path})"
    )


def run_broker(nodes: int = 1, port: int | None = None, data: Path | None = None) -> None:
    """Run a cluster until SIGINT or SIGTERM, which shut it down.

    Args:
        nodes: The number of nodes, 1 or 3.
        port: The port of node 1; the other nodes have the next ones. None for free ports.
        data: The directory to keep the data in; None for a temporary one.

    Raises:
        LocalBrokerError: The cluster cannot be started, or a node ends by itself.
    """
    # SIGTERM raises KeyboardInterrupt as well, so that both signals end the `with` block.
    previous_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
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
        signal.signal(signal.SIGTERM, previous_handler)


def _print_servers(kafka: LocalKafka, data: Path | None) -> None:
    servers = ",".join(kafka.bootstrap)
    retention = f"data is kept in {data}" if data else "data is removed when it ends"
    print(f"bootstrap: {servers}", flush=True)
    print(f"use it as kafka: {{servers: [{servers}]}}; {retention}; ^C ends it", flush=True)
