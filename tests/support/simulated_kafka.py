"""A Kafka of one broker in the process, as far as members of groups see it.

It answers the requests of `kafka.group.consumer` as Kafka 4 does: fetches by topic id, offsets
that are listed, committed and fetched, heartbeats of KIP-848 and the classic protocol. It is away
whenever a test wants it to be: then requests fail, or are not answered in time. A mock, because a
real broker has no virtual time, and ten thousand histories of minutes each need one.
"""

from __future__ import annotations

import asyncio
import random
import re
import uuid
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from support.classic_group import ClassicGroupCoordinator as ClassicCoordinator
from support.consumer_group import ConsumerGroupCoordinator
from support.record_sets import BatchRecord, build_batch

from gateway.core.error_code import ErrorCode
from gateway.core.group.consumer_member import ConsumerHeartbeatResponse
from gateway.core.group.member import (
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    SyncRequest,
    SyncResponse,
)
from gateway.core.log.record import TopicPartition
from gateway.errors import AuthenticationFailed, BrokerUnavailable, UnknownTopic
from gateway.kafka.client import offsets
from gateway.kafka.client.brokers import Coordinators
from gateway.kafka.client.cluster import DecompressionSlot
from gateway.kafka.client.metadata_changes import TopicChange
from gateway.kafka.client.outages import Outages
from gateway.kafka.protocol.fetch_messages import FetchedPartition, FetchRequest, FetchResponse
from gateway.kafka.protocol.group_messages import (
    NO_MEMBER,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from gateway.kafka.protocol.member_messages import ConsumerGroupHeartbeatRequest
from gateway.kafka.protocol.requests import (
    ErrorResponse,
    PartitionErrors,
    PartitionMetadata,
    TopicMetadata,
)
from gateway.kafka.protocol.topic_messages import (
    ListOffsetsRequest,
    LookupResponse,
    OffsetAndTimestamp,
)

NODE = 1
SESSION_TIMEOUT_S = 6.0
MAX_FETCHED_RECORDS = 40  # of one partition and fetch


@dataclass
class PartitionValues:
    """One partition: its values by offset, and the offset of the first that is kept.

    epoch_ends: where each leader epoch ended that is over.
    """

    values: list[bytes] = field(default_factory=list)
    log_start_offset: int = 0
    epoch_ends: list[int] = field(default_factory=list)

    @property
    def log_end_offset(self) -> int:
        return len(self.values)

    @property
    def leader_epoch(self) -> int:
        return len(self.epoch_ends)

    def get_epoch(self, offset: int) -> int:
        """Return the epoch of a record, or of the next one."""
        return bisect_right(self.epoch_ends, offset)


@dataclass
class SimulatedTopic:
    """One life of a topic. is_read: the group reads it."""

    id: UUID
    logs: list[PartitionValues]
    is_subscribed: bool = True


class SimulatedKafka:
    """Topics, one group, and everybody who is connected to it.

    is_denied: nobody may read with the group.
    holds_commits: commits are neither made nor answered.
    on_commit: called with each commit that is accepted, before it is answered.
    request_count: of all requests.
    """

    def __init__(self, rng: random.Random, *, is_classic: bool = False) -> None:
        self.rng = rng
        self.is_classic = is_classic
        self.is_denied = False
        self.holds_commits = False
        self.request_count = 0
        self.topics: dict[str, SimulatedTopic] = {}
        self.committed: dict[tuple[UUID, int], OffsetAndMetadata] = {}
        self.dead_letters: list[tuple[TopicPartition, bytes | None, Any]] = []
        self.on_commit: Callable[[Mapping[TopicPartition, int]], None] = lambda offsets: None
        self.clusters: list[SimulatedCluster] = []
        self._coordinator = ConsumerGroupCoordinator(frozenset())
        self._classic_coordinator = ClassicCoordinator()
        self._last_heartbeats: dict[str, float] = {}  # of each member, loop time
        self._rebalance_opened_at = 0.0  # since when the classic group waits for members to join
        self._append_event = asyncio.Event()

    # what tests do

    def create_topic(self, name: str, partitions: int, *, is_subscribed: bool = True) -> None:
        """Make it, or make it anew under the same name."""
        self.topics[name] = SimulatedTopic(
            uuid.UUID(int=self.rng.getrandbits(128)), [], is_subscribed
        )
        self.add_partitions(name, partitions)

    def add_partitions(self, name: str, count: int) -> None:
        """Let it have `count` partitions more."""
        self.topics[name].logs += [PartitionValues() for _ in range(count)]
        self._coordinator.partitions = frozenset(
            (topic.id, p)
            for topic in self.topics.values()
            for p in range(len(topic.logs) if topic.is_subscribed else 0)
        )
        self._coordinator.rebalance()
        for cluster in self.clusters:
            cluster.update_topic(name)

    def append_records(self, tp: TopicPartition, values: Iterable[bytes]) -> None:
        """Append records."""
        self.get_log(tp).values += values
        self._notify_fetches()

    def cut_log(self, tp: TopicPartition, end: int) -> None:
        """Cut a log off, as an unclean election does; what follows is of the next epoch."""
        log = self.get_log(tp)
        del log.values[end:]
        log.epoch_ends.append(end)
        self._notify_fetches()

    def get_log(self, tp: TopicPartition) -> PartitionValues:
        """Return the log of a partition as it is now."""
        return self.topics[tp.topic].logs[tp.partition]

    def expire_member(self, member_id: str) -> None:
        """End the session of a member."""
        self._last_heartbeats.pop(member_id, None)
        self._coordinator.expire_member(member_id)
        self._classic_coordinator.expire_member(member_id)

    @property
    def member_ids(self) -> list[str]:
        """Those whose sessions are not over."""
        return [*self._coordinator.members, *self._classic_coordinator.members]

    def _notify_fetches(self) -> None:
        self._append_event.set()
        self._append_event = asyncio.Event()

    async def run_expiry(self) -> None:
        """End sessions of silent members, and rebalances that members do not come to."""
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(0.5)
            for member in self.member_ids:  # also of whom nothing was heard but its join
                self._last_heartbeats.setdefault(member, now())
            for member in [
                m for m, at in self._last_heartbeats.items() if now() - at > SESSION_TIMEOUT_S
            ]:
                self.expire_member(member)
            waits = self._classic_coordinator.is_joining and any(
                slot.pending_join is None for slot in self._classic_coordinator.members.values()
            )
            self._rebalance_opened_at = self._rebalance_opened_at if waits else now()
            if waits and now() - self._rebalance_opened_at > 2 * SESSION_TIMEOUT_S:
                for member in self._classic_coordinator.end_rebalance_wait():
                    self._last_heartbeats.pop(member, None)

    # what it answers

    async def handle_request(self, request: Any, cluster: SimulatedCluster) -> Any:
        """Answer as the broker, or raise BrokerUnavailable."""
        self.request_count += 1
        await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.01)))
        await cluster.wait_reachable()
        match request:
            case FetchRequest():
                found = await self._wait_for_records(request, cluster)
            case ListOffsetsRequest():
                found = LookupResponse(
                    0,
                    {
                        tp: self._list_offset(tp, asked.value)
                        for tp, asked in request.queries.items()
                    },
                )
            case ConsumerGroupHeartbeatRequest() if self.is_denied:
                found = ConsumerHeartbeatResponse(
                    ErrorCode.GROUP_AUTHORIZATION_FAILED, None, None, 0, 0.0, None
                )
            case ConsumerGroupHeartbeatRequest():
                self._last_heartbeats[request.request.member_id] = asyncio.get_running_loop().time()
                if request.request.epoch < 0:
                    self._last_heartbeats.pop(request.request.member_id)
                found = self._coordinator.handle_heartbeat(request.request)
            case OffsetCommitRequest() if self.is_denied:
                found = PartitionErrors(
                    0, dict.fromkeys(request.offsets, ErrorCode.GROUP_AUTHORIZATION_FAILED)
                )
            case OffsetCommitRequest() if self.holds_commits:
                await asyncio.Event().wait()  # until the request times out
            case OffsetCommitRequest():
                found = self._commit_offsets(request)
            case OffsetFetchRequest() if self.is_denied:
                found = OffsetFetchResponse(0, ErrorCode.GROUP_AUTHORIZATION_FAILED, {})
            case OffsetFetchRequest():
                found = self._fetch_offsets(request)
            case FindCoordinatorRequest():
                error = ErrorCode.GROUP_AUTHORIZATION_FAILED if self.is_denied else 0
                found = FindCoordinatorResponse(0, error, None, NODE, "localhost", 9092)
            case _ if self.is_denied:
                found = _build_error_response(request.request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
            case _:
                found = await self._handle_classic(request.request)
        await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.01)))
        await cluster.wait_reachable()
        return found

    async def _wait_for_records(
        self, request: FetchRequest, cluster: SimulatedCluster
    ) -> FetchResponse:
        deadline = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
        while True:
            found = {tp: self._fetch_partition(tp, want) for tp, want in request.targets.items()}
            ready = any(each.error_code or each.records for each in found.values())
            if ready or asyncio.get_running_loop().time() >= deadline:
                return FetchResponse(0, 0, 0, found)
            try:
                async with asyncio.timeout_at(deadline):
                    await self._append_event.wait()
            except TimeoutError:
                pass
            await cluster.wait_reachable()

    def _fetch_partition(self, tp: TopicPartition, target: Any) -> FetchedPartition:
        topic = self.topics.get(tp.topic)
        if topic is None or topic.id != target.topic_id:
            return FetchedPartition(ErrorCode.UNKNOWN_TOPIC_ID)
        log = topic.logs[tp.partition]
        if not log.log_start_offset <= target.offset <= log.log_end_offset:
            return FetchedPartition(ErrorCode.OFFSET_OUT_OF_RANGE)
        if 0 <= target.last_fetched_epoch < log.leader_epoch:
            end = log.epoch_ends[target.last_fetched_epoch]
            if target.offset > end:  # KIP-320
                log_end, diverging = log.log_end_offset, (target.last_fetched_epoch, end)
                return FetchedPartition(0, log_end, log_end, 0, diverging_epoch=diverging)
        epoch = log.get_epoch(target.offset)
        values = [
            value
            for n, value in enumerate(
                log.values[target.offset : target.offset + MAX_FETCHED_RECORDS], target.offset
            )
            if log.get_epoch(n) == epoch
        ]
        items = [BatchRecord(target.offset + n, value) for n, value in enumerate(values)]
        return FetchedPartition(
            0,
            log.log_end_offset,
            log.log_end_offset,
            log.log_start_offset,
            records=build_batch(items, leader_epoch=epoch) if items else b"",
        )

    def _list_offset(self, tp: TopicPartition, spec: int) -> OffsetAndTimestamp | int:
        if tp.topic not in self.topics:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        log = self.get_log(tp)
        return OffsetAndTimestamp(log.log_start_offset if spec == -2 else log.log_end_offset, -1, 0)

    def _commit_offsets(self, request: OffsetCommitRequest) -> PartitionErrors:
        if code := self._check_identity(request.identity):
            return PartitionErrors(0, dict.fromkeys(request.offsets, code))
        errors: dict[TopicPartition, int] = {}
        taken: dict[TopicPartition, int] = {}
        for tp, committed in request.offsets.items():
            topic_id = request.topic_ids.get(tp.topic)
            known = self.topics.get(tp.topic)
            if known is None or (topic_id is not None and topic_id != known.id):
                errors[tp] = ErrorCode.UNKNOWN_TOPIC_ID
                continue
            errors[tp] = 0
            taken[tp] = committed.offset
            self.committed[known.id, tp.partition] = committed
        self.on_commit(taken)
        return PartitionErrors(0, errors)

    def _check_identity(self, identity: Any) -> int:
        if identity == NO_MEMBER and not self.member_ids:
            return 0
        member = self._coordinator.members.get(identity.member_id)
        if member is not None:
            return 0 if member.epoch == identity.epoch else ErrorCode.STALE_MEMBER_EPOCH
        if identity.member_id in self._classic_coordinator.members:
            return (
                0
                if identity.epoch == self._classic_coordinator.generation
                else ErrorCode.ILLEGAL_GENERATION
            )
        return ErrorCode.UNKNOWN_MEMBER_ID

    def _fetch_offsets(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        found: dict[TopicPartition, OffsetAndMetadata | int] = {}
        for name, topic in self.topics.items():
            for p in range(len(topic.logs)):
                tp = TopicPartition(name, p)
                if (request.tps is None or tp in request.tps) and (topic.id, p) in self.committed:
                    found[tp] = self.committed[topic.id, p]
        return OffsetFetchResponse(0, 0, found)

    async def _handle_classic(self, request: Any) -> Any:
        """What members of the classic protocol ask."""
        peer = _PendingResponse()
        self._classic_coordinator.handle_request(peer, request)  # type: ignore[arg-type]
        name = request.identity.member_id
        found = await peer.response
        name = getattr(found, "member_id", "") or name
        if name in self._classic_coordinator.members:
            self._last_heartbeats[name] = asyncio.get_running_loop().time()
        return found


def _build_error_response(request: Any, error: int) -> Any:
    """Return the answer to a member of the classic protocol that has nothing but an error."""
    kinds: dict[type, type] = {
        JoinRequest: JoinResponse,
        SyncRequest: SyncResponse,
        HeartbeatRequest: ErrorResponse,
        LeaveRequest: ErrorResponse,
    }
    return kinds[type(request)](0, error)


class _PendingResponse:
    """Who waits for one answer of the classic coordinator."""

    def __init__(self) -> None:
        self.response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def receive_response(self, request: Any, response: Any) -> None:
        if not self.response.done():
            self.response.set_result(response)


class SimulatedCluster:
    """The connections of one process.

    lent_spares: how many of its spare connections are in use.
    away: "" while it reaches Kafka, "refused", "silent", or "login": Kafka refuses its login, and
    says something else each time.
    """

    def __init__(self, kafka: SimulatedKafka) -> None:
        self.failure_mode = ""
        self.lent_spares = 0
        self.cluster_id = "simulated"
        self.connections: Any = self
        self.metadata: Any = self
        self.request_timeout = 5.0
        self.settings = SimpleNamespace(rack="")
        self.decompression_slot = DecompressionSlot()
        self.brokers = {NODE: None}
        self.last_responder = NODE
        self.coordinators = Coordinators(self.connections, self.metadata)
        self.outages = Outages(lambda: asyncio.get_running_loop().time())
        self._kafka = kafka
        self._listeners: list[Callable[[TopicChange], None]] = []
        self._known_topics: dict[str, TopicMetadata] = {}
        kafka.clusters.append(self)
        for name in kafka.topics:
            self.update_topic(name)

    async def wait_reachable(self) -> None:
        """Return while Kafka can be reached; else raise BrokerUnavailable, at once or in time."""
        if self.failure_mode == "silent":
            await asyncio.sleep(self.request_timeout)
            raise BrokerUnavailable("no answer in time", node=NODE, timeout=True)
        if self.failure_mode == "login":
            left = self._kafka.rng.uniform(0.1, 2.0)
            message = f"broker {NODE}: wrong password; it is tried again in {left:.2f}s"
            raise AuthenticationFailed(message, retry_after=left)
        if self.failure_mode:
            raise BrokerUnavailable("refused", node=NODE, retry_after=0.1)

    # as its own connections

    @property
    def versions(self) -> Mapping[int, tuple[int, int]]:
        return {} if self._kafka.is_classic else {ConsumerGroupHeartbeatRequest.API.key: (0, 1)}

    @asynccontextmanager
    async def borrow_spare(self, node: int) -> AsyncIterator[Any]:
        await self.wait_reachable()
        self.lent_spares += 1
        try:
            yield self
        finally:
            self.lent_spares -= 1

    async def connect(self, node: int, role: Any) -> Any:
        await self.wait_reachable()
        return self

    async def send_on(self, connection: Any, request: Any, *, timeout: float | None = None) -> Any:
        timeout = timeout or self.request_timeout
        try:
            async with asyncio.timeout(timeout):
                return await self._kafka.handle_request(request, self)
        except TimeoutError:
            raise BrokerUnavailable("no answer in time", node=NODE, timeout=True) from None

    async def send(
        self, node: int, role: Any, request: Any, *, timeout: float | None = None
    ) -> Any:
        return await self.send_on(self, request, timeout=timeout)

    def update_addresses(self, brokers: Any) -> None:
        """There is only the one."""

    # as its own metadata

    @property
    def is_reachable(self) -> bool:
        return not self.failure_mode

    @property
    def error(self) -> Exception | None:
        return BrokerUnavailable(self.failure_mode) if self.failure_mode else None

    def get_topic(self, name: str) -> TopicMetadata | None:
        return self._known_topics.get(name)

    def leader_for_partition(self, tp: TopicPartition) -> tuple[int, int] | None:
        known = self._known_topics.get(tp.topic)
        if known is None or tp.partition not in known.partitions:
            return None
        topic = self._kafka.topics.get(tp.topic)
        return NODE, topic.logs[tp.partition].leader_epoch if topic is not None else 0

    def add_listener(self, listener: Callable[[TopicChange], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def acquire_watch(self, topic: str) -> None:
        """Every topic is watched."""

    watch = release_watch = unwatch = update_leader = request_refresh = update_addresses

    async def refresh(self, reason: str) -> None:
        await self.wait_reachable()
        for name in self._kafka.topics:
            self.update_topic(name)

    async def fetch_all(self) -> frozenset[str]:
        await self.wait_reachable()
        return frozenset(self._kafka.topics)

    list_topics = fetch_all

    async def match_topics(self, pattern: re.Pattern[str]) -> frozenset[str]:
        return frozenset(filter(pattern.fullmatch, await self.fetch_all()))

    async def describe_topic(self, name: str) -> TopicMetadata:
        await self.wait_reachable()
        if name not in self._kafka.topics:
            raise UnknownTopic(f"no topic {name}", topic=name)
        return _build_metadata(name, self._kafka.topics[name])

    async def list_offsets(self, specs: Any, isolation_level: int = 1, **kwargs: Any) -> Any:
        return await offsets.list_offsets(
            self.connections, self.leader_for_partition, specs, isolation_level, **kwargs
        )

    def update_topic(self, name: str) -> None:
        """Let the process learn how the topic is now, unless Kafka is away."""
        if self.failure_mode:
            return
        found, before = (
            _build_metadata(name, self._kafka.topics[name]),
            self._known_topics.get(name),
        )
        if found == before:
            return
        self._known_topics[name] = found
        change = TopicChange(
            found,
            added=tuple(found.partitions.keys() - (before.partitions if before else {}).keys()),
            is_recreated=before is not None and before.topic_id != found.topic_id,
        )
        for listener in list(self._listeners):
            listener(change)

    def forget_topic(self, name: str) -> None:
        """Know nothing of a topic until the next `update_topic`, as before the first answer."""
        del self._known_topics[name]


def _build_metadata(name: str, topic: SimulatedTopic) -> TopicMetadata:
    partitions = {
        p: PartitionMetadata(NODE, 0, (NODE,), (NODE,), 0) for p in range(len(topic.logs))
    }
    return TopicMetadata(name, topic.id, 0, partitions)
