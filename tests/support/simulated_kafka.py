"""A Kafka of one broker in the process, as far as members of groups see it.

It answers the requests of `kafka.group.consumer` as Kafka 4 does: fetches by topic id, offsets
that are listed, committed and fetched, heartbeats of KIP-848 and the classic protocol. It is away
whenever a test wants it to be: then requests fail, or are not answered in time. A mock, because a
real broker has no virtual time, and ten thousand histories of minutes each need one.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from support.classic_group import Coordinator as ClassicCoordinator
from support.consumer_group import Coordinator
from support.record_sets import Item, batch

from gateway.core.group.classic_requests import (
    Code,
    HeartbeatAnswer,
    HeartbeatAsk,
    JoinAnswer,
    JoinAsk,
    LeaveAnswer,
    LeaveAsk,
    SyncAnswer,
    SyncAsk,
)
from gateway.core.group.consumer_member import BeatAnswer
from gateway.core.log.record import TopicPartition
from gateway.errors import AuthenticationFailed, BrokerUnavailable, UnknownTopic
from gateway.kafka.client import offsets
from gateway.kafka.client.coordinators import Coordinators
from gateway.kafka.client.metadata_changes import Change
from gateway.kafka.client.outages import Outages
from gateway.kafka.fetch.decompression import Inflation
from gateway.kafka.protocol.fetch_messages import FetchAnswer, Fetched, FetchRequest
from gateway.kafka.protocol.group_messages import (
    CommitAnswer,
    Committed,
    CoordinatorAnswer,
    FindCoordinatorRequest,
    HeartbeatRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetsFetched,
)
from gateway.kafka.protocol.offset_messages import ListOffsetsRequest, OffsetAnswer, OffsetsAnswer
from gateway.kafka.protocol.requests import PartitionAnswer, TopicAnswer

NODE = 1
SESSION_SECONDS = 6.0
FETCHED_RECORDS = 40  # of one partition and fetch
OUT_OF_RANGE, UNKNOWN_MEMBER, STALE_EPOCH, UNKNOWN_ID = 1, 25, 113, 100
DENIED = Code.GROUP_AUTHORIZATION_FAILED


@dataclass
class Log:
    """One partition: its values by offset, and the offset of the first that is kept."""

    values: list[bytes] = field(default_factory=list)
    start: int = 0

    @property
    def end(self) -> int:
        return len(self.values)


@dataclass
class Topic:
    """One life of a topic. is_read: the group reads it."""

    id: UUID
    logs: list[Log]
    is_read: bool = True


class SimulatedKafka:
    """Topics, one group, and everybody who is connected to it.

    is_denied: nobody may read with the group.
    on_commit: called with each commit that is accepted, before it is answered.
    """

    def __init__(self, draw: random.Random, *, classic: bool = False) -> None:
        self.draw = draw
        self.classic = classic
        self.is_denied = False
        self.topics: dict[str, Topic] = {}
        self.committed: dict[tuple[UUID, int], Committed] = {}
        self.letters: list[tuple[TopicPartition, bytes | None, Any]] = []
        self.on_commit: Callable[[Mapping[TopicPartition, int]], None] = lambda offsets: None
        self.clusters: list[SimulatedCluster] = []
        self._coordinator = Coordinator(frozenset())
        self._classic = ClassicCoordinator()
        self._heard: dict[str, float] = {}  # of each member, loop time
        self._opened = 0.0  # since when the classic group waits for members to join
        self._changed = asyncio.Event()

    # what tests do

    def create_topic(self, name: str, partitions: int, *, is_read: bool = True) -> None:
        """Make it, or make it anew under the same name."""
        self.topics[name] = Topic(uuid.UUID(int=self.draw.getrandbits(128)), [], is_read)
        self.add_partitions(name, partitions)

    def add_partitions(self, name: str, count: int) -> None:
        """Let it have `count` partitions more."""
        self.topics[name].logs += [Log() for _ in range(count)]
        self._coordinator.partitions = frozenset(
            (topic.id, p)
            for topic in self.topics.values()
            for p in range(len(topic.logs) if topic.is_read else 0)
        )
        self._coordinator.rebalance()
        for cluster in self.clusters:
            cluster.tell(name)

    def write(self, tp: TopicPartition, values: Iterable[bytes]) -> None:
        """Append records."""
        self.log(tp).values += values
        self._wake()

    def log(self, tp: TopicPartition) -> Log:
        """Return the log of a partition as it is now."""
        return self.topics[tp.topic].logs[tp.partition]

    def expire(self, member_id: str) -> None:
        """End the session of a member."""
        self._heard.pop(member_id, None)
        self._coordinator.expire(member_id)
        self._classic.expire(member_id)

    @property
    def members(self) -> list[str]:
        """Those whose sessions are not over."""
        return [*self._coordinator.members, *self._classic.members]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """End sessions of silent members, and rebalances that members do not come to."""
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(0.5)
            for member in self.members:  # also of whom nothing was heard but its join
                self._heard.setdefault(member, now())
            for member in [m for m, at in self._heard.items() if now() - at > SESSION_SECONDS]:
                self.expire(member)
            waits = self._classic.open and any(
                slot.join is None for slot in self._classic.members.values()
            )
            self._opened = self._opened if waits else now()
            if waits and now() - self._opened > 2 * SESSION_SECONDS:
                for member in self._classic.wait_no_more():
                    self._heard.pop(member, None)

    # what it answers

    async def answer(self, request: Any, cluster: SimulatedCluster) -> Any:
        """Answer as the broker, or raise BrokerUnavailable."""
        await asyncio.sleep(self.draw.choice((0.0, 0.001, 0.01)))
        await cluster.be_there()
        match request:
            case FetchRequest():
                found = await self._fetch(request, cluster)
            case ListOffsetsRequest():
                found = OffsetsAnswer(
                    0, {tp: self._listed(tp, asked.spec) for tp, asked in request.asked.items()}
                )
            case HeartbeatRequest() if self.is_denied:
                found = BeatAnswer(DENIED, None, None, 0, 0.0, None)
            case HeartbeatRequest():
                self._heard[request.beat.member_id] = asyncio.get_running_loop().time()
                if request.beat.epoch < 0:
                    self._heard.pop(request.beat.member_id)
                found = self._coordinator.beat(request.beat)
            case OffsetCommitRequest() if self.is_denied:
                found = CommitAnswer(0, dict.fromkeys(request.offsets, DENIED))
            case OffsetCommitRequest():
                found = self._commit(request)
            case OffsetFetchRequest() if self.is_denied:
                found = OffsetsFetched(0, DENIED, {})
            case OffsetFetchRequest():
                found = self._fetch_offsets(request)
            case FindCoordinatorRequest():
                error = DENIED if self.is_denied else 0
                found = CoordinatorAnswer(0, error, None, NODE, "localhost", 9092)
            case _ if self.is_denied:
                found = _refuse(request.ask, DENIED)
            case _:
                found = await self._hear(request.ask)
        await asyncio.sleep(self.draw.choice((0.0, 0.001, 0.01)))
        await cluster.be_there()
        return found

    async def _fetch(self, request: FetchRequest, cluster: SimulatedCluster) -> FetchAnswer:
        deadline = asyncio.get_running_loop().time() + request.max_wait / 1000
        while True:
            found = {tp: self._fetched(tp, want) for tp, want in request.wants.items()}
            ready = any(each.error_code or each.records for each in found.values())
            if ready or asyncio.get_running_loop().time() >= deadline:
                return FetchAnswer(0, 0, 0, found)
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                pass
            await cluster.be_there()

    def _fetched(self, tp: TopicPartition, want: Any) -> Fetched:
        topic = self.topics.get(tp.topic)
        if topic is None or topic.id != want.topic_id:
            return Fetched(UNKNOWN_ID)
        log = topic.logs[tp.partition]
        if not log.start <= want.offset <= log.end:
            return Fetched(OUT_OF_RANGE)
        values = log.values[want.offset : want.offset + FETCHED_RECORDS]
        items = [Item(want.offset + n, value) for n, value in enumerate(values)]
        return Fetched(0, log.end, log.end, log.start, records=batch(items) if items else b"")

    def _listed(self, tp: TopicPartition, spec: int) -> OffsetAnswer:
        if tp.topic not in self.topics:
            return OffsetAnswer(3, -1, -1, -1)
        log = self.log(tp)
        return OffsetAnswer(0, -1, log.start if spec == -2 else log.end, 0)

    def _commit(self, request: OffsetCommitRequest) -> CommitAnswer:
        if code := self._fenced(request.identity):
            return CommitAnswer(0, dict.fromkeys(request.offsets, code))
        errors: dict[TopicPartition, int] = {}
        taken: dict[TopicPartition, int] = {}
        for tp, committed in request.offsets.items():
            topic_id = request.ids.get(tp.topic)
            known = self.topics.get(tp.topic)
            if known is None or (topic_id is not None and topic_id != known.id):
                errors[tp] = UNKNOWN_ID
                continue
            errors[tp] = 0
            taken[tp] = committed.offset
            self.committed[known.id, tp.partition] = committed
        self.on_commit(taken)
        return CommitAnswer(0, errors)

    def _fenced(self, identity: Any) -> int:
        member = self._coordinator.members.get(identity.member_id)
        if member is not None:
            return 0 if member.epoch == identity.epoch else STALE_EPOCH
        if identity.member_id in self._classic.members:
            return 0 if identity.epoch == self._classic.generation else Code.ILLEGAL_GENERATION
        return UNKNOWN_MEMBER

    def _fetch_offsets(self, request: OffsetFetchRequest) -> OffsetsFetched:
        found: dict[TopicPartition, Committed | int] = {}
        for name, topic in self.topics.items():
            for p in range(len(topic.logs)):
                tp = TopicPartition(name, p)
                if (request.tps is None or tp in request.tps) and (topic.id, p) in self.committed:
                    found[tp] = self.committed[topic.id, p]
        return OffsetsFetched(0, 0, found)

    async def _hear(self, ask: Any) -> Any:
        """What members of the classic protocol ask."""
        peer = _Peer()
        self._classic.hear(peer, ask)  # type: ignore[arg-type]
        name = ask.identity.member_id
        found = await peer.answer
        name = getattr(found, "member_id", "") or name
        if name in self._classic.members:
            self._heard[name] = asyncio.get_running_loop().time()
        return found


def _refuse(ask: Any, error: int) -> Any:
    """Return the answer to a member of the classic protocol that has nothing but an error."""
    kinds: dict[type, type] = {
        JoinAsk: JoinAnswer,
        SyncAsk: SyncAnswer,
        HeartbeatAsk: HeartbeatAnswer,
        LeaveAsk: LeaveAnswer,
    }
    return kinds[type(ask)](0, error)


class _Peer:
    """Who waits for one answer of the classic coordinator."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def told(self, ask: Any, found: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(found)


class SimulatedCluster:
    """The connections of one process.

    away: "" while it reaches Kafka, "refused", "silent", or "login": Kafka refuses its login, and
    says something else each time.
    """

    def __init__(self, kafka: SimulatedKafka) -> None:
        self.away = ""
        self.connections: Any = self
        self.metadata: Any = self
        self.request_timeout = 5.0
        self.settings = SimpleNamespace(rack="")
        self.inflation = Inflation()
        self.brokers = {NODE: None}
        self.answered = NODE
        self.coordinators = Coordinators(self)  # type: ignore[arg-type]
        self.outages = Outages(lambda: asyncio.get_running_loop().time())
        self._kafka = kafka
        self._listeners: list[Callable[[Change], None]] = []
        self._known: dict[str, TopicAnswer] = {}
        kafka.clusters.append(self)
        for name in kafka.topics:
            self.tell(name)

    async def be_there(self) -> None:
        """Return while Kafka can be reached; else raise BrokerUnavailable, at once or in time."""
        if self.away == "silent":
            await asyncio.sleep(self.request_timeout)
            raise BrokerUnavailable("no answer in time", node=NODE, timeout=True)
        if self.away == "login":
            left = self._kafka.draw.uniform(0.1, 2.0)
            message = f"broker {NODE}: wrong password; it is tried again in {left:.2f}s"
            raise AuthenticationFailed(message, retry_after=left)
        if self.away:
            raise BrokerUnavailable("refused", node=NODE, retry_after=0.1)

    # as its own connections

    @property
    def versions(self) -> Mapping[int, tuple[int, int]]:
        return {} if self._kafka.classic else {HeartbeatRequest.API: (0, 1)}

    @asynccontextmanager
    async def spare(self, node: int) -> AsyncIterator[Any]:
        await self.be_there()
        yield self

    async def connect(self, node: int, role: Any) -> Any:
        await self.be_there()
        return self

    async def ask(self, link: Any, request: Any, *, within: float | None = None) -> Any:
        within = within or self.request_timeout
        try:
            async with asyncio.timeout(within):
                return await self._kafka.answer(request, self)
        except TimeoutError:
            raise BrokerUnavailable("no answer in time", node=NODE, timeout=True) from None

    async def send(self, node: int, role: Any, request: Any, *, within: float | None = None) -> Any:
        return await self.ask(self, request, within=within)

    def know(self, brokers: Any) -> None:
        """There is only the one."""

    # as its own metadata

    @property
    def reachable(self) -> bool:
        return not self.away

    @property
    def error(self) -> Exception | None:
        return BrokerUnavailable(self.away) if self.away else None

    def topic(self, name: str) -> TopicAnswer | None:
        return self._known.get(name)

    def leader(self, tp: TopicPartition) -> tuple[int, int] | None:
        known = self._known.get(tp.topic)
        return (NODE, 0) if known is not None and tp.partition in known.partitions else None

    def listen(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def keep(self, topic: str) -> None:
        """Every topic is watched."""

    watch = let_go = unwatch = hint = know

    async def refresh(self, reason: str) -> None:
        await self.be_there()
        for name in self._kafka.topics:
            self.tell(name)

    async def all(self) -> frozenset[str]:
        await self.be_there()
        return frozenset(self._kafka.topics)

    topics = all

    async def describe(self, name: str) -> TopicAnswer:
        await self.be_there()
        if name not in self._kafka.topics:
            raise UnknownTopic(f"no topic {name}", topic=name)
        return _told(name, self._kafka.topics[name])

    async def list_offsets(self, specs: Any, isolation: int = 1, **more: Any) -> Any:
        return await offsets.list_offsets(self, specs, isolation, **more)  # type: ignore[arg-type]

    def tell(self, name: str) -> None:
        """Let the process learn how the topic is now, unless Kafka is away."""
        if self.away:
            return
        found, before = _told(name, self._kafka.topics[name]), self._known.get(name)
        if found == before:
            return
        self._known[name] = found
        change = Change(
            found,
            added=tuple(found.partitions.keys() - (before.partitions if before else {}).keys()),
            recreated=before is not None and before.topic_id != found.topic_id,
        )
        for listener in list(self._listeners):
            listener(change)


def _told(name: str, topic: Topic) -> TopicAnswer:
    partitions = {p: PartitionAnswer(NODE, 0, (NODE,), (NODE,), 0) for p in range(len(topic.logs))}
    return TopicAnswer(name, topic.id, 0, partitions)
