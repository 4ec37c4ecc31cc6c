"""Write clients' records to Kafka; an idempotency key makes repeated writes a single record.

Within this process the key is remembered (`IdempotencyWindow`): a repeat joins the write under way,
or gets the offset of the record that was written. Across replicas and restarts, the record carries
its key in the header `idempotency-key`, and goes to a partition that follows from the record alone
(its key, by Kafka's own partitioner, or else the idempotency key). A client repeats a write that
was cut off over a new connection, so the first keyed record of a connection to a partition waits
until the keys in that partition's log are known up to then (`IdempotencyLog`). If that takes too
long, the answer is an error, not a second record.

Processes of one host lock a key while they write it (`Publisher.key_locks`). A repeat that
overtakes the first attempt is still written besides it: if a replica on another host sent the first
and got no answer, or a gateway ended with bytes in its socket. The same holds for a key older than
the window, for the repeat of a record without a key when the topic got more partitions in between,
and for a repeat over a connection that existed before the cut.

On a topic of documents, the writer locks the record's key until Kafka has the record
(`DocumentKeyLocks.lock_keys`). When the client goes away, its records are still written and
remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager

from gateway.core.error_code import TOO_LARGE_ERRORS
from gateway.core.log.record import TopicPartition
from gateway.core.produce.idempotency import IdempotencyKey, RecordLocation
from gateway.errors import (
    BrokerUnavailable,
    InvalidRecord,
    PartitionFailed,
    RecordRefused,
    RecordTooLarge,
)

from .idempotency_log import (
    KEY_HEADER,
    RESERVED_HEADERS,
    SCOPE_HEADER,
    Headers,
    IdempotencyLog,
    digest_record,
)
from .publisher import PendingWrite, Produced, Publisher

# Seconds after the deadline, for the error that says that nothing was written.
RESULT_GRACE_S = 0.25
MAX_KEY_BYTES = 64 * 1024  # bytes; hashing one takes 6 ms of the loop (murmur2 in Python)
MAX_IDEMPOTENCY_KEY_CHARS = 256


class RecordWriter:
    """Write the records of one connection, those of one partition in the order of the calls.

    `Hub.create_writer` creates it; the connection owns it.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._order_lock = asyncio.Lock()
        # The partitions whose logs were caught up with on this connection, and the count of
        # uncertain writes then.
        self._uncertain_writes_seen: dict[TopicPartition, int] = {}

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
        waits: bool = True,
    ) -> Produced:
        """Write one record, or find that it is written already.

        Args:
            key: The key, before the topic's model encodes it.
            value: The value, likewise; None for a tombstone.
            scope: Whose idempotency key it is, such as the route's path.
            check_allowed: Awaited just before the record is written, but not if it is written
                already; it raises if the record may not be written.
            waits: If not, it returns once the write has begun, and the place is not known.

        Raises:
            UnknownTopic: The topic does not exist.
            AccessDenied: The brokers do not let the gateway write to the topic.
            AuthenticationFailed: The brokers refuse the gateway's credentials.
            BrokerUnavailable: Nothing was written; or, if its `timeout` is true, it may yet be
                written: repeat it with its idempotency key.
            KeyReused: The idempotency key was used for another record.
            RecordTooLarge: The record is larger than the topic takes, or its key too long.
            InvalidRecord: The partition, a header or the idempotency key cannot be.
            RecordRefused: Kafka refuses the record for another reason.
            FormatError: The record does not match the model of its topic.
            RegistryUnavailable: A schema is needed, and the registry cannot be reached.
        """
        if self._publisher.models is not None:
            key, value = await self._publisher.models.encode_record(topic, key, value)
        _check_limits(key, headers, idempotency_key)
        scoped_key = (
            IdempotencyKey(topic, scope, idempotency_key) if idempotency_key is not None else None
        )
        digest = digest_record(key, value, headers) if scoped_key is not None else b""
        deadline = asyncio.get_running_loop().time() + self._publisher.timeout_s
        write = PendingWrite(
            topic,
            key,
            value,
            headers,
            partition,
            scoped_key,
            digest,
            deadline,
            check_allowed,
            waits,
        )
        tracing = self._publisher.tracing
        if tracing is None:
            return await self._send(write)
        with tracing.trace_produce(topic, headers) as headers:
            return await self._send(write._replace(headers=headers))

    async def _send(self, write: PendingWrite) -> Produced:
        try:
            if write.idempotency_key is not None:
                return await self._send_once(write, write.idempotency_key)
            task = self._publisher.start_write(self._write(write), write)
            return await _await_result(task, write)
        except PartitionFailed as exc:
            raise _build_refusal(exc) from exc

    async def _send_once(self, write: PendingWrite, key: IdempotencyKey) -> Produced:
        """Write a record unless its idempotency key was written, or join the write under way."""
        window = self._publisher.idempotency_window
        location = window.lookup_written(key, write.digest, asyncio.get_running_loop().time())
        if location is not None:
            return Produced(write.topic, *location, repeated=True)
        in_flight = window.lookup_in_flight(key, write.digest)
        if in_flight is not None:
            # It holds the bytes of its request until the other write ends: it counts as one, too.
            task = self._publisher.start_write(_join(in_flight), write)
            return await _await_result(task, write)
        task = self._publisher.start_write(self._write_once(write, key), write)
        # No await since the look-ups above, so that no other call can have begun the same key.
        window.begin(key, write.digest, task)
        return await _await_result(task, write)

    async def _write(self, write: PendingWrite) -> Produced:
        with ExitStack() as stack:
            # The order is settled once the producer has the record; its result is awaited outside,
            # so that records of one connection can share a request.
            async with self._acquire_order(write):
                tp = await self._choose_partition(write, stack)
                await self._lock_document(write, stack)
                written = self._send_record(tp, write)
            return Produced(*tp, await written)

    async def _choose_partition(self, write: PendingWrite, stack: ExitStack) -> TopicPartition:
        """Return the partition that a record goes to, and watch its topic until the stack closes.

        The hub's own watch may end while a record waits to be written.
        """
        topic = await self._publisher.get_topic(write.topic)
        stack.enter_context(self._publisher.cluster.metadata.watching([topic.name]))
        return self._publisher.choose_partition(topic, write)

    async def _lock_document(self, write: PendingWrite, stack: ExitStack) -> None:
        """Lock the record's key until the stack is closed, and raise if it may not be written."""
        documents = self._publisher.document_locks
        key, topic = write.key, write.topic
        if documents is not None and key is not None and documents.is_compared(topic):
            if write.check_allowed is not None:
                # What it waits for, such as the end of a transaction, holds up no other write then.
                await write.check_allowed()
            stack.callback(await documents.lock_keys(topic, [key]))
        if write.check_allowed is not None:
            await write.check_allowed()

    async def _write_once(self, write: PendingWrite, key: IdempotencyKey) -> Produced:
        with ExitStack() as stack:
            return await self._write_keyed(write, key, stack)

    async def _write_keyed(
        self, write: PendingWrite, key: IdempotencyKey, stack: ExitStack
    ) -> Produced:
        """Write a record with an idempotency key, unless its partition's log has it already."""
        window, now = self._publisher.idempotency_window, asyncio.get_running_loop().time
        key_locks = self._publisher.key_locks
        try:
            async with self._acquire_order(write):
                tp = await self._choose_partition(write, stack)
                idempotency_log = self._publisher.get_idempotency_log(tp)
                was_locked = key_locks is not None and await key_locks.acquire(key)
                await self._catch_up(tp, idempotency_log, force=was_locked)
                # Again, after the awaits: the log may have had the key.
                location = window.lookup_written(key, write.digest, now())
                if location is None and window.may_be_dropped(key, now()):
                    await idempotency_log.find_dropped(key)
                    location = window.lookup_written(key, write.digest, now())
                if location is not None:
                    return Produced(write.topic, *location, repeated=True)
                await self._lock_document(write, stack)
                written = self._send_record(tp, write)
            try:
                offset = await written
            except BrokerUnavailable as exc:
                # It may be in the log nevertheless: every writer has to look before a repeat.
                idempotency_log.uncertain_writes += exc.timeout
                raise
            window.add_written(key, write.digest, RecordLocation(tp.partition, offset), now())
            return Produced(*tp, offset)
        finally:
            window.end(key)
            # Also if it was never acquired: the holder of a key is not affected by others.
            if key_locks is not None:
                key_locks.release(key)

    @asynccontextmanager
    async def _acquire_order(self, write: PendingWrite) -> AsyncIterator[None]:
        """Hold this connection's order lock; if the deadline passes in it, nothing was written."""
        try:
            async with asyncio.timeout_at(write.deadline), self._order_lock:
                yield
        except TimeoutError:
            reason = self._publisher.cluster.error or "Kafka is slow"
            raise BrokerUnavailable(
                f"nothing was written to {write.topic}: {reason}; try again", retry_after=1.0
            ) from None

    async def _catch_up(
        self, tp: TopicPartition, idempotency_log: IdempotencyLog, *, force: bool
    ) -> None:
        """Learn the keys in a partition's log, unless this connection has done so before.

        `force` is for when another process may just have written the key.
        """
        if force or self._uncertain_writes_seen.get(tp) != idempotency_log.uncertain_writes:
            # As of before: a write that becomes uncertain meanwhile may be missing in what is read.
            uncertain_writes = idempotency_log.uncertain_writes
            await idempotency_log.catch_up()
            self._uncertain_writes_seen[tp] = uncertain_writes

    def _send_record(self, tp: TopicPartition, write: PendingWrite) -> asyncio.Future[int]:
        headers = list(write.headers)
        if write.idempotency_key is not None:
            headers.append((KEY_HEADER, write.idempotency_key.text.encode()))
            if write.idempotency_key.scope:
                headers.append((SCOPE_HEADER, write.idempotency_key.scope.encode()))
        timeout_s = max(0.0, write.deadline - asyncio.get_running_loop().time())
        return self._publisher.producer.send(
            tp, write.key, write.value, headers, timeout_s=timeout_s
        )


async def _join(in_flight: asyncio.Task[Produced]) -> Produced:
    return (await asyncio.shield(in_flight))._replace(repeated=True)


async def _await_result(task: asyncio.Task[Produced], write: PendingWrite) -> Produced:
    """Wait for the result of a write, which goes on also if nobody waits for it any more."""
    if not write.waits:
        return Produced(write.topic, -1, -1)
    timeout_s = write.deadline - asyncio.get_running_loop().time()
    done, _ = await asyncio.wait({task}, timeout=max(0.0, timeout_s) + RESULT_GRACE_S)
    if done:
        if task.cancelled():
            # `Publisher.close` cancels only what has not come to the producer.
            raise BrokerUnavailable("nothing was written: the gateway closed", retry_after=1.0)
        return task.result()
    raise BrokerUnavailable(
        "Kafka has not said yet whether the record was written; without an idempotency key, a "
        "repeat may write it twice",
        timeout=True,
        retry_after=1.0,
    )


def _check_limits(key: bytes | None, headers: Headers, idempotency_key: str | None) -> None:
    if key is not None and len(key) > MAX_KEY_BYTES:
        raise RecordTooLarge(
            f"a record's key has at most {MAX_KEY_BYTES} bytes; this one has {len(key)}"
        )
    if idempotency_key is not None and not 0 < len(idempotency_key) <= MAX_IDEMPOTENCY_KEY_CHARS:
        raise InvalidRecord(
            f"an idempotency key has 1 to {MAX_IDEMPOTENCY_KEY_CHARS} characters; use a UUID"
        )
    for name, _ in headers:
        if name in RESERVED_HEADERS:
            raise InvalidRecord(
                f"the header '{name}' is written by the gateway; give an idempotency key"
            )


def _build_refusal(exc: PartitionFailed) -> RecordRefused:
    if exc.code in TOO_LARGE_ERRORS:
        return RecordTooLarge(
            f"the record is larger than topic '{exc.topic}' takes; send a smaller one"
        )
    return RecordRefused(
        f"topic '{exc.topic}' takes no such record (code {exc.code}); a compacted one wants a key"
    )
