"""Clients' records to Kafka; an idempotency key makes a repeated one a single record.

Within this process the key is remembered (`core.once`): a repeat joins the write under way, or
gets the offset of the one that was written. Across replicas and restarts the record carries its
key in the header `idempotency-key`, and goes to a partition that follows from the record alone
(its key, by Kafka's own partitioner, or else the idempotency key). A client repeats what was cut
over a new connection, so the first keyed record of a connection to a partition waits until the
keys in that partition's log are known up to then (`hub.seen`); if that takes too long, the answer
is an error, not a second record.

Processes of one host take turns with a key (`Publisher.turns`). What remains: a repeat that
overtakes the first one is written beside it. That takes a first one on its way into Kafka when
the repeat is looked for: sent by a replica on another host that was not answered, or by a gateway
that ended with bytes still in its socket, and not replicated yet. The same goes for a key older
than the window, for the second of a record without key when the topic got more partitions in
between, and for one repeated by a connection that was there before the cut.

On a topic of documents a record has its key for itself until Kafka has it (`hub.documents`): one
that was compared with is not overwritten by another in between.

The client may go away: what was handed over is written, and remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from gateway.core.log.record import TopicPartition
from gateway.core.produce.idempotency import IdempotencyKey, RecordLocation
from gateway.errors import BrokerUnavailable, PartitionFailed, RequestError

from .idempotency_log import (
    KEY_HEADER,
    RESERVED_HEADERS,
    SCOPE_HEADER,
    Headers,
    IdempotencyLog,
    digest_record,
)

if TYPE_CHECKING:
    from .publisher import Publisher

RESULT_GRACE_S = 0.25  # seconds after the deadline, for those who say that nothing was written
MAX_KEY_BYTES = 64 * 1024  # bytes; hashing one takes 6 ms of the loop (murmur2 in Python)
MAX_IDEMPOTENCY_KEY_CHARS = 256  # characters of an idempotency key
TOO_LARGE_CODES = frozenset({10, 18})


class ProduceResult(NamedTuple):
    """Where a record is. repeated: it was there before. offset -1: Kafka did not say."""

    topic: str
    partition: int
    offset: int
    repeated: bool = False


class PendingWrite(NamedTuple):
    """A record as it was handed over. deadline: loop time by which it is sent or given up.
    allowed: asked before it is written; raises where it may not be."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None
    idempotency_key: IdempotencyKey | None
    digest: bytes
    deadline: float
    check_allowed: Callable[[], Awaitable[None]] | None = None


class RecordWriter:
    """Writes the records of one connection, those of one partition in the order of the calls."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._order_lock = asyncio.Lock()
        self._uncertain_writes_seen: dict[
            TopicPartition, int
        ] = {}  # and the doubts there were then

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        *,
        partition: int | None = None,
        idempotency_key: str | None = None,
        scope: str = "",
        check_allowed: Callable[[], Awaitable[None]] | None = None,
    ) -> ProduceResult:
        """Write one record, or find it written already.

        partition: by the record's key if not given.
        scope:     whose idempotency key it is, such as the route's path.
        allowed:   asked just before it is written; not of one that is written already.

        Raises UnknownTopic, AccessDenied, AuthenticationFailed; BrokerUnavailable (with `timeout`
        it may yet be written: repeat it with its idempotency key); KeyReused (422); RequestError:
        400 for what cannot be, or is none of the topic's model, 413 for too large a record, 422 for
        one that Kafka refuses, 503 while schemas cannot be asked for.
        """
        if self._publisher.models is not None:
            key, value = await self._publisher.models.encode_record(topic, key, value)
        _check_limits(key, headers, idempotency_key)
        once = (
            IdempotencyKey(topic, scope, idempotency_key) if idempotency_key is not None else None
        )
        same = digest_record(key, value, headers) if once is not None else b""
        deadline = asyncio.get_running_loop().time() + self._publisher.timeout_s
        sending = PendingWrite(
            topic, key, value, headers, partition, once, same, deadline, check_allowed
        )
        tracing = self._publisher.tracing
        if tracing is None:
            return await self._send(sending)
        with tracing.trace_produce(topic, headers) as headers:
            return await self._send(sending._replace(headers=headers))

    async def _send(self, write: PendingWrite) -> ProduceResult:
        try:
            if write.idempotency_key is not None:
                return await self._send_once(write, write.idempotency_key)
            return await _await_result(
                self._publisher.start_write(self._write(write)), write.deadline
            )
        except PartitionFailed as exc:
            raise _build_refusal(exc) from exc

    async def _send_once(self, write: PendingWrite, key: IdempotencyKey) -> ProduceResult:
        once = self._publisher.idempotency_window
        known = once.lookup_written(key, write.digest, asyncio.get_running_loop().time())
        if known is not None:
            return ProduceResult(write.topic, *known, repeated=True)
        flight = once.lookup_in_flight(key, write.digest)
        if flight is not None:
            return (await _await_result(flight, write.deadline))._replace(repeated=True)
        task = self._publisher.start_write(self._write_once(write, key))
        once.begin(key, write.digest, task)
        return await _await_result(task, write.deadline)

    async def _write(self, write: PendingWrite) -> ProduceResult:
        with ExitStack() as stack:
            async with self._acquire_order(write):
                tp = self._publisher.choose_partition(
                    await self._publisher.get_topic(write.topic), write
                )
                await self._lock_document(write, stack)
                written = self._send_record(tp, write)
            return ProduceResult(*tp, await written)

    async def _lock_document(self, write: PendingWrite, stack: ExitStack) -> None:
        """Have the key for ourselves until the stack is left, and raise where the record may not be
        written as things are."""
        documents = self._publisher.document_locks
        key, topic = write.key, write.topic
        if documents is not None and key is not None and documents.is_compared(topic):
            stack.callback(await documents.lock_keys(topic, [key]))
        if write.check_allowed is not None:
            await write.check_allowed()

    async def _write_once(self, write: PendingWrite, key: IdempotencyKey) -> ProduceResult:
        with ExitStack() as stack:
            return await self._write_keyed(write, key, stack)

    async def _write_keyed(
        self, write: PendingWrite, key: IdempotencyKey, stack: ExitStack
    ) -> ProduceResult:
        once, now = self._publisher.idempotency_window, asyncio.get_running_loop().time
        turns = self._publisher.key_locks
        try:
            async with self._acquire_order(write):
                tp = self._publisher.choose_partition(
                    await self._publisher.get_topic(write.topic), write
                )
                seen = self._publisher.get_idempotency_log(tp)
                waited = turns is not None and await turns.acquire(key)
                await self._catch_up(tp, seen, force=waited)
                known = once.lookup_written(key, write.digest, now())
                if known is not None:
                    return ProduceResult(write.topic, *known, repeated=True)
                await self._lock_document(write, stack)
                written = self._send_record(tp, write)
            try:
                offset = await written
            except BrokerUnavailable as exc:
                seen.uncertain_writes += exc.timeout
                raise
            once.add_written(key, write.digest, RecordLocation(tp.partition, offset), now())
            return ProduceResult(*tp, offset)
        finally:
            once.end(key)
            if turns is not None:
                turns.release(key)

    @asynccontextmanager
    async def _acquire_order(self, write: PendingWrite) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(write.deadline), self._order_lock:
                yield
        except TimeoutError:
            why = self._publisher.cluster.error or "Kafka is slow"
            raise BrokerUnavailable(
                f"nothing was written to {write.topic}: {why}; try again", retry_after=1.0
            ) from None

    async def _catch_up(
        self, tp: TopicPartition, idempotency_log: IdempotencyLog, *, force: bool
    ) -> None:
        """anew: it may have been written just now, by another process."""
        if force or self._uncertain_writes_seen.get(tp) != idempotency_log.uncertain_writes:
            doubts = idempotency_log.uncertain_writes
            await idempotency_log.catch_up()
            self._uncertain_writes_seen[tp] = doubts

    def _send_record(self, tp: TopicPartition, write: PendingWrite) -> asyncio.Future[int]:
        headers = list(write.headers)
        if write.idempotency_key is not None:
            headers.append((KEY_HEADER, write.idempotency_key.text.encode()))
            if write.idempotency_key.scope:
                headers.append((SCOPE_HEADER, write.idempotency_key.scope.encode()))
        left = max(0.0, write.deadline - asyncio.get_running_loop().time())
        return self._publisher.producer.send(tp, write.key, write.value, headers, timeout_s=left)


async def _await_result(task: asyncio.Task[ProduceResult], deadline: float) -> ProduceResult:
    """Of a write that goes on also when nobody waits for it any more."""
    left = deadline - asyncio.get_running_loop().time()
    done, _ = await asyncio.wait({task}, timeout=max(0.0, left) + RESULT_GRACE_S)
    if done:
        if task.cancelled():
            raise BrokerUnavailable("the gateway closed before Kafka answered", timeout=True)
        return task.result()
    raise BrokerUnavailable(
        "Kafka has not said yet whether the record was written; repeat it with its idempotency key",
        timeout=True,
        retry_after=1.0,
    )


def _check_limits(key: bytes | None, headers: Headers, idempotency_key: str | None) -> None:
    if key is not None and len(key) > MAX_KEY_BYTES:
        detail = f"a record's key has at most {MAX_KEY_BYTES} bytes; this one has {len(key)}"
        raise RequestError(413, "Content too large", detail)
    if idempotency_key is not None and not 0 < len(idempotency_key) <= MAX_IDEMPOTENCY_KEY_CHARS:
        detail = f"an idempotency key has 1 to {MAX_IDEMPOTENCY_KEY_CHARS} characters; use a UUID"
        raise RequestError(400, "Bad request", detail)
    for name, _ in headers:
        if name in RESERVED_HEADERS:
            detail = f"the header '{name}' is written by the gateway; give an idempotency key"
            raise RequestError(400, "Bad request", detail)


def _build_refusal(exc: PartitionFailed) -> RequestError:
    if exc.code in TOO_LARGE_CODES:
        detail = f"the record is larger than topic '{exc.topic}' takes; send a smaller one"
        return RequestError(413, "Content too large", detail)
    detail = (
        f"topic '{exc.topic}' takes no such record (code {exc.code}); a compacted one wants a key"
    )
    return RequestError(422, "Record refused", detail)
