"""Readings of partitions, driven against a cluster.

What each partition needs next is decided by its `Reading` (core); here it is asked for:
fetches in one conversation per broker (see `broker_lane`), offsets and epochs as they come up.
A partition that is slow, leaderless or frozen holds up nobody else's answer: requests go
out per broker, and a reading whose leader changed no longer waits for the old one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

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
from gateway.kafka.client.metadata_changes import TOPIC_AUTHORIZATION_FAILED, TopicChange
from gateway.telemetry.counts import FetchCounts
from gateway.telemetry.log_context import create_detached_task

from .broker_fetch_loop import NEWCOMER_S, BrokerFetchLoop
from .fetch_round import FetchRound
from .partition_fetch import DeliverRest, PartitionFetch
from .topic_model import TopicModel, get_no_model

log = logging.getLogger(__name__)

Deliver = Callable[[PartitionReader, Sequence[Entry]], None]
MOCK_MAX_WAIT_S = 0.01  # seconds
BROKER_CAUSES = frozenset({Cause.CONNECTION, Cause.TIMEOUT, Cause.AUTHENTICATION})
_UNKNOWN_TOPIC_CODES = (3, 17)


async def _skip_pause() -> None:
    pass


class Fetcher:
    """Reads partitions until they are dropped; one reading per partition.

    deliver:  called with what a reading brought, in order, in the loop.
    role:     which of the shared connections it uses.
    max_wait: seconds that a broker may hold a fetch back.
    pause:    awaited before the next fetch of a broker: whoever takes records in rounds has
              more of them for the same price if they come together.
    understand: how the entries of a topic are understood, by its name; None for as they are.
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
        self.cluster = cluster
        self.partition_fetches: dict[TopicPartition, PartitionFetch] = {}
        self.idle_fetches: dict[
            TopicPartition, PartitionFetch
        ] = {}  # those for whom nothing is under way
        self.reads = FetchCounts()
        self.pause = pause
        self.get_topic_model = get_topic_model
        self._max_wait = max_wait
        self.now = asyncio.get_running_loop().time
        self._newcomer_at = float("-inf")
        self._deliver = deliver
        self._role = role
        self._fetch_loops: dict[int, list[BrokerFetchLoop]] = {}
        self._failing_brokers: set[int] = set()  # brokers that are said to be lost
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._refresh_task: asyncio.Task[None] | None = None
        self._unlisten = cluster.metadata.add_listener(self._on_metadata_change)
        self._unlisten_brokers = cluster.connections.add_listener(self._retry_broker)
        self._spawn(self._run_lookups())

    @property
    def max_wait(self) -> float:
        """librdkafka's mock broker holds a fetch for its whole wait whatever comes (465 ms a
        record with 0.5 s, 5 ms with this)."""
        return (
            MOCK_MAX_WAIT_S
            if (self.cluster.cluster_id or "").startswith("mock")
            else self._max_wait
        )

    @property
    def has_newcomers(self) -> bool:
        """Is there a partition that the main lanes may not carry yet?"""
        return self.now() - self._newcomer_at < 2 * NEWCOMER_S

    def add_partition(self, reader: PartitionReader, *, read_committed: bool = True) -> None:
        """Read from now on. committed: no further than the last stable offset."""
        self.remove_partition(reader.tp)
        now = self.now()
        job = self.partition_fetches[reader.tp] = self.idle_fetches[reader.tp] = PartitionFetch(
            reader, read_committed, now, now
        )
        self.mark_newcomer(job)
        self._apply_metadata(job)
        self.wake_loops()

    def remove_partition(self, tp: TopicPartition) -> None:
        job = self.partition_fetches.pop(tp, None)
        if job is not None:
            self.release(job)
            self.idle_fetches.pop(tp, None)

    def wake_loops(self) -> None:
        """Something may be due."""
        self._wake.set()
        for lanes in self._fetch_loops.values():
            for lane in lanes:
                lane.wake.set()

    async def close(self) -> None:
        self._unlisten()
        self._unlisten_brokers()
        self.partition_fetches.clear()
        self.idle_fetches.clear()
        tasks = [*self._tasks, *([self._refresh_task] if self._refresh_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _retry_broker(self, node: int) -> None:
        """A broker answers again: what waits for it is asked for at once, and not one partition
        after the other as their delays end, up to a minute later."""
        now = self.now()
        for job in self.idle_fetches.values():
            if job.choose_node(now) == node and job.reader.cause in BROKER_CAUSES:
                job.reader.retry_now(now)
        self.wake_loops()

    def retry_topic(self, topic: str) -> None:
        """One partition of a topic may be read again, so all of them may."""
        now = self.now()
        for job in self.idle_fetches.values():
            if job.reader.tp.topic == topic and job.reader.cause is Cause.DENIED:
                job.reader.retry_now(now)
        self.wake_loops()

    # for lanes

    def release(self, partition_fetch: PartitionFetch) -> None:
        """Nothing is under way for it any more: what still comes of that is too late."""
        if isinstance(partition_fetch.in_flight, FetchRound):
            partition_fetch.in_flight.remove_partition(partition_fetch)
        partition_fetch.in_flight = None
        if self.partition_fetches.get(partition_fetch.reader.tp) is partition_fetch:
            self.idle_fetches[partition_fetch.reader.tp] = partition_fetch

    def mark_newcomer(self, partition_fetch: PartitionFetch) -> None:
        """It is new to its broker: its next answers must not wait for others' records."""
        partition_fetch.newcomer_at = self._newcomer_at = self.now()

    def deliver_entries(self, partition_fetch: PartitionFetch, entries: Sequence[Entry]) -> None:
        if (
            not entries
            or self.partition_fetches.get(partition_fetch.reader.tp) is not partition_fetch
        ):
            return
        if partition_fetch.is_waiting and partition_fetch.reader.is_ready:
            partition_fetch.is_waiting, after, tp = (
                False,
                self.now() - partition_fetch.added_at,
                partition_fetch.reader.tp,
            )
            self.reads.observe_ready(tp.topic, after)
            log.debug(
                "partition ready after %.3fs topic=%s partition=%s", after, tp.topic, tp.partition,
                extra=tp._asdict(),
            )  # fmt: skip
        self._deliver(partition_fetch.reader, entries)

    def on_request_failed(
        self, partition_fetch: PartitionFetch, cause: Cause, delay: float | None
    ) -> None:
        """A request for the job failed."""
        self.release(partition_fetch)
        now = self.now()
        self.reads.reconnects[partition_fetch.reader.tp.topic, cause] += 1
        entries = partition_fetch.reader.on_error(cause, now, delay)
        log.debug(
            "FETCH reconnect in %.3fs topic=%s partition=%s cause=%s",
            partition_fetch.reader.retry_at - now, partition_fetch.reader.tp.topic, partition_fetch.reader.tp.partition, cause,
            extra={**partition_fetch.reader.tp._asdict(), "cause": cause},
        )  # fmt: skip
        self.deliver_entries(partition_fetch, entries)
        self.wake_loops()

    def start_schema_load(
        self, partition_fetch: PartitionFetch, load_schemas: Callable[[], Awaitable[None]]
    ) -> None:
        """What comes next of it is not understood before that was asked; until then it is left
        where it is, and then fetched again."""
        self.release(partition_fetch)
        self._spawn(
            self._load_schemas(
                partition_fetch, self._mark_in_flight([partition_fetch.reader.tp]), load_schemas
            )
        )

    async def _load_schemas(
        self,
        partition_fetch: PartitionFetch,
        flight: object,
        load_schemas: Callable[[], Awaitable[None]],
    ) -> None:
        try:
            await load_schemas()
        except RegistryUnavailable:  # logged by who asked
            if partition_fetch.in_flight is flight:
                self.on_request_failed(partition_fetch, Cause.REGISTRY, None)
        except Exception:
            if partition_fetch.in_flight is flight:
                self.on_request_failed(partition_fetch, Cause.UNEXPECTED, None)
            raise
        if partition_fetch.in_flight is flight:
            self.release(partition_fetch)
            self.wake_loops()

    def start_rest(self, partition_fetch: PartitionFetch, rest: DeliverRest) -> None:
        """Not all that was fetched of it is handed over yet. Until it is, its broker's other
        partitions go on, and nothing more is asked for this one."""
        self.release(partition_fetch)
        self._spawn(
            self._run_rest(partition_fetch, self._mark_in_flight([partition_fetch.reader.tp]), rest)
        )

    async def _run_rest(
        self, partition_fetch: PartitionFetch, flight: object, rest: DeliverRest
    ) -> None:
        try:
            await rest(lambda: partition_fetch.in_flight is flight)
        except Exception:
            if partition_fetch.in_flight is flight:
                self.on_request_failed(partition_fetch, Cause.UNEXPECTED, None)
            raise
        if partition_fetch.in_flight is flight:
            self.release(partition_fetch)
            self.wake_loops()

    def refresh_metadata(self, reason: str) -> None:
        """Ask for metadata, once for all who want it now."""
        if self._refresh_task is None or self._refresh_task.done():
            self._refresh_task = create_detached_task(self._refresh_metadata(reason))

    async def _refresh_metadata(self, reason: str) -> None:
        try:
            await self.cluster.metadata.refresh(reason)
        except KafkaError as exc:
            log.debug("metadata refresh failed: %s", exc)

    def ensure_fetch_loops(self, node: int) -> None:
        """Let fetches go to a broker; nothing if they do already."""
        if node in self._fetch_loops:
            return
        main = BrokerFetchLoop(self, node, self._role)
        self._fetch_loops[node] = [main]
        if self._role is ConnectionRole.TAIL:
            self._fetch_loops[node].append(BrokerFetchLoop(self, node, ConnectionRole.FRESH, main))
        for lane in self._fetch_loops[node]:
            self._spawn(lane.run())

    # metadata

    def _on_metadata_change(self, change: TopicChange) -> None:
        for job in self._find_affected(change):
            self._apply_metadata(job)
        self.wake_loops()

    def _find_affected(self, change: TopicChange) -> list[PartitionFetch]:
        """Where leaders move, brokers may tell so of one partition after the other (KIP-951)."""
        name = change.topic.name
        if (
            change.removed
            or change.is_recreated
            or change.is_deleted
            or change.is_denied
            or change.is_restored
        ):
            return [job for tp, job in self.partition_fetches.items() if tp.topic == name]
        tps = [TopicPartition(name, p) for p in (*change.added, *change.leader_changes)]
        return [self.partition_fetches[tp] for tp in tps if tp in self.partition_fetches]

    def _apply_metadata(self, partition_fetch: PartitionFetch) -> None:
        """Tell a reading what metadata says of its partition."""
        reading, now = partition_fetch.reader, self.now()
        topic = self.cluster.get_topic(reading.tp.topic)
        if topic is None:
            return
        if topic.error == TOPIC_AUTHORIZATION_FAILED or topic.error in _UNKNOWN_TOPIC_CODES:
            self.release(partition_fetch)
            reading.on_leader_change(None, reading.leader_epoch, now)
            cause = (
                Cause.DENIED if topic.error == TOPIC_AUTHORIZATION_FAILED else Cause.UNKNOWN_TOPIC
            )
            self.deliver_entries(partition_fetch, reading.on_error(cause, now))
            return
        before = (reading.leader, reading.leader_epoch, partition_fetch.topic_id)
        reading.on_topic_id(str(topic.topic_id or ""))
        if partition_fetch.topic_id != topic.topic_id:
            partition_fetch.topic_id = topic.topic_id
        known = topic.partitions.get(reading.tp.partition)
        if known is not None:
            leader = known.leader if known.leader >= 0 else None
            self.deliver_entries(
                partition_fetch, reading.on_leader_change(leader, known.leader_epoch, now)
            )
            if leader is not None:
                self.ensure_fetch_loops(leader)
        if before != (reading.leader, reading.leader_epoch, partition_fetch.topic_id):
            self.release(partition_fetch)
            partition_fetch.replica = None
            self.mark_newcomer(partition_fetch)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = create_detached_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("reading Kafka failed unexpectedly", exc_info=task.exception())

    # offsets and epochs

    async def _run_lookups(self) -> None:
        while True:
            self._wake.clear()
            now = self.now()
            for (_, kind, isolation), asked in self._collect_due_lookups(now).items():
                if kind is ListOffsetCommand:
                    self._spawn(self._list_offsets(asked, isolation, self._mark_in_flight(asked)))
                else:
                    self._spawn(self._list_epoch_ends(asked, self._mark_in_flight(asked)))
            waits = [
                job.reader.retry_at - now
                for job in self.idle_fetches.values()
                if job.reader.retry_at > now
            ]
            try:
                async with asyncio.timeout(min(waits, default=None)):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _collect_due_lookups(
        self, now: float
    ) -> dict[tuple[int, type, int], dict[TopicPartition, Command]]:
        """What is to be asked now: one request per broker, kind and isolation."""
        due: dict[tuple[int, type, int], dict[TopicPartition, Command]] = {}
        for job in self.idle_fetches.values():
            todo = job.reader.next_command(now)
            if todo is None or isinstance(todo, FetchCommand) or job.reader.leader is None:
                continue
            stable = job.read_committed and (isinstance(todo, EpochEndCommand) or todo.is_stable)
            isolation = offsets.READ_COMMITTED if stable else offsets.READ_UNCOMMITTED
            key = (job.reader.leader, type(todo), isolation)
            due.setdefault(key, {})[job.reader.tp] = todo
        return due

    async def _list_offsets(
        self, todos: Mapping[TopicPartition, Command], isolation: int, flight: object
    ) -> None:
        asked = {
            tp: todo.timestamp for tp, todo in todos.items() if isinstance(todo, ListOffsetCommand)
        }
        answers = await self.cluster.list_offsets(asked, isolation)
        for tp, answer in answers.items():
            job = self._accept_response(tp, flight, answer)
            if job is not None and isinstance(answer, offsets.OffsetAndTimestamp):
                offset = None if answer.offset < 0 else answer.offset
                self.deliver_entries(
                    job, job.reader.on_list_offsets(offset, answer.epoch, self.now())
                )
        self.wake_loops()

    async def _list_epoch_ends(
        self, todos: Mapping[TopicPartition, Command], flight: object
    ) -> None:
        asked = {tp: todo.epoch for tp, todo in todos.items() if isinstance(todo, EpochEndCommand)}
        answers = await self.cluster.fetch_epoch_ends(asked)
        for tp, answer in answers.items():
            job = self._accept_response(tp, flight, answer)
            if job is not None and isinstance(answer, offsets.EpochEnd):
                ended = job.reader.on_epoch_end(answer.epoch, answer.end_offset, self.now())
                self.deliver_entries(job, ended)
        self.wake_loops()

    def _get_broker_delay(self, partition_fetch: PartitionFetch) -> float | None:
        """Seconds for which the broker's own backoff lets nobody through; None if it is open."""
        leader = partition_fetch.reader.leader
        at = self.cluster.connections.get_retry_time(leader) if leader is not None else None
        return None if at is None or at <= self.now() else at - self.now()

    def _mark_in_flight(self, todos: Iterable[TopicPartition]) -> object:
        flight = object()
        for tp in todos:
            self.idle_fetches.pop(tp).in_flight = flight
        return flight

    def _accept_response(
        self, tp: TopicPartition, flight: object, response: object
    ) -> PartitionFetch | None:
        """The job of an answer, if that is still to the point and no error."""
        job = self.partition_fetches.get(tp)
        if job is None or job.in_flight is not flight:
            return None
        self.release(job)
        job.reader.last_response_at = self.now()
        if not isinstance(response, int):
            return job
        self._report_unreachable(job)
        self.on_request_failed(job, cause_from_code(response), self._get_broker_delay(job))
        self.refresh_metadata(f"{tp}: error {response}")
        return None

    def _report_unreachable(self, partition_fetch: PartitionFetch) -> None:
        """Where offsets are asked for first, no fetch fails that would tell it."""
        leader = partition_fetch.reader.leader
        failure = self.cluster.connections.get_failure(leader) if leader is not None else None
        if leader is not None and failure is not None:
            self.report_broker_failure(leader, failure)

    def report_broker_failure(self, node: int, error: KafkaError) -> None:
        """Have it said that a broker cannot be read from."""
        self._failing_brokers.add(node)
        self.cluster.outages.report_error(f"FETCH disconnect broker={node}", error, broker=node)

    def report_broker_recovery(self, node: int) -> None:
        """Note that a broker answered a fetch."""
        if node in self._failing_brokers:
            self._failing_brokers.discard(node)
            self.cluster.outages.report_recovery(f"FETCH disconnect broker={node}", "is over")
