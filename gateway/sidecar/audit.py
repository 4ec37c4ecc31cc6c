"""Record who wrote and read records, for auditors, in a topic, a file or the log.

Writers and readers never wait for the audit: a record enters a bounded queue, which one task
empties. If Kafka is away for longer than the queue lasts, the newest records are dropped, which is
counted and logged. A record that may have been written is written again with the same `id`.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
import uuid
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from sys import getsizeof
from typing import Any, NamedTuple

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.core.log.record import TopicPartition
from gateway.core.times import format_time
from gateway.errors import BrokerUnavailable, KafkaError
from gateway.kafka.produce.pending_records import ProducerRecord, compute_partition
from gateway.sidecar.http.middleware import WRITE_SCOPE
from gateway.sidecar.http.requests import get_current_ids
from gateway.sidecar.http.spec import create_invalid_request
from gateway.sidecar.http.status import StatusError, build_json_response
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

from .context import AuditEvent, Component, Context
from .lookups import get_or_create_topic

log = logging.getLogger(__name__)

MAX_QUEUED_RECORDS = 10_000  # of about 600 bytes each
MAX_QUEUED_BYTES = 16 << 20  # clients choose keys and stacktraces
MAX_BATCH_RECORDS = 2000  # about 1 MB: as many as come while the batch before is written
MAX_BATCH_BYTES = 1 << 20  # the producer's buffer is that of all requests
WRITE_TIMEOUT_S = 30.0  # for Kafka to acknowledge one record
_OUTAGE_LABEL = "audit records"
RETRY_DELAY_S = 1.0  # before what could not be written is tried again
DRAIN_TIMEOUT_S = 3.0  # for what is queued when the sidecar ends
DROP_LOG_INTERVAL_S = 10.0  # between two log lines about dropped records
MAX_BODY_BYTES = 1 << 20
OUTCOMES = ("written", "dropped", "failed")


class EncodedRecord(NamedTuple):
    key: bytes  # in the audit topic
    value: bytes  # JSON

    @classmethod
    def encode(cls, fields: Mapping[str, Any]) -> EncodedRecord:
        """Encode an audit record; raises TypeError for one that is nested too deep."""
        key = str(fields.get("correlationId") or fields["id"])
        return cls(key.encode(), orjson.dumps(fields))


class AuditComponent(Component):
    """Collect audit records and write them to the target in `audit.to`.

    It replaces the context's `auditor` unless `audit.to` is `off`.
    """

    def __init__(self, context: Context) -> None:
        settings = context.section.audit
        assert settings is not None
        self.outcomes: Counter[str] = Counter()
        self._context = context
        self._settings = settings
        self._service = context.settings.name
        self._queue: deque[AuditEvent | EncodedRecord] = deque()
        self._queued_bytes = 0
        self._has_records = asyncio.Event()
        self._drop_logged_at = float("-inf")
        self._failure: str | None = None  # why records wait; None while they are written
        self._operation = context.spec["auditActive"]
        self.routes = [
            Route(
                "/consumers/active/audit",
                self._accept_records,
                methods=["POST"],
                name="auditActive",
            )
        ]
        if settings.to != "off":
            context.auditor = self

    def record(self, event: AuditEvent) -> None:
        """Queue a record about an event. The JSON is built later, when nobody waits for it.

        Events in the audit topic are left out: each record would make another one.
        """
        is_in_audit_topic = self._settings.to == "topic" and event.tp.topic == self._settings.topic
        if not is_in_audit_topic and not self._enqueue(event):
            self.outcomes["dropped"] += 1
            self._log_dropped()

    async def run(self) -> None:
        """Write queued records until cancelled, then the rest within `DRAIN_TIMEOUT_S`."""
        try:
            while self._settings.to != "off":
                await self._has_records.wait()
                # Cleared before the queue is emptied: what is added meanwhile sets it again.
                self._has_records.clear()
                while self._queue:
                    await self._write_batch()
        finally:
            await self._drain()

    def collect_metrics(self, samples: MetricSamples) -> None:
        samples.add_counts(catalog.AUDIT_RECORDS, self.outcomes)
        samples.add_zeros(catalog.AUDIT_RECORDS, OUTCOMES)

    def _enqueue(self, *entries: AuditEvent | EncodedRecord) -> bool:
        """Queue all of these, or none."""
        size = sum(map(_measure_bytes, entries))
        if (
            len(self._queue) + len(entries) > MAX_QUEUED_RECORDS
            or self._queued_bytes + size > MAX_QUEUED_BYTES
        ):
            return False
        self._queue.extend(entries)
        self._queued_bytes += size
        self._has_records.set()
        return True

    def _log_dropped(self) -> None:
        now = time.monotonic()
        if now - self._drop_logged_at >= DROP_LOG_INTERVAL_S:
            self._drop_logged_at = now
            count, reason = self.outcomes["dropped"], self._failure or "too many at once"
            log.warning("audit: %d records were dropped so far: %s", count, reason)

    async def _write_batch(self) -> None:
        # They get their ids here and go back with them: auditors recognize a repetition by its id.
        unwritten = records = self._take_batch()
        try:
            unwritten = await self._write_records(records)
        finally:  # also when cancelled: `_drain` writes them
            self._queue.extendleft(reversed(unwritten))
            self._queued_bytes += sum(map(_measure_bytes, unwritten))
        if unwritten:
            await asyncio.sleep(RETRY_DELAY_S)  # Kafka or the disk needs a moment

    def _take_batch(self) -> list[EncodedRecord]:
        records: list[EncodedRecord] = []
        size = 0
        while self._queue and len(records) < MAX_BATCH_RECORDS and size < MAX_BATCH_BYTES:
            entry = self._queue.popleft()
            entry_size = _measure_bytes(entry)
            self._queued_bytes -= entry_size
            size += entry_size
            try:
                if isinstance(entry, AuditEvent):
                    entry = EncodedRecord.encode(_format_event(entry, self._service))
                records.append(entry)
            except TypeError as error:  # raised from here, it would take the others along
                self.outcomes["failed"] += 1
                self._note_failure(f"one cannot be written: {error}")
        return records

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while self._queue:
                    await self._write_batch()
        except TimeoutError:
            self.outcomes["dropped"] += len(self._queue)
            log.warning("audit: %d records were dropped at the end", len(self._queue))

    async def _write_records(self, records: list[EncodedRecord]) -> list[EncodedRecord]:
        if self._settings.to == "topic":
            try:
                return await self._write_to_topic(records)
            except KafkaError as error:
                self._note_error(error)
                return records
        try:
            if self._settings.file is None:
                for record in records:
                    log.info("audit %s", record.value.decode())
            else:
                await asyncio.to_thread(_append_to_file, self._settings.file, records)
        except OSError as error:
            self._note_failure(f"{self._settings.file}: {error}")
            return records
        self._note_written(len(records))
        return []

    async def _write_to_topic(self, records: Sequence[EncodedRecord]) -> list[EncodedRecord]:
        """Write records to Kafka, and return those that Kafka may accept next time."""
        topic = await get_or_create_topic(self._context, self._settings.topic, "audit records")
        writes = [
            ProducerRecord(
                TopicPartition(topic.name, compute_partition(record.key, len(topic.partitions))),
                record.key,
                record.value,
            )
            for record in records
        ]
        results = await self._context.producer.send_many(writes, timeout_s=WRITE_TIMEOUT_S)
        unwritten: list[EncodedRecord] = []
        for record, result in zip(records, results, strict=True):
            if isinstance(result, BrokerUnavailable):
                self._note_error(result)
                unwritten.append(record)
            elif isinstance(result, KafkaError):  # refused: it would be refused again
                self.outcomes["failed"] += 1
                self._note_failure(str(result))
            else:
                self._note_written(1)
                self._context.cluster.outages.report_recovery(_OUTAGE_LABEL, "are written again")
        return unwritten

    def _note_error(self, error: KafkaError) -> None:
        """Remember why records wait for Kafka. The cluster logs its outages once for all."""
        self._context.cluster.outages.report_error(_OUTAGE_LABEL, error)
        self._failure = str(error)

    def _note_failure(self, reason: str) -> None:
        if self._failure is None:
            log.warning("audit: records wait: %s", reason)
        self._failure = reason

    def _note_written(self, records: int) -> None:
        self.outcomes["written"] += records
        self._failure = None

    async def _accept_records(self, request: Request) -> Response:
        """Accept audit records of a back end that has read by itself."""
        await self._context.authorize(request, WRITE_SCOPE)
        self._operation.parse_parameters(request)
        entries = await self._operation.read_body(request, MAX_BODY_BYTES)
        records = [
            _encode_backend_record(entry, self._service, index)
            for index, entry in enumerate(entries)
        ]
        if self._settings.to != "off" and not self._enqueue(*records):
            problem = f"{len(self._queue)} audit records wait already; try again"
            raise StatusError(503, problem, retry_after=RETRY_DELAY_S)
        return build_json_response({"accepted": len(records)}, 202)


def _measure_bytes(entry: AuditEvent | EncodedRecord) -> int:
    """Return the bytes of the parts that have no bound of their own."""
    if isinstance(entry, AuditEvent):
        return sum(map(getsizeof, (entry.key, entry.correlation, entry.traceability, entry.error)))
    return sum(map(getsizeof, entry))


def _format_event(event: AuditEvent, service: str) -> Mapping[str, Any]:
    """Build an audit record as the contract has it; a key that is not UTF-8 becomes base64."""
    key, key_format = _encode_key(event.key)
    return {
        "id": str(uuid.uuid4()),
        "serviceId": service,
        "auditType": event.type,
        "topic": event.tp.topic,
        "partition": event.tp.partition,
        "offset": event.offset,
        "correlationId": event.correlation,
        "traceabilityId": event.traceability,
        "key": key,
        **key_format,
        "auditStatus": "SUCCESS" if event.error is None else "FAILURE",
        "stacktrace": event.error,
        "timestamp": format_time(event.time * 1000),
    }


def _encode_backend_record(fields: Mapping[str, Any], service: str, index: int) -> EncodedRecord:
    """Encode an audit record of a back end, or of its answer `{"record": {...}, ...}`.

    Raises StatusError 400 for one that cannot be written: it would block all others.
    """
    record = fields.get("record")
    source = record if isinstance(record, Mapping) else {}
    processed = fields.get("processed", True)
    ids = get_current_ids()
    defaults = {
        "id": str(uuid.uuid4()),
        "serviceId": service,
        "auditType": "ACTIVE_CONSUMER",
        **{name: source.get(name) for name in ("topic", "partition", "offset", "key")},
        "correlationId": ids.correlation,
        "traceabilityId": ids.traceability,
        "auditStatus": "SUCCESS" if processed else "FAILURE",
        "stacktrace": None,
        "timestamp": format_time(time.time() * 1000),
    }
    fields = {name: value for name, value in fields.items() if name not in ("record", "processed")}
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return EncodedRecord.encode(defaults | given)
    except TypeError:
        raise create_invalid_request(
            f"[{index}]", "is nested too deep to be written; flatten it"
        ) from None


def _encode_key(key: bytes | None) -> tuple[str | None, Mapping[str, Any]]:
    if key is None:
        return None, {}
    try:
        return key.decode(), {}
    except UnicodeDecodeError:
        return base64.b64encode(key).decode(), {"keyFormat": "binary"}


def _append_to_file(file: str, records: Sequence[EncodedRecord]) -> None:
    """Append records as lines; the file is opened each time, so that it may be rotated."""
    with Path(file).open("ab") as out:
        out.write(b"".join(record.value + b"\n" for record in records))
