"""The supervisor's side of the bus: forward the messages of workers, and answer calls.

Processes of one gateway exchange messages over a Unix socket, of which a `Link` is either end.
A message is a JSON array on a line of its own.

| a worker sends | the others get |
|---|---|
| `hello`, worker | |
| `say`, topic, data | `say`, worker, topic, data |
| `ask`, id, topic, data | `ask`, worker, id, topic, data; the sender gets `asked`, id, workers |
| `answer`, worker, id, [data] | that worker gets `answer`, worker, id, [data] |
| `call`, id, topic, data | the supervisor itself answers: `answer`, 0, id, [data] |

The last member of an answer is an empty list if the handler failed. All workers get `here`,
workers, whenever one connects or leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar, cast

import orjson

log = logging.getLogger(__name__)

MessageHandler = Callable[[list[Any]], None]

MAX_UNREAD_BYTES = 32 * 1024 * 1024  # lists of 10,000 clients have a few MB


@dataclass(eq=False)
class Link(asyncio.Protocol):
    """One end of a connection. `Bus` and `Relay` own the links.

    A peer that leaves too much unread is disconnected, so that nobody waits for it: it connects
    again, and both sides send again what the other must know.
    """

    on_message: MessageHandler
    on_lost: Callable[[], None]
    max_unread_bytes: int = MAX_UNREAD_BYTES
    _transport: asyncio.Transport | None = None
    _partial_line: bytearray = field(default_factory=bytearray)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, *message: Any) -> None:
        """Send a message without waiting; it is dropped if the connection is over."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(orjson.dumps(message, _encode_default, orjson.OPT_NON_STR_KEYS) + b"\n")
        if transport.get_write_buffer_size() > self.max_unread_bytes:
            log.warning("a process of this gateway does not read its messages; it is disconnected")
            transport.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        complete, newline, rest = data.rpartition(b"\n")
        if newline:
            lines = bytes(self._partial_line + complete).split(b"\n")
            self._partial_line.clear()
            for line in lines:
                self._handle_line(line)
        self._partial_line += rest
        if len(self._partial_line) > self.max_unread_bytes:
            self.abort()

    def _handle_line(self, line: bytes) -> None:
        try:
            message = orjson.loads(line)
        except ValueError:
            log.error("a process of this gateway sent invalid JSON: %.100r", line)
            self.abort()
            return
        if self.is_open:  # the handler of an earlier line may have closed the connection
            self.on_message(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.on_lost()


def _encode_default(value: object) -> list[Any]:
    """Encode named tuples and sets as arrays, which orjson does not."""
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    raise TypeError


SUPERVISOR_NUMBER = 0

CallHandler: TypeAlias = Callable[[int, Any], Any]


class Relay:
    """The server of the bus, which listens on a Unix socket between `start` and `close`.

    Owned by the supervisor. Between calls, `links` has one link per connected worker, and a link of
    which no `hello` came yet is in `_unidentified_links`.
    """

    def __init__(self, socket_path: Path, *, max_unread_bytes: int = MAX_UNREAD_BYTES) -> None:
        """Create the relay; a socket path has about 100 characters at most."""
        self._max_unread_bytes = max_unread_bytes
        self.join_callbacks: list[Callable[[int], None]] = []
        self.leave_callbacks: list[Callable[[int], None]] = []
        self._socket_path = socket_path
        self.links: dict[int, Link] = {}
        self._unidentified_links: set[Link] = set()
        self._handlers: dict[str, CallHandler] = {}
        self._server: asyncio.Server

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._create_link, self._socket_path)

    async def close(self) -> None:
        self._server.close()
        for link in [*self.links.values(), *self._unidentified_links]:
            link.abort()
        await self._server.wait_closed()

    def add_handler(self, topic: str, handler: CallHandler) -> None:
        """Set the handler of calls on a topic, which gets the worker and the data."""
        self._handlers[topic] = handler

    @property
    def workers(self) -> list[int]:
        return sorted(self.links)

    def _create_link(self) -> Link:
        link = Link(
            lambda message: self._on_hello(link, message),
            lambda: self._unidentified_links.discard(link),
            max_unread_bytes=self._max_unread_bytes,
        )
        self._unidentified_links.add(link)
        return link

    def _on_hello(self, link: Link, message: list[Any]) -> None:
        """Identify a connection by its first message, and drop an older one of that worker."""
        _, worker = message
        self._unidentified_links.discard(link)
        if worker in self.links:
            self._remove_worker(worker, self.links[worker])
        self.links[worker] = link
        link.on_message = partial(self._on_message, worker, link)
        link.on_lost = partial(self._remove_worker, worker, link)
        for callback in self.join_callbacks:
            callback(worker)
        self._announce_workers()

    def _remove_worker(self, worker: int, link: Link) -> None:
        """Forget a worker's connection, unless a newer one has replaced it."""
        # A link that was replaced is lost later, when the worker has another one.
        if self.links.get(worker) is not link:
            return
        del self.links[worker]
        link.abort()
        for callback in self.leave_callbacks:
            callback(worker)
        self._announce_workers()

    def _announce_workers(self) -> None:
        for link in list(self.links.values()):
            link.send("here", self.workers)

    def _on_message(self, worker: int, link: Link, message: list[Any]) -> None:
        kind, *rest = message
        match kind:
            case "say":
                self._send_to_others(worker, "say", worker, *rest)
            case "ask":
                recipients = [other for other in self.workers if other != worker]
                # Sent before any worker can answer, so that the sender knows whom to wait for.
                link.send("asked", rest[0], recipients)
                self._send_to_others(worker, "ask", worker, *rest)
            case "answer":
                recipient, *answer = rest
                if recipient in self.links:
                    self.links[recipient].send("answer", worker, *answer)
            case "call":
                number, topic, data = rest
                link.send(
                    "answer", SUPERVISOR_NUMBER, number, self._run_handler(topic, worker, data)
                )

    def _send_to_others(self, worker: int, *message: Any) -> None:
        for other, link in list(self.links.items()):
            if other != worker:
                link.send(*message)

    def _run_handler(self, topic: str, worker: int, data: Any) -> list[Any]:
        """Return the handler's result in a list, or an empty list if it failed."""
        try:
            return [self._handlers[topic](worker, data)]
        except Exception:  # a bad message of one worker must not end all of them
            log.exception("a call of worker %d for %s failed", worker, topic)
            return []


KeyT = TypeVar("KeyT")


class WorkerCounts(Generic[KeyT]):
    """What the workers of a host report to have, counted by key; it is lost when a worker leaves.

    Between calls, the count of a key is the sum of that key's counts of all workers, and no count
    of 0 is kept.
    """

    def __init__(self) -> None:
        self._by_worker: dict[int, Counter[KeyT]] = {}
        self._by_key: Counter[KeyT] = Counter()

    def count(self, key: KeyT) -> int:
        return self._by_key[key]

    def get_held(self, worker: int) -> Mapping[KeyT, int]:
        return self._by_worker.get(worker, {})

    def add(self, worker: int, counts: Mapping[KeyT, int]) -> None:
        """Count what exists, even if that exceeds a limit."""
        held = self._by_worker.setdefault(worker, Counter())
        for key, count in counts.items():
            held[key] += count
            self._by_key[key] += count

    def release(self, worker: int, counts: Mapping[KeyT, int]) -> None:
        """Count less for a worker, by key; at most as much as it has."""
        held = self._by_worker.get(worker, Counter())
        for key, count in counts.items():
            released = min(count, held[key])
            for counter in (held, self._by_key):
                counter[key] -= released
                if not counter[key]:
                    del counter[key]

    def remove_worker(self, worker: int) -> None:
        self.release(worker, dict(self.get_held(worker)))
        self._by_worker.pop(worker, None)
