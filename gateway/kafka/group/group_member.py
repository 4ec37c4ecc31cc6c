"""A member of a consumer group: what its `Membership` decides, done.

One task for each member, and no thread; heartbeats and commits of all members go over one
connection of each coordinator. What a listener does with partitions that are taken away goes on
beside the heartbeats, and the coordinator hears that they are free when it is through.

A group that cannot be used, because Kafka refuses the member or the login, is asked for again ever
more slowly; the cluster's `Outages` say so in the log, and that it is over.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeAlias

from gateway.core.group.member import (
    Ask,
    Assigned,
    Event,
    Failed,
    Identity,
    Lost,
    Membership,
    Moved,
    Revoking,
    State,
    Topic,
)
from gateway.core.log.record import TopicPartition
from gateway.core.log.recovery import Backoff, Cause, cause_of
from gateway.errors import AccessDenied, AuthenticationFailed, GroupFailed, KafkaError
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.failures import reason_of
from gateway.kafka.client.metadata_changes import Change
from gateway.kafka.client.offsets import code_of
from gateway.kafka.client.outages import REPEAT_SECONDS
from gateway.telemetry.about import apart

from .protocols import Protocols, carried

log = logging.getLogger(__name__)

AGAIN = 0.2  # seconds until what could not be asked is asked again
DENIED = frozenset({29, 30})  # TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED
LEAVING = 2.0  # seconds that a leaving member waits for the coordinator's answer
RESOLVE = 0.25  # seconds between looks for a topic that only the coordinator knows yet

Ownership: TypeAlias = Assigned | Revoking | Lost


class Owner(Protocol):
    """Who reads what the member owns."""

    def owns(self, event: Ownership) -> None:
        """What changes, at the instant at which it does."""

    async def follow(self, event: Ownership) -> None:
        """What is to be done about it; one after the other, in order."""

    def failed(self, failure: KafkaError | None) -> None:
        """The group cannot be used; None: it can again."""


class Group:
    """One membership, from `subscribe` to `close`.

    rebalance_timeout: seconds that following one event may take.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        owner: Owner,
        protocols: Protocols,
        *,
        rebalance_timeout: float,
    ) -> None:
        self.name = name
        self.member: Membership | None = None
        self.state = State.REBALANCING
        self._cluster = cluster
        self._owner = owner
        self._protocols = protocols
        self._rebalance_timeout = rebalance_timeout
        self._topics: Collection[str] = ()
        self._kept: frozenset[str] = frozenset()
        self._wake = asyncio.Event()
        self._turned = asyncio.Event()
        self._events: deque[Ownership] = deque()
        self._losses: Counter[TopicPartition] = Counter()
        self._task: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None
        self._failure: KafkaError | None = None  # as the owner knows it
        self._refusals = Backoff(AGAIN, random.random)
        self._unlisten = cluster.metadata.listen(self._changed)
        self._now: Callable[[], float] = asyncio.get_running_loop().time
        self._since = self._now()

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return self.member.owned if self.member is not None else frozenset()

    @property
    def identity(self) -> Identity:
        return self.member.identity if self.member is not None else Identity("", -1)

    def subscribe(self, topics: Collection[str]) -> None:
        """These and no others; the first time it joins the group."""
        self._topics = topics
        if self.member is not None:
            self.member.subscribe(topics, self._now())
        if self._task is None:
            self._task = apart(self._run())
        self._wake.set()

    async def hurry(self, within: float) -> None:
        """Let the coordinator be asked at once; returns after its answer, or `within` seconds."""
        if self.member is None or self.member.state is State.FAILED:
            return  # it owns nothing, and its next attempt may be a minute away
        self.member.hurry(self._now())
        self._wake.set()
        turned = self._turned
        try:
            async with asyncio.timeout(within):
                await turned.wait()
        except TimeoutError:
            pass

    async def close(self, leave: bool = True) -> None:
        """leave: tell the coordinator, so that others need not wait for the session's end."""
        tasks = [task for task in (self._task, self._work) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task = self._work = None  # their frames point back here
        self._unlisten()
        for topic in self._kept:
            self._cluster.metadata.let_go(topic)
        self._kept = frozenset()
        ask = self.member.leave(self._now()) if self.member is not None and leave else None
        if ask is not None:
            try:
                async with asyncio.timeout(LEAVING):
                    await self._cluster.coordinators.send(self.name, carried(ask))
            except (KafkaError, TimeoutError) as exc:
                log.warning("group %s: the coordinator did not hear of a leave: %s", self.name, exc)
        if self._failure is not None:
            self._cluster.outages.recover(self._label, "is not used any more")

    async def _run(self) -> None:
        while True:
            try:
                member = self.member or await self._begin()
                while not member.is_over:
                    await self._turn(member)
                break
            except KafkaError as exc:
                await asyncio.sleep(self._hinder(exc) or AGAIN)
            except Exception:
                log.exception("group %s: its member failed; it goes on", self.name)
                await asyncio.sleep(AGAIN)
        while self._failure is not None:  # for good
            self._fail(self._failure)
            await asyncio.sleep(REPEAT_SECONDS)

    # what keeps it from being used

    @property
    def _label(self) -> str:
        return f"group={self.name}"

    def _hinder(self, exc: KafkaError) -> float:
        """Note that nothing was answered, or that there is no way to ask.

        Returns:
            The seconds until the next attempt, 0 where nothing is known of that.
        """
        log.debug("group %s: %s", self.name, exc)
        if isinstance(exc, (AccessDenied, AuthenticationFailed, GroupFailed)):
            self._fail(exc)
            return exc.retry_after or self._refusals.delay(Cause.DENIED)
        # A broker that is only away may refuse us when it is back: the last failure stays.
        return exc.retry_after or 0.0

    def _fail(self, failure: KafkaError) -> None:
        """Say why the group cannot be used, or still cannot."""
        self._failure = failure
        self._owner.failed(failure)
        reason = reason_of(failure)
        self._cluster.outages.fail(self._label, _name_cause(reason), str(reason), group=self.name)

    def _recover(self) -> None:
        """Note that the coordinator lets the member in."""
        self._refusals.succeeded()
        self._owner.failed(None)
        if self._failure is not None:
            self._failure = None
            self._cluster.outages.recover(self._label, "can be used again")

    async def _begin(self) -> Membership:
        link = await self._cluster.coordinators.link(self.name)
        member = self._protocols.member(self.name, link.versions)
        member.subscribe(self._topics, self._now())
        self.member = member
        return member

    async def _turn(self, member: Membership) -> None:
        self._wake.clear()
        self._interest(member)
        ask = member.ask(self._now())
        if ask is None:
            await self._idle(member)
        else:
            self._act(await self._send(member, ask))
            self._turned.set()
            self._turned = asyncio.Event()

    async def _send(self, member: Membership, ask: Ask) -> Sequence[Event]:
        try:
            answer = await self._cluster.coordinators.send(ask.group, carried(ask), held=ask.held)
        except KafkaError as exc:
            return member.unanswered(ask, self._now(), self._hinder(exc))
        if answer.error:
            log.debug("group %s: %s was answered with %s", self.name, ask, answer)
        events = member.answered(ask, answer, self._now())
        if member.state is not State.FAILED:
            self._recover()
        return events

    async def _idle(self, member: Membership) -> None:
        until = member.due
        if member.unresolved:
            until = min(until, self._now() + RESOLVE)
        try:
            async with asyncio.timeout_at(until if until < float("inf") else None):
                await self._wake.wait()
        except TimeoutError:
            if member.unresolved:
                await self._cluster.metadata.refresh(f"a topic of group {self.name}")
                self._learn(member)

    def _act(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Moved):
                self._cluster.coordinators.forget(self.name)
            elif isinstance(event, Failed):
                message = f"the group {self.name} cannot be used: {event.why}"
                self._fail(GroupFailed(message, group=self.name, code=event.error))
            else:
                self._own(event)
        self._noted()

    def _own(self, event: Ownership) -> None:
        if isinstance(event, Lost):
            self._losses.update(event.tps)
            self._cluster.coordinators.tallies.bereaved(self.name, len(event.tps))
            log.warning("group %s: lost %s: %s", self.name, _listed(event.tps), event.why)
        self._owner.owns(event)
        self._events.append(event)
        if self._work is None or self._work.done():
            self._work = apart(self._follow())

    async def _follow(self) -> None:
        while self._events:
            event = self._events.popleft()
            losses = {tp: self._losses[tp] for tp in event.tps}
            try:
                async with asyncio.timeout(self._rebalance_timeout):
                    await self._owner.follow(event)
            except TimeoutError:
                log.warning("group %s: a listener took too long; it was left", self.name)
            except Exception:
                log.exception("group %s: a listener failed", self.name)
            # What was lost meanwhile is not to be acknowledged: it may be revoked a second time.
            kept = frozenset(tp for tp in event.tps if self._losses[tp] == losses[tp])
            if isinstance(event, Revoking) and kept and self.member is not None:
                self._act(self.member.released(kept, self._now()))
                self._wake.set()

    def _noted(self) -> None:
        """Say how the member's state changed."""
        if self.member is None or self.member.state is self.state:
            return
        before, self.state, now = self.state, self.member.state, self._now()
        took, self._since = now - self._since, now
        if self.state is State.RUNNING:
            self._cluster.coordinators.tallies.rebalanced(self.name, took)
            log.info(
                "group %s: %s -> RUNNING after %.0f ms with %d partitions",
                self.name, before.name, took * 1000, len(self.member.owned),
                extra={"group": self.name, "milliseconds": round(took * 1000)},
            )  # fmt: skip
        else:
            extra = {"group": self.name}
            log.info("group %s: %s -> %s", self.name, before.name, self.state.name, extra=extra)

    # metadata

    def _interest(self, member: Membership) -> None:
        interest = member.interest
        if interest == self._kept:
            return
        for topic in interest - self._kept:
            self._cluster.metadata.keep(topic)
        for topic in self._kept - interest:
            self._cluster.metadata.let_go(topic)
        self._kept = interest
        self._learn(member)

    def _changed(self, change: Change) -> None:
        if self.member is not None and change.topic.name in self._kept:
            self._learn(self.member)
            self._wake.set()

    def _learn(self, member: Membership) -> None:
        known = {name: self._cluster.topic(name) for name in self._kept}
        topics = {
            name: Topic(topic.topic_id, len(topic.partitions))
            for name, topic in known.items()
            if topic is not None and topic.error == 0 and topic.partitions
        }
        self._act(member.learn(topics, self._now()))


def _name_cause(failure: KafkaError) -> str:
    """Return of what kind a failure is, as the log names it."""
    if not isinstance(failure, GroupFailed):
        return cause_of(code_of(failure))
    return Cause.DENIED if failure.code in DENIED else f"kafka-error-{failure.code}"


def _listed(tps: Collection[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(tps)))
