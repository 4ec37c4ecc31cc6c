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
    CoordinatorMoved,
    GroupMembership,
    GroupRequest,
    MemberEvent,
    MemberIdentity,
    MembershipFailed,
    MemberState,
    PartitionsAssigned,
    PartitionsLost,
    PartitionsRevoked,
    TopicInfo,
)
from gateway.core.log.record import TopicPartition
from gateway.core.log.recovery import Backoff, Cause, cause_from_code
from gateway.errors import AccessDenied, AuthenticationFailed, GroupFailed, KafkaError
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.failures import unwrap_error
from gateway.kafka.client.metadata_changes import TopicChange
from gateway.kafka.client.offsets import code_from_error
from gateway.kafka.client.outages import REPEAT_INTERVAL_S
from gateway.telemetry.log_context import create_detached_task

from .member_options import MemberOptions, build_request

log = logging.getLogger(__name__)

RETRY_DELAY_S = 0.2  # seconds until what could not be asked is asked again
DENIED_CODES = frozenset({29, 30})  # TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED
LEAVE_TIMEOUT_S = 2.0  # seconds that a leaving member waits for the coordinator's answer
RESOLVE_INTERVAL_S = 0.25  # seconds between looks for a topic that only the coordinator knows yet

OwnershipChange: TypeAlias = PartitionsAssigned | PartitionsRevoked | PartitionsLost


class OwnershipHandler(Protocol):
    """Who reads what the member owns."""

    def on_ownership_changed(self, event: OwnershipChange) -> None:
        """What changes, at the instant at which it does."""

    async def apply_ownership_change(self, event: OwnershipChange) -> None:
        """What is to be done about it; one after the other, in order."""

    def on_group_failure(self, failure: KafkaError | None) -> None:
        """The group cannot be used; None: it can again."""


class GroupMember:
    """One membership, from `subscribe` to `close`.

    rebalance_timeout: seconds that following one event may take.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        handler: OwnershipHandler,
        options: MemberOptions,
        *,
        rebalance_timeout: float,
    ) -> None:
        self.name = name
        self.member: GroupMembership | None = None
        self.state = MemberState.REBALANCING
        self._cluster = cluster
        self._handler = handler
        self._options = options
        self._rebalance_timeout = rebalance_timeout
        self._topics: Collection[str] = ()
        self._watched_topics: frozenset[str] = frozenset()
        self._wake = asyncio.Event()
        self._exchange_done = asyncio.Event()
        self._events: deque[OwnershipChange] = deque()
        self._loss_counts: Counter[TopicPartition] = Counter()
        self._run_task: asyncio.Task[None] | None = None
        self._apply_task: asyncio.Task[None] | None = None
        self._failure: KafkaError | None = None  # as the owner knows it
        self._denied_backoff = Backoff(RETRY_DELAY_S, random.random)
        self._unlisten = cluster.metadata.add_listener(self._on_metadata_change)
        self._now: Callable[[], float] = asyncio.get_running_loop().time
        self._state_since = self._now()

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return self.member.owned if self.member is not None else frozenset()

    @property
    def identity(self) -> MemberIdentity:
        return self.member.identity if self.member is not None else MemberIdentity("", -1)

    def subscribe(self, topics: Collection[str]) -> None:
        """These and no others; the first time it joins the group."""
        self._topics = topics
        if self.member is not None:
            self.member.subscribe(topics, self._now())
        if self._run_task is None:
            self._run_task = create_detached_task(self._run())
        self._wake.set()

    async def heartbeat_soon(self, timeout_s: float) -> None:
        """Let the coordinator be asked at once; returns after its answer, or `within` seconds."""
        if self.member is None or self.member.state is MemberState.FAILED:
            return  # it owns nothing, and its next attempt may be a minute away
        self.member.heartbeat_soon(self._now())
        self._wake.set()
        turned = self._exchange_done
        try:
            async with asyncio.timeout(timeout_s):
                await turned.wait()
        except TimeoutError:
            pass

    async def close(self, leave: bool = True) -> None:
        """leave: tell the coordinator, so that others need not wait for the session's end."""
        tasks = [task for task in (self._run_task, self._apply_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._run_task = self._apply_task = None  # their frames point back here
        self._unlisten()
        for topic in self._watched_topics:
            self._cluster.metadata.release_watch(topic)
        self._watched_topics = frozenset()
        ask = self.member.leave(self._now()) if self.member is not None and leave else None
        if ask is not None:
            try:
                async with asyncio.timeout(LEAVE_TIMEOUT_S):
                    await self._cluster.coordinators.send(self.name, build_request(ask))
            except (KafkaError, TimeoutError) as exc:
                log.warning("group %s: the coordinator did not hear of a leave: %s", self.name, exc)
        if self._failure is not None:
            self._cluster.outages.report_recovery(self._outage_label, "is not used any more")

    async def _run(self) -> None:
        while True:
            try:
                member = self.member or await self._create_member()
                while not member.is_closed:
                    await self._run_once(member)
                break
            except KafkaError as exc:
                await asyncio.sleep(self._on_request_failed(exc) or RETRY_DELAY_S)
            except Exception:
                log.exception("group %s: its member failed; it goes on", self.name)
                await asyncio.sleep(RETRY_DELAY_S)
        while self._failure is not None:  # for good
            self._report_failure(self._failure)
            await asyncio.sleep(REPEAT_INTERVAL_S)

    # what keeps it from being used

    @property
    def _outage_label(self) -> str:
        return f"group={self.name}"

    def _on_request_failed(self, exc: KafkaError) -> float:
        """Note that nothing was answered, or that there is no way to ask.

        Returns:
            The seconds until the next attempt, 0 where nothing is known of that.
        """
        log.debug("group %s: %s", self.name, exc)
        if isinstance(exc, (AccessDenied, AuthenticationFailed, GroupFailed)):
            self._report_failure(exc)
            return exc.retry_after or self._denied_backoff.next_delay(Cause.DENIED)
        # A broker that is only away may refuse us when it is back: the last failure stays.
        return exc.retry_after or 0.0

    def _report_failure(self, failure: KafkaError) -> None:
        """Say why the group cannot be used, or still cannot."""
        self._failure = failure
        self._handler.on_group_failure(failure)
        reason = unwrap_error(failure)
        self._cluster.outages.report_failure(
            self._outage_label, label_cause(reason), str(reason), group=self.name
        )

    def _report_recovery(self) -> None:
        """Note that the coordinator lets the member in."""
        self._denied_backoff.reset()
        self._handler.on_group_failure(None)
        if self._failure is not None:
            self._failure = None
            self._cluster.outages.report_recovery(self._outage_label, "can be used again")

    async def _create_member(self) -> GroupMembership:
        link = await self._cluster.coordinators.connect(self.name)
        member = self._options.create_member(self.name, link.versions)
        member.subscribe(self._topics, self._now())
        self.member = member
        return member

    async def _run_once(self, member: GroupMembership) -> None:
        self._wake.clear()
        self._watch_topics(member)
        ask = member.next_request(self._now())
        if ask is None:
            await self._wait_until_due(member)
        else:
            self._apply_events(await self._send_request(member, ask))
            self._exchange_done.set()
            self._exchange_done = asyncio.Event()

    async def _send_request(
        self, member: GroupMembership, request: GroupRequest
    ) -> Sequence[MemberEvent]:
        try:
            answer = await self._cluster.coordinators.send(
                request.group, build_request(request), max_hold=request.max_hold
            )
        except KafkaError as exc:
            return member.on_no_response(request, self._now(), self._on_request_failed(exc))
        if answer.error:
            log.debug("group %s: %s was answered with %s", self.name, request, answer)
        events = member.on_response(request, answer, self._now())
        if member.state is not MemberState.FAILED:
            self._report_recovery()
        return events

    async def _wait_until_due(self, member: GroupMembership) -> None:
        until = member.next_request_at
        if member.has_unknown_topics:
            until = min(until, self._now() + RESOLVE_INTERVAL_S)
        try:
            async with asyncio.timeout_at(until if until < float("inf") else None):
                await self._wake.wait()
        except TimeoutError:
            if member.has_unknown_topics:
                await self._cluster.metadata.refresh(f"a topic of group {self.name}")
                self._update_topics(member)

    def _apply_events(self, events: Sequence[MemberEvent]) -> None:
        for event in events:
            if isinstance(event, CoordinatorMoved):
                self._cluster.coordinators.forget(self.name)
            elif isinstance(event, MembershipFailed):
                message = f"the group {self.name} cannot be used: {event.reason}"
                self._report_failure(GroupFailed(message, group=self.name, code=event.error))
            else:
                self._on_ownership_changed(event)
        self._log_state_change()

    def _on_ownership_changed(self, event: OwnershipChange) -> None:
        if isinstance(event, PartitionsLost):
            self._loss_counts.update(event.tps)
            self._cluster.coordinators.stats.count_lost(self.name, len(event.tps))
            log.warning(
                "group %s: lost %s: %s", self.name, _format_partitions(event.tps), event.reason
            )
        self._handler.on_ownership_changed(event)
        self._events.append(event)
        if self._apply_task is None or self._apply_task.done():
            self._apply_task = create_detached_task(self._apply_ownership_changes())

    async def _apply_ownership_changes(self) -> None:
        while self._events:
            event = self._events.popleft()
            losses = {tp: self._loss_counts[tp] for tp in event.tps}
            try:
                async with asyncio.timeout(self._rebalance_timeout):
                    await self._handler.apply_ownership_change(event)
            except TimeoutError:
                log.warning("group %s: a listener took too long; it was left", self.name)
            except Exception:
                log.exception("group %s: a listener failed", self.name)
            # What was lost meanwhile is not to be acknowledged: it may be revoked a second time.
            kept = frozenset(tp for tp in event.tps if self._loss_counts[tp] == losses[tp])
            if isinstance(event, PartitionsRevoked) and kept and self.member is not None:
                self._apply_events(self.member.on_released(kept, self._now()))
                self._wake.set()

    def _log_state_change(self) -> None:
        """Say how the member's state changed."""
        if self.member is None or self.member.state is self.state:
            return
        before, self.state, now = self.state, self.member.state, self._now()
        took, self._state_since = now - self._state_since, now
        if self.state is MemberState.RUNNING:
            self._cluster.coordinators.stats.observe_rebalance(self.name, took)
            log.info(
                "group %s: %s -> RUNNING after %.0f ms with %d partitions",
                self.name, before.name, took * 1000, len(self.member.owned),
                extra={"group": self.name, "milliseconds": round(took * 1000)},
            )  # fmt: skip
        else:
            extra = {"group": self.name}
            log.info("group %s: %s -> %s", self.name, before.name, self.state.name, extra=extra)

    # metadata

    def _watch_topics(self, member: GroupMembership) -> None:
        interest = member.needed_topics
        if interest == self._watched_topics:
            return
        for topic in interest - self._watched_topics:
            self._cluster.metadata.acquire_watch(topic)
        for topic in self._watched_topics - interest:
            self._cluster.metadata.release_watch(topic)
        self._watched_topics = interest
        self._update_topics(member)

    def _on_metadata_change(self, change: TopicChange) -> None:
        if self.member is not None and change.topic.name in self._watched_topics:
            self._update_topics(self.member)
            self._wake.set()

    def _update_topics(self, member: GroupMembership) -> None:
        known = {name: self._cluster.get_topic(name) for name in self._watched_topics}
        topics = {
            name: TopicInfo(topic.topic_id, len(topic.partitions))
            for name, topic in known.items()
            if topic is not None and topic.error == 0 and topic.partitions
        }
        self._apply_events(member.on_metadata(topics, self._now()))


def label_cause(failure: KafkaError) -> str:
    """Return of what kind a failure is, as the log names it."""
    if not isinstance(failure, GroupFailed):
        return cause_from_code(code_from_error(failure))
    return Cause.DENIED if failure.code in DENIED_CODES else f"kafka-error-{failure.code}"


def _format_partitions(tps: Collection[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(tps)))
