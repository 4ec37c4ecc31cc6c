"""Render records of Kafka as JSON.

Values in format json keep their text, once it is known to be JSON: parsed and written again, 1e2
would become 100.0, and 2**64 another number. A key or value that cannot be decoded in the wanted
format is rendered in base64, and the record's `error` says so: one bad record must not stop a
topic.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import orjson

from gateway.client_memory import ClientMemory, GrowingReservation, HeldPart
from gateway.core.log.record import Record
from gateway.errors import FormatError
from gateway.formats.codec import Codecs, SchemaNotLoaded, SerializationFormat, frame_record
from gateway.formats.event import bytes_to_json, json_to_bytes
from gateway.formats.plain import PLAIN_CODECS
from gateway.sidecar.lookups import Formats
from gateway.sidecar.turns import take_turns

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
Decoder: TypeAlias = Callable[[bytes], Any]

RECORD_JSON_BYTES = 500  # of a record and its members, beside key, value and headers
# Of keys and values with a schema in an answer, unless it is one record. A few bytes of Avro can
# become 256 KiB of JSON. Other formats grow little, and Kafka's bytes are limited.
MAX_RENDERED_BYTES = 16 << 20

DECODE_ERRORS = (FormatError, SchemaNotLoaded)


def text_headers(headers: Headers) -> dict[str, Any]:
    """Return headers as text by name, with a list where a name comes more than once.

    A value that is not UTF-8 becomes `{"base64": ...}`. Requests have the same form.
    """
    # Names that differ, and values that are UTF-8, are the usual case: it takes half the time.
    try:
        rendered: dict[str, Any] = {name: value.decode() for name, value in headers}  # type: ignore[union-attr]
        if len(rendered) == len(headers):
            return rendered
    except (AttributeError, UnicodeDecodeError):
        pass
    rendered = {}
    repeated: set[str] = set()
    for name, value in headers:
        text = bytes_to_json(value)
        if name not in rendered:
            rendered[name] = text
        elif name in repeated:
            rendered[name].append(text)
        else:
            repeated.add(name)
            rendered[name] = [rendered[name], text]
    return rendered


def parse_headers(headers: Mapping[str, Any]) -> list[tuple[str, bytes | None]]:
    """Return headers in the form of `text_headers` as pairs."""
    return [
        (name, json_to_bytes(value))
        for name, values in headers.items()
        for value in (values if isinstance(values, list) else (values,))
    ]


def base64_headers(headers: Headers) -> dict[str, Any]:
    rendered: dict[str, Any] = {}
    for name, value in headers:
        rendered.setdefault(name, []).append(None if value is None else encode_base64(value))
    return {name: values if len(values) > 1 else values[0] for name, values in rendered.items()}


def paired_headers(headers: Headers) -> list[dict[str, Any]]:
    """Return headers as Strimzi's bridge does: pairs in their order, values in base64."""
    return [
        {"key": name, "value": None if value is None else encode_base64(value)}
        for name, value in headers
    ]


def encode_base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode("ascii")


def hold_records(client_memory: ClientMemory, payload_sizes: Sequence[int]) -> GrowingReservation:
    """Count records while a response is put together of them; raises MemoryFull.

    Their bytes are held as records, in their JSON, and in the response. What they become by a
    schema, which may be far more, is added to the reservation.
    """
    size = 3 * sum(payload_sizes) + RECORD_JSON_BYTES * len(payload_sizes)
    return GrowingReservation(client_memory, HeldPart.RESPONSES, size)


async def render_records(
    codecs: Codecs,
    held: GrowingReservation,
    records: Sequence[Record],
    formats: Callable[[str], Formats],
    headers: Callable[[Headers], Any],
    *,
    omit_empty_headers: bool = False,
    more_members: Iterable[Mapping[str, Any]] = (),
) -> tuple[bytes, int]:
    """Return records as a JSON array, with `more_members` for each in the same order.

    Missing schemas are loaded first, which may raise RegistryUnavailable. The result is also how
    many of the records are in the array: those behind MAX_RENDERED_BYTES are left out.
    `held` is that of `hold_records`, and may raise MemoryFull.
    """
    formats_by_topic = {topic: formats(topic) for topic in {record.tp.topic for record in records}}
    framed = records
    if any(format.has_schema for pair in formats_by_topic.values() for format in pair):
        framed = [frame_record(each, *formats_by_topic[each.tp.topic]) for each in records]
    decoders = await _prepare_decoders(codecs, framed, formats_by_topic)
    rendered: list[dict[str, Any]] = []
    size = 0
    # Decoders are synchronous: awaiting once per topic instead of per record keeps this loop fast.
    async with take_turns() as turns:
        for record, framed_record in zip(records, framed, strict=True):
            if turns.is_over():
                await turns.pass_on()
            (topic, partition), offset, _, timestamp, key, value, pairs = framed_record
            read_key, read_value = decoders[topic]
            error = None
            try:
                key_json = read_key(key) if key else _render_empty(key)
                value_json = read_value(value) if value else _render_empty(value)
            except DECODE_ERRORS:
                # Large schemas of other records may have taken the place of its own in the cache.
                if any(data and codecs.find_missing_id(data) is not None for data in (key, value)):
                    await turns.wait_for(
                        _prepare_decoders(codecs, [framed_record], formats_by_topic)
                    )
                (key_json, value_json), error = _decode_with_errors(
                    record, (read_key, key), (read_value, value)
                )
            item = {
                "topic": topic,
                "key": key_json,
                "value": value_json,
                "partition": partition,
                "offset": offset,
                "timestamp": timestamp,
            }
            if pairs or not omit_empty_headers:
                item["headers"] = headers(pairs)
            if error is not None:
                item["error"] = error
            for part in (key_json, value_json):
                if type(part) is bytes:
                    size += len(part)
                    held.grow(2 * len(part))  # in the response, too
            if rendered and size > MAX_RENDERED_BYTES:
                break
            rendered.append(item)
        for item, more in zip(rendered, more_members, strict=False):
            item.update(more)
        return orjson.dumps(rendered, default=orjson.Fragment), len(rendered)


async def _prepare_decoders(
    codecs: Codecs, records: Sequence[Record], formats: Mapping[str, Formats]
) -> dict[str, tuple[Decoder, Decoder]]:
    decoders: dict[str, tuple[Decoder, Decoder]] = {}
    for topic in {record.tp.topic for record in records}:
        key_format, value_format = formats[topic]
        if key_format.has_schema or value_format.has_schema:
            topic_records = [record for record in records if record.tp.topic == topic]
            await codecs.load_schemas(
                key_format, topic, True, (record.key for record in topic_records)
            )
            await codecs.load_schemas(
                value_format, topic, False, (record.value for record in topic_records)
            )
        decoders[topic] = _get_decoder(codecs, key_format), _get_decoder(codecs, value_format)
    return decoders


def _decode_with_errors(
    record: Record, key: tuple[Decoder, bytes | None], value: tuple[Decoder, bytes | None]
) -> tuple[list[Any], str]:
    decoded: list[Any] = []
    errors: list[str] = []
    for part, (read, data), raw in (("key", key, record.key), ("value", value, record.value)):
        try:
            decoded.append(read(data) if data else _render_empty(data))
            continue
        except SchemaNotLoaded:
            reason = "its schema is unknown"
        except FormatError as exc:
            reason = str(exc)
        errors.append(f"{part}: {reason}; it is given in base64")
        decoded.append(encode_base64(raw or b""))
    return decoded, "; ".join(errors)


def _render_empty(data: bytes | None) -> str | None:
    """Render a missing key or value as null, and an empty one as "", in every format."""
    return None if data is None else ""


def _get_decoder(codecs: Codecs, format: SerializationFormat) -> Decoder:
    """Return a function that decodes bytes into a value, or by a schema into the bytes of JSON."""
    if format.has_schema:
        return lambda data: codecs.decode_text_cached(format, data)
    return PLAIN_CODECS[format].decode_fragment
