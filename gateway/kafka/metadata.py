"""What the brokers say about topics: leaders, epochs, ids.

One refresh serves all who ask at the same time. It asks the broker that failed longest ago,
turns to another after a second of silence (a frozen broker raises nothing), and keeps what it
knows against older answers: brokers learn of changes at different times, so an answer with a
lower leader epoch (KIP-320) or with the id of a topic that was replaced is not believed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from gateway.core.record import TopicPartition
from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError, UnknownTopic

from .changes import DENIED, Change, Moved, difference
from .connections import Connections, Role
from .messages import BrokerAnswer, MetadataAnswer, MetadataRequest, TopicAnswer

UNKNOWN_TOPIC = 3
INVALID_TOPIC = 17
_SOON = 0.02  # seconds between refreshes, growing to _LATER while they follow each other
_LATER = 0.25
_CALM = 1.0  # seconds without a refresh after which the next one is not delayed

log = logging.getLogger(__name__)


Listener = Callable[[Change], None]


@dataclass(slots=True)
class _Topic:
    """A watched topic: what is known, and which brokers say that there is none."""

    known: TopicAnswer
    retired: set[UUID] = field(default_factory=set)
    missing: set[int] = field(default_factory=set)


class Metadata:
    """The brokers, and the topics watched.

    bootstrap: host and port of the servers to begin with.
    max_age:   seconds after which everything watched is asked for again.
    hedge:     seconds of silence after which another broker is asked as well.
    """

    def __init__(
        self,
        connections: Connections,
        bootstrap: Sequence[tuple[str, int]],
        *,
        max_age: float = 2.0,
        hedge: float = 1.0,
    ) -> None:
        self.cluster_id: str | None = None
        self.brokers: dict[int, BrokerAnswer] = {}
        self.error: KafkaError | None = None
        self._connections = connections
        self._bootstrap = tuple(-1 - index for index in range(len(bootstrap)))
        self._max_age = max_age
        self._hedge = hedge
        self._watched: set[str] = set()
        self._topics: dict[str, _Topic] = {}
        self._listeners: list[Listener] = []
        self._failed_at: dict[int, float] = {}
        self._asking: dict[asyncio.Task[MetadataAnswer], int] = {}
        self._round: asyncio.Task[None] | None = None
        self._asked: frozenset[str] | None = None  # topics of the round, once it was sent
        self._round_at = float("-inf")
        self._interval = 0.0
        self._wake = asyncio.Event()
        self._periodic: asyncio.Task[None] | None = None
        connections.know(dict(zip(self._bootstrap, bootstrap, strict=True)))

    @property
    def reachable(self) -> bool:
        """A broker answered, and none of the refreshes since then failed."""
        return bool(self.brokers) and self.error is None

    def topic(self, name: str) -> TopicAnswer | None:
        """A watched topic as last told; None before the first answer."""
        watched = self._topics.get(name)
        return watched.known if watched is not None else None

    def leader(self, tp: TopicPartition) -> tuple[int, int] | None:
        """Node and leader epoch (-1: not told) of a watched partition, None without leader."""
        watched = self._topics.get(tp.topic)
        partition = watched.known.partitions.get(tp.partition) if watched is not None else None
        if partition is None or partition.leader < 0:
            return None
        return partition.leader, partition.leader_epoch

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every change, in the loop; calling the result ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def watch(self, topic: str) -> None:
        """Keep a topic up to date; its first answer comes soon, as a change."""
        if topic not in self._watched:
            self._watched.add(topic)
            self._wake.set()

    def unwatch(self, topic: str) -> None:
        self._watched.discard(topic)
        self._topics.pop(topic, None)

    def hint(self, tp: TopicPartition, leader: int, leader_epoch: int) -> None:
        """Believe a newer leader that a broker told on the way (KIP-951)."""
        watched = self._topics.get(tp.topic)
        before = watched.known.partitions.get(tp.partition) if watched is not None else None
        if watched is None or before is None or leader not in self.brokers:
            return
        if leader_epoch > before.leader_epoch:
            after = before._replace(leader=leader, leader_epoch=leader_epoch, error=0)
            partitions = {**watched.known.partitions, tp.partition: after}
            watched.known = watched.known._replace(partitions=partitions)
            self._tell(Change(watched.known, moved={tp.partition: Moved(before, after)}))

    def start(self) -> None:
        """Refresh from now on: every `max_age`, and soon after `watch`."""
        if self._periodic is None:
            self._periodic = asyncio.create_task(self._refresh_forever())

    async def close(self) -> None:
        tasks = [*self._asking, *(task for task in (self._periodic, self._round) if task)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def refresh(self, reason: str) -> None:
        """Ask for everything watched, once for all who ask now; returns after the answer.

        Refreshes that follow each other are 20 ms to 250 ms apart. Raises BrokerUnavailable
        or AuthenticationFailed when no broker answered.
        """
        log.debug("metadata refresh: %s", reason)
        if self._round is not None and self._asked is not None and self._asked != self._watched:
            await asyncio.wait([self._round])  # it was sent without what is watched now
        if self._round is None or self._round.done():
            self._asked = None
            self._round = asyncio.create_task(self._refresh_once())
            self._round.add_done_callback(_retrieve)
        await asyncio.shield(self._round)

    async def describe(self, topic: str) -> TopicAnswer:
        """A topic that need not be watched.

        Raises UnknownTopic only when two different brokers say so (where there are two),
        AccessDenied, BrokerUnavailable, AuthenticationFailed.
        """
        watched = self._topics.get(topic)
        if watched is not None and watched.known.error == 0 and not watched.missing:
            return watched.known
        denials: set[int] = set()
        while True:
            try:
                node, answer = await self._ask((topic,), denials)
            except KafkaError:
                if not denials:
                    raise
                break
            found = answer.topics.get(topic, _unknown(topic))
            if found.error == DENIED:
                raise AccessDenied(
                    f"the gateway may not describe {topic}; allow it DESCRIBE and READ",
                    topic=topic,
                )
            if found.error not in (UNKNOWN_TOPIC, INVALID_TOPIC):
                return found
            denials.add(node)
            if self._enough(denials):
                break
        raise UnknownTopic(
            f"no broker knows the topic {topic}; create it, or correct its name", topic=topic
        )

    def _enough(self, denials: set[int]) -> bool:
        """Two different brokers said no. A bootstrap server may be one of them again."""
        return sum(node >= 0 for node in denials) >= min(2, len(self.brokers))

    async def _refresh_forever(self) -> None:
        while True:
            try:
                await self.refresh("age")
            except KafkaError as exc:
                log.debug("metadata refresh failed: %s", exc)
            age = self._max_age if self.reachable else _LATER
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(age):
                    await self._wake.wait()
            self._wake.clear()

    async def _refresh_once(self) -> None:
        await self._space()
        self._asked = frozenset(self._watched)
        try:
            node, answer = await self._ask(sorted(self._asked), self._doubtful())
        except KafkaError as exc:
            self.error = exc
            raise
        self.error = None
        for name in self._asked & self._watched:
            self._merge(answer.topics.get(name, _unknown(name)), node)

    async def _space(self) -> None:
        loop = asyncio.get_running_loop()
        since = loop.time() - self._round_at
        self._interval = 0.0 if since > _CALM else min(max(2 * self._interval, _SOON), _LATER)
        if since < self._interval:
            await asyncio.sleep(self._interval - since)
        self._round_at = loop.time()

    def _doubtful(self) -> set[int]:
        """Brokers that do not know a topic which others may know: ask those others."""
        topics = self._topics.values()
        return {node for topic in topics if topic.known.error == 0 for node in topic.missing}

    async def _ask(self, topics: Sequence[str], doubted: set[int]) -> tuple[int, MetadataAnswer]:
        """The first answer, and whose it is. A silent broker is left behind, not waited for.

        doubted: brokers to ask only if all others fail; never twice in one `describe`.
        """
        left = self._candidates(doubted)
        asked: dict[asyncio.Task[MetadataAnswer], int] = {}
        error: BaseException = BrokerUnavailable("no broker is left to ask for metadata")
        while left or asked:
            if left:
                node = left.pop(0)
                asked[self._request(node, topics)] = node
            done, _ = await asyncio.wait(
                asked,
                timeout=self._hedge if left else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not done:
                now = asyncio.get_running_loop().time()
                self._failed_at.update(dict.fromkeys(asked.values(), now))
            for task in done:
                node = asked.pop(task)
                failure = task.exception()
                if failure is None:
                    self._learn(task.result())
                    return node, task.result()
                error = failure
        raise error

    def _candidates(self, doubted: set[int]) -> list[int]:
        """Whom to ask, in order: who failed longest ago first; bootstrap servers last."""
        busy = set(self._asking.values())
        known = sorted(
            self.brokers, key=lambda node: (node in busy, self._failed_at.get(node, 0.0), node)
        )
        return [node for node in (*known, *self._bootstrap) if node not in doubted]

    def _request(self, node: int, topics: Sequence[str]) -> asyncio.Task[MetadataAnswer]:
        """Ask one broker. Goes on when nobody waits any more: so that its silence is noted."""
        task = asyncio.create_task(self._send(node, topics))
        self._asking[task] = node
        task.add_done_callback(self._answered)
        return task

    async def _send(self, node: int, topics: Sequence[str]) -> MetadataAnswer:
        answer = await self._connections.send(node, Role.CONTROL, MetadataRequest(topics))
        if not answer.brokers:
            raise BrokerUnavailable(f"broker {node} knows no brokers yet: it is starting")
        return answer

    def _answered(self, task: asyncio.Task[MetadataAnswer]) -> None:
        node = self._asking.pop(task)
        if task.cancelled() or task.exception() is not None:
            self._failed_at[node] = task.get_loop().time()

    def _learn(self, answer: MetadataAnswer) -> None:
        self.cluster_id = answer.cluster_id
        self.brokers = {broker.node: broker for broker in answer.brokers}
        self._connections.know({b.node: (b.host, b.port) for b in answer.brokers})

    def _merge(self, answer: TopicAnswer, node: int) -> None:
        """Take one topic of an answer, unless it is older than what is known."""
        watched = self._topics.get(answer.name)
        if watched is None:
            watched = self._topics[answer.name] = _Topic(TopicAnswer(answer.name, None, 0, {}))
        if answer.error in (UNKNOWN_TOPIC, INVALID_TOPIC):
            self._miss(watched, node)
        elif answer.topic_id is None or answer.topic_id not in watched.retired:
            watched.missing.clear()
            change = difference(watched.known, answer)
            if change.recreated and watched.known.topic_id is not None:
                watched.retired.add(watched.known.topic_id)
            watched.known = change.topic
            self._tell(change)

    def _miss(self, watched: _Topic, node: int) -> None:
        watched.missing.add(node)
        known = watched.known
        if known.error == UNKNOWN_TOPIC:
            return
        if self._enough(watched.missing):
            watched.known = known._replace(error=UNKNOWN_TOPIC, partitions={})
            self._tell(Change(watched.known, deleted=True))
        else:
            self._wake.set()  # hear another broker

    def _tell(self, change: Change) -> None:
        if not change:
            return
        for listener in tuple(self._listeners):
            try:
                listener(change)
            except Exception:
                log.exception("a listener to metadata failed")


def _unknown(name: str) -> TopicAnswer:
    return TopicAnswer(name, None, UNKNOWN_TOPIC, {})


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # told to those who wait; where nobody does, no warning either
