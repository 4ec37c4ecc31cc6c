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
from gateway.core.produce.idempotency import Key, Written
from gateway.errors import BrokerUnavailable, PartitionFailed, RequestError

from .idempotency_log import KEY, OWN, SCOPE, Headers, Seen, said

if TYPE_CHECKING:
    from .publisher import Publisher

LATE = 0.25  # seconds after the deadline, for those who say that nothing was written
LONGEST_KEY = 64 * 1024  # bytes; hashing one takes 6 ms of the loop (murmur2 in Python)
LONGEST_ID = 256  # characters of an idempotency key
TOO_LARGE = frozenset({10, 18})


class Produced(NamedTuple):
    """Where a record is. repeated: it was there before. offset -1: Kafka did not say."""

    topic: str
    partition: int
    offset: int
    repeated: bool = False


class Sending(NamedTuple):
    """A record as it was handed over. deadline: loop time by which it is sent or given up.
    allowed: asked before it is written; raises where it may not be."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None
    once: Key | None
    digest: bytes
    deadline: float
    allowed: Callable[[], Awaitable[None]] | None = None


class Writer:
    """Writes the records of one connection, those of one partition in the order of the calls."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._order = asyncio.Lock()
        self._checked: dict[TopicPartition, int] = {}  # and the doubts there were then

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
        allowed: Callable[[], Awaitable[None]] | None = None,
    ) -> Produced:
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
            key, value = await self._publisher.models.written(topic, key, value)
        _check(key, headers, idempotency_key)
        once = Key(topic, scope, idempotency_key) if idempotency_key is not None else None
        same = said(key, value, headers) if once is not None else b""
        deadline = asyncio.get_running_loop().time() + self._publisher.patience
        sending = Sending(topic, key, value, headers, partition, once, same, deadline, allowed)
        tracing = self._publisher.tracing
        if tracing is None:
            return await self._send(sending)
        with tracing.sending(topic, headers) as headers:
            return await self._send(sending._replace(headers=headers))

    async def _send(self, sending: Sending) -> Produced:
        try:
            if sending.once is not None:
                return await self._send_once(sending, sending.once)
            return await _outcome(self._publisher.begin(self._write(sending)), sending.deadline)
        except PartitionFailed as exc:
            raise _refusal(exc) from exc

    async def _send_once(self, sending: Sending, key: Key) -> Produced:
        once = self._publisher.once
        known = once.known(key, sending.digest, asyncio.get_running_loop().time())
        if known is not None:
            return Produced(sending.topic, *known, repeated=True)
        flight = once.flight(key, sending.digest)
        if flight is not None:
            return (await _outcome(flight, sending.deadline))._replace(repeated=True)
        task = self._publisher.begin(self._write_once(sending, key))
        once.begin(key, sending.digest, task)
        return await _outcome(task, sending.deadline)

    async def _write(self, sending: Sending) -> Produced:
        with ExitStack() as stack:
            async with self._in_turn(sending):
                tp = self._publisher.partition(await self._publisher.topic(sending.topic), sending)
                await self._mind_documents(sending, stack)
                written = self._put(tp, sending)
            return Produced(*tp, await written)

    async def _mind_documents(self, sending: Sending, stack: ExitStack) -> None:
        """Have the key for ourselves until the stack is left, and raise where the record may not be
        written as things are."""
        documents = self._publisher.documents
        key, topic = sending.key, sending.topic
        if documents is not None and key is not None and documents.is_compared(topic):
            stack.callback(await documents.hold(topic, [key]))
        if sending.allowed is not None:
            await sending.allowed()

    async def _write_once(self, sending: Sending, key: Key) -> Produced:
        with ExitStack() as stack:
            return await self._write_keyed(sending, key, stack)

    async def _write_keyed(self, sending: Sending, key: Key, stack: ExitStack) -> Produced:
        once, now = self._publisher.once, asyncio.get_running_loop().time
        turns = self._publisher.turns
        try:
            async with self._in_turn(sending):
                tp = self._publisher.partition(await self._publisher.topic(sending.topic), sending)
                seen = self._publisher.seen(tp)
                waited = turns is not None and await turns.take(key)
                await self._catch_up(tp, seen, anew=waited)
                known = once.known(key, sending.digest, now())
                if known is not None:
                    return Produced(sending.topic, *known, repeated=True)
                await self._mind_documents(sending, stack)
                written = self._put(tp, sending)
            try:
                offset = await written
            except BrokerUnavailable as exc:
                seen.doubts += exc.timeout
                raise
            once.learn(key, sending.digest, Written(tp.partition, offset), now())
            return Produced(*tp, offset)
        finally:
            once.end(key)
            if turns is not None:
                turns.give(key)

    @asynccontextmanager
    async def _in_turn(self, sending: Sending) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(sending.deadline), self._order:
                yield
        except TimeoutError:
            why = self._publisher.cluster.error or "Kafka is slow"
            raise BrokerUnavailable(
                f"nothing was written to {sending.topic}: {why}; try again", retry_after=1.0
            ) from None

    async def _catch_up(self, tp: TopicPartition, seen: Seen, *, anew: bool) -> None:
        """anew: it may have been written just now, by another process."""
        if anew or self._checked.get(tp) != seen.doubts:
            doubts = seen.doubts
            await seen.catch_up()
            self._checked[tp] = doubts

    def _put(self, tp: TopicPartition, sending: Sending) -> asyncio.Future[int]:
        headers = list(sending.headers)
        if sending.once is not None:
            headers.append((KEY, sending.once.text.encode()))
            if sending.once.scope:
                headers.append((SCOPE, sending.once.scope.encode()))
        left = max(0.0, sending.deadline - asyncio.get_running_loop().time())
        return self._publisher.producer.put(tp, sending.key, sending.value, headers, within=left)


async def _outcome(task: asyncio.Task[Produced], deadline: float) -> Produced:
    """Of a write that goes on also when nobody waits for it any more."""
    left = deadline - asyncio.get_running_loop().time()
    done, _ = await asyncio.wait({task}, timeout=max(0.0, left) + LATE)
    if done:
        if task.cancelled():
            raise BrokerUnavailable("the gateway closed before Kafka answered", timeout=True)
        return task.result()
    raise BrokerUnavailable(
        "Kafka has not said yet whether the record was written; repeat it with its idempotency key",
        timeout=True,
        retry_after=1.0,
    )


def _check(key: bytes | None, headers: Headers, idempotency_key: str | None) -> None:
    if key is not None and len(key) > LONGEST_KEY:
        detail = f"a record's key has at most {LONGEST_KEY} bytes; this one has {len(key)}"
        raise RequestError(413, "Content too large", detail)
    if idempotency_key is not None and not 0 < len(idempotency_key) <= LONGEST_ID:
        detail = f"an idempotency key has 1 to {LONGEST_ID} characters; use a UUID"
        raise RequestError(400, "Bad request", detail)
    for name, _ in headers:
        if name in OWN:
            detail = f"the header '{name}' is written by the gateway; give an idempotency key"
            raise RequestError(400, "Bad request", detail)


def _refusal(exc: PartitionFailed) -> RequestError:
    if exc.code in TOO_LARGE:
        detail = f"the record is larger than topic '{exc.topic}' takes; send a smaller one"
        return RequestError(413, "Content too large", detail)
    detail = (
        f"topic '{exc.topic}' takes no such record (code {exc.code}); a compacted one wants a key"
    )
    return RequestError(422, "Record refused", detail)
