"""Types of columns as Spark SQL writes them, read without Spark: `check` needs no Java.

https://spark.apache.org/docs/4.0.0/sql-ref-datatypes.html, and one of ours: `timestamp_ms`, a
number of milliseconds since the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gateway.config.source.expression import nearest

NAMES = (
    "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float",
    "real", "double", "decimal", "dec", "numeric", "string", "binary", "date", "timestamp",
    "timestamp_ntz", "timestamp_ltz", "variant",
)  # fmt: skip
MILLIS = "timestamp_ms"
_BESIDE = ("array", "map", "struct", MILLIS)
_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|`[^`]+`|\d+|[<>(),:])")

META: Mapping[str, str] = {
    "_key": "binary",
    "_topic": "string",
    "_partition": "int",
    "_offset": "bigint",
    "_timestamp": "timestamp",
}
"""The columns of every input, beside those of its values."""


def problem(text: str) -> str | None:
    """What is wrong with a type, and what to do; None if nothing is."""
    try:
        tokens = _tokens(text)
        end = _type(tokens, 0, top=True)
        if end != len(tokens):
            raise _Wrong(f"'{text}' goes on after a whole type, at '{tokens[end]}'; write one type")
    except _Wrong as wrong:
        return str(wrong)
    return None


def spark(text: str) -> str:
    """The type a JSON value is read with."""
    return "bigint" if text.strip().lower() == MILLIS else text


def shown(text: str) -> str:
    """The type that the column then has."""
    return "timestamp" if text.strip().lower() == MILLIS else text.strip().lower()


class _Wrong(Exception):
    pass


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    while at < len(text.rstrip()):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _Wrong(f"'{text}' is no type, at '{text[at:].strip()}'; write such as int")
        tokens.append(found[1])
        at = found.end()
    return tokens


def _type(tokens: Sequence[str], at: int, *, top: bool = False) -> int:
    """Where a type ends that begins at `at`."""
    name = _at(tokens, at, "a type").lower()
    if name == "array":
        return _expect(tokens, _type(tokens, _expect(tokens, at + 1, "<")), ">")
    if name == "map":
        comma = _expect(tokens, _type(tokens, _expect(tokens, at + 1, "<")), ",")
        return _expect(tokens, _type(tokens, comma), ">")
    if name == "struct":
        return _struct(tokens, _expect(tokens, at + 1, "<"))
    if name == MILLIS:
        if not top:
            raise _Wrong(f"'{MILLIS}' stands alone only, not within another; write bigint there")
        return at + 1
    if name not in NAMES:
        hint = nearest(name, [*NAMES, *_BESIDE], "write such as string")
        raise _Wrong(f"'{tokens[at]}' is no type of Spark SQL; {hint}")
    if name in ("decimal", "dec", "numeric") and tokens[at + 1 : at + 2] == ["("]:
        return _decimal(tokens, at + 2)
    return at + 1


def _decimal(tokens: Sequence[str], at: int) -> int:
    """Of the brackets: precision at most 38, scale at most that."""
    precision, scale = _number(tokens, at), 0
    at += 1
    if tokens[at : at + 1] == [","]:
        scale = _number(tokens, at + 1)
        at += 2
    if not 1 <= precision <= 38 or scale > precision:
        raise _Wrong(f"decimal({precision},{scale}) is out of range; use at most decimal(38,38)")
    return _expect(tokens, at, ")")


def _struct(tokens: Sequence[str], at: int) -> int:
    while True:
        _at(tokens, at, "a name")
        at += 1
        if tokens[at : at + 1] == [":"]:
            at += 1
        at = _type(tokens, at)
        if tokens[at : at + 1] == [","]:
            at += 1
        else:
            return _expect(tokens, at, ">")


def _number(tokens: Sequence[str], at: int) -> int:
    text = _at(tokens, at, "a number")
    if not text.isdigit():
        raise _Wrong(f"'{text}' is no number; write such as decimal(10,2)")
    return int(text)


def _expect(tokens: Sequence[str], at: int, wanted: str) -> int:
    found = _at(tokens, at, f"'{wanted}'")
    if found != wanted:
        raise _Wrong(f"'{found}' stands where '{wanted}' must; write such as array<string>")
    return at + 1


def _at(tokens: Sequence[str], at: int, wanted: str) -> str:
    if at >= len(tokens):
        raise _Wrong(f"the type ends where {wanted} must stand; write such as array<string>")
    return tokens[at]
