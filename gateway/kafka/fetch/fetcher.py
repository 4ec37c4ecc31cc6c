"""Read partitions of a cluster, each driven by its `PartitionReader`.

The `PartitionReader` (core) of a partition decides what it needs next, and the fetcher asks for it:
records in the `BrokerFetchLoop`s of its leader, offsets and ends of epochs in requests of their
own, which one task sends as they become due. A partition that is slow, leaderless or frozen delays
no other: requests go out per broker, and a partition whose leader changed does not wait for the
response of the old one.

At any time at most one request is under way for a partition. `PartitionFetch.in_flight` names it:
either a `FetchRound`, or a token that `_mark_in_flight` returned. All other partitions are in
`idle_fetches`, where the loops look for those that are due. `release` makes a partition idle again,
so that a later answer to its request is ignored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from gateway.background_tasks import BackgroundTasks, run_supervised
from gateway.core.error_code import UNKNOWN_TOPIC_ERRORS, ErrorCode
from gateway.core.log.partition_reader import EpochEndCommand, ListOffsetCommand, PartitionReader
from gateway.core.log.record import NO_EPOCH, Entry, TopicPartition
from gateway.core.log.recovery import Cause, cause_from_code
from gateway.errors import KafkaError, RegistryUnavailable
from gateway.kafka.client import offsets
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.client.metadata_changes import TopicChange
from gateway.kafka.protocol.fetch_messages import MAX_PARTITION_BYTES, FetchTarget
from gateway.telemetry.counts import FetchCounts

from .broker_fetch_loop import NEWCOMER_S, BrokerFetchLoop, FetchRound

log = logging.getLogger(__name__)

Deliver = Callable[[PartitionReader, Sequence[Entry]], None]
MOCK_MAX_WAIT_S = 0.01  # see `Fetcher.max_wait`
# Causes that lie with a broker, so they end for all of its partitions at once.
BROKER_CAUSES = frozenset({Cause.CONNECTION, Cause.TIMEOUT, Cause.AUTHENTICATION})


_tuple_new = tuple.__new__  # 0.2 us less than `FetchTarget(...)`


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


PartitionWork: TypeAlias = Callable[[Callable[[], bool]], Awaitable[None]]
"""Do something for a partition, as long as the given function returns True."""


@dataclass(slots=True, eq=False)
class PartitionFetch:
    """One partition that is read: its reader, and the request that is under way for it.

    Created and owned by the `Fetcher`. It is one of the fetcher's `idle_fetches` if and only if
    `in_flight` is None. A response to anything other than `in_flight` comes too late and is
    ignored. Times are loop times.

    Attributes:
        read_committed: Read no further than the last stable offset, without aborted records.
        newcomer_at: When it last became new to its broker; for NEWCOMER_S it is a newcomer there.
        topic_id: The id of its topic; None if the broker has none.
        in_flight: The `FetchRound` that it is part of, or the token of another request.
        replica: The nearer replica that the leader named (KIP-392); None for the leader itself.
        failures: How many fetches in a row brought a batch that makes no sense.
        is_waiting: It has not been ready since it was added.
        target: The target that was last put into a fetch session.
    """

    reader: PartitionReader
    read_committed: bool
    added_at: float
    newcomer_at: float
    topic_id: UUID | None = None
    in_flight: object | None = None
    replica: int | None = None
    replica_until: float = 0.0
    failures: int = 0
    is_waiting: bool = True
    target: FetchTarget | None = None
    role: ConnectionRole = ConnectionRole.TAIL
    _logged_state: tuple[object, ...] = ()

    @property
    def tp(self) -> TopicPartition:
        return self.reader.tp

    @property
    def isolation(self) -> int:
        return offsets.READ_COMMITTED if self.read_committed else offsets.READ_UNCOMMITTED

    def choose_node(self, now: float) -> int | None:
        """Return the broker to fetch from: the nearer replica, the leader, or None."""
        if self.replica is not None and now < self.replica_until:
            return self.replica
        return self.reader.leader

    def build_target(self) -> FetchTarget:
        """Return the present target; the same object as last time if nothing changed."""
        offset, epoch = self.reader.position.offset, self.reader.leader_epoch
        assert offset is not None
        target = self.target
        if (
            target is None
            or target.offset != offset
            or target.leader_epoch != epoch
            or target.topic_id is not self.topic_id
        ):
            # NO_EPOCH as the last fetched epoch: the reader asks for the end of an epoch itself
            # (OffsetForLeaderEpoch), so the broker need not compare it.
            fields = (offset, epoch, self.topic_id, MAX_PARTITION_BYTES, NO_EPOCH)
            target = self.target = _tuple_new(FetchTarget, fields)
        return target

    def log_state(self) -> None:
        """Log the reader's state at debug if it changed; not called after usual fetches."""
        if not log.isEnabledFor(logging.DEBUG):
            return
        reader = self.reader
        name = reader.reported_state
        state = name, reader.cause, reader.leader, reader.leader_epoch, reader.topic_id
        if state != self._logged_state:
            self._logged_state, tp, offset = state, reader.tp, reader.position.offset
            log.debug(
                "partition state=%s cause=%s leader=%s epoch=%d offset=%s role=%s "
                "topic=%s partition=%d",
                name, str(reader.cause or "none"),
                "none" if reader.leader is None else reader.leader, reader.leader_epoch,
                "none" if offset is None else offset, self.role, tp.topic, tp.partition,
                extra=tp._asdict(),
            )  # fmt: skip


async def _skip_pause() -> None:
    pass


class Fetcher:
    """Read partitions of a cluster until they are removed.

    The hub has one for its shared reads and others for catch-up reads. It owns its tasks: `close`
    ends them. Between calls, a partition is in `idle_fetches` if and only if nothing is under way
    for it.
    """

    def __init__(
        self,
        cluster: Cluster,
        deliver: Deliver,
        *,
        role: ConnectionRole = ConnectionRole.TAIL,
        max_wait: float = 0.5,
        pause: Callable[[], Awaitable[None]] = _skip_pause,
        get_topic_model: Callable[[str], TopicModel | None] = get_no_model,
    ) -> None:
        """Create a fetcher in the running event loop; its tasks start at once.

        Args:
            deliver: Called in the event loop with the entries of a partition, in order.
            max_wait: For how many seconds a broker may hold a fetch back.
            pause: Awaited before the next fetch from a broker. A receiver that processes records in
                rounds makes it wait for its round, and then gets more records for the same cost.
            get_topic_model: Returns the model that decodes the entries of a topic; None leaves them
                as they are.
        """
        self.cluster = cluster
        self.partition_fetches: dict[TopicPartition, PartitionFetch] = {}
        self.idle_fetches: dict[TopicPartition, PartitionFetch] = {}
        self.reads = FetchCounts()
        self.pause = pause
        self.get_topic_model = get_topic_model
        self._max_wait = max_wait
        self.now = asyncio.get_running_loop().time
        self._newcomer_at = float("-inf")  # when a partition last became a newcomer
        self._deliver = deliver
        self._role = role
        self.fetch_loops: dict[int, list[BrokerFetchLoop]] = {}
        self._failing_brokers: set[int] = set()  # brokers that were reported as lost
        self._tasks = BackgroundTasks(log)
        self._wake = asyncio.Event()  # ends the wait of `_run_lookups`
        self._unlisten = cluster.metadata.add_listener(self._on_metadata_change)
        self._unlisten_brokers = cluster.connections.add_listener(self._retry_broker)
        self._spawn(run_supervised(self._run_lookups, "looking up offsets"))

    @property
    def max_wait(self) -> float:
        """Return for how many seconds a broker may hold a fetch back.

        It is short for librdkafka's mock broker, which holds a fetch for the whole time even if
        records arrive (465 ms per record with 0.5 s, 5 ms with MOCK_MAX_WAIT_S).
        """
        return (
            MOCK_MAX_WAIT_S
            if (self.cluster.cluster_id or "").startswith("mock")
            else self._max_wait
        )

    @property
    def has_newcomers(self) -> bool:
        """Return whether main loops are about to take over newcomers, so fetches must be short."""
        return self.now() - self._newcomer_at < 2 * NEWCOMER_S

    def add_partition(self, reader: PartitionReader, *, read_committed: bool = True) -> None:
        self.remove_partition(reader.tp)
        now = self.now()
        partition = self.partition_fetches[reader.tp] = self.idle_fetches[reader.tp] = (
            PartitionFetch(reader, read_committed, now, now, role=self._role)
        )
        self.mark_newcomer(partition)
        self._apply_metadata(partition)
        partition.log_state()
        self.wake_loops()

    def remove_partition(self, tp: TopicPartition) -> None:
        partition = self.partition_fetches.pop(tp, None)
        if partition is not None:
            # `release` does not make it idle again, as it is no longer in `partition_fetches`.
            self.release(partition)
            self.idle_fetches.pop(tp, None)

    def wake_loops(self) -> None:
        self._wake.set()
        for fetch_loops in self.fetch_loops.values():
            for fetch_loop in fetch_loops:
                fetch_loop.wake.set()

    async def close(self) -> None:
        self._unlisten()
        self._unlisten_brokers()
        # First, so that nothing more is delivered while the tasks end.
        self.partition_fetches.clear()
        self.idle_fetches.clear()
        await self._tasks.close()

    def _retry_broker(self, node: int) -> None:
        """Ask at once for the partitions of a broker that answers again, without their delays."""
        now = self.now()
        self._retry(lambda it: it.choose_node(now) == node and it.reader.cause in BROKER_CAUSES)

    def retry_topic(self, topic: str) -> None:
        """Ask at once for the denied partitions of a topic: access is granted per topic."""
        self._retry(lambda it: it.tp.topic == topic and it.reader.cause is Cause.DENIED)

    def _retry(self, is_affected: Callable[[PartitionFetch], bool]) -> None:
        for partition in filter(is_affected, self.idle_fetches.values()):
            partition.reader.retry_now(self.now())
        self.wake_loops()

    # For the fetch loops.

    def release(self, partition: PartitionFetch) -> None:
        """Make a partition idle. A later answer to its request is ignored."""
        if isinstance(partition.in_flight, FetchRound):
            partition.in_flight.remove_partition(partition)
        partition.in_flight = None
        if self.partition_fetches.get(partition.tp) is partition:
            self.idle_fetches[partition.tp] = partition

    def mark_newcomer(self, partition: PartitionFetch) -> None:
        """Let the newcomers' loop fetch a partition, which waits for nobody else's records."""
        partition.newcomer_at = self._newcomer_at = self.now()

    def deliver_entries(self, partition: PartitionFetch, entries: Sequence[Entry]) -> None:
        if not entries or self.partition_fetches.get(partition.tp) is not partition:
            return
        if partition.is_waiting and partition.reader.is_ready:
            partition.is_waiting = False
            seconds, tp = self.now() - partition.added_at, partition.tp
            self.reads.observe_ready(tp.topic, seconds)
            log.debug(
                "partition ready after %.3fs topic=%s partition=%s",
                seconds, tp.topic, tp.partition, extra=tp._asdict(),
            )  # fmt: skip
        self._deliver(partition.reader, entries)

    def on_request_failed(
        self, partition: PartitionFetch, cause: Cause, delay: float | None
    ) -> None:
        """Schedule the next request of a partition, after the broker's delay or its own."""
        self.release(partition)
        now, tp = self.now(), partition.tp
        self.reads.reconnects[tp.topic, cause] += 1
        entries = partition.reader.on_error(cause, now, delay)
        log.debug(
            "FETCH reconnect in %.3fs topic=%s partition=%s cause=%s",
            partition.reader.retry_at - now, tp.topic, tp.partition, cause,
            extra={**tp._asdict(), "cause": cause},
        )  # fmt: skip
        partition.log_state()
        self.deliver_entries(partition, entries)
        self.wake_loops()

    def start_work(self, partition: PartitionFetch, work: PartitionWork) -> None:
        """Run a task for a partition before its next fetch, while others of its broker go on."""
        self.release(partition)
        self._spawn(self._run_work(partition, self._mark_in_flight([partition.tp]), work))

    async def _run_work(
        self, partition: PartitionFetch, flight: object, work: PartitionWork
    ) -> None:
        # After every await the partition may have been released (removed, or its leader changed)
        # and asked for again: it is ours only as long as it has this token.
        try:
            await work(lambda: partition.in_flight is flight)
        except RegistryUnavailable:  # logged where the schema was asked for
            if partition.in_flight is flight:
                self.on_request_failed(partition, Cause.REGISTRY, None)
        except Exception:
            if partition.in_flight is flight:
                self.on_request_failed(partition, Cause.UNEXPECTED, None)
            raise
        if partition.in_flight is flight:
            self.release(partition)
            self.wake_loops()

    def ensure_fetch_loops(self, node: int) -> None:
        if node in self.fetch_loops:
            return
        main = BrokerFetchLoop(self, node, self._role)
        self.fetch_loops[node] = [main]
        # A broker without new records holds a tail's fetch back, so newcomers get a second loop.
        # Catch-up reads fetch what is there already.
        if self._role is ConnectionRole.TAIL:
            self.fetch_loops[node].append(BrokerFetchLoop(self, node, ConnectionRole.FRESH, main))
        for fetch_loop in self.fetch_loops[node]:
            self._spawn(fetch_loop.run())

    # Metadata.

    def _on_metadata_change(self, change: TopicChange) -> None:
        for partition in self._find_affected(change):
            self._apply_metadata(partition)
            partition.log_state()
        self.wake_loops()

    def _find_affected(self, change: TopicChange) -> list[PartitionFetch]:
        """Return the partitions that a change of a topic concerns.

        Leaders may change one at a time (KIP-951): going over all each time would be quadratic.
        """
        name = change.topic.name
        if change.concerns_all:
            return [each for tp, each in self.partition_fetches.items() if tp.topic == name]
        tps = [TopicPartition(name, p) for p in (*change.added, *change.leader_changes)]
        return [self.partition_fetches[tp] for tp in tps if tp in self.partition_fetches]

    def _apply_metadata(self, partition: PartitionFetch) -> None:
        reader, now = partition.reader, self.now()
        topic = self.cluster.get_topic(reader.tp.topic)
        if topic is None:
            return
        is_denied = topic.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if is_denied or topic.error in UNKNOWN_TOPIC_ERRORS:
            # Without a leader nothing is asked for. The next metadata that has the topic, or grants
            # it, brings the leader back.
            self.release(partition)
            reader.forget_leader()
            cause = Cause.DENIED if is_denied else Cause.UNKNOWN_TOPIC
            self.deliver_entries(partition, reader.on_error(cause, now))
            return
        previous = (reader.leader, reader.leader_epoch, partition.topic_id)
        reader.on_topic_id(str(topic.topic_id or ""))
        # An equal id may be another object with each metadata response. The first one is kept,
        # because fetch sessions compare ids by identity first, which is faster.
        if partition.topic_id != topic.topic_id:
            partition.topic_id = topic.topic_id
        known = topic.partitions.get(reader.tp.partition)
        if known is not None:
            leader = known.leader if known.leader >= 0 else None
            self.deliver_entries(
                partition, reader.on_leader_change(leader, known.leader_epoch, now)
            )
            if leader is not None:
                self.ensure_fetch_loops(leader)
        # A request to the previous leader must not delay the new one: what it brings is ignored.
        if previous != (reader.leader, reader.leader_epoch, partition.topic_id):
            self.release(partition)
            partition.replica = None
            self.mark_newcomer(partition)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(coroutine, "reading Kafka", context=Context())

    # Offsets and epochs.

    async def _run_lookups(self) -> None:
        while True:
            # Cleared before the look at what is due: what becomes due from here on sets it again.
            self._wake.clear()
            now = self.now()
            for (_, kind, isolation), values in self._collect_due_lookups(now).items():
                flight = self._mark_in_flight(values)
                self._spawn(self._look_up(kind, values, isolation, flight))
            waits = [
                partition.reader.retry_at - now
                for partition in self.idle_fetches.values()
                if partition.reader.retry_at > now
            ]
            try:
                async with asyncio.timeout(min(waits, default=None)):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _look_up(
        self, kind: type, values: Mapping[TopicPartition, int], isolation: int, flight: object
    ) -> None:
        """Look up offsets, or ends of epochs, of partitions that have the same leader."""
        results: Mapping[TopicPartition, offsets.OffsetAndTimestamp | offsets.EpochEnd | int]
        try:
            if kind is ListOffsetCommand:
                results = await self.cluster.list_offsets(values, isolation)
            else:
                results = await self.cluster.fetch_epoch_ends(values)
            for tp, result in results.items():
                self._on_looked_up(tp, result, flight)
            self.wake_loops()
        except Exception:
            for tp in values:
                partition = self.partition_fetches.get(tp)
                if partition is not None and partition.in_flight is flight:
                    self.on_request_failed(partition, Cause.UNEXPECTED, None)
            raise

    def _on_looked_up(
        self,
        tp: TopicPartition,
        result: offsets.OffsetAndTimestamp | offsets.EpochEnd | int,
        flight: object,
    ) -> None:
        """Pass a result or error code on, unless the partition has another request by now."""
        partition = self.partition_fetches.get(tp)
        if partition is None or partition.in_flight is not flight:
            return
        self.release(partition)
        reader = partition.reader
        reader.last_response_at = now = self.now()
        if isinstance(result, int):
            delay = self._report_unreachable(reader)
            self.on_request_failed(partition, cause_from_code(result), delay)
            self.cluster.metadata.request_refresh(f"{tp}: error {result}")
            return
        if isinstance(result, offsets.EpochEnd):
            entries = reader.on_epoch_end(result.epoch, result.end_offset, now)
        else:
            offset = None if result.offset < 0 else result.offset
            entries = reader.on_list_offsets(offset, result.epoch, now)
        partition.log_state()
        self.deliver_entries(partition, entries)

    def _collect_due_lookups(
        self, now: float
    ) -> dict[tuple[int, type, int], dict[TopicPartition, int]]:
        """Return the times or epochs to look up, by leader, kind of command and isolation."""
        due: dict[tuple[int, type, int], dict[TopicPartition, int]] = {}
        for partition in self.idle_fetches.values():
            reader = partition.reader
            command, isolation = reader.next_command(now), partition.isolation
            if reader.leader is None:
                continue
            if isinstance(command, ListOffsetCommand):
                value = command.timestamp
                isolation = isolation if command.is_stable else offsets.READ_UNCOMMITTED
            elif isinstance(command, EpochEndCommand):
                value = command.epoch  # which has no isolation: it is grouped with the usual one
            else:
                continue
            partition.log_state()
            due.setdefault((reader.leader, type(command), isolation), {})[reader.tp] = value
        return due

    def _mark_in_flight(self, tps: Iterable[TopicPartition]) -> object:
        flight = object()
        for tp in tps:
            self.idle_fetches.pop(tp).in_flight = flight
        return flight

    def _report_unreachable(self, reader: PartitionReader) -> float | None:
        """Report the failure of the leader of a partition that is not fetched before its start.

        Returns:
            The seconds until the leader is tried again; None if it is not backing off.
        """
        leader, connections = reader.leader, self.cluster.connections
        if leader is None:
            return None
        failure = connections.get_failure(leader)
        if failure is not None:
            self.report_broker_failure(leader, failure)
        retry_at = connections.get_retry_time(leader, ConnectionRole.CONTROL)
        delay = 0.0 if retry_at is None else retry_at - self.now()
        return delay if delay > 0 else None

    def report_broker_failure(self, node: int, error: KafkaError) -> None:
        self._failing_brokers.add(node)
        self.cluster.outages.report_error(f"FETCH disconnect broker={node}", error, broker=node)

    def report_broker_recovery(self, node: int) -> None:
        if node in self._failing_brokers:
            self._failing_brokers.discard(node)
            self.cluster.outages.report_recovery(f"FETCH disconnect broker={node}", "is over")
