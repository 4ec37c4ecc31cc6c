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
from gateway.core.delivery.verdict import Answered, Item, Verdict
from gateway.core.log.record import Record
from gateway.errors import FormatError
from gateway.formats.codec import Codecs, Format, SchemaUnknown
from gateway.formats.event import json_of
from gateway.formats.plain import plain_value
from gateway.sidecar.http.ids import CORRELATION, TRACEABILITY


class Written(NamedTuple):
    """body: of those that are sent. unreadable: why others cannot be, by their place in the batch.

    Raises nothing: a record whose bytes are not what its format says is the record's own fault.
    """

    body: bytes
    sent: Sequence[Record]
    unreadable: Mapping[int, str]

    def judged(self, verdict: Verdict) -> Verdict:
        """On those that were sent, as one on all records: the others are failed, for good."""
        if not isinstance(verdict, Answered) or not self.unreadable:
            return verdict
        items, wrong = iter(verdict.items), self.unreadable
        return Answered(
            [
                Item(False, wrong[index], hopeless=True) if index in wrong else next(items)
                for index in range(len(self.sent) + len(wrong))
            ]
        )


class Writer:
    """Of one group."""

    def __init__(self, codecs: Codecs, section: Sidecar, group: Group) -> None:
        self._codecs = codecs
        self._section = section
        self._group = group
        self._formats: dict[str, tuple[Format, Format]] = {}

    async def write(self, records: Sequence[Record]) -> Written:
        """Raises RegistryUnavailable."""
        written: list[bytes] = []
        sent: list[Record] = []
        unreadable: dict[int, str] = {}
        for index, record in enumerate(records):
            try:
                try:
                    written.append(self._one(record))
                except SchemaUnknown:
                    await self._ask(record)
                    written.append(self._one(record))
                sent.append(record)
            except FormatError as error:
                unreadable[index] = str(error)
            except orjson.JSONEncodeError as error:
                unreadable[index] = f"the record cannot be written as JSON: {error}"
        return Written(b"[" + b",".join(written) + b"]", sent, unreadable)

    def formats(self, topic: str) -> tuple[Format, Format]:
        """Of its keys and of its values."""
        found = self._formats.get(topic)
        if found is None:
            key = self._section.key_format(topic, self._group.key_format)
            value = self._section.value_format(topic, self._group.value_format)
            found = self._formats[topic] = Format.of(key), Format.of(value)
        return found

    def _one(self, record: Record) -> bytes:
        topic, (key, value) = record.tp.topic, self.formats(record.tp.topic)
        return orjson.dumps(
            _object(
                record,
                self._shown(key, topic, True, record.key),
                self._shown(value, topic, False, record.value),
            )
        )

    def _shown(self, format: Format, topic: str, is_key: bool, data: bytes | None) -> Any:
        """JSON stays as it is written, with all digits of its numbers."""
        if not data or not (format is Format.JSON or format.has_schema):
            return self._codecs.decode_known(format, topic, is_key, data)
        if format is Format.JSON:
            plain_value(format, data)
            return orjson.Fragment(data)
        return orjson.Fragment(self._codecs.text_known(format, data))

    async def _ask(self, record: Record) -> None:
        """For the schemas of its bytes. Raises FormatError for one that is not there."""
        topic, (key, value) = record.tp.topic, self.formats(record.tp.topic)
        await self._codecs.decode(key, topic, True, record.key)
        await self._codecs.decode(value, topic, False, record.value)


def ids_of(record: Record) -> tuple[str, str]:
    """Its correlation id and its traceability id, empty where it has none."""
    found = {CORRELATION.lower(): "", TRACEABILITY.lower(): ""}
    for name, value in record.headers:
        if value is not None and name.lower() in found:
            found[name.lower()] = value.decode(errors="replace")
    made = found[CORRELATION.lower()] or str(
        uuid5(NAMESPACE_URL, f"kafka:{record.tp.topic}/{record.tp.partition}/{record.offset}")
    )
    return made, found[TRACEABILITY.lower()]


def _object(record: Record, key: Any, value: Any) -> dict[str, Any]:
    correlation, traceability = ids_of(record)
    return {
        "topic": record.tp.topic,
        "partition": record.tp.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": key,
        "value": value,
        "headers": _headers(record),
        "correlationId": correlation,
        "traceabilityId": traceability or None,
    }


def _headers(record: Record) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in record.headers:
        if name not in found:
            found[name] = json_of(value)
        elif isinstance(found[name], list):
            found[name].append(json_of(value))
        else:
            found[name] = [found[name], json_of(value)]
    return found
