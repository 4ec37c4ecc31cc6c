"""The latest record of a key as a document: with what it is compared, and who is shown which."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import Any

import httpx
import pytest
from support.brokers import embedded_kafka
from support.gateways import (
    GatewayThread,
    build_config,
    create_http_client,
    running_gateway,
)
from support.scrape import fetch_metrics
from support.topic_gateway import run_gateway_sync
from support.waiting import WAIT_TIMEOUT_S
from support.workers import running_workers

from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"orders": 3, "placed": 4, "many": 1})

GUARDS = {
    "dev": {
        "type": "inline",
        "credentials": {"headers": {"authorization": "Bearer {credentials}"}},
        "users": {
            "ada": {"token": "of-ada", "roles": ["support"]},
            "bob": {"token": "of-bob"},
        },
    }
}
TOPICS = [
    {"name": "orders", "value": {"model": "json"}},
    {"name": "placed", "partitioner": "murmur2"},
    {"name": "many", "cache": {"bytes": "64KiB"}},
]
BY_ID = [{"key": "${params.id}"}]


def document(path: str, topic: str = "orders", /, **options: Any) -> dict[str, Any]:
    with_ = {"capability": "fetch", "topic": topic, "filters": BY_ID, **options}
    return {"when": [{"path": f"{path}/{{id}}"}], "with": with_}


def written(path: str, topic: str = "orders", /) -> dict[str, Any]:
    when = [{"path": f"{path}/{{id}}", "method": method} for method in ("PUT", "DELETE")]
    return {"when": when, "with": {"capability": "produce", "topic": topic, "key": "${params.id}"}}


FIELDS = ["/n", {"field": "/card", "guarded": {"dev": ["support"]}}]
ROUTES = [
    document("/orders"),
    written("/orders"),
    document("/placed", "placed"),
    written("/placed", "placed"),
    document("/many", "many"),
    written("/many", "many"),
    document("/envelope", format="envelope"),
    document("/cloud", format="cloudevents"),
    document("/eu", filters=[{"key": "${params.id}", "value": {"/region": "eu"}}]),
    {**document("/masked", fields=FIELDS), "guarded": {"dev": []}},
]


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[GatewayThread]:
    with run_gateway_sync(build_config(kafka.bootstrap, TOPICS, ROUTES, guards=GUARDS)) as running:
        yield running


@pytest.fixture
async def http(gateway: GatewayThread) -> AsyncIterator[httpx.AsyncClient]:
    async with create_http_client(gateway) as client:
        yield client


async def put(http: httpx.AsyncClient, path: str, content: Any, **headers: str) -> httpx.Response:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return await http.put(path, content=body, headers=headers)


@pytest.mark.parametrize("path", ["/orders/latest", "/placed/latest"])
async def test_it_is_what_was_written_last(http: httpx.AsyncClient, path: str):
    assert (await http.get(path)).status_code == 404
    for n in range(3):
        assert (await put(http, path, {"n": n})).status_code == 201
        answer = await http.get(path)
        assert (answer.status_code, answer.json()) == (200, {"n": n})
    head = await http.head(path)
    assert (head.status_code, head.headers["etag"]) == (200, answer.headers["etag"])
    assert (await http.delete(path)).status_code == 200
    gone = await http.get(path)
    assert (gone.status_code, gone.json()["title"]) == (404, "No document")


async def test_its_type_is_what_it_was_written_with_and_no_browser_runs_it(
    http: httpx.AsyncClient,
):
    plain = await put(http, "/orders/typed", {})
    assert plain.status_code == 201
    assert (await http.get("/orders/typed")).headers["content-type"] == "application/json"
    await put(http, "/orders/typed", b"\xff<script>", **{"content-type": "text/html"})
    answer = await http.get("/orders/typed")
    assert (answer.content, answer.headers["content-type"]) == (b"\xff<script>", "text/html")
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["x-content-type-options"] == "nosniff"
    await put(http, "/placed/typed", b"1", **{"content-type": "no type"})
    assert (await http.get("/placed/typed")).headers["content-type"] == "application/octet-stream"


async def test_one_that_is_known_is_not_sent_again(http: httpx.AsyncClient):
    await put(http, "/orders/known", {"n": 1})
    tag = (await http.get("/orders/known")).headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        answer = await http.get("/orders/known", headers={"If-None-Match": known})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    await put(http, "/orders/known", {"n": 1})
    again = await http.get("/orders/known", headers={"If-None-Match": tag})
    assert again.status_code == 200 and again.headers["etag"] != tag


async def test_who_waits_is_answered_when_there_is_another(http: httpx.AsyncClient):
    waits = {"Prefer": "wait=60"}
    path = "/orders/waited"

    async def asked(**headers: str) -> asyncio.Task[httpx.Response]:
        asking = asyncio.create_task(http.get(path, headers={**waits, **headers}))
        done, _ = await asyncio.wait({asking}, timeout=0.3)
        assert not done
        return asking

    asking = await asked()
    await put(http, "/orders/another", {"n": 0})
    await put(http, path, {"n": 1})
    first = await asking
    assert (first.status_code, first.json()) == (200, {"n": 1})
    assert first.headers["preference-applied"] == "wait=60"
    known = {"If-None-Match": first.headers["etag"]}
    asking = await asked(**known)
    await put(http, path, {"n": 2})
    assert (await asking).json() == {"n": 2}
    asking = await asked(**{"If-None-Match": (await http.get(path)).headers["etag"]})
    await http.delete(path)
    assert (await asking).status_code == 404
    soon = {"Prefer": "wait=1"}
    assert (await http.get(path, headers=soon)).status_code == 404
    await put(http, path, {"n": 3})
    known = {"If-None-Match": (await http.get(path)).headers["etag"]}
    assert (await http.get(path, headers={**soon, **known})).status_code == 304


async def test_a_write_may_depend_on_what_is_there(http: httpx.AsyncClient):
    path = "/orders/compared"
    new = {"If-None-Match": "*"}
    assert (await put(http, path, {"n": 0}, **{"If-Match": "*"})).status_code == 412
    assert (await put(http, path, {"n": 1}, **new)).status_code == 201
    assert (await put(http, path, {"n": 2}, **new)).status_code == 412
    tag = (await http.get(path)).headers["etag"]
    refusals = [('"other"', "changed"), ("unquoted", "changed")]
    refusals += [(f"W/{tag}", "proxy"), (f'{tag[:-1]}-gzip"', "proxy")]
    for other, reason in refusals:
        refused = await put(http, path, {"n": 2}, **{"If-Match": other})
        assert refused.status_code == 412 and reason in refused.json()["detail"]
    known = {"If-None-Match": f"W/{tag}"}
    assert (await put(http, path, {"n": 2}, **known)).status_code == 412
    once = {"If-Match": f'"other", {tag}', "Idempotency-Key": "compared"}
    for status in (201, 200):  # what was written before is no mistake when it is tried again
        assert (await put(http, path, {"n": 3}, **once)).status_code == status
    late = await put(http, path, {"n": 4}, **{"If-Match": tag})
    assert (late.status_code, late.json()["title"]) == (412, "Precondition failed")
    assert (await http.delete(path, headers={"If-Match": tag})).status_code == 412
    assert (await http.get(path)).json() == {"n": 3}


async def test_who_is_shown_less_has_another_tag_and_may_compare_with_it(http: httpx.AsyncClient):
    await put(http, "/orders/masked", {"n": 1, "card": "4711", "secret": 1})
    ada, bob = ({"authorization": f"Bearer of-{who}"} for who in ("ada", "bob"))
    assert (await http.get("/masked/masked")).status_code == 401
    shown, less = [await http.get("/masked/masked", headers=who) for who in (ada, bob)]
    assert (shown.json(), less.json()) == ({"n": 1, "card": "4711"}, {"n": 1})
    assert less.headers["cache-control"] == "private, no-cache"
    whole = (await http.get("/orders/masked")).headers["etag"]
    assert len({whole, shown.headers["etag"], less.headers["etag"]}) == 3
    crossed = {**bob, "If-None-Match": shown.headers["etag"]}
    assert (await http.get("/masked/masked", headers=crossed)).status_code == 200
    compared = await put(http, "/orders/masked", {"n": 2}, **{"If-Match": less.headers["etag"]})
    assert compared.status_code == 201


async def test_it_is_told_in_the_format_of_its_route(http: httpx.AsyncClient):
    answer = await put(http, "/orders/told", {"n": 1})
    where = answer.json()
    envelope = await http.get("/envelope/told")
    assert envelope.headers["content-type"] == "application/json"
    assert envelope.json()["key"] == "told" and envelope.json()["offset"] == where["offset"]
    cloud = await http.get("/cloud/told")
    assert cloud.headers["content-type"] == "application/cloudevents+json"
    assert cloud.json()["specversion"] == "1.0"


async def test_what_its_route_does_not_let_through_is_no_document(http: httpx.AsyncClient):
    await put(http, "/orders/region", {"region": "us"})
    assert (await http.get("/eu/region")).status_code == 404
    await put(http, "/orders/region", {"region": "eu"})
    assert (await http.get("/eu/region")).json() == {"region": "eu"}
    assert (await http.get("/eu/region?filter=key=a")).status_code == 403
    assert (await http.post("/eu/region")).status_code == 405


async def test_what_its_route_does_not_let_through_replaces_no_document(http: httpx.AsyncClient):
    """The latest record of the key was looked up first and filtered then: one that the client may
    not see took the document away from it."""
    await put(http, "/orders/moved", {"region": "eu", "n": 1})
    tag = (await http.get("/eu/moved")).headers["etag"]
    await put(http, "/orders/moved", {"region": "us", "n": 2})
    assert (await http.get("/orders/moved")).json()["n"] == 2
    shown = await http.get("/eu/moved")
    assert (shown.json()["n"], shown.headers["etag"]) == (1, tag)
    await http.delete("/orders/moved")
    assert (await http.get("/eu/moved")).status_code == 404
    await put(http, "/orders/moved", {"region": "us", "n": 3})
    assert (await http.get("/eu/moved")).status_code == 404


async def test_while_kafka_is_away_a_client_is_asked_to_come_back():
    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        config = build_config(
            kafka.bootstrap, ["orders"], [document("/orders"), written("/orders")]
        )
        async with running_gateway(config) as gateway, create_http_client(gateway) as http:
            await put(http, "/orders/1", {"n": 1})
            kafka.down(1)
            answer = await http.get("/orders/1")
            assert (answer.status_code, int(answer.headers["retry-after"]) >= 1) == (503, True)
            kafka.up(1)
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                while True:
                    answer = await http.get("/orders/1")
                    if answer.status_code == 200:
                        break
                    assert answer.status_code == 503
            assert answer.json() == {"n": 1}


@pytest.mark.needs("process")
async def test_of_many_who_compare_and_write_at_three_workers_none_is_overwritten():
    """Each adds one to a number, as often as it takes; at the end it is how many they were."""
    random, writers = Random(3), 24
    with EmbeddedKafka(topics={"orders": 2}) as kafka:
        config = build_config(
            kafka.bootstrap, ["orders"], [document("/orders"), written("/orders")]
        )
        async with running_workers(config) as gateway, asyncio.timeout(2 * WAIT_TIMEOUT_S):
            async with create_http_client(gateway) as http:
                await put(http, "/orders/sum", {"n": 0})

            async def add() -> int:
                tries = 0
                while True:
                    tries += 1
                    async with create_http_client(gateway) as http:  # at any worker
                        found = await http.get("/orders/sum")
                        assert found.status_code == 200, found.text
                        more = {"n": found.json()["n"] + 1}
                        tag = found.headers["etag"]
                        done = await put(http, "/orders/sum", more, **{"If-Match": tag})
                    if done.status_code == 201:
                        return tries
                    assert done.status_code == 412, done.text
                    await asyncio.sleep(random.uniform(0, 0.2))

            tries = await asyncio.gather(*(add() for _ in range(writers)))
            async with create_http_client(gateway) as http:
                assert (await http.get("/orders/sum")).json() == {"n": writers}
            assert sum(tries) > writers, "nobody was in the way of another"


async def test_nothing_is_read_for_one_who_went_away(
    gateway: GatewayThread, http: httpx.AsyncClient
):
    async def reading() -> float:
        return (await fetch_metrics(gateway)).sum_series("gateway_clients", wire="program")

    asking = asyncio.create_task(http.get("/orders/left", headers={"Prefer": "wait=300"}))
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while True:
            if await reading():
                break
            await asyncio.sleep(0.05)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        while True:
            if not await reading():
                break
            await asyncio.sleep(0.05)
