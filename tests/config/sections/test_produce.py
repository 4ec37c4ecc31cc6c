"""Routes that write records, show documents, and answer with replies."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from gateway.config import Settings, dumps, loads

COMMAND = {"capability": "produce", "topic": "orders"}
DOCUMENT = {"capability": "fetch", "topic": "orders", "filters": [{"key": "${params.id}"}]}
LATER = {"location": "/replies/${params.id}/${correlationId}"}
ASK = {**COMMAND, "replyTo": "replies", "async": LATER}


def made(with_: dict[str, Any], *more: dict[str, Any], **when: Any) -> Settings:
    kafka = {"servers": ["a:1"], "topics": [{"name": "orders"}, {"name": "replies"}]}
    first = {"when": [{"path": "/orders/{id}", **when}], "with": with_}
    return Settings.model_validate({"kafka": kafka, "routes": [first, *more]})


def refused(words: str, with_: dict[str, Any], *more: dict[str, Any], **when: Any) -> None:
    with pytest.raises(ValidationError) as raised:
        made(with_, *more, **when)
    messages = [error["msg"] for error in raised.value.errors()]
    assert any(all(word in each for word in words.split()) for each in messages), messages


@pytest.mark.parametrize(
    ("with_", "method", "answers"),
    [
        ({"topic": "orders"}, None, "GET"),
        (DOCUMENT, None, "GET"),
        (COMMAND, None, "POST"),
        (COMMAND, "PUT", "PUT"),
        ({**COMMAND, "key": "${params.id}"}, "DELETE", "DELETE"),
    ],
)
def test_a_route_answers_to_its_method_or_to_that_of_its_capability(with_, method, answers):
    route = made(with_, method=method).routes[0]
    assert route.get_method(route.when[0]) == answers


@pytest.mark.parametrize("options", [COMMAND, DOCUMENT, ASK, {"topic": "orders", "produce": True}])
def test_what_was_dumped_loads_as_the_same(options: dict[str, Any]):
    settings = made(options)
    text = dumps(settings)
    assert loads(text) == settings
    assert YAML(typ="safe").load(text)["routes"][0]["with"]["topic"] == "orders"


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("'key' capability: produce", {"topic": "orders", "key": "a"}),
    ("'replyTo' capability: produce", {**DOCUMENT, "replyTo": "replies"}),
    ("'topics' capability: stream", {"capability": "produce", "topics": ["orders"]}),
    ("'topic' missing", {"capability": "produce", "topics": ["orders"]}),
    ("'produce' capability: stream", {**COMMAND, "produce": True}),
    ("'heartbeat' capability: stream", {**COMMAND, "heartbeat": "1s"}),
    ("'history' capability: stream", {**DOCUMENT, "history": "1h"}),
    ("'fetsch' 'fetch'", {**DOCUMENT, "capability": "fetsch"}),
    ("'timeout' replyTo", {**COMMAND, "timeout": "1s"}),
    ("'async' replyTo", {**COMMAND, "async": LATER}),
    ("waits written", {**ASK, "acks": "none"}),
    ("'idempotency-key' itself", {**COMMAND, "overrides": {"idempotency-key": "a"}}),
    ("unknown 'reply'", {**COMMAND, "replyTo": "reply"}),
    ("'costumer' path", {**COMMAND, "key": "${params.costumer}"}),
    ("'costumer' path", {**COMMAND, "overrides": {"a": "${params.costumer}"}}),
    ("guarded", {**COMMAND, "key": "${guarded['jwt'].identity}"}),
    ("message.key", {**COMMAND, "key": "${message.key}"}),
    ("idempotencyKey", {**COMMAND, "topic": "${idempotencyKey}"}),
    ("correlationId", {**COMMAND, "key": "${correlationId}"}),
    ("${correlationId} identifies", {**ASK, "async": {"location": "/replies"}}),
    ("whole segment", {**ASK, "async": {"location": "/r;${correlationId}"}}),
    ("'costumer' path", {**ASK, "async": {"location": "/${params.costumer}/${correlationId}"}}),
    ("query.a", {**ASK, "async": {"location": "/${query.a}/${correlationId}"}}),
    ("document key", {"capability": "fetch", "topic": "orders"}),
    ("names no key", {**DOCUMENT, "filters": [{"headers": {"a": "b"}}]}),
    ("names no key", {**DOCUMENT, "filters": [{"key": {"prefix": "a"}}]}),
    ("one key", {**DOCUMENT, "filters": [{"key": "a"}, {"key": "b"}]}),
    ("'topics' capability: stream", {**DOCUMENT, "topics": ["orders"]}),
]


@pytest.mark.parametrize(("words", "with_"), REFUSED)
def test_what_does_not_fit_a_capability_is_refused(words: str, with_: dict[str, Any]):
    refused(words, with_)


@pytest.mark.parametrize(
    ("words", "with_", "method"),
    [
        ("PUT capability: produce", {"topic": "orders"}, "PUT"),
        ("POST capability: produce", DOCUMENT, "POST"),
        ("GET writes nothing", COMMAND, "GET"),
        ("DELETE needs key", COMMAND, "DELETE"),
    ],
)
def test_a_method_that_its_capability_does_not_have_is_refused(words, with_, method):
    refused(words, with_, method=method)


def test_a_path_may_be_of_several_routes_by_its_method_but_not_of_two_by_one():
    again = {"when": [{"path": "/orders/{id}"}], "with": {"topic": "orders"}}
    made(COMMAND, again)
    refused("taken routes[0]", DOCUMENT, again)
    shadow = {"when": [{"path": "/replies/{a}/{b}"}], "with": {"topic": "orders"}}
    refused("taken routes[0]", ASK, shadow)
