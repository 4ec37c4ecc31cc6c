"""Which route answers to a path and a method."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.exceptions import HTTPException

from gateway.config import Settings
from gateway.web.routing.paths import Paths

STREAM: dict[str, Any] = {"topic": "orders"}
COMMAND = {"capability": "produce", "topic": "orders"}
DOCUMENT = {"capability": "fetch", "topic": "orders", "filters": [{"key": "${params.id}"}]}
LATER = {"location": "/replies/${params.id}/${correlationId}"}
ROUTES: list[tuple[str, list[tuple[str, str | None]], dict[str, Any]]] = [
    ("write", [("/orders", None)], COMMAND),
    ("stream", [("/orders", None)], {**STREAM, "produce": True}),
    ("document", [("/orders/{id}", None)], DOCUMENT),
    ("change", [("/orders/{id}", "PUT"), ("/orders/{id}", "DELETE")],
     {**COMMAND, "key": "${params.id}"}),
    ("ask", [("/ask/{id}", None)], {**COMMAND, "replyTo": "orders", "async": LATER}),
    ("delete", [("/gone/{id}", "DELETE")], {**COMMAND, "key": "${params.id}"}),
    ("all", [("/all/*", None)], STREAM),
]  # fmt: skip


@pytest.fixture(scope="module")
def paths() -> Paths:
    def when(path: str, method: str | None) -> dict[str, str]:
        return {"path": path} if method is None else {"path": path, "method": method}

    routes = [{"when": [when(*each) for each in whens], "with": w} for _, whens, w in ROUTES]
    kafka = {"servers": ["a:1"], "topics": [{"name": "orders"}]}
    settings = Settings.model_validate({"kafka": kafka, "routes": routes})
    pairs = zip(settings.routes, ROUTES, strict=True)
    names.update({id(route): name for route, (name, *_) in pairs})
    kept.append(settings)
    return Paths(settings.routes)


names: dict[int, str] = {}
kept: list[Settings] = []


@pytest.mark.parametrize(
    ("path", "method", "name"),
    [
        ("/orders", "POST", "write"),
        ("/orders", "GET", "stream"),
        ("/orders", None, "stream"),
        ("/orders/7", "GET", "document"),
        ("/orders/7", "PUT", "change"),
        ("/orders/7", "DELETE", "change"),
        ("/ask/7", "POST", "ask"),
        ("/replies/7/a", "GET", "ask"),
        ("/all/of/it", None, "all"),
    ],
)
def test_a_route_is_found_by_path_and_method(paths, path, method, name):
    found = paths.find_route(path, method)
    assert names[id(found.route)] == name
    assert found.is_reply == path.startswith("/replies")


def test_parameters_of_a_path_are_found_with_it(paths: Paths):
    assert paths.find_route("/replies/a%2Fb/c", "GET").params == {"id": "a/b", "correlationId": "c"}


@pytest.mark.parametrize(
    ("path", "method", "allow"),
    [
        ("/orders", "PUT", "POST, GET, HEAD, OPTIONS"),
        ("/orders/7", "POST", "GET, HEAD, PUT, DELETE, OPTIONS"),
        ("/orders/7", None, "GET, HEAD, PUT, DELETE, OPTIONS"),
        ("/ask/7", "GET", "POST, OPTIONS"),
        ("/ask/7", None, "POST, OPTIONS"),
        ("/replies/7/a", "POST", "GET, HEAD, OPTIONS"),
        ("/replies/7/a", None, "GET, HEAD, OPTIONS"),
    ],
)
def test_a_path_that_does_not_answer_to_a_method_says_to_which(paths, path, method, allow):
    with pytest.raises(HTTPException) as raised:
        paths.find_route(path, method)
    assert (raised.value.status_code, raised.value.headers) == (405, {"Allow": allow})
    assert paths.format_allow(path) == allow


def test_the_server_as_a_whole_answers_to_the_methods_of_all_paths(paths: Paths):
    assert set(paths.format_allow("*").split(", ")) == {
        "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS",
    }  # fmt: skip


def test_a_path_of_no_route_is_none_for_every_method(paths: Paths):
    for ask in (paths.find_route, paths.format_allow, paths.find_writable):
        with pytest.raises(HTTPException) as raised:
            ask("/nowhere")
        assert raised.value.status_code == 404


@pytest.mark.parametrize(
    ("path", "name"),
    [("/orders", "write"), ("/orders/7", "change"), ("/ask/7", "ask"), ("/all/of/it", "all")],
)
def test_records_over_websocket_go_to_the_route_that_takes_them(paths: Paths, path: str, name: str):
    assert names[id(paths.find_writable(path).route)] == name


@pytest.mark.parametrize("path", ["/gone/7", "/replies/7/a"])
def test_where_records_are_only_deleted_or_replied_to_none_is_taken(paths: Paths, path: str):
    with pytest.raises(HTTPException):
        paths.find_writable(path)


@pytest.mark.parametrize(("path", "meant"), [("/order", "/orders"), ("/al/of/it", None)])
def test_a_path_that_no_route_has_is_told_the_nearest(paths: Paths, path: str, meant: str | None):
    with pytest.raises(HTTPException) as raised:
        paths.find_route(path)
    assert raised.value.detail.endswith(f"did you mean '{meant}'?") is (meant is not None)
