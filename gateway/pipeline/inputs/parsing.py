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

from .types import TIMESTAMP_MS, get_json_type

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

YEAR_1_START_MS, YEAR_9999_END_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999 in milliseconds since 1970."""

_VALUE_FIELD, _END_FIELD, _CORRUPT_FIELD = "_value", "_end", "_corrupt_record"
_JSON_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT_FIELD,
    "allowSingleQuotes": "false",
}
_NESTED_PATTERN = r"\s*[\[{](?:[^\]]*[\[,:])?"
_SURROGATE_PREFIXES = ("\\ud", "\\uD")  # how a text begins half of a surrogate pair, or a whole one
_ESCAPE_PATTERN = r"(?<!\\)((?:\\\\)*+)\\u"  # not behind another backslash
_SURROGATE_PAIR_PATTERN = (
    rf"{_ESCAPE_PATTERN}[dD][89abAB][0-9a-fA-F]{{2}}\\u[dD][c-fC-F][0-9a-fA-F]{{2}}"
)
_HALF_SURROGATE_PATTERN = rf"{_ESCAPE_PATTERN}[dD][89a-fA-F]"
_LONG_EXPONENT_PATTERN = r'\s*"?-?[0-9.]+[eE][+-]?[0-9]{4,}'


def parse_json(text: Column, fields: Mapping[str, str], *, require_finite: bool = True) -> Column:
    """Return what the other functions of this module take: one struct, null where `text` is.

    Args:
        text: Of one JSON object in each row.
        fields: The types of its fields, as the settings write them.
        finite: False where "NaN" and "Infinity" stand for numbers, as in the text of Avro's.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import BooleanType, StringType, StructField, StructType

    kinds = {name: _parse_type(kind) for name, kind in fields.items()}
    value = StructType([StructField(name, _widen_type(kind)) for name, kind in kinds.items()])
    whole = StructType([
        StructField(_VALUE_FIELD, value),
        StructField(_END_FIELD, BooleanType()),
        StructField(_CORRUPT_FIELD, StringType()),
    ])  # fmt: skip
    # from_json would replace what is no UTF-8
    readable = F.is_valid_utf8(text) & ~has_half_surrogates(text)
    if pattern := _build_exponent_pattern(value):
        readable = readable & ~text.rlike(pattern)
    strict = F.when(readable, text).when(text.isNotNull(), F.lit(""))
    framed = F.concat(F.lit(f'{{"{_VALUE_FIELD}":'), strict, F.lit(f',"{_END_FIELD}":true}}'))
    return F.from_json(
        framed, whole, {**_JSON_OPTIONS, "allowNonNumericNumbers": str(not require_finite)}
    )


def has_half_surrogates(text: Column) -> Column:
    """Return whether a JSON text has half of a surrogate pair without the other."""
    from pyspark.sql import functions as F

    suspect = reduce(or_, (F.contains(text, F.lit(each)) for each in _SURROGATE_PREFIXES))
    without_pairs = F.regexp_replace(text, _SURROGATE_PAIR_PATTERN, "$1-")
    return F.when(suspect, without_pairs.rlike(_HALF_SURROGATE_PATTERN)).otherwise(F.lit(False))


def is_whole(parsed: Column) -> Column:
    """Return whether a text that is not null was one JSON value of the fields' types."""
    from pyspark.sql import functions as F

    read = parsed[_VALUE_FIELD].isNotNull() & parsed[_CORRUPT_FIELD].isNull()
    return F.coalesce(read & parsed[_END_FIELD], F.lit(False))


def is_out_of_range(
    parsed: Column, text: Column, name: str, type_text: str, *, require_finite: bool = True
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

    value = parsed[_VALUE_FIELD][name]
    if _is_millis(type_text):
        return ~value.between(YEAR_1_START_MS, YEAR_9999_END_MS)
    declared = _parse_type(type_text)
    wrong = _is_value_out_of_range(value, declared, require_finite)
    if declared.typeName() == "timestamp":
        # Seconds as a number wrap, and may come to lie in the range. Only a text that looks like
        # that is read again.
        suspect = text.rlike(rf'"{re.escape(name)}"\s*:\s*-?[0-9]{{13}}')
        again = F.get_json_object(text, f"$.{name}")
        assert wrong is not None
        wrong = wrong | (suspect & again.rlike("^-?[0-9]{13,}$"))
    return wrong


def get_column(parsed: Column, name: str, type_text: str) -> Column:
    """Return the value of a field in its type; null where it is out of range.

    It never fails: Spark may evaluate it for rows that a filter takes out.
    """
    from pyspark.sql import functions as F

    value = parsed[_VALUE_FIELD][name]
    if _is_millis(type_text):
        inside = value.between(YEAR_1_START_MS, YEAR_9999_END_MS)
        return F.when(inside, F.timestamp_millis(value))
    declared = _parse_type(type_text)
    return value if _widen_type(declared) == declared else value.try_cast(declared)


def get_valid_column(parsed: Column, text: Column, name: str, type_text: str) -> Column:
    """Return the value of a field; null where it is out of range, or the text is not one value."""
    from pyspark.sql import functions as F

    wrong = is_out_of_range(parsed, text, name, type_text)
    allowed = (
        parsed[_END_FIELD]
        if wrong is None
        else parsed[_END_FIELD] & F.coalesce(~wrong, F.lit(True))
    )
    return F.when(allowed, get_column(parsed, name, type_text))


def is_outside_years(time: Column) -> Column:
    """Return whether a timestamp is outside of the years 1 to 9999."""
    return _is_outside(time, "TIMESTAMP", "Z")


def _is_millis(type_text: str) -> bool:
    return type_text.strip().lower() == TIMESTAMP_MS


def _parse_type(type_text: str) -> DataType:
    from pyspark.sql.types import DataType

    return DataType.fromDDL(get_json_type(type_text))


def _widen_type(data_type: DataType) -> DataType:
    """Return the type that JSON is read with: Spark reads 128 to 255 as negative bytes."""
    from pyspark.sql import types as T

    match data_type:
        case T.ByteType():
            return T.ShortType()
        case T.ArrayType():
            return T.ArrayType(_widen_type(data_type.elementType))
        case T.MapType():
            return T.MapType(data_type.keyType, _widen_type(data_type.valueType))
        case T.StructType():
            return T.StructType(
                [T.StructField(f.name, _widen_type(f.dataType)) for f in data_type.fields]
            )
    return data_type


def _is_value_out_of_range(
    value: Column, data_type: DataType, require_finite: bool
) -> Column | None:
    """Return whether a value, or one within it, is out of range; None if it cannot be."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    match data_type:
        case T.ByteType():
            return ~value.between(-128, 127)
        case T.FloatType() | T.DoubleType():
            return F.abs(value) == F.lit(float("inf")) if require_finite else None
        case T.TimestampType():
            return is_outside_years(value)
        case T.TimestampNTZType():
            return _is_outside(value, "TIMESTAMP_NTZ")
        case T.DateType():
            first, last = F.expr("DATE'0001-01-01'"), F.expr("DATE'9999-12-31'")
            return ~value.between(first, last)
        case T.ArrayType():
            return _is_any_out_of_range(value, data_type.elementType, require_finite)
        case T.MapType():
            return _is_any_out_of_range(F.map_values(value), data_type.valueType, require_finite)
        case T.StructType():
            parts = (
                _is_value_out_of_range(value[each.name], each.dataType, require_finite)
                for each in data_type.fields
            )
            found = [each for each in parts if each is not None]
            return reduce(or_, found) if found else None
    return None


def _is_any_out_of_range(
    values: Column, data_type: DataType, require_finite: bool
) -> Column | None:
    from pyspark.sql import functions as F

    if _is_value_out_of_range(F.lit(None), data_type, require_finite) is None:
        return None

    def is_element_out_of_range(value: Column) -> Column:
        found = _is_value_out_of_range(value, data_type, require_finite)
        assert found is not None
        return found

    return F.exists(values, is_element_out_of_range)


def _is_outside(time: Column, literal_type: str, zone: str = "") -> Column:
    from pyspark.sql import functions as F

    first = F.expr(f"{literal_type}'0001-01-01T00:00:00{zone}'")
    last = F.expr(f"{literal_type}'9999-12-31T23:59:59.999999{zone}'")
    return ~time.between(first, last)


def _build_exponent_pattern(data_type: DataType) -> str:
    """Return a pattern of texts that have decimals with exponents of four digits or more."""
    places = {rf'"{re.escape(name)}"\s*:{rest}' for name, rest in _iter_decimals(data_type, "", "")}
    return f"(?:{'|'.join(sorted(places))}){_LONG_EXPONENT_PATTERN}" if places else ""


def _iter_decimals(
    data_type: DataType, name: str, between_pattern: str
) -> Iterator[tuple[str, str]]:
    """Yield the names of fields that are decimals or hold them, and what may stand between the two.

    Args:
        kind: Of the field.
        name: Of the field.
        rest: A pattern of what stands between its name and its value.
    """
    from pyspark.sql import types as T

    match data_type:
        case T.DecimalType():
            yield name, between_pattern
        case T.ArrayType():
            yield from _iter_decimals(data_type.elementType, name, _NESTED_PATTERN)
        case T.MapType():
            yield from _iter_decimals(data_type.valueType, name, _NESTED_PATTERN)
        case T.StructType():
            for each in data_type.fields:
                yield from _iter_decimals(each.dataType, each.name, "")
