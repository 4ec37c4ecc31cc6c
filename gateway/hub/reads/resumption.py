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
from gateway.core.log.position import RETIRED, Place
from gateway.core.log.record import TopicPartition
from gateway.core.log.tail import Tail
from gateway.core.token.resume_token import Seal, Token
from gateway.core.token.signing import Signer
from gateway.errors import BrokerUnavailable, KafkaError, TokenForeign, TokenTooOld
from gateway.hub.fanout.view import View
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.metadata_changes import Change
from gateway.kafka.client.offsets import Offset
from gateway.telemetry.about import apart

from .resume import check
from .topics import Topics

SLACK = 64  # partitions of a topic that a token may name beyond those that are known
REFRESH_EVERY_S = 1.0  # metadata is asked for the sake of tokens that name more
ASK_TIMEOUT_S = 1.0  # for metadata, and for offsets that tell how old a place is
ASK_AGAIN_S = 0.25
FLOOR_AGE_S = 60.0  # for which an offset as of a time is good: so much less strict it may be

_Asking: TypeAlias = asyncio.Task[dict[TopicPartition, int]]
_FloorKey: TypeAlias = tuple[TopicPartition, str, float]  # with the topic's id, and the reach


class Resumption:
    """Decides about the resume tokens of a hub, which makes, owns and closes it.

    Between calls it holds nothing of any client. Use it in the loop.
    """

    def __init__(self, cluster: Cluster, topics: Topics, tokens: Tokens) -> None:
        self._cluster = cluster
        self._topics = topics
        self._resume = tokens.resume
        self._signer = Signer(tokens.secrets) if tokens.secrets else None
        self._most: dict[str, int] = {}  # partitions that a topic was ever known to have here
        self._refreshed_at = float("-inf")
        self._floors: dict[_FloorKey, tuple[float, _Asking]] = {}
        self._unlisten = cluster.metadata.listen(self._see)

    async def close(self) -> None:
        self._unlisten()
        asking = {task for _, task in self._floors.values()}
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    # signing

    def issued_by(self, view: View, route: str) -> View:
        """The view as a channel is found by: of its route alone, where ids say which one."""
        return view if self._signer is None else replace(view, route=route)

    def seal(self, view: View) -> bytes | Seal:
        """What the ids of a channel of the view are sealed with."""
        if self._signer is None:
            return view.digest
        return self._signer.seal(view.digest, _issuer(view))

    # what is believed

    async def admit(
        self,
        token: Token,
        view: View,
        route: str,
        reach: float | None,
        *,
        handed_by: str | None = None,
    ) -> Token:
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
        if handed_by is not None:
            is_own = handed_by == route
        else:
            is_own = self._signer is not None and self._signer.verify(
                token, _issuer(self.issued_by(view, route))
            )
        if is_own:
            reach = None
        check(token, self._cluster.id or "", self._ids(view))
        await self._bound(token, view)
        issued = token.issued
        if reach is not None:  # what is pending in it is resolved as of then
            issued = max(issued, int(time.time() - reach - self._resume))
        topics = list(token.among(self._ids(view)).values())
        return replace(token, issued=issued, reach=reach, topics=topics, body=b"")

    def _ids(self, view: View) -> dict[str, str]:
        return {name: self._topics.id(name) for name in view.topics}

    async def _bound(self, token: Token, view: View) -> None:
        told = {name: topic.count for name, topic in token.among(self._ids(view)).items()}
        if any(count > self._known(name) for name, count in told.items()):
            await self._refresh()
        for name, count in told.items():
            known = self._known(name)
            if count <= known + SLACK:
                continue
            if not known:
                what = f"no broker has told yet how many partitions {name} has; try again"
                raise BrokerUnavailable(what, retry_after=1.0)
            raise TokenForeign(
                f"the resume token is of {count} partitions of {name}, which has {known}; "
                "connect without Last-Event-ID or with ?from="
            )

    def _known(self, name: str) -> int:
        known = self._cluster.topic(name)
        return max(len(known.partitions) if known else 0, self._most.get(name, 0))

    async def _refresh(self) -> None:
        """Now and then: whoever makes tokens up must not keep the brokers busy."""
        now = asyncio.get_running_loop().time()
        if now - self._refreshed_at < REFRESH_EVERY_S:
            return
        self._refreshed_at = now
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                await self._cluster.metadata.refresh("a token names more partitions")
        except (KafkaError, TimeoutError):
            return

    def _see(self, change: Change) -> None:
        name, count = change.topic.name, len(change.topic.partitions)
        self._most[name] = max(count, self._most.get(name, 0))

    # how far back

    async def mind_history(
        self, token: Token, own: Mapping[TopicPartition, Place], tail: Tail
    ) -> None:
        """Raises TokenTooOld if a place of a token goes back further than its route allows. Those
        that Kafka says nothing about now are minded once they can be read (`oldest`)."""
        if token.reach is None:
            return
        starts = {tp: _start(place) for tp, place in own.items() if tp in tail.logs}
        old = {
            tp: start
            for tp, start in starts.items()
            if start is not None and not self._is_recent(tail, tp, start, token.reach)
        }
        floors = await self._floors_of(old, token.reach)
        for tp, floor in floors.items():
            if old[tp] < floor:
                raise TokenTooOld(
                    f"the resume token goes back further than this route ({tp}: offset {old[tp]}, "
                    f"the oldest is {floor}); connect without Last-Event-ID or with ?from="
                )

    async def oldest(self, token: Token | None, tail: Tail, tp: TopicPartition, start: int) -> int:
        """From where on a client of a token is shown what it would read from `start` on. Waits as
        long as Kafka takes."""
        if token is None or token.reach is None or self._is_recent(tail, tp, start, token.reach):
            return start
        while True:
            floor = (await self._floors_of([tp], token.reach)).get(tp)
            if floor is not None:
                return max(start, floor)
            await asyncio.sleep(ASK_AGAIN_S)

    def _is_recent(self, tail: Tail, tp: TopicPartition, start: int, reach: float) -> bool:
        """Did this process hear all that follows within the time?"""
        came = tail.logs[tp].came_at(start)
        return came is not None and came >= self._now() - reach - self._resume

    async def _floors_of(
        self, tps: Iterable[TopicPartition], reach: float
    ) -> dict[TopicPartition, int]:
        """The offset from which on a route of this reach shows a partition, of those that tell."""
        now = self._now()
        keys = {tp: self._key(tp, reach) for tp in tps}
        if not keys:
            return {}
        for key in [key for key, (at, _) in self._floors.items() if now - at >= FLOOR_AGE_S]:
            del self._floors[key]
        missing = {tp: key for tp, key in keys.items() if key not in self._floors}
        if missing:
            asking = apart(self._ask(missing, reach))
            self._floors |= {key: (now, asking) for key in missing.values()}
        tasks = {self._floors[key][1] for key in keys.values()}
        await asyncio.wait(tasks, timeout=ASK_TIMEOUT_S)
        found: dict[TopicPartition, int] = {}
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is None:
                found |= task.result()
        return {tp: found[tp] for tp in keys if tp in found}

    async def _ask(
        self, keys: Mapping[TopicPartition, _FloorKey], reach: float
    ) -> dict[TopicPartition, int]:
        """Those that do not tell are asked for anew by whoever comes next."""
        found: dict[TopicPartition, int] = {}
        try:
            past = time.time() - reach - self._resume
            skews = {tp.topic: self._topics.settings(tp.topic).clock_skew for tp in keys}
            specs = {tp: max(0, int(1000 * (past - skews[tp.topic]))) for tp in keys}
            told = await self._cluster.list_offsets(specs)
            none = [tp for tp, at in told.items() if isinstance(at, Offset) and at.offset < 0]
            told |= await self._cluster.list_offsets(dict.fromkeys(none, LATEST))
            found = {tp: at.offset for tp, at in told.items() if isinstance(at, Offset)}
        finally:
            for tp in keys.keys() - found.keys():
                self._floors.pop(keys[tp], None)
        return found

    def _key(self, tp: TopicPartition, reach: float) -> _FloorKey:
        """A topic that was created anew has other floors."""
        known = self._cluster.topic(tp.topic)
        return tp, str(known.topic_id or "") if known is not None else "", reach

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _start(place: Place) -> int | None:
    """Where it is read from; None while nobody knows. What is of an earlier topic begins anew."""
    return 0 if place.epoch == RETIRED and place.offset is not None else place.offset


def _issuer(view: View) -> str:
    """Who sends the ids of a channel: as text, whole."""
    return repr((view.cluster, view.route, view.text))
