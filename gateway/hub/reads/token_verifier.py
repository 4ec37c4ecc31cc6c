"""Decide what of a client's resume token is believed, before anything is allocated for it.

A token is a claim: any client that may have a stream can invent one, unless tokens have a MAC.

- It may name as many partitions of a topic as metadata knows, or knew, and `MAX_UNKNOWN_PARTITIONS`
  more: metadata here may be behind that of the gateway that issued it. If it names more than are
  known, metadata is refreshed first. Partitions that only the token knows stay in its own client's
  subscription.
- Where its route limits `history`, it may go back as far as `?from=`, and `tokens.resume` further:
  a client that was cut off must go on exactly where it stopped, and its time of issue is a claim as
  well. Records that this process received lately, by its own clock, are recent; that costs nothing
  to find out. For older positions, Kafka is asked for the offset of the oldest time allowed, once
  in `OLDEST_OFFSET_TTL_S` for all clients. It goes by the records' timestamps, which are the
  producers' clocks, so `clockSkew` is added. If they are further behind than all that, a client is
  refused that was away for longer than `cache` reaches, or during a restart.
- With a secret, a token that this very route issued for the same view goes back however far.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from gateway.config import Tokens
from gateway.core.channel.tail import Tail
from gateway.core.log.partition_reader import LATEST
from gateway.core.log.record import RETIRED_EPOCH, PartitionPosition, TopicPartition
from gateway.core.token.resume_token import ResumeToken, TokenSeal
from gateway.core.token.signing import TokenSigner
from gateway.core.token.token_parser import TokenTopic
from gateway.errors import BrokerUnavailable, KafkaError, TokenForeign, TokenTooOld
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.metadata_changes import TopicChange
from gateway.kafka.client.offsets import OffsetAndTimestamp
from gateway.telemetry.logs import create_detached_task

from .position_resolver import check_token
from .topic_opener import TopicOpener
from .view import View

MAX_UNKNOWN_PARTITIONS = 64  # how many partitions of a topic a token may name beyond the known ones
REFRESH_INTERVAL_S = 1.0  # seconds between refreshes of metadata because of tokens
LOOKUP_TIMEOUT_S = 1.0  # seconds to wait for metadata, and for the offset of a time
LOOKUP_RETRY_S = 0.25  # seconds until an offset that Kafka did not tell is asked for again
# Seconds for which the offset of a time is used: the limit may be so much less strict.
OLDEST_OFFSET_TTL_S = 60.0

_Lookup: TypeAlias = asyncio.Task[dict[TopicPartition, int]]
_LookupKey: TypeAlias = tuple[TopicPartition, str, float]
"""A partition, the id of its topic, and the seconds that a route lets clients go back."""


class TokenVerifier:
    """Decide about the resume tokens of a hub. Between calls it holds nothing of any client."""

    def __init__(self, cluster: Cluster, topics: TopicOpener, tokens: Tokens) -> None:
        self._cluster = cluster
        self._topics = topics
        self._resume_s = tokens.resume
        self._signer = TokenSigner(tokens.secrets) if tokens.secrets else None
        # The largest number of partitions that each topic was known to have here.
        self._max_partitions: dict[str, int] = {}
        self._refreshed_at = float("-inf")
        self._refresh: asyncio.Task[bool] | None = None  # all who come meanwhile wait for it
        self._lookups: dict[_LookupKey, tuple[float, _Lookup]] = {}  # with when they were started
        self._unlisten = cluster.metadata.add_listener(self._on_metadata_change)

    async def close(self) -> None:
        self._unlisten()
        tasks: set[asyncio.Task[Any]] = {task for _, task in self._lookups.values()}
        if self._refresh is not None:
            tasks.add(self._refresh)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # signing

    def bind_route(self, view: View, route: str) -> View:
        """Return the view that a channel is found by: of one route only if ids are signed."""
        return view if self._signer is None else replace(view, route=route)

    def create_seal(self, view: View) -> bytes | TokenSeal:
        """Return the seal of the ids of a channel of the view."""
        if self._signer is None:
            return view.digest
        return self._signer.create_seal(view.digest, _describe_issuer(view))

    # what is believed

    async def verify(
        self,
        token: ResumeToken,
        view: View,
        route: str,
        max_age: float | None,
        *,
        handover_route: str | None = None,
    ) -> ResumeToken:
        """Return the token as far as it is believed; nothing was allocated for it before.

        Args:
            max_age: Seconds that the route lets any client go back; None for any number.
            handover_route: The route of a client of this process that has just left the token to
                the client that replaces it; None for a token that a client sent.

        Raises:
            TokenCorrupt: It has no valid MAC, where one is needed.
            TokenForeign: It is not of these topics, or names partitions that cannot exist.
            BrokerUnavailable: It names many partitions of a topic that was never known here, or of
                which a broker says that it was created again.
        """
        if handover_route is not None:
            is_own = handover_route == route
        else:
            is_own = self._signer is not None and self._signer.verify(
                token, _describe_issuer(self.bind_route(view, route))
            )
        if is_own:  # this route issued it, so it let the client see everything from there on
            max_age = None
        ids = {name: self._topics.get_id(name) for name in view.topics}
        matched = check_token(token, self._cluster.cluster_id or "", ids)
        await self._check_partition_counts(matched)
        issued = token.issued
        # Partitions that are pending in the token are resolved as of its time of issue.
        if max_age is not None:
            issued = max(issued, int(time.time() - max_age - self._resume_s))
        topics = list(matched.values())
        return replace(token, issued=issued, max_age=max_age, topics=topics, body=b"")

    async def _check_partition_counts(self, topics: Mapping[str, TokenTopic]) -> None:
        """Raise if a token names more partitions of a topic than it can have."""
        counts = {name: topic.partition_count for name, topic in topics.items()}
        is_known = True  # whether the brokers have answered
        if any(count > self._count_known_partitions(name) for name, count in counts.items()):
            is_known = await self._refresh_metadata()
        for name, count in counts.items():
            known_count = self._count_known_partitions(name)
            if count <= known_count + MAX_UNKNOWN_PARTITIONS:
                continue
            is_doubtful = not (is_known and known_count)
            if is_doubtful or self._cluster.metadata.is_doubtful(name):
                detail = f"brokers have not agreed yet how many partitions {name} has; try again"
                raise BrokerUnavailable(detail, retry_after=1.0)
            raise TokenForeign(
                f"the resume token is of {count} partitions of {name}, which has {known_count}; "
                "connect without Last-Event-ID or with ?from="
            )

    def _count_known_partitions(self, name: str) -> int:
        """Return how many partitions a topic has, or had at its largest."""
        metadata = self._cluster.get_topic(name)
        return max(len(metadata.partitions) if metadata else 0, self._max_partitions.get(name, 0))

    async def _refresh_metadata(self) -> bool:
        """Refresh metadata, but not often: clients that invent tokens must not load the brokers.

        Returns whether the brokers have answered.
        """
        now = asyncio.get_running_loop().time()
        refresh = self._refresh
        if refresh is None or (refresh.done() and now - self._refreshed_at >= REFRESH_INTERVAL_S):
            self._refreshed_at = now
            refresh = self._refresh = create_detached_task(self._ask_twice())
        await asyncio.wait((refresh,))
        return not refresh.cancelled() and refresh.result()

    async def _ask_twice(self) -> bool:
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                for _ in range(2):  # the first answer may be of a request that others sent earlier
                    await self._cluster.metadata.refresh("a token names more partitions")
        except (KafkaError, TimeoutError):
            return False
        return True

    def _on_metadata_change(self, change: TopicChange) -> None:
        name, count = change.topic.name, len(change.topic.partitions)
        if count > self._max_partitions.get(name, 0):  # a topic that does not exist has no entry
            self._max_partitions[name] = count

    # how far back

    async def check_history(
        self, token: ResumeToken, positions: Mapping[TopicPartition, PartitionPosition], tail: Tail
    ) -> None:
        """Check that no position of a verified token goes back further than its route allows.

        Partitions about which Kafka does not answer now are limited by `limit_start` later.

        Raises:
            TokenTooOld: A position goes back too far.
        """
        if token.max_age is None:
            return
        starts = {tp: _get_start(position) for tp, position in positions.items() if tp in tail.logs}
        old = {
            tp: start
            for tp, start in starts.items()
            if start is not None and not self._is_recent(tail, tp, start, token.max_age)
        }
        oldest_offsets = await self._find_oldest_offsets(old, token.max_age)
        for tp, oldest in oldest_offsets.items():
            if old[tp] < oldest:
                raise TokenTooOld(
                    f"the resume token goes back further than this route ({tp}: offset {old[tp]}, "
                    f"the oldest is {oldest}); connect without Last-Event-ID or with ?from="
                )

    async def limit_start(
        self, token: ResumeToken | None, tail: Tail, tp: TopicPartition, start: int
    ) -> int:
        """Return the offset, `start` or later, from which a client may read. It waits for Kafka."""
        if (
            token is None
            or token.max_age is None
            or self._is_recent(tail, tp, start, token.max_age)
        ):
            return start
        while True:
            oldest = (await self._find_oldest_offsets([tp], token.max_age)).get(tp)
            if oldest is not None:
                return max(start, oldest)
            await asyncio.sleep(LOOKUP_RETRY_S)

    def _is_recent(self, tail: Tail, tp: TopicPartition, start: int, max_age: float) -> bool:
        """Return whether this process received all that follows `start` within the time allowed."""
        appended_at = tail.logs[tp].get_append_time(start)
        return appended_at is not None and appended_at >= self._now() - max_age - self._resume_s

    async def _find_oldest_offsets(
        self, tps: Iterable[TopicPartition], max_age: float
    ) -> dict[TopicPartition, int]:
        """Return the known oldest offsets that a route may show, by partition.

        It waits `LOOKUP_TIMEOUT_S` for Kafka at most; the lookups go on for the next call.
        """
        now = self._now()
        keys = {tp: self._build_key(tp, max_age) for tp in tps}
        if not keys:
            return {}
        for key in [
            key
            for key, (started_at, _) in self._lookups.items()
            if now - started_at >= OLDEST_OFFSET_TTL_S
        ]:
            del self._lookups[key]
        new_keys = {tp: key for tp, key in keys.items() if key not in self._lookups}
        if new_keys:
            lookup = create_detached_task(self._lookup_offsets(new_keys, max_age))
            self._lookups |= {key: (now, lookup) for key in new_keys.values()}
        tasks = {self._lookups[key][1] for key in keys.values()}
        # `wait` leaves the tasks alone when it times out or its caller is cancelled.
        await asyncio.wait(tasks, timeout=LOOKUP_TIMEOUT_S)
        offsets: dict[TopicPartition, int] = {}
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is None:
                offsets |= task.result()
        return {tp: offsets[tp] for tp in keys if tp in offsets}

    async def _lookup_offsets(
        self, keys: Mapping[TopicPartition, _LookupKey], max_age: float
    ) -> dict[TopicPartition, int]:
        """Ask Kafka for the offsets; those that it does not answer are forgotten."""
        offsets: dict[TopicPartition, int] = {}
        try:
            oldest_time = time.time() - max_age - self._resume_s
            skews = {tp.topic: self._topics.get_settings(tp.topic).clock_skew for tp in keys}
            specs = {tp: max(0, int(1000 * (oldest_time - skews[tp.topic]))) for tp in keys}
            answers = await self._cluster.list_offsets(specs)
            # -1: no record is so late. Then everything is too old, and the log's end is the limit.
            none = [
                tp
                for tp, answer in answers.items()
                if isinstance(answer, OffsetAndTimestamp) and answer.offset < 0
            ]
            answers |= await self._cluster.list_offsets(dict.fromkeys(none, LATEST))
            offsets = {
                tp: answer.offset
                for tp, answer in answers.items()
                if isinstance(answer, OffsetAndTimestamp)
            }
        finally:
            for tp in keys.keys() - offsets.keys():
                self._lookups.pop(keys[tp], None)
        return offsets

    def _build_key(self, tp: TopicPartition, max_age: float) -> _LookupKey:
        """Return the key of a lookup; a topic that was created again has other offsets."""
        metadata = self._cluster.get_topic(tp.topic)
        return tp, str(metadata.topic_id or "") if metadata is not None else "", max_age

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _get_start(position: PartitionPosition) -> int | None:
    """Return where a position is read from: one of an earlier topic of the same name at 0."""
    return 0 if position.epoch == RETIRED_EPOCH and position.offset is not None else position.offset


def _describe_issuer(view: View) -> str:
    return repr((view.cluster, view.route, view.text))
