"""Check the types of columns in the syntax of Spark SQL without Spark: `check` needs no Java.

The types are those of https://spark.apache.org/docs/4.0.0/sql-ref-datatypes.html, and one more:
`timestamp_ms`, a number of milliseconds since 1970. The functions `_skip_...` take the index of a
token where something begins, and return the index after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from gateway.config.source.substitution import suggest

TYPE_NAMES = (
    "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float",
    "real", "double", "decimal", "dec", "numeric", "string", "binary", "date", "timestamp",
    "timestamp_ntz", "timestamp_ltz", "variant",
)  # fmt: skip
TIMESTAMP_MS = "timestamp_ms"
_OTHER_TYPE_NAMES = ("array", "map", "struct", TIMESTAMP_MS)
_TOKEN_PATTERN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|`[^`]+`|\d+|[<>(),:])")

RECORD_COLUMN_TYPES: Mapping[str, str] = {
    "_key": "binary",
    "_topic": "string",
    "_partition": "int",
    "_offset": "bigint",
    "_timestamp": "timestamp",
}
"""The columns of every input besides those of its values."""
HEADERS_COLUMN, HEADERS_TYPE = "_headers", "array<struct<key:string,value:binary>>"
"""The column of the headers, which a stream of a program has if it is asked for."""


def is_record_column(name: str, type_text: str) -> bool:
    """Return whether a column describes the record, and is no part of the value of a row."""
    return name in RECORD_COLUMN_TYPES or (name, type_text) == (HEADERS_COLUMN, HEADERS_TYPE)


def check_type(text: str) -> str | None:
    """Return the problem of a type and the remedy, or None if the type is valid."""
    try:
        tokens = _tokenize(text)
        end = _skip_type(tokens, 0, is_top_level=True)
        if end != len(tokens):
            raise _TypeSyntaxError(
                f"'{text}' goes on after a whole type, at '{tokens[end]}'; write one type"
            )
    except _TypeSyntaxError as error:
        return str(error)
    return None


def check_case(names: Iterable[str]) -> str | None:
    """Return the problem of names of columns that differ in case only, or None."""
    names_by_folded: dict[str, str] = {}
    for name in names:
        other = names_by_folded.setdefault(name.lower(), name)
        if other != name:
            problem = f"'{other}' and '{name}' differ in case only, which Spark ignores"
            return f"{problem}; rename or remove one of them"
    return None


def get_json_type(text: str) -> str:
    return "bigint" if text.strip().lower() == TIMESTAMP_MS else text


def get_column_type(text: str) -> str:
    return "timestamp" if text.strip().lower() == TIMESTAMP_MS else text.strip().lower()


class _TypeSyntaxError(Exception): ...


def _tokenize(text: str) -> list[str]:
    tokens, position = [], 0
    while position < len(text.rstrip()):
        match = _TOKEN_PATTERN.match(text, position)
        if match is None:
            raise _TypeSyntaxError(
                f"'{text}' is no type, at '{text[position:].strip()}'; write such as int"
            )
        tokens.append(match[1])
        position = match.end()
    return tokens


def _skip_type(tokens: Sequence[str], index: int, *, is_top_level: bool = False) -> int:
    name = _get_token(tokens, index, "a type").lower()
    if name == "array":
        return _skip_token(tokens, _skip_type(tokens, _skip_token(tokens, index + 1, "<")), ">")
    if name == "map":
        comma = _skip_token(tokens, _skip_type(tokens, _skip_token(tokens, index + 1, "<")), ",")
        return _skip_token(tokens, _skip_type(tokens, comma), ">")
    if name == "struct":
        return _skip_struct(tokens, _skip_token(tokens, index + 1, "<"))
    if name == TIMESTAMP_MS:
        # It is only known to this package, which converts whole columns, not values within others.
        if not is_top_level:
            raise _TypeSyntaxError(
                f"'{TIMESTAMP_MS}' stands alone only, not within another; write bigint there"
            )
        return index + 1
    if name not in TYPE_NAMES:
        hint = suggest(name, [*TYPE_NAMES, *_OTHER_TYPE_NAMES], "write such as string")
        raise _TypeSyntaxError(f"'{tokens[index]}' is no type of Spark SQL; {hint}")
    if name in ("decimal", "dec", "numeric") and tokens[index + 1 : index + 2] == ["("]:
        return _skip_decimal(tokens, index + 2)
    return index + 1


def _skip_decimal(tokens: Sequence[str], index: int) -> int:
    precision, scale = _parse_number(tokens, index), 0
    index += 1
    if tokens[index : index + 1] == [","]:
        scale = _parse_number(tokens, index + 1)
        index += 2
    if not 1 <= precision <= 38 or scale > precision:
        raise _TypeSyntaxError(
            f"decimal({precision},{scale}) is out of range; use at most decimal(38,38)"
        )
    return _skip_token(tokens, index, ")")


def _skip_struct(tokens: Sequence[str], index: int) -> int:
    names = []
    while True:
        names.append(_get_token(tokens, index, "a name").strip("`"))
        if message := check_case(names):
            raise _TypeSyntaxError(message)
        index += 1
        if tokens[index : index + 1] == [":"]:
            index += 1
        index = _skip_type(tokens, index)
        if tokens[index : index + 1] == [","]:
            index += 1
        else:
            return _skip_token(tokens, index, ">")


def _parse_number(tokens: Sequence[str], index: int) -> int:
    text = _get_token(tokens, index, "a number")
    if not (text.isascii() and text.isdigit()):
        raise _TypeSyntaxError(f"'{text}' is no number; write such as decimal(10,2)")
    return int(text)


def _skip_token(tokens: Sequence[str], index: int, expected: str) -> int:
    token = _get_token(tokens, index, f"'{expected}'")
    if token != expected:
        raise _TypeSyntaxError(
            f"'{token}' stands where '{expected}' must; write such as array<string>"
        )
    return index + 1


def _get_token(tokens: Sequence[str], index: int, expected: str) -> str:
    if index >= len(tokens):
        raise _TypeSyntaxError(
            f"the type ends where {expected} must stand; write such as array<string>"
        )
    return tokens[index]
