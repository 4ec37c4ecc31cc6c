"""The topics that are read: found, allowed, kept open while somebody looks at them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from gateway.config import Kafka, Topic
from gateway.core.log.record import TopicPartition
from gateway.core.log.recovery import Cause
from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError, UnknownTopic
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.client.outages import format_topic_label
from gateway.kafka.protocol.fetch_messages import FetchTarget
from gateway.telemetry.log_context import create_detached_task

from .shared_reads import SharedReads

PROBE_TIMEOUT_S = 1.0  # seconds to wait for a broker's word on access
TOPIC_AUTHORIZATION_FAILED = 29
_PROBE_OFFSET = 1 << 62  # an offset no log has: the answer carries an error, never records


class TopicOpener:
    """Opens topics: their partitions are read from then on.

    tombstones: seconds for which each compacted topic keeps what it deleted.
    """

    def __init__(self, cluster: Cluster, kafka: Kafka) -> None:
        self.cluster = cluster
        self.tombstone_retention: dict[str, float | None] = {}
        self.shared_reads: SharedReads
        self._bootstrap = kafka.bootstrap
        self._settings: dict[str, Topic] = {topic.name: topic for topic in kafka.topics}
        self._reconnect = kafka.reconnect
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._held_topics: list[Sequence[str]] = []
        self._bootstrap_tasks: list[asyncio.Task[None]] = []

    def apply_settings(self, kafka: Kafka) -> frozenset[str]:
        """Go by these options from now on; the topics of which they are others."""
        names = self._settings.keys() | {topic.name for topic in kafka.topics}
        before = {name: self.get_settings(name) for name in names}
        for name in set(kafka.bootstrap).difference(self._bootstrap):
            self._bootstrap_tasks.append(asyncio.create_task(self._open_bootstrap(name)))
        self._settings = {topic.name: topic for topic in kafka.topics}
        self._bootstrap, self._reconnect = kafka.bootstrap, kafka.reconnect
        return frozenset(name for name in names if self.get_settings(name) != before[name])

    def start(self, shared_reads: SharedReads) -> None:
        self.shared_reads = shared_reads
        self._bootstrap_tasks = [
            asyncio.create_task(self._open_bootstrap(name)) for name in self._bootstrap
        ]

    async def close(self) -> None:
        tasks = [*self._bootstrap_tasks, *self._opening.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def get_settings(self, name: str) -> Topic:
        """As configured; of one that is read although it is not, the defaults."""
        return self._settings.get(name) or Topic(name=name, reconnect=self._reconnect)

    def get_id(self, name: str) -> str:
        """The topic id as text, empty while it is not known."""
        known = self.cluster.get_topic(name)
        return str(known.topic_id or "") if known is not None else ""

    @property
    def held_topics(self) -> set[str]:
        """What a client is just about to look at."""
        return {name for topics in self._held_topics for name in topics}

    @property
    def required_topics(self) -> set[str]:
        """What is to stay open although no client looks at it."""
        return {*self._bootstrap, *self._opening, *self.held_topics}

    def list_unread_bootstrap(self) -> list[str]:
        """The bootstrap topics of which not every partition has been read yet."""
        return [name for name in self._bootstrap if not self._is_read(name)]

    def hold(self, topics: Sequence[str]) -> TopicHold:
        """Nobody looks at a topic while another of the same view is being opened: the sweep
        must not take it for one that is left."""
        return TopicHold(self._held_topics, topics)

    async def open_topics(
        self, deadline: float, topics: Sequence[str], *, may_be_missing: bool
    ) -> None:
        """A client is not kept waiting for brokers that do not answer, only for partitions."""
        if all(map(self._is_readable, topics)):
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self._open_all(topics, may_be_missing=may_be_missing)
        except TimeoutError:
            why = self.cluster.error or "no broker answered in time"
            raise BrokerUnavailable(f"{why}; try again", retry_after=1.0) from None

    async def _open_all(self, topics: Iterable[str], *, may_be_missing: bool) -> None:
        for name in topics:
            try:
                await self._open_shared(name)
            except UnknownTopic:
                if not may_be_missing:
                    raise
                self.cluster.metadata.watch(name)

    async def _open_shared(self, name: str) -> None:
        """Watch a topic and read all of its partitions; once for all who ask."""
        if self.cluster.get_topic(name) is not None and self._is_open(name):
            await self._check_access(name)
            return
        opening = self._opening.get(name)
        if opening is None:
            opening = self._opening[name] = create_detached_task(self._open_topic(name))
            opening.add_done_callback(lambda done: self._on_opened(name, done))
        await asyncio.shield(opening)

    def _on_opened(self, name: str, done: asyncio.Task[None]) -> None:
        self._opening.pop(name, None)
        failure = None if done.cancelled() else done.exception()
        if name not in self._settings or name in self._bootstrap:
            return  # clients name others as they like; `_warm` tells of bootstrap topics
        if isinstance(failure, (AccessDenied, UnknownTopic)):
            self.cluster.outages.report_error(format_topic_label(name), failure)
        elif failure is None and not done.cancelled():
            self.cluster.outages.report_recovery(format_topic_label(name), "may be read")

    def _is_open(self, name: str) -> bool:
        return name in self.shared_reads.by_topic

    def _is_readable(self, name: str) -> bool:
        """It is being read, and nothing is known to be wrong with it: nobody is to be asked."""
        known = self.cluster.get_topic(name)
        if known is None or known.error or not self._is_open(name):
            return False
        return not self._is_denied(name)

    def _is_denied(self, name: str) -> bool:
        feeds = self.shared_reads.by_topic[
            name
        ]  # mostly the first one tells: 0.1 us of a connect, not 1
        if feeds and feeds[0].reader.cause is not Cause.DENIED:
            return False
        return all(feed.reader.cause is Cause.DENIED for feed in feeds)

    async def _check_access(self, name: str) -> None:
        """A topic that is being read may have been deleted or forbidden since."""
        known = self.cluster.get_topic(name)
        if known is not None and known.error not in (0, TOPIC_AUTHORIZATION_FAILED):
            await self.cluster.describe_topic(name)
        if self._is_denied(name) or (
            known is not None and known.error == TOPIC_AUTHORIZATION_FAILED
        ):
            raise AccessDenied(
                f"the gateway may not read {name}; allow it DESCRIBE and READ", topic=name
            )

    async def _open_topic(self, name: str) -> None:
        self.cluster.metadata.watch(name, await self.cluster.describe_topic(name))
        while self.cluster.get_topic(name) is None:
            await self.cluster.metadata.refresh(f"{name} is new here")
        await self._probe_access(name)
        self.tombstone_retention[name] = await self._fetch_tombstone_retention(name)
        self.shared_reads.open_topic(name)

    async def _probe_access(self, name: str) -> None:
        """Raises AccessDenied if the brokers do not let us read. Asked before reading, or
        clients would be begun a stream that can never hold anything."""
        known = self.cluster.get_topic(name)
        nodes: dict[int, tuple[TopicPartition, FetchTarget]] = {}
        for p, partition in (known.partitions if known else {}).items():
            if partition.leader >= 0 and known is not None:
                want = FetchTarget(
                    _PROBE_OFFSET, partition.leader_epoch, known.topic_id, max_bytes=1
                )
                nodes.setdefault(partition.leader, (TopicPartition(name, p), want))
        asking = [
            asyncio.create_task(self._check_read_access(node, *asked))
            for node, asked in nodes.items()
        ]
        if not asking:
            return
        try:
            for answer in asyncio.as_completed(asking, timeout=PROBE_TIMEOUT_S):
                if await answer is not None:
                    return
        except TimeoutError:
            return
        finally:
            for task in asking:
                task.cancel()

    async def _fetch_tombstone_retention(self, name: str) -> float | None:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                return await self.cluster.fetch_delete_retention(name)
        except (KafkaError, TimeoutError):
            return None

    async def _check_read_access(
        self, node: int, tp: TopicPartition, want: FetchTarget
    ) -> bool | None:
        try:
            got = await self.cluster.fetch(node, ConnectionRole.CATCHUP, {tp: want}, max_wait=0.0)
        except AccessDenied:
            raise
        except KafkaError:
            return None
        if got[tp].error_code == TOPIC_AUTHORIZATION_FAILED:
            raise AccessDenied(
                f"the gateway may not read {tp.topic}; allow it READ", topic=tp.topic
            )
        return True

    async def _open_bootstrap(self, name: str) -> None:
        while not self._is_open(name):
            try:
                await self._open_shared(name)
            except KafkaError as exc:
                self.cluster.outages.report_error(f"bootstrap topic={name}", exc)
                await asyncio.sleep(exc.retry_after or 1.0)
        self.cluster.outages.report_recovery(f"bootstrap topic={name}", "is read")

    def _is_read(self, name: str) -> bool:
        feeds = self.shared_reads.by_topic.get(name, [])
        return bool(feeds) and all(feed.log.next_offset is not None for feed in feeds)


class TopicHold:
    """While it is entered, the topics are among those held; 0.5 us, 4 by `contextmanager`."""

    __slots__ = ("_held_topics", "_topics")

    def __init__(self, held_topics: list[Sequence[str]], topics: Sequence[str]) -> None:
        self._held_topics = held_topics
        self._topics = topics

    def __enter__(self) -> None:
        self._held_topics.append(self._topics)

    def __exit__(self, *_: object) -> None:
        self._held_topics.remove(self._topics)
