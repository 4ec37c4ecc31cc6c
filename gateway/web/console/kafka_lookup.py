"""Look up in Kafka what an operator asks for: groups, the newest records, the progress of jobs.

Kafka is asked when an operator looks, never by the feed: brokers list their groups on demand only,
and a cluster may have thousands of them. Jobs write their progress to a topic; the findings about
them are those of `gateway pipeline doctor`, which needs these records and no Spark.

Who may look at records is a right of its own, `admin.records`: operators are not shown what the
guards of a route refuse them, and a topic has more than the fields and filters of a route let out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from gateway.config import Settings
from gateway.config.sections.pipelines import Pipelines
from gateway.config.types.substitution import suggest
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import (
    AccessDenied,
    KafkaError,
    RegistryUnavailable,
    RequestError,
    UnknownGroup,
    UnknownTopic,
)
from gateway.formats.event import encode_envelope
from gateway.formats.exact_values import InvalidValue
from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.hubs import Hubs
from gateway.hub.wires.models import Models
from gateway.kafka.admin import PartitionLag, describe_group, fetch_lag, list_groups
from gateway.kafka.client.cluster import Cluster, get_existing_topic
from gateway.kafka.client.offsets import READ_COMMITTED
from gateway.kafka.fetch.bounded_read import fetch_log_bounds, read_committed
from gateway.kafka.protocol.group_messages import GroupDescription, GroupListing
from gateway.pipeline.doctor.diagnosis import Diagnosis, diagnose, to_json
from gateway.pipeline.doctor.query_run import BatchProgress, Thresholds, build_run, parse_batch
from gateway.pipeline.job_settings import get_job_type
from gateway.web.access import Granted
from gateway.web.admin.app import log_action

LOOKUP_TIMEOUT_S = 8.0  # seconds for an answer, waiting for a place included
MAX_LOOKUPS = 4  # of a process at a time


class KafkaLookup:
    """The places of lookups in Kafka. Owned by `Console`, one per process.

    What an operator looks up must not hold anything else up: the sections of the page that ask
    Kafka share a few places, wait a few seconds, and show what went wrong instead of what they
    asked for.
    """

    def __init__(self, hubs: Hubs, timeout_s: float = LOOKUP_TIMEOUT_S) -> None:
        self._hubs = hubs
        self._timeout_s = timeout_s
        self._places = asyncio.Semaphore(MAX_LOOKUPS)

    @property
    def cluster_names(self) -> list[str]:
        """The names of the clusters; one is empty if it is the only one."""
        return list(self._hubs.by_name)

    @asynccontextmanager
    async def open_hub(self, name: str | None = None) -> AsyncIterator[Hub]:
        """Look something up in the block: yield the hub of a cluster, None for the first one.

        An unknown cluster is a 404. A 503 has the reason if Kafka does not answer in time.
        """
        names = self._hubs.by_name
        if name is not None and name not in names:
            raise RequestError(404, "Unknown cluster", f"{name!r}: {suggest(name, names)}")
        hub = self._hubs.get_hub(next(iter(names)) if name is None else name)
        try:
            async with asyncio.timeout(self._timeout_s), self._places:
                if not hub.started:
                    raise RequestError(503, "Busy", "the gateway is still starting", retry_after=1)
                yield hub
        except TimeoutError:
            detail = f"Kafka has not answered within {self._timeout_s:g} s; try again"
            raise RequestError(503, "Kafka is unavailable", detail, retry_after=1.0) from None
        except (AccessDenied, UnknownGroup, UnknownTopic):
            raise
        except KafkaError as exc:
            # Operators are told why, unlike clients.
            raise RequestError(503, "Kafka is unavailable", str(exc), retry_after=1.0) from None


def build_json(content: Any) -> Response:
    headers = {"Cache-Control": "no-store"}
    body = orjson.dumps(content, default=list)
    return Response(body, headers=headers, media_type="application/json")


def read_query(request: Request, known: Collection[str]) -> Mapping[str, str]:
    """Return the parameters of a request; those not in `known` are a 400.

    Ignoring a misspelt one would show something else.
    """
    params = dict(request.query_params)
    unknown = params.keys() - set(known)
    if unknown:
        word = min(unknown)
        raise RequestError(400, "Bad request", f"?{word}= is unknown; {suggest(word, known)}")
    return params


PAGE_SIZE = 100  # groups of one page
MAX_MEMBERS = 500  # members that are described
MAX_DESCRIBED_PARTITIONS = 1000  # partitions that are described, those furthest behind first


class GroupEndpoints:
    def __init__(self, lookup: KafkaLookup) -> None:
        self._lookup = lookup

    async def list_groups(self, request: Request) -> Response:
        query = read_query(request, ("cluster", "search", "after"))
        async with self._lookup.open_hub(query.get("cluster")) as hub:
            listings = await list_groups(hub.cluster)
            name = hub.name
        page = build_page(listings, query.get("search", ""), query.get("after", ""))
        body = {"cluster": name, "clusters": self._lookup.cluster_names, **page}
        return build_json(body)

    async def describe_group(self, request: Request) -> Response:
        query = read_query(request, ("cluster", "group"))
        if "group" not in query:
            raise RequestError(400, "Bad request", "say which: ?group=")
        async with self._lookup.open_hub(query.get("cluster")) as hub:
            description = await describe_group(hub.cluster, query["group"])
            lags = await fetch_lag(hub.cluster, query["group"], description)
        body = build_description(description, lags)
        return build_json(body)


def build_page(listings: Sequence[GroupListing], search: str, after: str) -> dict[str, Any]:
    """Return a page of sorted groups as JSON, after the last name of the page before."""
    wanted = search.lower()
    found = [each for each in listings if wanted in each.name.lower()]
    following = [each for each in found if not after or each.name > after]
    shown = following[:PAGE_SIZE]
    return {
        "groups": [
            {"group": each.name, "state": each.state, "type": each.type, "protocol": each.protocol}
            for each in shown
        ],
        "total": len(found),
        "next": shown[-1].name if len(following) > len(shown) else None,
    }


def build_description(
    description: GroupDescription, lags: dict[TopicPartition, PartitionLag]
) -> dict[str, Any]:
    behind = sorted(lags.items(), key=lambda item: (-(item[1].lag or 0), item[0]))
    known = [lag.lag for lag in lags.values() if lag.lag is not None]
    members = sorted(description.members, key=lambda member: (member.client_id, member.id))
    return {
        "group": description.name,
        "state": description.state,
        "type": description.type,
        "assignor": description.assignor or None,
        "lag": sum(known) if known else None,
        "memberCount": len(members),
        "partitionCount": len(behind),
        "members": [
            {
                "id": member.id,
                "instanceId": member.instance_id,
                "clientId": member.client_id,
                "host": member.host.removeprefix("/"),  # as Java writes an address
                "partitions": len(member.owned),
            }
            for member in members[:MAX_MEMBERS]
        ],
        "partitions": [
            {**tp._asdict(), **lag.to_json()} for tp, lag in behind[:MAX_DESCRIBED_PARTITIONS]
        ],
    }


MAX_RECORDS = 500  # the latest offsets that are read, of all partitions together
MIN_RECORDS = 20  # of each partition, however many there are; the doctor judges a few batches
MAX_READ_PARTITIONS = 64  # that are read
MAX_BYTES = 8 << 20  # of the records that are kept, of each partition; one of a job has about 4 KB
MAX_SHOWN_RECORDS = 50
MAX_SHOWN_BYTES = 1 << 20  # of the records that are shown, once they are decoded
MIN_READ_BYTES = 1 << 16  # of the records that are kept, of each partition, however many there are
RECORDS_REFUSED_MESSAGE = (
    "you may not look at records; set admin.records to the guards and roles that may, {} for all"
)
SKIPPED_MESSAGE = "it does not match its model, and streams skip it"


class RecordEndpoints:
    def __init__(self, get_settings: Callable[[], Settings], lookup: KafkaLookup) -> None:
        self._get_settings = get_settings
        self._lookup = lookup

    async def list_records(self, request: Request) -> Response:
        """Answer the newest records of a topic, of all partitions or one, the newest first."""
        settings = self._get_settings()
        operator: Granted = request.state.operator
        allowed = None if settings.admin is None else settings.admin.records
        if allowed is None or not operator.has(allowed):
            raise RequestError(403, "Forbidden", RECORDS_REFUSED_MESSAGE)
        query = read_query(request, ("topic", "partition"))
        name, partition = query.get("topic", ""), query.get("partition") or None
        served = list_served_topics(settings)
        if name not in served:
            hint = suggest(name, served, "no route and no group of the sidecar has a topic")
            raise RequestError(404, "Unknown topic", f"no topic {name!r} is served here; {hint}")
        log_action(request, "look at records", topic=name, partition=partition)
        cluster, _, topic = name.rpartition("/")
        async with self._lookup.open_hub(cluster or None) as hub:
            tps = await list_partitions(hub.cluster, topic)
            if partition is not None:
                tps = [tp for tp in tps if str(tp.partition) == partition]
            if not tps:
                raise RequestError(404, "Unknown topic", f"{topic} has no partition {partition}")
            max_bytes = max(MIN_READ_BYTES, MAX_SHOWN_BYTES // len(tps))
            records = await read_latest(hub.cluster, tps, MAX_SHOWN_RECORDS * len(tps), max_bytes)
            records.sort(key=lambda each: (each.timestamp, each.offset), reverse=True)
            shown = await describe_records(hub.models, records[:MAX_SHOWN_RECORDS])
        skipped = max(0, len(tps) - MAX_READ_PARTITIONS)
        return build_json({"records": shown, "partitions": len(tps), "skipped": skipped})


def list_served_topics(settings: Settings) -> list[str]:
    """Return the topics of routes and of the sidecar's groups, after `CLUSTER/` if it has a name.

    Topics that clients choose by `allow` are not among them.
    """
    served: set[tuple[str, str]] = set()
    for route in settings.routes:
        cluster = settings.get_cluster_name(route)
        for template in route.with_.topic_templates:
            if template.literal is not None:
                served.add((cluster, template.literal))
            elif not route.with_.allow:
                topics = filter(template.can_render, settings.list_topics(cluster))
                served.update((cluster, topic) for topic in topics)
    if settings.sidecar is not None and settings.sidecar.reactive is not None:
        cluster = settings.sidecar.kafka or next(iter(settings.clusters))
        for group in settings.sidecar.reactive.groups:
            served.update((cluster, topic) for topic in group.topics)
    return sorted(f"{cluster}/{topic}" if cluster else topic for cluster, topic in served)


async def describe_records(models: Models, records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return records as JSON, as streams show them; as they are in Kafka if they do not.

    Those behind MAX_SHOWN_BYTES are left out, but for the first one.
    """
    described: list[dict[str, Any]] = []
    size = 0
    for record in records:
        try:
            shown = await models.preview(record)
            problem = None if shown else SKIPPED_MESSAGE
        except RegistryUnavailable as exc:
            shown, problem = None, str(exc)
        if shown is not None and isinstance(shown.value, InvalidValue):
            problem = shown.value.reason
        _, envelope = encode_envelope(shown or record)
        size += len(envelope)
        if described and size > MAX_SHOWN_BYTES:
            break
        described.append({"record": orjson.Fragment(envelope), "problem": problem})
    return described


NO_TOPIC_MESSAGE = "jobs write no progress to a topic; add pipelines.progress.topic"


class JobEndpoints:
    def __init__(self, get_settings: Callable[[], Settings], lookup: KafkaLookup) -> None:
        self._get_settings = get_settings
        self._lookup = lookup

    async def list_jobs(self, request: Request) -> Response:
        """Answer the last progress of each job, and what its doctor says of it."""
        read_query(request, ())
        section = self._get_settings().pipelines
        topic = None if section is None else section.progress.topic
        if section is None or topic is None:
            raise RequestError(404, "No progress", NO_TOPIC_MESSAGE)
        # Jobs write to the first cluster, which `open_hub` opens without a name.
        async with self._lookup.open_hub() as hub:
            tps = await list_partitions(hub.cluster, topic)
            values = [each.value or b"" for each in await read_latest(hub.cluster, tps)]
        # In a thread: the records of a busy job are some megabytes of JSON.
        jobs = await asyncio.to_thread(build_jobs, section, values)
        body = {"topic": topic, "records": len(values), "jobs": jobs}
        return build_json(body)


async def list_partitions(cluster: Cluster, topic: str) -> list[TopicPartition]:
    metadata = await get_existing_topic(cluster, topic)
    return [TopicPartition(topic, number) for number in sorted(metadata.partitions)]


async def read_latest(
    cluster: Cluster,
    tps: Sequence[TopicPartition],
    max_records: int = MAX_RECORDS,
    max_bytes: int = MAX_BYTES,
) -> list[Record]:
    """Return the latest committed records of a topic's first partitions, partition by partition.

    `max_records` is shared by the partitions, `max_bytes` is for each.
    """
    share = max(MIN_RECORDS, max_records // max(1, len(tps)))
    records: list[Record] = []
    logs = await fetch_log_bounds(cluster, tps[:MAX_READ_PARTITIONS], READ_COMMITTED)
    for tp, log in logs.items():
        # Offsets may have no record: those of markers, and of aborted or compacted records.
        for span in (share, 4 * share, 16 * share):
            offsets = range(max(log.start, log.stop - span), log.stop)
            found, is_complete = await _read_partition(cluster, tp, offsets, max_bytes)
            if len(found) >= share or offsets.start == log.start or not is_complete:
                break
        records += found[-share:]
    return records


async def _read_partition(
    cluster: Cluster, tp: TopicPartition, offsets: range, max_bytes: int
) -> tuple[list[Record], bool]:
    """Return the latest records at some offsets, and whether `max_bytes` has room for all."""
    is_complete = True
    kept: deque[Record] = deque()
    size, position = 0, offsets.start
    while position < offsets.stop:
        read = await read_committed(cluster, tp, position)
        if read.next_offset == position:
            break
        position = read.next_offset
        kept.extend(read.records)
        size += sum(record.payload_size for record in read.records)
        while size > max_bytes and len(kept) > 1:
            size -= kept.popleft().payload_size
            is_complete = False
    return list(kept), is_complete


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
    }


def _describe_diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    found = to_json(diagnosis)
    return {"judged": diagnosis.batches, "causes": found["causes"], "unseen": found["unseen"]}
