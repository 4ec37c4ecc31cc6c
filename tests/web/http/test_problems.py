from __future__ import annotations

import errno
import json
import os
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gateway import errors
from gateway.web.http.problems import EXCEPTION_HANDLERS, build_problem


async def request_problem(
    path: str, exc: Exception | None = None, method: str = "GET"
) -> httpx.Response:
    async def endpoint(request: Request) -> Response:
        if exc:
            raise exc
        return PlainTextResponse("fine")

    app = Starlette(
        routes=[Route("/events/{name}", endpoint)], exception_handlers=dict(EXCEPTION_HANDLERS)
    )
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        return await client.request(method, path)


@pytest.mark.parametrize(
    ("exc", "status", "title"),
    [
        (errors.RequestError(410, "Too old", "from is before history"), 410, "Too old"),
        (errors.TokenCorrupt("the checksum is wrong"), 400, "Resume token refused"),
        (errors.TokenForeign("of another stream"), 400, "Resume token refused"),
        (errors.UnknownTopic("no topic 'ordrs'", topic="ordrs"), 404, "Unknown topic"),
        (errors.AccessDenied("may not read 'pay'", topic="pay"), 403, "Access denied"),
        (errors.KeyReused("the key 'k1' was used"), 422, "Idempotency key reused"),
        (errors.RecordTooLarge("the record is too large"), 413, "Content too large"),
        (errors.InvalidRecord("no partition 7"), 400, "Bad request"),
        (errors.RecordRefused("a compacted topic wants a key"), 422, "Record refused"),
        (errors.FormatError("/age: not a number"), 400, "Not of the model"),
        (errors.RegistryUnavailable("away", retry_after=1.0), 503, "Registry away"),
        (errors.TableTooLarge("the keys are too many"), 503, "Too many keys"),
        (errors.TransactionOpen("a transaction is open"), 503, "Transaction open"),
        (HTTPException(418, "short and stout"), 418, "I'm a Teapot"),
    ],
)
async def test_what_the_client_did_is_told_in_the_words_of_the_error(exc, status, title):
    response = await request_problem("/events/x", exc)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    body: dict[str, Any] = {
        "title": title,
        "status": status,
        "detail": getattr(exc, "detail", str(exc)),
        "instance": "/events/x",
    }
    if topic := getattr(exc, "topic", None):
        body["topic"] = topic
    assert response.json() == body


@pytest.mark.parametrize(
    ("exc", "seconds"),
    [
        (errors.BrokerUnavailable("no answer of 10.0.0.7:9092"), "5"),
        (errors.BrokerUnavailable("no answer of 10.0.0.7:9092", retry_after=1.2), "2"),
        (errors.BrokerUnavailable("no answer of 10.0.0.7:9092", retry_after=0.01), "1"),
        (errors.AuthenticationFailed("bad password at 10.0.0.7"), "5"),
        (errors.PartitionFailed("10.0.0.7", topic="o", partition=1, code=5), "5"),
    ],
)
async def test_kafka_away_is_503_with_a_time_to_come_back(exc, seconds):
    response = await request_problem("/events/x", exc)
    assert response.status_code == 503
    assert response.headers["retry-after"] == seconds
    assert "10.0.0.7" not in response.text


async def test_a_request_error_may_say_when_to_come_back():
    response = await request_problem(
        "/events/x", errors.RequestError(429, "Slow down", "..", retry_after=30)
    )
    assert response.headers["retry-after"] == "30"


@pytest.mark.parametrize("exc", [RuntimeError("s3cret"), errors.ConfigError(["s3cret"])])
async def test_any_other_error_is_500_and_says_nothing_of_itself(exc: Exception):
    response = await request_problem("/events/x", exc)
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert "s3cret" not in response.text
    assert "retry-after" not in response.headers


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
async def test_a_request_that_finds_no_free_descriptor_may_come_back(code: int):
    """It got 500: what it was the first to need, such as certificates, could not be opened."""
    response = await request_problem("/events/orders", OSError(code, os.strerror(code)))
    assert (response.status_code, response.json()["title"]) == (503, "Busy")
    assert int(response.headers["retry-after"]) >= 1


async def test_a_path_without_a_route_is_a_problem_too():
    response = await request_problem("/nothing/here")
    assert response.status_code == 404
    assert response.json()["instance"] == "/nothing/here"


async def test_a_wrong_method_is_told_which_would_do():
    response = await request_problem("/events/x", method="POST")
    assert response.status_code == 405
    assert "GET" in response.headers["allow"]
    assert "GET" in response.json()["detail"]


def test_odd_characters_do_not_keep_an_error_from_being_told():
    response = build_problem(
        errors.TokenCorrupt('a "quoted"\nword \ud800'), '/events/"\u2028 \ud800'
    )
    body = json.loads(response.body)
    assert body["status"] == response.status_code == 400
    assert body["instance"] == "/events/%22%E2%80%A8%20%3F"
