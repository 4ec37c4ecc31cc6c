"""Streams that have their connection to themselves: what a client sees of it is HTTP/1.1.

The cases of the protocol alone are in tests/web/http/test_outlet.py.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
import struct
from collections.abc import Callable
from contextlib import AsyncExitStack
from io import StringIO
from typing import Any

import pytest
from ruamel.yaml import YAML
from starlette.middleware.base import BaseHTTPMiddleware
from support.app_server import running_app
from support.brokers import embedded_kafka
from support.certificates import CertificateAuthority
from support.clients.ndjson import NdjsonClient
from support.clients.raw import RawClient
from support.gateways import GatewayThread, build_config, running_gateway
from support.in_process_gateway import running_in_process_gateway
from support.raw_http import RawConnection, build_request
from support.records import RecordToSend, produce_records
from support.topic_gateway import (
    TopicNames,
    build_topic_config,
    topic_fixture,
    topic_gateway_fixture,
)
from support.waiting import wait_until

from gateway.config import loads
from gateway.kafka.embedded import EmbeddedKafka
from gateway.web.app.app import create_app
from gateway.web.http.transport import GatewayProtocol

EVENTS, LINES = b"Accept: text/event-stream", b"Accept: application/x-ndjson"
WHOLE = "?from=earliest&until=latest"
every_format = pytest.mark.parametrize("accept", [EVENTS, LINES], ids=["events", "lines"])

Topic = Callable[[], str]

kafka = embedded_kafka()
gateway = topic_gateway_fixture()
topic = topic_fixture()


def numbered(*counts: int, mark: str = "n") -> list[RecordToSend | bytes]:
    return [json.dumps({mark: n}).encode() for n in range(*counts)]


def numbers(body: bytes, mark: str = "n") -> list[int]:
    """What was streamed, in either format."""
    return [int(n) for n in re.findall(rb'"%b": ?(\d+)' % mark.encode(), body)]


def rest(wire: RawConnection) -> bytes:
    """The body up to its last chunk."""
    return b"".join(iter(wire.read_chunk, b""))


def is_live(wire: RawConnection) -> bool:
    return wire.read_response().status == 200


@every_format
async def test_requests_behind_a_stream_are_answered_when_it_has_ended(
    gateway: GatewayThread, kafka: EmbeddedKafka, topic: Topic, accept: bytes
):
    name = topic()
    await produce_records(kafka.bootstrap, name, numbered(5))
    with RawConnection(gateway.port) as wire:
        wire.send_bytes(build_request(f"/value/{name}?from=earliest&until=10", accept))
        assert wire.read_head().status == 200
        first = wire.read_chunk()
        wire.send_bytes(
            build_request("/health/live")
            + build_request(f"/value/{name}{WHOLE}", accept)
            + build_request("/nowhere")
        )
        await produce_records(kafka.bootstrap, name, numbered(5, 10))
        assert numbers(first + rest(wire)) == list(range(10))
        assert is_live(wire)
        assert wire.read_head().status == 200
        assert numbers(rest(wire)) == list(range(10))
        assert wire.read_response().problem["status"] == 404


@every_format
async def test_requests_sent_along_with_a_stream_are_answered_as_well(
    gateway: GatewayThread, kafka: EmbeddedKafka, topic: Topic, accept: bytes
):
    name = topic()
    await produce_records(kafka.bootstrap, name, numbered(5))
    with RawConnection(gateway.port) as wire:
        wire.send_bytes(
            build_request(f"/value/{name}{WHOLE}", accept) + build_request("/health/live")
        )
        assert wire.read_head().status == 200
        assert numbers(rest(wire)) == list(range(5))
        assert is_live(wire)


@every_format
async def test_a_client_that_asks_for_it_is_hung_up_on_behind_a_stream(
    gateway: GatewayThread, kafka: EmbeddedKafka, topic: Topic, accept: bytes
):
    name = topic()
    await produce_records(kafka.bootstrap, name, numbered(5))
    with RawConnection(gateway.port) as wire:
        wire.send_bytes(build_request(f"/value/{name}{WHOLE}", accept, b"Connection: close"))
        assert wire.read_head().headers["connection"] == "close"
        assert numbers(rest(wire)) == list(range(5))
        wire.read_close()


@every_format
async def test_behind_a_middleware_that_holds_answers_back_it_is_the_same_stream(
    kafka: EmbeddedKafka, topic: Topic, names: TopicNames, accept: bytes
):
    name, text = topic(), StringIO()
    await produce_records(kafka.bootstrap, name, numbered(20))
    YAML().dump(build_topic_config(",".join(kafka.bootstrap), names), text)
    app = create_app(loads(text.getvalue(), name="test"))
    held = BaseHTTPMiddleware(app, dispatch=lambda request, call_next: call_next(request))

    def talk(port: int) -> None:
        with RawConnection(port) as wire:
            wire.send_bytes(
                build_request(f"/value/{name}{WHOLE}", accept) + build_request("/health/live")
            )
            assert wire.read_head().status == 200
            assert numbers(rest(wire)) == list(range(20))
            assert is_live(wire)

    async with app.lifespan(), running_app(held, http=GatewayProtocol) as url:
        await asyncio.to_thread(talk, int(url.rpartition(":")[2]))


async def test_a_stream_costs_no_task_and_leaves_with_its_client(kafka: EmbeddedKafka):
    kafka.create_topic("tasks", 1)
    config = build_config(kafka.bootstrap, ["tasks"])
    async with running_in_process_gateway(config) as (url, app), AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(kind(f"{url}/events/tasks"))
            for kind in (RawClient, NdjsonClient) * 5
        ]
        for each in clients:
            await each.wait_for_events(1)
        await wait_until(lambda: not answering(), lambda: str(answering()))
        assert len(app.gateway.hub.clients) == len(clients)
        await produce_records(kafka.bootstrap, "tasks", numbered(10))
        for each in clients:
            await each.wait_for_events(lambda events: numbers(str(events).encode())[-1:] == [9])
        await stack.aclose()
        await wait_until(lambda: not app.gateway.hub.clients)


def answering() -> list[str]:
    """Tasks of uvicorn's that answer a request."""
    tasks = (getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())
    return [name for name in tasks if "run_asgi" in name]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_a_gateway_that_ends_ends_its_answers_whole(
    kafka: EmbeddedKafka, topic: Topic, names: TopicNames, tls: bool, tmp_path: Any
):
    name, authority = topic(), CertificateAuthority(tmp_path)
    pem = str(authority.issue_certificate("web"))
    listen = {"tls": {"certificate": pem, "key": pem}} if tls else {}
    config = build_topic_config(",".join(kafka.bootstrap), names, listen=listen)
    async with running_gateway(config, ready=False) as gateway:
        with RawConnection(gateway.port) as events, RawConnection(gateway.port) as lines:
            for wire, accept in ((events, EVENTS), (lines, LINES)):
                if tls:
                    context = authority.create_client_context()
                    wire.socket = context.wrap_socket(wire.socket, server_hostname="localhost")
                wire.send_bytes(build_request(f"/value/{name}?from=earliest", accept))
                assert wire.read_head().status == 200
            await produce_records(kafka.bootstrap, name, numbered(3))
            for wire in (events, lines):
                got = b""
                while len(numbers(got)) < 3:
                    got += wire.read_chunk()
            draining = asyncio.create_task(gateway.drain())
            await asyncio.sleep(0)  # it has begun; what follows blocks
            for wire in (events, lines):
                assert b"drain" in rest(wire)
                wire.read_close()
            await draining


async def test_no_byte_of_a_stream_reaches_another_while_clients_come_and_go(
    gateway: GatewayThread, kafka: EmbeddedKafka, topic: Topic
):
    """Two topics whose values differ; those who stay hear all of theirs, in order."""
    marks = {"left": topic(), "right": topic()}
    staying = {mark: RawConnection(gateway.port) for mark in marks}
    seen = dict.fromkeys(marks, b"")
    try:
        for mark, name in marks.items():
            staying[mark].send_bytes(build_request(f"/value/{name}?from=earliest&until=400"))
            assert staying[mark].read_head().status == 200
        for start in range(0, 400, 10):
            for mark, name in marks.items():
                await produce_records(kafka.bootstrap, name, numbered(start, start + 10, mark=mark))
            for (mark, name), accept in itertools.product(marks.items(), (EVENTS, LINES)):
                other = "left" if mark == "right" else "right"
                with RawConnection(gateway.port) as guest:
                    guest.send_bytes(build_request(f"/value/{name}?from=earliest", accept))
                    assert guest.read_head().status == 200
                    got = b""
                    while not numbers(got, mark):
                        got += guest.read_chunk()
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
