r"""Read JSON text as typed columns, strictly, by one expression of Spark.

Spark's `from_json` is lenient. It takes the first value of a text and ignores the rest, accepts
single quotes, lets numbers overflow (200 as a tinyint is -56, 1e39 as a float is Infinity, seconds
beyond 2^63 microseconds wrap), rounds decimals, reads "T2" as two o'clock of today, writes the
numbers in a text column as doubles, and returns times that neither Python nor ISO 8601 with years
of four digits can express. So:

- The text is read as an element of `{"values": [<text>, {"end": true}]}`, whose names have a number
  that nobody can guess. Anything after the value makes that object invalid, or moves its `end`.
- A value that may overflow or be rounded is read with a wider type, or compared with the range of
  its type afterwards.
- Times must have one of the forms of `_JSON_OPTIONS`, and be in the years 1 to 9999.
- If a text may have a number that a double changes, the field is parsed once more, with each number
  of the JSON in quotes, and the text gets the digits that the JSON has. In the same way, times of
  too many seconds are found.
- A text with half of a surrogate pair (`\ud800`, RFC 8259 8.2) is refused before it is parsed:
  Spark would read a question mark in its place.
- A decimal with a long exponent is refused before it is parsed: Spark writes out all of its digits,
  which took 45 s for `1e10000000` (two cores), and is quadratic in the exponent. Spark takes it in
  quotes, too, with escapes, commas, a plus and digits of all scripts.

Functions with the parameters `parsed` and `text` take the struct that `parse_json` returned, and
its text. Types of fields are those of the settings.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, cast

from gateway.pipeline.spark import F, T

from .types import TIMESTAMP_MS, get_json_type

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

YEAR_1_START_MS, YEAR_9999_END_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999 in milliseconds since 1970."""

_VALUES_FIELD, _END_FIELD, _CORRUPT_FIELD = (
    f"_{name}_{secrets.token_hex(8)}" for name in ("values", "end", "corrupt")
)
_TIME_FORMAT = "HH:mm[:ss[.SSSSSSSSS][,SSSSSSSSS]]"
_ZONED_TIME_FORMAT = f"{_TIME_FORMAT}[XXX][XX][X]"
_JSON_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT_FIELD,
    "allowSingleQuotes": "false",
    "dateFormat": "yyyy-MM-dd",
    "timestampFormat": f"yyyy-MM-dd['T'{_ZONED_TIME_FORMAT}][' '{_ZONED_TIME_FORMAT}]",
    "timestampNTZFormat": f"yyyy-MM-dd['T'{_TIME_FORMAT}][' '{_TIME_FORMAT}]",
}
# A number of a JSON text, and what is before it. Quoted, it begins with U+0001. In an object that
# is read as a text, that is escaped.
_NUMBER_PATTERN = r'\G((?:[^"\d-]++|"(?:[^"\\]++|\\.)*+")*+)(-?\d[0-9.eE+-]*+)'
_QUOTED_NUMBER = r'$1"\\u0001$2"'
_QUOTED_NUMBER_PATTERN = r'"\\u0001([^"]*)"|^\x01(.*)'
# A text that may be a number that a double has changed, or have one: a fraction, an exponent, an
# array, an object, or Infinity in quotes.
_SUSPECT_TEXT_PATTERN = r'^(?:-?[0-9]+[.eE]|[\[{"])'
_MAX_PRECISION = 38
_SURROGATE_PREFIXES = ("\\ud", "\\uD")  # the start of an escaped half of a surrogate pair
# A `\u` whose backslash is not itself escaped: an even number of backslashes precedes it.
_ESCAPE_PATTERN = r"(?<!\\)((?:\\\\)*+)\\u"
_SURROGATE_PAIR_PATTERN = (
    rf"{_ESCAPE_PATTERN}[dD][89abAB][0-9a-fA-F]{{2}}\\u[dD][c-fC-F][0-9a-fA-F]{{2}}"
)
_HALF_SURROGATE_PATTERN = rf"{_ESCAPE_PATTERN}[dD][89a-fA-F]"
_ESCAPE_BUT_E = r"\\u(?!00[46]5)[0-9a-fA-F]{4}"
_QUOTED_DIGITS = rf"(?:[\p{{Nd}}.,]|{_ESCAPE_BUT_E})"
_QUOTED_SIGN = r"(?:[+-]|\\u002[bBdD])?+"
_LONG_DECIMAL_PATTERN = (
    r"\s*+(?:-?[0-9.]++[eE][+-]?[0-9]{4,}"
    rf'|"(?:\s|\\[bfnrt]|{_ESCAPE_BUT_E})*+{_QUOTED_SIGN}(?:[\p{{Nd}}.,]{{1001}}'
    rf"|{_QUOTED_DIGITS}*+(?:[eE]|\\u00[46]5){_QUOTED_SIGN}{_QUOTED_DIGITS}{{4}}))"
)


def parse_json(text: Column, fields: Mapping[str, str], *, require_finite: bool = True) -> Column:
    """Parse JSON objects into a struct that the other functions of this module take.

    Args:
        require_finite: Whether numbers must be finite. If False, the texts "NaN" and "Infinity" are
            read as numbers, as they stand in the JSON text of Avro values.
    """
    declared = T.StructType([
        T.StructField(name, _parse_type(type_text)) for name, type_text in fields.items()
    ])  # fmt: skip
    element = T.StructType([
        *cast("T.StructType", _widen_type(declared)).fields,
        T.StructField(_END_FIELD, T.BooleanType()),
    ])  # fmt: skip
    schema = T.StructType([
        T.StructField(_VALUES_FIELD, T.ArrayType(element)),
        T.StructField(_CORRUPT_FIELD, T.StringType()),
    ])  # fmt: skip
    # `from_json` would replace bytes that are not UTF-8.
    readable = F.is_valid_utf8(text) & ~has_half_surrogates(text)
    if pattern := _build_exponent_pattern(declared):
        readable = readable & ~text.rlike(pattern)
    # A refused text becomes "", so that the object around it is invalid.
    strict = F.when(readable, text).when(text.isNotNull(), F.lit(""))
    end = f',{{"{_END_FIELD}":true}}]}}'
    framed = F.concat(F.lit(f'{{"{_VALUES_FIELD}":['), strict, F.lit(end))
    return F.from_json(
        framed, schema, {**_JSON_OPTIONS, "allowNonNumericNumbers": str(not require_finite)}
    )


def has_half_surrogates(text: Column) -> Column:
    # The search for the prefixes is cheap, and nearly all texts have none.
    suspect = reduce(or_, (F.contains(text, F.lit(prefix)) for prefix in _SURROGATE_PREFIXES))
    without_pairs = F.regexp_replace(text, _SURROGATE_PAIR_PATTERN, "$1-")
    return F.when(suspect, without_pairs.rlike(_HALF_SURROGATE_PATTERN)).otherwise(F.lit(False))


def is_whole(parsed: Column) -> Column:
    """Return whether a text that is not null was exactly one JSON object of the fields' types."""
    has_value = _get_object(parsed).isNotNull() & parsed[_CORRUPT_FIELD].isNull()
    return F.coalesce(has_value & _is_single(parsed), F.lit(False))


def _get_object(parsed: Column) -> Column:
    return F.get(parsed[_VALUES_FIELD], 0)


def _is_single(parsed: Column) -> Column:
    """Return whether a text was one value; null if it was more, or no JSON."""
    return F.get(parsed[_VALUES_FIELD], 1)[_END_FIELD]


def is_out_of_range(
    parsed: Column, text: Column, name: str, type_text: str, *, require_finite: bool = True
) -> Column | None:
    """Return whether a field is out of the range of its type; None if that cannot happen."""
    if _is_millis(type_text):
        return ~_get_object(parsed)[name].between(YEAR_1_START_MS, YEAR_9999_END_MS)
    declared = _parse_type(type_text)
    value = _get_value(parsed, text, name, declared)
    out_of_range = _test_values(
        value, declared, partial(_is_leaf_out_of_range, require_finite=require_finite)
    )
    if places := set(_iter_leaves(declared, T.TimestampType, name)):
        # Spark reads a number as seconds. A great one overflows, and the result may be a valid
        # time. Only a text that looks like this is parsed once more.
        before = (
            r"[\[:,]" if is_nested else rf'"{_build_name_pattern(leaf)}"\s*+:'
            for leaf, is_nested in places
        )
        is_suspect = text.rlike(rf"(?:{'|'.join(before)})\s*+-?[0-9]{{13}}")
        has_long = _test_values(_parse_exact(text, name, declared), declared, _is_long_time)
        assert out_of_range is not None and has_long is not None
        out_of_range = out_of_range | F.when(is_suspect, has_long)
    return out_of_range


def get_column(parsed: Column, text: Column, name: str, type_text: str) -> Column:
    """Return a field in its type, null if out of range. It never fails, even for filtered rows."""
    if _is_millis(type_text):
        value = _get_object(parsed)[name]
        in_range = value.between(YEAR_1_START_MS, YEAR_9999_END_MS)
        return F.when(in_range, F.timestamp_millis(value))
    declared = _parse_type(type_text)
    value = _get_value(parsed, text, name, declared)
    return value if _widen_type(declared) == declared else value.try_cast(declared)


def get_valid_column(parsed: Column, text: Column, name: str, type_text: str) -> Column:
    """Return the value of a field, null if it is out of range or the text is not one object."""
    out_of_range = is_out_of_range(parsed, text, name, type_text)
    is_valid = (
        _is_single(parsed)
        if out_of_range is None
        else _is_single(parsed) & F.coalesce(~out_of_range, F.lit(True))
    )
    return F.when(is_valid, get_column(parsed, text, name, type_text))


def is_outside_years(time: Column) -> Column:
    return _is_outside(time, "TIMESTAMP", "Z")


def _is_millis(type_text: str) -> bool:
    return type_text.strip().lower() == TIMESTAMP_MS


def _parse_type(type_text: str) -> DataType:
    return T.DataType.fromDDL(get_json_type(type_text))


def _widen_type(data_type: DataType) -> DataType:
    """Return the type that JSON is read with, in which nothing wraps or is rounded."""
    return _replace_leaves(data_type, _widen_leaf)


def _widen_leaf(data_type: DataType) -> DataType:
    match data_type:
        case T.ByteType():  # 128 to 255 would wrap
            return T.ShortType()
        case T.DecimalType(precision=precision, scale=scale):
            # Without a wider type, all digits are needed.
            is_widest = precision == _MAX_PRECISION
            whole_digits = precision - scale
            return (
                T.StringType()
                if is_widest
                else T.DecimalType(_MAX_PRECISION, _MAX_PRECISION - whole_digits)
            )
    return data_type


def _replace_leaves(data_type: DataType, replace_leaf: Callable[[DataType], DataType]) -> DataType:
    match data_type:
        case T.ArrayType():
            return T.ArrayType(_replace_leaves(data_type.elementType, replace_leaf))
        case T.MapType():
            value_type = _replace_leaves(data_type.valueType, replace_leaf)
            return T.MapType(data_type.keyType, value_type)
        case T.StructType():
            return T.StructType([
                T.StructField(field.name, _replace_leaves(field.dataType, replace_leaf))
                for field in data_type.fields
            ])  # fmt: skip
    return replace_leaf(data_type)


def _get_value(parsed: Column, text: Column, name: str, declared: DataType) -> Column:
    """Return a field in the type that it was read with, with all digits of numbers in texts."""
    value, read_type = _get_object(parsed)[name], _widen_type(declared)
    is_suspect = _test_values(value, read_type, _is_suspect_text)
    if is_suspect is None:
        return value
    exact = _parse_exact(text, name, read_type)
    return F.when(is_suspect, _restore_digits(value, exact, read_type)).otherwise(value)


def _parse_exact(text: Column, name: str, data_type: DataType) -> Column:
    """Return a field with texts in place of its values, of which numbers begin with U+0001."""
    text_type = _replace_leaves(data_type, lambda _: T.StringType())
    quoted = F.regexp_replace(text, F.lit(_NUMBER_PATTERN), F.lit(_QUOTED_NUMBER))
    return F.from_json(quoted, T.StructType([T.StructField(name, text_type)]), _JSON_OPTIONS)[name]


def _restore_digits(value: Column, exact: Column, data_type: DataType) -> Column:
    """Return a value with the texts of another one, which has numbers in quotes."""
    match data_type:
        case T.StringType():
            return F.regexp_replace(exact, F.lit(_QUOTED_NUMBER_PATTERN), F.lit("$1$2"))
        case T.ArrayType(elementType=inner):
            return F.zip_with(value, exact, lambda v, e: _restore_digits(v, e, inner))
        case T.MapType(valueType=inner):
            return F.map_zip_with(value, exact, lambda _, v, e: _restore_digits(v, e, inner))
        case T.StructType():
            fields = (
                _restore_digits(value[f.name], exact[f.name], f.dataType).alias(f.name)
                for f in data_type.fields
            )
            return F.when(value.isNotNull(), F.struct(*fields))
    return value


def _is_suspect_text(value: Column, data_type: DataType) -> Column | None:
    return value.rlike(_SUSPECT_TEXT_PATTERN) if isinstance(data_type, T.StringType) else None


def _is_long_time(value: Column, data_type: DataType) -> Column | None:
    return value.rlike(r"^\x01-?[0-9]{13}") if isinstance(data_type, T.TimestampType) else None


def _is_leaf_out_of_range(
    value: Column, data_type: DataType, *, require_finite: bool
) -> Column | None:
    match data_type:
        case T.ByteType():
            return ~value.between(-128, 127)
        case T.FloatType() | T.DoubleType():
            return F.abs(value) == F.lit(float("inf")) if require_finite else None
        case T.DecimalType(precision=precision, scale=scale):
            if precision < _MAX_PRECISION:
                return ~value.eqNullSafe(value.try_cast(data_type))
            number = value.try_cast(data_type)
            small_type = T.DecimalType(_MAX_PRECISION, _MAX_PRECISION - 1)
            is_small_exact = value.try_cast(small_type).eqNullSafe(number.try_cast(small_type))
            has_more_digits = F.when(value.rlike("[eE]-"), ~is_small_exact).otherwise(
                value.rlike(rf"\.[0-9]{{{scale}}}[0-9]*[1-9]")
            )
            return value.isNotNull() & (number.isNull() | has_more_digits)
        case T.TimestampType():
            return is_outside_years(value)
        case T.TimestampNTZType():
            return _is_outside(value, "TIMESTAMP_NTZ")
        case T.DateType():
            first, last = F.expr("DATE'0001-01-01'"), F.expr("DATE'9999-12-31'")
            return ~value.between(first, last)
    return None


def _test_values(
    value: Column, data_type: DataType, test: Callable[[Column, DataType], Column | None]
) -> Column | None:
    """Return whether a test is true of a value or of a nested one; None if of none can be."""
    match data_type:
        case T.MapType():
            return _test_values(F.map_values(value), T.ArrayType(data_type.valueType), test)
        case T.ArrayType(elementType=inner):
            # Whether there is a condition depends on the type only, so any value will do.
            if _test_values(F.lit(None), inner, test) is None:
                return None
            return F.exists(
                value, lambda element: cast("Column", _test_values(element, inner, test))
            )
        case T.StructType():
            parts = (_test_values(value[f.name], f.dataType, test) for f in data_type.fields)
            conditions = [part for part in parts if part is not None]
            return reduce(or_, conditions) if conditions else None
    return test(value, data_type)


def _is_outside(time: Column, literal_type: str, zone: str = "") -> Column:
    first = F.expr(f"{literal_type}'0001-01-01T00:00:00{zone}'")
    last = F.expr(f"{literal_type}'9999-12-31T23:59:59.999999{zone}'")
    return ~time.between(first, last)


def _build_exponent_pattern(data_type: DataType) -> str:
    """Return a pattern that finds decimals with exponents of four digits or more in a text.

    It finds those of more than 1,000 digits in quotes, too; Jackson refuses others. It is "" if the
    type has no decimals. The time is linear in the text: every loop is possessive, and the only
    match that reads on to the end begins at the start.
    """
    names_by_nesting: dict[bool, set[str]] = {False: set(), True: set()}
    for name, is_nested in _iter_leaves(data_type, T.DecimalType, ""):
        names_by_nesting[is_nested].add(_build_name_pattern(name))
    plain, nested = ("|".join(sorted(names)) for names in names_by_nesting.values())
    patterns = [rf'"(?:{plain})"\s*+:{_LONG_DECIMAL_PATTERN}'] if plain else []
    if nested:
        # The values of an array or an object are searched up to a `]` that no other array follows.
        start = rf'"(?:{nested})"\s*+:\s*+(?=[\[{{])'
        long_value = rf"[\[{{,:]{_LONG_DECIMAL_PATTERN}"
        between_arrays = r"\][\s\]]*+,\s*+(?=\[)"
        string = r'"(?:[^"\\]++|\\.)*+"'
        values = rf'(?:[^"\]\[{{,:]++|{string}|(?!{long_value})[\[{{,:]|{between_arrays})*+'
        others = rf'(?:[^"]++|(?!{start})"|{start}{values}(?:\]|\z))*+'
        patterns.append(rf"\A{others}{start}{values}{long_value}")
    return "|".join(patterns)


def _build_name_pattern(name: str) -> str:
    """Return a pattern of a name in a JSON text, each of whose characters may be escaped."""
    patterns = []
    for character in name:
        units = character.encode("utf-16-be").hex(" ", 2).split()
        escape = "".join(rf"\\u{unit}" for unit in units)
        plain = re.escape(json.dumps(character, ensure_ascii=False)[1:-1])
        slash = r"|\\/" if character == "/" else ""
        patterns.append(f"(?:{plain}|(?i:{escape}){slash})")
    return "".join(patterns)


def _iter_leaves(
    data_type: DataType, leaf_type: type[DataType], name: str, *, is_nested: bool = False
) -> Iterator[tuple[str, bool]]:
    """Yield the names of fields of a type, and whether it is in an array or a map of the field."""
    match data_type:
        case T.ArrayType(elementType=inner) | T.MapType(valueType=inner):
            yield from _iter_leaves(inner, leaf_type, name, is_nested=True)
        case T.StructType():
            for field in data_type.fields:
                yield from _iter_leaves(field.dataType, leaf_type, field.name)
    if isinstance(data_type, leaf_type):
        yield name, is_nested
