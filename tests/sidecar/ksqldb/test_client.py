"""Held against a double of ksqlDB that is built from its public reference, on hypercorn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.responses import StreamingResponse
from support.app_server import running_app
from support.certificates import CertificateAuthority
from support.ksqldb import get_names, running_ksqldb, running_ksqldb_without_http2
from support.tcp_proxy import TcpProxy
from support.waiting import wait_until

from gateway.sidecar.ksqldb.client import KsqlClient, KsqlUnavailable, build_query
from gateway.sidecar.ksqldb.rows import KsqlError

pytestmark = pytest.mark.needs("hypercorn")

SELECT = "SELECT * FROM ORDERS EMIT CHANGES"


async def test_a_push_query_is_asked_over_http2_without_tls_and_its_rows_have_names():
    async with running_ksqldb() as ksqldb:
        ksqldb.send_row(1, "a")
        ksqldb.send_row(2, None)
        async with KsqlClient(ksqldb.url).stream(build_query(SELECT, offset="earliest")) as answer:
            assert answer.columns.names == ("ID", "NAME")
            rows = aiter(answer)
            assert [await anext(rows), await anext(rows)] == [
                {"ID": 1, "NAME": "a"},
                {"ID": 2, "NAME": None},
            ]
        (asked, closing) = ksqldb.requests
        assert (asked.path, asked.http_version) == ("/query-stream", "2")
        assert asked.body == {"sql": f"{SELECT};", "properties": {"auto.offset.reset": "earliest"}}
        assert closing.path == "/close-query"
        assert ksqldb.closed_query_ids == ["query_1"]
        await wait_until(lambda: ksqldb.open_query_count == 0, "the query's end at the server")


async def test_over_tls_http2_is_agreed_on_by_alpn(tmp_path):
    authority = CertificateAuthority(tmp_path)
    async with running_ksqldb(certificate=authority.issue_certificate("ksqldb")) as ksqldb:
        ksqldb.send_row(1, "a")
        ksqldb.end_query()
        async with KsqlClient(ksqldb.url, tls=authority.create_client_context()).stream(
            build_query(SELECT)
        ) as answer:
            assert get_names([row async for row in answer]) == ["a"]
        assert ksqldb.requests[0].http_version == "2"


async def test_an_untrusted_certificate_is_an_error_that_says_so(tmp_path):
    async with running_ksqldb(
        certificate=CertificateAuthority(tmp_path).issue_certificate("ksqldb")
    ) as ksqldb:
        with pytest.raises(KsqlUnavailable, match=r"(?i)certificate"):
            async with KsqlClient(ksqldb.url).stream(build_query(SELECT)):
                pass
        assert not ksqldb.requests


async def test_a_server_without_query_stream_is_asked_by_query_and_then_at_once():
    async with running_ksqldb() as ksqldb:
        ksqldb.lacks_query_stream = True
        ksql = KsqlClient(ksqldb.url)
        for _ in range(2):
            ksqldb.send_row(1, "a")
            ksqldb.send_final("Limit Reached")
            ksqldb.end_query()
            async with ksql.stream(build_query(SELECT, {"a.b": 1}, table_scan=True)) as answer:
                assert get_names([row async for row in answer]) == ["a"]
                assert answer.final_message == "Limit Reached"
        assert [request.path for request in ksqldb.requests] == [
            "/query-stream",
            "/query",
            "/query",
        ]
        assert ksqldb.requests[1].body == {
            "ksql": f"{SELECT};",
            "streamsProperties": {"a.b": 1, "ksql.query.pull.table.scan.enabled": True},
        }


async def test_a_server_without_http2_is_asked_by_query():
    async with running_ksqldb_without_http2() as ksqldb:
        ksqldb.send_row(1, "a")
        ksqldb.end_query()
        async with KsqlClient(ksqldb.url).stream(build_query(SELECT)) as answer:
            assert get_names([row async for row in answer]) == ["a"]
        assert [request.path for request in ksqldb.requests] == ["/query"]


async def test_rows_in_one_json_array_are_read_as_they_come():
    async with running_ksqldb() as ksqldb:
        ksqldb.always_sends_array = True
        async with KsqlClient(ksqldb.url).stream(build_query(SELECT)) as answer:
            rows = aiter(answer)
            for id in range(3):
                ksqldb.send_row(id, "x")
                assert await anext(rows) == {"ID": id, "NAME": "x"}
            ksqldb.end_query()
            assert [row async for row in rows] == []


async def test_a_row_that_comes_in_pieces_is_one_row():
    async with running_ksqldb() as ksqldb:
        ksqldb.send_raw(b'[1,"sl')
        async with KsqlClient(ksqldb.url).stream(build_query(SELECT)) as answer:
            ksqldb.send_raw(b'ow"')
            ksqldb.send_raw(b"]\n")
            assert await anext(aiter(answer)) == {"ID": 1, "NAME": "slow"}


async def test_a_connection_cut_in_a_row_is_no_end_of_the_rows():
    async with running_ksqldb() as ksqldb:
        host, port = ksqldb.url.removeprefix("http://").split(":")
        async with TcpProxy(host, int(port)) as proxy:
            ksqldb.send_row(1, "a")
            ksqldb.send_raw(b'[2,"half')
            async with KsqlClient(f"http://{proxy.address}").stream(build_query(SELECT)) as answer:
                rows = aiter(answer)
                assert (await anext(rows))["NAME"] == "a"
                await proxy.refuse()
                with pytest.raises(KsqlUnavailable):
                    await anext(rows)


async def test_an_error_instead_of_an_answer_has_its_code():
    async with running_ksqldb() as ksqldb:
        error = {
            "@type": "statement_error",
            "error_code": 40001,
            "message": "ORDERS does not exist",
        }
        ksqldb.error_response = 400, error
        with pytest.raises(KsqlError, match="ORDERS does not exist") as raised:
            async with KsqlClient(ksqldb.url).stream(build_query(SELECT)):
                pass
        assert raised.value.code == 40001
        assert len(ksqldb.requests) == 1


async def test_a_refusal_without_an_end_is_read_up_to_a_bound():
    """It was read into memory for as long as a query may take to begin."""
    sent = 0

    async def serve_refusal(scope: Any, receive: Any, send: Any) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            nonlocal sent
            while True:
                yield b"no" * (1 << 15)
                sent += 1
                await asyncio.sleep(0)

        await StreamingResponse(pieces(), 400)(scope, receive, send)

    async with running_app(serve_refusal) as url:
        with pytest.raises(KsqlError, match="400 nono"):
            async with KsqlClient(url, begin_timeout_s=30.0).stream(build_query(SELECT)):
                pass
    assert sent < 1000


async def test_an_error_after_rows_ends_them():
    async with running_ksqldb() as ksqldb:
        ksqldb.send_row(1, "a")
        ksqldb.send_error(50000, "the query broke")
        async with KsqlClient(ksqldb.url).stream(build_query(SELECT)) as answer:
            rows = aiter(answer)
            assert (await anext(rows))["NAME"] == "a"
            with pytest.raises(KsqlError, match="the query broke"):
                await anext(rows)


async def test_credentials_are_shown_as_basic_authentication():
    async with running_ksqldb() as ksqldb:
        ksqldb.end_query()
        async with KsqlClient(ksqldb.url, user="me", password="it").stream(build_query(SELECT)):
            pass
        assert ksqldb.requests[0].headers["authorization"] == "Basic bWU6aXQ="


async def test_nobody_there_is_away_and_is_not_asked_in_another_way():
    async with TcpProxy() as proxy:
        await proxy.refuse()
        with pytest.raises(KsqlUnavailable, match="cannot be reached"):
            async with KsqlClient(f"http://{proxy.address}").stream(build_query(SELECT)):
                pass


async def test_a_server_that_never_begins_is_away():
    async with TcpProxy() as proxy:
        await proxy.hide()
        with pytest.raises(KsqlUnavailable):
            async with KsqlClient(f"http://{proxy.address}", begin_timeout_s=0.2).stream(
                build_query(SELECT)
            ):
                pass
