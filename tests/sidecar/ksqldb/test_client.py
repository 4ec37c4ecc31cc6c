"""Held against a double of ksqlDB that is built from its public reference, on hypercorn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.responses import StreamingResponse
from support.certificates import Authority
from support.ksqldb import names, running_ksqldb, without_http2
from support.served import served
from support.tcp_proxy import TcpProxy
from support.until import until

from gateway.sidecar.ksqldb.client import Ksql, KsqlAway, query
from gateway.sidecar.ksqldb.rows import KsqlError

SELECT = "SELECT * FROM ORDERS EMIT CHANGES"


async def test_a_push_query_is_asked_over_http2_without_tls_and_its_rows_have_names():
    async with running_ksqldb() as ksqldb:
        ksqldb.row(1, "a")
        ksqldb.row(2, None)
        async with Ksql(ksqldb.url).ask(query(SELECT, offset="earliest")) as answer:
            assert answer.columns.names == ("ID", "NAME")
            rows = aiter(answer)
            assert [await anext(rows), await anext(rows)] == [
                {"ID": 1, "NAME": "a"},
                {"ID": 2, "NAME": None},
            ]
        (asked, closing) = ksqldb.asked
        assert (asked.path, asked.http) == ("/query-stream", "2")
        assert asked.body == {
            "sql": f"{SELECT};",
            "properties": {"auto.offset.reset": "earliest"},
        }
        assert closing.path == "/close-query"
        assert ksqldb.closed == ["query_1"]
        await until(lambda: ksqldb.running == 0, "the query's end at the server")


async def test_over_tls_http2_is_agreed_on_by_alpn(tmp_path):
    authority = Authority(tmp_path)
    async with running_ksqldb(certificate=authority.signed("ksqldb")) as ksqldb:
        ksqldb.row(1, "a")
        ksqldb.over()
        async with Ksql(ksqldb.url, tls=authority.context()).ask(query(SELECT)) as answer:
            assert names([row async for row in answer]) == ["a"]
        assert ksqldb.asked[0].http == "2"


async def test_a_certificate_nobody_trusts_is_told_as_such(tmp_path):
    async with running_ksqldb(certificate=Authority(tmp_path).signed("ksqldb")) as ksqldb:
        with pytest.raises(KsqlAway, match=r"(?i)certificate"):
            async with Ksql(ksqldb.url).ask(query(SELECT)):
                pass
        assert not ksqldb.asked


async def test_a_server_without_query_stream_is_asked_by_query_and_then_at_once():
    async with running_ksqldb() as ksqldb:
        ksqldb.old = True
        ksql = Ksql(ksqldb.url)
        for _ in range(2):
            ksqldb.row(1, "a")
            ksqldb.final("Limit Reached")
            ksqldb.over()
            async with ksql.ask(query(SELECT, {"a.b": 1}, table_scan=True)) as answer:
                assert names([row async for row in answer]) == ["a"]
                assert answer.final == "Limit Reached"
        assert [each.path for each in ksqldb.asked] == ["/query-stream", "/query", "/query"]
        assert ksqldb.asked[1].body == {
            "ksql": f"{SELECT};",
            "streamsProperties": {"a.b": 1, "ksql.query.pull.table.scan.enabled": True},
        }


async def test_a_server_without_http2_is_asked_by_query():
    async with without_http2() as ksqldb:
        ksqldb.row(1, "a")
        ksqldb.over()
        async with Ksql(ksqldb.url).ask(query(SELECT)) as answer:
            assert names([row async for row in answer]) == ["a"]
        assert [each.path for each in ksqldb.asked] == ["/query"]


async def test_rows_in_one_json_array_are_read_as_they_come():
    async with running_ksqldb() as ksqldb:
        ksqldb.array = True
        async with Ksql(ksqldb.url).ask(query(SELECT)) as answer:
            rows = aiter(answer)
            for id in range(3):
                ksqldb.row(id, "x")
                assert await anext(rows) == {"ID": id, "NAME": "x"}
            ksqldb.over()
            assert [row async for row in rows] == []


async def test_a_row_that_comes_in_pieces_is_one_row():
    async with running_ksqldb() as ksqldb:
        ksqldb.raw(b'[1,"sl')
        async with Ksql(ksqldb.url).ask(query(SELECT)) as answer:
            ksqldb.raw(b'ow"')
            ksqldb.raw(b"]\n")
            assert await anext(aiter(answer)) == {"ID": 1, "NAME": "slow"}


async def test_a_connection_cut_in_a_row_is_no_end_of_the_rows():
    async with running_ksqldb() as ksqldb:
        host, port = ksqldb.url.removeprefix("http://").split(":")
        async with TcpProxy(host, int(port)) as proxy:
            ksqldb.row(1, "a")
            ksqldb.raw(b'[2,"half')
            async with Ksql(f"http://{proxy.address}").ask(query(SELECT)) as answer:
                rows = aiter(answer)
                assert (await anext(rows))["NAME"] == "a"
                await proxy.refuse()
                with pytest.raises(KsqlAway):
                    await anext(rows)


async def test_an_error_instead_of_an_answer_has_its_code():
    async with running_ksqldb() as ksqldb:
        told = {"@type": "statement_error", "error_code": 40001, "message": "ORDERS does not exist"}
        ksqldb.refusing = 400, told
        with pytest.raises(KsqlError, match="ORDERS does not exist") as raised:
            async with Ksql(ksqldb.url).ask(query(SELECT)):
                pass
        assert raised.value.code == 40001
        assert len(ksqldb.asked) == 1


async def test_a_refusal_without_an_end_is_read_up_to_a_bound():
    """It was read into memory for as long as a query may take to begin."""
    sent = 0

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            nonlocal sent
            while True:
                yield b"no" * (1 << 15)
                sent += 1
                await asyncio.sleep(0)

        await StreamingResponse(pieces(), 400)(scope, receive, send)

    async with served(refuse) as url:
        with pytest.raises(KsqlError, match="400 nono"):
            async with Ksql(url, begin=30.0).ask(query(SELECT)):
                pass
    assert sent < 1000


async def test_an_error_after_rows_ends_them():
    async with running_ksqldb() as ksqldb:
        ksqldb.row(1, "a")
        ksqldb.error(50000, "the query broke")
        async with Ksql(ksqldb.url).ask(query(SELECT)) as answer:
            rows = aiter(answer)
            assert (await anext(rows))["NAME"] == "a"
            with pytest.raises(KsqlError, match="the query broke"):
                await anext(rows)


async def test_credentials_are_shown_as_basic_authentication():
    async with running_ksqldb() as ksqldb:
        ksqldb.over()
        async with Ksql(ksqldb.url, user="me", password="it").ask(query(SELECT)):
            pass
        assert ksqldb.asked[0].headers["authorization"] == "Basic bWU6aXQ="


async def test_nobody_there_is_away_and_is_not_asked_in_another_way():
    async with TcpProxy() as proxy:
        await proxy.refuse()
        with pytest.raises(KsqlAway, match="cannot be reached"):
            async with Ksql(f"http://{proxy.address}").ask(query(SELECT)):
                pass


async def test_a_server_that_never_begins_is_away():
    async with TcpProxy() as proxy:
        await proxy.hide()
        with pytest.raises(KsqlAway):
            async with Ksql(f"http://{proxy.address}", begin=0.2).ask(query(SELECT)):
                pass
