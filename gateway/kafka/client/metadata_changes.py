"""Find what changed in a topic by an answer with its metadata, and list a cluster's topics."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple
from weakref import WeakKeyDictionary

from gateway.core.error_code import ErrorCode
from gateway.kafka.protocol.requests import PartitionMetadata, TopicMetadata

from .brokers import Brokers
from .shared_tasks import start_shared_task, wait_for_shared


class LeaderChange(NamedTuple):
    before: PartitionMetadata
    after: PartitionMetadata


@dataclass(frozen=True, slots=True)
class TopicChange:
    """The changes that one answer made to one watched topic. It is false without any change.

    `Metadata` creates it and calls its listeners with it.

    Attributes:
        topic: The known state from now on.
        added: Partitions that were not known before, or not since `is_deleted`.
        removed: Partitions that are gone, because the topic was recreated with fewer.
        is_recreated: The topic id changed, so every known offset belongs to another log.
        is_deleted: No broker knows the topic, any more or yet. It stays watched.
        is_denied: The topic may not be described (any more).
        is_restored: The topic was deleted or denied, and is not any more.
    """

    topic: TopicMetadata
    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    leader_changes: dict[int, LeaderChange] = field(default_factory=dict)
    is_recreated: bool = False
    is_deleted: bool = False
    is_denied: bool = False
    is_restored: bool = False

    def __bool__(self) -> bool:
        return bool(
            self.added
            or self.removed
            or self.leader_changes
            or self.is_recreated
            or self.is_deleted
            or self.is_denied
            or self.is_restored
        )


def compare_topics(known: TopicMetadata, answer: TopicMetadata) -> TopicChange:
    """Compare an answer, which may have TOPIC_AUTHORIZATION_FAILED, with the known state.

    An answer may be older than the known state, because brokers learn of changes at different
    times. A partition whose leader epoch is lower in the answer is therefore left as it was
    (KIP-320).
    """
    if answer.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return TopicChange(
            known._replace(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            is_denied=known.error != ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        )
    restored = known.error != 0
    # Brokers before Kafka 2.8 send no topic ids: `Metadata` has the topic deleted first.
    if known.topic_id is not None and answer.topic_id not in (None, known.topic_id):
        return TopicChange(
            answer._replace(error=0),
            added=tuple(sorted(answer.partitions.keys() - known.partitions.keys())),
            removed=tuple(sorted(known.partitions.keys() - answer.partitions.keys())),
            is_recreated=True,
            is_restored=restored,
        )
    partitions = dict(known.partitions)
    leader_changes: dict[int, LeaderChange] = {}
    added: list[int] = []
    for index, after in sorted(answer.partitions.items()):
        before = known.partitions.get(index)
        if before is None:
            added.append(index)
        elif _is_older(before, after):
            continue  # the broker that answered knows less than we do (KIP-320)
        elif after[:2] != before[:2]:  # leader and leader epoch
            leader_changes[index] = LeaderChange(before, after)
        partitions[index] = after
    topic = TopicMetadata(known.name, answer.topic_id or known.topic_id, 0, partitions)
    return TopicChange(
        topic, added=tuple(added), leader_changes=leader_changes, is_restored=restored
    )


def is_any_epoch_lower(known: TopicMetadata, answer: TopicMetadata) -> bool:
    """Return whether a leader epoch is lower in an answer than the known one.

    The broker lags behind (KIP-320), or the topic was created again: epochs then begin at 0.
    """
    return any(
        index in known.partitions and _is_older(known.partitions[index], after)
        for index, after in answer.partitions.items()
    )


def _is_older(before: PartitionMetadata, after: PartitionMetadata) -> bool:
    return 0 <= after.leader_epoch < before.leader_epoch


# A topic that is created meanwhile is found by its name, but not by a pattern.
MAX_AGE_S = 5.0
MATCH_TURN_S = 0.01  # of matching names, after which other tasks run


class TopicNames:
    """The names of all topics of a cluster, at most `max_age_s` old.

    Routes and consumers that choose topics by a pattern need them. Kafka lists topics only together
    with all their partitions (some MB for 10,000 topics), so callers share one request, whose
    answer serves them for a few seconds. Topics that may not be described are not listed.
    """

    def __init__(
        self,
        brokers: Brokers,
        *,
        max_age_s: float = MAX_AGE_S,
        match_turn_s: float = MATCH_TURN_S,
    ) -> None:
        self._brokers = brokers
        self._max_age_s = max_age_s
        self._match_turn_s = match_turn_s
        self._names: frozenset[str] = frozenset()
        self._expires_at = float("-inf")
        self._fetch_task: asyncio.Task[frozenset[str]] | None = None
        self._match_lock = asyncio.Lock()
        # By pattern, the names that it was matched with, and those that it matches.
        self._matches = WeakKeyDictionary[re.Pattern[str], tuple[frozenset[str], frozenset[str]]]()

    async def fetch_all(self) -> frozenset[str]:
        if asyncio.get_running_loop().time() < self._expires_at:
            return self._names
        if self._fetch_task is None or self._fetch_task.done():
            self._fetch_task = start_shared_task(self._fetch())
        return await wait_for_shared(self._fetch_task)

    async def match(self, pattern: re.Pattern[str]) -> frozenset[str]:
        """Return the names that a pattern matches as a whole: the same object until they change.

        There may be thousands of names and of patterns. So each name is matched once, one pattern
        at a time, and other tasks run meanwhile.
        """
        names = await self.fetch_all()
        async with self._match_lock:
            known, matches = self._matches.get(pattern, (frozenset[str](), frozenset[str]()))
            if names is not known:
                found = set(matches & names)
                ends_at = perf_counter() + self._match_turn_s
                for name in names - known:
                    if perf_counter() >= ends_at:
                        await asyncio.sleep(0)
                        ends_at = perf_counter() + self._match_turn_s
                    if pattern.fullmatch(name):
                        found.add(name)
                matches = matches if found == matches else frozenset(found)
                self._matches[pattern] = names, matches
            return matches

    async def close(self) -> None:
        if self._fetch_task is not None:
            self._fetch_task.cancel()
            await asyncio.gather(self._fetch_task, return_exceptions=True)

    async def _fetch(self) -> frozenset[str]:
        _, response = await self._brokers.fetch_metadata(None)
        if self._names != response.topics.keys():
            self._names = frozenset(response.topics)
        self._expires_at = asyncio.get_running_loop().time() + self._max_age_s
        return self._names
