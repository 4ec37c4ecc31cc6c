"""Avro's logical types as JSON: text that people read, and back.

    decimal                      "12.50", with all digits of its scale; a number is taken, too
    uuid                         "6f1c..."
    date                         "2024-02-29"
    time-millis, -micros         "13:05:00.250"
    timestamp-millis, .., -nanos "2024-02-29T13:05:00.250Z", local ones without Z

Where Python's calendar ends (years 1 to 9999) the number is shown as Avro has it; numbers are
taken for all of them but decimals. What has more digits than the schema keeps is refused, never
rounded. (Avro specification 1.12, Logical Types.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple
from uuid import UUID

from gateway.formats.plain import describe_json_type
from gateway.formats.schema_mismatch import SchemaMismatch


class LogicalType(NamedTuple):
    """show: of what Avro has. read: what Avro has, of JSON. Raises Misfit."""

    to_json: Callable[[Any], Any]
    from_json: Callable[[Any], Any]


_PER_SECOND = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
_DIGITS = {1_000: 3, 1_000_000: 6, 1_000_000_000: 9}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = date(1970, 1, 1)
_TIME = re.compile(r"(.+T)?([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(?:[.,]([0-9]{1,9}))?(Z|[+-][0-9:]+)?")


def create_logical_type(schema: Mapping[str, Any], base: str) -> LogicalType | None:
    """None for one that is not known, or does not go with its base: it is ignored."""
    name = schema.get("logicalType")
    size = schema.get("size")
    if name == "decimal" and base in ("bytes", "fixed"):
        return _create_decimal(schema, size if base == "fixed" else None)
    if name == "uuid" and base == "string":
        return LogicalType(lambda text: text, lambda value: str(_parse_uuid(value)))
    if name == "uuid" and base == "fixed" and size == 16:
        return LogicalType(
            lambda data: str(UUID(bytes=data)), lambda value: _parse_uuid(value).bytes
        )
    if name == "date" and base == "int":
        return LogicalType(_format_date, _parse_date)
    if isinstance(name, str) and base in ("int", "long"):
        kind, _, unit = name.rpartition("-")
        if kind == "time" and (unit, base) in (("millis", "int"), ("micros", "long")):
            return _create_time(_PER_SECOND[unit])
        if kind in ("timestamp", "local-timestamp") and base == "long" and unit in _PER_SECOND:
            return _create_timestamp(_PER_SECOND[unit], "Z" if kind == "timestamp" else "")
    return None


def _create_decimal(schema: Mapping[str, Any], size: int | None) -> LogicalType | None:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision:
        return None

    def show(data: bytes) -> str:
        unscaled = int.from_bytes(data, "big", signed=True)
        digits = str(abs(unscaled)).zfill(scale + 1)
        whole, part = digits[: len(digits) - scale], digits[len(digits) - scale :]
        return f"{'-' * (unscaled < 0)}{whole}{'.' * bool(part)}{part}"

    def read(value: Any) -> bytes:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise SchemaMismatch(
                f'takes a decimal such as "12.50", not {describe_json_type(value)}'
            )
        try:
            sign, digits, exponent = Decimal(str(value)).as_tuple()
        except InvalidOperation:
            raise SchemaMismatch(f'takes a decimal such as "12.50", not {value!r:.60}') from None
        if not isinstance(exponent, int):
            raise SchemaMismatch(f"takes a decimal, not {value!r:.60}")
        text = "".join(map(str, digits)).lstrip("0")
        zeros = exponent + scale
        if text and len(text) + zeros > precision:
            raise SchemaMismatch(f"has more than {precision} digits")
        if zeros < 0 and text[zeros:].strip("0"):
            raise SchemaMismatch(f"has more than {scale} digits after the point")
        number = int((text + "0" * zeros if zeros >= 0 else text[:zeros]) or "0") if text else 0
        number = -number if sign else number
        length = (number if number >= 0 else ~number).bit_length() // 8 + 1
        if size is not None and length > size:
            raise SchemaMismatch(f"does not fit into {size} bytes")
        return number.to_bytes(size or length, "big", signed=True)

    return LogicalType(show, read)


def _parse_uuid(value: Any) -> UUID:
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError):
        shown = f"{value!r:.60}" if isinstance(value, str) else describe_json_type(value)
        raise SchemaMismatch(f"takes a UUID, not {shown}") from None


def _format_date(days: int) -> Any:
    try:
        return (_FIRST_DAY + timedelta(days)).isoformat()
    except OverflowError:
        return days


def _parse_date(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return (date.fromisoformat(value) - _FIRST_DAY).days
    except ValueError:
        raise SchemaMismatch(f"takes a date such as 2024-02-29, not {value!r:.60}") from None


def _create_time(per_second: int) -> LogicalType:
    digits = _DIGITS[per_second]

    def show(units: int) -> Any:
        if not 0 <= units < 86_400 * per_second:
            return units
        seconds, part = divmod(units, per_second)
        minutes, second = divmod(seconds, 60)
        return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}.{part:0{digits}}"

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        found = _TIME.fullmatch(value)
        try:
            if found is None or found[1] or found[4]:
                raise ValueError
            at = datetime.fromisoformat(f"1970-01-01T{found[2]}+00:00")
        except ValueError:
            raise SchemaMismatch(f"takes a time such as 13:05:00.250, not {value!r:.60}") from None
        return int((at - _EPOCH).total_seconds()) * per_second + _parse_fraction(found[3], digits)

    return LogicalType(show, read)


def _create_timestamp(per_second: int, zone: str) -> LogicalType:
    digits = _DIGITS[per_second]

    def show(units: int) -> Any:
        seconds, part = divmod(units, per_second)
        try:
            at = _EPOCH + timedelta(seconds=seconds)
        except OverflowError:
            return units
        return f"{at.isoformat()[:19]}.{part:0{digits}}{zone}"

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        found = _TIME.fullmatch(value)
        try:
            if found is None or not found[1] or bool(found[4]) != bool(zone):
                raise ValueError
            at = datetime.fromisoformat(found[1] + found[2] + (found[4] or "+00:00"))
        except ValueError:
            example = f"2024-02-29T13:05:00.250{zone}"
            raise SchemaMismatch(f"takes a time such as {example}, not {value!r:.60}") from None
        seconds = (at - _EPOCH) // timedelta(seconds=1)
        return seconds * per_second + _parse_fraction(found[3], digits)

    return LogicalType(show, read)


def _parse_fraction(text: str | None, digits: int) -> int:
    """A fraction of a second in units of so many digits."""
    text = (text or "").rstrip("0")
    if len(text) > digits:
        raise SchemaMismatch(f"has more than {digits} digits of a second")
    return int(text.ljust(digits, "0"))
