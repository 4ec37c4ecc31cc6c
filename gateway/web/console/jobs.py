"""Read the topic to which Spark jobs write their progress, when an operator looks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import orjson
from starlette.requests import Request
from starlette.responses import Response

from gateway.config import Settings
from gateway.core.log.record import TopicPartition
from gateway.errors import RequestError
from gateway.kafka.client.cluster import Cluster, get_existing_topic
from gateway.kafka.fetch.bounded_read import fetch_log_bounds, read_committed

from .groups import KafkaLookup, read_query

MAX_RECORDS = 500  # the latest offsets that are read, of all partitions together
MIN_RECORDS = 20  # of each partition, however many there are; the doctor judges a few batches
MAX_PARTITIONS = 16  # that are read; a job writes a record per batch, so a topic needs one
MAX_BYTES = 8 << 20  # of the values that are kept, of each partition; a record has about 4 KB
NO_TOPIC_MESSAGE = "jobs write no progress to a topic; add pipelines.progress.topic"


class JobEndpoints:
    def __init__(self, get_settings: Callable[[], Settings], lookup: KafkaLookup) -> None:
        self._get_settings = get_settings
        self._lookup = lookup

    async def list_jobs(self, request: Request) -> Response:
        """Answer the last progress of each job, and what its doctor says of it."""
        # Not at the top: a gateway without jobs does not load the doctor.
        from .job_report import build_jobs

        read_query(request, ())
        section = self._get_settings().pipelines
        topic = None if section is None else section.progress.topic
        if section is None or topic is None:
            raise RequestError(404, "No progress", NO_TOPIC_MESSAGE)
        # Jobs write to the first cluster, which `open_hub` opens without a name.
        async with self._lookup.open_hub() as hub:
            values = await read_latest(hub.cluster, topic)
        # In a thread: the records of a busy job are some megabytes of JSON.
        jobs = await asyncio.to_thread(build_jobs, section, values)
        body = {"topic": topic, "records": len(values), "jobs": jobs}
        headers = {"Cache-Control": "no-store"}
        return Response(orjson.dumps(body), headers=headers, media_type="application/json")


async def read_latest(
    cluster: Cluster, topic: str, max_records: int = MAX_RECORDS, max_bytes: int = MAX_BYTES
) -> list[bytes]:
    """Return the values of the latest records of a topic, partition by partition.

    `max_records` is shared by the partitions, `max_bytes` is for each.
    """
    metadata = await get_existing_topic(cluster, topic)
    tps = [TopicPartition(topic, number) for number in sorted(metadata.partitions)]
    share = max(MIN_RECORDS, max_records // len(tps))
    values: list[bytes] = []
    for tp, log in (await fetch_log_bounds(cluster, tps[:MAX_PARTITIONS])).items():
        values += await _read_partition(
            cluster, tp, range(max(log.start, log.stop - share), log.stop), max_bytes
        )
    return values


async def _read_partition(
    cluster: Cluster, tp: TopicPartition, offsets: range, max_bytes: int
) -> list[bytes]:
    kept: deque[bytes] = deque()
    size, position = 0, offsets.start
    while position < offsets.stop:
        read = await read_committed(cluster, tp, position)
        if read.next_offset == position:  # an open transaction
            break
        position = read.next_offset
        for record in read.records:
            kept.append(record.value or b"")
            size += len(kept[-1])
        while size > max_bytes:
            size -= len(kept.popleft())
    return list(kept)
