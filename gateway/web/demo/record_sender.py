"""Write the records of a demo with the producer that also writes clients' records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from gateway.core.log.record import TopicPartition
from gateway.kafka.client.cluster import Cluster, ClusterSettings, get_existing_topic
from gateway.kafka.produce.pending_records import compute_partition
from gateway.kafka.produce.producer import Producer

log = logging.getLogger(__name__)

SEND_TIMEOUT_S = 30.0  # seconds until a record that could not be sent is dropped


class RecordSender:
    """Write records to topics by name. `open_sender` creates it and closes what it uses.

    Records that Kafka does not accept within `timeout_s` are dropped. The first of them is logged,
    and the first that is written again, with the number that was dropped.
    """

    def __init__(
        self, cluster: Cluster, producer: Producer, timeout_s: float = SEND_TIMEOUT_S
    ) -> None:
        self._cluster = cluster
        self._producer = producer
        self._timeout_s = timeout_s
        self._dropped_count = 0  # since the last record that was written

    async def send(self, topic: str, key: bytes | None, value: bytes) -> asyncio.Future[int]:
        """Hand a record over, without waiting until it is written.

        The key decides the partition; without one it is the first. The offset need not be awaited.
        """
        count = len((await get_existing_topic(self._cluster, topic)).partitions)
        partition = 0 if key is None else compute_partition(key, count)
        written = self._producer.send(
            TopicPartition(topic, partition), key, value, timeout_s=self._timeout_s
        )
        written.add_done_callback(self._report_written)
        return written

    def _report_written(self, written: asyncio.Future[int]) -> None:
        if written.cancelled():
            return
        error = written.exception()
        if error is None:
            if self._dropped_count:
                log.info("records are written again; %d were dropped", self._dropped_count)
            self._dropped_count = 0
            return
        if not self._dropped_count:
            reason = str(error).partition("; ")[0]  # without the advice for clients that write
            log.warning("records of the demo are dropped until Kafka accepts them: %s", reason)
        self._dropped_count += 1


@asynccontextmanager
async def open_sender(
    servers: Sequence[str], timeout_s: float = SEND_TIMEOUT_S
) -> AsyncIterator[RecordSender]:
    async with Cluster(ClusterSettings(servers, client_id="gateway-demo")) as cluster:
        producer = Producer(cluster)
        try:
            yield RecordSender(cluster, producer, timeout_s)
        finally:
            await producer.close()
