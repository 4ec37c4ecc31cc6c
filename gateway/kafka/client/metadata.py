"""What the brokers say about topics: leaders, epochs, ids.

One refresh serves all who ask at the same time, and keeps what it knows against older answers:
brokers learn of changes at different times, so neither a leader of a lower epoch
(`metadata_changes`) nor the id of a topic that was replaced is believed, nor a single broker that a
topic is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from gateway.core.log.record import TopicPartition
from gateway.core.log.recovery import Cause
from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError, UnknownTopic
from gateway.kafka.protocol.requests import BrokerAnswer, TopicAnswer
from gateway.telemetry.about import apart

from .brokers import Brokers
from .connections import Connections
from .failures import cancels_caller
from .metadata_changes import DENIED, Change, Moved, difference
from .outages import Outages
from .topic_names import TopicNames

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
    outages:   where it says what fails.
    """

    def __init__(
        self,
        connections: Connections,
        bootstrap: Sequence[tuple[str, int]],
        *,
        max_age: float = 2.0,
        hedge: float = 1.0,
        outages: Outages | None = None,
    ) -> None:
        self.error: KafkaError | None = None
        self._outages = outages or Outages(time.monotonic)
        self._brokers = Brokers(connections, bootstrap, hedge)
        self.names = TopicNames(self._brokers)
        self._max_age = max_age
        self._watched: set[str] = set()
        self._wanted: set[str] = set()  # by `watch`
        self._kept: Counter[str] = Counter()  # by `keep`
        self._topics: dict[str, _Topic] = {}
        self._listeners: list[Listener] = []
        self._round: asyncio.Task[None] | None = None
        self._asked: frozenset[str] | None = None  # topics of the round, once it was sent
        self._round_at = float("-inf")
        self._interval = 0.0
        self._wake = asyncio.Event()
        self._periodic: asyncio.Task[None] | None = None

    @property
    def brokers(self) -> Mapping[int, BrokerAnswer]:
        """By node id, as of the last answer."""
        return self._brokers.known

    @property
    def answered(self) -> int | None:
        """The broker that answered last: the best guess at one that answers now."""
        return self._brokers.answered

    @property
    def cluster_id(self) -> str | None:
        return self._brokers.cluster_id

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
        held = [listener]  # let go with the call: who keeps the result is mostly the listener
        return lambda: self._listeners.remove(held.pop())

    def watch(self, topic: str, described: TopicAnswer | None = None) -> None:
        """Keep a topic up to date; its first answer comes soon, as a change.

        described: what `describe` has just said of it. It is known at once then, also where it was
        watched and gone: the next refresh may be 250 ms away, when topics are opened one after
        the other.
        """
        self._wanted.add(topic)
        self._begin(topic, described)

    def unwatch(self, topic: str) -> None:
        self._wanted.discard(topic)
        self._end(topic)

    def keep(self, topic: str) -> None:
        """As `watch`, by one of many who come and go: until each has called `let_go`."""
        self._kept[topic] += 1
        self._begin(topic, None)

    def let_go(self, topic: str) -> None:
        self._kept[topic] -= 1
        if not self._kept[topic]:
            del self._kept[topic]
            self._end(topic)

    def _begin(self, topic: str, described: TopicAnswer | None) -> None:
        if topic not in self._watched:
            self._watched.add(topic)
            self._wake.set()
        if described is not None:
            self._merge(described, node=-1)

    def _end(self, topic: str) -> None:
        if topic not in self._wanted and topic not in self._kept:
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
        tasks = [task for task in (self._periodic, self._round) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.names.close()
        await self._brokers.close()

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
            self._round = apart(self._refresh_once())
            self._round.add_done_callback(_retrieve)
        current = self._round
        try:
            await asyncio.shield(current)
        except asyncio.CancelledError:
            if cancels_caller(current):
                raise
            raise BrokerUnavailable("the connections to Kafka are closed") from None

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
                node, answer = await self._brokers.ask((topic,), never=denials)
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
            except Exception:
                log.exception("metadata cannot be refreshed; it is tried again")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._age()):
                    await self._wake.wait()
            self._wake.clear()

    def _age(self) -> float:
        """Seconds that an answer is good for: a partition without a leader is waited for, and
        nothing but the next answer tells that it has one again."""
        known = [watched.known for watched in self._topics.values()]
        led = all(p.leader >= 0 for topic in known for p in topic.partitions.values())
        return self._max_age if self.reachable and led else min(_LATER, self._max_age)

    async def _refresh_once(self) -> None:
        await self._space()
        self._asked = frozenset(self._watched)
        try:
            node, answer = await self._brokers.ask(sorted(self._asked), last=self._doubtful())
        except KafkaError as exc:
            self.error = exc
            self._outages.fail_with("Kafka", exc)
            raise
        self.error = None
        self._outages.recover("Kafka")
        for name in self._asked & self._watched:
            self._merge(answer.topics.get(name, _unknown(name)), node)
        self._tell_leaderless()

    def _tell_leaderless(self) -> None:
        lacking = [
            f"{name}-{number}"
            for name, watched in self._topics.items()
            for number, partition in watched.known.partitions.items()
            if partition.leader < 0
        ]
        if not lacking:
            self._outages.recover("partitions", "have leaders again")
            return
        names = ", ".join(lacking[:10]) + (f" and {len(lacking) - 10} more" if lacking[10:] else "")
        what = "partition has" if len(lacking) == 1 else "partitions have"
        why = (
            f"{len(lacking)} {what} no leader: {names}; start the brokers that have replicas of it"
        )
        self._outages.fail("partitions", Cause.NO_LEADER, why)

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
