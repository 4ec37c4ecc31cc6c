"""Define what works ask of servers, and start their processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

from support.waiting import wait_until

from ..feed import Feed, KafkaFeed, Wire
from ..kafka import Kafka
from ..machine import pin_command

ROOT = Path(__file__).parent.parent.parent
START_TIMEOUT_S = 60.0  # s
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
Coding = Literal["", "compressed", "dictionary"]
"""None, gzip or permessage-deflate, or zstd with a dictionary of the records."""
_LISTENING_PATTERN = re.compile(r"listening on (\d+)(?: and (\d+))?")


@dataclass(frozen=True)
class ServerShape:
    """How a work wants a server to be set up.

    batch_records: of one `send` that are one batch. has_own_keys: each client has its own.
    servers: where Kafka is for the server, if not directly.
    history_records: that a client may be behind.    command: starts the gateway.
    has_orders: as values.                           coding: that clients ask for.
    workers: processes that share the port.          connections: that are admitted; 0 for all.
    """

    partitions: int = 12
    batch_records: int = 1
    has_own_keys: bool = False
    servers: str = ""
    history_records: int = 0
    command: tuple[str, ...] = ()
    has_orders: bool = False
    coding: Coding = ""
    workers: int = 1
    connections: int = 0


@dataclass
class RunningServer:
    """A server that runs. build_request: what the client of a number sends, with where it stood.

    restart: end it and start it again on its port.   stop: end it as it likes.
    load_dictionary: of the records that there are; clients name it from then on.
    dictionary: its content.
    """

    pid: int
    port: int
    feed: Feed
    build_request: Callable[[int, bytes], bytes]
    restart: Callable[[], Awaitable[None]] | None = None
    stop: Callable[[], Awaitable[object]] | None = None
    load_dictionary: Callable[[], Awaitable[None]] | None = None
    dictionary: bytes = b""


@dataclass(frozen=True)
class Participant:
    """What a bench measures."""

    kind: ClassVar[str]

    @property
    def name(self) -> str:
        """What is measured and on which wire: `gateway-sse`."""
        return self.kind

    def skips(self, work: str) -> bool:
        """Whether it has nothing for a work."""
        return False

    def describe_missing(self) -> str:
        """What has to be installed before it runs here; empty if nothing."""
        return ""


@dataclass(frozen=True)
class SparkPeer(Participant):
    """The jobs of `gateway pipeline`."""

    kind = "spark"

    def describe_missing(self) -> str:
        return "" if find_spec("pyspark") else "the extra `pipeline`, and Java 17"


@dataclass(frozen=True)
class Peer(Participant, ABC):
    """A server of streams. greeting: what ends the opening of a stream, after the head.
    max_clients: that it can be asked to take."""

    wire: Wire
    greeting: ClassVar[bytes] = b""
    max_clients: ClassVar[int] = 10_000
    skipped_works: ClassVar[frozenset[str]] = frozenset()

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.wire}"

    def skips(self, work: str) -> bool:
        return work in self.skipped_works

    @abstractmethod
    def serve(self, kafka: Kafka, shape: ServerShape) -> AbstractAsyncContextManager[RunningServer]:
        """Serve a topic of its own until the block ends."""


class KafkaPeer(Peer):
    """A server that gets its records from Kafka."""

    feed_options: ClassVar[Mapping[str, Any]] = {}

    @asynccontextmanager
    async def serve(self, kafka: Kafka, shape: ServerShape) -> AsyncIterator[RunningServer]:
        topic = kafka.create_unique_topic(shape.partitions)
        servers, count = kafka.bootstrap_servers, shape.batch_records
        async with self._run(kafka, topic, shape) as (pid, port):
            feed = KafkaFeed(servers, topic, shape.partitions, count, **self.feed_options)

            def build(n: int, token: bytes) -> bytes:
                return self._build_request(str(n) if shape.has_own_keys else "all", token)

            try:
                yield RunningServer(pid, port, feed, build)
            finally:
                feed.close()

    @abstractmethod
    def _run(
        self, kafka: Kafka, topic: str, shape: ServerShape
    ) -> AbstractAsyncContextManager[tuple[int, int]]:
        """Run the server; its pid and its port."""

    @abstractmethod
    def _build_request(self, channel: str, token: bytes) -> bytes:
        """channel: `all`, or the number of a client with its own key."""


def build_request(wire: Wire, path: str, token: bytes = b"") -> bytes:
    return build_sse_request(path, token) if wire is Wire.SSE else build_ws_request(path)


def build_sse_request(path: str, token: bytes = b"", *headers: str) -> bytes:
    last = b"Last-Event-ID: %b\r\n" % token if token else b""
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n".encode()
    head += "".join(f"{header}\r\n" for header in headers).encode()
    return head + last + b"\r\n"


def build_ws_request(path: str, *headers: str) -> bytes:
    more = "".join(f"{header}\r\n" for header in headers)
    return (
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n"
    ).encode()


@asynccontextmanager
async def running_process(*command: str) -> AsyncIterator[tuple[int, tuple[int, ...]]]:
    """A server that says `listening on PORT [and PORT]`, on its core: its pid and the ports."""
    with tempfile.TemporaryFile("a+b") as log:
        async with started_process(
            *pin_command(*command), stdout=log, stderr=subprocess.STDOUT
        ) as running:

            def read_log() -> str:
                log.seek(0)
                return log.read().decode(errors="replace")

            def find_ports() -> re.Match[str] | None:
                found = _LISTENING_PATTERN.search(read_log())
                assert running.poll() is None, f"{command} ended:\n{read_log()}"
                return found

            await wait_until(
                find_ports, lambda: f"{command} listening:\n{read_log()}", START_TIMEOUT_S
            )
            found = find_ports()
            assert found is not None
            yield running.pid, tuple(int(port) for port in found.groups() if port)


@asynccontextmanager
async def running_program(port: int, *command: str) -> AsyncIterator[int]:
    """A server that was told its port, on its core; its pid."""
    async with started_process(*pin_command(*command)) as running:

        def is_listening() -> bool:
            assert running.poll() is None, f"{command} ended with {running.returncode}"
            with socket.socket() as trying:
                return trying.connect_ex(("127.0.0.1", port)) == 0

        await wait_until(is_listening, f"{command} listening", START_TIMEOUT_S)
        yield running.pid


@asynccontextmanager
async def started_process(
    *command: str, timeout_s: float = 3.0, **options: Any
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Ended by SIGTERM; one that has a backlog to write is not waited for."""
    running = _start_process(*command, **options)
    try:
        yield running
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGTERM)
            try:
                await wait_until(lambda: running.poll() is not None, "the end", timeout_s)
            except TimeoutError:
                running.kill()
        await asyncio.to_thread(running.wait)


def _start_process(*command: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=ROOT, env=ENVIRONMENT, **options)
