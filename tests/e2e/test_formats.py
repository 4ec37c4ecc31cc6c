"""What is in `data:`: the formats of a route, what a transform adds, what a filter keeps."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import httpx
import pytest
from support.brokers import KafkaCluster
from support.gateways import GatewayProcess
from support.records import RecordToSend, produce_records
from support.sse import SseEvent, parse_stream
from support.topic_gateway import ROUTES, TopicNames, build_topic_config, run_gateway_sync

BINARY = b"\xff\xfe not text"
RECORDS = [
    RecordToSend(
        b'{"region": "eu", "amount": 1.50}', b"ada", headers=(("trace", b"t-1"), ("trace", b"t-2"))
    ),
    RecordToSend("line one\nline two\r\nthree\n\u00e9\U0001f40d".encode(), b"grace"),
    RecordToSend(b"", None),
    RecordToSend(None, b"ada"),
    RecordToSend(BINARY, BINARY, headers=(("raw", BINARY), ("none", None))),  # type: ignore[arg-type]
    RecordToSend(b'{"region": "us", "nested": {"n": 7}}', b"hedy"),
]
PATH = "${params.topic}"


def filtered(path: str, condition: dict[str, Any]) -> dict[str, Any]:
    target = {"topic": PATH, "format": "envelope", "filters": [condition]}
    return {"when": [{"path": path}], "with": target}


@pytest.fixture(scope="module")
def gateway(session_kafka: KafkaCluster, names: TopicNames) -> Iterator[GatewayProcess]:
    config = build_topic_config(session_kafka.bootstrap_servers, names, ROUTES)
    found = {"region": "${message.value.region}", "n": "${message.value.nested.n}"}
    for topic in config["kafka"]["topics"]:
        topic["transforms"] = [{"extract-headers": found}]
    config["routes"] += [
        filtered("/regions/{topic}/{region}", {"headers": {"region": "${params.region}"}}),
        filtered("/keys/{topic}/{key}", {"key": "${params.key}"}),
        filtered("/numbers/{topic}/{n}", {"value": {"/nested/n": "${params.n}"}}),
    ]
    with run_gateway_sync(config) as gateway:
        yield gateway


@pytest.fixture
async def topic(kafka: KafkaCluster, names: TopicNames) -> str:
    """With `RECORDS` at the offsets 0 to 5."""
    name = names.create_topic(kafka)
    await produce_records(kafka.bootstrap, name, RECORDS)
    return name


async def events(gateway: GatewayProcess, path: str) -> list[SseEvent]:
    """Those between `begin` and `end`."""
    async with httpx.AsyncClient(base_url=gateway.base_url, trust_env=False, timeout=60) as http:
        answer = await http.get(path, params={"from": "earliest", "until": "latest"})
    assert answer.status_code == 200, answer.text
    found = parse_stream(answer.content)
    assert (found[0].event_type, found[-1].event_type) == ("begin", "end")
    return found[1:-1]


def types(found: Sequence[SseEvent]) -> list[str]:
    return [event.event_type for event in found if event.event_type != "position"]


async def test_value_is_the_value_and_says_what_it_cannot_send(gateway: GatewayProcess, topic: str):
    found = await events(gateway, f"/value/{topic}")
    assert types(found) == ["message", "message", "message", "delete", "error", "message"]
    assert found[0].raw_data == RECORDS[0].value
    assert found[1].data == "line one\nline two\nthree\n\u00e9\U0001f40d", "SSE folds CRLF"
    assert found[2].raw_data == b""
    assert found[3].parse_json() == {"key": "ada"}
    told = found[4].parse_json()
    assert (told["code"], told["topic"], told["offset"]) == ("value-not-text", topic, 4)
    assert len({event.last_event_id for event in found}) == len(found)


async def test_base64_is_exact_for_every_value(gateway: GatewayProcess, topic: str):
    found = await events(gateway, f"/base64/{topic}")
    assert types(found) == ["message", "message", "message", "delete", "message", "message"]
    got = [base64.b64decode(event.raw_data) for event in found if event.event_type == "message"]
    assert got == [sent.value for sent in RECORDS if sent.value is not None]


async def test_an_envelope_is_the_whole_record(gateway: GatewayProcess, topic: str):
    found = [event.parse_json() for event in await events(gateway, f"/records/{topic}")]
    assert [record["offset"] for record in found] == list(range(6))
    assert {record["topic"] for record in found} == {topic}
    raw = {"base64": base64.b64encode(BINARY).decode()}
    assert found[0]["key"] == "ada"
    assert found[0]["headers"] == [["trace", "t-1"], ["trace", "t-2"], ["region", "eu"]]
    assert found[1]["value"].encode() == RECORDS[1].value
    assert (found[2]["key"], found[2]["value"]) == (None, "")
    assert (found[3]["key"], found[3]["value"]) == ("ada", None)
    assert (found[4]["key"], found[4]["value"]) == (raw, raw)
    assert found[4]["headers"] == [["raw", raw], ["none", None]]
    assert found[5]["headers"] == [["region", "us"], ["n", "7"]]


async def test_cloudevents_are_events_of_the_standard(gateway: GatewayProcess, topic: str):
    found = await events(gateway, f"/cloud/{topic}")
    assert types(found) == ["message", "message", "message", "delete", "message", "message"]
    told = [event.parse_json() for event in found if event.event_type == "message"]
    assert {(e["specversion"], e["source"]) for e in told} == {("1.0", f"/kafka/{topic}")}
    assert [event["id"] for event in told] == [f"{topic}:0:{n}" for n in (0, 1, 2, 4, 5)]
    assert b'"data":{"region": "eu", "amount": 1.50}' in found[0].raw_data, "the very text"
    assert told[1]["data"].encode() == RECORDS[1].value
    assert base64.b64decode(told[3]["data_base64"]) == BINARY
    assert "partitionkey" not in told[3]


@pytest.mark.parametrize(
    ("path", "offsets"),
    [
        ("/regions/{}/eu", [0]),
        ("/regions/{}/us", [5]),
        ("/regions/{}/nowhere", []),
        ("/keys/{}/ada", [0, 3]),
        ("/keys/{}/grace", [1]),
        ("/numbers/{}/7", [5]),
    ],
)
async def test_a_filter_keeps_what_is_asked_for(
    path: str, offsets: list[int], gateway: GatewayProcess, topic: str
):
    """By a header that a transform took from the value, by key (its tombstone, too), by a
    field."""
    found = await events(gateway, path.format(topic))
    assert [e.parse_json()["offset"] for e in found if e.event_type != "position"] == offsets


async def test_a_filtered_stream_hears_live_what_it_asked_for_and_no_more(
    gateway: GatewayProcess, topic: str, kafka: KafkaCluster
):
    """Ended by count: the third record of its own, among many of others."""
    reading = partial(httpx.AsyncClient, base_url=gateway.base_url, trust_env=False, timeout=60)
    params = {"from": "live", "until": "3"}
    found: list[SseEvent] = []
    async with reading() as http, http.stream("GET", f"/keys/{topic}/me", params=params) as answer:
        others = [RecordToSend(b"%d" % n, b"me" if n % 50 == 7 else b"you") for n in range(200)]
        body = b""
        async for piece in answer.aiter_bytes():
            if not body:
                await produce_records(kafka.bootstrap, topic, others)
            body += piece
        found = [event for event in parse_stream(body) if event.event_type == "message"]
    assert [event.parse_json()["value"] for event in found] == ["7", "57", "107"]
