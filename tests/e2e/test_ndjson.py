"""Lines of JSON over the socket: `Accept: application/x-ndjson`, as streams and page by page."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest
from support.brokers import embedded_kafka
from support.clients.fast_reconnect import FastReconnectClient
from support.clients.wires import client_for_wire
from support.gateways import (
    GatewayProcess,
    GatewayThread,
    build_config,
    running_gateway,
    running_gateway_process,
)
from support.raw_http import RawConnection, build_request
from support.records import RecordToSend, produce_records
from support.topic_gateway import topic_fixture, topic_gateway_fixture
from support.waiting import WAIT_TIMEOUT_S, wait_until

from gateway.kafka.embedded import EmbeddedKafka

LINES = {"Accept": "application/x-ndjson"}
TYPE = "application/x-ndjson; charset=utf-8"
WHOLE = "?from=earliest&until=latest"

Topic = Callable[..., str]

kafka = embedded_kafka()
gateway = topic_gateway_fixture()
topic = topic_fixture()


@pytest.fixture
async def http(gateway: GatewayThread) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(gateway) as http:
        yield http


def client_of(gateway: GatewayThread) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=gateway.base_url, headers=LINES, trust_env=False, timeout=WAIT_TIMEOUT_S
    )


def read(answer: httpx.Response) -> tuple[list[Any], dict[str, Any]]:
    """All lines but the last, and what that one says."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == TYPE
    assert answer.text.endswith("\n")
    *lines, last = [json.loads(line) for line in answer.text[:-1].split("\n")]
    assert last.keys() == {"@end"}
    return lines, last["@end"]


def numbered(count: int, partitions: int = 1, first: int = 0) -> list[RecordToSend]:
    return [RecordToSend(b"%d" % n, None, n % partitions) for n in range(first, first + count)]


# -- streams -----------------------------------------------------------------------


async def test_each_record_is_a_line_of_strict_json_in_every_format(
    kafka: EmbeddedKafka, http: httpx.AsyncClient, topic: Topic
):
    name = topic()
    values = [b'{"total": 1.50,\n "n": 1}', b"two\r\nlines", b"", None, b"\xd7m\xf8"]
    await produce_records(kafka.bootstrap, name, [RecordToSend(each, b"ada") for each in values])
    answer = await http.get(f"/value/{name}{WHOLE}")
    assert answer.content.startswith(b'{"total": 1.50,  "n": 1}\n"two\\r\\nlines"\n""\n')
    lines, end = read(answer)
    assert lines[3] == {"@delete": {"key": "ada"}}
    assert lines[4]["@error"]["code"] == "value-not-text"
    assert end["reason"] == "until"
    lines, _ = read(await http.get(f"/base64/{name}{WHOLE}"))
    assert (lines[1], lines[4]) == ("dHdvDQpsaW5lcw==", "1234")
    lines, _ = read(await http.get(f"/records/{name}{WHOLE}"))
    assert [each["offset"] for each in (*lines[:3], lines[3]["@delete"])] == [0, 1, 2, 3]
    assert lines[4]["value"] == {"base64": "1234"}
    lines, _ = read(await http.get(f"/cloud/{name}{WHOLE}"))
    assert lines[0]["data"] == {"total": 1.5, "n": 1}


async def test_the_head_is_that_of_a_stream_and_get_and_head_agree(
    gateway: GatewayThread, topic: Topic
):
    with RawConnection(gateway.port) as wire:
        for method in ("HEAD", "GET"):
            wire.send_bytes(
                build_request(f"/value/{topic()}", b"Accept: application/jsonl", method=method)
            )
            head = wire.read_head()
            assert (head.status, head.headers["content-type"]) == (200, TYPE)
            assert head.headers["cache-control"] == "no-store, no-transform"
            assert head.headers["x-accel-buffering"] == "no"
            assert {"Origin", "Accept", "Accept-Encoding"} <= set(head.headers["vary"].split(", "))


async def test_with_positions_every_line_says_where_to_go_on(
    kafka: EmbeddedKafka, http: httpx.AsyncClient, topic: Topic
):
    name = topic(3)
    await produce_records(kafka.bootstrap, name, numbered(9, 3))
    lines, end = read(await http.get(f"/value/{name}{WHOLE}&positions"))
    (begin,) = lines[0].values()
    assert begin["partitions"] == {name: 3} and begin["resume"] == "exact"
    assert all(each.keys() == {"@record", "@position"} for each in lines[1:])
    assert lines[-1]["@position"] == end["position"]
    for n, each in enumerate(lines[1:]):
        header = {"Last-Event-ID": each["@position"]}
        rest, _ = read(await http.get(f"/value/{name}?until=latest", headers=header))
        assert sorted([*(line["@record"] for line in lines[1 : n + 2]), *rest]) == list(range(9))


async def test_an_idle_stream_gets_an_empty_line_now_and_then(
    http: httpx.AsyncClient, topic: Topic
):
    async with http.stream("GET", f"/beating/{topic()}") as answer, asyncio.timeout(WAIT_TIMEOUT_S):
        body = b""
        async for piece in answer.aiter_bytes():
            body += piece
            if len(body) >= 3:
                break
    assert set(body) == {ord("\n")}


async def test_a_body_cut_at_any_byte_is_gone_on_with_behind_its_last_whole_line(
    gateway: GatewayThread, kafka: EmbeddedKafka, topic: Topic
):
    name = topic()
    await produce_records(kafka.bootstrap, name, numbered(4))
    reader = client_for_wire("ndjson", FastReconnectClient)
    url = f"{gateway.base_url}/value/{name}?from=earliest&until=latest"
    async with reader(url) as whole:
        await whole.wait_for_events(lambda events: events and events[-1]["event"] == "end")
        size = whole.received_bytes
    for count in range(0, size, 11):
        client = reader(url)
        client.cut_after(count)
        async with client:
            await client.wait_for_events(lambda events: events and events[-1]["event"] == "end")
            records = [each["data"] for each in client.events if each["event"] == "message"]
            assert records == ["0", "1", "2", "3"], count


@pytest.mark.needs("curl")
async def test_curl_and_jq_read_what_there_is(
    gateway: GatewayThread, kafka: EmbeddedKafka, topic: Topic
):
    """Without jq, Python's own tool reads the lines."""
    name = topic()
    await produce_records(kafka.bootstrap, name, [b'{"n": %d}' % n for n in range(50)])
    url = f"{gateway.base_url}/value/{name}{WHOLE}"
    tool = f"{sys.executable} -m json.tool --json-lines --compact"
    tool = "jq -c ." if shutil.which("jq") else tool
    line = f"curl -sN --noproxy '*' -H 'Accept: application/x-ndjson' '{url}' | {tool}"
    running = await asyncio.create_subprocess_shell(line, stdout=PIPE, stderr=PIPE)
    out, complaint = await asyncio.wait_for(running.communicate(), WAIT_TIMEOUT_S)
    assert (running.returncode, complaint) == (0, b"")
    *records, end = map(json.loads, out.splitlines())
    assert records == [{"n": n} for n in range(50)]
    assert end["@end"]["reason"] == "until"


# -- pages: ?wait= -----------------------------------------------------------------


async def test_an_empty_page_still_says_where_to_go_on(
    kafka: EmbeddedKafka, http: httpx.AsyncClient, topic: Topic
):
    name = topic(3)
    answer = await http.get(f"/value/{name}?wait=0&_x=a%20b")
    lines, end = read(answer)
    assert lines == []
    follow = answer.links["next"]["url"]
    assert follow == f"/value/{name}?wait=0&_x=a%20b&lastEventId={end['position']}"
    await produce_records(kafka.bootstrap, name, numbered(6, 3))
    got = []
    while len(got) < 6:  # the gateway hears of them a moment after the producer
        answer = await http.get(follow)
        got += read(answer)[0]
        follow = urljoin(follow, answer.links["next"]["url"])
    assert sorted(got) == list(range(6))


@pytest.mark.parametrize("partitions", [1, 500])
async def test_pages_of_a_size_hold_everything_once_up_to_the_end(
    partitions: int, kafka: EmbeddedKafka, http: httpx.AsyncClient, topic: Topic
):
    name = topic(partitions)
    await produce_records(kafka.bootstrap, name, numbered(1200, partitions))
    follow, sizes, got = f"/value/{name}?from=earliest&until=500&wait=10s", [], []
    while len(got) < 1200:
        answer = await http.get(follow)
        lines, end = read(answer)
        assert end["reason"] == "wait" and lines
        sizes.append(len(lines))
        got += lines
        follow = answer.links["next"]["url"]
    assert sorted(got) == list(range(1200))
    assert max(sizes) <= 500


async def test_the_end_that_was_asked_for_has_no_next_page(
    kafka: EmbeddedKafka, http: httpx.AsyncClient, topic: Topic
):
    name = topic(2)
    await produce_records(kafka.bootstrap, name, numbered(1500, 2))
    first = await http.get(f"/value/{name}{WHOLE}&wait=30s")
    assert len(read(first)[0]) == 1000
    last = await http.get(first.links["next"]["url"])
    lines, end = read(last)
    assert sorted(read(first)[0] + lines) == list(range(1500))
    assert (end["reason"], last.links) == ("until", {})


@pytest.mark.smoke
@pytest.mark.needs("process")
async def test_long_polls_get_every_record_once_while_it_is_written_and_the_gateway_killed(
    embedded: EmbeddedKafka,
):
    embedded.create_topic("orders", 6)
    config = build_config(embedded.bootstrap, ["orders"])
    killing = asyncio.Event()

    async def write() -> None:
        for first in range(0, 2000, 50):
            await produce_records(embedded.bootstrap, "orders", numbered(50, 6, first))
            if first == 1000:
                await killing.wait()

    async def kill(gateway: GatewayProcess) -> None:
        await wait_until(lambda: len(got) > 500, "records")
        killing.set()
        await gateway.restart(ready=False)

    got, pages, cuts = list[int](), 0, 0
    async with running_gateway_process(config) as gateway, client_of(gateway) as http:
        answer = await http.get("/events/orders?until=100&wait=0")
        follow = answer.links["next"]["url"].replace("wait=0", "wait=20s")
        others = asyncio.gather(write(), kill(gateway))
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while len(got) < 2000:
                try:
                    answer = await http.get(follow)
                except httpx.TransportError:
                    cuts += 1
                    await asyncio.sleep(0.02)
                    continue
                if answer.status_code != 503:
                    got += read(answer)[0]
                    pages += 1
                    follow = answer.links["next"]["url"]
        await others
        assert "Traceback" not in gateway.log, gateway.read_log_tail()
    print(f"{pages} pages, {cuts} answers that did not come")
    assert sorted(got) == list(range(2000))
    assert cuts


async def test_a_gateway_that_drains_answers_those_who_wait_with_where_to_go_on(
    embedded: EmbeddedKafka,
):
    embedded.create_topic("orders", 3)
    config = build_config(embedded.bootstrap, ["orders"])
    async with running_gateway(config) as gateway, client_of(gateway) as http:
        await http.get("/events/orders?wait=0")
        before = gateway.connection_count
        waiting = asyncio.create_task(http.get("/events/orders?wait=5m"))
        streaming = asyncio.create_task(http.get("/events/orders"))
        await wait_until(lambda: gateway.connection_count > before, "two connections")
        for _ in range(5):  # who came before is being served when these are answered
            await http.get("/events/orders?wait=0")
        await gateway.drain()
        for answer in (await waiting, await streaming):
            lines, end = read(answer)
            assert (lines, end["reason"]) == ([], "drain")
        assert "next" in waiting.result().links


async def test_without_kafka_a_page_is_a_503_that_says_when_to_come_back():
    topic = {"name": "orders", "partitionReadyTimeout": "500ms"}
    config = build_config("127.0.0.1:1", [topic])
    async with running_gateway(config, ready=False) as gateway, client_of(gateway) as http:
        for query in ("?wait=0", "?wait=5m", ""):
            answer = await http.get(f"/events/orders{query}")
            assert answer.status_code == 503
            assert answer.headers["content-type"] == "application/problem+json"
            assert int(answer.headers["retry-after"]) >= 1
