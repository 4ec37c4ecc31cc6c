"""A reactive group of some sidecars in virtual time: what happens to it, and what must hold.

The sidecars are real, from `ReactiveGroup` down to the requests to Kafka; Kafka is
`simulated_kafka`, the back end an `httpx.MockTransport`. The oracle knows each record by its topic,
partition and offset, and what the back end said of it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import httpx
from support.simulated_kafka import SimulatedCluster, SimulatedKafka

from gateway.background_tasks import run_supervised
from gateway.config.sections.sidecar import Group, Sidecar
from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable
from gateway.formats.codec import Codecs
from gateway.kafka.produce.pending_records import OffsetResults, ProducerRecord
from gateway.sidecar.reactive.dead_letters import ORIGIN_OFFSET_HEADER, ORIGIN_PARTITION_HEADER
from gateway.sidecar.reactive.group import ReactiveGroup

TOPIC, DEAD_LETTER_TOPIC = "orders", "orders.dlq"
PARTITION_COUNT = 3
QUIET_TIMEOUT_S = 300.0  # virtual ones, for a group to deliver all once nothing happens any more
MAX_POLL_INTERVAL_S = 60.0
BATCH_RECORDS = 7
OLD_RECORDS = 30  # of each partition, from before a group that begins with `latest`

RecordLocation = tuple[UUID, int, int]  # of a record: topic id, partition, offset


@dataclass(eq=False)
class SidecarMember:
    """One member of the group, and its own way to Kafka."""

    cluster: SimulatedCluster
    group: ReactiveGroup
    task: asyncio.Task[None]


@dataclass
class DeliveryOracle:
    """What became of each record.

    excused: those that nobody owes: passed over by a seek, gone by retention or with their topic.
    """

    processed: set[RecordLocation] = field(default_factory=set)
    dead_lettered: set[RecordLocation] = field(default_factory=set)
    waived_records: set[RecordLocation] = field(default_factory=set)
    processed_order: dict[tuple[UUID, int], list[int]] = field(default_factory=dict)
    sought_partitions: set[tuple[UUID, int]] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)

    def mark_processed(self, location: RecordLocation) -> None:
        """Note that the back end is through with a record."""
        if location not in self.processed:
            self.processed_order.setdefault(location[:2], []).append(location[2])
        self.processed.add(location)

    def is_settled(self, location: RecordLocation) -> bool:
        """Return whether nobody owes the record any more."""
        return (
            location in self.processed
            or location in self.dead_lettered
            or location in self.waived_records
        )


class GroupSimulation:
    """One history of a group. Everything random is drawn from `seed`.

    With `reset="latest"` the group is owed what comes after the first offset that it has committed
    of a partition, all of a partition that was added later, and nothing that was there before it.
    """

    def __init__(self, seed: int, *, is_classic: bool, reset: str = "earliest") -> None:
        random.seed(seed)  # what members draw their delays from
        self.rng = random.Random(seed)
        self.kafka = SimulatedKafka(self.rng, is_classic=is_classic)
        self.kafka.on_commit = self._check_commit
        self.kafka.create_topic(TOPIC, PARTITION_COUNT)
        self.kafka.create_topic(DEAD_LETTER_TOPIC, PARTITION_COUNT, is_subscribed=False)
        self.oracle = DeliveryOracle()
        self.poison_records: set[RecordLocation] = set()
        self.backend_mode = "well"
        self.members: list[SidecarMember] = []
        self.log: list[str] = []
        self._checked_offsets: dict[tuple[UUID, int], int] = {}
        self._old_ends: dict[tuple[UUID, int], int] = {}  # of the records that are from before
        if reset == "latest":
            for p in range(PARTITION_COUNT):
                self._append(TopicPartition(TOPIC, p), OLD_RECORDS)
                self._old_ends[self.kafka.topics[TOPIC].id, p] = OLD_RECORDS
        self.parallelism = self.rng.choice((1, 1, 2, 3))
        self._settings = Group.model_validate(
            {
                "group": "g", "topics": [TOPIC], "valueFormat": "json",
                "groupProtocol": "classic" if is_classic else "consumer",
                "autoOffsetReset": reset, "parallelism": self.parallelism,
                "sessionTimeout": "6s", "heartbeatInterval": "1s", "revokeTimeout": "5s",
                "maxPollInterval": f"{MAX_POLL_INTERVAL_S:g}s", "maxPollRecords": BATCH_RECORDS,
                "retryDelay": "500ms", "retryDelayMax": "5s",
                "backend": {"host": "http://backend", "timeout": "2s"},
            }
        )  # fmt: skip

    # what may happen

    def produce(self) -> None:
        """Write some records to one partition, more than a lane holds at times."""
        tp = TopicPartition(TOPIC, self.rng.randrange(len(self.kafka.topics[TOPIC].logs)))
        self._append(tp, self.rng.choice((1, 3, 20, 60)))

    def _append(self, tp: TopicPartition, count: int) -> None:
        log, topic = self.kafka.get_log(tp), self.kafka.topics[TOPIC]
        places = [(topic.id, tp.partition, log.log_end_offset + n) for n in range(count)]
        self.poison_records |= {place for place in places if self.rng.random() < 0.02}
        self.kafka.append_records(tp, [json.dumps({"id": str(topic.id)}).encode()] * count)

    def change_back_end(self) -> None:
        """Let it be well, away, late, or without sense."""
        self.backend_mode = self.rng.choice(("well", "well", "away", "refused", "late", "stumbles"))

    def change_kafka(self) -> None:
        """Let one sidecar, or all of them, reach Kafka or not."""
        away = self.rng.choice(("", "", "refused", "silent"))
        some = self.members if self.rng.random() < 0.5 else self.members[:1]
        for sidecar in some:
            self._set_failure_mode(sidecar, away)

    def _set_failure_mode(self, member: SidecarMember, failure_mode: str) -> None:
        member.cluster.failure_mode = failure_mode
        for name in self.kafka.topics:
            member.cluster.update_topic(name)

    def change_commits(self) -> None:
        """Let commits get no answer, or let them through again."""
        self.kafka.holds_commits = not self.kafka.holds_commits

    def change_right(self) -> None:
        """Take the right to read with the group away, or give it back."""
        self.kafka.is_denied = not self.kafka.is_denied

    def start(self) -> None:
        """Let another sidecar join the group."""
        if len(self.members) >= 3:
            return
        cluster = SimulatedCluster(self.kafka)
        client = httpx.AsyncClient(
            transport=httpx.MockTransport(self.handle_backend_request), timeout=None
        )
        producer = SimpleNamespace(
            send_many=lambda letters, **_: self._put_dead_letters(cluster, letters)
        )
        context: Any = SimpleNamespace(
            settings=SimpleNamespace(listen=SimpleNamespace(drain_timeout=20.0)),
            section=Sidecar.model_validate({}),
            cluster=cluster,
            codecs=Codecs(),
            auditor=None,
            get_topic=cluster.describe_topic,
            producer=producer,
            gzip_producer=producer,
        )
        group = ReactiveGroup(context, self._settings, client)
        task = asyncio.create_task(run_supervised(group.run, "group g"))
        self.members.append(SidecarMember(cluster, group, task))

    async def stop(self) -> None:
        """Let one end as by SIGTERM."""
        if len(self.members) > 1:
            sidecar = self.members.pop(self.rng.randrange(len(self.members)))
            sidecar.task.cancel()
            await asyncio.wait([sidecar.task])
            self.kafka.clusters.remove(sidecar.cluster)

    async def kill(self) -> None:
        """Let one end as by SIGKILL: nothing of it reaches Kafka any more."""
        if len(self.members) > 1:
            sidecar = self.members.pop(self.rng.randrange(len(self.members)))
            sidecar.cluster.failure_mode = "refused"
            sidecar.task.cancel()
            await asyncio.wait([sidecar.task])
            self.kafka.clusters.remove(sidecar.cluster)

    async def restart(self) -> None:
        """Let all end, as by SIGTERM or SIGKILL, and one of them begin again."""
        while self.members:
            member = self.members.pop()
            if self.rng.random() < 0.5:
                member.cluster.failure_mode = "refused"
            member.task.cancel()
            await asyncio.wait([member.task])
            self.kafka.clusters.remove(member.cluster)
        await asyncio.sleep(self.rng.choice((0.0, 3.0)))
        self.start()

    def expire(self) -> None:
        """Let the coordinator forget a member."""
        if self.kafka.member_ids:
            self.kafka.expire_member(self.rng.choice(self.kafka.member_ids))

    def pause(self) -> None:
        """Let an operator pause or resume a sidecar."""
        sidecar = self.rng.choice(self.members)
        if sidecar.group.consumer is not None:
            sidecar.group.set_paused(not sidecar.group.is_paused)

    async def seek(self) -> None:
        """Let an operator seek, back or past what is there."""
        sidecar = self.rng.choice(self.members)
        consumer = sidecar.group.consumer
        if consumer is None or not consumer.assignment:
            return
        tp = self.rng.choice(sorted(consumer.assignment))
        topic, log = self.kafka.topics[TOPIC], self.kafka.get_log(tp)
        offset = self.rng.randint(log.log_start_offset, log.log_end_offset)
        key = topic.id, tp.partition
        self.oracle.waived_records |= {(*key, n) for n in range(offset)}
        self.oracle.sought_partitions.add(key)
        try:
            await sidecar.group.seek({tp: offset})
        except Exception as error:  # whatever a sidecar says that cannot do it now
            self.log.append(f"  seek refused: {error}")

    def delete_records(self) -> None:
        """Let retention take records that were not read."""
        tp = TopicPartition(TOPIC, self.rng.randrange(len(self.kafka.topics[TOPIC].logs)))
        topic, log = self.kafka.topics[TOPIC], self.kafka.get_log(tp)
        log.log_start_offset = self.rng.randint(log.log_start_offset, log.log_end_offset)
        self.oracle.waived_records |= {
            (topic.id, tp.partition, n) for n in range(log.log_start_offset)
        }

    def add_partition(self) -> None:
        """Let the topic have another partition."""
        if len(self.kafka.topics[TOPIC].logs) < 6:
            self.kafka.add_partitions(TOPIC, 1)

    def recreate(self) -> None:
        """Let the topic be deleted and made anew."""
        topic = self.kafka.topics[TOPIC]
        for p, log in enumerate(topic.logs):
            self.oracle.waived_records |= {(topic.id, p, n) for n in range(log.log_end_offset)}
        self.kafka.create_topic(TOPIC, len(topic.logs))

    # the whole of it

    async def run_events(self, events: Collection[str], count: int) -> None:
        """Let `count` of these events happen, then be quiet, and check that all was delivered."""
        kafka = asyncio.create_task(self.kafka.run_expiry())
        try:
            self.start()
            for _ in range(count):
                await asyncio.sleep(self.rng.choice((0.0, 0.01, 0.3, 2.0, 8.0)))
                await self._apply_event(self.rng.choice(sorted(events)))
            await self._settle()
        finally:
            for sidecar in self.members:
                sidecar.task.cancel()
            await asyncio.gather(*(each.task for each in self.members), return_exceptions=True)
            kafka.cancel()

    async def _apply_event(self, event: str) -> None:
        now = asyncio.get_running_loop().time()
        self.log.append(f"{now:.3f} {event} back end {self.backend_mode}")
        done = getattr(self, event)()
        if done is not None:
            await done

    async def _settle(self) -> None:
        self.backend_mode = "well"
        self.kafka.is_denied = self.kafka.holds_commits = False
        self.log.append(f"{asyncio.get_running_loop().time():.3f} all is well")
        for sidecar in self.members:
            self._set_failure_mode(sidecar, "")
            if sidecar.group.consumer is not None:
                sidecar.group.set_paused(False)
            sidecar.group.is_paused = False
        deadline = asyncio.get_running_loop().time() + QUIET_TIMEOUT_S
        now = asyncio.get_running_loop().time
        while not self.is_done() and now() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        if self.list_missing():
            self.oracle.violations.append(f"never delivered: {self.list_missing()[:5]}")
        elif not self.is_done():
            self.oracle.violations.append(f"never committed: {self.kafka.committed}")
        for place in self.oracle.dead_lettered - self.poison_records:
            self.oracle.violations.append(f"a dead letter that is no poison: {place}")
        for key, offsets in self.oracle.processed_order.items():
            # A member may hold what retention has taken, and another one has passed over, since.
            owed = [n for n in offsets if (*key, n) not in self.oracle.waived_records]
            if key not in self.oracle.sought_partitions and owed != sorted(owed):
                self.oracle.violations.append(f"out of order: {key}")

    def list_missing(self) -> list[RecordLocation]:
        """Return the records that were neither processed nor given up."""
        topic = self.kafka.topics[TOPIC]
        return [
            place
            for p, log in enumerate(topic.logs)
            for place in ((topic.id, p, n) for n in range(log.log_start_offset, log.log_end_offset))
            if not self.oracle.is_settled(place)
        ]

    def is_done(self) -> bool:
        """Return whether all is delivered, and committed."""
        topic, committed = self.kafka.topics[TOPIC], self.kafka.committed
        return not self.list_missing() and all(
            log.log_end_offset == log.log_start_offset
            or ((topic.id, p) in committed and committed[topic.id, p].offset == log.log_end_offset)
            for p, log in enumerate(topic.logs)
        )

    def _check_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        topic = self.kafka.topics[TOPIC]
        if self._old_ends and not self._checked_offsets:  # now it begins, with these partitions
            for p in range(len(topic.logs)):
                self._old_ends.setdefault((topic.id, p), 0)
        for tp, offset in offsets.items():
            if tp.topic != TOPIC:
                continue
            key = topic.id, tp.partition
            if key not in self._checked_offsets and key in self._old_ends:
                self.oracle.waived_records |= {(*key, n) for n in range(offset)}
            for n in range(self._checked_offsets.get(key, 0), offset):
                if not self.oracle.is_settled((*key, n)):
                    self.oracle.violations.append(f"committed unprocessed: {tp} {n} by {offset}")
            self._checked_offsets[key] = max(offset, self._checked_offsets.get(key, 0))

    # around it

    async def handle_backend_request(self, request: httpx.Request) -> httpx.Response:
        """The back end."""
        mode = self.backend_mode
        if mode == "refused":
            raise httpx.ConnectError("refused")
        if request.url.path == "/health":
            return httpx.Response(503 if mode == "away" else 200)
        records = json.loads(request.content)
        places = [(UUID(r["value"]["id"]), r["partition"], r["offset"]) for r in records]
        await asyncio.sleep(self.rng.choice((0.0, 0.01, 0.2)))
        if mode == "away":
            return httpx.Response(503)
        poisoned = [place in self.poison_records for place in places]
        if mode == "stumbles" and any(poisoned):
            return httpx.Response(500)
        if mode == "late":
            await asyncio.sleep(10)
        for *key, offset in places:
            if offset < self._old_ends.get((key[0], key[1]), 0):
                self.oracle.violations.append(f"from before the group: {key} {offset}")
            if (key[0], key[1]) not in self._checked_offsets:
                self.oracle.violations.append(f"sent before its start was kept: {key} {offset}")
        for place, poison in zip(places, poisoned, strict=True):
            if not poison:
                self.oracle.mark_processed(place)
        self._check_ahead({place[:2] for place in places})
        return httpx.Response(200, json=[{"processed": not poison} for poison in poisoned])

    def _check_ahead(self, partitions: Iterable[tuple[UUID, int]]) -> None:
        """Check that what comes again after a takeover is at most two batches of a partition."""
        for key in set(partitions) - self.oracle.sought_partitions:
            committed = self.kafka.committed.get(key)
            start = committed.offset if committed is not None else 0
            ahead = [
                n
                for n in self.oracle.processed_order.get(key, ())
                if n >= start and (*key, n) not in self.oracle.waived_records
            ]
            if len(ahead) > 2 * BATCH_RECORDS:
                self.oracle.violations.append(f"ahead of the commits: {key} {start} {ahead}")

    async def _put_dead_letters(
        self, cluster: SimulatedCluster, letters: Sequence[ProducerRecord]
    ) -> OffsetResults:
        """The producer of dead letters."""
        await asyncio.sleep(0.01)
        if cluster.failure_mode:
            await asyncio.sleep(5)
            return [BrokerUnavailable("Kafka is away", retry_after=1.0)] * len(letters)
        for _, _, value, headers, _ in letters:
            said: dict[str, Any] = dict(headers)
            self.oracle.dead_lettered.add(
                (
                    UUID(json.loads(value or b"")["id"]),
                    int(said[ORIGIN_PARTITION_HEADER]),
                    int(said[ORIGIN_OFFSET_HEADER]),
                )
            )
        return [0] * len(letters)
