"""The supervisor's side of the bus: what a worker says goes to the others.

| a worker says | the others hear |
|---|---|
| `hello`, worker | |
| `say`, topic, data | `say`, worker, topic, data |
| `ask`, id, topic, data | `ask`, worker, id, topic, data; the asker hears `asked`, id, workers |
| `answer`, worker, id, [data] | that one hears `answer`, worker, id, [data] |
| `call`, id, topic, data | the supervisor itself answers: `answer`, 0, id, [data] |

An answer is empty where it failed. All hear `here`, workers, whenever one came or went.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from .link import Link

log = logging.getLogger(__name__)

SUPERVISOR_NUMBER = 0

CallHandler: TypeAlias = Callable[[int, Any], Any]


class Relay:
    """Listens on a Unix socket between `start` and `close`.

    joined, left: called with the number of a worker that came or went.
    """

    def __init__(self, socket_path: Path) -> None:
        self.join_callbacks: list[Callable[[int], None]] = []
        self.leave_callbacks: list[Callable[[int], None]] = []
        self._socket_path = socket_path
        self._links: dict[int, Link] = {}
        self._unidentified_links: set[Link] = set()
        self._handlers: dict[str, CallHandler] = {}
        self._server: asyncio.Server

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._create_link, self._socket_path)

    async def close(self) -> None:
        self._server.close()
        for link in [*self._links.values(), *self._unidentified_links]:
            link.abort()
        await self._server.wait_closed()

    def add_handler(self, topic: str, handler: CallHandler) -> None:
        """What the supervisor itself answers to a call: answer(worker, data)."""
        self._handlers[topic] = handler

    @property
    def workers(self) -> list[int]:
        return sorted(self._links)

    def _create_link(self) -> Link:
        link = Link(
            lambda message: self._on_hello(link, message), lambda: self._on_unidentified_lost(link)
        )
        self._unidentified_links.add(link)
        return link

    def _on_unidentified_lost(self, link: Link) -> None:
        self._unidentified_links.discard(link)

    def _on_hello(self, link: Link, message: list[Any]) -> None:
        """The first message of a connection; one that the same worker had before is over."""
        _, worker = message
        self._unidentified_links.discard(link)
        if worker in self._links:
            self._remove_worker(worker, self._links[worker])
        self._links[worker] = link
        link.on_message = partial(self._on_message, worker, link)
        link.on_lost = partial(self._remove_worker, worker, link)
        for joined in self.join_callbacks:
            joined(worker)
        self._announce_workers()

    def _remove_worker(self, worker: int, link: Link) -> None:
        if self._links.get(worker) is not link:
            return
        del self._links[worker]
        link.abort()
        for left in self.leave_callbacks:
            left(worker)
        self._announce_workers()

    def _announce_workers(self) -> None:
        for link in list(self._links.values()):
            link.send("here", self.workers)

    def _on_message(self, worker: int, link: Link, message: list[Any]) -> None:
        kind, *rest = message
        match kind:
            case "say":
                self._send_to_others(worker, "say", worker, *rest)
            case "ask":
                asked = [other for other in self.workers if other != worker]
                link.send("asked", rest[0], asked)
                self._send_to_others(worker, "ask", worker, *rest)
            case "answer":
                to, *answer = rest
                if to in self._links:
                    self._links[to].send("answer", worker, *answer)
            case "call":
                number, topic, data = rest
                link.send(
                    "answer", SUPERVISOR_NUMBER, number, self._run_handler(topic, worker, data)
                )

    def _send_to_others(self, worker: int, *message: Any) -> None:
        for other, link in list(self._links.items()):
            if other != worker:
                link.send(*message)

    def _run_handler(self, topic: str, worker: int, data: Any) -> list[Any]:
        try:
            return [self._handlers[topic](worker, data)]
        except Exception:  # a worker's mistake must not end all of them
            log.exception("a call of worker %d for %s failed", worker, topic)
            return []
