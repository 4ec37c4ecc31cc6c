"""`gateway tail` as a person or a script has it: a process, its two outputs and its exit code.

One gateway with an embedded Kafka serves the module; each test has a topic of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from support.app_server import running_app
from support.brokers import embedded_kafka
from support.certificates import CertificateAuthority
from support.fork_server import ForkedCommand
from support.gateways import (
    GatewayThread,
    build_config,
    running_gateway,
    running_gateway_process,
)
from support.oracle import StreamOracle
from support.records import RecordToSend, produce_records
from support.tail import running_tail
from support.tcp_proxy import TcpProxy
from support.topic_gateway import TOPIC_TEMPLATE, TopicNames, run_gateway_sync
from support.waiting import WAIT_TIMEOUT_S, wait_until

from gateway.core.log.record import TopicPartition
from gateway.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.needs("process")

PARTITIONS = 3
NAMES = TopicNames(40)


def configuration(servers: str) -> dict:
    """/records/TOPIC (envelope) and /events/TOPIC (value); both may be narrowed."""
    narrowed = {"topic": TOPIC_TEMPLATE, "clientFilters": True, "clientFields": True}
    routes = [
        {"when": [{"path": f"/{name}/{{topic}}"}], "with": {**narrowed, "format": format}}
        for name, format in (("records", "envelope"), ("events", "value"))
    ]
    return build_config(servers, NAMES.names, routes=routes)


kafka = embedded_kafka()


@pytest.fixture(scope="module")
def servers(kafka: EmbeddedKafka) -> str:
    return ",".join(kafka.bootstrap)


@pytest.fixture(scope="module")
def gateway(servers: str) -> Iterator[GatewayThread]:
    with run_gateway_sync(configuration(servers)) as gateway:
        yield gateway


@pytest.fixture
def topic(kafka: EmbeddedKafka) -> str:
    return NAMES.create_topic(kafka, PARTITIONS)


def zero(topic: str) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, number): 0 for number in range(PARTITIONS)}


# Exactly


async def test_what_comes_over_cuts_and_a_killed_gateway_is_every_record_once(
    kafka: EmbeddedKafka, servers: str, topic: str, oracle: StreamOracle
):
    """Cut within a record, and later killed while records are written."""
    async with running_gateway_process(configuration(servers)) as gateway, TcpProxy() as network:
        network.set_target("127.0.0.1", gateway.port)
        url = f"http://{network.address}/records/{topic}"
        async with running_tail(url, "--from", "earliest") as it:
            await it.wait_until_following()
            network.cut_after(1000)
            await oracle.produce_records(topic, 30)
            await it.wait_for_output(lambda: "connecting again in" in it.stderr)
            await oracle.produce_records(topic, 30)
            await it.wait_for_output(60)
            await gateway.kill()
            await oracle.produce_records(topic, 30)
            await gateway.start()
            await it.wait_for_output(90)
            oracle.check_items(it.parse_records(), start=zero(topic))
            assert await it.send_signal() == 130


async def test_a_position_in_a_file_is_gone_on_from_exactly(
    gateway: GatewayThread, topic: str, oracle: StreamOracle, tmp_path: Path
):
    """After a count within a batch, after SIGTERM, and once more from an end that stays."""
    url = f"{gateway.base_url}/records/{topic}"
    kept = ["--position", str(tmp_path / "p"), "--from", "earliest"]
    await oracle.produce_records(topic, 50)
    async with running_tail(url, *kept, "-n", "17") as first:
        assert await first.wait_ended() == 0
    async with running_tail(url, *kept) as second:
        await second.wait_for_output(33)
        await oracle.produce_records(topic, 10)
        await second.wait_for_output(43)
        assert await second.send_signal(signal.SIGTERM) == 0
    await oracle.produce_records(topic, 10)
    async with running_tail(url, *kept, "--until", "latest") as third:
        assert await third.wait_ended() == 0
    assert [len(each.complete_lines) for each in (first, second, third)] == [17, 43, 10]
    oracle.check_items(
        first.parse_records() + second.parse_records() + third.parse_records(), start=zero(topic)
    )


async def test_an_interrupt_says_how_to_go_on(
    gateway: GatewayThread, topic: str, oracle: StreamOracle
):
    url = f"{gateway.base_url}/records/{topic}"
    async with running_tail(url) as first:
        await first.wait_until_following()
        await oracle.produce_records(topic, 5)
        await first.wait_for_output(5)
        assert await first.send_signal() == 130
    said = re.search(r"gateway: to go on here: --from (\S+)\n$", first.stderr)
    assert said is not None
    await oracle.produce_records(topic, 5)
    async with running_tail(url, "--from", said[1], "--until", "latest") as second:
        assert await second.wait_ended() == 0
    oracle.check_items(first.parse_records() + second.parse_records(), start=zero(topic))


@pytest.mark.smoke
async def test_topics_are_followed_without_a_gateway(
    servers: str, kafka: EmbeddedKafka, topic: str, oracle: StreamOracle, tmp_path: Path
):
    """The same tokens, too: what it began a gateway may go on with, and the other way."""
    other = NAMES.create_topic(kafka)
    start = {**zero(topic), TopicPartition(other, 0): 0}
    await oracle.produce_records(topic, 20)
    await oracle.produce_records(other, 20)
    kept = [f"{topic},{other}", "--position", str(tmp_path / "p"), "--from", "earliest"]
    async with running_tail(*kept, "-n", "25", GATEWAY_KAFKA_SERVERS=servers) as first:
        assert await first.wait_ended() == 0
    file = tmp_path / "gateway.yaml"
    file.write_text(json.dumps({"kafka": {"servers": servers.split(",")}}))
    async with running_tail(*kept, "--until", "latest", "--config", str(file)) as second:
        assert await second.wait_ended() == 0
    assert len(first.complete_lines) == 25
    oracle.check_items(first.parse_records() + second.parse_records(), start=start)


# What is let through


async def test_filters_and_fields_are_asked_of_the_gateway(
    gateway: GatewayThread, servers: str, topic: str, oracle: StreamOracle
):
    await oracle.produce_records(topic, 40)
    narrow = ["--filter", "key=key-3", "--filter", "/n>=10", "--filter", "/n<30"]
    options = [*narrow, "--fields", "/n", "--from", "earliest", "--until", "latest"]
    events = f"{gateway.base_url}/events/{topic}"
    async with (
        running_tail(events, *options) as it,
        running_tail(topic, *options, "-s", servers) as direct,
    ):
        assert [await it.wait_ended(), await direct.wait_ended()] == [0, 0]
    passed = [n for n in range(10, 30) if n % 7 == 3]
    assert [json.loads(line) for line in it.complete_lines] == [{"n": n} for n in passed]
    assert [json.loads(line)["value"] for line in direct.complete_lines] == [
        {"n": n} for n in passed
    ]


# Standard output


@pytest.mark.smoke
async def test_value_is_exact_to_the_byte_and_control_lines_are_elsewhere(
    gateway: GatewayThread, servers: str, topic: str
):
    values = [b"\x1b[31m\x00\xff", b"", b"a\r\nb", "\u202eä".encode()]
    await produce_records([servers], topic, [RecordToSend(value, partition=0) for value in values])
    options = ["--from", "earliest", "--format", "value", "--until", "latest"]
    async with running_tail(f"{gateway.base_url}/records/{topic}", *options) as it:
        assert await it.wait_ended() == 0
    assert it.stdout == b"".join(value + b"\n" for value in values)
    assert re.fullmatch(rf"gateway: following {topic} \(3 partitions\)\n", it.stderr)


async def test_quietly_there_is_nothing_but_records(
    gateway: GatewayThread, topic: str, oracle: StreamOracle
):
    await oracle.produce_records(topic, 3)
    url = f"{gateway.base_url}/records/{topic}?from=earliest"
    async with running_tail(url, "--quiet", "-n", "3") as it:
        assert await it.wait_ended() == 0
    async with running_tail(url, "--quiet") as interrupted:
        await interrupted.wait_for_output(3)
        assert await interrupted.send_signal() == 130
    assert [it.stderr, interrupted.stderr] == ["", ""]


@pytest.mark.parametrize("idle", [True, False])
async def test_a_reader_that_has_enough_ends_it_quietly(
    gateway: GatewayThread, topic: str, oracle: StreamOracle, idle: bool
):
    """`| head -n 2`, with more to come, and with nothing more."""
    await oracle.produce_records(topic, 2 if idle else 5000)
    command = f'"{sys.executable}" -m gateway tail "$0" --from earliest | head -n 2'
    script = f"{command}; exit ${{PIPESTATUS[0]}}"
    shell = await asyncio.create_subprocess_exec(
        *("bash", "-c", script, f"{gateway.base_url}/records/{topic}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(shell.communicate(), WAIT_TIMEOUT_S)
    assert shell.returncode == 0
    assert out.count(b"\n") == 2
    assert re.fullmatch(rb"gateway: following [^\n]*\n", err)


@asynccontextmanager
async def terminal(*arguments: str, **environment: str) -> AsyncIterator[Callable[[], str]]:
    """Both outputs on a terminal; what it shows at the end."""
    screen, process_side = pty.openpty()
    shown = b""

    def read() -> None:
        nonlocal shown
        try:
            shown += os.read(screen, 65536)
        except OSError:  # Linux says so when the last writer has gone
            asyncio.get_running_loop().remove_reader(screen)

    asyncio.get_running_loop().add_reader(screen, read)
    environ = {"PATH": os.environ["PATH"], "TERM": "xterm", **environment}
    command = ForkedCommand(("tail", *arguments), environ, streams=[process_side] * 3)
    os.close(process_side)
    try:
        await wait_until(lambda: command.poll() is not None, lambda: shown.decode())
        assert command.returncode == 0
        yield lambda: shown.decode()
    finally:
        command.kill()
        asyncio.get_running_loop().remove_reader(screen)
        os.close(screen)


EVIL = "\x1b]0;owned\x07\x9b2J\u202e"


async def test_a_terminal_gets_colours_and_no_commands(
    gateway: GatewayThread, servers: str, topic: str
):
    value = json.dumps({"name": EVIL}, ensure_ascii=False).encode()
    await produce_records(
        [servers], topic, [RecordToSend(value, EVIL.encode()), RecordToSend(EVIL.encode())]
    )
    url = f"{gateway.base_url}/records/{topic}?from=earliest"
    async with terminal(url, "-n", "2") as shown:
        await wait_until(lambda: shown().count("\r\n") == 3, shown)
        text = shown()
    assert '\x1b[34m"name"\x1b[0m' in text
    assert "\x1b" not in re.sub(r"\x1b\[\d+m", "", text)
    assert not re.search("[\x00-\x09\x0b\x0c\x0e-\x1a\x7f-\x9f\u202e]", text)
    async with terminal(url, "-n", "2", NO_COLOR="1") as shown:
        await wait_until(lambda: shown().count("\r\n") == 3, shown)
        assert "\x1b" not in shown()
    async with terminal(url, "-n", "2", "--format", "value") as shown:
        await wait_until(lambda: shown().count("\r\n") == 3, shown)
        assert "\x1b" not in re.sub(r"\x1b\[\d+m", "", shown())


# What goes wrong


async def test_a_path_that_is_none_is_answered_with_the_nearest(gateway: GatewayThread):
    async with running_tail(f"{gateway.base_url}/recrods/{NAMES.names[0]}") as it:
        assert await it.wait_ended() == 1
    assert it.stderr.startswith("gateway: 404: ")
    assert f"did you mean /records/{NAMES.names[0]}?" in it.stderr
    assert it.stderr.count("\n") == 1


async def test_topics_and_brokers_that_are_none_are_told(servers: str):
    """A topic was "404: ...; use orders", without a server to be seen or a reason to use orders."""
    async with (
        running_tail("test-nowhere", "-s", servers) as no_topic,
        running_tail("orders", "-s", "127.0.0.1:1") as no_kafka,
        running_tail("http://127.0.0.1:1/events/orders") as no_gateway,
    ):
        assert [await each.wait_ended() for each in (no_topic, no_kafka, no_gateway)] == [1, 1, 1]
    assert no_topic.stderr.startswith("gateway: no broker knows the topic test-nowhere;")
    assert no_topic.stderr.count("\n") == 1
    unreachable = "gateway: no stream from 127.0.0.1:1: the bootstrap server at 127.0.0.1:1 cannot"
    assert no_kafka.stderr.startswith(unreachable) and no_kafka.stderr.count("\n") == 1
    assert "127.0.0.1:1: Connection refused; is it running" in no_gateway.stderr


async def test_a_topic_of_a_similar_name_is_suggested(kafka: EmbeddedKafka, servers: str):
    """The only suggestion was the path of a route that the command serves to itself."""
    kafka.create_topic("warehouses", 1)
    async with (
        running_tail("warehouse", "-s", servers) as it,
        running_tail("x", "-s", servers) as other,
    ):
        assert [await each.wait_ended() for each in (it, other)] == [1, 1]
    assert it.stderr.endswith("did you mean 'warehouses'?\n") and "/stream" not in it.stderr
    assert "; there are " in other.stderr


class Stand:
    """A server that answers as it is told, and remembers what it was asked."""

    def __init__(self, *answers: Callable[[], Response]) -> None:
        self.asked: list[Request] = []
        self._answers = list(answers)

    async def __call__(self, scope, receive, send) -> None:
        self.asked.append(Request(scope))
        await self._answers.pop(0)()(scope, receive, send)


def stream(text: str) -> Callable[[], Response]:
    async def body() -> AsyncIterator[str]:
        yield text

    return lambda: StreamingResponse(body(), media_type="text/event-stream")


def problem(status: int, **headers: str) -> Callable[[], Response]:
    return lambda: JSONResponse({"detail": "no; do this"}, status, headers)


async def test_what_the_server_asks_for_is_waited_for_and_what_it_refuses_is_the_end():
    """503 before anything, `retry:`, Retry-After later, and at last a 401."""
    stand = Stand(
        problem(503, **{"Retry-After": "0"}),
        stream("retry: 10\ndata: 1\nid: a\n\n"),
        problem(503, **{"Retry-After": "2"}),
        stream("data: 2\nid: b\n\ndata: cut"),
        problem(401),
    )
    async with running_app(stand) as base_url:
        headers = ["--header", "X-Test: yes", "--token", "secret"]
        async with running_tail(f"{base_url}/x?from=earliest", *headers) as it:
            assert await it.wait_ended() == 1
    assert it.stdout == b"1\n2\n"
    assert it.stderr.endswith("gateway: 401: no; do this\n")
    assert "connecting again in 2.0 s" in it.stderr
    assert "secret" not in it.stderr
    ids = [each.headers.get("last-event-id") for each in stand.asked]
    assert ids == [None, None, "a", "a", "b"]
    assert [each.url.query for each in stand.asked] == ["from=earliest"] * 2 + [""] * 3
    for each in stand.asked:
        assert each.headers["authorization"] == "Bearer secret"
        assert each.headers["x-test"] == "yes"
        assert each.headers["accept"] == "text/event-stream"


async def test_what_is_no_stream_is_no_stream():
    stand = Stand(lambda: Response("<html>", media_type="text/html"), problem(404))
    async with running_app(stand) as base_url, running_tail(f"{base_url}/x") as it:
        assert await it.wait_ended() == 1
    assert it.stderr == "gateway: /x answers with text/html, not with a stream\n"


async def test_a_certificate_is_checked_unless_told_otherwise(
    servers: str, topic: str, oracle: StreamOracle, tmp_path: Path
):
    await oracle.produce_records(topic, 1)
    authority = CertificateAuthority(tmp_path)
    signed = str(authority.issue_certificate("gateway"))
    config = configuration(servers)
    config["listen"] = {**config["listen"], "tls": {"certificate": signed, "key": signed}}
    async with running_gateway(config, ready=False) as gateway:
        url = f"{gateway.base_url}/records/{topic}?from=earliest&until=1"
        async with (
            running_tail(url) as refused,
            running_tail(url, "--cacert", str(authority.certificate_path)) as trusted,
            running_tail(url, "--insecure") as insecure,
        ):
            ended = [await each.wait_ended() for each in (refused, trusted, insecure)]
        assert ended == [1, 0, 0], (refused.stderr, trusted.stderr, insecure.stderr)
        assert "certificate" in refused.stderr and "--cacert" in refused.stderr
        assert len(trusted.complete_lines) == len(insecure.complete_lines) == 1
