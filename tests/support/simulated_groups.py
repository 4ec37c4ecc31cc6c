"""A reactive group of some sidecars in virtual time: what happens to it, and what must hold.

The sidecars are real, from `ReactiveGroup` down to the requests to Kafka; Kafka is
`simulated_kafka`, the back end an `httpx.MockTransport`. The oracle knows each record by its topic,
partition and offset, and what the back end said of it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import httpx
from support.simulated_kafka import SimulatedCluster, SimulatedKafka

from gateway.config.sections.sidecar import Group, Sidecar
from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable
from gateway.formats.codec import Codecs
from gateway.sidecar.context import Unaudited
from gateway.sidecar.reactive.group import ReactiveGroup
from gateway.sidecar.reactive.letter import ORIGIN_OFFSET, ORIGIN_PARTITION
from gateway.sidecar.supervise import kept

TOPIC, LETTERS = "orders", "orders.dlq"
PARTITIONS = 3
QUIET_SECONDS = 300.0  # virtual ones, for a group to deliver all once nothing happens any more
STUCK_SECONDS = 60.0

Place = tuple[UUID, int, int]  # of a record: topic id, partition, offset


@dataclass(eq=False)
class Member:
    """One member of the group, and its own way to Kafka."""

    cluster: SimulatedCluster
    group: ReactiveGroup
    task: asyncio.Task[None]


@dataclass
class Oracle:
    """What became of each record.

    excused: those that nobody owes: passed over by a seek, gone by retention or with their topic.
    """

    processed: set[Place] = field(default_factory=set)
    dead: set[Place] = field(default_factory=set)
    excused: set[Place] = field(default_factory=set)
    order: dict[tuple[UUID, int], list[int]] = field(default_factory=dict)
    sought: set[tuple[UUID, int]] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    def process(self, place: Place) -> None:
        """Note that the back end is through with a record."""
        if place not in self.processed:
            self.order.setdefault(place[:2], []).append(place[2])
        self.processed.add(place)

    def is_settled(self, place: Place) -> bool:
        """Return whether nobody owes the record any more."""
        return place in self.processed or place in self.dead or place in self.excused


class GroupWorld:
    """One history of a group. Everything random is drawn from `seed`."""

    def __init__(self, seed: int, *, classic: bool) -> None:
        random.seed(seed)  # what members draw their delays from
        self.draw = random.Random(seed)
        self.kafka = SimulatedKafka(self.draw, classic=classic)
        self.kafka.on_commit = self._check_commit
        self.kafka.create_topic(TOPIC, PARTITIONS)
        self.kafka.create_topic(LETTERS, PARTITIONS, is_read=False)
        self.oracle = Oracle()
        self.poison: set[Place] = set()
        self.back_end = "well"
        self.sidecars: list[Member] = []
        self.log: list[str] = []
        self._checked: dict[tuple[UUID, int], int] = {}
        parallelism = self.draw.choice((1, 1, 2, 3))
        self._settings = Group.model_validate(
            {
                "group": "g", "topics": [TOPIC], "valueFormat": "json",
                "groupProtocol": "classic" if classic else "consumer",
                "autoOffsetReset": "earliest", "parallelism": parallelism,
                "sessionTimeout": "6s", "heartbeatInterval": "1s", "revokeTimeout": "5s",
                "maxPollInterval": f"{STUCK_SECONDS:g}s", "maxPollRecords": 7,
                "retryDelay": "500ms", "retryDelayMax": "5s",
                "backend": {"host": "http://backend", "timeout": "2s"},
            }
        )  # fmt: skip

    # what may happen

    def produce(self) -> None:
        """Write some records to one partition, more than a lane holds at times."""
        tp = TopicPartition(TOPIC, self.draw.randrange(len(self.kafka.topics[TOPIC].logs)))
        log, topic = self.kafka.log(tp), self.kafka.topics[TOPIC]
        count = self.draw.choice((1, 3, 20, 60))
        places = [(topic.id, tp.partition, log.end + n) for n in range(count)]
        self.poison |= {place for place in places if self.draw.random() < 0.02}
        self.kafka.write(tp, [json.dumps({"id": str(topic.id)}).encode()] * count)

    def change_back_end(self) -> None:
        """Let it be well, away, late, or without sense."""
        self.back_end = self.draw.choice(("well", "well", "away", "refused", "late", "stumbles"))

    def change_kafka(self) -> None:
        """Let one sidecar, or all of them, reach Kafka or not."""
        away = self.draw.choice(("", "", "refused", "silent"))
        some = self.sidecars if self.draw.random() < 0.5 else self.sidecars[:1]
        for sidecar in some:
            self._reach(sidecar, away)

    def _reach(self, sidecar: Member, away: str) -> None:
        sidecar.cluster.away = away
        for name in self.kafka.topics:
            sidecar.cluster.tell(name)

    def change_right(self) -> None:
        """Take the right to read with the group away, or give it back."""
        self.kafka.is_denied = not self.kafka.is_denied

    def start(self) -> None:
        """Let another sidecar join the group."""
        if len(self.sidecars) >= 3:
            return
        cluster = SimulatedCluster(self.kafka)
        client = httpx.AsyncClient(transport=httpx.MockTransport(self._answer), timeout=None)
        context: Any = SimpleNamespace(
            settings=SimpleNamespace(listen=SimpleNamespace(drain_timeout=20.0)),
            section=Sidecar.model_validate({}),
            cluster=cluster,
            codecs=Codecs(),
            audit=Unaudited(),
            topic=cluster.describe,
            producer=SimpleNamespace(put=lambda *letter, **more: self._put(cluster, *letter)),
        )
        group = ReactiveGroup(context, self._settings, client)
        task = asyncio.create_task(kept(group.run, "group g"))
        self.sidecars.append(Member(cluster, group, task))

    async def stop(self) -> None:
        """Let one end as by SIGTERM."""
        if len(self.sidecars) > 1:
            sidecar = self.sidecars.pop(self.draw.randrange(len(self.sidecars)))
            sidecar.task.cancel()
            await asyncio.wait([sidecar.task])
            self.kafka.clusters.remove(sidecar.cluster)

    async def kill(self) -> None:
        """Let one end as by SIGKILL: nothing of it reaches Kafka any more."""
        if len(self.sidecars) > 1:
            sidecar = self.sidecars.pop(self.draw.randrange(len(self.sidecars)))
            sidecar.cluster.away = "refused"
            sidecar.task.cancel()
            await asyncio.wait([sidecar.task])
            self.kafka.clusters.remove(sidecar.cluster)

    def expire(self) -> None:
        """Let the coordinator forget a member."""
        if self.kafka.members:
            self.kafka.expire(self.draw.choice(self.kafka.members))

    def pause(self) -> None:
        """Let an operator pause or resume a sidecar."""
        sidecar = self.draw.choice(self.sidecars)
        if sidecar.group.consumer is not None:
            sidecar.group.pause(not sidecar.group.paused)

    async def seek(self) -> None:
        """Let an operator seek, back or past what is there."""
        sidecar = self.draw.choice(self.sidecars)
        consumer = sidecar.group.consumer
        if consumer is None or not consumer.assignment:
            return
        tp = self.draw.choice(sorted(consumer.assignment))
        topic, log = self.kafka.topics[TOPIC], self.kafka.log(tp)
        offset = self.draw.randint(log.start, log.end)
        key = topic.id, tp.partition
        self.oracle.excused |= {(*key, n) for n in range(offset)}
        self.oracle.sought.add(key)
        try:
            await sidecar.group.seek({tp: offset})
        except Exception as error:  # whatever a sidecar says that cannot do it now
            self.log.append(f"  seek refused: {error}")

    def delete_records(self) -> None:
        """Let retention take records that were not read."""
        tp = TopicPartition(TOPIC, self.draw.randrange(len(self.kafka.topics[TOPIC].logs)))
        topic, log = self.kafka.topics[TOPIC], self.kafka.log(tp)
        log.start = self.draw.randint(log.start, log.end)
        self.oracle.excused |= {(topic.id, tp.partition, n) for n in range(log.start)}

    def add_partition(self) -> None:
        """Let the topic have another partition."""
        if len(self.kafka.topics[TOPIC].logs) < 6:
            self.kafka.add_partitions(TOPIC, 1)

    def recreate(self) -> None:
        """Let the topic be deleted and made anew."""
        topic = self.kafka.topics[TOPIC]
        for p, log in enumerate(topic.logs):
            self.oracle.excused |= {(topic.id, p, n) for n in range(log.end)}
        self.kafka.create_topic(TOPIC, len(topic.logs))

    # the whole of it

    async def run(self, events: Collection[str], count: int) -> None:
        """Let `count` of these events happen, then be quiet, and check that all was delivered."""
        kafka = asyncio.create_task(self.kafka.run())
        try:
            self.start()
            for _ in range(count):
                await asyncio.sleep(self.draw.choice((0.0, 0.01, 0.3, 2.0, 8.0)))
                await self._happen(self.draw.choice(sorted(events)))
            await self._be_quiet()
        finally:
            for sidecar in self.sidecars:
                sidecar.task.cancel()
            await asyncio.gather(*(each.task for each in self.sidecars), return_exceptions=True)
            kafka.cancel()

    async def _happen(self, event: str) -> None:
        now = asyncio.get_running_loop().time()
        self.log.append(f"{now:.3f} {event} back end {self.back_end}")
        done = getattr(self, event)()
        if done is not None:
            await done

    async def _be_quiet(self) -> None:
        self.back_end = "well"
        self.kafka.is_denied = False
        self.log.append(f"{asyncio.get_running_loop().time():.3f} all is well")
        for sidecar in self.sidecars:
            self._reach(sidecar, "")
            if sidecar.group.consumer is not None:
                sidecar.group.pause(False)
            sidecar.group.paused = False
        deadline = asyncio.get_running_loop().time() + QUIET_SECONDS
        now = asyncio.get_running_loop().time
        while not self.is_done() and now() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        if self.missing():
            self.oracle.faults.append(f"never delivered: {self.missing()[:5]}")
        elif not self.is_done():
            self.oracle.faults.append(f"never committed: {self.kafka.committed}")
        for place in self.oracle.dead - self.poison:
            self.oracle.faults.append(f"a dead letter that is no poison: {place}")
        for key, offsets in self.oracle.order.items():
            # A member may hold what retention has taken, and another one has passed over, since.
            owed = [n for n in offsets if (*key, n) not in self.oracle.excused]
            if key not in self.oracle.sought and owed != sorted(owed):
                self.oracle.faults.append(f"out of order: {key}")

    def missing(self) -> list[Place]:
        """Return the records that were neither processed nor given up."""
        topic = self.kafka.topics[TOPIC]
        return [
            place
            for p, log in enumerate(topic.logs)
            for place in ((topic.id, p, n) for n in range(log.start, log.end))
            if not self.oracle.is_settled(place)
        ]

    def is_done(self) -> bool:
        """Return whether all is delivered, and committed."""
        topic, committed = self.kafka.topics[TOPIC], self.kafka.committed
        return not self.missing() and all(
            log.end == log.start
            or ((topic.id, p) in committed and committed[topic.id, p].offset == log.end)
            for p, log in enumerate(topic.logs)
        )

    def _check_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        for tp, offset in offsets.items():
            if tp.topic != TOPIC:
                continue
            key = self.kafka.topics[TOPIC].id, tp.partition
            for n in range(self._checked.get(key, 0), offset):
                if not self.oracle.is_settled((*key, n)):
                    self.oracle.faults.append(f"committed unprocessed: {tp} {n} by {offset}")
            self._checked[key] = max(offset, self._checked.get(key, 0))

    # around it

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        """The back end."""
        mode = self.back_end
        if mode == "refused":
            raise httpx.ConnectError("refused")
        if request.url.path == "/health":
            return httpx.Response(503 if mode == "away" else 200)
        records = json.loads(request.content)
        places = [(UUID(r["value"]["id"]), r["partition"], r["offset"]) for r in records]
        await asyncio.sleep(self.draw.choice((0.0, 0.01, 0.2)))
        if mode == "away":
            return httpx.Response(503)
        poisoned = [place in self.poison for place in places]
        if mode == "stumbles" and any(poisoned):
            return httpx.Response(500)
        if mode == "late":
            await asyncio.sleep(10)
        for place, poison in zip(places, poisoned, strict=True):
            if not poison:
                self.oracle.process(place)
        return httpx.Response(200, json=[{"processed": not poison} for poison in poisoned])

    async def _put(
        self, cluster: SimulatedCluster, tp: TopicPartition, key: Any, value: Any, headers: Any
    ) -> None:
        """The producer of dead letters."""
        await asyncio.sleep(0.01)
        if cluster.away:
            await asyncio.sleep(5)
            raise BrokerUnavailable("Kafka is away", retry_after=1.0)
        said = dict(headers)
        self.oracle.dead.add(
            (
                UUID(json.loads(value)["id"]),
                int(said[ORIGIN_PARTITION]),
                int(said[ORIGIN_OFFSET]),
            )
        )
