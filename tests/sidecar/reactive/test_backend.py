"""Calls of a back end, served in the test's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import time
from collections.abc import AsyncIterator, Callable
from email.utils import formatdate
from typing import Any
from uuid import UUID

import httpx
import orjson
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from support.app_server import running_app
from support.registry import FakeRegistry

from gateway.config import SchemaRegistry
from gateway.config.sections.sidecar import Backend as Settings
from gateway.config.sections.sidecar import Group, Sidecar
from gateway.core.delivery.verdict import (
    BackendUnavailable,
    BatchResults,
    RecordResult,
    SuspectBatch,
)
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import RegistryUnavailable, SchemaNotFound
from gateway.formats.codec import Codecs, SerializationFormat
from gateway.sidecar.reactive.backend import (
    MISSING_SCHEMA_PAUSE_S,
    BackendClient,
    BackendResponse,
    BatchEncoder,
    create_http_client,
    get_ids,
    parse_retry_after,
    post_json,
)

SENT = [Record(TopicPartition("orders", 0), 5, 0, 0, b"k", b"v")]
GOOD = b'[{"processed": true}]'

Reply = Callable[[Request], Any]


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with create_http_client() as client:
        yield client


def running_backend(reply: Reply) -> Any:
    paths = [Route("/kafka/records", reply, methods=["POST"]), Route("/health", reply)]
    return running_app(Starlette(routes=paths))


def build_back_end(client: httpx.AsyncClient, url: str, **options: Any) -> BackendClient:
    return BackendClient(
        client, Settings.model_validate({"host": url, "timeout": "500ms", **options})
    )


async def test_a_batch_is_posted_with_its_headers(client: httpx.AsyncClient):
    seen: list[tuple[bytes, str | None, str | None]] = []

    async def reply(request: Request) -> Response:
        headers = request.headers
        seen.append((await request.body(), headers.get("content-type"), headers.get("x-one")))
        return Response(GOOD)

    async with running_backend(reply) as url:
        verdict = await build_back_end(client, url).post(b'["batch"]', SENT, {"X-One": "1"})
    assert verdict == BatchResults([RecordResult(True)])
    assert seen == [(b'["batch"]', "application/json", "1")]


@pytest.mark.parametrize("base", ["http://b:1/api/v1", "http://b:1/api/v1/"])
@pytest.mark.parametrize("path", ["/orders", "orders"])
async def test_paths_are_appended_to_that_of_the_host(client: httpx.AsyncClient, base, path):
    """They replaced it, wholly or in part, unless they had no slash and the host had one."""
    assert str(build_back_end(client, base, path=path)) == "http://b:1/api/v1/orders"


async def test_one_that_is_late_or_drips_or_breaks_off_is_away(client: httpx.AsyncClient):
    async def drip_answer(request: Request) -> Response:
        from starlette.responses import StreamingResponse

        async def pieces() -> AsyncIterator[bytes]:
            while True:
                yield b" "
                await asyncio.sleep(0.05)

        return StreamingResponse(pieces())

    async def answer_late(request: Request) -> Response:
        await asyncio.sleep(30)
        return Response()

    for reply in (drip_answer, answer_late):
        async with running_backend(reply) as url:
            verdict = await build_back_end(client, url).post(b"[]", SENT)
        assert isinstance(verdict, BackendUnavailable) and verdict.is_late, (
            "each piece came in time, the answer did not"
        )
    verdict = await build_back_end(client, url).post(b"[]", SENT)
    assert isinstance(verdict, BackendUnavailable) and not verdict.is_late
    assert "is not there" in verdict.reason


async def test_one_that_cuts_the_connection_is_away(client: httpx.AsyncClient):
    async def cut_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[{")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(cut_connection, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        verdict = await build_back_end(client, f"http://127.0.0.1:{port}").post(b"[]", SENT)
    assert isinstance(verdict, BackendUnavailable) and "broke off" in verdict.reason


@pytest.mark.parametrize("extra", [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", b"}]"])
async def test_bytes_behind_an_answer_are_not_taken_for_the_next_one(
    client: httpx.AsyncClient, extra: bytes
):
    """A back end that answered twice, and then not at all, had the second batch committed. One that
    counted characters for Content-Length had the next batch broken off, although it processed it.
    """
    connections = 0

    async def answer_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(2)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(GOOD))
                writer.write(GOOD + (extra if connections == 1 else b""))
        writer.close()

    server = await asyncio.start_server(answer_twice, "127.0.0.1", 0)
    async with server:
        back_end = build_back_end(client, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for expected in (1, 2, 2):
            assert await back_end.post(b"[]", SENT) == BatchResults([RecordResult(True)])
            assert connections == expected


async def test_an_answer_that_ends_with_its_connection_may_have_broken_off(
    client: httpx.AsyncClient,
):
    """It was no JSON, so after the retries each record of the batch became a dead letter."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + GOOD[:-5])
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        back_end = build_back_end(client, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        verdict = await back_end.post(b"[]", SENT)
    assert isinstance(verdict, BackendUnavailable) and "broke off" in verdict.reason


@pytest.mark.parametrize("is_large", [False, True])
async def test_one_that_breaks_off_a_large_batch_may_take_a_smaller_one(
    client: httpx.AsyncClient, is_large: bool
):
    """A 413 before all of the batch was sent was lost, so that it was sent again without end."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        back_end = build_back_end(client, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        verdict = await back_end.post(b"x" * (6 << 20 if is_large else 10), SENT)
    assert isinstance(verdict, BackendUnavailable) and verdict.is_late == is_large


@pytest.mark.parametrize("charset", ["utf-8-sig", "utf-16", "iso-8859-1"])
async def test_an_answer_may_have_a_byte_order_mark_or_another_charset(
    client: httpx.AsyncClient, charset: str
):
    """It was no JSON, as above."""
    text, named = '[{"processed": false, "stacktrace": "größer"}]', charset.removesuffix("-sig")

    async def reply(request: Request) -> Response:
        return Response(
            text.encode(charset), headers={"Content-Type": f"application/json; charset={named}"}
        )

    async with running_backend(reply) as url:
        verdict = await build_back_end(client, url).post(b"[]", SENT)
    assert verdict == BatchResults([RecordResult(False, "größer")])


async def test_an_answer_that_is_compressed_unasked_is_not_read(client: httpx.AsyncClient):
    """7 KB that were gzip of gzip took 4 GB, and the loop stood still until the group was lost."""
    accepted: list[str | None] = []

    async def reply(request: Request) -> Response:
        accepted.append(request.headers.get("accept-encoding"))
        return Response(gzip.compress(GOOD), headers={"Content-Encoding": "gzip"})

    async with running_backend(reply) as url:
        verdict = await build_back_end(client, url).post(b"[]", SENT)
    assert isinstance(verdict, BackendUnavailable) and "compressed (gzip)" in verdict.reason
    assert accepted == ["identity"]


async def test_an_answer_is_read_as_far_as_the_batch_allows(client: httpx.AsyncClient):
    """A JSON array of 64 MiB took 2 GB, for one record."""
    size = 1 << 20

    async def reply(request: Request) -> Response:
        return Response(GOOD.ljust(size))

    async with running_backend(reply) as url:
        back_end = build_back_end(client, url, timeout="30s")
        assert isinstance(await back_end.post(b"[]", SENT), BatchResults)
        size = 2 << 20
        verdict = await back_end.post(b"[]", SENT)
        assert isinstance(verdict, SuspectBatch) and "answer to 1 records" in verdict.reason
        assert isinstance(await back_end.post(b"[]", SENT * 16), SuspectBatch)
        verdict = await back_end.post(b"x" * (1 << 20), SENT)
        assert isinstance(verdict, BatchResults)


async def test_cookies_are_not_kept(client: httpx.AsyncClient):
    """Those of one back end went to all others on the same host, and collected until the size of
    the request was refused."""
    seen: list[str | None] = []

    async def reply(request: Request) -> Response:
        seen.append(request.headers.get("cookie"))
        return Response(GOOD, headers={"Set-Cookie": f"session{len(seen)}=1; Path=/"})

    async with running_backend(reply) as url:
        for _ in range(2):
            await build_back_end(client, url).post(b"[]", SENT)
    assert seen == [None, None]


async def test_it_is_asked_again_when_it_says(client: httpx.AsyncClient):
    async def busy(request: Request) -> Response:
        return Response("busy", 429, {"Retry-After": "7"})

    async with running_backend(busy) as url:
        assert await build_back_end(client, url).post(b"[]", SENT) == BackendUnavailable(
            "the back end says 429: busy", 7.0
        )


async def test_how_long_it_wants_to_be_left_alone_is_bounded(client: httpx.AsyncClient):
    """Rows of ksqlDB were never sent again after a Retry-After of 400 digits."""

    async def busy(request: Request) -> Response:
        return Response("busy", 503, {"Retry-After": "1" * 400})

    async with running_backend(busy) as url:
        response = await post_json(client, httpx.URL(url).join("/kafka/records"), b"[]", {}, 10.0)
    assert response == BackendResponse(503, 3600.0, b"busy")


async def test_a_redirect_is_not_followed(client: httpx.AsyncClient):
    async def redirect(request: Request) -> Response:
        return Response(status_code=307, headers={"Location": "/kafka/records"})

    async with running_backend(redirect) as url:
        assert isinstance(await build_back_end(client, url).post(b"[]", SENT), BackendUnavailable)


async def test_garbage_is_suspect_by_what_it_is(client: httpx.AsyncClient):
    async def garbage(request: Request) -> Response:
        return Response(b"\xff\xfe")

    async with running_backend(garbage) as url:
        assert isinstance(await build_back_end(client, url).post(b"[]", SENT), SuspectBatch)


async def test_it_is_well_by_a_success_of_its_health_path_or_where_none_is_asked(client):
    status = 200

    async def health(request: Request) -> Response:
        return Response(status_code=status)

    async with running_backend(health) as url:
        assert await build_back_end(client, url).describe_failure() == ""
        status = 503
        assert "says 503" in await build_back_end(client, url).describe_failure()
        assert (
            "says 404" in await build_back_end(client, url, healthPath="/other").describe_failure()
        )
        below = await build_back_end(client, f"{url}/api").describe_failure()
        assert below.startswith(f"{url}/api/health says 404")
        assert await build_back_end(client, url, healthPath=None).describe_failure() == ""
    assert "does not answer" in await build_back_end(client, url).describe_failure()


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("7", 7),
        ("0", 0),
        ("999999999999", 3600),
        ("1" * 400, 3600),
        ("", 0),
        ("soon", 0),
        ("-3", 0),
        ("²", 0),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", 0),  # was an OverflowError
    ],
)
def test_retry_after_is_read_and_bounded(given: str, seconds: float):
    assert parse_retry_after({"retry-after": given}) == seconds


def test_retry_after_may_be_a_date():
    later = formatdate(time.time() + 60, usegmt=True)
    assert 30 < parse_retry_after({"retry-after": later}) <= 60
    assert parse_retry_after({"retry-after": formatdate(0, usegmt=True)}) == 0.0


TP = TopicPartition("orders", 1)


def record(key: bytes | None, value: bytes | None, *headers: tuple[str, bytes | None]) -> Record:
    return Record(TP, 7, 0, 1700000000000, key, value, headers)


def build_writer(topics: dict[str, Any] | None = None, **options: Any) -> BatchEncoder:
    group = Group.model_validate({"group": "g", "topics": ["orders"], **options})
    section = Sidecar.model_validate({"topics": topics or {}})
    return BatchEncoder(Codecs(None), section, group)


async def write_json(encoder: BatchEncoder, *records: Record) -> list[dict[str, Any]]:
    batch = await encoder.encode(records)
    assert not batch.unreadable
    found: list[dict[str, Any]] = orjson.loads(batch.body)
    return found


async def test_keys_and_values_are_in_the_formats_of_the_group_or_of_their_topic():
    (one,) = await write_json(build_writer(), record(b"k", b"abc"))
    assert (one["key"], one["value"]) == ("k", "YWJj")
    (one,) = await write_json(build_writer(valueFormat="json"), record(b"k", b'{"a": 1}'))
    assert one["value"] == {"a": 1}
    formats = {"orders": {"keyFormat": "binary", "valueFormat": "string"}}
    (one,) = await write_json(build_writer(formats), record(b"abc", b"abc"))
    assert (one["key"], one["value"]) == ("YWJj", "abc")


async def test_json_stays_as_it_is_written_however_deep_it_is():
    encoder = build_writer(valueFormat="json")
    deep = b"[" * 900 + b"]" * 900
    for text in (b'{"n": 123456789012345678901234567890}', b"1.10", b'{"a":1,"a":2}', deep):
        batch = await encoder.encode([record(b"k", text)])
        assert b'"value":' + text in batch.body


async def test_a_tombstone_is_null_and_no_bytes_are_the_empty_string():
    one, two = await write_json(build_writer(), record(None, None), record(b"", b""))
    assert (one["key"], one["value"]) == (None, None)
    assert (two["key"], two["value"]) == ("", "")


async def test_headers_that_repeat_are_a_list_and_bytes_that_are_no_text_are_base64():
    headers = [("a", b"1"), ("b", b"\xff"), ("a", None), ("a", b"3"), ("c", None)]
    (one,) = await write_json(build_writer(), record(b"k", b"v", *headers))
    assert one["headers"] == {"a": ["1", None, "3"], "b": {"base64": "/w=="}, "c": None}


async def test_ids_are_those_of_the_record_or_derived_from_its_place():
    brings = record(b"k", b"v", ("x-correlation-id", b"c"), ("X-Traceability-Id", b"t"))
    (one,) = await write_json(build_writer(), brings)
    assert (one["correlationId"], one["traceabilityId"]) == ("c", "t")
    (first,) = await write_json(build_writer(), record(b"k", b"v"))
    (again,) = await write_json(build_writer(), record(b"k", b"v"))
    assert first["correlationId"] == again["correlationId"]
    other = record(b"k", b"v")._replace(offset=8)
    assert get_ids(other)[0] != first["correlationId"]


async def test_unreadable_records_are_left_out_with_the_reason():
    batch = await build_writer(valueFormat="json").encode(
        [record(b"a", b"1"), record(b"b", b"{"), record(b"\xff", b"2"), record(b"d", b"3")]
    )
    assert [item["key"] for item in orjson.loads(batch.body)] == ["a", "d"]
    assert [item.key for item in batch.sent] == [b"a", b"d"]
    assert "not JSON" in batch.unreadable[1]
    assert "not UTF-8" in batch.unreadable[2]


async def test_records_with_a_schema_are_shown_once_the_registry_was_asked():
    registry = FakeRegistry()
    fields = [{"name": "n", "type": "long"}]
    id = registry.register_schema("orders-value", {"type": "record", "name": "R", "fields": fields})
    good = b"\0" + id.to_bytes(4, "big") + b"\x02"
    async with running_app(registry.app) as url:
        codecs = Codecs(SchemaRegistry.model_validate({"type": "schema-registry", "url": url}))
        group = Group.model_validate({"group": "g", "topics": ["orders"], "valueFormat": "avro"})
        encoder = BatchEncoder(codecs, Sidecar(), group, missing_schema_timeout_s=0.0)
        patient_encoder = BatchEncoder(codecs, Sidecar(), group)
        unknown = record(b"b", b"\0\0\0\0\x63\x02")
        try:
            # A follower of another registry learns of a schema after the record with it.
            with pytest.raises(RegistryUnavailable, match="no schema with the id 99"):
                await patient_encoder.encode([unknown])
            registry.error_status = 503
            with pytest.raises(RegistryUnavailable):
                await encoder.encode([record(b"k", good)])
            registry.error_status = None
            batch = await encoder.encode([record(b"a", good), unknown, record(b"c", b"x")])
            named = record(b"d", b"\x04", ("__value_schema_id", b"\1" + UUID(int=id).bytes))
            by_header = await encoder.encode([named])
        finally:
            await codecs.close()
    assert [item["value"] for item in orjson.loads(batch.body)] == [{"n": 1}]
    assert batch.unreadable.keys() == {1, 2}
    assert [item["value"] for item in orjson.loads(by_header.body)] == [{"n": 2}]


async def test_missing_schemas_of_a_batch_are_waited_for_together():
    """Each was asked for when the one before it had been given up, after 15 seconds."""
    registry = FakeRegistry()
    async with running_app(registry.app) as url:
        codecs = Codecs(SchemaRegistry.model_validate({"type": "schema-registry", "url": url}))
        group = Group.model_validate({"group": "g", "topics": ["orders"], "valueFormat": "avro"})
        batch = [record(b"k", bytes([0, 0, 0, 0, id])) for id in range(1, 20)]
        try:
            with pytest.raises(RegistryUnavailable):
                await BatchEncoder(codecs, Sidecar(), group).encode(batch)
            # All are known to be missing, and are not asked for again.
            assert not any(codecs.find_missing_id(each.value or b"") for each in batch)
        finally:
            await codecs.close()


async def test_after_waiting_in_vain_other_missing_schemas_are_not_waited_for():
    """Records with ids that were made up stopped their partition, each batch for 15 seconds.

    The 15 seconds were those of an entry in a cache, and began again without end while clients of
    the sidecar filled that cache with other errors.
    """

    class EmptyCodecs(Codecs):
        def decode_text_cached(self, format: SerializationFormat, data: bytes) -> bytes:
            raise SchemaNotFound("there is none")

    now = 100.0
    group = Group.model_validate({"group": "g", "topics": ["orders"], "valueFormat": "avro"})
    encoder = BatchEncoder(EmptyCodecs(), Sidecar(), group, now=lambda: now)
    batch, other = [record(b"k", b"v")], [record(b"k", b"v")._replace(tp=TopicPartition("new", 0))]
    with pytest.raises(RegistryUnavailable):
        await encoder.encode(batch)
    now += 14.0
    with pytest.raises(RegistryUnavailable):
        await encoder.encode(batch)
    now += 1.0
    assert (await encoder.encode(batch)).unreadable
    assert (await encoder.encode(batch)).unreadable
    with pytest.raises(RegistryUnavailable):
        await encoder.encode(other)
    now += MISSING_SCHEMA_PAUSE_S
    with pytest.raises(RegistryUnavailable):
        await encoder.encode(batch)


async def test_a_fault_in_decoding_blames_no_record():
    """orjson's error is a TypeError, so each TypeError of decoding made a dead letter."""

    class FaultyCodecs(Codecs):
        def decode_text_cached(self, format: SerializationFormat, data: bytes) -> bytes:
            raise TypeError("'int' object is not iterable")

    group = Group.model_validate({"group": "g", "topics": ["orders"], "valueFormat": "avro"})
    with pytest.raises(TypeError, match="not iterable"):
        await BatchEncoder(FaultyCodecs(), Sidecar(), group).encode([record(b"k", b"v")])
