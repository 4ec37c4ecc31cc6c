"""Requests that a service behind Kafka answers: each hears its own reply, or why there is none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO
from typing import Any

import httpx
import pytest
import pytest_asyncio
from ruamel.yaml import YAML
from starlette.applications import Starlette
from starlette.routing import Mount
from support.admin_api import ADMIN_SECTION, open_admin_api
from support.app_server import running_app
from support.brokers import embedded_kafka
from support.gateways import (
    GatewayProcess,
    GatewayThread,
    build_config,
    running_gateway,
)
from support.scrape import fetch_metrics
from support.service import CORRELATION_ID_HEADER, REPLY_TO_HEADER, ReplyService, running_service
from support.waiting import WAIT_TIMEOUT_S, wait_until
from support.workers import running_workers

from gateway.config import loads
from gateway.kafka.embedded import EmbeddedKafka
from gateway.web.app.app import create_app

pytestmark = pytest.mark.asyncio(loop_scope="module")
of_module: Any = {"scope": "module", "loop_scope": "module"}

kafka = embedded_kafka({"requests": 3, "replies": 2})

MANY = 1000
GROUP = 50
TOPICS = ["requests", "replies"]
SILENT, HOLD = b'{"silent": true}', b'{"hold": true}'
ASYNC = {"Prefer": "respond-async"}
GUARDS = {
    "dev": {
        "type": "inline",
        "credentials": {"headers": {"authorization": "Bearer {credentials}"}},
        "users": {"ada": {"token": "of-ada"}, "bob": {"token": "of-bob"}},
    },
    "partner": {
        "type": "inline",
        "credentials": {"headers": {"authorization": "Bearer {credentials}"}},
        "users": {"ada": {"token": "of-another-ada"}},
    },
}


def asking(path: str, **options: Any) -> dict[str, Any]:
    with_ = {"capability": "produce", "topic": "requests", "replyTo": "replies", **options}
    return {"when": [{"path": path}], "with": with_}


LATER = {"async": {"location": "/later/${params.id}/${correlationId}"}}
ROUTES = [
    asking("/ask"),
    asking("/ask/{id}", key="${params.id}", timeout="300s"),
    asking("/brief", timeout="300ms"),
    asking("/later/{id}", **LATER),
    asking("/named", correlation={"replyTo": "answer-to", "correlationId": "number"},
           timeout="300ms"),
    {**asking("/mine/{id}", **{"async": {"location": "/mine/${params.id}/of/${correlationId}"}}),
     "guarded": {"dev": []}},
    {**asking("/theirs/{id}", **{
        "async": {"location": "/theirs/${params.id}/of/${correlationId}"},
    }), "guarded": {"partner": []}},
]  # fmt: skip


@pytest_asyncio.fixture(**of_module)
async def service(kafka: EmbeddedKafka) -> AsyncIterator[ReplyService]:
    async with running_service(kafka.bootstrap, "requests") as running:
        yield running


@pytest_asyncio.fixture(**of_module)
async def gateway(kafka: EmbeddedKafka, service: ReplyService) -> AsyncIterator[GatewayThread]:
    config = build_config(kafka.bootstrap, TOPICS, ROUTES, guards=GUARDS, admin=ADMIN_SECTION)
    async with running_gateway(config) as running:
        yield running


@asynccontextmanager
async def browsing(gateway: GatewayThread, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(
        base_url=gateway.base_url,
        trust_env=False,
        timeout=WAIT_TIMEOUT_S,
        limits=limits,
        headers=headers,
    ) as http:
        yield http


async def outcomes(gateway: GatewayThread) -> dict[str, float]:
    scrape = await fetch_metrics(gateway)
    words = ("answered", "timeout", "left", "late")
    return {
        word: scrape["gateway_replies_total", {"topic": "replies", "outcome": word}]
        for word in words
    }


async def grown(gateway: GatewayThread, before: dict[str, float], **by: float) -> None:
    """Until so many more are counted; nothing else is."""
    wanted = {word: count + by.get(word, 0.0) for word, count in before.items()}
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while (found := await outcomes(gateway)) != wanted:
            assert all(found[word] <= wanted[word] for word in wanted), (found, wanted)
            await asyncio.sleep(0.05)


def saying(body: str, **headers: str) -> bytes:
    """A request that is answered so."""
    told = {name.replace("_", "-"): text for name, text in headers.items()}
    status = told.pop("status", None)
    return json.dumps(
        {"body": body, "headers": {**told, **({":status": status} if status else {})}}
    ).encode()


async def test_a_request_is_answered_with_its_reply(gateway: GatewayThread, service: ReplyService):
    async with browsing(gateway) as http:
        body = saying("<p>", content_type="text/html", status="404", x_one="1", connection="close",
                      set_cookie="a=b", transfer_encoding="x", zilla_secret="s")  # fmt: skip
        body = body.replace(b"zilla-secret", b"zilla:secret")
        answer = await http.post("/ask/7?token=s", content=body, headers={"Content-Type": "a/b"})
        assert (answer.status_code, answer.text) == (404, "<p>")
        told = answer.headers
        assert (told["content-type"], told["x-one"], told["set-cookie"]) == (
            "text/html",
            "1",
            "a=b",
        )
        assert told["content-security-policy"] == "default-src 'none'; sandbox"
        assert (told["x-content-type-options"], told["cache-control"]) == ("nosniff", "no-store")
        assert not {CORRELATION_ID_HEADER, "zilla:secret", "transfer-encoding"} & set(told)
        request = next(each for each in service.requests if each.value == body)
        assert request.key == b"7"
        names = [name for name, _ in request.headers]
        assert names == ["content-type", ":method", ":path", REPLY_TO_HEADER, CORRELATION_ID_HEADER]
        assert (request.header(":method"), request.header(":path")) == (b"POST", b"/ask/7")
        assert request.header(REPLY_TO_HEADER) == b"replies"


async def test_one_without_a_reply_ends_in_time_and_a_late_reply_is_dropped_and_counted(
    gateway: GatewayThread, service: ReplyService
):
    before = await outcomes(gateway)
    async with browsing(gateway) as http:
        answer = await http.post("/brief", content=HOLD)
        assert (answer.status_code, answer.json()["title"]) == (504, "No reply in time")
        await wait_until(lambda: service.held_requests, "the request")
        await grown(gateway, before, timeout=1)
        await service.answer_held()
        await grown(gateway, before, timeout=1, late=1)
        waits = {"Prefer": "wait=0"}
        assert (await http.post("/ask/1", content=SILENT, headers=waits)).status_code == 504


async def test_one_whose_client_went_away_is_counted(gateway: GatewayThread, service: ReplyService):
    before = await outcomes(gateway)
    async with browsing(gateway) as http:
        asked = asyncio.create_task(http.post("/ask/1", content=HOLD))
        await wait_until(lambda: service.held_requests, "the request")
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    await grown(gateway, before, left=1)
    await service.answer_held()
    await grown(gateway, before, left=1, late=1)


async def test_tried_again_it_is_asked_once_and_answered_all_the_same(
    gateway: GatewayThread, service: ReplyService
):
    key = {"Idempotency-Key": "once"}
    async with browsing(gateway) as http, browsing(gateway) as other:
        assert (await http.post("/brief", content=HOLD, headers=key)).status_code == 504
        await wait_until(lambda: service.held_requests, "the request")
        seen = len(service.requests)
        await service.answer_held()
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while True:
                answer = await other.post("/brief", content=HOLD, headers=key)
                if answer.status_code == 200:
                    break
                assert answer.status_code == 504
        assert answer.content == HOLD
        both = await asyncio.gather(
            *(each.post("/brief", content=HOLD, headers=key) for each in (http, other))
        )
        assert [each.content for each in both] == [HOLD, HOLD]
        mistake = await http.post("/brief", content=b"another", headers=key)
        assert mistake.status_code == 422
        assert len(service.requests) == seen


async def test_a_reply_is_asked_for_later(gateway: GatewayThread, service: ReplyService):
    async with browsing(gateway) as http:
        answer = await http.post("/later/a%2Fb", content=HOLD, headers=ASYNC)
        assert (answer.status_code, answer.json()["topic"]) == (202, "requests")
        assert answer.headers["preference-applied"] == "respond-async"
        location = answer.headers["location"]
        assert location.startswith("/later/a%2Fb/")
        again = await http.get(location)
        assert (again.status_code, again.headers["location"]) == (202, location)
        assert int(again.headers["retry-after"]) >= 1
        waiting = asyncio.create_task(http.get(location, headers={"Prefer": "wait=60"}))
        await wait_until(lambda: service.held_requests, "the request")
        await service.answer_held()
        for answer in (await waiting, await http.get(location), await http.get(location)):
            assert (answer.status_code, answer.content) == (200, HOLD)
        at_once = {"Prefer": "respond-async, wait=60"}
        assert (await http.post("/later/1", content=b"now", headers=at_once)).text == "now"
        assert (await http.post(location)).status_code == 405


async def test_nobody_is_told_the_reply_of_another(gateway: GatewayThread):
    async with (
        browsing(gateway, authorization="Bearer of-ada") as ada,
        browsing(gateway, authorization="Bearer of-bob") as bob,
        browsing(gateway) as nobody,
    ):
        answer = await ada.post("/mine/1", content=b"secret", headers=ASYNC)
        location = answer.headers["location"]
        assert (await nobody.get(location)).status_code == 401
        assert (await bob.get(location, headers={"Prefer": "wait=1"})).status_code == 404
        own = await ada.get(location, headers={"Prefer": "wait=60"})
        assert own.text == "secret"
        assert (await ada.get("/mine/1/of/unknown")).status_code == 404
        old = location.rpartition(".")[0].replace("/of/", "/of/") + ".1"
        assert (await ada.get(old)).status_code == 200  # kept all the same
        gone = old.replace(old.rpartition("/")[2][:8], "00000000", 1)
        assert (await ada.get(gone)).status_code == 410
        same = {"Idempotency-Key": "of-both"}
        assert (await ada.post("/mine/1", content=b"1", headers=same)).status_code == 200
        assert (await bob.post("/mine/1", content=b"1", headers=same)).status_code == 200


async def test_who_was_revoked_during_a_request_neither_writes_nor_gets_a_reply(
    gateway: GatewayThread, service: ReplyService
):
    """A reply was sent for up to five minutes after, and a record written whose body was slow."""
    is_revoked = asyncio.Event()

    async def send_slowly() -> AsyncIterator[bytes]:
        yield b"{"
        await is_revoked.wait()
        yield b"}"

    async with (
        browsing(gateway, authorization="Bearer of-ada") as ada,
        open_admin_api(gateway) as admin,
    ):
        location = (await ada.post("/mine/1", content=HOLD, headers=ASYNC)).headers["location"]
        waiting = [
            asyncio.create_task(ada.get(location, headers={"Prefer": "wait=60"})),
            asyncio.create_task(ada.post("/mine/2", content=send_slowly())),
            asyncio.create_task(ada.post("/mine/3", content=HOLD)),
        ]
        await wait_until(lambda: len(service.held_requests) == 2, "both requests")
        revoked = {"identity": "ada", "guard": "dev"}
        await admin.post("/revocations", json=revoked)
        is_revoked.set()
        await service.answer_held()
        try:
            answers = await asyncio.gather(*waiting)
            assert [answer.status_code for answer in answers] == [403, 403, 403]
        finally:
            await admin.delete("/revocations", params=revoked)


async def test_a_reply_is_of_a_route_too_and_its_guards(gateway: GatewayThread):
    """Whose a reply is was 64 bits of the identity alone: two routes with the topic of replies in
    common, and guards that both know an ada, told the one's reply to the other, which could guess
    the id from an Idempotency-Key."""
    async with (
        browsing(gateway, authorization="Bearer of-ada") as ada,
        browsing(gateway, authorization="Bearer of-another-ada") as other,
    ):
        later = {**ASYNC, "Idempotency-Key": "1"}
        answer = await ada.post("/mine/1", content=b"secret", headers=later)
        location = answer.headers["location"]
        assert (await ada.get(location, headers={"Prefer": "wait=60"})).text == "secret"
        theirs = location.replace("/mine/", "/theirs/")
        assert (await other.get(theirs, headers={"Prefer": "wait=1"})).status_code == 404
        own = await other.post("/theirs/1", content=b"own", headers=later)
        assert own.headers["location"].rpartition(".")[0] != theirs.rpartition(".")[0]


async def test_the_names_of_the_headers_are_the_routes(
    gateway: GatewayThread, service: ReplyService
):
    async with browsing(gateway) as http:
        assert (await http.post("/named", content=SILENT)).status_code == 504
        await wait_until(
            lambda: any(each.header("number") for each in service.requests),
            timeout_s=WAIT_TIMEOUT_S,
        )
        request = next(each for each in service.requests if each.header("number"))
        assert request.header("answer-to") == b"replies"


async def test_a_gateway_that_ends_tells_those_who_wait_to_come_back(
    kafka: EmbeddedKafka, service: ReplyService
):
    config = build_config(kafka.bootstrap, TOPICS, ROUTES, guards=GUARDS)
    key = {"Idempotency-Key": "over the end"}
    async with running_gateway(config) as gateway:
        async with browsing(gateway) as http:
            asked = asyncio.create_task(http.post("/ask/1", content=HOLD, headers=key))
            await wait_until(lambda: service.held_requests, "the request")
            draining = asyncio.create_task(gateway.drain())
            answer = await asked
            assert (answer.status_code, answer.json()["title"]) == (503, "Draining")
            assert int(answer.headers["retry-after"]) >= 1
            await draining
        await gateway.start()
        async with browsing(gateway) as http:
            asked = asyncio.create_task(http.post("/ask/1", content=HOLD, headers=key))
            async with asyncio.timeout(
                WAIT_TIMEOUT_S
            ):  # what this Kafka has by then is found by no time
                while True:
                    if (await fetch_metrics(gateway)).sum_series("gateway_clients", wire="program"):
                        break
                    await asyncio.sleep(0.05)
            await service.answer_held()
            assert (await asked).content == HOLD


async def test_below_another_application_and_its_server_it_is_the_same(
    kafka: EmbeddedKafka, service: ReplyService
):
    text = StringIO()
    YAML().dump(build_config(kafka.bootstrap, TOPICS, ROUTES, guards=GUARDS), text)
    app = create_app(loads(text.getvalue()))
    whole = Starlette(routes=[Mount("/kafka", app)])
    async with (
        app.lifespan(),
        running_app(whole) as url,
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=WAIT_TIMEOUT_S) as http,
    ):
        answer = await http.post("/kafka/later/1", content=b"below", headers=ASYNC)
        location = answer.headers["location"]
        assert location.startswith("/kafka/later/1/")
        reply = await http.get(location, headers={"Prefer": "wait=60"})
        assert reply.text == "below"
        large = await http.post("/kafka/ask", content=bytes(65 * 1024))
        assert (large.status_code, large.json()["title"]) == (413, "Content too large")
        request = next(each for each in service.requests if each.value == b"below")
        assert request.header(":path") == b"/later/1"


# Three workers: each reads the replies, and finds its own.


@pytest_asyncio.fixture(**of_module)
async def three(kafka: EmbeddedKafka, service: ReplyService) -> AsyncIterator[GatewayProcess]:
    config = build_config(kafka.bootstrap, TOPICS, ROUTES, guards=GUARDS)
    async with running_workers(config) as running:
        yield running


@pytest.mark.needs("process")
async def test_a_thousand_at_once_each_hear_their_own_reply(
    three: GatewayProcess, service: ReplyService
):
    """They ask in groups, until all wait: a client that is busy with a thousand new connections
    takes longer to send its requests than the gateway waits for their heads."""
    before = await outcomes(three)
    asked: list[asyncio.Task[httpx.Response]] = []
    async with browsing(three) as http, asyncio.TaskGroup() as tasks:
        for n in range(MANY):
            request = {"hold": True, "body": f"of {n}"}
            asked.append(tasks.create_task(http.post(f"/ask/{n}", json=request)))
            if len(asked) % GROUP == 0:
                await wait_until(
                    lambda: len(service.held_requests) == len(asked), timeout_s=WAIT_TIMEOUT_S
                )
        await service.answer_held()
    answers = [each.result() for each in asked]
    assert {each.status_code for each in answers} == {200}
    assert [each.text for each in answers] == [f"of {n}" for n in range(MANY)]
    await grown(three, before, answered=MANY)
    read = (await fetch_metrics(three)).sum_series("gateway_fetched_records_total", topic="replies")
    assert MANY <= read < 10 * MANY, "each of three workers reads the replies, and no client does"
