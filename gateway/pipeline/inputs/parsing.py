"""JSON text as typed columns, read strictly, by one expression of Spark.

Spark's `from_json` is lenient: it takes the first value of a text and ignores what follows, takes
single quotes, lets numbers overflow (200 as a tinyint is -56, 1e39 as a float is Infinity, seconds
beyond 2^63 microseconds wrap), and hands on times that neither Python nor ISO 8601 with four digits
of a year can express. What is done about it:

- The text is read as a field of an object of ours, `{"_value": <text>, "_end": true}`: whatever
  follows the value makes that object invalid, or hides its end.
- What overflows is read with a wider type, or held against the range of its type afterwards.
- Times are of the years 1 to 9999.
- A text with half of a surrogate pair (`\\ud800`, RFC 8259 8.2) is refused unread: Spark would read
  a question mark in its place.

A decimal with a long exponent is refused unread: Spark writes out all digits of it, which took 45 s
for `1e10000000` (two cores), and is quadratic in the exponent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from .types import MILLIS, spark

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

FIRST_MILLIS, LAST_MILLIS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999 in milliseconds since 1970."""

_VALUE, _END, _CORRUPT = "_value", "_end", "_corrupt_record"
_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",
}
_WITHIN = r"\s*[\[{](?:[^\]]*[\[,:])?"
_HALVES = ("\\ud", "\\uD")  # how a text begins half of a surrogate pair, or a whole one
_ESCAPED = r"(?<!\\)((?:\\\\)*+)\\u"  # not behind another backslash
_PAIR = rf"{_ESCAPED}[dD][89abAB][0-9a-fA-F]{{2}}\\u[dD][c-fC-F][0-9a-fA-F]{{2}}"
_HALF = rf"{_ESCAPED}[dD][89a-fA-F]"
_EXPONENT = r'\s*"?-?[0-9.]+[eE][+-]?[0-9]{4,}'


def parse(text: Column, fields: Mapping[str, str], *, finite: bool = True) -> Column:
    """Return what the other functions of this module take: one struct, null where `text` is.

    Args:
        text: Of one JSON object in each row.
        fields: The types of its fields, as the settings write them.
        finite: False where "NaN" and "Infinity" stand for numbers, as in the text of Avro's.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import BooleanType, StringType, StructField, StructType

    kinds = {name: _declared(kind) for name, kind in fields.items()}
    value = StructType([StructField(name, _read_as(kind)) for name, kind in kinds.items()])
    whole = StructType([
        StructField(_VALUE, value),
        StructField(_END, BooleanType()),
        StructField(_CORRUPT, StringType()),
    ])  # fmt: skip
    # from_json would replace what is no UTF-8
    readable = F.is_valid_utf8(text) & ~has_half_surrogates(text)
    if pattern := _long_exponents(value):
        readable = readable & ~text.rlike(pattern)
    strict = F.when(readable, text).when(text.isNotNull(), F.lit(""))
    framed = F.concat(F.lit(f'{{"{_VALUE}":'), strict, F.lit(f',"{_END}":true}}'))
    return F.from_json(framed, whole, {**_OPTIONS, "allowNonNumericNumbers": str(not finite)})


def has_half_surrogates(text: Column) -> Column:
    """Return whether a JSON text has half of a surrogate pair without the other."""
    from pyspark.sql import functions as F

    suspect = reduce(or_, (F.contains(text, F.lit(each)) for each in _HALVES))
    without_pairs = F.regexp_replace(text, _PAIR, "$1-")
    return F.when(suspect, without_pairs.rlike(_HALF)).otherwise(F.lit(False))


def is_whole(parsed: Column) -> Column:
    """Return whether a text that is not null was one JSON value of the fields' types."""
    from pyspark.sql import functions as F

    read = parsed[_VALUE].isNotNull() & parsed[_CORRUPT].isNull()
    return F.coalesce(read & parsed[_END], F.lit(False))


def out_of_range(
    parsed: Column, text: Column, name: str, kind: str, *, finite: bool = True
) -> Column | None:
    """Return whether a field has a value that its type cannot express; None if it cannot have one.

    Args:
        parsed: What `parse` returned.
        text: What was parsed.
        name: The field.
        kind: Its type, as the settings write it.
        finite: As of `parse`.
    """
    from pyspark.sql import functions as F

    value = parsed[_VALUE][name]
    if _is_millis(kind):
        return ~value.between(FIRST_MILLIS, LAST_MILLIS)
    declared = _declared(kind)
    wrong = _beyond(value, declared, finite)
    if declared.typeName() == "timestamp":
        # Seconds as a number wrap, and may come to lie in the range. Only a text that looks like
        # that is read again.
        suspect = text.rlike(rf'"{re.escape(name)}"\s*:\s*-?[0-9]{{13}}')
        again = F.get_json_object(text, f"$.{name}")
        assert wrong is not None
        wrong = wrong | (suspect & again.rlike("^-?[0-9]{13,}$"))
    return wrong


def column_of(parsed: Column, name: str, kind: str) -> Column:
    """Return the value of a field in its type; null where it is out of range.

    It never fails: Spark may evaluate it for rows that a filter takes out.
    """
    from pyspark.sql import functions as F

    value = parsed[_VALUE][name]
    if _is_millis(kind):
        inside = value.between(FIRST_MILLIS, LAST_MILLIS)
        return F.when(inside, F.timestamp_millis(value))
    declared = _declared(kind)
    return value if _read_as(declared) == declared else value.try_cast(declared)


def column_within(parsed: Column, text: Column, name: str, kind: str) -> Column:
    """Return the value of a field; null where it is out of range, or the text is not one value."""
    from pyspark.sql import functions as F

    wrong = out_of_range(parsed, text, name, kind)
    allowed = parsed[_END] if wrong is None else parsed[_END] & F.coalesce(~wrong, F.lit(True))
    return F.when(allowed, column_of(parsed, name, kind))


def outside_years(time: Column) -> Column:
    """Return whether a timestamp is outside of the years 1 to 9999."""
    return _outside(time, "TIMESTAMP", "Z")


def _is_millis(kind: str) -> bool:
    return kind.strip().lower() == MILLIS


def _declared(kind: str) -> DataType:
    from pyspark.sql.types import DataType

    return DataType.fromDDL(spark(kind))


def _read_as(kind: DataType) -> DataType:
    """Return the type that JSON is read with: Spark reads 128 to 255 as negative bytes."""
    from pyspark.sql import types as T

    match kind:
        case T.ByteType():
            return T.ShortType()
        case T.ArrayType():
            return T.ArrayType(_read_as(kind.elementType))
        case T.MapType():
            return T.MapType(kind.keyType, _read_as(kind.valueType))
        case T.StructType():
            return T.StructType([T.StructField(f.name, _read_as(f.dataType)) for f in kind.fields])
    return kind


def _beyond(value: Column, kind: DataType, finite: bool) -> Column | None:
    """Return whether a value, or one within it, is out of range; None if it cannot be."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    match kind:
        case T.ByteType():
            return ~value.between(-128, 127)
        case T.FloatType() | T.DoubleType():
            return F.abs(value) == F.lit(float("inf")) if finite else None
        case T.TimestampType():
            return outside_years(value)
        case T.TimestampNTZType():
            return _outside(value, "TIMESTAMP_NTZ")
        case T.DateType():
            first, last = F.expr("DATE'0001-01-01'"), F.expr("DATE'9999-12-31'")
            return ~value.between(first, last)
        case T.ArrayType():
            return _any_beyond(value, kind.elementType, finite)
        case T.MapType():
            return _any_beyond(F.map_values(value), kind.valueType, finite)
        case T.StructType():
            parts = (_beyond(value[each.name], each.dataType, finite) for each in kind.fields)
            found = [each for each in parts if each is not None]
            return reduce(or_, found) if found else None
    return None


def _any_beyond(values: Column, kind: DataType, finite: bool) -> Column | None:
    from pyspark.sql import functions as F

    if _beyond(F.lit(None), kind, finite) is None:
        return None

    def beyond(value: Column) -> Column:
        found = _beyond(value, kind, finite)
        assert found is not None
        return found

    return F.exists(values, beyond)


def _outside(time: Column, kind: str, zone: str = "") -> Column:
    from pyspark.sql import functions as F

    first = F.expr(f"{kind}'0001-01-01T00:00:00{zone}'")
    last = F.expr(f"{kind}'9999-12-31T23:59:59.999999{zone}'")
    return ~time.between(first, last)


def _long_exponents(kind: DataType) -> str:
    """Return a pattern of texts that have decimals with exponents of four digits or more."""
    places = {rf'"{re.escape(name)}"\s*:{rest}' for name, rest in _decimals(kind, "", "")}
    return f"(?:{'|'.join(sorted(places))}){_EXPONENT}" if places else ""


def _decimals(kind: DataType, name: str, rest: str) -> Iterator[tuple[str, str]]:
    """Yield the names of fields that are decimals or hold them, and what may stand between the two.

    Args:
        kind: Of the field.
        name: Of the field.
        rest: A pattern of what stands between its name and its value.
    """
    from pyspark.sql import types as T

    match kind:
        case T.DecimalType():
            yield name, rest
        case T.ArrayType():
            yield from _decimals(kind.elementType, name, _WITHIN)
        case T.MapType():
            yield from _decimals(kind.valueType, name, _WITHIN)
        case T.StructType():
            for each in kind.fields:
                yield from _decimals(each.dataType, each.name, "")
