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
from gateway.hub.wires.websocket import WebSocketWire
from gateway.web.http import problems

from . import messages
from .messages import BadMessageError, ClientMessage, TokenMessage
from .socket import Socket

log = logging.getLogger(__name__)

MAX_BAD_MESSAGES = 16  # messages after which a client is taken to be none of ours
MAX_QUEUED_MESSAGES = 64  # messages, before no more are heard
MAX_HELD_BYTES = 256 * 1024  # bytes of messages, likewise; the last one may go beyond by its size
MAX_UNSENT_BYTES = 64 * 1024  # bytes of answers that the client does not take, likewise

MAX_TURN_S = 0.002  # of what waited, before others have their turn

# Of a close: RFC 6455 7.4.1, and IANA's registry.
(
    NORMAL_CLOSURE,
    UNSUPPORTED_DATA,
    POLICY_VIOLATION,
    INTERNAL_ERROR,
    SERVICE_RESTART,
    TRY_AGAIN_LATER,
) = 1000, 1003, 1008, 1011, 1012, 1013

CoroutineFactory: TypeAlias = Callable[
    [], Coroutine[Any, Any, None]
]  # not begun: it may be cut before


class MessageProcessor:
    """See the module; a `Listener`. What is said, and what is to be done then, is for those who
    derive from it to know, in `take`."""

    __slots__ = (
        "_bad_count",
        "_held_bytes",
        "_is_closed",
        "_message_bytes",
        "_queue",
        "_tasks",
        "_unsent_bytes",
        "socket",
    )

    # `_waiting`: what the client said since something has to wait; None while nothing has.
    # `_held`:    bytes of that, and of what is under way.
    # `_size`:    bytes of the message that is heard.
    # `_owed`:    bytes of answers since the socket is full.

    def __init__(self) -> None:
        self.socket: Socket
        self._tasks: set[asyncio.Task[None]] | None = None
        self._queue: deque[str | bytes] | None = None
        self._bad_count = self._unsent_bytes = self._held_bytes = self._message_bytes = 0
        self._is_closed = False

    def handle_message(self, message: ClientMessage) -> CoroutineFactory | None:
        """Do it, or say how it is done if that takes time. Raises RequestError for what cannot be
        done, and HTTPException 404."""
        raise NotImplementedError

    # the listener

    @property
    def is_busy(self) -> bool:
        if self._unsent_bytes >= MAX_UNSENT_BYTES or self._held_bytes >= MAX_HELD_BYTES:
            return True
        return self._queue is not None and len(self._queue) >= MAX_QUEUED_MESSAGES

    def on_message(self, message: str | bytes) -> None:
        if self._queue is not None:
            self._queue.append(message)
            self._add_held(sys.getsizeof(message))
            return
        work = self._process_message(message)
        if work is not None:
            self._queue = deque()
            self.start_task(self._process_queue(work))

    def on_drained(self) -> None:
        self._unsent_bytes = 0
        self.socket.resume_reading()

    def on_closed(self, code: int, reason: str) -> None:
        self.release_held(self._held_bytes)
        self._is_closed = True
        for task in self._tasks or ():
            task.cancel()

    async def _process_queue(self, work: CoroutineFactory | None) -> None:
        """Do this, and what was said meanwhile, in turns with others."""
        assert self._queue is not None
        began = time.perf_counter()
        try:
            while work is not None or self._queue:
                if work is not None:
                    await work()
                elif self._is_closed:
                    return
                if time.perf_counter() - began > MAX_TURN_S:
                    await asyncio.sleep(0)
                    began = time.perf_counter()
                work = self._process_next() if self._queue else None
        finally:
            self._queue = None
        self.socket.resume_reading()

    def _process_next(self) -> CoroutineFactory | None:
        """As `_hear`, of the message that has waited longest."""
        assert self._queue is not None
        message = self._queue.popleft()
        self.release_held(sys.getsizeof(message))
        return self._process_message(message)

    def _process_message(self, data: str | bytes) -> CoroutineFactory | None:
        """Do it, or say how it is done if that takes time."""
        self._message_bytes = sys.getsizeof(data)
        if isinstance(data, bytes):
            self.socket.close(UNSUPPORTED_DATA, "send text: JSON")
            return None
        try:
            said = messages.parse_message(data)
        except BadMessageError as exc:
            self.send_error(exc.message_id, exc)
            self._bad_count += 1
            if self._bad_count >= MAX_BAD_MESSAGES:
                self.socket.close(POLICY_VIOLATION, f"{self._bad_count} bad messages in a row")
            return None
        self._bad_count = (
            0  # what can be read and not be done, such as one more grant, may come often
        )
        try:
            work = self.handle_message(said)
        except (GatewayError, HTTPException) as exc:
            self.send_error(_get_message_id(said), exc)
            return None
        return None if work is None else partial(self._run_work, work, said)

    async def _run_work(self, work: CoroutineFactory, message: ClientMessage) -> None:
        try:
            await work()
        except (GatewayError, HTTPException) as exc:
            self.send_error(_get_message_id(message), exc)

    # what waits

    def hold_message(self) -> int:
        """Count the message that is heard as held until it is `release`d. Returns its bytes."""
        self._add_held(self._message_bytes)
        return self._message_bytes

    def _add_held(self, size: int) -> None:
        if not self._is_closed:
            self._held_bytes += size
            received_bytes.total += size

    def release_held(self, size: int) -> None:
        """Hold so many bytes less. What a lost client had is released already."""
        if self._is_closed:
            return
        full = self._held_bytes >= MAX_HELD_BYTES
        self._held_bytes -= size
        received_bytes.total -= size
        if full and not self.is_busy:
            self.socket.resume_reading()

    def start_task(self, coro: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coro)
        if self._tasks is None:  # an empty set for each socket would be 216 bytes
            self._tasks = set()
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if self._tasks is not None:
            self._tasks.discard(task)
            self._tasks = self._tasks or None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a WebSocket session failed", exc_info=error)
            self.socket.close(INTERNAL_ERROR, "the gateway failed; its log says why")

    # answers

    def send_message(self, message_type: str, label: str | None = None, **data: Any) -> None:
        if label is not None:
            data = {"id": label, **data}
        told = WebSocketWire(deflate=self.socket.deflate).build_message(message_type, data)
        self.socket.write(told)
        if self.socket.full:
            self._unsent_bytes += len(told)

    def send_error(self, label: str | None, exc: Exception) -> None:
        told = problems.build_members(exc)
        wait: float | None = getattr(exc, "retry_after", None)
        if wait is not None:
            told["retryAfter"] = math.ceil(wait)
        self.send_message("error", label, code=problems.get_code(exc), **told)


def _get_message_id(message: ClientMessage) -> str | None:
    return None if isinstance(message, TokenMessage) else message.id
