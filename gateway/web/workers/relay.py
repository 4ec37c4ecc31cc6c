"""The supervisor's side of the bus: forward the messages of workers, and answer calls.

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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from .link import MAX_UNREAD_BYTES, Link

log = logging.getLogger(__name__)

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
            lambda: self._on_unidentified_lost(link),
            max_unread_bytes=self._max_unread_bytes,
        )
        self._unidentified_links.add(link)
        return link

    def _on_unidentified_lost(self, link: Link) -> None:
        self._unidentified_links.discard(link)

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
