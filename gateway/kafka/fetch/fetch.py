"""Send Fetch requests to one broker, without a consumer of aiokafka.

Measured: Kafka 4.3.1, aiokafka 0.14 on uvloop, 600,000 records of 200 bytes in 12 partitions of one
broker, on two busy cores shared with that broker; records per second of wall clock and of CPU time:

| way | clock | CPU | exposes |
|---|---|---|---|
| one aiokafka consumer, getmany | 0.50-0.52 M | 0.55-0.63 M | records, out of range |
| twelve aiokafka consumers | 0.49-0.57 M | 0.60-0.61 M | the same, for each partition alone |
| this, with a `RecordSetDecoder` | 0.47-0.92 M | 0.77-1.03 M | all below |

The consumer hides facts that the gateway's promises depend on: the error of each partition, leader
epochs (it sends -1, so a deposed leader answers it), topic ids (a recreated topic looks like the
same one), the next offset after control, aborted and compacted records, the last stable offset, the
log start offset, and where logs diverge. It also has a single fetch in flight per broker, while
here the live tail and catch-up reads have a connection each.

A `FetchSession` keeps requests small, and a `FetchRound` is what a fetch loop asks of one broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self, TypeAlias
from uuid import UUID

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import Entry, TopicPartition
from gateway.kafka.client.connections import BrokerConnection, ConnectionRole, Connections
from gateway.kafka.client.offsets import READ_COMMITTED
from gateway.kafka.protocol.fetch_messages import (
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    FetchTarget,
    ForgottenPartition,
)

from .partition_fetch import PartitionFetch

__all__ = [
    "MAX_CORRUPT_ATTEMPTS",
    "REPLICA_LEASE_S",
    "FetchSession",
    "FetchTarget",
    "FetchedPartition",
    "fetch",
    "fetch_on_connection",
]

SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
_NO_SESSION_EPOCH = -1  # a full fetch, of which the broker remembers nothing
_INITIAL_EPOCH = 0  # a full fetch that opens a session and closes the one whose id is sent
_MAX_EPOCH = 2**31 - 1  # followed by 1, since 0 would open another session


@dataclass(slots=True)
class FetchSession:
    """The partitions to fetch from one broker, and those that the broker remembers.

    It is an incremental fetch session (KIP-227). Its first fetch names every partition. The broker
    remembers them, so later fetches name only those whose offset or epoch changed, and responses
    leave out partitions without news. If the broker has forgotten the session, or a response was
    lost, the session starts over with a full fetch.

    A `FetchRound` owns one for all of its fetches; other callers create a sessionless one for each
    fetch. Only one fetch may be under way at a time, because each has its epoch in the session.
    Between fetches `_sent` is the broker's knowledge, unless the epoch says that it has none, and
    `_changed` names every partition in which `wants` and `_sent` may differ.

    Attributes:
        id: The session id that the broker chose; 0 if there is none.
        epoch: The epoch of the next fetch.
        wants: Changed by `set_want` and `forget` only, so that a fetch need not compare all of it.
        topic_names: The topic of each id that a response may contain.
    """

    id: int = 0
    epoch: int = _INITIAL_EPOCH
    wants: dict[TopicPartition, FetchTarget] = field(default_factory=dict)
    topic_names: dict[UUID, str] = field(default_factory=dict)
    _sent: dict[TopicPartition, FetchTarget] = field(default_factory=dict)
    _changed: dict[TopicPartition, None] = field(default_factory=dict)
    # Partitions of topics that have no id (brokers before KIP-516).
    _without_topic_id: set[TopicPartition] = field(default_factory=set)
    _sent_by_id: bool = True  # whether the session was opened with topic ids

    @classmethod
    def create_sessionless(cls, wants: Mapping[TopicPartition, FetchTarget] | None = None) -> Self:
        """Create one of which the broker remembers nothing, so that all fetches are full."""
        session = cls(epoch=_NO_SESSION_EPOCH)
        for tp, want in (wants or {}).items():
            session.set_want(tp, want)
        return session

    @property
    def can_use_topic_ids(self) -> bool:
        """Return whether every topic has an id. A request names all topics by id or none."""
        return not self._without_topic_id

    def set_want(self, tp: TopicPartition, want: FetchTarget) -> None:
        previous = self.wants.get(tp)
        self.wants[tp] = want
        self._changed[tp] = None
        # The usual case: only the offset moved on, and the topic id is the same object.
        if previous is not None and previous.topic_id is want.topic_id:
            return
        if want.topic_id is None:
            self._without_topic_id.add(tp)
        else:
            self._without_topic_id.discard(tp)
            self.topic_names[want.topic_id] = tp.topic

    def forget(self, tp: TopicPartition) -> None:
        del self.wants[tp]
        self._without_topic_id.discard(tp)
        self._changed[tp] = None

    def take_changes(self) -> tuple[Mapping[TopicPartition, FetchTarget], list[ForgottenPartition]]:
        """Return the new or changed targets (in a full fetch all), and the partitions to drop.

        The caller sends them, or calls `reset`.
        """
        touched, self._changed = self._changed, {}
        if self.epoch == _NO_SESSION_EPOCH:
            return self.wants, []
        if self.can_use_topic_ids != self._sent_by_id:  # fixed for the life of a session
            self._sent_by_id, self.epoch = self.can_use_topic_ids, _INITIAL_EPOCH
        if self.epoch == _INITIAL_EPOCH:
            self._sent = dict(self.wants)
            return self._sent, []
        changed: dict[TopicPartition, FetchTarget] = {}
        forgotten: list[ForgottenPartition] = []
        for tp in touched:
            sent, want = self._sent.get(tp), self.wants.get(tp)
            if sent == want:
                continue
            # A recreated topic is another one to the broker (KIP-516), so the old id is dropped.
            if sent is not None and (want is None or want.has_other_topic_id(sent)):
                forgotten.append(ForgottenPartition(tp, sent.topic_id))
            if want is None:
                del self._sent[tp]
            else:
                changed[tp] = self._sent[tp] = want
        return changed, forgotten

    def on_response(self, session_id: int) -> None:
        """Record an answer. The session id is 0 if the broker keeps no (more) sessions."""
        if self.epoch == _NO_SESSION_EPOCH:
            return
        if session_id == 0:
            self.id, self.epoch = 0, _INITIAL_EPOCH
        else:
            self.id = session_id
            self.epoch = 1 if self.epoch == _MAX_EPOCH else self.epoch + 1

    def reset(self) -> None:
        """Start over with a full fetch. The id stays, so that the broker closes the old session."""
        if self.epoch != _NO_SESSION_EPOCH:
            self.epoch = _INITIAL_EPOCH


REPLICA_LEASE_S = 300.0  # seconds for which a nearer replica is read (KIP-392)
MAX_CORRUPT_ATTEMPTS = 3  # fetches of a damaged batch before a reader gives it up


async def fetch(
    connections: Connections,
    node: int,
    role: ConnectionRole,
    wants: Mapping[TopicPartition, FetchTarget] | FetchSession,
    *,
    max_wait: float = 0.5,
    min_bytes: int = 1,
    max_bytes: int = 16 << 20,
    isolation: int = READ_COMMITTED,
    rack: str = "",
) -> dict[TopicPartition, FetchedPartition]:
    """Fetch from one broker.

    Args:
        wants: A `FetchSession` must belong to this node and role, and only one of its fetches may
            be under way.
        max_wait: For how many seconds the broker may wait for `min_bytes`.
        max_bytes: The most bytes of the response; at least one batch comes.
        rack: Where this gateway is; the leader may name a nearer replica (KIP-392).

    Returns:
        The answer for each partition. Of a session, partitions without news are left out. If the
        broker refuses the whole request, each partition has its error code.
    """
    connection = await connections.connect(node, role)
    return await fetch_on_connection(
        connections,
        connection,
        wants,
        max_wait=max_wait,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation=isolation,
        rack=rack,
    )


async def fetch_on_connection(
    connections: Connections,
    connection: BrokerConnection,
    wants: Mapping[TopicPartition, FetchTarget] | FetchSession,
    *,
    max_wait: float,
    min_bytes: int,
    max_bytes: int,
    isolation: int,
    rack: str,
) -> dict[TopicPartition, FetchedPartition]:
    session = wants if isinstance(wants, FetchSession) else FetchSession.create_sessionless(wants)
    max_wait_ms = int(max_wait * 1000)
    # If the broker has forgotten the session, the second attempt is a full fetch: `_send_fetch` has
    # reset the session by then.
    for _ in range(2):
        request = FetchRequest(
            {},
            max_wait_ms,
            min_bytes,
            max_bytes,
            isolation,
            rack,
            uses_topic_ids=session.can_use_topic_ids,
        )
        response = await _send_fetch(connections, connection, session, request)
        if response.error not in SESSION_ERRORS:
            break
    if response.error:
        return dict.fromkeys(session.wants, FetchedPartition(response.error))
    return response.partitions


async def _send_fetch(
    connections: Connections,
    connection: BrokerConnection,
    session: FetchSession,
    request: FetchRequest,
) -> FetchResponse:
    """Send the changes in the session since its last fetch, and note the broker's answer."""
    request.targets, request.forgotten = session.take_changes()
    request.session_id, request.session_epoch = session.id, session.epoch
    request.topic_names = session.topic_names
    # The broker may use the whole wait before it answers.
    timeout = connections.request_timeout + request.max_wait_ms / 1000
    try:
        response = await connections.send_on(connection, request, timeout=timeout)
    except BaseException:
        session.reset()  # also when cancelled: the broker may have counted this fetch
        raise
    if response.error:
        session.reset()
    else:
        session.on_response(response.session_id)
    return response


SWEEP_INTERVAL_S = 0.25  # seconds between two looks at all partitions; 1.3 us per partition


class FetchRound:
    """The partitions of one broker and isolation level that are fetched in one request.

    Partitions without news stay in the round and are not looked at. With 1,000 partitions a fetch
    that brings a record of one costs 48 us besides the connection (with 12: 49 us); a loop over all
    of them made it 1,900 us (with 12: 119 us). All are looked at every SWEEP_INTERVAL_S, because
    some changes come with time alone: a stall, or the end of a replica's lease.

    Each `BrokerFetchLoop` owns two, one for each isolation level. Between calls a partition is in
    the round if and only if the round is its `in_flight`, and the session fetches exactly these
    partitions.

    Attributes:
        has_unsettled: A partition may have something to report even if the fetch brings nothing, so
            the broker must not hold the request back.
        swept_at: Loop time at which all partitions were last looked at.
    """

    def __init__(self, isolation: int, session: FetchSession) -> None:
        self.isolation = isolation
        self.session = session
        self.partition_fetches: dict[TopicPartition, PartitionFetch] = {}
        self.has_unsettled = False
        self.swept_at = 0.0

    def add_partition(self, partition_fetch: PartitionFetch) -> None:
        partition_fetch.in_flight = self
        self.partition_fetches[partition_fetch.reader.tp] = partition_fetch
        self.has_unsettled = self.has_unsettled or partition_fetch.reader.has_unreported_change
        self.session.set_want(partition_fetch.reader.tp, partition_fetch.build_want())

    def update_partition(self, partition_fetch: PartitionFetch) -> None:
        self.has_unsettled = self.has_unsettled or partition_fetch.reader.has_unreported_change
        previous, want = partition_fetch.want, partition_fetch.build_want()
        # `build_want` returns the same object while nothing changed, which is cheaper to compare.
        if want is not previous:
            self.session.set_want(partition_fetch.reader.tp, want)

    def remove_partition(self, partition_fetch: PartitionFetch) -> None:
        partition_fetch.in_flight = None
        del self.partition_fetches[partition_fetch.reader.tp]
        self.session.forget(partition_fetch.reader.tp)


class ModelResult(NamedTuple):
    """The entries that a model has decoded, which may need something loaded first, such as schemas.

    Attributes:
        entries: The decoded entries, up to the first one that cannot be decoded yet.
        load_schemas: Loads the schemas of that one, and raises RegistryUnavailable; awaited before
            it is fetched again. None if all were decoded.
    """

    entries: Sequence[Entry]
    load_schemas: Callable[[], Awaitable[None]] | None = None


TopicModel: TypeAlias = Callable[[Sequence[Entry]], ModelResult]
"""Decode the entries of a topic, as far as that is possible without I/O."""


def get_no_model(topic: str) -> TopicModel | None:
    """Return None, so that the entries of every topic are delivered as they are."""
    return None
