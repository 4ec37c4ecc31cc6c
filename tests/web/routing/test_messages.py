"""What a WebSocket client may say, and what it is told where that is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.web.routing.messages import (
    BadMessageError,
    CreditMessage,
    ProduceMessage,
    SubscribeMessage,
    parse_message,
)


def test_a_subscription_has_members_for_all_that_a_query_may_say():
    said = parse_message(
        '{"type": "subscribe", "id": "a", "path": "/orders?x=1", "from": "-5m", "until": 10,'
        ' "lastEventId": "t", "credit": 0, "filter": [{"key": "x"}], "fields": ["/id"]}'
    )
    assert isinstance(said, SubscribeMessage)
    assert (said.id, said.path, said.from_, said.until) == ("a", "/orders?x=1", "-5m", 10)
    assert (said.last_event_id, said.credit, said.fields_) == ("t", 0, ["/id"])


def test_a_long_integer_is_produced_as_it_is():
    said = parse_message('{"type": "produce", "id": "1", "value": {"n": 12345678901234567890123}}')
    assert isinstance(said, ProduceMessage)
    assert said.value == {"n": 12345678901234567890123}


def test_brackets_in_a_text_are_neither_arrays_nor_objects():
    text = '[{\\"}' * 40_000
    said = parse_message(json.dumps({"type": "produce", "id": "1", "value": text}))
    assert isinstance(said, ProduceMessage) and said.value == text


def test_the_socket_of_a_routes_own_path_needs_no_id():
    said = parse_message('{"type": "credit", "n": 5}')
    assert isinstance(said, CreditMessage) and said.id is None


BAD: list[tuple[Any, str]] = [
    ("", "not JSON"),
    ("{", "not JSON"),
    ("NaN", "not JSON"),
    ('{"type": "ping", "id": NaN}', "not JSON"),
    ('{"type": "ping", "id": "\\ud800"}', "not JSON"),
    ("[" * 10_000, "not JSON"),
    ("[" * 100_000, "40000 arrays"),
    ('{"type": "produce", "id": "a", "value": [' + "[]," * 40_000 + "1]}", "40000 arrays"),
    ("[]", "object"),
    ("null", "object"),
    ('"ping"', "object"),
    ({}, "type is missing"),
    ({"type": None}, "type is missing"),
    ({"type": 7}, "type is missing"),
    ({"type": "subscibe"}, "did you mean 'subscribe'?"),
    ({"type": "x" * 1000}, "one of subscribe"),
    ({"type": "subscribe", "path": "/a"}, "has no 'id'"),
    ({"type": "subscribe", "id": "a"}, "has no 'path'"),
    ({"type": "subscribe", "id": 1, "path": "/a"}, "'id'"),
    ({"type": "subscribe", "id": "", "path": "/a"}, "'id'"),
    ({"type": "subscribe", "id": "x" * 65, "path": "/a"}, "'id'"),
    ({"type": "subscribe", "id": "a", "path": None}, "'path'"),
    ({"type": "subscribe", "id": "a", "path": ["/a"]}, "'path'"),
    ({"type": "subscribe", "id": "a", "path": "/a", "credit": -1}, "'credit'"),
    ({"type": "subscribe", "id": "a", "path": "/a", "credit": 1.5}, "'credit'"),
    ({"type": "subscribe", "id": "a", "path": "/a", "credit": True}, "'credit'"),
    ({"type": "subscribe", "id": "a", "path": "/a", "credit": 10**30}, "'credit'"),
    ({"type": "subscribe", "id": "a", "path": "/a", "filter": "key"}, "'filter'"),
    ({"type": "subscribe", "id": "a", "path": "/a", "fields": "/id"}, "'fields'"),
    ({"type": "subscribe", "id": "a", "path": "/a", "fields": [1]}, "'fields'"),
    ({"type": "subscribe", "id": "a", "path": "/a", "lasteventid": ""}, "'lastEventId'?"),
    ({"type": "subscribe", "id": "a", "path": "/a", "last_event_id": ""}, "'lastEventId'?"),
    ({"type": "subscribe", "id": "a", "path": "/a", "from_": "live"}, "'from'?"),
    ({"type": "unsubscribe"}, "has no 'id'"),
    ({"type": "unsubscribe", "id": "a", "path": "/"}, "unknown member of unsubscribe"),
    ({"type": "credit", "id": "a"}, "has no 'n'"),
    ({"type": "credit", "id": "a", "n": 0}, "'n'"),
    ({"type": "credit", "id": "a", "n": "5"}, "'n'"),
    ({"type": "change", "id": "a", "fitler": {}}, "did you mean 'filter'?"),
    ({"type": "produce", "id": "a"}, "has no 'value'"),
    ({"type": "produce", "value": 1}, "has no 'id'"),
    ({"type": "produce", "id": "a", "value": 1, "key": 5}, "'key'"),
    ({"type": "produce", "id": "a", "value": 1, "headers": {"a": 1}}, "'headers'"),
    ({"type": "produce", "id": "a", "value": 1, "headers": [["a", "b"]]}, "'headers'"),
    ({"type": "produce", "id": "a", "value": 1, "idempotencyKey": ""}, "'idempotencyKey'"),
    ({"type": "produce", "id": "a", "value": 1, "idempotencykey": "x"}, "'idempotencyKey'?"),
    ({"type": "token"}, "has no 'jwt'"),
    ({"type": "token", "jwt": ""}, "'jwt'"),
    ({"type": "token", "jwt": {"alg": "none"}}, "'jwt'"),
    ({"type": "ping", "id": 5}, "'id'"),
]


@pytest.mark.parametrize(("message", "says"), BAD)
def test_what_is_wrong_is_said_with_what_to_write_instead(message: Any, says: str):
    text = message if isinstance(message, str) else json.dumps(message)
    with pytest.raises(BadMessageError) as refused:
        parse_message(text)
    assert says in str(refused.value)
    assert refused.value.status == 400
    assert len(str(refused.value)) < 400


def test_an_error_is_about_the_id_that_the_message_names():
    with pytest.raises(BadMessageError) as refused:
        parse_message('{"type": "subscribe", "id": "a"}')
    assert refused.value.message_id == "a"


def test_what_a_client_chooses_to_see_is_refused_by_its_length():
    """A list of 60,000 fields took 80 ms."""
    said = {"type": "subscribe", "id": "a", "path": "/orders", "fields": ["/a"] * 60_000}
    with pytest.raises(BadMessageError, match="'fields' has more than 65536 bytes") as refused:
        parse_message(json.dumps(said))
    assert refused.value.message_id == "a"


def test_the_longest_subscription_is_read_however_it_is_escaped():
    filter = {"value": {"/name": "\u6f22" * 15_000}}
    said = {"type": "subscribe", "id": "a", "path": "/orders", "filter": filter,
            "lastEventId": "x" * 60_000}  # fmt: skip
    assert len(json.dumps(said)) > 140_000
    assert isinstance(parse_message(json.dumps(said)), SubscribeMessage)
