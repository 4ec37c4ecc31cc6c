"""What is said of requests that are no streams, to programs and to people."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config import Settings
from gateway.web import discovery
from gateway.web.discovery.description import build_description
from gateway.web.discovery.html import render_page

COMMAND = {"capability": "produce", "topic": "orders"}
BY_ID = [{"key": "${params.id}"}]
LATER = {"replyTo": "replies", "async": {"location": "/replies/${correlationId}"}}
ROUTES: list[dict[str, Any]] = [
    {"when": [{"path": "/orders/{id}"}],
     "with": {"capability": "fetch", "topic": "orders", "filters": BY_ID}},
    {"when": [{"path": "/orders/{id}", "method": method} for method in ("PUT", "DELETE")],
     "with": {**COMMAND, "key": "${params.id}"}, "guarded": {"<dev>": []}},
    {"when": [{"path": "/ask"}], "with": {**COMMAND, **LATER}},
]  # fmt: skip


def build_settings(*routes: dict[str, Any]) -> Settings:
    kafka = {"servers": ["a:1"], "topics": [{"name": "orders"}, {"name": "replies"}]}
    users = {"ada": {"token": "secret-of-ada"}}
    guards = {"<dev>": {"type": "inline", "users": users}}
    return Settings.model_validate({"kafka": kafka, "routes": routes, "guards": guards})


def describe_routes(*routes: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(
        discovery.format_json(build_description(build_settings(*routes), "http://gw"))
    )
    return made


def test_requests_that_are_no_streams_are_listed_apart():
    said = describe_routes(*ROUTES)
    assert (said["streams"], "hint" in said) == ([], False)
    listed = [(each["method"], each["path"], each["capability"]) for each in said["requests"]]
    assert listed == [
        ("GET", "/orders/{id}", "fetch"),
        ("PUT", "/orders/{id}", "produce"),
        ("DELETE", "/orders/{id}", "produce"),
        ("POST", "/ask", "produce"),
    ]
    ask = said["requests"][-1]
    assert (ask["replies"], ask["location"]) == (True, "/replies/${correlationId}")
    assert said["requests"][1]["guarded"] == ["<dev>"]


def test_where_all_are_streams_nothing_is_said_of_others():
    said = describe_routes({"when": [{"path": "/events"}], "with": {"topic": "orders"}})
    assert "requests" not in said and len(said["streams"]) == 1


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (0, "curl 'http://gw/orders/{id}'"),
        (1, "curl -X PUT -H 'Content-Type: application/json' -d '{}' "
            "-u NAME:PASSWORD 'http://gw/orders/{id}'"),
        (2, "curl -X DELETE -u NAME:PASSWORD 'http://gw/orders/{id}'"),
        (3, "curl -X POST -H 'Content-Type: application/json' -d '{}' http://gw/ask"),
    ],
)  # fmt: skip
def test_each_has_a_line_to_try(number: int, line: str):
    assert describe_routes(*ROUTES)["requests"][number]["line"] == line


def test_the_page_has_them_as_text_and_no_secret():
    page = render_page(build_settings(*ROUTES), "http://gw")
    assert page.count('<article class="exchange"') == 4
    assert "DELETE /orders/{id}" in page and "answers with its reply" in page
    assert "<dev>" not in page and "&lt;dev&gt;" in page
    assert "secret-of-ada" not in page
