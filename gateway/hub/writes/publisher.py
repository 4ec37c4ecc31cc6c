"""Hold what all writers of a hub share: the producer, idempotency keys, topics, and locks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

from gateway.config import FetchWith, Settings, Topic
from gateway.core.log.record import TopicPartition
from gateway.core.produce.idempotency import IdempotencyKey, IdempotencyWindow
from gateway.errors import InvalidRecord, WritesFull
from gateway.kafka.client.cluster import Cluster, get_known_topic, require_reachable, watch_topic
from gateway.kafka.produce.pending_records import (
    MAX_PENDING_BYTES,
    PendingBytes,
    compute_partition,
    estimate_size,
)
from gateway.kafka.produce.producer import Producer
from gateway.kafka.protocol.requests import TopicMetadata

from .idempotency_log import Headers, IdempotencyLog

if TYPE_CHECKING:
    from gateway.hub.wires.models import Models
    from gateway.telemetry.traces import Tracing


class Produced(NamedTuple):
    """The place of a record; what is not known is -1.

    `repeated` says that the record was written before, by an earlier attempt.
    """

    topic: str
    partition: int
    offset: int
    repeated: bool = False


class PendingWrite(NamedTuple):
    """A record as it was handed over.

    Attributes:
        value: The value; None for a tombstone.
        deadline: When it is sent or given up at the latest, by the loop's clock.
        check_allowed: Awaited just before it is written; raises if it may not be.
        waits: Whether somebody waits for where it was written.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None
    idempotency_key: IdempotencyKey | None
    digest: bytes
    deadline: float
    check_allowed: Callable[[], Awaitable[None]] | None = None
    waits: bool = True

    @property
    def size(self) -> int:
        """Return about how many bytes it takes until it has ended."""
        return WRITE_OVERHEAD_BYTES + estimate_size(self.key, self.value, self.headers)


# What a write takes besides its record, most of all its task.
WRITE_OVERHEAD_BYTES = 5000
# Seconds until a client gets a result for its record, or the error that nobody knows it.
WRITE_TIMEOUT_S = 10.0


class KeyLocks(Protocol):
    """Define locks of idempotency keys among processes that can talk to each other.

    They learn of each other's writes before Kafka could tell them.
    """

    async def acquire(self, key: IdempotencyKey) -> bool:
        """Return once the key is ours; True if another process had it until then."""

    def release(self, key: IdempotencyKey) -> None:
        """Release the key: its record is written, or given up."""


@dataclass(eq=False)
class Publisher:
    """The shared parts of all writers of a hub, which creates one at each start and closes it.

    Clients wait `timeout_s` for the result of a write. Idempotency keys count for `window_s`; of
    more than `max_keys` the oldest are looked for in the log. Records are encoded by `models`.

    Records count for `max_pending_bytes` from the beginning of their writes to the end: those that
    look for their key, or wait for another write, are not with the producer yet.
    """

    cluster: Cluster
    timeout_s: float = WRITE_TIMEOUT_S
    window_s: float = 600.0
    max_keys: int = 100_000
    max_pending_bytes: int = MAX_PENDING_BYTES
    models: Models | None = None
    key_locks: KeyLocks | None = None
    document_locks: DocumentKeyLocks | None = None
    tracing: Tracing | None = None
    _idempotency_logs: dict[TopicPartition, IdempotencyLog] = field(default_factory=dict)
    _tasks: set[asyncio.Task[Produced]] = field(default_factory=set)
    _rotation: int = 0  # counts records that may go to any partition

    def __post_init__(self) -> None:
        self.producer = Producer(self.cluster, max_pending_bytes=self.max_pending_bytes)
        self.idempotency_window: IdempotencyWindow[asyncio.Task[Produced]] = IdempotencyWindow(
            self.max_keys, self.window_s
        )
        self._pending_bytes = PendingBytes(self.max_pending_bytes)

    async def close(self) -> None:
        """Write what was handed over, within some seconds; what remains fails."""
        await self.producer.close()
        # Every record that the producer had has its result. The tasks that wait for those run now.
        await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes.total

    def start_write(
        self, work: Coroutine[Any, Any, Produced], write: PendingWrite
    ) -> asyncio.Task[Produced]:
        """Start a write that goes on, until `close`, if nobody waits for its task any more.

        Raises:
            WritesFull: Too much waits already.
        """
        topic, size = write.topic, write.size
        if not self._pending_bytes.has_room(topic, size):
            work.close()  # or there would be a warning that it was never awaited
            raise WritesFull("too much waits to be written; try again", retry_after=1.0)
        self._pending_bytes.resize_call(topic, 0, size)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_write_done, topic, size))
        return task

    def _on_write_done(self, topic: str, size: int, task: asyncio.Task[Produced]) -> None:
        self._pending_bytes.resize_call(topic, size, 0)
        self._tasks.discard(task)
        if not task.cancelled():
            # Whoever waits for the task gets its exception. Retrieved here as well, it causes no
            # warning if nobody waits any more.
            task.exception()

    def get_idempotency_log(self, tp: TopicPartition) -> IdempotencyLog:
        idempotency_log = self._idempotency_logs.get(tp)
        if idempotency_log is None:
            idempotency_log = self._idempotency_logs[tp] = IdempotencyLog(
                self.cluster, tp, self.idempotency_window, self.window_s
            )
        return idempotency_log

    async def get_topic(self, name: str) -> TopicMetadata:
        """Return the metadata of a topic that exists, and watch it from now on.

        The cluster's metadata is asked, since a producer that asks for a topic may create it.

        Raises:
            UnknownTopic: The topic does not exist.
            AccessDenied: The brokers do not let the gateway see the topic.
            BrokerUnavailable: The cluster cannot be reached, or the topic has no partitions yet.
            AuthenticationFailed: The brokers refuse the gateway's credentials.
        """
        # Even if the topic is known: no record is accepted that cannot be sent.
        require_reachable(self.cluster)
        return get_known_topic(self.cluster, name) or await watch_topic(self.cluster, name)

    def choose_partition(self, topic: TopicMetadata, write: PendingWrite) -> TopicPartition:
        """Return the partition that a record goes to.

        It is the partition that the write names, or the one of its key, or the one of its
        idempotency key, so that a repeated write goes to the same one. Other records go to the
        partitions that have a leader in turn.

        Raises:
            InvalidRecord: The topic does not have the partition that the write names.
        """
        count = len(topic.partitions)
        if write.partition is not None:
            if write.partition not in topic.partitions:
                detail = f"topic {topic.name} has no partition {write.partition}"
                raise InvalidRecord(f"{detail}; it has 0 to {count - 1}")
            return TopicPartition(topic.name, write.partition)
        partition_key = write.key
        if partition_key is None and write.idempotency_key is not None:
            partition_key = write.idempotency_key.text.encode()
        if partition_key is not None:
            return TopicPartition(topic.name, compute_partition(partition_key, count))
        available = [
            number for number, partition in topic.partitions.items() if partition.leader >= 0
        ]
        self._rotation += 1
        # Without any leader, the producer waits for one.
        number = available[self._rotation % len(available)] if available else 0
        return TopicPartition(topic.name, number)


CONDITION_SCOPE = "\0if-match"  # no idempotency key has this scope
# A lock of the whole topic, where transforms give records other keys than they are written by.
ANY_KEY = b""


@dataclass(eq=False)
class DocumentKeyLocks:
    """Lock the keys of documents, so that a record that was compared with is not overwritten.

    Only one writer at a time compares a key's record and writes, and nobody else writes the key
    until Kafka has the record: every writer of a topic of documents takes the lock, whether it
    compares or not (`RecordWriter`, and the sidecar's producer). Kafka itself cannot compare: a
    client that writes the key by other ways, or through a gateway on another host, may come in
    between.

    `Hub` creates one at each start. A lock exists while somebody holds it or waits for it.
    """

    _publisher: Publisher
    _get_topic_settings: Callable[[str], Topic]
    _settings: Settings
    _cluster_name: str = ""
    _key_locks: WeakValueDictionary[tuple[str, bytes], asyncio.Lock] = field(
        default_factory=WeakValueDictionary
    )
    _is_compared_by_topic: dict[str, bool] = field(default_factory=dict)

    def apply_settings(self, settings: Settings) -> None:
        self._settings = settings
        self._is_compared_by_topic.clear()

    def is_compared(self, topic: str) -> bool:
        """Return whether a route serves records of the topic as documents.

        A client that compares has the topic read whole, which is for the operator to allow.
        """
        compared = self._is_compared_by_topic.get(topic)
        if compared is None:
            compared = self._is_compared_by_topic[topic] = self._serves_documents(topic)
        return compared

    def _serves_documents(self, topic: str) -> bool:
        return any(
            isinstance(route.with_, FetchWith)
            and any(source.can_render(topic) for source in route.with_.topic_templates)
            and self._settings.get_cluster_name(route) == self._cluster_name
            for route in self._settings.routes
        )

    async def lock_keys(self, topic: str, keys: Iterable[bytes]) -> Callable[[], None]:
        """Wait until nobody else writes these keys, and lock them; return the releasing function.

        The keys are as Kafka has them. The lock covers this process and others that take part in
        `Publisher.key_locks`. Keys are locked in one order, so that no two wait for each other.
        """
        transforms = self._get_topic_settings(topic).transforms
        if any(transform.extract_key is not None for transform in transforms):
            keys = [ANY_KEY]
        releases: list[Callable[[], None]] = []

        def release() -> None:
            while releases:
                releases.pop()()

        try:
            for key in sorted(set(keys)):
                await self._acquire_key(topic, key, releases)
        except BaseException:  # also if cancelled: what was locked so far must not stay locked
            release()
            raise
        return release

    async def _acquire_key(
        self, topic: str, key: bytes, releases: list[Callable[[], None]]
    ) -> None:
        lock = self._key_locks.setdefault((topic, key), asyncio.Lock())
        await lock.acquire()
        releases.append(lock.release)
        key_locks = self._publisher.key_locks
        if key_locks is not None:
            scope = f"{CONDITION_SCOPE}:{self._cluster_name}"
            name = IdempotencyKey(topic, scope, key.decode("latin-1"))
            # Registered first, so that it is also released if the acquisition is cancelled.
            releases.append(lambda: key_locks.release(name))
            await key_locks.acquire(name)
