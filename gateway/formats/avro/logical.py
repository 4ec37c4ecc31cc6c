"""Convert between Avro's logical types and JSON text that people can read.

    decimal                      "12.50", with all digits of its scale; a number is accepted, too
    uuid                         "6f1c..."
    date                         "2024-02-29"
    time-millis, -micros         "13:05:00.250"
    timestamp-millis, .., -nanos "2024-02-29T13:05:00.250Z", local ones without Z

Outside of Python's calendar (years 1 to 9999) the number is shown as Avro has it. A number is
accepted for dates and times, too, and then is Avro's own. A value with more digits than the schema
keeps is refused and never rounded. (Avro specification 1.12, Logical Types.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple
from uuid import UUID

from gateway.formats.budget import Budget
from gateway.formats.plain import describe_json_type
from gateway.formats.serialization import SchemaMismatch


class LogicalType(NamedTuple):
    """The two conversions of a logical type; `from_json` raises SchemaMismatch."""

    to_json: Callable[[Any], Any]
    from_json: Callable[[Any], Any]


MAX_DECIMAL_DIGITS = 4300
"""Python converts no more digits to an integer or back, since that takes quadratic time."""

_DECIMAL_END = 10**MAX_DECIMAL_DIGITS
_PER_SECOND = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
_DIGITS = {1_000: 3, 1_000_000: 6, 1_000_000_000: 9}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = date(1970, 1, 1)
# Python itself also reads 1_0, full-width digits and the dates 20240229 and 2024-W09-4, which other
# programs that validate the same records refuse.
_DECIMAL = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
# Date with T, time, fraction, zone.
_TIME = re.compile(
    rf"({_DATE}T)?([0-9]{{2}}:[0-9]{{2}}(?::[0-9]{{2}})?)(?:[.,]([0-9]{{1,9}}))?(Z|[+-][0-9:]+)?"
)


def create_logical_type(schema: Mapping[str, Any], base: str, budget: Budget) -> LogicalType | None:
    """Create the logical type of a schema; raises ValueError for a decimal with too large a scale.

    An unknown one, and one that does not fit its base, is ignored: None.
    """
    name = schema.get("logicalType")
    size = schema.get("size")
    if name == "decimal" and base in ("bytes", "fixed"):
        return _create_decimal(schema, size if base == "fixed" else None, budget)
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


def _create_decimal(
    schema: Mapping[str, Any], size: int | None, budget: Budget
) -> LogicalType | None:
    """Create a decimal; `size` is that of its fixed in bytes, None for bytes."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int:
        return None
    if precision < 1 or not 0 <= scale <= precision:
        return None
    if scale > MAX_DECIMAL_DIGITS:
        raise ValueError(f"a decimal has a scale of more than {MAX_DECIMAL_DIGITS}")
    max_digits = min(precision, MAX_DECIMAL_DIGITS)

    def to_json(data: bytes) -> str:
        unscaled = int.from_bytes(data, "big", signed=True)
        if abs(unscaled) >= _DECIMAL_END:
            raise ValueError(f"a decimal has more than {MAX_DECIMAL_DIGITS} digits")
        digits = str(abs(unscaled)).zfill(scale + 1)
        whole, part = digits[: len(digits) - scale], digits[len(digits) - scale :]
        return f"{'-' * (unscaled < 0)}{whole}{'.' * bool(part)}{part}"

    def from_json(value: Any) -> bytes:
        if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
            raise SchemaMismatch(
                f'takes a decimal such as "12.50", not {describe_json_type(value)}'
            )
        if isinstance(value, int) and abs(value) >= _DECIMAL_END:
            raise SchemaMismatch(f"has more than {max_digits} digits")
        try:
            if not _DECIMAL.fullmatch(str(value)):
                raise ValueError
            sign, digits, exponent = Decimal(str(value)).as_tuple()
        except (ValueError, InvalidOperation):
            raise SchemaMismatch(f'takes a decimal such as "12.50", not {value!r:.60}') from None
        assert isinstance(exponent, int)
        text = "".join(map(str, digits)).lstrip("0")
        # How many zeros to append for the unscaled number. Negative: so many digits are behind
        # those that the scale keeps, and must be zeros.
        zeros = exponent + scale
        if text and len(text) + zeros > max_digits:
            raise SchemaMismatch(f"has more than {max_digits} digits")
        if zeros < 0 and text[zeros:].strip("0"):
            raise SchemaMismatch(f"has more than {scale} digits after the point")
        if text and zeros > 0:
            budget.spend(zeros // 2)  # a byte has more than two digits
        number = int((text + "0" * zeros if zeros >= 0 else text[:zeros]) or "0") if text else 0
        number = -number if sign else number
        # Two's complement, with a bit for the sign.
        length = (number if number >= 0 else ~number).bit_length() // 8 + 1
        if size is not None and length > size:
            raise SchemaMismatch(f"does not fit into {size} bytes")
        return number.to_bytes(size or length, "big", signed=True)

    return LogicalType(to_json, from_json)


def _parse_uuid(value: Any) -> UUID:
    if isinstance(value, str) and _UUID.fullmatch(value):
        return UUID(value)
    shown = f"{value!r:.60}" if isinstance(value, str) else describe_json_type(value)
    raise SchemaMismatch(f"takes a UUID of 32 hex digits and dashes, not {shown}")


def _format_date(days: int) -> Any:
    try:
        return (_FIRST_DAY + timedelta(days)).isoformat()
    except OverflowError:
        return days


def _parse_date(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        if not re.fullmatch(_DATE, value):
            raise ValueError
        return (date.fromisoformat(value) - _FIRST_DAY).days
    except ValueError:
        raise SchemaMismatch(f"takes a date such as 2024-02-29, not {value!r:.60}") from None


def _create_time(per_second: int) -> LogicalType:
    digits = _DIGITS[per_second]

    def to_json(units: int) -> Any:
        if not 0 <= units < 86_400 * per_second:
            return units
        seconds, part = divmod(units, per_second)
        minutes, second = divmod(seconds, 60)
        return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}.{part:0{digits}}"

    def from_json(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        match = _TIME.fullmatch(value)
        try:
            if match is None or match[1] or match[4]:
                raise ValueError
            time = datetime.fromisoformat(f"1970-01-01T{match[2]}+00:00")
        except ValueError:
            raise SchemaMismatch(f"takes a time such as 13:05:00.250, not {value!r:.60}") from None
        seconds = int((time - _EPOCH).total_seconds())
        return seconds * per_second + _parse_fraction(match[3], digits)

    return LogicalType(to_json, from_json)


def _create_timestamp(per_second: int, zone: str) -> LogicalType:
    """Create a timestamp; `zone` is "Z", or empty for a local one."""
    digits = _DIGITS[per_second]

    def to_json(units: int) -> Any:
        seconds, part = divmod(units, per_second)
        try:
            time = _EPOCH + timedelta(seconds=seconds)
        except OverflowError:
            return units
        return f"{time.isoformat()[:19]}.{part:0{digits}}{zone}"

    def from_json(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        match = _TIME.fullmatch(value)
        try:
            if match is None or not match[1] or bool(match[4]) != bool(zone):
                raise ValueError
            time = datetime.fromisoformat(match[1] + match[2] + (match[4] or "+00:00"))
        except ValueError:
            example = f"2024-02-29T13:05:00.250{zone}"
            raise SchemaMismatch(f"takes a time such as {example}, not {value!r:.60}") from None
        seconds = (time - _EPOCH) // timedelta(seconds=1)
        return seconds * per_second + _parse_fraction(match[3], digits)

    return LogicalType(to_json, from_json)


def _parse_fraction(text: str | None, digits: int) -> int:
    text = (text or "").rstrip("0")
    if len(text) > digits:
        raise SchemaMismatch(f"has more than {digits} digits of a second")
    return int(text.ljust(digits, "0"))
