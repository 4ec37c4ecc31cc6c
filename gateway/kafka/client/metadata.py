"""Watch topics: their partitions, leaders, leader epochs and ids.

All watched topics are refreshed together, periodically and on demand; concurrent callers share one
request. Brokers learn of changes at different times, so an answer may be older than the known
state. Two things are therefore not believed at once: a leader of a lower epoch
(`metadata_changes`), and a single broker that says that a topic is gone or has another id, as after
a deletion and creation. Ids have no order, so an answer does not show whether its id is the later
one. Where brokers have no topic ids (before Kafka 2.8), a topic that was created again shows by its
lower epochs only. `_Claim` says when all this is believed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from uuid import UUID

from gateway.background_tasks import BackgroundTasks, start_shared_task, wait_for_shared
from gateway.core.error_code import UNKNOWN_TOPIC_ERRORS, ErrorCode, code_from_error
from gateway.core.log.record import TopicPartition
from gateway.core.log.recovery import Cause, cause_from_code
from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError, UnknownTopic
from gateway.kafka.protocol.requests import BrokerMetadata, MetadataResponse, TopicMetadata

from .brokers import Brokers, TopicNames
from .connections import CLOSED, Connections
from .metadata_changes import TopicChange, compare_topics, is_any_epoch_lower
from .outages import CLUSTER_LABEL, Outages, format_broker_label

# The interval between refreshes doubles from the first to the second while they follow each other.
_MIN_REFRESH_INTERVAL_S = 0.02
_MAX_REFRESH_INTERVAL_S = 0.25
_QUIET_PERIOD_S = 1.0  # after this time without a refresh, the next one is not delayed

# How long the same must be claimed where no second broker confirms it.
_CLAIM_PERIOD_S = 5.0
_CERTAIN_ANSWERS = 3  # see `refresh_until_certain`

log = logging.getLogger(__name__)


ChangeListener = Callable[[TopicChange], None]


@dataclass(slots=True)
class _Claim:
    """A statement of brokers against the known state: a topic is gone, or is another one.

    It is dropped as soon as a broker says something else, so while it lasts all answers are the
    same. It is believed when two different brokers have said so, or the only one of the cluster.
    Where others cannot be asked, it is believed after a while. The same holds where several lagging
    brokers may agree: on the id of a topic that was replaced, and on lower epochs of one without an
    id.

    Attributes:
        topic_id: The other id; None for a topic that is gone, or without ids.
        since: Loop time of the first answer.
        brokers: The brokers that say so; ids below 0 are bootstrap servers.
    """

    is_missing: bool
    topic_id: UUID | None
    since: float
    brokers: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _WatchedTopic:
    metadata: TopicMetadata
    retired_ids: set[UUID] = field(default_factory=set)  # those that others took the place of
    claim: _Claim | None = None  # what is not believed yet

    @property
    def is_missing(self) -> bool:
        return self.metadata.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class Metadata:
    """The brokers of a cluster and its watched topics.

    Created and owned by `Cluster`. It knows a topic from its first answer after `watch` or
    `acquire_watch` until nobody watches it any more. Its state changes only together with a call of
    the listeners. All topics are refreshed after `max_age` seconds; a claim that no second broker
    can confirm is believed after `claim_period` seconds.

    Attributes:
        error: Why the last refresh failed; None when it succeeded, or before the first one.
    """

    def __init__(
        self,
        connections: Connections,
        bootstrap: Sequence[tuple[str, int]],
        *,
        max_age: float = 2.0,
        hedge_delay: float = 1.0,
        claim_period: float = _CLAIM_PERIOD_S,
        outages: Outages | None = None,
    ) -> None:
        self.error: KafkaError | None = None
        self._outages = outages or Outages(time.monotonic)
        self._brokers = Brokers(connections, bootstrap, hedge_delay)
        self.topic_names = TopicNames(self._brokers)
        self._max_age = max_age
        self._claim_period = claim_period
        self._watch_counts: Counter[str] = Counter()  # of each topic that is watched
        self._watched_once: set[str] = set()  # by `watch`, which counts once
        self._topics: dict[str, _WatchedTopic] = {}
        self._listeners: list[ChangeListener] = []
        self._refresh_task: asyncio.Task[None] | None = None
        # The topics of the last refresh; None until its request is sent.
        self._refreshing_topics: frozenset[str] | None = None
        self._refreshed_at = float("-inf")
        self._refresh_interval = 0.0
        self._wake = asyncio.Event()
        self._periodic_task: asyncio.Task[None] | None = None
        self._requested_refreshes = BackgroundTasks(log)
        self._has_contact = False  # whether a refresh has succeeded
        # The last failures of brokers that were reported, so that only another attempt is news.
        self._known_failures: dict[int, KafkaError] = {}

    @property
    def brokers(self) -> Mapping[int, BrokerMetadata]:
        return self._brokers.by_node

    @property
    def last_responder(self) -> int | None:
        return self._brokers.last_responder

    @property
    def cluster_id(self) -> str | None:
        return self._brokers.cluster_id

    @property
    def is_reachable(self) -> bool:
        return bool(self.brokers) and self.error is None

    def get_topic(self, name: str) -> TopicMetadata | None:
        watched = self._topics.get(name)
        return watched.metadata if watched is not None else None

    def is_doubtful(self, name: str) -> bool:
        watched = self._topics.get(name)
        return watched is not None and watched.claim is not None

    def leader_for_partition(self, tp: TopicPartition) -> tuple[int, int] | None:
        """Return node and leader epoch (-1 if it was not sent); None without a leader."""
        watched = self._topics.get(tp.topic)
        partition = watched.metadata.partitions.get(tp.partition) if watched is not None else None
        if partition is None or partition.leader < 0:
            return None
        return partition.leader, partition.leader_epoch

    def add_listener(self, listener: ChangeListener) -> Callable[[], None]:
        """Call a listener, in the event loop, with every change of a watched topic.

        The function that is returned removes the listener; it may be called once.
        """
        self._listeners.append(listener)
        # The result forgets the listener when it is called. The listener's owner mostly keeps the
        # result, and would otherwise be in a reference cycle with it.
        held = [listener]
        return lambda: self._listeners.remove(held.pop())

    def watch(self, topic: str, described: TopicMetadata | None = None) -> None:
        """Watch a topic until `unwatch`, and while others hold it by `acquire_watch`.

        The answer of `describe_topic` makes it known at once, also if it was missing: the next
        refresh may be 250 ms away.
        """
        if topic not in self._watched_once:
            self._watched_once.add(topic)
            self.acquire_watch(topic)
        if described is not None:
            # Some broker said so; which one matters only for topics that are missing.
            self._merge_topic(described, node=-1)

    def unwatch(self, topic: str) -> None:
        if topic in self._watched_once:
            self._watched_once.remove(topic)
            self.release_watch(topic)

    def acquire_watch(self, topic: str) -> None:
        """Watch a topic until `release_watch` has been called as often as this."""
        self._watch_counts[topic] += 1
        if self._watch_counts[topic] == 1:
            self._wake.set()

    def release_watch(self, topic: str) -> None:
        self._watch_counts[topic] -= 1
        if not self._watch_counts[topic]:
            del self._watch_counts[topic]
            self._topics.pop(topic, None)

    @contextlib.contextmanager
    def watching(self, topics: Iterable[str]) -> Iterator[None]:
        names = tuple(topics)
        for name in names:
            self.acquire_watch(name)
        try:
            yield
        finally:
            for name in names:
                self.release_watch(name)

    def update_leader(
        self, tp: TopicPartition, leader: int, leader_epoch: int, topic_id: UUID | None = None
    ) -> None:
        """Take over a leader that a fetch answer names (KIP-951), if it is newer than the known.

        The leader of a topic that was replaced since is ignored: its epochs are those of another
        log.
        """
        watched = self._topics.get(tp.topic)
        before = watched.metadata.partitions.get(tp.partition) if watched is not None else None
        # A leader whose address is not known cannot be used: the next refresh brings both.
        if watched is None or before is None or leader not in self.brokers:
            return
        if topic_id is not None and topic_id != watched.metadata.topic_id:
            return
        if leader_epoch > before.leader_epoch:
            after = before._replace(leader=leader, leader_epoch=leader_epoch, error=0)
            partitions = {**watched.metadata.partitions, tp.partition: after}
            watched.metadata = watched.metadata._replace(partitions=partitions)
            self._notify_listeners(TopicChange(watched.metadata, leader_changes=(tp.partition,)))

    def start(self) -> None:
        if self._periodic_task is None:
            self._periodic_task = asyncio.create_task(self._refresh_forever())

    async def close(self) -> None:
        tasks = [task for task in (self._periodic_task, self._refresh_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._requested_refreshes.close()
        await self.topic_names.close()
        await self._brokers.close()

    async def refresh(self, reason: str) -> None:
        """Refresh all watched topics and return after the answer.

        Concurrent callers share one request. Refreshes that follow each other are 20 ms to 250 ms
        apart. Raises what `Brokers.fetch_metadata` raises.
        """
        log.debug("metadata refresh: %s", reason)
        if (
            self._refresh_task is not None
            and self._refreshing_topics is not None
            and self._refreshing_topics != self._watch_counts.keys()
        ):
            # The request under way was sent without a topic that is watched now: its answer would
            # not serve this caller. One that is not sent yet will include the topic.
            await asyncio.wait([self._refresh_task])
        # Another caller that waited may have begun the next refresh by now. It is shared.
        if self._refresh_task is None or self._refresh_task.done():
            self._refreshing_topics = None
            self._refresh_task = start_shared_task(self._refresh_once())
        await wait_for_shared(self._refresh_task, BrokerUnavailable(CLOSED))

    async def refresh_until_certain(self, topics: Iterable[str], reason: str) -> None:
        """Refresh until brokers agree which topics have these names now, by their ids.

        That takes three answers that contradict nothing: the first one may be of a request that
        others sent earlier, and the next of a broker that lags behind. It ends after `claim_period`
        anyway.
        """
        names, loop = tuple(topics), asyncio.get_running_loop()
        deadline = loop.time() + self._claim_period
        agreed = 0
        while agreed < _CERTAIN_ANSWERS:
            await self.refresh(reason)
            if any(map(self.is_doubtful, names)):
                agreed = 0
            elif loop.time() < deadline:
                agreed += 1
            else:
                break

    def request_refresh(self, reason: str) -> None:
        """Refresh in the background. A failure goes to the debug log only.

        Concurrent calls start at most two: the second if the first lacks a topic that is watched
        now.
        """
        is_covered = self._refreshing_topics in (None, self._watch_counts.keys())
        if len(self._requested_refreshes) < (1 if is_covered else 2):
            self._requested_refreshes.start(
                self._refresh_unless_away(reason), "a metadata refresh", context=Context()
            )

    async def _refresh_unless_away(self, reason: str) -> None:
        try:
            await self.refresh(reason)
        except KafkaError as exc:
            log.debug("metadata refresh failed: %s", exc)

    async def describe_topic(self, topic: str) -> TopicMetadata:
        """Describe a topic, which need not be watched.

        Raises:
            UnknownTopic: Two different brokers say that it does not exist, or the only one does.
            AccessDenied: The gateway may not describe it.
            BrokerUnavailable: No broker answered.
        """
        watched = self._topics.get(topic)
        if watched is not None and watched.metadata.error == 0 and watched.claim is None:
            return watched.metadata
        missing_at: set[int] = set()
        while True:
            try:
                node, response = await self._brokers.fetch_metadata((topic,), exclude=missing_at)
            except KafkaError:
                if not missing_at:
                    raise
                break  # nobody is left to contradict the one that says it does not exist
            described = response.topics.get(topic, _build_unknown_topic(topic))
            if described.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise AccessDenied(
                    f"the gateway may not describe {topic}; allow it DESCRIBE and READ", topic=topic
                )
            if described.error not in UNKNOWN_TOPIC_ERRORS:
                return described
            missing_at.add(node)
            if self._are_enough(missing_at):
                break
        raise UnknownTopic(
            f"no broker knows the topic {topic}; create it, or correct its name", topic=topic
        )

    def _are_enough(self, nodes: set[int]) -> bool:
        """Return whether two brokers, or the only one, say the same; ids below 0 do not count."""
        return sum(node >= 0 for node in nodes) >= min(2, len(self.brokers))

    async def _refresh_forever(self) -> None:
        while True:
            try:
                await self._refresh_unless_away("age")
                if self.is_reachable:  # else all brokers were asked
                    self._brokers.probe_failed()
            except Exception:
                log.exception("metadata cannot be refreshed; it is tried again")
            # `_wake` cuts the wait short, for a topic that is watched from now on.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._choose_max_age()):
                    await self._wake.wait()
            self._wake.clear()

    def _choose_max_age(self) -> float:
        """Return the seconds until the next refresh: at most 0.25 while a leader is missing."""
        is_leader_missing = any(
            partition.leader < 0
            for watched in self._topics.values()
            for partition in watched.metadata.partitions.values()
        )
        if self.is_reachable and not is_leader_missing:
            return self._max_age
        return min(_MAX_REFRESH_INTERVAL_S, self._max_age)

    async def _refresh_once(self) -> None:
        await self._wait_for_interval()
        self._refreshing_topics = frozenset(self._watch_counts)
        try:
            node, response = await self._brokers.fetch_metadata(
                sorted(self._refreshing_topics), avoid=self._find_doubtful_brokers()
            )
        except KafkaError as exc:
            self.error = exc
            cause = cause_from_code(code_from_error(exc))
            self._outages.report_failure(CLUSTER_LABEL, cause, str(exc))
            # The line about the cluster is about its brokers, too.
            for node in self.brokers:
                failure = self._brokers.get_failure(node)
                if failure is not None:
                    self._known_failures[node] = failure
            raise
        self.error = None
        self._report_reached(response)
        # Some may have been unwatched since the request was sent.
        for name in self._refreshing_topics & self._watch_counts.keys():
            self._merge_topic(response.topics.get(name, _build_unknown_topic(name)), node)
        self._report_leaderless()

    def _report_reached(self, response: MetadataResponse) -> None:
        if self._has_contact:
            self._outages.report_recovery(CLUSTER_LABEL)
        else:
            self._has_contact = True
            count = len(response.brokers)
            self._outages.report_contact(
                f"is connected: cluster {response.cluster_id}, {count} broker{'s' * (count != 1)}"
            )
        for node in self.brokers.keys() | self._known_failures.keys():
            self._report_broker(node)

    def _report_broker(self, node: int) -> None:
        label = format_broker_label(node)
        failure = self._brokers.get_failure(node) if node in self.brokers else None
        if failure is None:
            if self._known_failures.pop(node, None) is not None:
                is_known = node in self.brokers
                how = "answers again" if is_known else "is no longer part of the cluster"
                self._outages.report_recovery(label, how)
        elif failure is not self._known_failures.get(node):
            self._known_failures[node] = failure
            cause = cause_from_code(code_from_error(failure))
            self._outages.report_failure(label, cause, str(failure), broker=node)

    def _report_leaderless(self) -> None:
        leaderless = [
            f"{name}-{number}"
            for name, watched in self._topics.items()
            for number, partition in watched.metadata.partitions.items()
            if partition.leader < 0
        ]
        if not leaderless:
            self._outages.report_recovery("partitions", "have leaders again")
            return
        count = len(leaderless)
        names = ", ".join(leaderless[:10]) + (f" and {count - 10} more" if count > 10 else "")
        subject = "partition has" if count == 1 else "partitions have"
        why = f"{count} {subject} no leader: {names}; start the brokers that have replicas of it"
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
        topics = self._topics.values()
        return {node for topic in topics if topic.claim is not None for node in topic.claim.brokers}

    def _merge_topic(self, answer: TopicMetadata, node: int) -> None:
        """Take over one topic of an answer, unless the answer may be older than the known state."""
        watched = self._topics.get(answer.name)
        if watched is None:
            watched = self._topics[answer.name] = _WatchedTopic(
                TopicMetadata(answer.name, None, 0, {})
            )
        known = watched.metadata
        is_missing = answer.error in UNKNOWN_TOPIC_ERRORS
        if is_missing and watched.is_missing:
            watched.claim = None
            return  # listeners know already
        has_ids = None not in (answer.topic_id, known.topic_id)
        is_other = has_ids and answer.topic_id != known.topic_id
        has_lower_epochs = not has_ids and is_any_epoch_lower(known, answer)
        if not (is_missing or is_other or has_lower_epochs):
            watched.claim = None
        elif self._is_believed(watched, answer, node, is_certain=not has_lower_epochs):
            watched.claim = None
            if is_missing or has_lower_epochs:  # in the latter case it was, and is there again
                self._set_missing(watched)
        else:
            self._wake.set()  # ask another broker soon
            if not has_lower_epochs:
                return
        if is_missing:
            return
        known = watched.metadata
        change = compare_topics(known, answer)
        if change.is_recreated and known.topic_id is not None and answer.topic_id is not None:
            watched.retired_ids.add(known.topic_id)
            watched.retired_ids.discard(answer.topic_id)
        watched.metadata = change.topic
        self._notify_listeners(change)

    def _set_missing(self, watched: _WatchedTopic) -> None:
        watched.metadata = watched.metadata._replace(
            error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partitions={}
        )
        self._notify_listeners(TopicChange(watched.metadata, is_deleted=True))

    def _is_believed(
        self, watched: _WatchedTopic, answer: TopicMetadata, node: int, *, is_certain: bool
    ) -> bool:
        """Return whether it is believed by now that a topic is gone, or was replaced."""
        is_certain = is_certain and answer.topic_id not in watched.retired_ids
        if watched.is_missing and is_certain:
            return True  # the topic of the known id is gone, so this is a later one
        now = asyncio.get_running_loop().time()
        is_missing = answer.error in UNKNOWN_TOPIC_ERRORS
        topic_id = None if is_missing else answer.topic_id
        claim = watched.claim
        if claim is None or (claim.is_missing, claim.topic_id) != (is_missing, topic_id):
            claim = watched.claim = _Claim(is_missing, topic_id, now)
        claim.brokers.add(node)
        if now - claim.since >= self._claim_period:
            return True
        return is_certain and self._are_enough(claim.brokers)

    def _notify_listeners(self, change: TopicChange) -> None:
        if not change:
            return
        # A copy, since listeners may add and remove listeners.
        for listener in tuple(self._listeners):
            try:
                listener(change)
            except Exception:
                log.exception("a listener to metadata changes failed")


def _build_unknown_topic(name: str) -> TopicMetadata:
    return TopicMetadata(name, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, {})
