"""Records of Kafka as JSON.

Values in format json are the very text that was written, once it is known to be JSON: read and
written anew, 1e2 would be 100.0 and 2**64 another number. What cannot be read in the wanted format
is told in its record, `error`, and given in base64: one bad record must not stop a topic.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import orjson

from ..core.record import Record
from ..errors import FormatError
from ..formats.codec import Codecs, Format, SchemaUnknown
from ..formats.plain import plain_value

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
Formats: TypeAlias = Callable[[str], tuple[Format, Format]]


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
    known: dict[str, tuple[Format, Format]] = {}
    for record in records:
        if record.tp.topic not in known:
            known[record.tp.topic] = formats(record.tp.topic)
    for topic, (of_keys, of_values) in known.items():
        if of_keys.has_schema or of_values.has_schema:
            some = [record for record in records if record.tp.topic == topic]
            await codecs.learn(of_keys, topic, True, (record.key for record in some))
            await codecs.learn(of_values, topic, False, (record.value for record in some))
    return orjson.dumps(
        [_one(codecs, each, *known[each.tp.topic], headers, bare) for each in records]
    )


def _one(
    codecs: Codecs,
    record: Record,
    of_keys: Format,
    of_values: Format,
    headers: Callable[[Headers], Any],
    bare: bool,
) -> dict[str, Any]:
    errors: list[str] = []
    topic, partition = record.tp
    made = {
        "topic": topic,
        "key": _read(codecs, of_keys, topic, True, record.key, errors),
        "value": _read(codecs, of_values, topic, False, record.value, errors),
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    if record.headers or not bare:
        made["headers"] = headers(record.headers)
    if errors:
        made["error"] = "; ".join(errors)
    return made


def _read(
    codecs: Codecs, format: Format, topic: str, is_key: bool, data: bytes | None, errors: list[str]
) -> Any:
    if not data:
        return None if data is None else ""
    if format is Format.BINARY:
        return base64(data)
    try:
        if format is Format.JSON:
            plain_value(format, data)
            return orjson.Fragment(data)
        if format.has_schema:
            return orjson.Fragment(codecs.text_known(format, data))
        return codecs.decode_known(format, topic, is_key, data)
    except FormatError as exc:
        errors.append(f"{'key' if is_key else 'value'}: {exc}; it is given in base64")
    except SchemaUnknown:
        errors.append(f"{'key' if is_key else 'value'}: its schema is unknown; it is in base64")
    return base64(data)


def size_of(records: Iterable[Record]) -> int:
    """Bytes of keys and values."""
    return sum(len(each.key or b"") + len(each.value or b"") for each in records)
