"""Define the interface between works and servers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from support.waiting import wait_until

from ..feed import Feed, Wire
from ..kafka import Kafka
from ..machine import pin_command
from ..records import Text

ROOT = Path(__file__).parent.parent.parent
START_TIMEOUT_S = 60.0  # s
# Works that are about this gateway alone.
GATEWAY_WORKS = frozenset(
    {
        "partitions", "loop", "deflate", "telemetry", "crowd", "million", "overload",
        "sat-workers", "keys-workers",
    }
)  # fmt: skip
Coding = Literal["", "compressed", "dictionary"]
"""None, gzip or permessage-deflate, or zstd with a dictionary of the records."""
_LISTENING_PATTERN = re.compile(r"listening on (\d+)(?: and (\d+))?")


@dataclass(frozen=True)
class ServerShape:
    """How a work wants a server to be set up.

    joined: records of one `send` that are one batch.   keys: each client has its own.
    servers: where Kafka is for the server, if not directly.
    history: records that a client may be behind.        command: starts the gateway.
    text: what values hold.                              coding: that clients ask for.
    traced: records come with a traceparent.             telemetry: that section, of the gateway.
    workers: processes that share the port.          connections: that are admitted; 0 for all.
    """

    partitions: int = 12
    batch_records: int = 1
    has_own_keys: bool = False
    servers: str = ""
    history_records: int = 0
    command: tuple[str, ...] = ()
    text: Text = ""
    coding: Coding = ""
    is_traced: bool = False
    telemetry: Mapping[str, Any] = field(default_factory=dict, hash=False)
    workers: int = 1
    connections: int = 0


@dataclass
class RunningServer:
    """A server that runs. request: what the client of a number sends, with where it stood.

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


class Participant(Protocol):
    """What a bench measures."""

    @property
    def name(self) -> str:
        """What is measured and on which wire: `gateway-sse`."""

    @property
    def skipped_works(self) -> frozenset[str]:
        """Works that it has nothing for."""

    def describe_missing(self) -> str:
        """What has to be installed before it runs here; empty if nothing."""


class Peer(Participant, Protocol):
    """A server of streams."""

    @property
    def wire(self) -> Wire: ...

    @property
    def greeting(self) -> bytes:
        """What ends the opening of a stream, after the head."""

    @property
    def max_clients(self) -> int:
        """Clients that it can be asked to take."""

    def serve(
        self, kafka: Kafka, shape: ServerShape
    ) -> AbstractAsyncContextManager[RunningServer]: ...


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
async def running_process(
    *command: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[int, tuple[int, ...]]]:
    """A server that says `listening on PORT [and PORT]`, on its core: its pid and the ports."""
    with tempfile.TemporaryFile("a+b") as log:
        told = {**os.environ, **(environment or {})}
        running = start_process(
            *pin_command(*command), stdout=log, stderr=subprocess.STDOUT, env=told
        )

        def read_log() -> str:
            log.seek(0)
            return log.read().decode(errors="replace")

        def find_ports() -> re.Match[str] | None:
            found = _LISTENING_PATTERN.search(read_log())
            assert running.poll() is None, f"{command} ended:\n{read_log()}"
            return found

        try:
            await wait_until(
                find_ports, lambda: f"{command} listening:\n{read_log()}", START_TIMEOUT_S
            )
            found = find_ports()
            assert found is not None
            yield running.pid, tuple(int(port) for port in found.groups() if port)
        finally:
            await end_process(running)


@asynccontextmanager
async def running_program(port: int, *command: str) -> AsyncIterator[int]:
    """A server that was told its port, on its core; its pid."""
    running = start_process(*pin_command(*command))

    def is_listening() -> bool:
        assert running.poll() is None, f"{command} ended with {running.returncode}"
        with socket.socket() as trying:
            return trying.connect_ex(("127.0.0.1", port)) == 0

    try:
        await wait_until(is_listening, f"{command} listening", START_TIMEOUT_S)
        yield running.pid
    finally:
        await end_process(running)


def start_process(*command: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=ROOT, **options)


async def end_process(running: subprocess.Popen[bytes], timeout_s: float = 3.0) -> None:
    """By SIGTERM; one that has a backlog to write is not waited for."""
    if running.poll() is None:
        running.send_signal(signal.SIGTERM)
        try:
            await wait_until(lambda: running.poll() is not None, "the end", timeout_s)
        except TimeoutError:
            running.kill()
    await asyncio.to_thread(running.wait)
