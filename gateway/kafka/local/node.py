"""Run one broker process.

The broker ends with the process that started it: by atexit, and on Linux also by PR_SET_PDEATHSIG,
so that even a killed test run leaves no JVM behind. Its ports stay the same when it is restarted.
"""

from __future__ import annotations

import ctypes
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gateway.errors import LocalBrokerError

from .properties import format_properties

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
        self.is_frozen = False
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
        self.unfreeze()  # a frozen process does not act on SIGTERM
        self._send_signal(signal.SIGTERM)

    def stop(self, timeout: float = 20.0) -> None:
        """Shut the node down. The last one of three has no quorum: it is killed after `timeout`."""
        self.terminate()
        self.wait(timeout)

    def kill(self) -> None:
        """Kill the process at once (SIGKILL), so that it hands nothing over.

        When it is started again, the controllers accept it after its old session has expired: after
        9 s, or 2 s with fast failover.
        """
        self._send_signal(signal.SIGKILL)
        self.wait()

    def freeze(self) -> None:
        """Stop the process (SIGSTOP), so that its connections stay open and silent."""
        self.is_frozen = True
        self._send_signal(signal.SIGSTOP)

    def unfreeze(self) -> None:
        if self.is_frozen:
            self.is_frozen = False
            self._send_signal(signal.SIGCONT)

    def wait(self, timeout: float = 10.0) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._send_signal(signal.SIGKILL)
            self._process.wait()
        self.is_frozen = False

    def release_ports(self) -> None:
        for port in self._ports.values():
            port.release()

    def read_log_tail(self, lines: int = 25) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""

    def fetch_broker_ids(self, timeout: float = 2.0) -> set[int]:
        """Return the ids of the brokers that its metadata lists; none while it cannot answer."""
        try:
            return _fetch_broker_ids(self.ports["PLAINTEXT"], timeout)
        except (OSError, struct.error, EOFError):
            return set()

    def _send_signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.is_running:
            self._process.send_signal(number)


def _fetch_broker_ids(port: int, timeout: float) -> set[int]:
    """Send Metadata version 1 over a plain socket, which also works without an event loop."""
    client_id = b"gateway"
    # API key 3, version 1, correlation id 0, client id, and no topics (null would mean all).
    body = struct.pack(">hhih", 3, 1, 0, len(client_id)) + client_id + struct.pack(">i", 0)
    with socket.create_connection(("127.0.0.1", port), timeout) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", _require_size(stream.read(4), 4))
            response = _require_size(stream.read(size), size)
    # After the correlation id (4 bytes), an array of brokers: node, host, port, rack.
    (count,) = struct.unpack_from(">i", response, 4)
    pos, brokers = 8, set()
    for _ in range(count):
        node, host_size = struct.unpack_from(">ih", response, pos)
        pos += 6 + host_size + 4
        (rack_size,) = struct.unpack_from(">h", response, pos)
        pos += 2 + max(rack_size, 0)  # -1: no rack
        brokers.add(node)
    return brokers


def _require_size(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise EOFError("the broker closed the connection")
    return data
