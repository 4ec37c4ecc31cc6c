"""Run a member of a consumer group: send the requests of its `GroupMembership`.

Each member has one task and no thread. Heartbeats and commits of all members go over one connection
to each coordinator. Changes of ownership are handled in a second task, one after the other, while
heartbeats go on: a listener may take time to finish with revoked partitions, and only then is the
coordinator informed that they are free.

If the group cannot be used, because Kafka refuses the member or the login, it is tried again with
growing delays. The cluster's `Outages` log that, and when it is over.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from gateway.core.error_code import AUTHORIZATION_ERRORS, ErrorCode, code_from_error
from gateway.core.group.member import (
    CoordinatorMoved,
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
from gateway.kafka.client.metadata_changes import TopicChange
from gateway.kafka.client.outages import REPEAT_INTERVAL_S
from gateway.telemetry.logs import create_detached_task

from .consumer_options import ConsumerOptions, GroupMembership, build_request

if TYPE_CHECKING:
    from .assignment import Assignment

log = logging.getLogger(__name__)

RETRY_DELAY_S = 0.2  # seconds before a retry, where no failure says how long to wait
LEAVE_TIMEOUT_S = 2.0  # seconds for which a leaving member waits for the coordinator's response
# Seconds between metadata requests for a topic that so far only the coordinator knows.
RESOLVE_INTERVAL_S = 0.25

OwnershipChange: TypeAlias = PartitionsAssigned | PartitionsRevoked | PartitionsLost


class GroupMember:
    """One member of a group, from the first `subscribe` to `close`.

    An `Assignment` creates and owns it. `_run_task` sends at most one request at a time, and
    `_apply_task` applies the changes of ownership in `_events`. Both call into the state machine,
    whose methods are synchronous.

    Attributes:
        member: The state machine; None until the coordinator's versions are known.
        state: The member's state as it was last logged.
    """

    def __init__(
        self, cluster: Cluster, name: str, handler: Assignment, options: ConsumerOptions
    ) -> None:
        self.name = name
        self.member: GroupMembership | None = None
        self.state = MemberState.REBALANCING
        self._cluster = cluster
        self._handler = handler
        self._options = options
        self._topics: Collection[str] = ()
        self._watched_topics: frozenset[str] = frozenset()
        self._wake = asyncio.Event()  # the member may have a request to send
        self._exchange_done = asyncio.Event()  # set, and replaced, after each request
        self._events: deque[OwnershipChange] = deque()  # not applied yet
        self._loss_counts: Counter[TopicPartition] = Counter()  # how often each was lost
        self._run_task: asyncio.Task[None] | None = None
        self._apply_task: asyncio.Task[None] | None = None
        self._failure: KafkaError | None = None  # as last reported to the handler
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
        """Subscribe to exactly these topics. The first call joins the group."""
        self._topics = topics
        if self.member is not None:
            self.member.subscribe(topics, self._now())
        if self._run_task is None:
            self._run_task = create_detached_task(self._run())
        self._wake.set()

    async def heartbeat_soon(self, timeout_s: float) -> None:
        """Send a heartbeat soon, and wait for it, or the request under way, or `timeout_s`."""
        if self.member is None or self.member.state is MemberState.FAILED:
            return  # it owns nothing, and its next attempt may be a minute later
        self.member.heartbeat_soon(self._now())
        self._wake.set()
        exchange_done = self._exchange_done
        try:
            async with asyncio.timeout(timeout_s):
                await exchange_done.wait()
        except TimeoutError:
            pass

    async def close(self, leave: bool = True) -> None:
        tasks = [task for task in (self._run_task, self._apply_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._run_task = self._apply_task = None  # their frames refer to this object: no cycles
        self._unlisten()
        for topic in self._watched_topics:
            self._cluster.metadata.release_watch(topic)
        self._watched_topics = frozenset()
        request = self.member.leave(self._now()) if self.member is not None and leave else None
        if request is not None:
            try:
                async with asyncio.timeout(LEAVE_TIMEOUT_S):
                    await self._cluster.coordinators.send(self.name, build_request(request))
            except (KafkaError, TimeoutError) as exc:
                log.warning("group %s: the coordinator did not hear of a leave: %s", self.name, exc)
        if self._failure is not None:
            self._cluster.outages.report_recovery(self._outage_label, "is not used any more")

    async def _run(self) -> None:
        while True:
            try:
                member = self.member or await self._create_member()
                while member is self.member and not member.is_closed:
                    await self._run_once(member)
                if member is self.member:
                    break
            except KafkaError as exc:
                await asyncio.sleep(self._on_request_failed(exc) or RETRY_DELAY_S)
            except Exception:
                log.exception("group %s: its member failed; it goes on", self.name)
                await asyncio.sleep(RETRY_DELAY_S)
        # The member is closed: the failure is final. Repeat it in the log until `close`.
        while self._failure is not None:
            self._report_failure(self._failure)
            await asyncio.sleep(REPEAT_INTERVAL_S)

    # Failures.

    @property
    def _outage_label(self) -> str:
        return f"group={self.name}"

    def _on_request_failed(self, exc: KafkaError) -> float:
        log.debug("group %s: %s", self.name, exc)
        if isinstance(exc, (AccessDenied, AuthenticationFailed, GroupFailed)):
            self._report_failure(exc)
            return exc.retry_after or self._denied_backoff.next_delay(Cause.DENIED)
        # That a broker is away does not end an earlier refusal, so the last failure stays.
        return exc.retry_after or 0.0

    def _report_failure(self, failure: KafkaError) -> None:
        self._failure = failure
        self._handler.on_group_failure(failure)
        outages = self._cluster.outages
        if isinstance(failure, GroupFailed):
            cause = label_cause(failure)
            outages.report_failure(self._outage_label, cause, str(failure), group=self.name)
        else:
            outages.report_error(self._outage_label, failure, group=self.name)

    def _report_recovery(self) -> None:
        self._denied_backoff.reset()
        self._handler.on_group_failure(None)
        if self._failure is not None:
            self._failure = None
            self._cluster.outages.report_recovery(self._outage_label, "can be used again")

    async def _create_member(self) -> GroupMembership:
        connection = await self._cluster.coordinators.connect(self.name)
        member = self._options.create_member(self.name, connection.versions)
        member.subscribe(self._topics, self._now())
        self.member = member
        if self._watched_topics:  # it takes the place of one of the other protocol
            self._update_topics(member)
        return member

    async def _run_once(self, member: GroupMembership) -> None:
        # Cleared before the member is asked: what changes from here on sets it again.
        self._wake.clear()
        self._watch_topics(member)
        request = member.next_request(self._now())
        if request is None:
            await self._wait_until_due(member)
        else:
            self._apply_events(await self._send_request(member, request))
            self._exchange_done.set()
            self._exchange_done = asyncio.Event()

    async def _send_request(
        self, member: GroupMembership, request: GroupRequest
    ) -> Sequence[MemberEvent]:
        try:
            response = await self._cluster.coordinators.send(
                request.group, build_request(request), max_hold=request.max_hold
            )
        except KafkaError as exc:
            return member.on_no_response(request, self._now(), self._on_request_failed(exc))
        if response.error:
            log.debug("group %s: %s was answered with %s", self.name, request, response)
        events = member.on_response(request, response, self._now())
        if member.state is not MemberState.FAILED:
            self._report_recovery()
        return events

    async def _wait_until_due(self, member: GroupMembership) -> None:
        due_at = member.next_request_at
        if member.has_unknown_topics:
            due_at = min(due_at, self._now() + RESOLVE_INTERVAL_S)
        try:
            async with asyncio.timeout_at(due_at if due_at < float("inf") else None):
                await self._wake.wait()
        except TimeoutError:
            if member.has_unknown_topics:
                await self._cluster.metadata.refresh(f"a topic of group {self.name}")
                self._update_topics(member)

    def _apply_events(self, events: Sequence[MemberEvent]) -> None:
        for event in events:
            if isinstance(event, CoordinatorMoved):
                self._cluster.coordinators.forget(self.name)
            elif (
                isinstance(event, MembershipFailed)
                and event.error == ErrorCode.UNSUPPORTED_VERSION
                and self._options.protocol == "auto"
            ):  # brokers were upgraded, but the feature `group.version` was not
                log.info("group %s: %s; it takes the classic protocol", self.name, event.reason)
                self._options, self.member = replace(self._options, protocol="classic"), None
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
            names = ", ".join(map(str, sorted(event.tps)))
            log.warning("group %s: lost %s: %s", self.name, names, event.reason)
        self._handler.on_ownership_changed(event)
        self._events.append(event)
        if self._apply_task is None or self._apply_task.done():
            self._apply_task = create_detached_task(self._apply_ownership_changes())

    async def _apply_ownership_changes(self) -> None:
        """Apply the queued changes in order, and acknowledge the partitions that were given up."""
        while self._events:
            event = self._events.popleft()
            losses = {tp: self._loss_counts[tp] for tp in event.tps}
            try:
                async with asyncio.timeout(self._options.rebalance_timeout):
                    await self._handler.apply_ownership_change(event)
            except TimeoutError:
                log.warning("group %s: a listener took too long; it was cancelled", self.name)
            except Exception:
                log.exception("group %s: a listener failed", self.name)
            # A partition that was lost meanwhile must not be acknowledged: the member may have got
            # it again since, and it may be revoked a second time, which is not applied yet.
            kept = frozenset(tp for tp in event.tps if self._loss_counts[tp] == losses[tp])
            if isinstance(event, PartitionsRevoked) and kept and self.member is not None:
                self._apply_events(self.member.on_released(kept, self._now()))
                self._wake.set()

    def _log_state_change(self) -> None:
        """Log a change of the member's state, and count how long a rebalance took."""
        if self.member is None or self.member.state is self.state:
            return
        previous, self.state, now = self.state, self.member.state, self._now()
        seconds, self._state_since = now - self._state_since, now
        if self.state is MemberState.RUNNING:
            self._cluster.coordinators.stats.observe_rebalance(self.name, seconds)
            log.info(
                "group %s: %s -> RUNNING after %.0f ms with %d partitions",
                self.name,
                previous.name,
                seconds * 1000,
                len(self.member.owned),
                extra={"group": self.name, "milliseconds": round(seconds * 1000)},
            )
        else:
            extra = {"group": self.name}
            log.info("group %s: %s -> %s", self.name, previous.name, self.state.name, extra=extra)

    # Metadata.

    def _watch_topics(self, member: GroupMembership) -> None:
        needed_topics = member.needed_topics
        if needed_topics == self._watched_topics:
            return
        for topic in needed_topics - self._watched_topics:
            self._cluster.metadata.acquire_watch(topic)
        for topic in self._watched_topics - needed_topics:
            self._cluster.metadata.release_watch(topic)
        self._watched_topics = needed_topics
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
    if not isinstance(failure, GroupFailed):
        return cause_from_code(code_from_error(failure))
    return Cause.DENIED if failure.code in AUTHORIZATION_ERRORS else f"kafka-error-{failure.code}"
