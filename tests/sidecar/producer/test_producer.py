"""Records over HTTP, read back by another client."""

from __future__ import annotations

import asyncio
import itertools
import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from starlette.requests import Request
from support.brokers import embedded_kafka
from support.dead_letters import read_committed
from support.gateways import build_config, create_http_client, running_gateway_process
from support.ndjson_request import build_chunk, open_ndjson_request, read_json_line
from support.sidecars import running_sidecar, wait_until_ready
from support.waiting import wait_until

from gateway.client_memory import ClientMemory, HeldPart
from gateway.config.sections.sidecar import Producer
from gateway.errors import WritesFull
from gateway.formats.codec import SerializationFormat
from gateway.kafka.produce.pending_records import compute_partition
from gateway.sidecar.http.spec import Spec
from gateway.sidecar.producer.ndjson import NdjsonProduceResponse
from gateway.sidecar.producer.records import EncodedRecords, FieldEncoding, RecordFailure

kafka = embedded_kafka()
_number = itertools.count()
GUARDS = {
    "users": {
        "type": "inline",
        "credentials": {"headers": {"authorization": "Bearer {credentials}"}},
        "users": {
            "writer": {"token": "of-writer", "roles": ["kafka:w"]},
            "reader": {"token": "of-reader", "roles": ["kafka:r"]},
        },
    }
}


@pytest.fixture
def name(kafka):
    name = f"t{next(_number)}"
    kafka.create_topic(name, 3)
    return name


@pytest.fixture
async def http(kafka):
    async with running_sidecar(kafka.bootstrap, producer={"timeout": "2s"}) as http:
        await wait_until_ready(http)
        yield http


def read_written(kafka: Any, topic: str, partitions: int = 3) -> list[Any]:
    return read_committed(
        SimpleNamespace(bootstrap_servers=",".join(kafka.bootstrap)), topic, partitions
    )


async def post_records(
    http: httpx.AsyncClient, topic: str, *records: Any, **more: Any
) -> httpx.Response:
    headers = more.pop("headers", {})
    body = {"records": list(records), **more}
    return await http.post(f"/producers/{topic}", json=body, headers=headers)


async def test_each_format_is_written_as_its_bytes(kafka, http, name):
    for given_, key, value, bytes_ in (
        ("string", "k", "vä", "vä".encode()),
        ("binary", "aw==", "AP8=", b"\x00\xff"),
        ("json", {"k": 1}, [1, None, "x"], b'[1,null,"x"]'),
        (5, "k", "by number", b"by number"),
    ):
        answer = await post_records(
            http, name, {"key": key, "value": value, "partition": 0},
            keyFormat=given_, valueFormat=given_,
        )  # fmt: skip
        assert answer.status_code == 200, answer.text
        assert read_written(kafka, name)[-1].value() == bytes_
    assert [message.key() for message in read_written(kafka, name)] == [
        b"k",
        b"k",
        b'{"k":1}',
        b"k",
    ]


async def test_numbers_keep_their_digits_however_they_come(kafka, http, name):
    value = b'{"n":123456789012345678901234567890}'
    record = b'{"partition":0,"value":%b}' % value
    for path, kind, content in (
        (f"/producers/{name}", "json", b'{"valueFormat":"json","records":[%b]}' % record),
        (f"/producers/{name}?valueFormat=json", "x-ndjson", record),
        (f"/topics/{name}", "vnd.kafka.json.v2+json", b'{"records":[%b]}' % record),
    ):
        headers = {"Content-Type": f"application/{kind}"}
        answer = await http.post(path, content=content, headers=headers)
        assert answer.status_code == 200, answer.text
        assert read_written(kafka, name)[-1].value() == value
    assert len(read_written(kafka, name)) == 3


async def test_topics_of_kafka_and_of_sidecars_are_not_written(http):
    """Records in the topic of keys counted as claims and answers of others: requests of theirs were
    not done, and the memory of all sidecars grew for a day."""
    for topic in ("sidecar-idempotency", "sidecar-replay", "sidecar-audit", "__consumer_offsets"):
        for path, kind in (
            (f"/producers/{topic}", "json"),
            (f"/producers/{topic}", "x-ndjson"),
            (f"/topics/{topic}", "vnd.kafka.json.v2+json"),
        ):
            headers = {"Content-Type": f"application/{kind}"}
            answer = await http.post(path, content=b'{"records":[{}]}', headers=headers)
            assert answer.status_code == 403, answer.text


async def test_null_is_a_tombstone_and_empty_stays_empty(kafka, http, name):
    answer = await post_records(
        http, name, {"key": "a", "value": None, "partition": 0}, {"key": "", "partition": 0},
        {"key": None, "value": "", "partition": 0}, valueFormat="string",
    )  # fmt: skip
    assert answer.status_code == 200
    found = [(message.key(), message.value()) for message in read_written(kafka, name)]
    assert found == [(b"a", None), (b"", None), (None, b"")]


async def test_a_record_has_its_partition_time_headers_and_ids(kafka, http, name):
    record = {
        "key": "a", "partition": 2, "timestamp": 1234567890123,
        "headers": {"h": ["1", None, "1"], "x": "é", "none": None, "bin": {"base64": "AP/+"}},
        "correlationId": "of-the-record",
    }  # fmt: skip
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    given_ = {"X-Traceability-Id": "of-the-request", "traceparent": trace}
    answer = await post_records(http, name, record, headers=given_)
    assert answer.json()["offsets"] == [{"partition": 2, "offset": 0}]
    (message,) = read_written(kafka, name)
    assert message.timestamp()[1] == 1234567890123
    assert message.headers() == [
        ("h", b"1"), ("h", None), ("h", b"1"), ("x", "é".encode()), ("none", None),
        ("bin", b"\x00\xff\xfe"),
        ("X-Correlation-Id", b"of-the-record"), ("X-Traceability-Id", b"of-the-request"),
        ("traceparent", trace.encode()),
    ]  # fmt: skip
    assert answer.headers["X-Traceability-Id"] == "of-the-request"
    assert answer.headers["traceparent"] == trace


async def test_missing_ids_are_generated_and_returned(kafka, http, name):
    answers = [await post_records(http, name, {"partition": 0}) for _ in range(2)]
    result = [answer.headers["X-Correlation-Id"] for answer in answers]
    assert len({*result}) == 2
    found = [dict(message.headers())["X-Correlation-Id"] for message in read_written(kafka, name)]
    assert found == [entry.encode() for entry in result]


async def test_an_id_that_a_record_gives_itself_is_not_given_again(kafka, http, name):
    headers = {"x-correlation-id": "own"}
    await post_records(http, name, {"partition": 0, "headers": headers})
    (message,) = read_written(kafka, name)
    assert [key.lower() for key, _ in message.headers()].count("x-correlation-id") == 1


async def test_a_record_without_a_key_keeps_its_headers(kafka, http, name):
    """Headers and ids of a record with one other member were left out."""
    records = [
        {"value": "v", "headers": {"h": "1"}},
        {"value": "v", "correlationId": "own"},
        {"partition": 0, "headers": {"x-correlation-id": "own"}},
    ]
    for record in records:
        await post_records(http, name, {"partition": 0, **record}, valueFormat="string")
        await post_records(http, name, record, valueFormat="string")
    headers = [
        [(key.lower(), value) for key, value in message.headers()]
        for message in read_written(kafka, name)
    ]
    assert sum(("h", b"1") in pairs for pairs in headers) == 2
    assert sum(("x-correlation-id", b"own") in pairs for pairs in headers) == 4


async def test_keys_decide_as_everywhere_in_kafka_and_keyless_ones_stay_together(kafka, http, name):
    keys = [f"key-{n}" for n in range(20)]
    result = (await post_records(http, name, *({"key": key} for key in keys))).json()["offsets"]
    assert [entry["partition"] for entry in result] == [
        compute_partition(k.encode(), 3) for k in keys
    ]
    result = (await post_records(http, name, *({"value": "eA=="} for _ in range(9)))).json()[
        "offsets"
    ]
    assert len({entry["partition"] for entry in result}) == 1


async def test_some_records_may_fail_and_results_are_in_request_order(kafka, http, name):
    answer = await post_records(
        http, name, {"value": "!"}, {"value": "YQ==", "partition": 1}, {"partition": 3}
    )
    assert answer.status_code == 207
    result = answer.json()
    assert result["requestStatus"] == "PARTIAL"
    first, second, third = result["offsets"]
    assert first["errorCode"] == 400
    assert first["error"].startswith("records[0].value: the value is not base64")
    assert second == {"partition": 1, "offset": 0}
    assert third["error"].startswith(f"records[2].partition: topic {name} has no partition 3")


async def test_what_is_all_the_callers_fault_says_so(http, name):
    answer = await post_records(http, name, {"key": 7}, {"key": {}})
    assert answer.status_code == 400
    result = answer.json()
    assert (result["statusCode"], result["code"]) == (400, "INVALID_RECORDS")
    assert [offset["errorCode"] for offset in result["offsets"]] == [400, 400]
    assert result["requestStatus"] == "FAILED"


async def test_nothing_is_written_of_a_request_that_is_none(kafka, http, name):
    answer = await post_records(http, name, {"key": "a"}, {"partition": "x"})
    assert answer.status_code == 400
    assert answer.json()["message"].startswith("records[1].partition: ")
    assert read_written(kafka, name) == []


async def test_no_records_are_fine(http, name):
    answer = await post_records(http, name)
    assert (answer.status_code, answer.json()["offsets"]) == (200, [])


async def test_an_unknown_topic_is_an_error_with_the_nearest_name(kafka, http):
    kafka.create_topic("payments", 1)
    answer = await post_records(http, "paymets", {})
    assert answer.status_code == 404
    assert answer.json()["code"] == "UNKNOWN_TOPIC"
    assert "did you mean 'payments'" in answer.json()["description"]
    for wrong in ("%C3%A4", "x" * 300, "a%20b"):
        assert (await post_records(http, wrong, {})).status_code == 404


async def test_a_topic_has_formats_of_its_own(kafka, name):
    topics = {name: {"keyFormat": "json", "valueFormat": 5}}
    async with running_sidecar(kafka.bootstrap, producer={}, topics=topics) as http:
        await wait_until_ready(http)
        assert (await post_records(http, name, {"key": [1], "value": "x"})).status_code == 200
    (message,) = read_written(kafka, name)
    assert (message.key(), message.value()) == (b"[1]", b"x")


async def test_while_kafka_is_away_nothing_is_taken_on():
    from gateway.kafka.embedded import EmbeddedKafka

    with EmbeddedKafka({"t": 1}) as kafka:
        async with running_sidecar(kafka.bootstrap, producer={"timeout": "500ms"}) as http:
            await wait_until_ready(http)
            assert (await post_records(http, "t", {})).status_code == 200
            kafka.down(1)
            answer = await post_records(http, "t", {}, {})
            assert answer.status_code == 503
            assert int(answer.headers["Retry-After"]) >= 1
            assert {"statusCode", "code", "message"} <= answer.json().keys()

            async with asyncio.timeout(60):
                while "offsets" in answer.json():  # until it notices that Kafka is away
                    answer = await post_records(http, "t", {})
                    assert answer.status_code == 503
                kafka.up(1)
                while (await post_records(http, "t", {})).status_code != 200:
                    pass


@pytest.mark.parametrize(
    ("token", "status"), [(None, 401), ("of-nobody", 401), ("of-reader", 403), ("of-writer", 200)]
)
async def test_a_token_needs_the_scope_to_write(kafka, name, token, status):
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    options: Any = {"producer": {}, "guarded": {"users": []}}
    async with running_sidecar(kafka.bootstrap, guards=GUARDS, **options) as http:
        await wait_until_ready(http)
        answer = await post_records(http, name, {}, headers=headers)
        assert answer.status_code == status
        if status != 200:
            assert answer.json()["statusCode"] == status
        if status == 401:
            assert "Bearer" in answer.headers["WWW-Authenticate"]


async def test_a_body_may_be_a_megabyte_and_no_more(http, name):
    big = json.dumps({"records": [{"value": "A" * 700_000}]}).encode()
    for content, status in ((big, 200), (big + b" " * 400_000, 413)):
        headers = {"Content-Type": "application/json"}
        answer = await http.post(f"/producers/{name}", content=content, headers=headers)
        assert answer.status_code == status
    assert answer.json()["code"] == "CONTENT_TOO_LARGE"
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        [("Sec-Fetch-Site", "none"), ("Sec-Fetch-Site", "cross-site")],
        {"Host": "evil.example:8080"},
    ],
)
async def test_pages_of_browsers_are_no_callers(kafka, http, name, headers):
    assert (await post_records(http, name, {}, headers=headers)).status_code == 403
    assert read_written(kafka, name) == []


async def test_a_body_of_another_kind_is_refused(http, name):
    """NDJSON in gzip was a 200, whose only line said that the body is not valid UTF-8."""
    content = b'{"records":[{}]}'
    for kind, status in (("text/plain", 415), ("application/json", 200), ("", 200)):
        headers = {"Content-Type": kind} if kind else {}
        answer = await http.post(f"/producers/{name}", content=content, headers=headers)
        assert answer.status_code == status
    for kind in ("application/json", "application/x-ndjson"):
        headers = {"Content-Type": kind, "Content-Encoding": "gzip"}
        answer = await http.post(f"/producers/{name}", content=b"x", headers=headers)
        assert answer.status_code == 415
        assert "Content-Encoding gzip" in answer.text


async def test_formats_of_ndjson_are_refused_with_a_json_body(http, name):
    """They were ignored, so that "abcd" was written as the base64 that it also is."""
    body = {"records": [{"value": "abcd"}]}
    answer = await http.post(f"/producers/{name}?valueFormat=json", json=body)
    assert answer.status_code == 400
    assert "query valueFormat: is for NDJSON" in answer.text


async def test_the_api_is_described_as_openapi_and_as_a_page(http):
    result = (await http.get("/openapi.json")).json()
    assert result["openapi"].startswith("3.1")
    assert "/producers/{topic}" in result["paths"]
    page = await http.get("/docs", headers={"Sec-Fetch-Site": "none"})
    assert page.headers["content-type"].startswith("text/html")
    assert "script-src" not in page.headers["content-security-policy"]
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert (await http.get("/docs.css")).headers["content-type"].startswith("text/css")
    assert (await http.get("/producers/x")).status_code == 405
    assert (await http.get("/producers")).json()["code"] == "NOT_FOUND"


# lines


async def post_lines(
    http: httpx.AsyncClient, topic: str, content: Any, query: str = ""
) -> list[Any]:
    headers = {"Content-Type": "application/x-ndjson"}
    async with http.stream(
        "POST", f"/producers/{topic}{query}", content=content, headers=headers
    ) as answer:
        assert answer.status_code == 200
        return [json.loads(line) async for line in answer.aiter_lines()]


async def test_each_line_is_answered_in_its_turn(kafka, http, name):
    async def iter_content():
        for n in range(500):
            yield b'{"partition":0,"value":"%d"}\n' % n

    result = await post_lines(http, name, iter_content(), "?valueFormat=string")
    assert result == [{"partition": 0, "offset": n} for n in range(500)]
    assert [message.value() for message in read_written(kafka, name)] == [
        b"%d" % n for n in range(500)
    ]


async def test_a_line_that_is_no_record_harms_no_other(http, name):
    content = b'{"partition":0}\nnope\n\n{"partition":-1}\n{"key":1}\n{"partition":0}'
    result = await post_lines(http, name, content)
    assert [entry.get("offset", entry.get("error", "")[:7]) for entry in result] == [
        0, "line 2:", "line 4:", "line 5:", 1,
    ]  # fmt: skip
    assert "record.key: format string takes text" in result[3]["error"]


async def test_a_result_comes_as_soon_as_it_is_known(http, name):
    """While the request goes on: httpx would send all of it first."""
    async with open_ndjson_request(http, name) as (reader, writer):
        for offset in range(3):
            writer.write(build_chunk(b'{"partition":0}\n'))
            assert json.loads(await read_json_line(reader)) == {"partition": 0, "offset": offset}
        writer.write(build_chunk(b""))
        assert b"0\r\n\r\n" in await reader.read()


async def test_a_client_that_does_not_read_results_is_not_read_from(kafka, name):
    """Else all that it sends would be kept here, or all that it is told. Others go on, and it is
    gone when it goes."""
    async with running_sidecar(kafka.bootstrap, producer={"streamed": 100}) as http:
        await wait_until_ready(http)
        before = count_streams()
        async with open_ndjson_request(http, name) as (_, writer):
            writer.transport.pause_reading()
            lines, sent = build_chunk(b'{"partition":0,"value":"%b"}\n' % (b"x" * 10) * 1000), 0
            try:
                while sent < 64 << 20:
                    writer.write(lines)
                    async with asyncio.timeout(5):
                        await writer.drain()
                    sent += len(lines)
            except TimeoutError:
                pass
            else:
                pytest.fail("64 MiB were taken from a client that reads nothing")
            assert (await post_records(http, name, {"partition": 1})).status_code == 200
            assert count_streams() > before
        await wait_until(lambda: count_streams() == before, "the end of its request")


def count_streams() -> int:
    """Requests that last, here: each has a task that reads."""
    return sum(
        "NdjsonProduceResponse._read" in str(task.get_coro()) for task in asyncio.all_tasks()
    )


def create_ndjson_response(
    receive: Any,
    encode_records: Any,
    send_records: Any = None,
    client_memory: ClientMemory | None = None,
) -> NdjsonProduceResponse:
    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    encodings = [FieldEncoding(SerializationFormat.STRING)] * 2
    validator = Spec(["producer"]).create_validator("ProduceRecord")
    return NdjsonProduceResponse(
        request,
        Producer(),
        asyncio.Event(),
        client_memory or ClientMemory(),
        validator,
        encodings,
        encode_records,
        send_records,
    )


async def test_an_unexpected_error_of_a_line_ends_the_request():
    """It waited for a result that nobody set, and stayed in memory after its client had gone."""

    async def receive() -> Any:
        return {"type": "http.request", "body": b'{"value":"v"}\n', "more_body": True}

    async def fail(*_: object) -> Any:
        raise KeyError("value")

    response = create_ndjson_response(receive, fail)
    async with asyncio.timeout(60):
        with pytest.raises(KeyError):
            await response({}, receive, AsyncMock())


async def test_lines_are_encoded_once_while_the_producer_is_full():
    """They were encoded again each 50 ms, by schema up to 0.4 s each, in the turns of others."""

    async def receive() -> Any:
        return {"type": "http.request", "body": b'{"value":"v"}\n', "more_body": False}

    encode = AsyncMock(return_value=EncodedRecords(1, failures={0: RecordFailure(400, "bad")}))
    written: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
    written.set_result([])
    send = AsyncMock(side_effect=[WritesFull("full", retry_after=1.0)] * 2 + [written])
    response = create_ndjson_response(receive, encode, send)
    async with asyncio.timeout(60):
        await response({}, receive, AsyncMock())
    assert (encode.await_count, send.await_count) == (1, 3)


async def test_a_line_that_does_not_end_counts_and_is_let_go_of():
    """400 requests with 990 KB of a line each took four times the limit of memory."""
    client_memory = ClientMemory(1_000_000)
    sent: list[Any] = []
    pieces = [bytes(50_000)] * 18

    async def receive() -> Any:
        if sent:
            return {"type": "http.request"}
        if not pieces:
            client_memory.hold(HeldPart.UNSENT, AsyncMock(), 200_000)
            await asyncio.Event().wait()
        return {"type": "http.request", "body": pieces.pop(), "more_body": True}

    async def send(message: Any) -> None:
        if message.get("body"):
            sent.append(json.loads(message["body"]))

    response = create_ndjson_response(receive, AsyncMock(), client_memory=client_memory)
    async with asyncio.timeout(60):
        await response({}, receive, send)
    assert sent[0]["errorCode"] == 503
    assert "go on after the last line with a result" in sent[0]["error"]
    assert client_memory.by_part[HeldPart.RECEIVED] == 0


async def test_a_line_that_is_too_long_ends_it_when_those_before_are_written(kafka, name):
    async with running_sidecar(kafka.bootstrap, producer={"maxBytes": "1000B"}) as http:
        await wait_until_ready(http)
        good = b'{"partition":0,"value":"v"}\n'
        for first, long in ((0, b"x" * 1001), (2, b"x" * 1001 + b"\n" + good)):
            async with open_ndjson_request(http, name) as (reader, writer):
                writer.write(build_chunk(good * 2 + long) + build_chunk(b""))
                for offset in (first, first + 1):
                    assert json.loads(await read_json_line(reader))["offset"] == offset
                result = json.loads(await read_json_line(reader))
                assert result["errorCode"] == 413
                assert result["error"].startswith("line 3 is over 1000 bytes")
                assert b"0\r\n\r\n" in await reader.read()
        assert len(read_written(kafka, name)) == 4


async def test_a_request_that_is_silent_too_long_ends_with_an_error(monkeypatch, http, name):
    monkeypatch.setattr("gateway.sidecar.producer.ndjson.IDLE_TIMEOUT_S", 0.5)
    async with open_ndjson_request(http, name) as (reader, writer):
        writer.write(build_chunk(b'{"partition":0}\n{"parti'))
        assert json.loads(await read_json_line(reader))["offset"] == 0
        result = json.loads(await read_json_line(reader))
        assert result["errorCode"] == 408
        assert result["error"].startswith("nothing came for 0.5 s")
        writer.write(build_chunk(b""))
        assert b"0\r\n\r\n" in await reader.read()


@pytest.mark.needs("process")
async def test_a_sidecar_that_ends_says_after_which_line_to_go_on(kafka, name):
    """What was taken is written and told; who reads nothing of that does not hold it up."""
    config = build_config(kafka.bootstrap, [], [], sidecar={"producer": {"streamed": 100}})
    async with (
        running_gateway_process({**config, "listen": {"drainTimeout": "3s"}}) as gateway,
        create_http_client(gateway) as http,
        open_ndjson_request(http, name) as (reader, writer),
        open_ndjson_request(http, name) as (_, stuck),
    ):
        stuck.transport.pause_reading()
        stuck.write(build_chunk(b'{"partition":1}\n' * 100_000))
        writer.write(build_chunk(b'{"partition":0}\n' * 2))
        for offset in range(2):
            assert json.loads(await read_json_line(reader))["offset"] == offset
        ending = asyncio.create_task(gateway.stop())
        result = json.loads(await read_json_line(reader))
        assert result["errorCode"] == 503
        assert "go on after line 2 with another one" in result["error"]
        assert b"0\r\n\r\n" in await reader.read()
        assert await ending == 0
    assert sum(message.partition() == 0 for message in read_written(kafka, name)) == 2
