from __future__ import annotations

import pytest
from starlette.requests import Request

from gateway.web.http.content import StaticDocument


def build_request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": raw})


@pytest.mark.parametrize(
    ("kind", "told"),
    [("text/html", "text/html; charset=utf-8"), ("application/json", "application/json")],
)
def test_text_names_its_charset_and_json_has_none(kind: str, told: str):
    answer = StaticDocument("é".encode(), kind).respond(build_request())
    assert (answer.status_code, answer.body) == (200, "é".encode())
    assert answer.headers["content-type"] == told


def test_another_content_has_another_tag_and_is_sent():
    one, other = StaticDocument(b"one", "text/css"), StaticDocument(b"other", "text/css")
    tag = one.respond(build_request()).headers["etag"]
    assert one.respond(build_request(if_none_match=tag)).status_code == 304
    assert other.respond(build_request(if_none_match=tag)).status_code == 200


def test_its_headers_come_with_304_too():
    document = StaticDocument(b"page", "text/html", {"Referrer-Policy": "no-referrer"})
    for condition in ("", "*"):
        answer = document.respond(build_request(if_none_match=condition))
        assert answer.headers["referrer-policy"] == "no-referrer"
