"""Who is let in to which stream, on every wire, over the socket of a gateway as it runs.

Tokens are signed by keys made here, and the keys are had from a server of HTTP.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
import pytest_asyncio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from support.app_server import running_app
from support.brokers import embedded_kafka
from support.gateways import GatewayThread, build_config, create_http_client, running_gateway
from support.issuer import (
    AUDIENCE,
    ISSUER_NAME,
    JwksApp,
    TokenIssuer,
    get_rsa_key,
)
from support.multiplex import MultiplexClient
from support.records import RecordToSend, produce_records
from support.stream_attempts import (
    RESPONSE_TIMEOUT_S,
    WIRE_NAMES,
    AttemptOptions,
    AttemptResult,
    attempt_stream,
)

from gateway.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.asyncio(loop_scope="module")
of_module: Any = {"scope": "module", "loop_scope": "module"}

kafka = embedded_kafka({"orders": 1})

ISSUER, MACHINES = TokenIssuer(), TokenIssuer("HS256", "shared")
SHOP, EVIL = "https://shop.example", "https://evil.example"
PAST = 1_000_000_000
READ = "orders:read"
RECORDS = [
    RecordToSend(b'{"owner":"ada","of":"adas"}', b"adas"),
    RecordToSend(b'{"owner":"bob","of":"bobs"}', b"bobs"),
]
PLACE = "{credentials}"
OTHER_WIRES = [wire for wire in WIRE_NAMES if wire != "events"]  # than that of all the cases
BEARER = {"authorization": f"Bearer {PLACE}"}

GUARDED: Mapping[str, Mapping[str, list[str]]] = {
    "open": {},
    "read": {"login": [READ]},
    "any": {"login": []},
    "shared": {"machines": []},
    "session": {"session": ["staff"]},
    "both": {"login": [READ], "session": []},
    "dev": {"dev": ["read"]},
}


def path(name: str) -> str:
    return f"/events/{name}"


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Knows the cookie of ada, and a ticket, and fails on others'."""
    request = Request(scope)
    shown = request.cookies.get("session") or request.query_params.get("ticket")
    answers: Mapping[str | None, Response] = {
        "of-ada": JSONResponse({"identity": "ada", "roles": ["staff"]}),
        "of-guest": JSONResponse({"identity": "guest"}),
        "old": Response(status_code=401),
    }
    await answers.get(shown, Response(status_code=500))(scope, receive, send)


@pytest_asyncio.fixture(**of_module)
async def gateway(kafka: EmbeddedKafka) -> AsyncIterator[GatewayThread]:
    await produce_records(kafka.bootstrap, "orders", RECORDS)
    async with running_app(JwksApp(ISSUER)) as issuer, running_app(application) as app:
        guards = {
            "login": {
                "type": "jwt", "issuer": ISSUER_NAME, "audience": AUDIENCE, "keys": issuer,
                "jwks": {"timeout": "30s"},
                "credentials": {
                    "headers": BEARER,
                    "cookies": {"access": PLACE},
                    "query": {"access_token": PLACE, "x": PLACE},
                },
            },
            "machines": {
                "type": "jwt", "issuer": ISSUER_NAME, "audience": AUDIENCE, "algorithms": ["HS256"],
                "keys": MACHINES.jwks,
            },
            "session": {
                "type": "http", "url": app, "timeout": "30s",
                "forward": {"headers": ["cookie"], "query": ["ticket"]},
            },
            "dev": {
                "type": "inline", "credentials": {"headers": BEARER, "query": {"my-key": PLACE}},
                "users": {
                    "ada": {"password": "lovelace", "roles": ["read"]},
                    "bot": {"token": "t0p-secret", "roles": ["read"]},
                    "guest": {"token": "t0p-guest"},
                },
            },
        }  # fmt: skip
        routes = [
            {
                "when": [{"path": path(name)}],
                **({"guarded": guarded} if guarded else {}),
                "with": {"topic": "orders"},
            }
            for name, guarded in GUARDED.items()
        ]
        routes.append(
            {"when": [{"path": "/write"}], "guarded": {"login": ["orders:write"]},
             "with": {"topic": "orders", "produce": True}}
        )  # fmt: skip
        own = {"key": "${params.customer}", "value": {"/owner": "${guarded['login'].identity}"}}
        routes.append(
            {"when": [{"path": "/of/{customer}"}], "guarded": {"login": []},
             "with": {"topic": "orders", "filters": [own], "clientFilters": True}}
        )  # fmt: skip
        listen = {
            "access-control": {
                "policy": "cross-origin", "allow": {"origins": [SHOP], "credentials": True}
            }
        }  # fmt: skip
        config = build_config(kafka.bootstrap, ["orders"], routes, guards=guards, listen=listen)
        async with running_gateway(config) as running:
            yield running


@pytest.fixture(autouse=True)
def debug_log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Of the test, in detail: no secret may be in it."""
    for name in ("gateway.web", "gateway.hub"):
        caplog.set_level("DEBUG", name)
    return caplog


def token(**options: Any) -> str:
    return ISSUER.issue_token(scope=f"profile {READ}", **options)


# (the token, the status, a word of what is said); tests/web/access/test_jwt.py has each other kind
TOKENS: Mapping[str, tuple[Callable[[], str], int, str]] = {
    "good": (token, 200, ""),
    "expired": (lambda: token(exp=PAST), 401, "expired"),
    "of another key": (lambda: token(key=get_rsa_key(1)), 401, "signature"),
    "without the role": (lambda: ISSUER.issue_token(scope="profile"), 403, READ),
}


def told_well(told: AttemptResult, wire: str, status: int, word: str) -> None:
    assert told.status == status, told
    if status == 200:
        assert "begin" in told.text
        return
    assert any(each in told.text for each in word.split("|")), told
    if wire == "multiplex":  # a message, which has no header
        assert told.problem["code"] == {401: "unauthorized", 403: "forbidden"}[status]
        return
    kinds = {401: 'error="invalid_token"', 403: 'error="insufficient_scope"'}
    assert kinds[status] in told.challenge
    assert told.headers["content-type"] == "application/problem+json"
    assert told.problem["status"] == status and ";" in told.problem["detail"]
    if status == 403:
        assert told.problem["roles"] == [word] and f'scope="{word}"' in told.challenge


def nowhere(secret: str, log: str, told: AttemptResult) -> None:
    """Not in the answer, and not in the log."""
    for part in secret.split("."):
        if len(part) > 8:
            assert part not in told.text + str(told.headers)
            assert part not in log


@pytest.mark.parametrize("wire", WIRE_NAMES)
@pytest.mark.parametrize("case", TOKENS)
async def test_a_token_opens_what_it_is_for(
    gateway: GatewayThread, debug_log: pytest.LogCaptureFixture, wire: str, case: str
):
    make, status, word = TOKENS[case]
    secret = make()
    told = await attempt_stream(
        wire, gateway.base_url, path("read"), AttemptOptions.with_bearer(secret)
    )
    told_well(told, wire, status, word)
    nowhere(secret, debug_log.text, told)


WAYS: Mapping[str, Callable[[str], AttemptOptions]] = {
    "header": AttemptOptions.with_bearer,
    "header in lower case": lambda secret: AttemptOptions({"authorization": f"bearer {secret}"}),
    "cookie": lambda secret: AttemptOptions({"Cookie": f"theme=dark; access={secret}"}),
    "query": lambda secret: AttemptOptions(query={"access_token": secret}),
    "query under a name of its own": lambda secret: AttemptOptions(
        query={"from": "live", "x": secret}
    ),
    "subprotocol": lambda secret: AttemptOptions(subprotocols=("gateway.v1", f"bearer.{secret}")),
}


@pytest.mark.parametrize(
    ("way", "wire"),
    [
        (way, wire)
        for way in WAYS
        for wire in (("socket", "multiplex") if way == "subprotocol" else ("events", "socket"))
    ],
)
async def test_a_token_may_come_in_several_ways_and_is_never_told_again(
    gateway: GatewayThread, debug_log: pytest.LogCaptureFixture, wire: str, way: str
):
    for secret, status, word in ((token(), 200, ""), (token(exp=PAST), 401, "expired")):
        told = await attempt_stream(wire, gateway.base_url, path("read"), WAYS[way](secret))
        told_well(told, wire, status, word)
        nowhere(secret, debug_log.text, told)


GUARD_CASES: Sequence[tuple[str, AttemptOptions, int]] = [
    ("open", AttemptOptions.with_bearer("nonsense"), 200),
    ("any", AttemptOptions.with_bearer(ISSUER.issue_token()), 200),
    ("shared", AttemptOptions.with_bearer(MACHINES.issue_token()), 200),
    ("shared", AttemptOptions.with_bearer(ISSUER.issue_token()), 401),
    ("session", AttemptOptions({"Cookie": "session=of-ada"}), 200),
    ("session", AttemptOptions(query={"ticket": "of-ada"}), 200),
    ("session", AttemptOptions({"Cookie": "session=of-guest"}), 403),
    ("session", AttemptOptions({"Cookie": "session=old"}), 401),
    ("session", AttemptOptions({"Cookie": "session=makes-it-fail"}), 503),
    (
        "both",
        AttemptOptions(
            {**AttemptOptions.with_bearer(token()).headers, "Cookie": "session=of-guest"}
        ),
        200,
    ),
    ("both", AttemptOptions.with_bearer(token()), 401),
    ("dev", AttemptOptions({"Authorization": "Basic YWRhOmxvdmVsYWNl"}), 200),
    ("dev", AttemptOptions.with_bearer("t0p-guest"), 403),
]
UNAVAILABLE = ("session", AttemptOptions({"Cookie": "session=makes-it-fail"}), 503)


@pytest.mark.parametrize(
    ("wire", "name", "comes", "status"),
    [
        *(("events", *case) for case in GUARD_CASES),
        *((wire, *UNAVAILABLE) for wire in OTHER_WIRES),
    ],
)
async def test_every_guard_knows_its_own(
    gateway: GatewayThread, wire: str, name: str, comes: AttemptOptions, status: int
):
    told = await attempt_stream(wire, gateway.base_url, path(name), comes)
    assert told.status == status, told
    if status == 503 and wire in ("events", "lines"):
        assert 3 <= int(told.headers["retry-after"]) <= 10


@pytest.mark.parametrize(
    ("wire", "name"),
    [
        *(("events", name) for name, guarded in GUARDED.items() if guarded),
        *((wire, "read") for wire in OTHER_WIRES),
    ],
)
async def test_who_brings_nothing_is_asked_who_it_is(gateway: GatewayThread, wire: str, name: str):
    """Without an error: nothing is wrong yet (RFC 6750 3.1)."""
    told = await attempt_stream(wire, gateway.base_url, path(name))
    assert told.status == 401, told
    guard = next(iter(GUARDED[name]))
    assert f"guarded by '{guard}'" in told.text
    if wire != "multiplex":
        assert 'Bearer realm="test"' in told.challenge and "error" not in told.challenge
        assert told.challenge.startswith("Basic" if name == "dev" else "Bearer")


@pytest.mark.parametrize("wire", WIRE_NAMES)
async def test_a_secret_that_looks_like_none_is_hidden_by_the_name_it_comes_under(
    gateway: GatewayThread, debug_log: pytest.LogCaptureFixture, wire: str
):
    for name, comes, status in (
        ("dev", {"my-key": "t0p-secret"}, 200),
        ("dev", {"my-key": "plainword"}, 401),
        ("session", {"ticket": "of-ada"}, 200),
        ("session", {"ticket": "of-anybody"}, 503),
    ):
        (secret,) = comes.values()
        told = await attempt_stream(wire, gateway.base_url, path(name), AttemptOptions(query=comes))
        assert told.status == status, told
        assert secret not in told.text + str(told.headers) + debug_log.text
    assert "stream asked" in debug_log.text, "the log tells of streams"


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "POST"])
async def test_other_methods_say_no_more_than_before(gateway: GatewayThread, method: str):
    async with httpx.AsyncClient(trust_env=False, timeout=RESPONSE_TIMEOUT_S) as http:
        answer = await http.request(method, gateway.base_url + path("read"))
        assert answer.status_code == {"HEAD": 401, "OPTIONS": 204, "POST": 405}[method]
        good = await http.request(
            method,
            gateway.base_url + path("read"),
            headers=AttemptOptions.with_bearer(token()).headers,
        )
        assert good.status_code == {"HEAD": 200, "OPTIONS": 204, "POST": 405}[method]


# What is another's

KEY_OF_BOB, OWNER_BOB = '{"key":"bobs"}', '{"value":{"/owner":"bob"}}'


@pytest.mark.parametrize("wire", ["events", "socket", "multiplex"])
@pytest.mark.parametrize(
    ("who", "path", "query", "seen"),
    [
        ("ada", "adas", {}, ["adas"]),
        ("bob", "bobs", {}, ["bobs"]),
        ("ada", "bobs", {}, []),
        ("ada", "adas", {"filter": KEY_OF_BOB}, []),
        ("ada", "bobs", {"filter": KEY_OF_BOB}, []),
        ("ada", "adas", {"filter": OWNER_BOB}, []),
        ("ada", "bobs%22%7D", {}, []),
    ],
)
async def test_a_path_or_a_filter_that_names_anothers_key_shows_nothing_of_it(
    gateway: GatewayThread,
    wire: str,
    who: str,
    path: str,
    query: dict[str, str],
    seen: list[str],
):
    asked = urlencode({"from": "earliest", "until": "latest", **query})
    url, headers = (
        f"/of/{path}?{asked}",
        AttemptOptions.with_bearer(ISSUER.issue_token(sub=who)).headers,
    )
    if wire in ("events", "lines"):
        accept = {"events": "text/event-stream", "lines": "application/x-ndjson"}[wire]
        async with httpx.AsyncClient(trust_env=False, timeout=RESPONSE_TIMEOUT_S) as http:
            answer = await http.get(gateway.base_url + url, headers=headers | {"Accept": accept})
        assert answer.status_code == 200
        said = answer.text
    else:
        own = wire == "socket"
        options: Any = {"additional_headers": headers}
        async with MultiplexClient(gateway.base_url, url if own else "/ws", **options) as socket:
            if not own:
                await socket.subscribe("s", url)
            await socket.wait_for_message(None if own else "s", "end")
            said = json.dumps(socket.get_records(None if own else "s"), separators=(",", ":"))
    assert sorted(set(re.findall('"of":"([a-z]+)"', said))) == seen


# Pages of other sites


@pytest.mark.parametrize(
    ("origin", "asked", "status", "allowed"),
    [
        (SHOP, "authorization", 200, True),
        (SHOP, "authorization, last-event-id", 200, True),
        (EVIL, "authorization", 400, False),
        ("null", "authorization", 400, False),
    ],
)
async def test_a_preflight_needs_no_token_and_lets_listed_sites_in(
    gateway: GatewayThread, origin: str, asked: str, status: int, allowed: bool
):
    async with httpx.AsyncClient(trust_env=False, timeout=RESPONSE_TIMEOUT_S) as http:
        headers = {
            "Origin": origin,
            "Access-Control-Request-Method": "GET",
            "Access-Control-Request-Headers": asked,
        }
        answer = await http.options(gateway.base_url + path("read"), headers=headers)
        assert answer.status_code == status
        assert (answer.headers.get("access-control-allow-origin") == origin) == allowed


@pytest.mark.parametrize("good", [True, False])
@pytest.mark.parametrize("origin", [SHOP, EVIL])
async def test_only_pages_of_listed_sites_may_read_the_answer_also_a_refusal(
    gateway: GatewayThread, origin: str, good: bool
):
    secret = token() if good else token(exp=PAST)
    comes = AttemptOptions({**AttemptOptions.with_bearer(secret).headers, "Origin": origin})
    told = await attempt_stream("events", gateway.base_url, path("read"), comes)
    assert told.status == (200 if good else 401)
    assert (told.headers.get("access-control-allow-origin") == origin) == (origin == SHOP)


@pytest.mark.parametrize("wire", ["socket", "multiplex"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": SHOP}, 200),
        ({"Origin": EVIL}, 403),
        ({"Origin": EVIL, "Cookie": "access=TOKEN"}, 403),
        ({"Origin": SHOP, "Cookie": "access=TOKEN"}, 200),
        ({"Origin": "null"}, 403),
    ],
)
async def test_a_socket_is_opened_by_pages_of_listed_sites_only(
    gateway: GatewayThread, wire: str, headers: dict[str, str], status: int
):
    """No token helps a page of another site: its cookies go along unasked."""
    secret = token()
    filled = {name: value.replace("TOKEN", secret) for name, value in headers.items()}
    protocols = () if "Cookie" in headers else ("gateway.v1", f"bearer.{secret}")
    told = await attempt_stream(
        wire, gateway.base_url, path("read"), AttemptOptions(filled, subprotocols=protocols)
    )
    assert told.status == status, told
    if status == 403:
        assert told.problem["title"] == "Foreign origin"


# A session's streams, its records and its renewal


async def test_every_stream_of_a_session_is_guarded_by_itself(gateway: GatewayThread):
    protocols: Any = ["gateway.v1", f"bearer.{ISSUER.issue_token()}"]
    async with MultiplexClient(gateway.base_url, subprotocols=protocols) as socket:
        await socket.subscribe("any", path("any"))
        await socket.send_message("subscribe", id="read", path=path("read"))
        error = await socket.wait_for_message("read", "error")
        assert (error["code"], error["roles"]) == ("forbidden", [READ])
        await socket.send_message("token", jwt=token(exp=PAST))
        assert (await socket.wait_for_message(None, "error"))["code"] == "unauthorized"
        await socket.send_message("token", jwt=token())
        await socket.wait_for_message(None, "renewed")
        await socket.subscribe("read", path("read"))
        await socket.send_message("change", id="any", path=path("dev"))
        assert (await socket.wait_for_message("any", "error"))["code"] == "unauthorized"
        await socket.subscribe("open", path("open"))


async def test_a_record_is_written_by_who_may(gateway: GatewayThread):
    for scope, kind in ((READ, "error"), ("orders:write", "produced")):
        protocols: Any = ["gateway.v1", f"bearer.{ISSUER.issue_token(scope=scope)}"]
        async with MultiplexClient(gateway.base_url, subprotocols=protocols) as socket:
            await socket.send_message("produce", id="p", path="/write", value="1")
            told = await socket.wait_for_message("p", kind)
            assert told.get("roles") == (["orders:write"] if kind == "error" else None)


async def test_what_streams_there_are_is_told_with_the_guard_of_each(gateway: GatewayThread):
    async with create_http_client(gateway) as http:
        told = (await http.get("/asyncapi.json")).json()
        assert told["components"]["securitySchemes"]
        assert "t0p-secret" not in str(told) + (await http.get("/")).text
