"""What the client of one socket says, done in its order, and answered.

It is called when the client says something. A task runs only while something has to wait: for
access, for Kafka's answer, for a record to be written; what the client says while that lasts is
done behind it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias

from starlette.exceptions import HTTPException

from ..errors import GatewayError
from ..hub.messages import WebSocket
from . import messages, problems
from .messages import BadMessage, Said, Token
from .socket import Socket

log = logging.getLogger(__name__)

BAD_IN_A_ROW = 16  # messages after which a client is taken to be none of ours
MOST_WAITING = 64  # messages, before no more are heard
MOST_OWED = 64 * 1024  # bytes of answers that the client does not take, likewise

# Of a close: RFC 6455 7.4.1, and IANA's registry.
NORMAL, UNSUPPORTED, POLICY, FAILED, RESTART, TRY_AGAIN = 1000, 1003, 1008, 1011, 1012, 1013

Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]  # not begun: it may be cut before


class Conversation:
    """See the module; a `Listener`. What is said, and what is to be done then, is for those who
    derive from it to know, in `take`."""

    __slots__ = ("_bad", "_lost", "_owed", "_tasks", "_waiting", "socket")

    # `_waiting`: what the client said since something has to wait; None while nothing has.
    # `_owed`:    bytes of answers since the socket is full.

    def __init__(self) -> None:
        self.socket: Socket
        self._tasks: set[asyncio.Task[None]] | None = None
        self._waiting: deque[str | bytes] | None = None
        self._bad = self._owed = 0
        self._lost = False

    def take(self, said: Said) -> Work | None:
        """Do it, or say how it is done if that takes time. Raises RequestError for what cannot be
        done, and HTTPException 404."""
        raise NotImplementedError

    # the listener

    @property
    def busy(self) -> bool:
        if self._owed >= MOST_OWED:
            return True
        return self._waiting is not None and len(self._waiting) >= MOST_WAITING

    def heard(self, message: str | bytes) -> None:
        if self._waiting is not None:
            self._waiting.append(message)
            return
        work = self._hear(message)
        if work is not None:
            self._waiting = deque()
            self.do(self._hear_on(work))

    def drained(self) -> None:
        self._owed = 0
        self.socket.go_on()

    def lost(self, code: int, reason: str) -> None:
        self._lost = True
        for task in self._tasks or ():
            task.cancel()

    async def _hear_on(self, work: Work | None) -> None:
        """Do this, and what was said meanwhile."""
        assert self._waiting is not None
        try:
            while work is not None or self._waiting:
                if work is not None:
                    await work()
                elif self._lost:
                    return
                work = self._hear(self._waiting.popleft()) if self._waiting else None
        finally:
            self._waiting = None
        self.socket.go_on()

    def _hear(self, heard: str | bytes) -> Work | None:
        """Do it, or say how it is done if that takes time."""
        if isinstance(heard, bytes):
            self.socket.close(UNSUPPORTED, "send text: JSON")
            return None
        try:
            said = messages.read(heard)
        except BadMessage as exc:
            self.error(exc.about, exc)
            self._bad += 1
            if self._bad >= BAD_IN_A_ROW:
                self.socket.close(POLICY, f"{self._bad} bad messages in a row")
            return None
        self._bad = 0  # what can be read and not be done, such as one more grant, may come often
        try:
            work = self.take(said)
        except (GatewayError, HTTPException) as exc:
            self.error(_about(said), exc)
            return None
        return None if work is None else partial(self._tried, work, said)

    async def _tried(self, work: Work, said: Said) -> None:
        try:
            await work()
        except (GatewayError, HTTPException) as exc:
            self.error(_about(said), exc)

    # what waits

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        if self._tasks is None:  # an empty set for each socket would be 216 bytes
            self._tasks = set()
        self._tasks.add(task)
        task.add_done_callback(self._did)

    def _did(self, task: asyncio.Task[None]) -> None:
        if self._tasks is not None:
            self._tasks.discard(task)
            self._tasks = self._tasks or None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a WebSocket session failed", exc_info=error)
            self.socket.close(FAILED, "the gateway failed; its log says why")

    # answers

    def answer(self, kind: str, label: str | None = None, **data: Any) -> None:
        told = WebSocket(label, self.socket.deflate).message(kind, data)
        self.socket.write(told)
        if self.socket.full:
            self._owed += len(told)

    def error(self, label: str | None, exc: Exception) -> None:
        self.answer("error", label, code=problems.code(exc), **problems.members(exc))


def _about(said: Said) -> str | None:
    return None if isinstance(said, Token) else said.id
