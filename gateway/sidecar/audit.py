"""The part `audit`: who wrote and read what, for auditors, in a topic, a file or the log.

Nobody who writes or reads waits for it: a record is an entry of a bounded queue, and one task hands
on what is there. Where Kafka is away for longer than the queue lasts, the newest are dropped, which
is counted and said. Records may come twice, with the same `id`: what may have been written is
written again.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
import uuid
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable, KafkaError, UnknownTopic
from gateway.kafka.admin.topics import create_topic
from gateway.kafka.produce.partitioner import compute_partition
from gateway.kafka.protocol.requests import TopicMetadata
from gateway.sidecar.http.authorization import WRITE_SCOPE
from gateway.sidecar.http.body import read_body
from gateway.sidecar.http.ids import get_current_ids
from gateway.sidecar.http.spec import create_invalid_request
from gateway.sidecar.http.status import StatusError, build_json_response
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

from .context import Context

log = logging.getLogger(__name__)

MAX_QUEUED_RECORDS = 10_000  # records that wait; 600 bytes each
MAX_BATCH_RECORDS = 500
WRITE_TIMEOUT_S = 30.0  # seconds for Kafka to take one
RETRY_DELAY_S = 1.0  # seconds before what could not be written is tried again
DRAIN_TIMEOUT_S = 3.0  # seconds for what is left when the sidecar ends
DROP_LOG_INTERVAL_S = 10.0  # seconds between two lines about dropped records
MAX_BODY_BYTES = 1 << 20  # bytes of a request

AuditRecord: TypeAlias = Mapping[str, Any]


class PendingAuditRecord(NamedTuple):
    """A record to be; made where somebody waits, so it is written out later."""

    type: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    correlation: str
    traceability: str
    error: str | None
    at: float


class AuditComponent:
    """See the module, and `part.Part`; it is the context's `audit` from here on.

    outcomes: records by what became of them (`written`, `dropped`, `failed`).
    """

    def __init__(self, context: Context) -> None:
        settings = context.section.audit
        assert settings is not None
        self.outcomes: Counter[str] = Counter()
        self._context = context
        self._settings = settings
        self._service = context.settings.name
        self._queue: deque[PendingAuditRecord | AuditRecord] = deque()
        self._has_records = asyncio.Event()
        self._drop_logged_at = float("-inf")
        self._failure: str | None = None
        self._operation = context.spec["auditActive"]
        self.routes: Sequence[BaseRoute] = [
            Route(
                "/consumers/active/audit",
                self._accept_records,
                methods=["POST"],
                name="auditActive",
            )
        ]
        if settings.to != "off":
            context.auditor = self

    def record_produced(
        self, topic: str, partition: int, offset: int, key: bytes | None = None, *,
        correlation: str = "", traceability: str = "", error: str | None = None,
    ) -> None:  # fmt: skip
        ids = (correlation, traceability, error, time.time())
        self._enqueue(PendingAuditRecord("PRODUCER", topic, partition, offset, key, *ids))

    def record_consumed(
        self, topic: str, partition: int, offset: int, key: bytes | None = None, *,
        reactive: bool = False, correlation: str = "", traceability: str = "",
        error: str | None = None,
    ) -> None:  # fmt: skip
        kind = "REACTIVE_CONSUMER" if reactive else "ACTIVE_CONSUMER"
        ids = (correlation, traceability, error, time.time())
        self._enqueue(PendingAuditRecord(kind, topic, partition, offset, key, *ids))

    async def run(self) -> None:
        try:
            while self._settings.to != "off":
                await self._has_records.wait()
                self._has_records.clear()
                while self._queue:
                    await self._write_batch()
        finally:
            await self._drain()

    async def check_ready(self) -> None:
        """Always ready: nobody waits for it."""

    def collect_metrics(self, samples: MetricSamples) -> None:
        """Adds what a scrape wants to know."""
        samples.add_counts(catalog.AUDIT_RECORDS, self.outcomes)

    def _enqueue(self, entry: PendingAuditRecord | AuditRecord) -> bool:
        if len(self._queue) >= MAX_QUEUED_RECORDS:
            self.outcomes["dropped"] += 1
            self._log_dropped()
            return False
        self._queue.append(entry)
        self._has_records.set()
        return True

    def _log_dropped(self) -> None:
        now = time.monotonic()
        if now - self._drop_logged_at >= DROP_LOG_INTERVAL_S:
            self._drop_logged_at = now
            count, why = self.outcomes["dropped"], self._failure or "too many at once"
            log.warning("audit: %d records were dropped so far: %s", count, why)

    async def _write_batch(self) -> None:
        """Some of what waits; what could not be had, again after a while."""
        batch = [self._queue.popleft() for _ in range(min(MAX_BATCH_RECORDS, len(self._queue)))]
        left = made = [self._build_record(each) for each in batch]
        try:
            left = await self._write_records(made)
        finally:
            self._queue.extendleft(reversed(left))
        if left:
            await asyncio.sleep(RETRY_DELAY_S)

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while self._queue:
                    await self._write_batch()
        except TimeoutError:
            self.outcomes["dropped"] += len(self._queue)
            log.warning("audit: %d records were dropped at the end", len(self._queue))

    def _build_record(self, entry: PendingAuditRecord | AuditRecord) -> AuditRecord:
        return (
            _format_record(entry, self._service) if isinstance(entry, PendingAuditRecord) else entry
        )

    async def _write_records(self, records: list[AuditRecord]) -> list[AuditRecord]:
        """Those that are to be tried again."""
        if self._settings.to == "topic":
            try:
                return await self._write_to_topic(records)
            except KafkaError as error:
                self._note_failure(str(error))
                return records
        try:
            if self._settings.file is None:
                for each in records:
                    log.info("audit %s", orjson.dumps(each).decode())
            else:
                await asyncio.to_thread(_append_to_file, self._settings.file, records)
        except OSError as error:
            self._note_failure(f"{self._settings.file}: {error}")
            return records
        self._note_written(len(records))
        return []

    async def _write_to_topic(self, records: Sequence[AuditRecord]) -> list[AuditRecord]:
        """To Kafka; those that it may have next time."""
        known = await self._get_or_create_topic()
        under_way = []
        for each in records:
            key = str(each.get("correlationId") or each["id"]).encode()
            tp = TopicPartition(known.name, compute_partition(key, len(known.partitions)))
            under_way.append(
                self._context.producer.send(tp, key, orjson.dumps(each), timeout_s=WRITE_TIMEOUT_S)
            )
        results = await asyncio.gather(*under_way, return_exceptions=True)
        again: list[AuditRecord] = []
        for each, result in zip(records, results, strict=True):
            if isinstance(result, BrokerUnavailable):
                self._note_failure(str(result))
                again.append(each)
            elif isinstance(result, BaseException):
                self.outcomes["failed"] += 1
                self._note_failure(str(result))
            else:
                self._note_written(1)
        return again

    async def _get_or_create_topic(self) -> TopicMetadata:
        """Made where it is missing: what happens meanwhile waits."""
        try:
            return await self._context.get_topic(self._settings.topic)
        except UnknownTopic:
            if await create_topic(self._context.cluster, self._settings.topic):
                log.info("audit: the topic %s is made", self._settings.topic)
            return await self._context.get_topic(self._settings.topic)

    def _note_failure(self, why: str) -> None:
        if self._failure is None:
            log.warning("audit: records wait: %s", why)
        self._failure = why

    def _note_written(self, records: int) -> None:
        self.outcomes["written"] += records
        self._failure = None

    async def _accept_records(self, request: Request) -> Response:
        """Those of a back end, which has read by itself."""
        await self._context.authorize(request, WRITE_SCOPE)
        self._operation.parse_parameters(request)
        data = await read_body(request, MAX_BODY_BYTES)
        given = self._operation.parse_body(data, request.headers.get("content-type"))
        records = [_format_backend_record(each, self._service) for each in given]
        for place, each in enumerate(records):
            _check_serializable(each, place)
        if self._settings.to != "off":
            if len(records) > MAX_QUEUED_RECORDS - len(self._queue):
                what = f"{len(self._queue)} audit records wait already; try again"
                raise StatusError(503, what, retry_after=RETRY_DELAY_S)
            for each in records:
                self._enqueue(each)
        return build_json_response({"accepted": len(records)}, 202)


def _format_record(entry: PendingAuditRecord, service: str) -> AuditRecord:
    """As the contract has it. A key that is no text is base64, and says so."""
    key, form = _encode_key(entry.key)
    return {
        "id": str(uuid.uuid4()),
        "serviceId": service,
        "auditType": entry.type,
        "topic": entry.topic,
        "partition": entry.partition,
        "offset": entry.offset,
        "correlationId": entry.correlation,
        "traceabilityId": entry.traceability,
        "key": key,
        **form,
        "auditStatus": "SUCCESS" if entry.error is None else "FAILURE",
        "stacktrace": entry.error,
        "timestamp": _format_time(entry.at),
    }


def _format_backend_record(fields: Mapping[str, Any], service: str) -> AuditRecord:
    """An audit record; or what a back end answers of a record: {"record", "processed", ...}."""
    record = fields.get("record")
    read = record if isinstance(record, Mapping) else {}
    processed = fields.get("processed", True)
    ids = get_current_ids()
    made = {
        "id": str(uuid.uuid4()),
        "serviceId": service,
        "auditType": "ACTIVE_CONSUMER",
        **{name: read.get(name) for name in ("topic", "partition", "offset", "key")},
        "correlationId": ids.correlation,
        "traceabilityId": ids.traceability,
        "auditStatus": "SUCCESS" if processed else "FAILURE",
        "stacktrace": None,
        "timestamp": _format_time(time.time()),
    }
    fields = {name: value for name, value in fields.items() if name not in ("record", "processed")}
    return made | {name: value for name, value in fields.items() if value is not None}


def _check_serializable(record: AuditRecord, index: int) -> None:
    """One that is not would be tried for ever, before all behind it. Raises Refusal 400."""
    try:
        orjson.dumps(record)
    except TypeError:
        raise create_invalid_request(
            f"[{index}]", "is nested too deep to be written; flatten it"
        ) from None


def _encode_key(key: bytes | None) -> tuple[str | None, AuditRecord]:
    if key is None:
        return None, {}
    try:
        return key.decode(), {}
    except UnicodeDecodeError:
        return base64.b64encode(key).decode(), {"keyFormat": "binary"}


def _format_time(at: float) -> str:
    """RFC 3339 in UTC."""
    told = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return told.replace("+00:00", "Z")


def _append_to_file(file: str, records: Sequence[AuditRecord]) -> None:
    """A line each; opened anew each time, so that the file may be moved away."""
    with Path(file).open("ab") as out:
        out.write(b"".join(orjson.dumps(each) + b"\n" for each in records))
