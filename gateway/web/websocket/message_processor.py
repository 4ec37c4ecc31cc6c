"""Process the messages of one socket in their order, and reply to them.

Most messages are processed within the call that delivers them. A task runs only while a message has
to wait: for a guard, for Kafka, for a record to be written, or for the thread that parses large
ones. The messages that arrive while that lasts are queued behind it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from starlette.exceptions import HTTPException

from gateway.client_memory import ClientMemory, HeldPart
from gateway.errors import GatewayError, RequestError
from gateway.hub.wires.websocket import WebSocketWire
from gateway.hub.writes.writer import RecordWriter
from gateway.web.exchange.produce import check_current, parse_produce_message
from gateway.web.http import problems
from gateway.web.http.limits import Attempts, ConnectionSlot
from gateway.web.routing import messages
from gateway.web.routing.messages import (
    BadMessageError,
    ClientMessage,
    ProduceMessage,
    TokenMessage,
)
from gateway.web.routing.routes import Routes

from .connection import MEMORY_REASON, Socket
from .handshake import HandshakeScope

log = logging.getLogger(__name__)

MAX_BAD_MESSAGES = 16  # malformed messages in a row, after which the socket is closed
# At each of these the socket reads no further messages until there is less.
MAX_QUEUED_MESSAGES = 64
MAX_HELD_BYTES = 256 * 1024  # of messages; the last one may exceed it by its size
MAX_UNSENT_BYTES = 64 * 1024  # of replies that the client does not read

MAX_TURN_S = 0.002  # how long queued messages are processed before other tasks run
# Larger messages are parsed in a thread, one after the other: 1 MiB takes up to 0.1 s. While ten
# sockets sent such messages, the median request took 2 s, and takes 16 ms by it.
MAX_LOOP_BYTES = 4 * 1024
_parser = ThreadPoolExecutor(max_workers=1, thread_name_prefix="messages")

# Close codes of RFC 6455 7.4.1 and IANA's registry.
(
    NORMAL_CLOSURE,
    UNSUPPORTED_DATA,
    POLICY_VIOLATION,
    INTERNAL_ERROR,
    SERVICE_RESTART,
    TRY_AGAIN_LATER,
) = 1000, 1003, 1008, 1011, 1012, 1013

CoroutineFactory: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Work that takes time. A coroutine object would warn if the socket were closed before it began."""


class MessageProcessor:
    """The `MessageListener` of a socket, and the order of its messages.

    `Session` derives from it and says in `handle_message` what each message does. At most one
    message is processed at a time. Bytes of messages that wait count towards the gateway's memory
    until they are released, at the latest when the socket is closed.
    """

    __slots__ = (
        "_bad_count", "_client_memory", "_held_bytes", "_is_closed", "_message_bytes", "_queue",
        "_tasks", "_unsent_bytes", "socket",
    )  # fmt: skip

    def __init__(self, client_memory: ClientMemory) -> None:
        self.socket: Socket
        self._client_memory = client_memory
        self._tasks: set[asyncio.Task[None]] | None = None
        # Messages behind one that takes time; None while no message does.
        self._queue: deque[str | bytes] | None = None
        # `_unsent_bytes`: of replies since the socket is full.
        # `_held_bytes`: of messages that are queued or held.
        # `_message_bytes`: of the message that is being processed.
        self._bad_count = self._unsent_bytes = self._held_bytes = self._message_bytes = 0
        self._is_closed = False

    def handle_message(self, message: ClientMessage) -> CoroutineFactory | None:
        """Do what a message asks for, or return the work if it takes time."""
        raise NotImplementedError

    # The listener of the socket.

    @property
    def is_busy(self) -> bool:
        """Whether queued messages or unsent replies have reached a limit."""
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
        # First, as nothing is released for a processor that is closed.
        self.release_held(self._held_bytes)
        self._is_closed = True
        for task in self._tasks or ():
            task.cancel()

    async def _process_queue(self, work: CoroutineFactory | None) -> None:
        """Do some work, and process the messages that are queued behind it meanwhile."""
        assert self._queue is not None
        turn_began_at = time.perf_counter()
        try:
            while work is not None or self._queue:
                if work is not None:
                    await work()
                elif self._is_closed:
                    return
                # Messages that need not wait would otherwise be processed without a break.
                if time.perf_counter() - turn_began_at > MAX_TURN_S:
                    await asyncio.sleep(0)
                    turn_began_at = time.perf_counter()
                work = self._process_next() if self._queue else None
        finally:
            self._queue = None
        self.socket.resume_reading()

    def _process_next(self) -> CoroutineFactory | None:
        """Process the oldest message of the queue."""
        assert self._queue is not None
        message = self._queue.popleft()
        self.release_held(sys.getsizeof(message))
        return self._process_message(message)

    def _process_message(self, data: str | bytes) -> CoroutineFactory | None:
        """Parse a message and do what it asks for, or return the work if it takes time."""
        self._message_bytes = sys.getsizeof(data)
        if isinstance(data, bytes):
            self.socket.close(UNSUPPORTED_DATA, "send text: JSON")
            return None
        if self._message_bytes > MAX_LOOP_BYTES:
            return partial(self._process_large, data)
        try:
            message = messages.parse_message(data)
        except BadMessageError as exc:
            self._refuse(exc)
            return None
        return self._begin(message)

    async def _process_large(self, text: str) -> None:
        held_bytes, waiting = self.hold_message(), [text]
        loop = asyncio.get_running_loop()
        try:
            message = await loop.run_in_executor(_parser, _parse_large, waiting)
        except BadMessageError as exc:
            self._refuse(exc)
            return
        finally:
            waiting.clear()  # the thread keeps no text of a socket that was closed
            self.release_held(held_bytes)
        work = self._begin(message)
        if work is not None:
            await work()

    def _refuse(self, exc: BadMessageError) -> None:
        self.send_error(exc.message_id, exc)
        self._bad_count += 1
        if self._bad_count >= MAX_BAD_MESSAGES:
            self.socket.close(POLICY_VIOLATION, f"{self._bad_count} bad messages in a row")

    def _begin(self, message: ClientMessage) -> CoroutineFactory | None:
        """Do what a message asks for, or return the work if it takes time."""
        # A well-formed message that is refused does not count: credit for a stream that has just
        # ended, for instance, is no sign of a broken client.
        self._bad_count = 0
        try:
            work = self.handle_message(message)
        except (GatewayError, HTTPException) as exc:
            self.send_error(_get_message_id(message), exc)
            return None
        return None if work is None else partial(self._run_work, work, _get_message_id(message))

    async def _run_work(self, work: CoroutineFactory, message_id: str | None) -> None:
        held_bytes = self.hold_message()
        try:
            await work()
        except (GatewayError, HTTPException) as exc:
            self.send_error(message_id, exc)
        finally:
            self.release_held(held_bytes)

    # The bytes of messages that wait.

    def hold_message(self) -> int:
        """Count the processed message as held; return its bytes for `release_held`."""
        self._add_held(self._message_bytes)
        return self._message_bytes

    def _add_held(self, size: int) -> None:
        if not self._is_closed:
            self._held_bytes += size
            self._client_memory.hold(HeldPart.RECEIVED, self, self._held_bytes)

    def release_held(self, size: int) -> None:
        """Count so many bytes less as held. Those of a closed socket are released already."""
        if self._is_closed:
            return
        was_full = self._held_bytes >= MAX_HELD_BYTES
        self._held_bytes -= size
        if self._held_bytes:
            self._client_memory.hold(HeldPart.RECEIVED, self, self._held_bytes)
        else:
            self._client_memory.release(HeldPart.RECEIVED, self)
        if was_full and not self.is_busy:
            self.socket.resume_reading()

    def release_memory(self) -> None:
        self.socket.close(TRY_AGAIN_LATER, MEMORY_REASON)

    def start_task(self, coro: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until it ends or the socket is closed. An error closes the socket."""
        self.add_task(asyncio.create_task(coro))

    def add_task(self, task: asyncio.Task[None] | None) -> None:
        """See that a task ends with the socket."""
        assert task is not None
        if self._tasks is None:  # an empty set for each socket would be 216 bytes
            self._tasks = set()
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if self._tasks is not None:
            self._tasks.discard(task)
            self._tasks = self._tasks or None  # no empty set
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a WebSocket session failed", exc_info=error)
            self.socket.close(INTERNAL_ERROR, "the gateway failed; its log says why")

    # Replies.

    def send_message(self, message_type: str, label: str | None = None, **data: Any) -> None:
        """Send a message that is no part of a stream, with `label` as its `id`."""
        if label is not None:
            data = {"id": label, **data}
        frame = WebSocketWire(deflate=self.socket.deflate).build_message(message_type, data)
        self.socket.write(frame)
        if self.socket.full:
            self._unsent_bytes += len(frame)

    def send_error(self, label: str | None, exc: Exception) -> None:
        """Send an `error` message. See `problems` for what it says."""
        members = problems.build_members(exc)
        retry_after_s: float | None = getattr(exc, "retry_after", None)
        if retry_after_s is not None:
            members["retryAfter"] = math.ceil(retry_after_s)
        self.send_message("error", label, code=problems.get_code(exc), **members)


def _parse_large(waiting: list[str]) -> ClientMessage:
    """Parse a message, and encode its record, which takes as long."""
    message = messages.parse_message(waiting.pop())
    if isinstance(message, ProduceMessage):
        with suppress(RequestError):  # `SocketProducer.accept` raises it
            _ = message.content
    return message


def _get_message_id(message: ClientMessage) -> str | None:
    return None if isinstance(message, TokenMessage) else message.id


MAX_IN_FLIGHT = 100  # records of one socket that are not acknowledged yet


class SocketProducer:
    """Writes the records of one socket, with a writer for each cluster."""

    __slots__ = ("_handshake_scope", "_routes", "_slot", "_writers", "in_flight")

    def __init__(
        self, routes: Routes, handshake_scope: HandshakeScope, slot: ConnectionSlot
    ) -> None:
        self._routes = routes
        self._slot = slot
        self._handshake_scope = handshake_scope
        self._writers: dict[str, RecordWriter] = {}
        self.in_flight = 0

    def accept(self, message: ProduceMessage, *, is_closing: bool) -> ProduceMessage:
        """Count a record for `write_record`, or raise if none may be written now.

        Only its `content` is kept: a parsed value takes 12 times the memory while Kafka is away.
        """
        if self._routes.hubs.draining or is_closing:
            detail = "this connection is about to be closed; repeat it over a new one"
            raise RequestError(503, "Draining", detail)
        if self.in_flight >= MAX_IN_FLIGHT:
            detail = f"{MAX_IN_FLIGHT} records of this socket are under way; wait for 'produced'"
            raise BadMessageError("Too many produces", detail, message.id)
        kept = {"key": None, "value": None, "content": message.content}
        self.in_flight += 1
        return message.model_copy(update=kept)

    async def write_record(
        self, message: ProduceMessage, path: str | None, token: str | None, attempts: Attempts
    ) -> dict[str, Any]:
        """Write a record that was accepted, and return the members of the `produced` message."""
        path = message.path if path is None else path
        try:
            await attempts.count_attempt()
            connection = self._handshake_scope.build_connection()
            try:
                write_request = await parse_produce_message(
                    self._routes, message, path, connection, token
                )
            except RequestError as exc:
                attempts.note_refused(exc.status)
                raise
            await self._slot.identify(write_request.match.granted)
            result = await self._get_writer(write_request.cluster).send(
                write_request.topic,
                write_request.key,
                write_request.value,
                write_request.headers,
                idempotency_key=message.idempotency_key,
                scope=write_request.scope,
                check_allowed=partial(check_current, self._routes, write_request),
            )
        finally:
            self.in_flight -= 1
        members = {"topic": result.topic, "partition": result.partition, "offset": result.offset}
        return {**members, "repeated": True} if result.repeated else members

    def _get_writer(self, cluster: str) -> RecordWriter:
        writer = self._writers.get(cluster)
        if writer is None:
            writer = self._writers[cluster] = self._routes.hubs.get_hub(cluster).create_writer()
        return writer
