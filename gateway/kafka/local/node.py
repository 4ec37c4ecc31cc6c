"""Run one broker process: its properties, its log directory, and the process itself.

The broker ends with the process that started it: by atexit, and on Linux also by PR_SET_PDEATHSIG,
so that even a killed test run leaves no JVM behind. Its ports stay the same when it is restarted.

The log directory is formatted without a JVM. `meta.properties` is written here.
`bootstrap.checkpoint` holds the feature levels. It is the same for every node of every cluster, and
Kafka's own storage tool creates it once (1.4 s).

Some properties keep a local cluster small: the lean ones reduce the memory of a default broker from
310 MB to 190 MB.
"""

from __future__ import annotations

import base64
import ctypes
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gateway.errors import LocalBrokerError
from gateway.kafka.protocol.requests import MetadataRequest

from . import java

LEAN_PROPERTIES = {
    "num.network.threads": "1",
    "num.io.threads": "2",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.coordinator.threads": "1",
    "group.initial.rebalance.delay.ms": "0",
}

SINGLE_NODE_PROPERTIES = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


def build_listener_properties(ports: Mapping[str, int], voters: str) -> dict[str, str]:
    """Build the broker properties of a node's listeners, which are all on 127.0.0.1.

    `voters` are the controllers, as `controller.quorum.voters` lists them.
    """
    bound = {name: f"{name}://127.0.0.1:{port}" for name, port in ports.items()}
    # Clients have no use for the controllers' listener.
    advertised = (address for name, address in bound.items() if name != "CONTROLLER")
    return {
        "process.roles": "broker,controller",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.quorum.voters": voters,
        "listeners": ",".join(bound.values()),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in ports),
    }


def format_properties(properties: Mapping[str, str]) -> str:
    # A backslash begins an escape there.
    escaped = ((key, value.replace("\\", "\\\\")) for key, value in properties.items())
    return "".join(f"{key}={value}\n" for key, value in escaped)


_CHECKPOINT = "bootstrap.checkpoint"


def build_classpath(libs: Path) -> str:
    """Return the class path in a fixed order: a class archive fits no other one."""
    return ":".join(
        str(libs / name) for name in sorted(jar.file_name for jar in java.load_kafka_jars().pins)
    )


def load_checkpoint(cache: Path) -> bytes:
    """Return the checkpoint that a new log directory starts with."""
    path = cache / _CHECKPOINT
    if not path.exists():
        with java.lock_cache(cache):
            part = path.with_suffix(".part")
            part.write_bytes(build_checkpoint(cache))
            part.rename(path)  # atomic: the others see all of it or nothing
    return path.read_bytes()


def format_directory(directory: Path, node: int, cluster: str, checkpoint: bytes) -> None:
    """Create and format the log directory of a node. A formatted one is left as it is."""
    if (directory / "meta.properties").exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _CHECKPOINT).write_bytes(checkpoint)
    meta = {
        "version": "1",
        "cluster.id": cluster,
        "node.id": str(node),
        "directory.id": generate_id(),
    }
    (directory / "meta.properties").write_text(format_properties(meta))


def load_cluster_id(root: Path) -> str:
    for meta in sorted(root.glob("node-*/meta.properties")):
        for line in meta.read_text().splitlines():
            if line.startswith("cluster.id="):
                return line.partition("=")[2]
    return generate_id()


def generate_id() -> str:
    """Return a base64url UUID; a leading dash would be an option of the storage tool."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def build_checkpoint(cache: Path, *options: str) -> bytes:
    """Let Kafka's storage tool format a directory with these options, and return its checkpoint."""
    classpath = build_classpath(java.load_kafka_jars().ensure_fetched(cache))
    with tempfile.TemporaryDirectory(prefix="gateway-kafka-") as name:
        config = Path(name) / "server.properties"
        logs = Path(name) / "logs"
        ports = {"PLAINTEXT": 1, "CONTROLLER": 2}  # only parsed, never bound
        config.write_text(
            format_properties(
                {"node.id": "1", "log.dirs": str(logs)}
                | build_listener_properties(ports, "1@127.0.0.1:2")
            )
        )
        completed = subprocess.run(
            [
                *(
                    java.find_java().path,
                    *java.JVM_FLAGS,
                    "-cp",
                    classpath,
                    "kafka.tools.StorageTool",
                ),
                *("format", "-t", generate_id(), "-c", str(config), *options),
            ],
            capture_output=True,
            text=True,
        )
        if completed.returncode:
            raise LocalBrokerError(
                f"Kafka's storage tool failed:\n{completed.stdout}{completed.stderr}"
            )
        return (logs / _CHECKPOINT).read_bytes()


_LINUX = sys.platform == "linux"
_LIBC = ctypes.CDLL(None) if _LINUX else None
_PR_SET_PDEATHSIG = 1

# The kernel sends the death signal when the *thread* that forked ends, so all brokers are forked
# by one thread that lives as long as the process.
_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kafka-spawner")


def _die_with_parent() -> None:
    """Have the kernel kill this process, a forked broker, when the thread that forked it ends."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ReservedPort:
    """A TCP port of 127.0.0.1 that no other process gets until it is released.

    `LocalKafka` creates one for each listener of each node. On Linux it stays bound, without
    listening, while a broker listens on it: both sockets set SO_REUSEADDR, and the system does not
    give the number to another process while the broker restarts. Elsewhere it is released at once.
    """

    def __init__(self, number: int = 0) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", number))
        except OSError as error:
            self._socket.close()
            raise LocalBrokerError(
                f"port {number} of 127.0.0.1 is taken ({error.strerror}); choose another, or none"
            ) from error
        self.number: int = self._socket.getsockname()[1]
        if not _LINUX:
            self.release()

    def release(self) -> None:
        self._socket.close()


class KafkaNode:
    """A node of a local cluster, owned by `LocalKafka`: both broker and controller."""

    def __init__(self, id: int, directory: Path, ports: Mapping[str, ReservedPort]) -> None:
        self.id = id
        self.directory = directory
        self.log = directory.with_suffix(".log")
        self._ports = ports
        self._command: Sequence[str] = ()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def ports(self) -> dict[str, int]:
        return {name: port.number for name, port in self._ports.items()}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._ports['PLAINTEXT'].number}"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None and self.is_running else 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def configure(self, command: Sequence[str], properties: Mapping[str, str]) -> None:
        file = self.directory.with_suffix(".properties")
        file.write_text(format_properties(properties))
        self._command = (*command, str(file))

    def start(self) -> None:
        if self.is_running:
            return
        with self.log.open("ab") as log:
            self._process = _SPAWNER.submit(self._spawn, log.fileno()).result()

    def _spawn(self, log: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=self.directory.parent,
            start_new_session=True,  # ^C in a terminal must not reach it: its owner ends it
            preexec_fn=_die_with_parent,
        )

    def terminate(self) -> None:
        self._send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process at once (SIGKILL), so that it hands nothing over.

        When it is started again, the controllers accept it after its old session has expired: after
        9 s, or 2 s with fast failover.
        """
        self._send_signal(signal.SIGKILL)
        self.wait()

    def wait(self, timeout: float = 10.0) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._send_signal(signal.SIGKILL)
            self._process.wait()

    def release_ports(self) -> None:
        for port in self._ports.values():
            port.release()

    def read_log_tail(self) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])
        except FileNotFoundError:
            return ""

    def fetch_broker_ids(self) -> set[int]:
        """Return the ids of the brokers that its metadata lists; none while it cannot answer."""
        try:
            return _fetch_broker_ids(self.ports["PLAINTEXT"])
        except (OSError, struct.error, ValueError, IndexError):  # or it ends meanwhile
            return set()

    def _send_signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.is_running:
            self._process.send_signal(number)


def _fetch_broker_ids(port: int) -> set[int]:
    """Ask for metadata over a plain socket, which also works without an event loop."""
    request, version, client_id = MetadataRequest(()), MetadataRequest.API.lowest, b"gateway"
    # API key, version, correlation id 0, and client id.
    head = struct.pack(">hhih", request.API.key, version, 0, len(client_id)) + client_id
    body = head + request.encode(version)
    with socket.create_connection(("127.0.0.1", port), timeout=2.0) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            response = stream.read(size)
    # It begins with the correlation id, of 4 bytes.
    return {broker.node for broker in request.decode(version, response, 4).brokers}
