"""A real file goes in by `gateway produce` and comes out of a stream whole."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import sysconfig
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from support.brokers import KafkaCluster
from support.clients.raw import RawClient
from support.gateways import GatewayProcess
from support.sse import SseEvent, SseParser
from support.topic_gateway import TopicNames, build_topic_config, run_gateway_sync
from support.waiting import WAIT_TIMEOUT_S

from gateway.core.log.record import TopicPartition
from gateway.kafka.produce.line_producer import ValueDigest

LINES = 100_000


class Text(NamedTuple):
    path: Path
    lines: list[bytes]
    digest: ValueDigest


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    """Python's own sources, one after the other, and what they lack: CR, tabs, a long line, no
    LF at the end."""
    path = tmp_path_factory.mktemp("input") / "stdlib.txt"
    library = Path(sysconfig.get_paths()["stdlib"])
    pieces = [
        "no source has a carriage return\rwithin a line\n\t\ttabs\n\n\u2028\u00e9\U0001f40d\n"
    ]
    count = 0
    for source in sorted(library.glob("**/*.py")):
        if count >= LINES:
            break
        if "site-packages" not in source.parts and (content := readable(source)):
            pieces.append(content)
            count += sum(1 for line in content.split("\n") if line.strip())
    pieces.append("x" * 500_000 + "\nthe last line has no end")
    path.write_bytes("".join(pieces).encode())
    lines = path.read_bytes().split(b"\n")
    assert len(lines) >= LINES, f"this Python has {len(lines)} lines of library only"
    return Text(path, lines, digest_of(lines))


def readable(source: Path) -> str:
    try:
        return source.read_bytes().decode()
    except (UnicodeDecodeError, OSError):
        return ""


def digest_of(values: list[bytes]) -> ValueDigest:
    digest = ValueDigest()
    for value in values:
        digest.add(value)
    return digest


@pytest.fixture(scope="module")
def gateway(session_kafka: KafkaCluster, names: TopicNames) -> Iterator[GatewayProcess]:
    with run_gateway_sync(build_topic_config(session_kafka.bootstrap_servers, names)) as gateway:
        yield gateway


async def produced(kafka: KafkaCluster, topic: str, text: Text, *options: str) -> re.Match[str]:
    """What `gateway produce` says of it at last."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "produce", topic, "--servers", kafka.bootstrap_servers),
        *("--file", str(text.path), *options),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(), WAIT_TIMEOUT_S)
    assert process.returncode == 0
    said = re.search(r"(\d+) of (\d+) lines.*sha256=(\w+) unordered=(\w+)", out.decode())
    assert said is not None, out
    assert int(said[1]) == int(said[2]) == len(text.lines)
    return said


async def stream(url: str) -> AsyncIterator[SseEvent]:
    parser = SseParser()
    async with (
        httpx.AsyncClient(trust_env=False, timeout=WAIT_TIMEOUT_S) as http,
        http.stream("GET", url, headers={"Accept": "text/event-stream"}) as answer,
    ):
        assert answer.status_code == 200
        async for piece in answer.aiter_bytes():
            for event in parser.feed(piece):
                yield event


async def values(url: str) -> list[bytes]:
    """Of a stream of format value that ends."""
    events = [event async for event in stream(url)]
    assert json.loads(events[-1].raw_data) == {"reason": "until"}
    assert {event.event_type for event in events[1:-1]} == {"message"}
    return [event.raw_data for event in events[1:-1]]


class Impatient(RawClient):
    """Comes back at once, whatever the stream asks for."""

    reconnect_delay = property(lambda self: 0.01, lambda self, seconds: None)  # type: ignore[assignment]


def has_ended(client: RawClient) -> bool:
    return any(event["event"] == "end" for event in client.events[-1:])


async def test_twelve_partitions_come_out_whole_over_many_cuts(
    gateway: GatewayProcess, kafka: KafkaCluster, names: TopicNames, text: Text
):
    """Cut every two megabytes, as a rule within an event, and resumed by the id before it."""
    topic = names.create_topic(kafka, 12)
    said = await produced(kafka, topic, text)
    url = f"{gateway.base_url}/records/{topic}?from=earliest&until=latest"
    got: list[bytes] = []
    places: dict[TopicPartition, int] = {}
    async with Impatient(url) as client:
        cuts = 0
        while not has_ended(client):
            client.cut_after(2_000_000 + 12_345 * cuts)
            await client.wait_for_events(lambda _: not client.is_cut_pending or has_ended(client))
            cuts += 1
        for event in client.events:
            if event["event"] == "message":
                record = json.loads(event["data"])
                tp = TopicPartition(record["topic"], record["partition"])
                assert record["offset"] == places.get(tp, 0)
                places[tp] = record["offset"] + 1
                got.append(record["value"].encode())
    assert cuts > 10 and client.open_count >= cuts
    assert len(places) == 12
    assert len(got) == len(text.lines)
    assert digest_of(got).unordered_digest == said[4] == text.digest.unordered_digest
