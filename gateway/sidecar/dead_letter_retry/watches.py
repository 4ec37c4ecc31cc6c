"""Wake the requests that wait for dead letters, once there may be some of their group.

The requests that wait for the same topic share one consumer. When each had its own, 480 of them
held 524 MiB for a topic of 1,000 partitions, and a connection to each broker; and a dead letter of
whatever group made all of them ask Kafka for the offsets of all partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

from gateway.background_tasks import start_shared_task
from gateway.client_memory import ClientMemory, GrowingReservation, HeldPart
from gateway.core.log.record import TopicPartition
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.offsets import LATEST, READ_COMMITTED
from gateway.kafka.fetch.bounded_read import fetch_offsets
from gateway.kafka.group.consumer import ConsumerOptions, GroupConsumer
from gateway.sidecar.consumer.instance import PARTITION_BYTES
from gateway.sidecar.reactive.dead_letters import parse_message

from .queue import DeadLetterQueue, QueuedDeadLetter

MIN_FETCH_BYTES = 1024  # brokers send at least one batch
POLL_TIMEOUT_S = 60.0  # until partitions are noticed that were added

Waiting: TypeAlias = dict[asyncio.Event, str]
"""The groups of requests that wait, by the events that wake them."""


class DeadLetterWatches:
    """Fetch dead letters, and wait for them. A component has one for all of its requests."""

    def __init__(self, cluster: Cluster, client_memory: ClientMemory) -> None:
        self._cluster, self._client_memory = cluster, client_memory
        self._watches: dict[str, tuple[Waiting, asyncio.Task[None]]] = {}  # by topic

    async def fetch_dead_letters(
        self, queue: DeadLetterQueue, max_records: int, max_bytes: int, timeout_s: float
    ) -> Sequence[QueuedDeadLetter]:
        """Return the next dead letters of a queue; wait for the first one if there is none.

        Raises KafkaError, and MemoryFull if there is none for the consumer.
        """
        if not timeout_s:
            return (await queue.fetch_dead_letters(max_records, max_bytes))[0]
        deadline = asyncio.get_running_loop().time() + timeout_s
        if queue.topic not in self._watches:
            waiting: Waiting = {}
            task = start_shared_task(self._watch(queue.topic, waiting))
            self._watches[queue.topic] = waiting, task
        waiting, task = watch = self._watches[queue.topic]
        came = asyncio.Event()
        waiting[came] = queue.group
        try:
            while True:
                came.clear()  # before the look: what comes from here on sets it again
                letters, _ = await queue.fetch_dead_letters(max_records, max_bytes)
                if letters or asyncio.get_running_loop().time() >= deadline:
                    return letters
                if task.done():
                    await task  # raises why
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await came.wait()
        finally:
            del waiting[came]
            if self._watches.get(queue.topic) is watch and (task.done() or not waiting):
                del self._watches[queue.topic]
            if not waiting:
                task.cancel()
                await asyncio.wait([task])

    async def _watch(self, topic: str, waiting: Waiting) -> None:
        """Wake requests until cancelled; all of them if it fails."""
        # One batch is enough, however many wait.
        options = ConsumerOptions(auto_offset_reset="earliest", max_partition_bytes=MIN_FETCH_BYTES)
        consumer = GroupConsumer(self._cluster, "", options)
        try:
            with GrowingReservation(self._client_memory, HeldPart.FETCHED) as held:
                while True:
                    known = self._cluster.get_topic(topic)
                    numbers = () if known is None else known.partitions
                    tps = {TopicPartition(topic, number) for number in numbers}
                    if added := tps - consumer.assignment:
                        held.grow(len(added) * PARTITION_BYTES)
                        # What an open transaction has written is still to come.
                        ends = await fetch_offsets(
                            self._cluster, list(added), LATEST, READ_COMMITTED
                        )
                        consumer.assign(tps)
                        for tp, end in ends.items():
                            consumer.seek(tp, end)
                        groups = set(waiting.values())  # they may have looked before
                    else:
                        records = await consumer.poll(POLL_TIMEOUT_S)
                        messages = map(parse_message, records)
                        groups = {message.group if message else "" for message in messages}
                    for came, group in waiting.items():
                        if group in groups or "" in groups:
                            came.set()
                    await asyncio.sleep(0)  # there may be thousands of records
        finally:
            try:
                await consumer.close()
            finally:  # last, so that they find out that nobody wakes them any more
                for came in waiting:
                    came.set()
