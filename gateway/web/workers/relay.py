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

SUPERVISOR = 0

Answer: TypeAlias = Callable[[int, Any], Any]


class Relay:
    """Listens on a Unix socket between `start` and `close`.

    joined, left: called with the number of a worker that came or went.
    """

    def __init__(self, path: Path) -> None:
        self.joined: list[Callable[[int], None]] = []
        self.left: list[Callable[[int], None]] = []
        self._path = path
        self._links: dict[int, Link] = {}
        self._strangers: set[Link] = set()
        self._answers: dict[str, Answer] = {}
        self._server: asyncio.Server

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._connected, self._path)

    async def close(self) -> None:
        self._server.close()
        for link in [*self._links.values(), *self._strangers]:
            link.cut()
        await self._server.wait_closed()

    def on(self, topic: str, answer: Answer) -> None:
        """What the supervisor itself answers to a call: answer(worker, data)."""
        self._answers[topic] = answer

    @property
    def workers(self) -> list[int]:
        return sorted(self._links)

    def _connected(self) -> Link:
        link = Link(lambda message: self._greeted(link, message), lambda: self._parted(link))
        self._strangers.add(link)
        return link

    def _parted(self, link: Link) -> None:
        self._strangers.discard(link)

    def _greeted(self, link: Link, message: list[Any]) -> None:
        """The first message of a connection; one that the same worker had before is over."""
        _, worker = message
        self._strangers.discard(link)
        if worker in self._links:
            self._forget(worker, self._links[worker])
        self._links[worker] = link
        link.hear = partial(self._heard, worker, link)
        link.lost = partial(self._forget, worker, link)
        for joined in self.joined:
            joined(worker)
        self._tell_who_is_here()

    def _forget(self, worker: int, link: Link) -> None:
        if self._links.get(worker) is not link:
            return
        del self._links[worker]
        link.cut()
        for left in self.left:
            left(worker)
        self._tell_who_is_here()

    def _tell_who_is_here(self) -> None:
        for link in list(self._links.values()):
            link.send("here", self.workers)

    def _heard(self, worker: int, link: Link, message: list[Any]) -> None:
        kind, *rest = message
        match kind:
            case "say":
                self._spread(worker, "say", worker, *rest)
            case "ask":
                asked = [other for other in self.workers if other != worker]
                link.send("asked", rest[0], asked)
                self._spread(worker, "ask", worker, *rest)
            case "answer":
                to, *answer = rest
                if to in self._links:
                    self._links[to].send("answer", worker, *answer)
            case "call":
                number, topic, data = rest
                link.send("answer", SUPERVISOR, number, self._answer(topic, worker, data))

    def _spread(self, worker: int, *message: Any) -> None:
        for other, link in list(self._links.items()):
            if other != worker:
                link.send(*message)

    def _answer(self, topic: str, worker: int, data: Any) -> list[Any]:
        try:
            return [self._answers[topic](worker, data)]
        except Exception:  # a worker's mistake must not end all of them
            log.exception("a call of worker %d for %s failed", worker, topic)
            return []
