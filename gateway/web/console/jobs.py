"""Read the topic to which Spark jobs write their progress, and describe the jobs by its records.

The findings are those of `gateway pipeline doctor`, which needs the records of a job's batches and
no Spark.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from gateway.config import Settings
from gateway.config.sections.pipelines import Pipelines
from gateway.core.log.record import TopicPartition
from gateway.errors import RequestError
from gateway.kafka.client.cluster import Cluster, get_existing_topic
from gateway.kafka.fetch.bounded_read import fetch_log_bounds, read_committed
from gateway.pipeline.doctor.diagnosis import Diagnosis, diagnose, to_json
from gateway.pipeline.doctor.query_run import BatchProgress, Thresholds, build_run, parse_batch
from gateway.pipeline.job_settings import get_job_type
from gateway.web.console.groups import KafkaLookup, read_query

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
        from gateway.web.console.jobs import build_jobs

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


def build_jobs(section: Pipelines, values: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the configured jobs and those of the topic as JSON, sorted by name.

    The values are in order, the oldest first; those that are no progress are ignored.
    """
    records: dict[str, list[Mapping[str, Any]]] = {job.name: [] for job in section.jobs}
    for value in values:
        record = _parse_record(value)
        if record is not None:
            records.setdefault(record["job"], []).append(record)
    return [_describe_job(section, name, records[name]) for name in sorted(records)]


def _parse_record(value: bytes) -> dict[str, Any] | None:
    """Return a record of a batch; None for anything else that somebody wrote to the topic."""
    try:
        record = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("job"), str):
        return None
    durations = record.get("durationMs")
    # A trigger without new records has no `addBatch`.
    return record if isinstance(durations, dict) and "addBatch" in durations else None


def _describe_job(
    section: Pipelines, name: str, records: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    job = section.find_job(name)
    described: dict[str, Any] = {
        "job": name,
        "type": None if job is None else get_job_type(job),
        "batch": None,
        "alerts": {},
        "causes": [],
        "unseen": {},
    }
    if not records:
        return described
    limits = Thresholds() if job is None else Thresholds(max_late_share=job.alert_late)
    try:
        batch = _describe_batch(parse_batch(records[-1]))
        diagnosis = _describe_diagnosis(diagnose(build_run(records), limits))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as exc:
        # Of another version, or of another program.
        return described | {"problem": f"its progress cannot be read: {exc!r}"}
    alerts = records[-1].get("alerts")
    alerts = alerts if isinstance(alerts, dict) else {}
    return described | {"batch": batch, "alerts": alerts, **diagnosis}


def _describe_batch(batch: BatchProgress) -> dict[str, Any]:
    behind = [each.offsets_behind for each in batch.sources if each.offsets_behind is not None]
    return {
        "id": batch.id,
        "endedAt": batch.started_at + batch.seconds,
        "seconds": batch.seconds,
        "rows": batch.rows,
        "rowsPerSecond": batch.rows / batch.seconds if batch.seconds else None,
        "behind": sum(behind) if behind else None,
        "late": sum(each.dropped_rows for each in batch.operators),
        "invalid": batch.invalid_records,
        "stateRows": sum(each.rows for each in batch.operators),
    }


def _describe_diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    found = to_json(diagnosis)
    return {"judged": diagnosis.batches, "causes": found["causes"], "unseen": found["unseen"]}
