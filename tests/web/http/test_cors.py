"""What pages of other sites are told, by the policy of one `access-control`."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.exceptions import HTTPException

from gateway.config import AccessControl, Settings
from gateway.web.http.browsers import CorsPolicies, CorsPolicy, add_cors_headers, parse_cors_request

SHOP, EVIL = "https://shop.example", "https://evil.example"
EXPOSED = {"access-control-expose-headers": "ETag, Link, Location, Retry-After"}
ANY: dict[str, Any] = {"policy": "cross-origin"}
LISTED = {**ANY, "allow": {"origins": [SHOP]}}
LOGIN = {**ANY, "allow": {"origins": [SHOP], "credentials": True}}
STRICT = {**ANY, "allow": {"origins": ["*"], "methods": ["put"], "headers": ["X-Mine"]}}


def build_policy(written: dict[str, Any]) -> CorsPolicy:
    return CorsPolicy(AccessControl.model_validate(written))


def decode_headers(headers: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in headers}


@pytest.mark.parametrize(
    ("written", "origin", "answer"),
    [
        (ANY, EVIL, {"access-control-allow-origin": "*", **EXPOSED}),
        (LISTED, SHOP, {"access-control-allow-origin": SHOP, **EXPOSED}),
        (LISTED, EVIL, None),
        (LISTED, SHOP.upper(), None),
        (LISTED, "null", None),
        ({}, SHOP, None),
        ({"allow": {"origins": [SHOP]}}, SHOP, None),
        (
            {**LOGIN, "expose": {"headers": ["x-request-id"]}}, SHOP,
            {
                "access-control-allow-origin": SHOP, "access-control-allow-credentials": "true",
                "access-control-expose-headers": "ETag, Link, Location, Retry-After, x-request-id",
            },
        ),
    ],
)  # fmt: skip
def test_an_answer_may_be_read_by_pages_that_are_listed(written, origin, answer):
    """The tag of a document could be read by pages of the gateway's own origin only."""
    made = build_policy(written)
    assert made.allows_origin(origin) == (answer is not None)
    if answer is not None:
        assert decode_headers(made.build_headers(origin)) == answer


@pytest.mark.parametrize(
    ("written", "origin", "method", "names", "allowed"),
    [
        (ANY, EVIL, "GET", "", True),
        (ANY, EVIL, "DELETE", "authorization, x-any", True),
        (LISTED, SHOP, "GET", "last-event-id", True),
        (LISTED, EVIL, "GET", "", False),
        (STRICT, EVIL, "PUT", "x-mine, Last-Event-ID, content-type", True),
        (STRICT, EVIL, "POST", "", True),
        (STRICT, EVIL, "DELETE", "", False),
        (STRICT, EVIL, "GET", "authorization", False),
    ],
)
def test_a_preflight_says_what_may_be_asked(written, origin, method, names, allowed):
    made = build_policy(written)
    if not allowed:
        with pytest.raises(HTTPException) as refused:
            made.respond_preflight(origin, method, names)
        assert refused.value.status_code == 400 and "see access-control" in refused.value.detail
        return
    answer = made.respond_preflight(origin, method, names)
    said = answer.headers
    assert answer.status_code == 200
    assert said["access-control-allow-origin"] == (SHOP if written is LISTED else "*")
    assert method in said["access-control-allow-methods"].split(", ")
    may = {name.strip() for name in said.get("access-control-allow-headers", "").lower().split(",")}
    asked = {name.strip().lower() for name in names.split(",") if name.strip()}
    assert asked - {"content-type"} <= may
    assert said["access-control-max-age"] == "600"
    assert "Origin" in said["vary"]


def build_settings(listen: dict[str, Any], *routes: dict[str, Any] | None) -> Settings:
    made = [
        {"when": [{"path": f"/{n}"}], "with": {"topic": "orders"}}
        | ({} if access is None else {"access-control": access})
        for n, access in enumerate(routes)
    ]
    return Settings.model_validate(
        {
            "kafka": {"servers": ["a:1"], "topics": [{"name": "orders"}]},
            "listen": {"access-control": listen},
            "routes": made,
        }
    )


def test_a_route_has_its_own_policy_or_that_of_all():
    made = build_settings(LISTED, None, ANY, {})
    cors = CorsPolicies.from_settings(made)
    assert cors is not None
    allowed = [cors.get_policy(route).allows_origin(EVIL) for route in made.routes]
    assert allowed == [False, True, False]
    allowed = [cors.get_policy(route).allows_origin(SHOP) for route in (None, *made.routes)]
    assert allowed == [True, True, True, False]
    assert cors.get_shared_policy(EVIL).allows_origin(EVIL) and cors.get_shared_policy(
        SHOP
    ).allows_origin(SHOP)


@pytest.mark.parametrize("routes", [(), (None, None), ({}, None)])
def test_where_no_other_site_may_do_anything_nothing_is_asked(routes: Any):
    assert CorsPolicies.from_settings(build_settings({}, *routes)) is None


@pytest.mark.parametrize(
    ("method", "headers", "found"),
    [
        ("GET", {}, None),
        ("GET", {"origin": SHOP}, (SHOP, "GET", None)),
        ("OPTIONS", {"origin": SHOP}, (SHOP, "OPTIONS", None)),
        ("OPTIONS", {"access-control-request-method": "PUT"}, None),
        ("OPTIONS", {"origin": SHOP, "access-control-request-method": "PUT"}, (SHOP, "PUT", "")),
        ("GET", {"origin": SHOP, "access-control-request-method": "PUT"}, (SHOP, "GET", None)),
        (
            "OPTIONS",
            {"origin": SHOP, "access-control-request-method": "GET",
             "access-control-request-headers": "x-a,x-b"},
            (SHOP, "GET", "x-a,x-b"),
        ),
    ],
)  # fmt: skip
def test_what_a_page_asks_before_it_asks(method: str, headers: dict[str, str], found: Any):
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    asked = parse_cors_request({"type": "http", "method": method, "headers": raw})
    assert (asked and (asked.origin, asked.method, asked.header_names)) == found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], "origin"),
        ([(b"vary", b"Accept")], "accept, origin"),
        ([(b"Vary", b"Accept, ORIGIN")], "accept, origin"),
        ([(b"vary", b"*")], "*"),
    ],
)
async def test_caches_are_told_that_the_answer_is_for_pages_of_this_origin(before: Any, after: str):
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    start = {"type": "http.response.start", "status": 200, "headers": before}
    for message in (start, {"type": "http.response.body", "body": b"x"}):
        await add_cors_headers(send, [(b"access-control-allow-origin", b"*")])(message)
    assert before == start["headers"], "what is shared by answers stays as it is"
    headers = sent[0]["headers"]
    assert (b"access-control-allow-origin", b"*") in headers
    vary = [value.decode().lower() for name, value in headers if name.lower() == b"vary"]
    assert ", ".join(vary) == after
    assert sent[1] == {"type": "http.response.body", "body": b"x"}
