"""Values that a column can take and that it cannot, of each type; and texts that are no JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_TIMESTAMP_MS = 253_402_300_799_999
_TIMEDELTA_UNITS = {"timestamp": "seconds", "timestamp_ms": "milliseconds"}

COLUMN_TYPES = {
    "byte": "tinyint",
    "small": "smallint",
    "whole": "int",
    "long": "bigint",
    "single": "float",
    "double": "double",
    "price": "decimal(10,2)",
    "exact": "decimal(38,18)",
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
BAD_VALUES = {
    "byte": ["128", "200", "-129", "256"],
    "small": ["32768"],
    "whole": ["2147483648"],
    "long": ["9223372036854775808"],
    "single": ["1e39", "-1e39", "1e400", "NaN", '"NaN"'],
    "double": ["1e400", "-1e400", "NaN", "Infinity", '"Infinity"'],
    "price": [
        *("123456789", "1e10", "1e999999999", "1e-999999999", '"1E+999999999"'),
        *("12.345", '"99.995"', "1e-3"),  # not rounded
    ],
    "exact": [
        *("1.0000000000000000005", '"0.0000000000000000001"', "1e-19", "1e10000000", "true"),
        "123456789012345678901",
    ],
    "bytes": ['"%%"'],
    "day": ['"+10000-01-01"', '"0000-12-31"', '"20000101"', '"2026"', '"2026-3-1"', '"12345"'],
    "when": [
        "1700000000000",
        "1700000000000000",
        "1700000000000000000",
        "18446744075409551616",
        "18446744075409",
        "-99999999999",
        '"+12026-01-01T00:00:00Z"',
        '"0000-01-01T00:00:00Z"',
        *('"T2"', '"12:30"', '"9:5:1"', '""', '"now"'),  # some were times of today
        *('"2026"', '"2026-03"', '"2026-3-1"', '"20260301T100000Z"', '"2026-03-0110:00"'),
        *('"2026-03-01T10"', '"2026-03-01T10:00:00Europe/Berlin"', '"1700000000"'),
    ],
    "wall": ['"+12026-01-01T00:00:00"', '"T2"', '"2026-01-01T00:00:00Z"'],
    "millis": ["1700000000000000", "1700000000000000000", "253402300800000", "-62135596800001"],
    "yes": ["1"],
    "many": ["[1, 200]"],
    "times": [
        *('["2026-01-01T00:00:00Z", "+12026-01-01T00:00:00Z"]', '["2026-01-01T00:00:00Z", "T2"]'),
        *("[18448444073710]", "[null, 1700000000, -18445044073710]"),
    ],
    "by_name": ['{"a": 1, "b": 1e400}'],
    "inner": [
        *('{"when": 1700000000000}', '{"prices": [1, 1e999999999]}', '{"deep": {"n": 1e39}}'),
        *('{"when": "12:30"}', '{"prices": [1, 12.345]}', '{"when": 18448444073710}'),
    ],
}
GOOD_VALUES = {
    "byte": ["127", "-128"],
    "single": ["3e38"],
    "double": ["1e308"],
    "price": ["12345678.99", '"1.5"', "1e7", "1.500"],
    "exact": ["12345678901234567890.123456789012345678", "1e-18", '"1.50"', "7"],
    "text": [
        *('"NaN"', '"1e99999"', '"price: 1e99999"', "1"),
        *(r'"\ud83d\ude00"', r'"\\ud800"', r'"\uD83D\uDE00\\\uD83D\uDE00"'),
    ],
    "day": ['"0001-01-01"', '"9999-12-31"'],
    "when": [
        *('"9999-12-31T23:59:59.999999Z"', '"0001-01-01T00:00:00Z"', "1700000000", "-1"),
        *('"2026-03-01"', '"2026-03-01T10:00"', '"2026-03-01 10:00:00"'),
        *('"2026-03-01T10:00:00,5+0100"', '"2026-03-01 10:00:00.123456789+01:00"'),
    ],
    "wall": ['"9999-12-31T23:59:59"', '"2026-03-01 10:00"'],
    "millis": ["253402300799999", "-62135596800000"],
    "many": ["[127, null, -128]"],
    "times": ["[null]"],
    "by_name": ['{"a": null, "b": -1.5}'],
    "inner": ['{"when": 1700000000, "prices": [1.5, null], "deep": {"n": null}}', "null"],
}

LENIENT_JSON = [
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
    r'{"user":"\ud800","at":1}',
    r'{"user":"a","at":1,"text":"a\uDC00b"}',
    r'{"user":"a","at":1,"by_name":{"\ud83d\u0020":1}}',
    r'{"user":"a","at":1,"other":"\\\udfff"}',
    r'{"user":"a","at":1,"text":"\ud800\ud800\udc00"}',
]


NON_OBJECTS = [
    *(b"", b" ", b"null", b"true", b"1", b'"text"', b"[]", b"[{}]", b"{", b"\0", b"\xff\xfe\xfd"),
    b'{"user":"a","at":1,"text":"\xed\xa0\x80"}',
    b'{"user":"a","at":1,"inner":' * 2_000 + b"{}" + b"}" * 2_000,
    *(b'{"user":"a","at":1,"%s":%s}' % (name, b"9" * 5_000) for name in (b"whole", b"price")),
]
RECORD_KEYS = [None, b"", b"k", b"\xff\xfe", b"\0", b"\xf0\x9f\x98\x80", b"x" * 2_000]
RECORD_HEADERS = [None, [("h", b"1"), ("h", None)], [("", b"\xff"), ("X-Reason", b"forged")]]
TIMESTAMPS = {
    **dict.fromkeys([0, 1_700_000_000_000, MAX_TIMESTAMP_MS], True),
    **dict.fromkeys([MAX_TIMESTAMP_MS + 1, 1_700_000_000_000_000, 9_223_372_036_854_775], False),
}
"""Timestamps of records in ms, and whether they are of the years 1 to 9999."""


class PoisonRecord(NamedTuple):
    """user: of each record its own. good: it is a row. columns: the JSON of its columns."""

    user_id: str
    key: bytes
    value: str
    is_good: bool
    json_by_column: Mapping[str, str]


class PoisonMessage(NamedTuple):
    """A record as it is produced.

    Attributes:
        key: Any bytes.
        value: None for a tombstone.
        headers: None for none.
        timestamp: In ms.
        columns: The JSON of its columns; empty where the value is bad. `at` may be null, which is
            bad where it is the event time.
    """

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp: int
    json_by_column: Mapping[str, str]


def generate_records(count: int, seed: int) -> Sequence[PoisonRecord]:
    """Generate records of a user, a time and one or two columns of `KINDS`, a third of them bad."""
    some = random.Random(seed)
    return [_generate_record(some, f"u{number}", number) for number in range(count)]


def _generate_record(rng: random.Random, user: str, number: int) -> PoisonRecord:
    columns = {"user": json.dumps(user), "at": str(1_700_000_000_000 + number)}
    for name in rng.sample(sorted(GOOD_VALUES), 2):
        columns[name] = rng.choice(GOOD_VALUES[name])
    good = rng.random() < 2 / 3
    value = _build_json(rng, columns) if good else _build_bad_json(rng, columns)
    return PoisonRecord(user, rng.randbytes(rng.randrange(4)), value, good, columns)


def generate_messages(count: int, seed: int) -> list[PoisonMessage]:
    """Generate records that may be bad in any place: value, key, headers, timestamp and size."""
    some = random.Random(seed)
    found = []
    for record in generate_records(count, seed):
        value: bytes | None = record.value.encode()
        whole = record.is_good or record.json_by_column["at"] == "null"
        columns = dict(record.json_by_column) if whole else {}
        match some.randrange(12):
            case 0:
                value, columns = some.choice(NON_OBJECTS), {}
            case 1:
                value, columns = None, {}
            case 2 if columns:
                value = _build_json(some, columns | {"other": json.dumps("x" * 200_000)}).encode()
            case 3:
                value = b" " * 100_000 + value
        key, headers = some.choice(RECORD_KEYS), some.choice(RECORD_HEADERS)
        found.append(PoisonMessage(key, value, headers, some.choice([*TIMESTAMPS]), columns))
    return found


def parse_expected(column: str, json_text: str) -> Any:
    """Return what a row has in a column, by the JSON of a good value of `WITHIN`."""
    return _convert_expected(
        "timestamp_ms" if column == "at" else COLUMN_TYPES.get(column, "string"),
        json.loads(json_text),
    )


def _convert_expected(column_type: str, value: Any) -> Any:
    if value is None:
        return None
    match column_type:
        case "string":
            return value if isinstance(value, str) else json.dumps(value)
        case "decimal(10,2)" | "decimal(38,18)":
            return float(value)
        case "timestamp" | "timestamp_ms":
            if isinstance(value, int):
                value = EPOCH + timedelta(**{_TIMEDELTA_UNITS[column_type]: value})
            else:
                value = datetime.fromisoformat(value)
                value = (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)
            return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case "timestamp_ntz":
            return datetime.fromisoformat(value).isoformat(timespec="milliseconds")
    if column_type == COLUMN_TYPES["inner"]:
        prices = value.get("prices")
        return {
            "when": _convert_expected("timestamp", value.get("when")),
            "prices": prices and [_convert_expected("decimal(10,2)", each) for each in prices],
            "deep": value.get("deep"),
        }
    return value


def _build_json(rng: random.Random, columns: dict[str, str]) -> str:
    names = rng.sample(sorted(columns), len(columns))
    return "{" + ",".join(f'"{name}":{columns[name]}' for name in names) + "}"


def _build_bad_json(rng: random.Random, columns: dict[str, str]) -> str:
    """Make a value bad in one place."""
    match rng.randrange(4):
        case 0:
            name = rng.choice(sorted(BAD_VALUES))
            return _build_json(rng, columns | {name: rng.choice(BAD_VALUES[name])})
        case 1:
            columns["at"] = rng.choice([*BAD_VALUES["millis"], "null"])
            return _build_json(rng, columns)
        case 2:
            return _build_json(rng, columns) + rng.choice(["x", "{}", ",{}", "}", "]", "//"])
    return rng.choice(LENIENT_JSON)
