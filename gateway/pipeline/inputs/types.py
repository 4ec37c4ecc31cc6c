"""Check the types of columns in the syntax of Spark SQL without Spark: `check` needs no Java.

The types are those of https://spark.apache.org/docs/4.0.0/sql-ref-datatypes.html, and one more:
`timestamp_ms`, a number of milliseconds since 1970. The functions take the tokens of what they read
from the left.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping

from gateway.config.types.substitution import suggest

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
        _read_type(tokens, is_top_level=True)
        if tokens:
            raise _TypeSyntaxError(
                f"'{text}' goes on after a whole type, at '{tokens[0]}'; write one type"
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


def _tokenize(text: str) -> deque[str]:
    tokens, position = deque[str](), 0
    while position < len(text.rstrip()):
        match = _TOKEN_PATTERN.match(text, position)
        if match is None:
            raise _TypeSyntaxError(
                f"'{text}' is no type, at '{text[position:].strip()}'; write such as int"
            )
        tokens.append(match[1])
        position = match.end()
    return tokens


def _read_type(tokens: deque[str], *, is_top_level: bool = False) -> None:
    token = _take(tokens, "a type")
    name = token.lower()
    if name in ("array", "map", "struct"):
        _expect(tokens, "<")
        if name == "struct":
            _read_fields(tokens)
        else:
            _read_type(tokens)
        if name == "map":
            _expect(tokens, ",")
            _read_type(tokens)
        _expect(tokens, ">")
    elif name == TIMESTAMP_MS:
        # It is only known to this package, which converts whole columns, not values within others.
        if not is_top_level:
            raise _TypeSyntaxError(
                f"'{TIMESTAMP_MS}' stands alone only, not within another; write bigint there"
            )
    elif name not in TYPE_NAMES:
        hint = suggest(name, [*TYPE_NAMES, *_OTHER_TYPE_NAMES], "write such as string")
        raise _TypeSyntaxError(f"'{token}' is no type of Spark SQL; {hint}")
    elif name in ("decimal", "dec", "numeric") and _skip(tokens, "("):
        precision, scale = _read_number(tokens), 0
        if _skip(tokens, ","):
            scale = _read_number(tokens)
        if not 1 <= precision <= 38 or scale > precision:
            raise _TypeSyntaxError(
                f"decimal({precision},{scale}) is out of range; use at most decimal(38,38)"
            )
        _expect(tokens, ")")


def _read_fields(tokens: deque[str]) -> None:
    names = []
    while True:
        names.append(_take(tokens, "a name").strip("`"))
        if message := check_case(names):
            raise _TypeSyntaxError(message)
        _skip(tokens, ":")
        _read_type(tokens)
        if not _skip(tokens, ","):
            return


def _read_number(tokens: deque[str]) -> int:
    text = _take(tokens, "a number")
    if not (text.isascii() and text.isdigit()):
        raise _TypeSyntaxError(f"'{text}' is no number; write such as decimal(10,2)")
    return int(text)


def _skip(tokens: deque[str], token: str) -> bool:
    """Take the next token if it is the given one; return whether it is."""
    is_next = bool(tokens) and tokens[0] == token
    if is_next:
        tokens.popleft()
    return is_next


def _expect(tokens: deque[str], expected: str) -> None:
    token = _take(tokens, f"'{expected}'")
    if token != expected:
        raise _TypeSyntaxError(
            f"'{token}' stands where '{expected}' must; write such as array<string>"
        )


def _take(tokens: deque[str], expected: str) -> str:
    if not tokens:
        raise _TypeSyntaxError(
            f"the type ends where {expected} must stand; write such as array<string>"
        )
    return tokens.popleft()
