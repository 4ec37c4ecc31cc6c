"""The topics that are read: found, allowed, kept open while somebody looks at them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from gateway.config import Kafka, Topic
from gateway.core.log.record import TopicPartition
from gateway.core.log.recovery import Cause
from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError, UnknownTopic
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import Role
from gateway.kafka.client.outages import label_topic
from gateway.kafka.protocol.fetch_messages import Want
from gateway.telemetry.about import apart

from .feeds import Feeds

PROBE = 1.0  # seconds to wait for a broker's word on access
DENIED = 29
_NOWHERE = 1 << 62  # an offset no log has: the answer carries an error, never records


class Topics:
    """Opens topics: their partitions are read from then on.

    tombstones: seconds for which each compacted topic keeps what it deleted.
    """

    def __init__(self, cluster: Cluster, kafka: Kafka) -> None:
        self.cluster = cluster
        self.tombstones: dict[str, float | None] = {}
        self.feeds: Feeds
        self._bootstrap = kafka.bootstrap
        self._settings: dict[str, Topic] = {topic.name: topic for topic in kafka.topics}
        self._reconnect = kafka.reconnect
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._held: list[Sequence[str]] = []
        self._warming: list[asyncio.Task[None]] = []

    def adopt(self, kafka: Kafka) -> frozenset[str]:
        """Go by these options from now on; the topics of which they are others."""
        names = self._settings.keys() | {topic.name for topic in kafka.topics}
        before = {name: self.settings(name) for name in names}
        for name in set(kafka.bootstrap).difference(self._bootstrap):
            self._warming.append(asyncio.create_task(self._warm(name)))
        self._settings = {topic.name: topic for topic in kafka.topics}
        self._bootstrap, self._reconnect = kafka.bootstrap, kafka.reconnect
        return frozenset(name for name in names if self.settings(name) != before[name])

    def start(self, feeds: Feeds) -> None:
        self.feeds = feeds
        self._warming = [asyncio.create_task(self._warm(name)) for name in self._bootstrap]

    async def close(self) -> None:
        tasks = [*self._warming, *self._opening.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def settings(self, name: str) -> Topic:
        """As configured; of one that is read although it is not, the defaults."""
        return self._settings.get(name) or Topic(name=name, reconnect=self._reconnect)

    def id(self, name: str) -> str:
        """The topic id as text, empty while it is not known."""
        known = self.cluster.topic(name)
        return str(known.topic_id or "") if known is not None else ""

    @property
    def held(self) -> set[str]:
        """What a client is just about to look at."""
        return {name for topics in self._held for name in topics}

    @property
    def wanted(self) -> set[str]:
        """What is to stay open although no client looks at it."""
        return {*self._bootstrap, *self._opening, *self.held}

    def cold(self) -> list[str]:
        """The bootstrap topics of which not every partition has been read yet."""
        return [name for name in self._bootstrap if not self._is_warm(name)]

    def holding(self, topics: Sequence[str]) -> Holding:
        """Nobody looks at a topic while another of the same view is being opened: the sweep
        must not take it for one that is left."""
        return Holding(self._held, topics)

    async def open_by(self, deadline: float, topics: Sequence[str], *, known: bool) -> None:
        """A client is not kept waiting for brokers that do not answer, only for partitions."""
        if all(map(self._is_fine, topics)):
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self._open_all(topics, known=known)
        except TimeoutError:
            why = self.cluster.error or "no broker answered in time"
            raise BrokerUnavailable(f"{why}; try again", retry_after=1.0) from None

    async def _open_all(self, topics: Iterable[str], *, known: bool) -> None:
        for name in topics:
            try:
                await self._open(name)
            except UnknownTopic:
                if not known:
                    raise
                self.cluster.metadata.watch(name)

    async def _open(self, name: str) -> None:
        """Watch a topic and read all of its partitions; once for all who ask."""
        if self.cluster.topic(name) is not None and self._is_open(name):
            await self._check_known(name)
            return
        opening = self._opening.get(name)
        if opening is None:
            opening = self._opening[name] = apart(self._open_topic(name))
            opening.add_done_callback(lambda done: self._opened(name, done))
        await asyncio.shield(opening)

    def _opened(self, name: str, done: asyncio.Task[None]) -> None:
        self._opening.pop(name, None)
        failure = None if done.cancelled() else done.exception()
        if name not in self._settings or name in self._bootstrap:
            return  # clients name others as they like; `_warm` tells of bootstrap topics
        if isinstance(failure, (AccessDenied, UnknownTopic)):
            self.cluster.outages.fail_with(label_topic(name), failure)
        elif failure is None and not done.cancelled():
            self.cluster.outages.recover(label_topic(name), "may be read")

    def _is_open(self, name: str) -> bool:
        return name in self.feeds.by_topic

    def _is_fine(self, name: str) -> bool:
        """It is being read, and nothing is known to be wrong with it: nobody is to be asked."""
        known = self.cluster.topic(name)
        if known is None or known.error or not self._is_open(name):
            return False
        return not self._is_denied(name)

    def _is_denied(self, name: str) -> bool:
        feeds = self.feeds.by_topic[name]  # mostly the first one tells: 0.1 us of a connect, not 1
        if feeds and feeds[0].reading.cause is not Cause.DENIED:
            return False
        return all(feed.reading.cause is Cause.DENIED for feed in feeds)

    async def _check_known(self, name: str) -> None:
        """A topic that is being read may have been deleted or forbidden since."""
        known = self.cluster.topic(name)
        if known is not None and known.error not in (0, DENIED):
            await self.cluster.describe(name)
        if self._is_denied(name) or (known is not None and known.error == DENIED):
            raise AccessDenied(
                f"the gateway may not read {name}; allow it DESCRIBE and READ", topic=name
            )

    async def _open_topic(self, name: str) -> None:
        self.cluster.metadata.watch(name, await self.cluster.describe(name))
        while self.cluster.topic(name) is None:
            await self.cluster.metadata.refresh(f"{name} is new here")
        await self._probe(name)
        self.tombstones[name] = await self._tombstones(name)
        self.feeds.open(name)

    async def _probe(self, name: str) -> None:
        """Raises AccessDenied if the brokers do not let us read. Asked before reading, or
        clients would be begun a stream that can never hold anything."""
        known = self.cluster.topic(name)
        nodes: dict[int, tuple[TopicPartition, Want]] = {}
        for p, partition in (known.partitions if known else {}).items():
            if partition.leader >= 0 and known is not None:
                want = Want(_NOWHERE, partition.leader_epoch, known.topic_id, max_bytes=1)
                nodes.setdefault(partition.leader, (TopicPartition(name, p), want))
        asking = [
            asyncio.create_task(self._may_read(node, *asked)) for node, asked in nodes.items()
        ]
        if not asking:
            return
        try:
            for answer in asyncio.as_completed(asking, timeout=PROBE):
                if await answer is not None:
                    return
        except TimeoutError:
            return
        finally:
            for task in asking:
                task.cancel()

    async def _tombstones(self, name: str) -> float | None:
        try:
            async with asyncio.timeout(PROBE):
                return await self.cluster.deletes_after(name)
        except (KafkaError, TimeoutError):
            return None

    async def _may_read(self, node: int, tp: TopicPartition, want: Want) -> bool | None:
        try:
            got = await self.cluster.fetch(node, Role.CATCHUP, {tp: want}, max_wait=0.0)
        except AccessDenied:
            raise
        except KafkaError:
            return None
        if got[tp].error_code == DENIED:
            raise AccessDenied(
                f"the gateway may not read {tp.topic}; allow it READ", topic=tp.topic
            )
        return True

    async def _warm(self, name: str) -> None:
        while not self._is_open(name):
            try:
                await self._open(name)
            except KafkaError as exc:
                self.cluster.outages.fail_with(f"bootstrap topic={name}", exc)
                await asyncio.sleep(exc.retry_after or 1.0)
        self.cluster.outages.recover(f"bootstrap topic={name}", "is read")

    def _is_warm(self, name: str) -> bool:
        feeds = self.feeds.by_topic.get(name, [])
        return bool(feeds) and all(feed.log.next is not None for feed in feeds)


class Holding:
    """While it is entered, the topics are among those held; 0.5 us, 4 by `contextmanager`."""

    __slots__ = ("_held", "_topics")

    def __init__(self, held: list[Sequence[str]], topics: Sequence[str]) -> None:
        self._held = held
        self._topics = topics

    def __enter__(self) -> None:
        self._held.append(self._topics)

    def __exit__(self, *_: object) -> None:
        self._held.remove(self._topics)
