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
from functools import partial
from typing import Any

from gateway.background_tasks import BackgroundTasks, run_supervised
from gateway.core.error_code import UNKNOWN_TOPIC_ERRORS, ErrorCode
from gateway.core.log.partition_reader import (
    Command,
    EpochEndCommand,
    FetchCommand,
    ListOffsetCommand,
    PartitionReader,
)
from gateway.core.log.record import Entry, TopicPartition
from gateway.core.log.recovery import Cause, cause_from_code
from gateway.errors import KafkaError, RegistryUnavailable
from gateway.kafka.client import offsets
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.client.metadata_changes import TopicChange
from gateway.telemetry.counts import FetchCounts

from .broker_fetch_loop import NEWCOMER_S, BrokerFetchLoop
from .fetch import FetchRound, TopicModel, get_no_model
from .partition_fetch import PartitionFetch, PartitionWork

log = logging.getLogger(__name__)

Deliver = Callable[[PartitionReader, Sequence[Entry]], None]
MOCK_MAX_WAIT_S = 0.01  # see `Fetcher.max_wait`
# Causes that lie with a broker, so they end for all of its partitions at once.
BROKER_CAUSES = frozenset({Cause.CONNECTION, Cause.TIMEOUT, Cause.AUTHENTICATION})


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
        partition_fetch = self.partition_fetches[reader.tp] = self.idle_fetches[reader.tp] = (
            PartitionFetch(reader, read_committed, now, now, role=self._role)
        )
        self.mark_newcomer(partition_fetch)
        self._apply_metadata(partition_fetch)
        partition_fetch.log_state()
        self.wake_loops()

    def remove_partition(self, tp: TopicPartition) -> None:
        partition_fetch = self.partition_fetches.pop(tp, None)
        if partition_fetch is not None:
            # `release` does not make it idle again, as it is no longer in `partition_fetches`.
            self.release(partition_fetch)
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
        for partition_fetch in self.idle_fetches.values():
            if (
                partition_fetch.choose_node(now) == node
                and partition_fetch.reader.cause in BROKER_CAUSES
            ):
                partition_fetch.reader.retry_now(now)
        self.wake_loops()

    def retry_topic(self, topic: str) -> None:
        """Ask at once for the denied partitions of a topic: access is granted per topic."""
        now = self.now()
        for partition_fetch in self.idle_fetches.values():
            if (
                partition_fetch.reader.tp.topic == topic
                and partition_fetch.reader.cause is Cause.DENIED
            ):
                partition_fetch.reader.retry_now(now)
        self.wake_loops()

    # For the fetch loops.

    def release(self, partition_fetch: PartitionFetch) -> None:
        """Make a partition idle. A later answer to its request is ignored."""
        if isinstance(partition_fetch.in_flight, FetchRound):
            partition_fetch.in_flight.remove_partition(partition_fetch)
        partition_fetch.in_flight = None
        if self.partition_fetches.get(partition_fetch.reader.tp) is partition_fetch:
            self.idle_fetches[partition_fetch.reader.tp] = partition_fetch

    def mark_newcomer(self, partition_fetch: PartitionFetch) -> None:
        """Let the newcomers' loop fetch a partition, which waits for nobody else's records."""
        partition_fetch.newcomer_at = self._newcomer_at = self.now()

    def deliver_entries(self, partition_fetch: PartitionFetch, entries: Sequence[Entry]) -> None:
        if (
            not entries
            or self.partition_fetches.get(partition_fetch.reader.tp) is not partition_fetch
        ):
            return
        if partition_fetch.is_waiting and partition_fetch.reader.is_ready:
            partition_fetch.is_waiting, seconds, tp = (
                False,
                self.now() - partition_fetch.added_at,
                partition_fetch.reader.tp,
            )
            self.reads.observe_ready(tp.topic, seconds)
            log.debug(
                "partition ready after %.3fs topic=%s partition=%s",
                seconds,
                tp.topic,
                tp.partition,
                extra=tp._asdict(),
            )
        self._deliver(partition_fetch.reader, entries)

    def on_request_failed(
        self, partition_fetch: PartitionFetch, cause: Cause, delay: float | None
    ) -> None:
        """Schedule the next request of a partition, after the broker's delay or its own."""
        self.release(partition_fetch)
        now = self.now()
        self.reads.reconnects[partition_fetch.reader.tp.topic, cause] += 1
        entries = partition_fetch.reader.on_error(cause, now, delay)
        log.debug(
            "FETCH reconnect in %.3fs topic=%s partition=%s cause=%s",
            partition_fetch.reader.retry_at - now,
            partition_fetch.reader.tp.topic,
            partition_fetch.reader.tp.partition,
            cause,
            extra={**partition_fetch.reader.tp._asdict(), "cause": cause},
        )
        partition_fetch.log_state()
        self.deliver_entries(partition_fetch, entries)
        self.wake_loops()

    def start_work(self, partition_fetch: PartitionFetch, work: PartitionWork) -> None:
        """Run a task for a partition before its next fetch, while others of its broker go on."""
        self.release(partition_fetch)
        self._spawn(
            self._run_work(partition_fetch, self._mark_in_flight([partition_fetch.reader.tp]), work)
        )

    async def _run_work(
        self, partition_fetch: PartitionFetch, flight: object, work: PartitionWork
    ) -> None:
        # After every await the partition may have been released (removed, or its leader changed)
        # and asked for again: it is ours only as long as it has this token.
        try:
            await work(lambda: partition_fetch.in_flight is flight)
        except RegistryUnavailable:  # logged where the schema was asked for
            if partition_fetch.in_flight is flight:
                self.on_request_failed(partition_fetch, Cause.REGISTRY, None)
        except Exception:
            if partition_fetch.in_flight is flight:
                self.on_request_failed(partition_fetch, Cause.UNEXPECTED, None)
            raise
        if partition_fetch.in_flight is flight:
            self.release(partition_fetch)
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
        for partition_fetch in self._find_affected(change):
            self._apply_metadata(partition_fetch)
            partition_fetch.log_state()
        self.wake_loops()

    def _find_affected(self, change: TopicChange) -> list[PartitionFetch]:
        """Return the partitions that a change of a topic concerns.

        Leaders may change one at a time (KIP-951): going over all each time would be quadratic.
        """
        name = change.topic.name
        if (
            change.removed
            or change.is_recreated
            or change.is_deleted
            or change.is_denied
            or change.is_restored
        ):
            return [
                partition_fetch
                for tp, partition_fetch in self.partition_fetches.items()
                if tp.topic == name
            ]
        tps = [TopicPartition(name, p) for p in (*change.added, *change.leader_changes)]
        return [self.partition_fetches[tp] for tp in tps if tp in self.partition_fetches]

    def _apply_metadata(self, partition_fetch: PartitionFetch) -> None:
        reader, now = partition_fetch.reader, self.now()
        topic = self.cluster.get_topic(reader.tp.topic)
        if topic is None:
            return
        is_denied = topic.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if is_denied or topic.error in UNKNOWN_TOPIC_ERRORS:
            # Without a leader nothing is asked for. The next metadata that has the topic, or grants
            # it, brings the leader back.
            self.release(partition_fetch)
            reader.forget_leader()
            cause = Cause.DENIED if is_denied else Cause.UNKNOWN_TOPIC
            self.deliver_entries(partition_fetch, reader.on_error(cause, now))
            return
        previous = (reader.leader, reader.leader_epoch, partition_fetch.topic_id)
        reader.on_topic_id(str(topic.topic_id or ""))
        # An equal id may be another object with each metadata response. The first one is kept,
        # because fetch sessions compare ids by identity first, which is faster.
        if partition_fetch.topic_id != topic.topic_id:
            partition_fetch.topic_id = topic.topic_id
        known = topic.partitions.get(reader.tp.partition)
        if known is not None:
            leader = known.leader if known.leader >= 0 else None
            self.deliver_entries(
                partition_fetch, reader.on_leader_change(leader, known.leader_epoch, now)
            )
            if leader is not None:
                self.ensure_fetch_loops(leader)
        # A request to the previous leader must not delay the new one: what it brings is ignored.
        if previous != (reader.leader, reader.leader_epoch, partition_fetch.topic_id):
            self.release(partition_fetch)
            partition_fetch.replica = None
            self.mark_newcomer(partition_fetch)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(coroutine, "reading Kafka", context=Context())

    # Offsets and epochs.

    async def _run_lookups(self) -> None:
        while True:
            # Cleared before the look at what is due: what becomes due from here on sets it again.
            self._wake.clear()
            now = self.now()
            for (_, kind, isolation), commands in self._collect_due_lookups(now).items():
                flight = self._mark_in_flight(commands)
                lookup = (
                    partial(self._list_offsets, commands, isolation, flight)
                    if kind is ListOffsetCommand
                    else partial(self._list_epoch_ends, commands, flight)
                )
                self._spawn(self._run_lookup(lookup, commands, flight))
            waits = [
                partition_fetch.reader.retry_at - now
                for partition_fetch in self.idle_fetches.values()
                if partition_fetch.reader.retry_at > now
            ]
            try:
                async with asyncio.timeout(min(waits, default=None)):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _run_lookup(
        self, lookup: Callable[[], Awaitable[None]], tps: Iterable[TopicPartition], flight: object
    ) -> None:
        try:
            await lookup()
        except Exception:
            for tp in tps:
                partition_fetch = self.partition_fetches.get(tp)
                if partition_fetch is not None and partition_fetch.in_flight is flight:
                    self.on_request_failed(partition_fetch, Cause.UNEXPECTED, None)
            raise

    def _collect_due_lookups(
        self, now: float
    ) -> dict[tuple[int, type, int], dict[TopicPartition, Command]]:
        due: dict[tuple[int, type, int], dict[TopicPartition, Command]] = {}
        for partition_fetch in self.idle_fetches.values():
            reader = partition_fetch.reader
            command = reader.next_command(now)
            if command is None or isinstance(command, FetchCommand) or reader.leader is None:
                continue
            partition_fetch.log_state()
            # The end of an epoch has no isolation; it is grouped with the usual one.
            is_stable = partition_fetch.read_committed and (
                isinstance(command, EpochEndCommand) or command.is_stable
            )
            isolation = offsets.READ_COMMITTED if is_stable else offsets.READ_UNCOMMITTED
            key = (reader.leader, type(command), isolation)
            due.setdefault(key, {})[reader.tp] = command
        return due

    async def _list_offsets(
        self, commands: Mapping[TopicPartition, Command], isolation: int, flight: object
    ) -> None:
        timestamps = {
            tp: command.timestamp
            for tp, command in commands.items()
            if isinstance(command, ListOffsetCommand)
        }
        results = await self.cluster.list_offsets(timestamps, isolation)
        for tp, result in results.items():
            partition_fetch = self._accept_response(tp, flight, result)
            if partition_fetch is not None and isinstance(result, offsets.OffsetAndTimestamp):
                offset = None if result.offset < 0 else result.offset
                entries = partition_fetch.reader.on_list_offsets(offset, result.epoch, self.now())
                partition_fetch.log_state()
                self.deliver_entries(partition_fetch, entries)
        self.wake_loops()

    async def _list_epoch_ends(
        self, commands: Mapping[TopicPartition, Command], flight: object
    ) -> None:
        epochs = {
            tp: command.epoch
            for tp, command in commands.items()
            if isinstance(command, EpochEndCommand)
        }
        results = await self.cluster.fetch_epoch_ends(epochs)
        for tp, result in results.items():
            partition_fetch = self._accept_response(tp, flight, result)
            if partition_fetch is not None and isinstance(result, offsets.EpochEnd):
                reader = partition_fetch.reader
                entries = reader.on_epoch_end(result.epoch, result.end_offset, self.now())
                partition_fetch.log_state()
                self.deliver_entries(partition_fetch, entries)
        self.wake_loops()

    def _get_broker_delay(self, partition_fetch: PartitionFetch) -> float | None:
        leader = partition_fetch.reader.leader
        if leader is None:
            return None
        retry_at = self.cluster.connections.get_retry_time(leader, ConnectionRole.CONTROL)
        return None if retry_at is None or retry_at <= self.now() else retry_at - self.now()

    def _mark_in_flight(self, tps: Iterable[TopicPartition]) -> object:
        flight = object()
        for tp in tps:
            self.idle_fetches.pop(tp).in_flight = flight
        return flight

    def _accept_response(
        self, tp: TopicPartition, flight: object, response: object
    ) -> PartitionFetch | None:
        """Release the partition of a lookup, and return it unless it has another request by now.

        An error is handled here; the result is None then, too.
        """
        partition_fetch = self.partition_fetches.get(tp)
        if partition_fetch is None or partition_fetch.in_flight is not flight:
            return None
        self.release(partition_fetch)
        partition_fetch.reader.last_response_at = self.now()
        if not isinstance(response, int):
            return partition_fetch
        self._report_unreachable(partition_fetch)
        self.on_request_failed(
            partition_fetch, cause_from_code(response), self._get_broker_delay(partition_fetch)
        )
        self.cluster.metadata.request_refresh(f"{tp}: error {response}")
        return None

    def _report_unreachable(self, partition_fetch: PartitionFetch) -> None:
        """Report the failure of a leader, for a partition that is not fetched before its start."""
        leader = partition_fetch.reader.leader
        failure = self.cluster.connections.get_failure(leader) if leader is not None else None
        if leader is not None and failure is not None:
            self.report_broker_failure(leader, failure)

    def report_broker_failure(self, node: int, error: KafkaError) -> None:
        self._failing_brokers.add(node)
        self.cluster.outages.report_error(f"FETCH disconnect broker={node}", error, broker=node)

    def report_broker_recovery(self, node: int) -> None:
        if node in self._failing_brokers:
            self._failing_brokers.discard(node)
            self.cluster.outages.report_recovery(f"FETCH disconnect broker={node}", "is over")
