"""Records of Kafka as JSON.

Values in format json are the very text that was written, once it is known to be JSON: read and
written anew, 1e2 would be 100.0 and 2**64 another number. What cannot be read in the wanted format
is told in its record, `error`, and given in base64: one bad record must not stop a topic.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import orjson

from ..core.record import Record
from ..errors import FormatError
from ..formats.codec import Codecs, Format, SchemaUnknown
from ..formats.plain import plain_value

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
Formats: TypeAlias = Callable[[str], tuple[Format, Format]]
Read: TypeAlias = Callable[[bytes], Any]


def text_headers(headers: Headers) -> dict[str, Any]:
    """By name; a list where a name comes more than once. Text, as they are produced; a value that
    is not UTF-8 is `{"base64": ...}`."""
    made: dict[str, Any] = {}
    seen: set[str] = set()
    for name, value in headers:
        shown = None if value is None else _text(value)
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
        made.setdefault(name, []).append(None if value is None else base64(value))
    return {name: some if len(some) > 1 else some[0] for name, some in made.items()}


def paired_headers(headers: Headers) -> list[dict[str, Any]]:
    """As Strimzi's bridge has them: pairs in their order, values in base64."""
    return [
        {"key": name, "value": None if value is None else base64(value)} for name, value in headers
    ]


def base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode("ascii")


def _text(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64(value)}


async def shown(
    codecs: Codecs,
    records: Sequence[Record],
    formats: Formats,
    headers: Callable[[Headers], Any],
    *,
    bare: bool = False,
) -> bytes:
    """As an array. formats: of a topic's keys and values. bare: without headers where there are
    none. Raises RegistryUnavailable."""
    readers: dict[str, tuple[Read, Read]] = {}
    for topic in {record.tp.topic for record in records}:
        of_keys, of_values = formats(topic)
        if of_keys.has_schema or of_values.has_schema:
            some = [record for record in records if record.tp.topic == topic]
            await codecs.learn(of_keys, topic, True, (record.key for record in some))
            await codecs.learn(of_values, topic, False, (record.value for record in some))
        readers[topic] = _reader(codecs, of_keys), _reader(codecs, of_values)
    made: list[dict[str, Any]] = []
    for (topic, partition), offset, _, timestamp, key, value, pairs in records:
        errors: list[str] = []
        read_key, read_value = readers[topic]
        one = {
            "topic": topic,
            "key": _read(read_key, key, "key", errors) if key else _none(key),
            "value": _read(read_value, value, "value", errors) if value else _none(value),
            "partition": partition,
            "offset": offset,
            "timestamp": timestamp,
        }
        if pairs or not bare:
            one["headers"] = headers(pairs)
        if errors:
            one["error"] = "; ".join(errors)
        made.append(one)
    return orjson.dumps(made)


def _none(data: bytes | None) -> str | None:
    return None if data is None else ""


def _read(read: Read, data: bytes, what: str, errors: list[str]) -> Any:
    try:
        return read(data)
    except FormatError as exc:
        errors.append(f"{what}: {exc}; it is given in base64")
    except SchemaUnknown:
        errors.append(f"{what}: its schema is unknown; it is given in base64")
    return base64(data)


def _reader(codecs: Codecs, format: Format) -> Read:
    """Raises FormatError and SchemaUnknown."""
    if format is Format.BINARY:
        return base64
    if format is Format.JSON:
        return _json
    if format.has_schema:
        return lambda data: orjson.Fragment(codecs.text_known(format, data))
    return partial(plain_value, format)


def _json(data: bytes) -> orjson.Fragment:
    plain_value(Format.JSON, data)
    return orjson.Fragment(data)
