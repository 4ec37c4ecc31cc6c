"""Records of Kafka as JSON.

Values in format json are the very text that was written, once it is known to be JSON: read and
written anew, 1e2 would be 100.0 and 2**64 another number. What cannot be read in the wanted format
is told in its record, `error`, and given in base64: one bad record must not stop a topic.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import orjson

from gateway.core.log.record import Record
from gateway.errors import FormatError
from gateway.formats.codec import Codecs, SchemaNotLoaded, SerializationFormat
from gateway.formats.plain import decode_plain

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
Formats: TypeAlias = Callable[[str], tuple[SerializationFormat, SerializationFormat]]
Decoder: TypeAlias = Callable[[bytes], Any]

DECODE_ERRORS = (FormatError, SchemaNotLoaded, UnicodeDecodeError)


def text_headers(headers: Headers) -> dict[str, Any]:
    """By name; a list where a name comes more than once. Text, as they are produced; a value that
    is not UTF-8 is `{"base64": ...}`."""
    try:  # half the time, for what is there nearly always: names that differ, and text
        made: dict[str, Any] = {name: value.decode() for name, value in headers}  # type: ignore[union-attr]
        if len(made) == len(headers):
            return made
    except (AttributeError, UnicodeDecodeError):
        pass
    made = {}
    seen: set[str] = set()
    for name, value in headers:
        shown = None if value is None else _decode_text_or_base64(value)
        if name not in made:
            made[name] = shown
        elif name in seen:
            made[name].append(shown)
        else:
            seen.add(name)
            made[name] = [made[name], shown]
    return made


def base64_headers(headers: Headers) -> dict[str, Any]:
    """As `text_headers`, every value in base64."""
    made: dict[str, Any] = {}
    for name, value in headers:
        made.setdefault(name, []).append(None if value is None else encode_base64(value))
    return {name: some if len(some) > 1 else some[0] for name, some in made.items()}


def paired_headers(headers: Headers) -> list[dict[str, Any]]:
    """As Strimzi's bridge has them: pairs in their order, values in base64."""
    return [
        {"key": name, "value": None if value is None else encode_base64(value)}
        for name, value in headers
    ]


def encode_base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode("ascii")


def _decode_text_or_base64(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": encode_base64(value)}


async def render_records(
    codecs: Codecs,
    records: Sequence[Record],
    formats: Formats,
    headers: Callable[[Headers], Any],
    *,
    omit_empty_headers: bool = False,
) -> bytes:
    """As an array. formats: of a topic's keys and values. bare: without headers where there are
    none. Raises RegistryUnavailable."""
    readers: dict[str, tuple[Decoder, Decoder]] = {}
    for topic in {record.tp.topic for record in records}:
        of_keys, of_values = formats(topic)
        if of_keys.has_schema or of_values.has_schema:
            some = [record for record in records if record.tp.topic == topic]
            await codecs.load_schemas(of_keys, topic, True, (record.key for record in some))
            await codecs.load_schemas(of_values, topic, False, (record.value for record in some))
        readers[topic] = _get_decoder(codecs, of_keys), _get_decoder(codecs, of_values)
    made: list[dict[str, Any]] = []
    for (topic, partition), offset, _, timestamp, key, value, pairs in records:
        read_key, read_value = readers[topic]
        error = None
        try:
            shown_key = read_key(key) if key else _render_empty(key)
            shown_value = read_value(value) if value else _render_empty(value)
        except DECODE_ERRORS:
            (shown_key, shown_value), error = _decode_with_errors(read_key, key, read_value, value)
        one = {
            "topic": topic,
            "key": shown_key,
            "value": shown_value,
            "partition": partition,
            "offset": offset,
            "timestamp": timestamp,
        }
        if pairs or not omit_empty_headers:
            one["headers"] = headers(pairs)
        if error is not None:
            one["error"] = error
        made.append(one)
    return orjson.dumps(made)


def _decode_with_errors(
    read_key: Decoder, key: bytes | None, read_value: Decoder, value: bytes | None
) -> tuple[list[Any], str]:
    """Key and value as far as they can be read, and what is wrong with them."""
    found: list[Any] = []
    errors: list[str] = []
    for what, read, data in (("key", read_key, key), ("value", read_value, value)):
        try:
            found.append(read(data) if data else _render_empty(data))
            continue
        except SchemaNotLoaded:
            why = "its schema is unknown"
        except UnicodeDecodeError as exc:
            why = f"the bytes are not UTF-8 text: {exc}; read them as binary"
        except FormatError as exc:
            why = str(exc)
        errors.append(f"{what}: {why}; it is given in base64")
        found.append(encode_base64(data or b""))
    return found, "; ".join(errors)


def _render_empty(data: bytes | None) -> str | None:
    return None if data is None else ""


def _get_decoder(codecs: Codecs, format: SerializationFormat) -> Decoder:
    """Raises what is UNREADABLE."""
    if format is SerializationFormat.BINARY:
        return encode_base64
    if format is SerializationFormat.JSON:
        return _decode_json
    if format.has_schema:
        return lambda data: orjson.Fragment(codecs.decode_text_cached(format, data))
    return _decode_text


def _decode_text(data: bytes) -> str:
    """Raises UnicodeDecodeError: `plain_value` would take three times as long."""
    return data.decode()


def _decode_json(data: bytes) -> orjson.Fragment:
    decode_plain(SerializationFormat.JSON, data)
    return orjson.Fragment(data)
