"""Values that a column can take and that it cannot, of each type; and texts that are no JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import NamedTuple

KINDS = {
    "byte": "tinyint",
    "small": "smallint",
    "whole": "int",
    "long": "bigint",
    "single": "float",
    "double": "double",
    "price": "decimal(10,2)",
    "text": "string",
    "bytes": "binary",
    "day": "date",
    "when": "timestamp",
    "wall": "timestamp_ntz",
    "millis": "timestamp_ms",
    "yes": "boolean",
    "many": "array<tinyint>",
    "times": "array<timestamp>",
    "by_name": "map<string,double>",
    "inner": "struct<when: timestamp, prices: array<decimal(10,2)>, deep: struct<n: float>>",
}
OUT = {
    "byte": ["128", "200", "-129", "256"],
    "small": ["32768"],
    "whole": ["2147483648"],
    "long": ["9223372036854775808"],
    "single": ["1e39", "-1e39", "1e400", "NaN", '"NaN"'],
    "double": ["1e400", "-1e400", "NaN", "Infinity", '"Infinity"'],
    "price": ["123456789", "1e10", "1e999999999", "1e-999999999", '"1E+999999999"'],
    "bytes": ['"%%"'],
    "day": ['"+10000-01-01"', '"0000-12-31"', '"20000101"'],
    "when": [
        "1700000000000",
        "1700000000000000",
        "1700000000000000000",
        "18446744075409551616",
        "18446744075409",
        "-99999999999",
        '"+12026-01-01T00:00:00Z"',
        '"0000-01-01T00:00:00Z"',
    ],
    "wall": ['"+12026-01-01T00:00:00"'],
    "millis": ["1700000000000000", "1700000000000000000", "253402300800000", "-62135596800001"],
    "yes": ["1"],
    "many": ["[1, 200]"],
    "times": ['["2026-01-01T00:00:00Z", "+12026-01-01T00:00:00Z"]'],
    "by_name": ['{"a": 1, "b": 1e400}'],
    "inner": ['{"when": 1700000000000}', '{"prices": [1, 1e999999999]}', '{"deep": {"n": 1e39}}'],
}
WITHIN = {
    "byte": ["127", "-128"],
    "single": ["3e38"],
    "double": ["1e308"],
    "price": ["12345678.99", '"1.5"', "1e7"],
    "text": ['"NaN"', '"1e99999"', '"price: 1e99999"', "1"],
    "day": ['"0001-01-01"', '"9999-12-31"'],
    "when": ['"9999-12-31T23:59:59.999999Z"', '"0001-01-01T00:00:00Z"', "1700000000", "-1"],
    "wall": ['"9999-12-31T23:59:59"'],
    "millis": ["253402300799999", "-62135596800000"],
    "many": ["[127, null, -128]"],
    "times": ["[null]"],
    "by_name": ['{"a": null, "b": -1.5}'],
    "inner": ['{"when": 1700000000, "prices": [1.5, null], "deep": {"n": null}}', "null"],
}

LENIENT = [
    '{"user":"a","at":1} trailing',
    '{"user":"a","at":1}{"user":"lost","at":2}',
    '{"user":"a","at":1},{"user":"lost","at":2}',
    '{"user":"a","at":1}}',
    '{"user":"a","at":1}]',
    "{'user':'a','at':1}",
    '{"user":"a","at":1,}',
    '{user:"a","at":1}',
    '{"user":"a","at":01}',
    '{"user":"a" /* why */,"at":1}',
    '{"user":NaN,"at":1}',
    '\ufeff{"user":"a","at":1}',
]


class Record(NamedTuple):
    """user: of each record its own. good: it is a row."""

    user: str
    key: bytes
    value: str
    good: bool


def generate_records(count: int, seed: int) -> Sequence[Record]:
    """Generate records of a user, a time and one or two columns of `KINDS`, a third of them bad."""
    some = random.Random(seed)
    return [_generate(some, f"u{number}", number) for number in range(count)]


def _generate(some: random.Random, user: str, number: int) -> Record:
    columns = {"user": json.dumps(user), "at": str(1_700_000_000_000 + number)}
    for name in some.sample(sorted(WITHIN), 2):
        columns[name] = some.choice(WITHIN[name])
    good = some.random() < 2 / 3
    value = _text(some, columns) if good else _spoil(some, columns)
    return Record(user, some.randbytes(some.randrange(4)), value, good)


def _text(some: random.Random, columns: dict[str, str]) -> str:
    names = some.sample(sorted(columns), len(columns))
    return "{" + ",".join(f'"{name}":{columns[name]}' for name in names) + "}"


def _spoil(some: random.Random, columns: dict[str, str]) -> str:
    """Make a value bad in one place."""
    match some.randrange(4):
        case 0:
            name = some.choice(sorted(OUT))
            return _text(some, columns | {name: some.choice(OUT[name])})
        case 1:
            return _text(some, columns | {"at": some.choice([*OUT["millis"], "null"])})
        case 2:
            return _text(some, columns) + some.choice(["x", "{}", ",{}", "}", "]", "//"])
    return some.choice(LENIENT)
