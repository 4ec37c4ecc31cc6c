"""Streams that have their connection to themselves: what a client sees of it is HTTP/1.1.

The cases of the protocol alone are in tests/web/http/test_outlet.py.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import AsyncExitStack
from io import StringIO
from typing import Any

import pytest
from ruamel.yaml import YAML
from starlette.middleware.base import BaseHTTPMiddleware
from support.any_topic import Names, any_topic, any_topic_gateway, named_topic
from support.brokers import embedded_kafka
from support.certificates import Authority
from support.clients.ndjson import NdjsonClient
from support.clients.raw import RawClient
from support.gateways import Gateway, config_for, running_gateway
from support.in_process import in_process
from support.raw_http import Wire, get
from support.records import Sent, produce
from support.served import served
from support.until import until

from gateway.config import loads
from gateway.kafka.embedded import EmbeddedKafka
from gateway.web.app.app import create_app
from gateway.web.http.transport import GatewayProtocol

EVENTS, LINES = b"Accept: text/event-stream", b"Accept: application/x-ndjson"
WHOLE = "?from=earliest&until=latest"
every_format = pytest.mark.parametrize("accept", [EVENTS, LINES], ids=["events", "lines"])

Topic = Callable[[], str]

kafka = embedded_kafka()
gateway = any_topic_gateway()
topic = named_topic()


def numbered(*counts: int, mark: str = "n") -> list[Sent | bytes]:
    return [json.dumps({mark: n}).encode() for n in range(*counts)]


def numbers(body: bytes, mark: str = "n") -> list[int]:
    """What was streamed, in either format."""
    return [int(n) for n in re.findall(rb'"%b": ?(\d+)' % mark.encode(), body)]


def rest(wire: Wire) -> bytes:
    """The body up to its last chunk."""
    return b"".join(iter(wire.chunk, b""))


def is_live(wire: Wire) -> bool:
    return wire.answer().status == 200


@every_format
async def test_a_connection_goes_on_behind_its_streams(
    gateway: Gateway, kafka: EmbeddedKafka, topic: Topic, accept: bytes
):
    name = topic()
    await produce(kafka.bootstrap, name, numbered(20))
    with Wire(gateway.port) as wire:
        for _ in range(3):
            wire.send(get(f"/value/{name}{WHOLE}", accept))
            assert wire.answer_head().headers["transfer-encoding"] == "chunked"
            assert numbers(rest(wire)) == list(range(20))
            wire.send(get("/health/live"))
            assert is_live(wire)


@every_format
async def test_requests_behind_a_stream_are_answered_when_it_has_ended(
    gateway: Gateway, kafka: EmbeddedKafka, topic: Topic, accept: bytes
):
    name = topic()
    await produce(kafka.bootstrap, name, numbered(5))
    with Wire(gateway.port) as wire:
        wire.send(get(f"/value/{name}?from=earliest&until=10", accept))
        assert wire.answer_head().status == 200
        first = wire.chunk()
        wire.send(get("/health/live") + get(f"/value/{name}{WHOLE}", accept) + get("/nowhere"))
        await produce(kafka.bootstrap, name, numbered(5, 10))
        assert numbers(first + rest(wire)) == list(range(10))
        assert is_live(wire)
        assert wire.answer_head().status == 200
        assert numbers(rest(wire)) == list(range(10))
        assert wire.answer().problem["status"] == 404


@every_format
async def test_requests_sent_along_with_a_stream_are_answered_as_well(
    gateway: Gateway, kafka: EmbeddedKafka, topic: Topic, accept: bytes
):
    name = topic()
    await produce(kafka.bootstrap, name, numbered(5))
    with Wire(gateway.port) as wire:
        wire.send(get(f"/value/{name}{WHOLE}", accept) + get("/health/live"))
        assert wire.answer_head().status == 200
        assert numbers(rest(wire)) == list(range(5))
        assert is_live(wire)


@every_format
async def test_a_client_that_asks_for_it_is_hung_up_on_behind_a_stream(
    gateway: Gateway, kafka: EmbeddedKafka, topic: Topic, accept: bytes
):
    name = topic()
    await produce(kafka.bootstrap, name, numbered(5))
    with Wire(gateway.port) as wire:
        wire.send(get(f"/value/{name}{WHOLE}", accept, b"Connection: close"))
        assert wire.answer_head().headers["connection"] == "close"
        assert numbers(rest(wire)) == list(range(5))
        wire.closes()


@every_format
async def test_behind_a_middleware_that_holds_answers_back_it_is_the_same_stream(
    kafka: EmbeddedKafka, topic: Topic, names: Names, accept: bytes
):
    name, text = topic(), StringIO()
    await produce(kafka.bootstrap, name, numbered(20))
    YAML().dump(any_topic(",".join(kafka.bootstrap), names), text)
    app = create_app(loads(text.getvalue(), name="test"))
    held = BaseHTTPMiddleware(app, dispatch=lambda request, call_next: call_next(request))

    def talk(port: int) -> None:
        with Wire(port) as wire:
            wire.send(get(f"/value/{name}{WHOLE}", accept) + get("/health/live"))
            assert wire.answer_head().status == 200
            assert numbers(rest(wire)) == list(range(20))
            assert is_live(wire)

    async with app.lifespan(), served(held, http=GatewayProtocol) as url:
        await asyncio.to_thread(talk, int(url.rpartition(":")[2]))


async def test_a_stream_costs_no_task_and_leaves_with_its_client(kafka: EmbeddedKafka):
    kafka.create_topic("tasks", 1)
    config = config_for(kafka.bootstrap, ["tasks"])
    async with in_process(config) as (url, app), AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(kind(f"{url}/events/tasks"))
            for kind in (RawClient, NdjsonClient) * 5
        ]
        for each in clients:
            await each.wait(1)
        await until(lambda: not answering(), lambda: str(answering()))
        assert len(app.gateway.hub.clients) == len(clients)
        await produce(kafka.bootstrap, "tasks", numbered(10))
        for each in clients:
            await each.wait(lambda events: numbers(str(events).encode())[-1:] == [9])
        await stack.aclose()
        await until(lambda: not app.gateway.hub.clients)


def answering() -> list[str]:
    """Tasks of uvicorn's that answer a request."""
    tasks = (getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())
    return [name for name in tasks if "run_asgi" in name]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_a_gateway_that_ends_ends_its_answers_whole(
    kafka: EmbeddedKafka, topic: Topic, names: Names, tls: bool, tmp_path: Any
):
    name, authority = topic(), Authority(tmp_path)
    pem = str(authority.signed("web"))
    listen = {"tls": {"certificate": pem, "key": pem}} if tls else {}
    config = any_topic(",".join(kafka.bootstrap), names, listen=listen)
    async with running_gateway(config, ready=False) as gateway:
        with Wire(gateway.port) as events, Wire(gateway.port) as lines:
            for wire, accept in ((events, EVENTS), (lines, LINES)):
                if tls:
                    context = authority.context()
                    wire.socket = context.wrap_socket(wire.socket, server_hostname="localhost")
                wire.send(get(f"/value/{name}?from=earliest", accept))
                assert wire.answer_head().status == 200
            await produce(kafka.bootstrap, name, numbered(3))
            for wire in (events, lines):
                got = b""
                while len(numbers(got)) < 3:
                    got += wire.chunk()
            gateway.signal(signal.SIGTERM)
            for wire in (events, lines):
                assert b"drain" in rest(wire)
                wire.closes()
        assert await gateway.stop() == 0


async def test_no_byte_of_a_stream_reaches_another_while_clients_come_and_go(
    gateway: Gateway, kafka: EmbeddedKafka, topic: Topic
):
    """Two topics whose values differ; those who stay hear all of theirs, in order."""
    marks = {"left": topic(), "right": topic()}
    staying = {mark: Wire(gateway.port) for mark in marks}
    seen = dict.fromkeys(marks, b"")
    try:
        for mark, name in marks.items():
            staying[mark].send(get(f"/value/{name}?from=earliest&until=400"))
            assert staying[mark].answer_head().status == 200
        for start in range(0, 400, 10):
            for mark, name in marks.items():
                await produce(kafka.bootstrap, name, numbered(start, start + 10, mark=mark))
            for (mark, name), accept in itertools.product(marks.items(), (EVENTS, LINES)):
                other = "left" if mark == "right" else "right"
                with Wire(gateway.port) as guest:
                    guest.send(get(f"/value/{name}?from=earliest", accept))
                    assert guest.answer_head().status == 200
                    got = b""
                    while not numbers(got, mark):
                        got += guest.chunk()
                    assert not numbers(got, other)
                    reset = struct.pack("ii", 1, 0)
                    guest.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        for mark, wire in staying.items():
            seen[mark] = rest(wire)
            assert numbers(seen[mark], mark) == list(range(400))
        assert not numbers(seen["left"], "right") and not numbers(seen["right"], "left")
    finally:
        for wire in staying.values():
            wire.socket.close()
