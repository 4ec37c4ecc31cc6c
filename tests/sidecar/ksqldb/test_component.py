"""Against a double of ksqlDB that is built from its public reference, on hypercorn."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from support.app_server import running_app
from support.brokers import embedded_kafka
from support.issuer import AUDIENCE, ISSUER_NAME, JwksApp, TokenIssuer
from support.ksqldb import FakeKsqldb, get_names, running_ksqldb
from support.sidecars import running_sidecar, wait_until_ready
from support.tcp_proxy import TcpProxy
from support.waiting import wait_until

pytestmark = pytest.mark.needs("hypercorn")

kafka = embedded_kafka()
SELECT = "SELECT * FROM ORDERS EMIT CHANGES"


@asynccontextmanager
async def running_pair(
    kafka: Any, **options: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, FakeKsqldb]]:
    async with (
        running_ksqldb() as ksqldb,
        running_sidecar(kafka.bootstrap, ksqldb={"url": ksqldb.url, **options}) as http,
    ):
        yield http, ksqldb


async def test_a_pull_query_is_answered_with_all_its_rows(kafka):
    async with running_pair(kafka) as (http, ksqldb):
        ksqldb.send_row(1, "a")
        ksqldb.send_row(2, "b")
        ksqldb.end_query()
        asked = {
            "query": "SELECT * FROM TOTALS",
            "queryType": "pull",
            "tableScanEnable": True,
            "properties": {"ksql.query.pull.max.qps": "5"},
        }
        answer = await http.post("/ksqldb/active", json=asked)
        assert answer.status_code == 200, answer.text
        assert answer.json() == [{"ID": 1, "NAME": "a"}, {"ID": 2, "NAME": "b"}]
        assert ksqldb.requests[0].body == {
            "sql": "SELECT * FROM TOTALS;",
            "properties": {
                "ksql.query.pull.max.qps": "5",
                "ksql.query.pull.table.scan.enabled": True,
            },
        }


async def test_a_push_query_is_answered_with_so_many_rows_or_what_came_in_time(kafka):
    async with running_pair(kafka) as (http, ksqldb):
        for id in range(3):
            ksqldb.send_row(id, str(id))
        asked = {"query": SELECT, "queryType": "push", "offset": "earliest"}
        answer = await http.post("/ksqldb/active?limit=2", json=asked)
        assert get_names(answer.json()) == ["0", "1"]
        await wait_until(lambda: ksqldb.open_query_count == 0, "the query's end at the server")
        ksqldb.output = asyncio.Queue()
        answer = await http.post("/ksqldb/active?timeout=100", json=asked)
        assert (answer.status_code, answer.json()) == (200, [])


async def test_rows_are_streamed_as_they_come_until_the_client_leaves(kafka):
    async with running_pair(kafka) as (http, ksqldb):
        request = http.stream(
            "POST",
            "/ksqldb/active",
            json={"query": SELECT, "queryType": "push"},
            headers={"Accept": "application/x-ndjson"},
        )
        async with request as answer:
            lines = answer.aiter_lines()
            for id in range(3):
                ksqldb.send_row(id, "x")
                assert json.loads(await anext(lines)) == {"ID": id, "NAME": "x"}
            assert ksqldb.open_query_count == 1
        await wait_until(lambda: ksqldb.open_query_count == 0, "the query's end at the server")
        await wait_until(lambda: ksqldb.closed_query_ids == ["query_1"], "the query closed")


async def test_arrays_of_rows_are_counted_in_memory_and_end_with_their_clients(kafka):
    """30 queries of a day held 1.7 GB at `memory: 64MiB`, also once their clients had gone."""
    one_day, asked = "/ksqldb/active?timeout=86400000", {"query": SELECT, "queryType": "push"}
    async with (
        running_ksqldb() as ksqldb,
        running_sidecar(kafka.bootstrap, memory="16MiB", ksqldb={"url": ksqldb.url}) as http,
    ):
        left = asyncio.create_task(http.post(one_day, json=asked))
        await wait_until(lambda: ksqldb.open_query_count == 1, "the query", 60.0)
        left.cancel()
        await wait_until(lambda: ksqldb.open_query_count == 0, "its end at the server", 60.0)

        queries = [asyncio.create_task(http.post(one_day, json=asked)) for _ in range(2)]
        await wait_until(lambda: ksqldb.open_query_count == 2, "both queries", 60.0)
        for id in range(400):
            ksqldb.send_row(id, "x" * 60_000)
        done, running = await asyncio.wait(queries, return_when=asyncio.FIRST_COMPLETED)
        assert [query.result().status_code for query in done] == [503]
        for query in running:
            query.cancel()


async def test_what_goes_wrong_behind_the_first_line_is_the_last_line(kafka):
    async with running_pair(kafka) as (http, ksqldb):
        ksqldb.send_row(1, "x")
        ksqldb.send_error(50000, "the query broke")
        asked, accept = {"query": SELECT}, {"Accept": "application/x-ndjson"}
        answer = await http.post("/ksqldb/active", json=asked, headers=accept)
        row, last = map(json.loads, answer.text.splitlines())
        assert row == {"ID": 1, "NAME": "x"}
        assert (last["statusCode"], last["code"]) == (503, "KSQLDB_50000")


@pytest.mark.parametrize(
    ("status", "code", "answered"),
    [(400, 40001, 400), (401, 40100, 503), (403, 40301, 403), (500, 50000, 503)],
)
async def test_errors_of_ksqldb_keep_their_codes(kafka, status, code, answered):
    async with running_pair(kafka) as (http, ksqldb):
        ksqldb.error_response = status, {"error_code": code, "message": "ORDERS does not exist"}
        answer = await http.post("/ksqldb/active", json={"query": SELECT})
        assert answer.status_code == answered
        assert answer.json()["code"] == f"KSQLDB_{code}"
        assert "ORDERS does not exist" in answer.text


async def test_a_server_that_is_away_is_503_and_a_wrong_request_400(kafka):
    async with (
        TcpProxy() as proxy,
        running_sidecar(kafka.bootstrap, ksqldb={"url": f"http://{proxy.address}"}) as http,
    ):
        await proxy.refuse()
        answer = await http.post("/ksqldb/active", json={"query": SELECT})
        assert (answer.status_code, answer.json()["code"]) == (503, "KSQLDB_UNAVAILABLE")
        assert "retry-after" in answer.headers
        answer = await http.post("/ksqldb/active", json={"query": SELECT, "ofset": "latest"})
        assert (answer.status_code, "offset" in answer.text) == (400, True)


class FakeBackEnd:
    """Keeps the rows that it is given, unless it is told to answer otherwise."""

    def __init__(self) -> None:
        self.received_rows: list[dict[str, Any]] = []
        self.status = 200
        self.calls: list[Request] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        rows = await request.json()
        self.calls.append(request)
        if self.status == 200:
            self.received_rows += rows
        await Response(status_code=self.status)(scope, receive, send)


def count_queries(ksqldb: FakeKsqldb) -> int:
    """How often a query was, once there is no other left that could take its rows."""
    asked = sum(request.path == "/query-stream" for request in ksqldb.requests)
    return asked if ksqldb.open_query_count == 1 else 0


def build_section(url: str, **options: Any) -> dict[str, Any]:
    return {
        "queries": [{"name": "orders", "query": SELECT, **options}],
        "backend": {"host": url},
        "reconnect": {"initial": "10ms", "max": "50ms"},
    }


async def test_rows_of_a_configured_query_reach_the_back_end_whatever_breaks(kafka):
    back_end = FakeBackEnd()
    async with running_ksqldb() as ksqldb, running_app(back_end) as url:
        port = int(ksqldb.url.rpartition(":")[2])
        async with TcpProxy("127.0.0.1", port) as proxy:
            options = {"url": f"http://{proxy.address}", **build_section(url, offset="earliest")}
            async with running_sidecar(kafka.bootstrap, ksqldb=options) as http:
                ksqldb.send_row(1, "a")
                await wait_until(
                    lambda: get_names(back_end.received_rows) == ["a"], "the first row"
                )
                call = back_end.calls[0]
                assert call.url.path == "/kafka/ksqldb"
                assert call.headers["x-ksqldb-query"] == "orders"
                assert call.headers["x-correlation-id"]

                back_end.status = 503
                ksqldb.send_row(2, "b")
                await wait_until(lambda: len(back_end.calls) >= 3, "the row tried again")
                ksqldb.send_raw(b'[3,"ha')
                await wait_until(ksqldb.output.empty, "half a row on its way")
                proxy.cut()
                await wait_until(lambda: count_queries(ksqldb) == 2, "the query begun again")
                back_end.status = 200
                ksqldb.send_row(4, "d")
                await wait_until(
                    lambda: get_names(back_end.received_rows) == ["a", "b", "d"], "the other rows"
                )
                assert ksqldb.requests[0].body["properties"] == {"auto.offset.reset": "earliest"}

                ksqldb.end_query()
                await wait_until(
                    lambda: count_queries(ksqldb) == 3, "the query that was ended begun again"
                )
                ksqldb.send_row(5, "e")
                await wait_until(lambda: get_names(back_end.received_rows)[-1] == "e", "its row")
                await wait_until_ready(http)
                await proxy.refuse()
                await wait_until(lambda: ksqldb.open_query_count == 0, "the end of the query")
                answer = await http.get("/health/readiness")
                assert answer.status_code == 503
                assert answer.text.startswith("ksqldb: query orders: ")


class StreamingBackEnd:
    """Answers the first call with 200 and pieces of this size for ever, the next ones at once."""

    def __init__(self, size: int, interval_s: float) -> None:
        self.batches: list[list[Any]] = []
        self._piece = b" " * size
        self._interval_s = interval_s

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.batches.append(get_names(await Request(scope, receive).json()))

        async def pieces() -> AsyncIterator[bytes]:
            while len(self.batches) == 1:
                yield self._piece
                await asyncio.sleep(self._interval_s)

        await StreamingResponse(pieces())(scope, receive, send)


async def test_an_answer_that_drips_is_over_at_its_timeout(kafka):
    """The timeout was of each piece, so a byte every half second held the query for ever."""
    back_end = StreamingBackEnd(1, interval_s=0.05)
    async with running_ksqldb() as ksqldb, running_app(back_end) as url:
        ksqldb.send_row(1, "a")
        options = {"url": ksqldb.url, **build_section(url)}
        options["backend"]["timeout"] = "300ms"
        async with running_sidecar(kafka.bootstrap, ksqldb=options):
            await wait_until(lambda: len(back_end.batches) == 2, "the batch tried again")
    assert back_end.batches == [["a"], ["a"]]


async def test_an_answer_without_an_end_is_read_up_to_a_bound(kafka):
    """It was read to its end, into memory: 600 MB of it took 615 MB."""
    back_end = StreamingBackEnd(1 << 20, interval_s=0.0)
    async with running_ksqldb() as ksqldb, running_app(back_end) as url:
        ksqldb.send_row(1, "a")
        options = {"url": ksqldb.url, **build_section(url)}
        options["backend"]["timeout"] = "60s"
        async with running_sidecar(kafka.bootstrap, ksqldb=options):
            await wait_until(lambda: back_end.batches, "the first batch")
            ksqldb.send_row(2, "b")
            await wait_until(lambda: len(back_end.batches) == 2, "the next batch", 30)
    assert back_end.batches == [["a"], ["b"]], "its status was 200: it has the row"


DEEP = b"[2," + b"[" * 300 + b"]" * 300 + b"]\n"


async def test_a_row_that_cannot_be_handed_on_is_passed_over_and_counted(kafka, caplog):
    """It was a TypeError that ended all queries of the sidecar; the rows behind it were lost."""
    back_end = FakeBackEnd()
    async with running_ksqldb() as ksqldb, running_app(back_end) as url:
        ksqldb.send_raw(b'[1,"a"]\n' + DEEP + DEEP + b'[3,NaN]\n[4,"d"]\n')
        options = {"url": ksqldb.url, **build_section(url)}
        async with running_sidecar(kafka.bootstrap, ksqldb=options) as http:
            await wait_until(
                lambda: get_names(back_end.received_rows) == ["a", "d"], "the rows around it"
            )
            await wait_until_ready(http)
            scrape = (await http.get("/metrics")).text
        assert 'gateway_ksqldb_query_begun_total{query="orders"} 1' in scrape
        assert 'gateway_ksqldb_rows_total{query="orders",outcome="dropped"} 3' in scrape
    logged = [line for line in caplog.records if "ksql" in line.name and line.levelname == "ERROR"]
    assert len(logged) == 1


async def test_digits_of_rows_are_handed_on_as_they_came(kafka):
    back_end = FakeBackEnd()
    rows = b"[1,12345678901234567890.123456789]\n[2,1.10]\n[3,1e400]\n"
    async with running_ksqldb() as ksqldb, running_app(back_end) as url:
        ksqldb.send_raw(rows)
        options = {"url": ksqldb.url, **build_section(url)}
        async with running_sidecar(kafka.bootstrap, ksqldb=options):
            await wait_until(lambda: len(back_end.received_rows) == 3, "the rows")
    sent = b"".join([await call.body() for call in back_end.calls])
    for digits in (b":12345678901234567890.123456789}", b":1.10}", b":1e400}"):
        assert digits in sent


async def test_an_error_after_rows_is_reported_while_the_server_is_silent(kafka):
    """It was held until the next piece, and the query was said to run."""
    back_end = FakeBackEnd()
    async with running_ksqldb() as ksqldb, running_app(back_end) as url:
        ksqldb.send_raw(b'[1,"a"]\n{"error_code":50000,"message":"it broke"}\n')
        options = {"url": ksqldb.url, **build_section(url)}
        async with running_sidecar(kafka.bootstrap, ksqldb=options):
            await wait_until(lambda: count_queries(ksqldb) == 2, "the query begun again")
            assert get_names(back_end.received_rows) in ([], ["a"])
            await wait_until(
                lambda: get_names(back_end.received_rows) == ["a"], "the row before the error"
            )


async def test_an_answer_has_the_digits_and_refuses_rows_that_cannot_be_written(kafka):
    async with running_pair(kafka) as (http, ksqldb):
        ksqldb.send_raw(b"[1,12345678901234567890.123456789]\n")
        ksqldb.end_query()
        answer = await http.post("/ksqldb/active", json={"query": "SELECT * FROM TOTALS"})
        assert answer.text == '[{"ID":1,"NAME":12345678901234567890.123456789}]'
        ksqldb.send_raw(b'[1,"a"]\n' + DEEP)
        answer = await http.post("/ksqldb/active", json={"query": "SELECT * FROM TOTALS"})
        assert (answer.status_code, answer.json()["code"]) == (422, "KSQLDB_ROW")


async def test_a_configured_pull_query_is_asked_once(kafka):
    back_end = FakeBackEnd()
    async with running_ksqldb() as ksqldb, running_app(back_end) as url:
        ksqldb.send_row(1, "a")
        ksqldb.end_query()
        options = {"url": ksqldb.url, **build_section(url, queryType="pull")}
        async with running_sidecar(kafka.bootstrap, ksqldb=options) as http:
            await wait_until(lambda: get_names(back_end.received_rows) == ["a"], "the row")
            await wait_until_ready(http)
            assert (
                len([request for request in ksqldb.requests if request.path == "/query-stream"])
                == 1
            )


async def test_a_scrape_has_the_queries_and_what_became_of_their_rows(kafka):
    back_end = FakeBackEnd()
    async with running_ksqldb() as ksqldb, running_app(back_end) as url:
        ksqldb.send_row(1, "a")
        options = {"url": ksqldb.url, **build_section(url)}
        async with running_sidecar(kafka.bootstrap, ksqldb=options) as http:
            await wait_until(lambda: back_end.received_rows, "the row")
            async with asyncio.timeout(60):
                while True:
                    scrape = (await http.get("/metrics")).text
                    if 'outcome="delivered"' in scrape:
                        break
                    await asyncio.sleep(0.02)
    assert 'gateway_ksqldb_query_running{query="orders"} 1' in scrape
    assert 'gateway_ksqldb_query_begun_total{query="orders"} 1' in scrape
    assert 'gateway_ksqldb_rows_total{query="orders",outcome="delivered"} 1' in scrape


async def test_a_long_answer_and_a_long_upload_end_with_the_token(kafka, monkeypatch):
    """Rows were shown, and lines written, for as long as the client kept its connection."""
    issuer = TokenIssuer()
    kafka.create_topic("uploads")
    allowed = {"guarded": {"jwt": []}, "producer": {"valueFormat": "json"}}
    async with running_app(JwksApp(issuer)) as keys, running_ksqldb() as ksqldb:
        guard = {"type": "jwt", "issuer": ISSUER_NAME, "audience": AUDIENCE, "keys": keys}
        options: Any = {"guards": {"jwt": guard}, "ksqldb": {"url": ksqldb.url}, **allowed}
        async with running_sidecar(kafka.bootstrap, **options) as http:
            expiry = time.time() + 600
            token = issuer.issue_token(scope="kafka:r kafka:w", sub="eve", exp=expiry)
            http.headers["Authorization"] = f"Bearer {token}"
            begun, expired = asyncio.Event(), asyncio.Event()

            async def send_lines() -> AsyncIterator[bytes]:
                yield b'{"value": 1}\n'
                begun.set()
                await expired.wait()
                yield b'{"value": 2}\n'

            asked = {"query": SELECT, "queryType": "push"}
            rows = http.stream(
                "POST", "/ksqldb/active", json=asked, headers={"accept": "application/x-ndjson"}
            )
            async with asyncio.TaskGroup() as tasks, rows as shown:
                row = shown.aiter_lines()
                ksqldb.send_row(1, "mine")
                assert "mine" in await anext(row)
                content_type = {"content-type": "application/x-ndjson"}
                writing = tasks.create_task(
                    http.post("/producers/uploads", content=send_lines(), headers=content_type)
                )
                await begun.wait()
                clock = SimpleNamespace(time=lambda: expiry + 1)
                monkeypatch.setattr("gateway.sidecar.http.requests.time", clock)
                ksqldb.send_row(2, "secret")
                assert json.loads(await anext(row))["statusCode"] == 401
                expired.set()
                *_, last = (await writing).text.splitlines()
                assert json.loads(last)["errorCode"] == 401
