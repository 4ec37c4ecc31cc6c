"""A batch as the back end gets it: a JSON array, an object for each record.

`{"topic", "partition", "offset", "timestamp", "key", "value", "headers", "correlationId",
"traceabilityId"}`. timestamp in milliseconds. headers: text by name, a list where a name comes more
than once, `{"base64": ...}` for bytes that are no UTF-8. A record that brings no correlation id has
one made of its place, the same whenever it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import NAMESPACE_URL, uuid5

import orjson

from gateway.config.sections.sidecar import Group, Sidecar
from gateway.core.delivery.verdict import BatchResults, RecordResult, Verdict
from gateway.core.log.record import Record
from gateway.errors import FormatError
from gateway.formats.codec import Codecs, SchemaNotLoaded, SerializationFormat
from gateway.formats.event import bytes_to_json
from gateway.formats.plain import decode_plain
from gateway.sidecar.http.ids import CORRELATION_HEADER, TRACEABILITY_HEADER


class EncodedBatch(NamedTuple):
    """body: of those that are sent. unreadable: why others cannot be, by their place in the batch.

    Raises nothing: a record whose bytes are not what its format says is the record's own fault.
    """

    body: bytes
    sent: Sequence[Record]
    unreadable: Mapping[int, str]

    def complete_verdict(self, verdict: Verdict) -> Verdict:
        """On those that were sent, as one on all records: the others are failed, for good."""
        if not isinstance(verdict, BatchResults) or not self.unreadable:
            return verdict
        items, wrong = iter(verdict.results), self.unreadable
        return BatchResults(
            [
                RecordResult(False, wrong[index], is_permanent=True)
                if index in wrong
                else next(items)
                for index in range(len(self.sent) + len(wrong))
            ]
        )


class BatchEncoder:
    """Of one group."""

    def __init__(self, codecs: Codecs, section: Sidecar, group: Group) -> None:
        self._codecs = codecs
        self._section = section
        self._group = group
        self._formats: dict[str, tuple[SerializationFormat, SerializationFormat]] = {}

    async def encode(self, records: Sequence[Record]) -> EncodedBatch:
        """Raises RegistryUnavailable."""
        written: list[bytes] = []
        sent: list[Record] = []
        unreadable: dict[int, str] = {}
        for index, record in enumerate(records):
            try:
                try:
                    written.append(self._encode_record(record))
                except SchemaNotLoaded:
                    await self._load_schemas(record)
                    written.append(self._encode_record(record))
                sent.append(record)
            except FormatError as error:
                unreadable[index] = str(error)
            except orjson.JSONEncodeError as error:
                unreadable[index] = f"the record cannot be written as JSON: {error}"
        return EncodedBatch(b"[" + b",".join(written) + b"]", sent, unreadable)

    def get_formats(self, topic: str) -> tuple[SerializationFormat, SerializationFormat]:
        """Of its keys and of its values."""
        found = self._formats.get(topic)
        if found is None:
            key = self._section.get_key_format(topic, self._group.key_format)
            value = self._section.get_value_format(topic, self._group.value_format)
            found = self._formats[topic] = (
                SerializationFormat.parse(key),
                SerializationFormat.parse(value),
            )
        return found

    def _encode_record(self, record: Record) -> bytes:
        topic, (key, value) = record.tp.topic, self.get_formats(record.tp.topic)
        return orjson.dumps(
            _build_object(
                record,
                self._encode_value(key, topic, True, record.key),
                self._encode_value(value, topic, False, record.value),
            )
        )

    def _encode_value(
        self, format: SerializationFormat, topic: str, is_key: bool, data: bytes | None
    ) -> Any:
        """JSON stays as it is written, with all digits of its numbers."""
        if not data or not (format is SerializationFormat.JSON or format.has_schema):
            return self._codecs.decode_cached(format, topic, is_key, data)
        if format is SerializationFormat.JSON:
            decode_plain(format, data)
            return orjson.Fragment(data)
        return orjson.Fragment(self._codecs.decode_text_cached(format, data))

    async def _load_schemas(self, record: Record) -> None:
        """For the schemas of its bytes. Raises FormatError for one that is not there."""
        topic, (key, value) = record.tp.topic, self.get_formats(record.tp.topic)
        await self._codecs.decode(key, topic, True, record.key)
        await self._codecs.decode(value, topic, False, record.value)


def get_ids(record: Record) -> tuple[str, str]:
    """Its correlation id and its traceability id, empty where it has none."""
    found = {CORRELATION_HEADER.lower(): "", TRACEABILITY_HEADER.lower(): ""}
    for name, value in record.headers:
        if value is not None and name.lower() in found:
            found[name.lower()] = value.decode(errors="replace")
    made = found[CORRELATION_HEADER.lower()] or str(
        uuid5(NAMESPACE_URL, f"kafka:{record.tp.topic}/{record.tp.partition}/{record.offset}")
    )
    return made, found[TRACEABILITY_HEADER.lower()]


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
    found: dict[str, Any] = {}
    for name, value in record.headers:
        if name not in found:
            found[name] = bytes_to_json(value)
        elif isinstance(found[name], list):
            found[name].append(bytes_to_json(value))
        else:
            found[name] = [found[name], bytes_to_json(value)]
    return found
