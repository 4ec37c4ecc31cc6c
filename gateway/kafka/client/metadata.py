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
from gateway.kafka.protocol.requests import BrokerMetadata, TopicMetadata
from gateway.telemetry.log_context import create_detached_task

from .brokers import Brokers
from .connections import Connections
from .failures import is_caller_cancelled
from .metadata_changes import TOPIC_AUTHORIZATION_FAILED, LeaderChange, TopicChange, compare_topics
from .outages import Outages
from .topic_names import TopicNames

UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TOPIC = 17
_MIN_REFRESH_INTERVAL_S = (
    0.02  # seconds between refreshes, growing to _LATER while they follow each other
)
_MAX_REFRESH_INTERVAL_S = 0.25
_QUIET_PERIOD_S = 1.0  # seconds without a refresh after which the next one is not delayed

log = logging.getLogger(__name__)


ChangeListener = Callable[[TopicChange], None]


@dataclass(slots=True)
class _WatchedTopic:
    """A watched topic: what is known, and which brokers say that there is none."""

    metadata: TopicMetadata
    retired_ids: set[UUID] = field(default_factory=set)
    missing_at: set[int] = field(default_factory=set)


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
        hedge_delay: float = 1.0,
        outages: Outages | None = None,
    ) -> None:
        self.error: KafkaError | None = None
        self._outages = outages or Outages(time.monotonic)
        self._brokers = Brokers(connections, bootstrap, hedge_delay)
        self.topic_names = TopicNames(self._brokers)
        self._max_age = max_age
        self._watched: set[str] = set()
        self._watched_once: set[str] = set()  # by `watch`
        self._watch_counts: Counter[str] = Counter()  # by `keep`
        self._topics: dict[str, _WatchedTopic] = {}
        self._listeners: list[ChangeListener] = []
        self._refresh_task: asyncio.Task[None] | None = None
        self._refreshing_topics: frozenset[str] | None = (
            None  # topics of the round, once it was sent
        )
        self._refreshed_at = float("-inf")
        self._refresh_interval = 0.0
        self._wake = asyncio.Event()
        self._periodic_task: asyncio.Task[None] | None = None

    @property
    def brokers(self) -> Mapping[int, BrokerMetadata]:
        """By node id, as of the last answer."""
        return self._brokers.by_node

    @property
    def last_responder(self) -> int | None:
        """The broker that answered last: the best guess at one that answers now."""
        return self._brokers.last_responder

    @property
    def cluster_id(self) -> str | None:
        return self._brokers.cluster_id

    @property
    def is_reachable(self) -> bool:
        """A broker answered, and none of the refreshes since then failed."""
        return bool(self.brokers) and self.error is None

    def get_topic(self, name: str) -> TopicMetadata | None:
        """A watched topic as last told; None before the first answer."""
        watched = self._topics.get(name)
        return watched.metadata if watched is not None else None

    def leader_for_partition(self, tp: TopicPartition) -> tuple[int, int] | None:
        """Node and leader epoch (-1: not told) of a watched partition, None without leader."""
        watched = self._topics.get(tp.topic)
        partition = watched.metadata.partitions.get(tp.partition) if watched is not None else None
        if partition is None or partition.leader < 0:
            return None
        return partition.leader, partition.leader_epoch

    def add_listener(self, listener: ChangeListener) -> Callable[[], None]:
        """Call `listener` with every change, in the loop; calling the result ends that."""
        self._listeners.append(listener)
        held = [listener]  # let go with the call: who keeps the result is mostly the listener
        return lambda: self._listeners.remove(held.pop())

    def watch(self, topic: str, described: TopicMetadata | None = None) -> None:
        """Keep a topic up to date; its first answer comes soon, as a change.

        described: what `describe` has just said of it. It is known at once then, also where it was
        watched and gone: the next refresh may be 250 ms away, when topics are opened one after
        the other.
        """
        self._watched_once.add(topic)
        self._start_watching(topic, described)

    def unwatch(self, topic: str) -> None:
        self._watched_once.discard(topic)
        self._stop_watching(topic)

    def acquire_watch(self, topic: str) -> None:
        """As `watch`, by one of many who come and go: until each has called `let_go`."""
        self._watch_counts[topic] += 1
        self._start_watching(topic, None)

    def release_watch(self, topic: str) -> None:
        self._watch_counts[topic] -= 1
        if not self._watch_counts[topic]:
            del self._watch_counts[topic]
            self._stop_watching(topic)

    def _start_watching(self, topic: str, described: TopicMetadata | None) -> None:
        if topic not in self._watched:
            self._watched.add(topic)
            self._wake.set()
        if described is not None:
            self._merge_topic(described, node=-1)

    def _stop_watching(self, topic: str) -> None:
        if topic not in self._watched_once and topic not in self._watch_counts:
            self._watched.discard(topic)
            self._topics.pop(topic, None)

    def update_leader(self, tp: TopicPartition, leader: int, leader_epoch: int) -> None:
        """Believe a newer leader that a broker told on the way (KIP-951)."""
        watched = self._topics.get(tp.topic)
        before = watched.metadata.partitions.get(tp.partition) if watched is not None else None
        if watched is None or before is None or leader not in self.brokers:
            return
        if leader_epoch > before.leader_epoch:
            after = before._replace(leader=leader, leader_epoch=leader_epoch, error=0)
            partitions = {**watched.metadata.partitions, tp.partition: after}
            watched.metadata = watched.metadata._replace(partitions=partitions)
            self._notify_listeners(
                TopicChange(
                    watched.metadata, leader_changes={tp.partition: LeaderChange(before, after)}
                )
            )

    def start(self) -> None:
        """Refresh from now on: every `max_age`, and soon after `watch`."""
        if self._periodic_task is None:
            self._periodic_task = asyncio.create_task(self._refresh_forever())

    async def close(self) -> None:
        tasks = [task for task in (self._periodic_task, self._refresh_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.topic_names.close()
        await self._brokers.close()

    async def refresh(self, reason: str) -> None:
        """Ask for everything watched, once for all who ask now; returns after the answer.

        Refreshes that follow each other are 20 ms to 250 ms apart. Raises BrokerUnavailable
        or AuthenticationFailed when no broker answered.
        """
        log.debug("metadata refresh: %s", reason)
        if (
            self._refresh_task is not None
            and self._refreshing_topics is not None
            and self._refreshing_topics != self._watched
        ):
            await asyncio.wait([self._refresh_task])  # it was sent without what is watched now
        if self._refresh_task is None or self._refresh_task.done():
            self._refreshing_topics = None
            self._refresh_task = create_detached_task(self._refresh_once())
            self._refresh_task.add_done_callback(_consume_exception)
        current = self._refresh_task
        try:
            await asyncio.shield(current)
        except asyncio.CancelledError:
            if is_caller_cancelled(current):
                raise
            raise BrokerUnavailable("the connections to Kafka are closed") from None

    async def describe_topic(self, topic: str) -> TopicMetadata:
        """A topic that need not be watched.

        Raises UnknownTopic only when two different brokers say so (where there are two),
        AccessDenied, BrokerUnavailable, AuthenticationFailed.
        """
        watched = self._topics.get(topic)
        if watched is not None and watched.metadata.error == 0 and not watched.missing_at:
            return watched.metadata
        denials: set[int] = set()
        while True:
            try:
                node, answer = await self._brokers.fetch_metadata((topic,), exclude=denials)
            except KafkaError:
                if not denials:
                    raise
                break
            found = answer.topics.get(topic, _build_unknown_topic(topic))
            if found.error == TOPIC_AUTHORIZATION_FAILED:
                raise AccessDenied(
                    f"the gateway may not describe {topic}; allow it DESCRIBE and READ",
                    topic=topic,
                )
            if found.error not in (UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC):
                return found
            denials.add(node)
            if self._is_confirmed_missing(denials):
                break
        raise UnknownTopic(
            f"no broker knows the topic {topic}; create it, or correct its name", topic=topic
        )

    def _is_confirmed_missing(self, denials: set[int]) -> bool:
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
                async with asyncio.timeout(self._choose_max_age()):
                    await self._wake.wait()
            self._wake.clear()

    def _choose_max_age(self) -> float:
        """Seconds that an answer is good for: a partition without a leader is waited for, and
        nothing but the next answer tells that it has one again."""
        known = [watched.metadata for watched in self._topics.values()]
        led = all(p.leader >= 0 for topic in known for p in topic.partitions.values())
        return (
            self._max_age
            if self.is_reachable and led
            else min(_MAX_REFRESH_INTERVAL_S, self._max_age)
        )

    async def _refresh_once(self) -> None:
        await self._wait_for_interval()
        self._refreshing_topics = frozenset(self._watched)
        try:
            node, answer = await self._brokers.fetch_metadata(
                sorted(self._refreshing_topics), avoid=self._find_doubtful_brokers()
            )
        except KafkaError as exc:
            self.error = exc
            self._outages.report_error("Kafka", exc)
            raise
        self.error = None
        self._outages.report_recovery("Kafka")
        for name in self._refreshing_topics & self._watched:
            self._merge_topic(answer.topics.get(name, _build_unknown_topic(name)), node)
        self._report_leaderless()

    def _report_leaderless(self) -> None:
        lacking = [
            f"{name}-{number}"
            for name, watched in self._topics.items()
            for number, partition in watched.metadata.partitions.items()
            if partition.leader < 0
        ]
        if not lacking:
            self._outages.report_recovery("partitions", "have leaders again")
            return
        names = ", ".join(lacking[:10]) + (f" and {len(lacking) - 10} more" if lacking[10:] else "")
        what = "partition has" if len(lacking) == 1 else "partitions have"
        why = (
            f"{len(lacking)} {what} no leader: {names}; start the brokers that have replicas of it"
        )
        self._outages.report_failure("partitions", Cause.NO_LEADER, why)

    async def _wait_for_interval(self) -> None:
        loop = asyncio.get_running_loop()
        since = loop.time() - self._refreshed_at
        self._refresh_interval = (
            0.0
            if since > _QUIET_PERIOD_S
            else min(
                max(2 * self._refresh_interval, _MIN_REFRESH_INTERVAL_S), _MAX_REFRESH_INTERVAL_S
            )
        )
        if since < self._refresh_interval:
            await asyncio.sleep(self._refresh_interval - since)
        self._refreshed_at = loop.time()

    def _find_doubtful_brokers(self) -> set[int]:
        """Brokers that do not know a topic which others may know: ask those others."""
        topics = self._topics.values()
        return {node for topic in topics if topic.metadata.error == 0 for node in topic.missing_at}

    def _merge_topic(self, answer: TopicMetadata, node: int) -> None:
        """Take one topic of an answer, unless it is older than what is known."""
        watched = self._topics.get(answer.name)
        if watched is None:
            watched = self._topics[answer.name] = _WatchedTopic(
                TopicMetadata(answer.name, None, 0, {})
            )
        if answer.error in (UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC):
            self._mark_missing(watched, node)
        elif answer.topic_id is None or answer.topic_id not in watched.retired_ids:
            watched.missing_at.clear()
            change = compare_topics(watched.metadata, answer)
            if change.is_recreated and watched.metadata.topic_id is not None:
                watched.retired_ids.add(watched.metadata.topic_id)
            watched.metadata = change.topic
            self._notify_listeners(change)

    def _mark_missing(self, watched: _WatchedTopic, node: int) -> None:
        watched.missing_at.add(node)
        known = watched.metadata
        if known.error == UNKNOWN_TOPIC_OR_PARTITION:
            return
        if self._is_confirmed_missing(watched.missing_at):
            watched.metadata = known._replace(error=UNKNOWN_TOPIC_OR_PARTITION, partitions={})
            self._notify_listeners(TopicChange(watched.metadata, is_deleted=True))
        else:
            self._wake.set()  # hear another broker

    def _notify_listeners(self, change: TopicChange) -> None:
        if not change:
            return
        for listener in tuple(self._listeners):
            try:
                listener(change)
            except Exception:
                log.exception("a listener to metadata failed")


def _build_unknown_topic(name: str) -> TopicMetadata:
    return TopicMetadata(name, None, UNKNOWN_TOPIC_OR_PARTITION, {})


def _consume_exception(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # told to those who wait; where nobody does, no warning either
