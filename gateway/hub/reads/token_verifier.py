"""What of a client's resume token is believed, before anything is allocated or shared for it.

A token is a claim: whoever can have a stream can make one up, but for a MAC.

- It may name as many partitions of a topic as metadata knows, or knew, and SLACK more: metadata
  here may be behind that of the gateway that made it. If it names more than are known, metadata is
  refreshed first. What only the token knows stays in its own client's subscription.
- Where its route limits `history`, it may go back as far as `?from=`, and `tokens.resume` further:
  a client that was cut off must go on exactly where it stopped, and when that was the token cannot
  say, since `issued` is a claim as well. What this process itself heard lately, by its own clock,
  is recent; that costs nothing to find out, and is all that those ask for who come back after a
  moment, or to a quiet topic. As of older places Kafka is asked, once in FLOOR_AGE_S for all
  clients, for the offset of that time. It goes by the records' timestamps, as `?from=` does: they
  are the producers' clocks, so `clockSkew` is added. Where they are further behind than all that,
  a client that was away longer than `cache` reaches, or over a restart, is refused; with a secret
  it is not.
- With a secret, a token that this very route sent for the same view goes back however far.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from gateway.config import Tokens
from gateway.core.log.partition_reader import LATEST
from gateway.core.log.position import RETIRED_EPOCH, PartitionPosition
from gateway.core.log.record import TopicPartition
from gateway.core.log.tail import Tail
from gateway.core.token.resume_token import ResumeToken, TokenSeal
from gateway.core.token.signing import TokenSigner
from gateway.errors import BrokerUnavailable, KafkaError, TokenForeign, TokenTooOld
from gateway.hub.fanout.view import View
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.metadata_changes import TopicChange
from gateway.kafka.client.offsets import OffsetAndTimestamp
from gateway.telemetry.log_context import create_detached_task

from .stream_start import check_token
from .topic_opener import TopicOpener

MAX_UNKNOWN_PARTITIONS = (
    64  # partitions of a topic that a token may name beyond those that are known
)
REFRESH_INTERVAL_S = 1.0  # metadata is asked for the sake of tokens that name more
LOOKUP_TIMEOUT_S = 1.0  # for metadata, and for offsets that tell how old a place is
LOOKUP_RETRY_S = 0.25
OLDEST_OFFSET_TTL_S = (
    60.0  # for which an offset as of a time is good: so much less strict it may be
)

_Lookup: TypeAlias = asyncio.Task[dict[TopicPartition, int]]
_LookupKey: TypeAlias = tuple[TopicPartition, str, float]  # with the topic's id, and the reach


class TokenVerifier:
    """Decides about the resume tokens of a hub, which makes, owns and closes it.

    Between calls it holds nothing of any client. Use it in the loop.
    """

    def __init__(self, cluster: Cluster, topics: TopicOpener, tokens: Tokens) -> None:
        self._cluster = cluster
        self._topics = topics
        self._resume_s = tokens.resume
        self._signer = TokenSigner(tokens.secrets) if tokens.secrets else None
        self._max_partitions: dict[
            str, int
        ] = {}  # partitions that a topic was ever known to have here
        self._refreshed_at = float("-inf")
        self._lookups: dict[_LookupKey, tuple[float, _Lookup]] = {}
        self._unlisten = cluster.metadata.add_listener(self._on_metadata_change)

    async def close(self) -> None:
        self._unlisten()
        asking = {task for _, task in self._lookups.values()}
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    # signing

    def bind_route(self, view: View, route: str) -> View:
        """The view as a channel is found by: of its route alone, where ids say which one."""
        return view if self._signer is None else replace(view, route=route)

    def create_seal(self, view: View) -> bytes | TokenSeal:
        """What the ids of a channel of the view are sealed with."""
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
        """The token as far as it is believed; nothing was allocated for it until here.

        Args:
            reach: Seconds that the route lets anyone go back; None for any number.
            handed_by: The route of a client of this process that has just left the token to its
                successor.

        Raises:
            TokenCorrupt: It has no valid MAC, where one is needed.
            TokenForeign: It is not of these topics, or names partitions that cannot be.
            BrokerUnavailable: It names many of a topic that was never known here.
        """
        if handover_route is not None:
            is_own = handover_route == route
        else:
            is_own = self._signer is not None and self._signer.verify(
                token, _describe_issuer(self.bind_route(view, route))
            )
        if is_own:
            max_age = None
        check_token(token, self._cluster.cluster_id or "", self._get_topic_ids(view))
        await self._check_partition_counts(token, view)
        issued = token.issued
        if max_age is not None:  # what is pending in it is resolved as of then
            issued = max(issued, int(time.time() - max_age - self._resume_s))
        topics = list(token.match_topics(self._get_topic_ids(view)).values())
        return replace(token, issued=issued, max_age=max_age, topics=topics, body=b"")

    def _get_topic_ids(self, view: View) -> dict[str, str]:
        return {name: self._topics.get_id(name) for name in view.topics}

    async def _check_partition_counts(self, token: ResumeToken, view: View) -> None:
        told = {
            name: topic.partition_count
            for name, topic in token.match_topics(self._get_topic_ids(view)).items()
        }
        if any(count > self._count_known_partitions(name) for name, count in told.items()):
            await self._refresh_metadata()
        for name, count in told.items():
            known = self._count_known_partitions(name)
            if count <= known + MAX_UNKNOWN_PARTITIONS:
                continue
            if not known:
                what = f"no broker has told yet how many partitions {name} has; try again"
                raise BrokerUnavailable(what, retry_after=1.0)
            raise TokenForeign(
                f"the resume token is of {count} partitions of {name}, which has {known}; "
                "connect without Last-Event-ID or with ?from="
            )

    def _count_known_partitions(self, name: str) -> int:
        known = self._cluster.get_topic(name)
        return max(len(known.partitions) if known else 0, self._max_partitions.get(name, 0))

    async def _refresh_metadata(self) -> None:
        """Now and then: whoever makes tokens up must not keep the brokers busy."""
        now = asyncio.get_running_loop().time()
        if now - self._refreshed_at < REFRESH_INTERVAL_S:
            return
        self._refreshed_at = now
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                await self._cluster.metadata.refresh("a token names more partitions")
        except (KafkaError, TimeoutError):
            return

    def _on_metadata_change(self, change: TopicChange) -> None:
        name, count = change.topic.name, len(change.topic.partitions)
        self._max_partitions[name] = max(count, self._max_partitions.get(name, 0))

    # how far back

    async def check_history(
        self, token: ResumeToken, own: Mapping[TopicPartition, PartitionPosition], tail: Tail
    ) -> None:
        """Raises TokenTooOld if a place of a token goes back further than its route allows. Those
        that Kafka says nothing about now are minded once they can be read (`oldest`)."""
        if token.max_age is None:
            return
        starts = {tp: _get_start(place) for tp, place in own.items() if tp in tail.logs}
        old = {
            tp: start
            for tp, start in starts.items()
            if start is not None and not self._is_recent(tail, tp, start, token.max_age)
        }
        floors = await self._find_oldest_offsets(old, token.max_age)
        for tp, floor in floors.items():
            if old[tp] < floor:
                raise TokenTooOld(
                    f"the resume token goes back further than this route ({tp}: offset {old[tp]}, "
                    f"the oldest is {floor}); connect without Last-Event-ID or with ?from="
                )

    async def limit_start(
        self, token: ResumeToken | None, tail: Tail, tp: TopicPartition, start: int
    ) -> int:
        """From where on a client of a token is shown what it would read from `start` on. Waits as
        long as Kafka takes."""
        if (
            token is None
            or token.max_age is None
            or self._is_recent(tail, tp, start, token.max_age)
        ):
            return start
        while True:
            floor = (await self._find_oldest_offsets([tp], token.max_age)).get(tp)
            if floor is not None:
                return max(start, floor)
            await asyncio.sleep(LOOKUP_RETRY_S)

    def _is_recent(self, tail: Tail, tp: TopicPartition, start: int, max_age: float) -> bool:
        """Did this process hear all that follows within the time?"""
        came = tail.logs[tp].get_append_time(start)
        return came is not None and came >= self._now() - max_age - self._resume_s

    async def _find_oldest_offsets(
        self, tps: Iterable[TopicPartition], max_age: float
    ) -> dict[TopicPartition, int]:
        """The offset from which on a route of this reach shows a partition, of those that tell."""
        now = self._now()
        keys = {tp: self._build_key(tp, max_age) for tp in tps}
        if not keys:
            return {}
        for key in [
            key for key, (at, _) in self._lookups.items() if now - at >= OLDEST_OFFSET_TTL_S
        ]:
            del self._lookups[key]
        missing = {tp: key for tp, key in keys.items() if key not in self._lookups}
        if missing:
            asking = create_detached_task(self._lookup_offsets(missing, max_age))
            self._lookups |= {key: (now, asking) for key in missing.values()}
        tasks = {self._lookups[key][1] for key in keys.values()}
        await asyncio.wait(tasks, timeout=LOOKUP_TIMEOUT_S)
        found: dict[TopicPartition, int] = {}
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is None:
                found |= task.result()
        return {tp: found[tp] for tp in keys if tp in found}

    async def _lookup_offsets(
        self, keys: Mapping[TopicPartition, _LookupKey], max_age: float
    ) -> dict[TopicPartition, int]:
        """Those that do not tell are asked for anew by whoever comes next."""
        found: dict[TopicPartition, int] = {}
        try:
            past = time.time() - max_age - self._resume_s
            skews = {tp.topic: self._topics.get_settings(tp.topic).clock_skew for tp in keys}
            specs = {tp: max(0, int(1000 * (past - skews[tp.topic]))) for tp in keys}
            told = await self._cluster.list_offsets(specs)
            none = [
                tp
                for tp, at in told.items()
                if isinstance(at, OffsetAndTimestamp) and at.offset < 0
            ]
            told |= await self._cluster.list_offsets(dict.fromkeys(none, LATEST))
            found = {tp: at.offset for tp, at in told.items() if isinstance(at, OffsetAndTimestamp)}
        finally:
            for tp in keys.keys() - found.keys():
                self._lookups.pop(keys[tp], None)
        return found

    def _build_key(self, tp: TopicPartition, max_age: float) -> _LookupKey:
        """A topic that was created anew has other floors."""
        known = self._cluster.get_topic(tp.topic)
        return tp, str(known.topic_id or "") if known is not None else "", max_age

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _get_start(place: PartitionPosition) -> int | None:
    """Where it is read from; None while nobody knows. What is of an earlier topic begins anew."""
    return 0 if place.epoch == RETIRED_EPOCH and place.offset is not None else place.offset


def _describe_issuer(view: View) -> str:
    """Who sends the ids of a channel: as text, whole."""
    return repr((view.cluster, view.route, view.text))
