"""A reply as HTTP has it, and whose it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from starlette.responses import Response

from gateway.api.events import Record
from gateway.config import Settings, Topic
from gateway.errors import RequestError
from gateway.web.access import Grant, Granted
from gateway.web.exchange.reply import build_correlation_id, build_response
from gateway.web.routing.paths import Match
from gateway.web.routing.replies import Reply

TOPIC = Topic.model_validate({"name": "replies", "value": {"model": "json"}})
TOPICS = SimpleNamespace(get_settings=lambda name: TOPIC)
HUB: Any = SimpleNamespace(topics=TOPICS)


def build_answer(value: bytes | None, *headers: tuple[str, bytes | None]) -> Response:
    return build_response(HUB, "replies", Reply(Record("r", 0, 0, 0, None, value, headers), 0.0))


def test_a_reply_without_a_word_is_200_of_its_topics_type():
    response = build_answer(b"{}")
    assert (response.status_code, response.body) == (200, b"{}")
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"


def test_headers_for_the_client_are_kept_each_time_they_come():
    response = build_answer(
        b"", ("Set-Cookie", b"a=1"), ("Set-Cookie", b"b=2"), ("cache-control", b"max-age=9")
    )
    assert response.headers.getlist("set-cookie") == ["a=1", "b=2"]
    assert response.headers["cache-control"] == "max-age=9"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("zilla:correlation-id", b"1"), (":path", b"/"), ("Content-Length", b"9"),
        ("Transfer-Encoding", b"chunked"), ("connection", b"close"), ("a b", b"1"), ("", b"1"),
        ("x", b"1\r\nSet-Cookie: a=b"), ("y", None), ("idempotency-key", b"1"),
        ("Content-Security-Policy", b"none"), ("é", b"1"),
    ],
)  # fmt: skip
def test_what_is_not_the_clients_or_no_header_is_left_out(name: str, content: bytes | None):
    plain, with_it = build_answer(b"v"), build_answer(b"v", (name, content))
    assert with_it.raw_headers == plain.raw_headers


@pytest.mark.parametrize("status", [204, 304])
def test_a_status_without_a_body_has_none(status: int):
    response = build_answer(b"v", (":status", str(status).encode()))
    assert (response.status_code, response.body) == (status, b"")
    assert "content-type" not in response.headers


@pytest.mark.parametrize("status", [b"100", b"600", b"20", b"OK", b"2000"])
def test_what_is_no_status_is_a_mistake_of_the_service(status: bytes):
    with pytest.raises(RequestError) as raised:
        build_answer(b"v", (":status", status))
    assert raised.value.status == 502


def build_match(identity: str = "", path: str = "/ask") -> Match:
    with_ = {"capability": "produce", "topic": "orders", "replyTo": "orders"}
    kafka = {"servers": ["a:1"], "topics": [{"name": "orders"}]}
    routes = [{"when": [{"path": path}], "with": with_}]
    route = Settings.model_validate({"kafka": kafka, "routes": routes}).routes[0]
    granted = Granted([Grant("dev", identity)]) if identity else Granted()
    return Match(route, granted=granted)


def test_without_an_idempotency_key_no_two_are_the_same():
    assert len({build_correlation_id(build_match(), None) for _ in range(100)}) == 100


def test_tried_again_it_is_the_same_for_the_same_client_and_route_only():
    ada = build_correlation_id(build_match("ada"), "key")
    assert ada == build_correlation_id(build_match("ada"), "key")
    others = [
        (build_match("bob"), "key"),
        (build_match("ada"), "other"),
        (build_match("ada", "/b"), "key"),
    ]
    assert ada not in [build_correlation_id(*each) for each in others]
    assert build_correlation_id(build_match("ada"), None)[-16:] == ada[-16:]
