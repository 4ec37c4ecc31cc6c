"""What a WebSocket client must not say: the message, the error's code, and the id it names.

The socket has one subscription, `live`, and is one of `/ws`; the routes are `/records/orders`
and `/events/orders` without any choice for clients.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class BadMessage(NamedTuple):
    text: str
    code: str
    id: str | None = None


INVALID_JSON = (
    "", " ", "{", "}", "[", "nul", "NaN", "Infinity", "'x'", '{"type"}', '{"type":"ping",}',
    '{"type": "ping"} {"type": "ping"}', "type: ping", '{"type": "ping", "id": NaN}',
    '{"type": "ping", "id": "\\ud800"}', "[" * 50_000, '{"a":' * 50_000, "\x00", "GET / HTTP/1.1",
    '{"type": "ping"', "\ufeff{}", "<xml/>",
)  # fmt: skip
NON_OBJECTS = ("[]", "null", "true", "0", "-1.5e300", '"ping"', '[{"type": "ping"}]', "{}")
UNKNOWN_TYPES: tuple[Any, ...] = (
    None, 0, True, [], {}, "", "Ping", "subscibe", "begin", "records", "error", "end", "pong",
    "x" * 10_000, "subscribe ", "__init__", "\u0000",
)  # fmt: skip

# Members that are wrong, beside those of a message that is right.
VALID_MEMBERS: Mapping[str, Mapping[str, Any]] = {
    "subscribe": {"id": "x", "path": "/records/orders"},
    "change": {"id": "live"},
    "unsubscribe": {"id": "live"},
    "credit": {"id": "live", "n": 1},
    "produce": {"id": "x", "path": "/records/orders", "value": 1},
    "token": {"jwt": "x"},
    "ping": {"id": "x"},
}
_INVALID_IDS: list[Any] = ["", 5, "y" * 65, "y" * 100_000, [], {}, False]
INVALID_MEMBERS: Mapping[str, Mapping[str, list[Any]]] = {
    "subscribe": {
        "id": [None, *_INVALID_IDS],
        "path": [None, 5, [], "", "/" + "x" * 17_000],
        "from": [5, []],
        "until": [1.5, [], True],
        "lastEventId": [5, {}],
        "credit": [-1, 1.5, "5", True, 2**60],
        "filter": ["key=x", 5, [5], ["x"]],
        "fields": ["/n", [5], {}],
        "form": ["live"],
    },
    "change": {
        "id": _INVALID_IDS,
        "path": [5, ""],
        "filter": ["x", 1],
        "fields": ["/n"],
        "credit": [5],
    },
    "unsubscribe": {"id": [None, *_INVALID_IDS], "reason": ["x"]},
    "credit": {"id": _INVALID_IDS, "n": [None, 0, -1, 1.5, "5", True, [], 2**60], "credit": [5]},
    "produce": {
        "id": [None, *_INVALID_IDS],
        "path": [5, ""],
        "topic": [5],
        "key": [5, {}],
        "partition": [0],
        "headers": [[], {"a": 5}, "x", None],
        "base64": ["yes", None, 1],
        "idempotencyKey": ["", 5, "x" * 256],
    },
    "token": {"jwt": [None, "", 5, {}, "x" * 70_000], "id": ["x"]},
    "ping": {"id": _INVALID_IDS, "data": ["x"]},
}
REQUIRED_MEMBERS = {
    "subscribe": ["id", "path"], "unsubscribe": ["id"], "credit": ["n"], "produce": ["id", "value"],
    "token": ["jwt"],
}  # fmt: skip

# Right in form, and not to be done.
REJECTED_MESSAGES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"type": "subscribe", "id": "live", "path": "/records/orders"}, "subscription-exists"),
    ({"type": "subscribe", "id": "x", "path": "/nowhere"}, "unknown-path"),
    ({"type": "subscribe", "id": "x", "path": "records/orders"}, "unknown-path"),
    ({"type": "subscribe", "id": "x", "path": "/ws"}, "unknown-path"),
    ({"type": "subscribe", "id": "x", "path": "/records/%zz"}, "unknown-path"),
    ({"type": "subscribe", "id": "x", "path": "http://other/records/orders"}, "unknown-path"),
    ({"type": "subscribe", "id": "x", "path": "?from=live"}, "unknown-path"),
    ({"type": "subscribe", "id": "x", "path": "/records/missing"}, "unknown-topic"),
    *(
        ({"type": "subscribe", "id": "x", "path": "/records/orders", **members}, code)
        for members, code in (
            ({"from": "yesterday"}, "bad-request"),
            ({"from": "2999-01-01"}, "bad-request"),
            ({"until": 0}, "bad-request"),
            ({"until": -5}, "bad-request"),
            ({"until": "soon"}, "bad-request"),
            ({"until": "2999-01-01"}, "bad-request"),
            ({"lastEventId": "x"}, "position-refused"),
            ({"lastEventId": "1AAAA" * 40}, "position-refused"),
            ({"lastEventId": "x" * 500_000}, "position-refused"),
            ({"lastEventId": "ÿ\u2028"}, "position-refused"),
            ({"filter": {"key": "x"}}, "not-to-be-chosen"),
            ({"filter": []}, "not-to-be-chosen"),
            ({"filter": {}}, "not-to-be-chosen"),
            ({"filter": {"kye": "x"}}, "not-to-be-chosen"),
            ({"fields": ["/n"]}, "not-to-be-chosen"),
            ({"fields": ["n"]}, "not-to-be-chosen"),
        )
    ),
    ({"type": "subscribe", "id": "x", "path": "/records/orders?credit=x"}, "bad-request"),
    ({"type": "subscribe", "id": "x", "path": "/records/orders?from=a&from=b"}, "bad-request"),
    ({"type": "change", "id": "x"}, "unknown-subscription"),
    ({"type": "change"}, "unknown-subscription"),
    ({"type": "change", "id": "live", "path": "/nowhere"}, "unknown-path"),
    ({"type": "change", "id": "live", "filter": {"key": "x"}}, "not-to-be-chosen"),
    ({"type": "unsubscribe", "id": "x"}, "unknown-subscription"),
    ({"type": "credit", "id": "x", "n": 1}, "unknown-subscription"),
    ({"type": "credit", "n": 1}, "unknown-subscription"),
    ({"type": "produce", "id": "x", "path": "/records/orders", "value": 1}, "forbidden"),
    ({"type": "produce", "id": "x", "path": "/nowhere", "value": 1}, "unknown-path"),
    ({"type": "produce", "id": "x", "value": 1}, "unknown-path"),
)


def iter_bad_messages() -> Iterator[BadMessage]:
    for text in (*INVALID_JSON, *NON_OBJECTS):
        yield BadMessage(text, "unknown-type" if text == "{}" else "bad-message")
    for kind in UNKNOWN_TYPES:
        yield BadMessage(json.dumps({"type": kind, "id": "x"}), "unknown-type", "x")
    for kind, members in INVALID_MEMBERS.items():
        for name, values in members.items():
            for value in values:
                yield _build_bad_message({"type": kind, **VALID_MEMBERS[kind], name: value})
    for kind, names in REQUIRED_MEMBERS.items():
        for name in names:
            told = {"type": kind, **VALID_MEMBERS[kind]}
            del told[name]
            yield _build_bad_message(told)
    for told, code in REJECTED_MESSAGES:
        yield BadMessage(json.dumps(told), code, told.get("id"))


def _build_bad_message(message: dict[str, Any]) -> BadMessage:
    id = message.get("id")
    return BadMessage(json.dumps(message), "bad-message", id if _is_valid_id(id) else None)


def _is_valid_id(id: Any) -> bool:
    return isinstance(id, str) and len(id) <= 64
