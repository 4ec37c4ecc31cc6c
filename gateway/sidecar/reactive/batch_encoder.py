"""Encode a batch for the back end: a JSON array with an object for each record.

The timestamp is in milliseconds since 1970. The headers are text by name, a list where a name comes
more than once, and `{"base64": ...}` for bytes that are not UTF-8. A record without a correlation
id gets one that is derived from its place, the same at every attempt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple
from uuid import NAMESPACE_URL, uuid5

import orjson

from gateway.config.sections.sidecar import Group, Sidecar
from gateway.core.delivery.verdict import BatchResults, RecordResult, Verdict
from gateway.core.log.record import Record
from gateway.errors import FormatError, RegistryUnavailable, SchemaNotFound
from gateway.formats.codec import Codecs, SchemaNotLoaded, SerializationFormat, frame_record
from gateway.formats.event import bytes_to_json
from gateway.formats.plain import PLAIN_CODECS
from gateway.formats.registry import MISSING_TTL_S
from gateway.sidecar.http.ids import CORRELATION_HEADER, TRACEABILITY_HEADER
from gateway.sidecar.turns import take_turns

MISSING_SCHEMA_TIMEOUT_S = 15.0
# Without waiting for another missing schema of a topic, after one was waited for in vain. Otherwise
# records with ids that were made up would hold up those after them for as long each.
MISSING_SCHEMA_PAUSE_S = 300.0


class EncodedBatch(NamedTuple):
    """The JSON array of a batch.

    Records whose bytes do not match their format are `unreadable`, by index: they must not fail the
    others.
    """

    body: bytes
    sent: Sequence[Record]
    unreadable: Mapping[int, str]

    def complete_verdict(self, verdict: Verdict) -> Verdict:
        """Extend a verdict about the sent records to all; those not encoded have failed."""
        if not isinstance(verdict, BatchResults) or not self.unreadable:
            return verdict
        # The verdict has a result for each record that was sent, in order.
        results, unreadable = iter(verdict.results), self.unreadable
        return BatchResults(
            [
                RecordResult(False, unreadable[index], is_permanent=True)
                if index in unreadable
                else next(results)
                for index in range(len(self.sent) + len(unreadable))
            ]
        )


class BatchEncoder:
    """Encode batches of one group, in the formats of its topics.

    A batch that cannot be encoded yet is passed again, before any other.

    Args:
        missing_schema_timeout_s: For how many seconds the registry is asked again for a schema that
            it does not have: a record was written with it, and a registry that follows another one
            learns of new schemas a moment later.
    """

    def __init__(
        self,
        codecs: Codecs,
        section: Sidecar,
        group: Group,
        *,
        missing_schema_timeout_s: float = MISSING_SCHEMA_TIMEOUT_S,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._missing_schema_timeout_s = missing_schema_timeout_s
        self._now = now
        self._waiting_since: dict[str, float] = {}  # for schemas, by topic
        self._paused_until: dict[str, float] = {}  # by topic
        self._codecs = codecs
        self._section = section
        self._group = group
        self._formats: dict[str, tuple[SerializationFormat, SerializationFormat]] = {}

    async def encode(self, records: Sequence[Record]) -> EncodedBatch:
        """Encode a batch; raises RegistryUnavailable, also while the registry lacks a schema."""
        objects: list[bytes] = []
        sent: list[Record] = []
        unreadable: dict[int, str] = {}
        missing: dict[str, str] = {}  # errors by topic
        has_loaded = False
        async with take_turns() as turns:
            for index, record in enumerate(records):
                if turns.is_over():
                    await turns.pass_on()
                try:
                    # Encoding does not await: only a schema that is not cached yet is waited for.
                    while True:
                        try:
                            objects.append(self._encode_record(record))
                            break
                        except SchemaNotLoaded:
                            if not has_loaded:  # all, so that missing ones are waited for together
                                await turns.wait_for(self._load_all_schemas(records[index:]))
                                has_loaded = True
                            await turns.wait_for(self._load_schemas(record))
                    sent.append(record)
                except SchemaNotFound as error:
                    missing[record.tp.topic] = unreadable[index] = str(error)
                except FormatError as error:
                    unreadable[index] = str(error)
        awaited = [error for topic, error in missing.items() if self._should_wait(topic)]
        if awaited:
            raise RegistryUnavailable(awaited[0], retry_after=MISSING_TTL_S)
        self._waiting_since.clear()
        return EncodedBatch(b"[" + b",".join(objects) + b"]", sent, unreadable)

    def get_formats(self, topic: str) -> tuple[SerializationFormat, SerializationFormat]:
        formats = self._formats.get(topic)
        if formats is None:
            key = self._section.get_key_format(topic, self._group.key_format)
            value = self._section.get_value_format(topic, self._group.value_format)
            formats = self._formats[topic] = (
                SerializationFormat.parse(key),
                SerializationFormat.parse(value),
            )
        return formats

    def _encode_record(self, record: Record) -> bytes:
        topic, (key, value) = record.tp.topic, self.get_formats(record.tp.topic)
        framed = frame_record(record, key, value)
        shown = _build_object(
            record,
            self._encode_value(key, topic, True, framed.key),
            self._encode_value(value, topic, False, framed.value),
        )
        try:
            return orjson.dumps(shown)
        except orjson.JSONEncodeError as error:  # a TypeError, so nothing else may stand in here
            raise FormatError(f"the record cannot be written as JSON: {error}") from None

    def _encode_value(
        self, format: SerializationFormat, topic: str, is_key: bool, data: bytes | None
    ) -> Any:
        # A Fragment is written as it is. Parsed JSON would be written with other digits.
        if not data:
            return self._codecs.decode_cached(format, topic, is_key, data)
        if not format.has_schema:
            return PLAIN_CODECS[format].decode_fragment(data)
        return orjson.Fragment(self._codecs.decode_text_cached(format, data))

    def _should_wait(self, topic: str) -> bool:
        """Return whether the registry is asked again for a schema of a topic."""
        now = self._now()
        if now < self._paused_until.get(topic, 0.0):
            return False
        if now - self._waiting_since.setdefault(topic, now) < self._missing_schema_timeout_s:
            return True
        self._paused_until[topic] = now + MISSING_SCHEMA_PAUSE_S  # it was in vain
        return False

    async def _load_all_schemas(self, records: Sequence[Record]) -> None:
        payloads: defaultdict[SerializationFormat, list[bytes | None]] = defaultdict(list)
        for record in records:
            key, value = self.get_formats(record.tp.topic)
            framed = frame_record(record, key, value)
            payloads[key].append(framed.key)
            payloads[value].append(framed.value)
        for format, data in payloads.items():
            await self._codecs.load_schemas(format, records[0].tp.topic, False, data)

    async def _load_schemas(self, record: Record) -> None:
        topic, (key, value) = record.tp.topic, self.get_formats(record.tp.topic)
        record = frame_record(record, key, value)
        await self._codecs.decode(key, topic, True, record.key)
        await self._codecs.decode(value, topic, False, record.value)


def get_ids(record: Record) -> tuple[str, str]:
    """Return the correlation id, by default derived from the place, and the traceability id."""
    ids = {CORRELATION_HEADER.lower(): "", TRACEABILITY_HEADER.lower(): ""}
    for name, value in record.headers:
        if value is not None and name.lower() in ids:
            ids[name.lower()] = value.decode(errors="replace")
    correlation = ids[CORRELATION_HEADER.lower()] or str(
        uuid5(NAMESPACE_URL, f"kafka:{record.tp.topic}/{record.tp.partition}/{record.offset}")
    )
    return correlation, ids[TRACEABILITY_HEADER.lower()]


def _build_object(record: Record, key: Any, value: Any) -> dict[str, Any]:
    correlation, traceability = get_ids(record)
    return {
        "topic": record.tp.topic,
        "partition": record.tp.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": key,
        "value": value,
        "headers": _format_headers(record),
        "correlationId": correlation,
        "traceabilityId": traceability or None,
    }


def _format_headers(record: Record) -> dict[str, Any]:
    headers: dict[str, Any] = {}
    for name, value in record.headers:
        if name not in headers:
            headers[name] = bytes_to_json(value)
        elif isinstance(headers[name], list):
            headers[name].append(bytes_to_json(value))
        else:
            headers[name] = [headers[name], bytes_to_json(value)]
    return headers
