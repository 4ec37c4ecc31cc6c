"""What the client of one socket says, done in its order, and answered.

It is called when the client says something. A task runs only while something has to wait: for
access, for Kafka's answer, for a record to be written; what the client says while that lasts is
done behind it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias

from starlette.exceptions import HTTPException

from gateway.errors import GatewayError
from gateway.hub.fanout.received_bytes import received_bytes
from gateway.hub.wires.websocket import WebSocket
from gateway.web.http import problems

from . import messages
from .messages import BadMessage, Said, Token
from .socket import Socket

log = logging.getLogger(__name__)

BAD_IN_A_ROW = 16  # messages after which a client is taken to be none of ours
MOST_WAITING = 64  # messages, before no more are heard
MAX_HELD_BYTES = 256 * 1024  # bytes of messages, likewise; the last one may go beyond by its size
MOST_OWED = 64 * 1024  # bytes of answers that the client does not take, likewise

TURN_SECONDS = 0.002  # of what waited, before others have their turn

# Of a close: RFC 6455 7.4.1, and IANA's registry.
NORMAL, UNSUPPORTED, POLICY, FAILED, RESTART, TRY_AGAIN = 1000, 1003, 1008, 1011, 1012, 1013

Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]  # not begun: it may be cut before


class Conversation:
    """See the module; a `Listener`. What is said, and what is to be done then, is for those who
    derive from it to know, in `take`."""

    __slots__ = ("_bad", "_held", "_lost", "_owed", "_size", "_tasks", "_waiting", "socket")

    # `_waiting`: what the client said since something has to wait; None while nothing has.
    # `_held`:    bytes of that, and of what is under way.
    # `_size`:    bytes of the message that is heard.
    # `_owed`:    bytes of answers since the socket is full.

    def __init__(self) -> None:
        self.socket: Socket
        self._tasks: set[asyncio.Task[None]] | None = None
        self._waiting: deque[str | bytes] | None = None
        self._bad = self._owed = self._held = self._size = 0
        self._lost = False

    def take(self, said: Said) -> Work | None:
        """Do it, or say how it is done if that takes time. Raises RequestError for what cannot be
        done, and HTTPException 404."""
        raise NotImplementedError

    # the listener

    @property
    def busy(self) -> bool:
        if self._owed >= MOST_OWED or self._held >= MAX_HELD_BYTES:
            return True
        return self._waiting is not None and len(self._waiting) >= MOST_WAITING

    def heard(self, message: str | bytes) -> None:
        if self._waiting is not None:
            self._waiting.append(message)
            self._hold(sys.getsizeof(message))
            return
        work = self._hear(message)
        if work is not None:
            self._waiting = deque()
            self.do(self._hear_on(work))

    def drained(self) -> None:
        self._owed = 0
        self.socket.go_on()

    def lost(self, code: int, reason: str) -> None:
        self.release(self._held)
        self._lost = True
        for task in self._tasks or ():
            task.cancel()

    async def _hear_on(self, work: Work | None) -> None:
        """Do this, and what was said meanwhile, in turns with others."""
        assert self._waiting is not None
        began = time.perf_counter()
        try:
            while work is not None or self._waiting:
                if work is not None:
                    await work()
                elif self._lost:
                    return
                if time.perf_counter() - began > TURN_SECONDS:
                    await asyncio.sleep(0)
                    began = time.perf_counter()
                work = self._hear_next() if self._waiting else None
        finally:
            self._waiting = None
        self.socket.go_on()

    def _hear_next(self) -> Work | None:
        """As `_hear`, of the message that has waited longest."""
        assert self._waiting is not None
        message = self._waiting.popleft()
        self.release(sys.getsizeof(message))
        return self._hear(message)

    def _hear(self, heard: str | bytes) -> Work | None:
        """Do it, or say how it is done if that takes time."""
        self._size = sys.getsizeof(heard)
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

    def hold(self) -> int:
        """Count the message that is heard as held until it is `release`d. Returns its bytes."""
        self._hold(self._size)
        return self._size

    def _hold(self, size: int) -> None:
        if not self._lost:
            self._held += size
            received_bytes.total += size

    def release(self, size: int) -> None:
        """Hold so many bytes less. What a lost client had is released already."""
        if self._lost:
            return
        full = self._held >= MAX_HELD_BYTES
        self._held -= size
        received_bytes.total -= size
        if full and not self.busy:
            self.socket.go_on()

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
        if label is not None:
            data = {"id": label, **data}
        told = WebSocket(deflate=self.socket.deflate).message(kind, data)
        self.socket.write(told)
        if self.socket.full:
            self._owed += len(told)

    def error(self, label: str | None, exc: Exception) -> None:
        told = problems.members(exc)
        wait: float | None = getattr(exc, "retry_after", None)
        if wait is not None:
            told["retryAfter"] = math.ceil(wait)
        self.answer("error", label, code=problems.code(exc), **told)


def _about(said: Said) -> str | None:
    return None if isinstance(said, Token) else said.id
