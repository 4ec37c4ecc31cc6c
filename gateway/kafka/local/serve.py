"""Run a local Kafka cluster until ^C, for `gateway broker`."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from gateway.errors import LocalBrokerError

from . import jars, java
from .cluster import LocalKafka, ensure_class_archive
from .node import KafkaNode

RESTART_DELAY_S = 10.0  # long enough to see what clients do meanwhile


def prefetch() -> None:
    cache = jars.cache_directory()
    runtime = java.find_java()
    jars.verify_jars(jars.fetch_jars(cache))
    ensure_class_archive(cache)
    print(
        f"Kafka {jars.KAFKA_VERSION} is ready in {cache}, on Java {runtime.major} ({runtime.path})"
    )


def run_broker(
    nodes: int = 1,
    port: int | None = None,
    data: Path | None = None,
    *,
    restart_delay_s: float = RESTART_DELAY_S,
) -> None:
    """Run a cluster until SIGINT or SIGTERM, which shut it down.

    To try a failover, one kills a node: a node of several that ends is started again after
    `restart_delay_s`. Raises LocalBrokerError if the cluster cannot be started, or if its only node
    ends by itself, or one of several soon after it was started.
    """
    # SIGTERM raises KeyboardInterrupt as well, so that both signals end the `with` block.
    previous_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with LocalKafka(nodes, port=port, data=data) as kafka:
            _print_servers(kafka, data)
            _keep_nodes_running(kafka, restart_delay_s)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def _keep_nodes_running(kafka: LocalKafka, restart_delay_s: float) -> None:
    """Restart each node that ends. This returns only by an exception."""
    started_at = dict.fromkeys(kafka.nodes, -restart_delay_s)
    ended_at: dict[KafkaNode, float] = {}
    while True:
        time.sleep(0.2)
        now = time.monotonic()
        for node in kafka.nodes:
            if node.is_running:
                continue
            if len(kafka.nodes) == 1 or now - started_at[node] < restart_delay_s:
                raise LocalBrokerError(
                    f"node {node.id} of Kafka ended by itself:\n{node.read_log_tail()}"
                )
            if node not in ended_at:
                ended_at[node] = now
                delay = f"{restart_delay_s:g} s"
                print(f"node {node.id} ended; it is started again in {delay}", flush=True)
            elif now - ended_at[node] >= restart_delay_s:
                del ended_at[node]
                node.start()
                started_at[node] = now
                print(f"node {node.id} was started again: pid {node.pid}", flush=True)


def _print_servers(kafka: LocalKafka, data: Path | None) -> None:
    servers = ",".join(kafka.bootstrap)
    retention = f"data is kept in {data}" if data else "data is removed when it ends"
    print(f"bootstrap: {servers}", flush=True)
    print(f"use it as kafka: {{servers: [{servers}]}}; {retention}; ^C ends it", flush=True)
    if len(kafka.nodes) > 1:
        pids = ", ".join(f"{node.id}: {node.pid}" for node in kafka.nodes)
        print(f"to try a failover, kill one of the nodes (pids by node: {pids})", flush=True)
