from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import uvicorn
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from support.bad_requests import BAD_REQUESTS, CHUNKED_HEADER, KIB, build_post
from support.certificates import CertificateAuthority
from support.raw_http import (
    ConnectionReset,
    RawConnection,
    RunningServer,
    build_request,
    running_server,
    send_request,
)
from support.waiting import WAIT_TIMEOUT_S
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.client_memory import ClientMemory, HeldPart
from gateway.web.http.outlet import TAKEOVER
from gateway.web.http.transport import GatewayProtocol
from gateway.web.websocket.endpoint import DeafListener
from gateway.web.websocket.protocol import WebSocketProtocol

LARGE_BODY = bytes(4 << 20)  # more than the kernel buffers
LOOPS = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


async def app(scope, receive, send):
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        scope["extensions"][TAKEOVER](DeafListener()).close(1000)
    elif scope["path"] == "/stream":
        await send_stream(receive, send, b"tick\n", pause=0.02)
    elif scope["path"] == "/flood":
        await send_stream(receive, send, b"x" * 65536, pause=0)
    elif scope["path"] == "/echo":
        await send_response(send, json.dumps({"body": len(await read_body(receive))}).encode())
    elif scope["path"] == "/large":
        await send_response(send, LARGE_BODY)
    elif scope["path"] == "/slow":
        await asyncio.sleep(0.2)
        await send_response(send, b"slow")
    elif scope["path"] == "/late":
        await asyncio.sleep(0.2)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"late", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
    elif scope["path"] == "/broken":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"tick\n", "more_body": True})
        raise ValueError
    elif scope["path"] == "/never":
        await receive()
        await receive()
    else:
        headers = [[n.decode(), v.decode("latin-1")] for n, v in scope["headers"]]
        seen = {k: scope[k] for k in ("method", "path")} | {"headers": headers}
        await send_response(
            send, json.dumps(seen | {"query": scope["query_string"].decode()}).encode()
        )


async def read_body(receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def send_response(send, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_stream(receive, send, data: bytes, pause: float) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send_chunks() -> None:
        while True:
            await send({"type": "http.response.body", "body": data, "more_body": True})
            await asyncio.sleep(pause)

    ticking = asyncio.create_task(send_chunks())
    while (await receive())["type"] != "http.disconnect":
        pass
    ticking.cancel()


class ImpatientProtocol(GatewayProtocol):
    HEAD_TIMEOUT_S = BODY_TIMEOUT_S = 0.3
    LINGER_S = HALF_CLOSED_TIMEOUT_S = 0.3
    USER_TIMEOUT_S = 1.0


class PatientProtocol(GatewayProtocol):
    HEAD_TIMEOUT_S = BODY_TIMEOUT_S = 1.5


on_both_loops = pytest.mark.parametrize("on_loop", LOOPS, indirect=True)
"""For what the loop has a part in: how it closes, pauses and reads sockets."""


@pytest.fixture(scope="module", params=["asyncio"])
def on_loop(request) -> Iterator[Callable[[type[HttpToolsProtocol]], RunningServer]]:
    """One server for each protocol and loop, for all tests here."""
    with ExitStack() as stack:
        running: dict[type[HttpToolsProtocol], RunningServer] = {}

        def start(protocol: type[HttpToolsProtocol]) -> RunningServer:
            if protocol not in running:
                running[protocol] = stack.enter_context(
                    running_server(
                        app,
                        protocol,
                        LOOPS[request.param],
                        ws=WebSocketProtocol,
                        timeout_keep_alive=3600 if protocol is ForgettingNothing else 2,
                    )
                )
            return running[protocol]

        yield start


@pytest.fixture
def served(on_loop) -> RunningServer:
    return on_loop(GatewayProtocol)


@pytest.fixture
def hasty(on_loop) -> RunningServer:
    return on_loop(ImpatientProtocol)


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


# Correct requests


@on_both_loops
def test_answers_request_after_request_on_one_connection(served):
    with RawConnection(served.port) as wire:
        for n in range(20):
            wire.send_bytes(build_request(f"/a/{n}?q={n}", b"X-Name: v\xe9"))
            seen = json.loads(wire.read_response().body)
            assert (seen["method"], seen["path"], seen["query"]) == ("GET", f"/a/{n}", f"q={n}")
            assert ["x-name", "v\xe9"] in seen["headers"]


def test_a_request_may_come_byte_by_byte(served):
    with RawConnection(served.port) as wire:
        for byte in build_post(b"Content-Length: 5", body=b"hello"):
            wire.send_bytes(bytes([byte]))
        assert json.loads(wire.read_response().body) == {"body": 5}


def test_pipelined_requests_are_answered_in_order(served):
    with RawConnection(served.port) as wire:
        wire.send_bytes(
            b"".join([build_request("/slow"), *(build_request(f"/{n}") for n in range(9))])
        )
        assert wire.read_response().body == b"slow"
        assert [json.loads(wire.read_response().body)["path"] for _ in range(9)] == [
            f"/{n}" for n in range(9)
        ]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param((b"Content-Length: 65536", b"x" * 65536), id="length"),
        pytest.param(
            (b"Transfer-Encoding: chunked", b"8000\r\n%s\r\n" % (b"x" * 32768) * 2 + b"0\r\n\r\n"),
            id="chunked",
        ),
    ],
)
def test_a_body_of_the_limit_is_read_and_the_connection_goes_on(served, body):
    header, data = body
    with RawConnection(served.port) as wire:
        for _ in range(2):
            wire.send_bytes(build_post(header, body=data))
            assert json.loads(wire.read_response().body) == {"body": 65536}


def test_a_body_that_nobody_reads_does_not_disturb_the_next_request(served):
    with RawConnection(served.port) as wire:
        wire.send_bytes(
            build_request("/first", b"Content-Length: 5") + b"hello" + build_request("/second")
        )
        assert json.loads(wire.read_response().body)["path"] == "/first"
        assert json.loads(wire.read_response().body)["path"] == "/second"


def test_a_head_of_the_limit_is_read(served):
    def request(padding: int) -> bytes:
        return build_request("/", b"X: " + b"a" * padding)

    room = 64 * KIB - len(request(0))
    with RawConnection(served.port) as wire:
        wire.send_bytes(request(room))
        assert wire.read_response().status == 200
        wire.send_bytes(request(room + 1))
        assert wire.read_last_response().status == 431


def test_a_request_line_of_the_limit_is_read(served):
    with RawConnection(served.port) as wire:
        wire.send_bytes(build_request("/" + "a" * 65_000))
        assert wire.read_response().status == 200


def test_trailers_do_not_become_headers(served):
    with RawConnection(served.port) as wire:
        chunks = b"2\r\nhi\r\n0\r\nX-Admin: yes\r\n\r\n"
        wire.send_bytes(build_post(b"Transfer-Encoding: chunked", path="/slow", body=chunks))
        assert wire.read_response().body == b"slow"
        wire.send_bytes(build_request("/"))
        assert "x-admin" not in dict(json.loads(wire.read_response().body)["headers"])


def test_absolute_targets_are_paths_and_their_host_counts(served):
    with RawConnection(served.port) as wire:
        for target, path, query in [
            (b"http://x.y:80/p?q", "/p", "q"),
            (b"HTTP://x.y:80", "/", ""),
            (b"http://x.y:80?q", "/", "q"),
            (b"https://x.y:80//p", "//p", ""),
        ]:
            wire.send_bytes(build_request(target))
            seen = json.loads(wire.read_response().body)
            assert (seen["path"], seen["query"]) == (path, query)
            assert dict(seen["headers"])["host"] == "x.y:80"


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_methods_are_the_applications_business(served, method):
    with RawConnection(served.port) as wire:
        wire.send_bytes(build_request("/", method=method))
        assert json.loads(wire.read_response().body)["method"] == method


def test_options_of_the_server_reach_the_application(served):
    with RawConnection(served.port) as wire:
        wire.send_bytes(build_request("*", method="OPTIONS"))
        assert json.loads(wire.read_response().body)["path"] == "*"


def test_head_gets_headers_only(served):
    with RawConnection(served.port) as wire:
        wire.send_bytes(build_request("/", method="HEAD") + build_request("/next"))
        assert wire.read_head().status == 200
        assert json.loads(wire.read_response().body)["path"] == "/next"


def test_http_1_0_needs_no_host_and_closes(served):
    assert send_request(served.port, b"GET / HTTP/1.0\r\n\r\n").status == 200


def test_other_protocols_offered_by_upgrade_are_ignored(served):
    upgrade = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk")
    with RawConnection(served.port) as wire:
        wire.send_bytes(build_request("/one", *upgrade) + build_request("/two"))
        assert json.loads(wire.read_response().body)["path"] == "/one"
        assert json.loads(wire.read_response().body)["path"] == "/two"


def test_a_refusal_behind_an_ignored_upgrade_keeps_its_reason(served):
    """It was a 400: Python gave the error in the `except` of the upgrade another context."""
    with RawConnection(served.port) as wire:
        upgrade = build_request("/one", b"Connection: Upgrade", b"Upgrade: h2c")
        wire.send_bytes(upgrade + build_post(b"Content-Length: 65537"))
        assert wire.read_response().status == 200
        assert wire.read_last_response().problem["status"] == 413


def test_an_upgrade_behind_an_unanswered_request_is_refused(served):
    """The parser does not read what follows it, so it would be a way to smuggle a request."""
    with RawConnection(served.port) as wire:
        upgrade = build_request("/two", b"Connection: Upgrade", b"Upgrade: h2c")
        wire.send_bytes(build_request("/slow") + upgrade)
        assert wire.read_response().body == b"slow"
        assert wire.read_last_response().problem["status"] == 400


@on_both_loops
def test_a_websocket_is_handed_on_and_outlives_the_deadlines(hasty):
    lines = (b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13")
    with RawConnection(hasty.port) as wire:
        wire.send_bytes(
            build_request("/ws", *lines, b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
        )
        assert wire.read_head().status == 101


@on_both_loops
def test_a_stream_with_requests_behind_it_is_told_that_its_client_went_away(served):
    """uvicorn told the last of the requests only: the stream before it wrote on for ever."""
    with RawConnection(served.port) as wire:
        wire.send_bytes(build_request("/stream"))
        assert wire.read_head().status == 200
        wire.send_bytes(build_request("/next"))
        wire.read_chunk()
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: not served.server.server_state.tasks, "the stream's end")


# Refusals


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_is_refused_with_a_problem_that_can_be_read(served, case):
    status, request = BAD_REQUESTS[case]
    answer = send_request(served.port, request)
    assert answer.problem["status"] == answer.status == status


@pytest.mark.parametrize("case", ["two lengths", "no Host", "gzip, chunked", "folded header"])
def test_a_refused_request_smuggles_nothing_behind_it(served, case):
    _, request = BAD_REQUESTS[case]
    send_request(
        served.port, request + build_request("/smuggled")
    )  # one answer and the end, or it fails


def test_a_request_refused_byte_by_byte_is_told_the_same(served):
    for case in ("length and chunked", "no Host", "HTTP/2 preface", "CR in a value"):
        status, request = BAD_REQUESTS[case]
        with RawConnection(served.port) as wire:
            for byte in request:
                if not wire.send_bytes(bytes([byte])):
                    break
            assert wire.read_last_response().status == status, case


def test_a_refused_head_request_gets_no_body(served):
    with RawConnection(served.port) as wire:
        wire.send_bytes(build_request("/", b"Host: b", method="HEAD"))
        answer = wire.read_head()
        assert answer.status == 400
        wire.read_close()


@on_both_loops
def test_a_refusal_waits_for_the_answers_before_it(served):
    with RawConnection(served.port) as wire:
        wire.send_bytes(build_request("/slow") + build_request("/second") + b"nonsense\r\n\r\n")
        assert wire.read_response().body == b"slow"
        assert wire.read_response().status == 200
        assert wire.read_last_response().problem["status"] == 400


def test_a_queued_request_with_a_bad_body_is_refused_in_its_turn(served):
    with RawConnection(served.port) as wire:
        wire.send_bytes(build_request("/slow") + build_post(CHUNKED_HEADER, body=b"zz\r\n"))
        assert wire.read_response().body == b"slow"
        assert wire.read_last_response().problem["status"] == 400


def test_nonsense_behind_a_running_stream_does_not_get_into_it(served):
    with RawConnection(served.port) as wire:
        wire.send_bytes(build_request("/stream"))
        assert wire.read_head().status == 200
        wire.read_chunk()
        wire.send_bytes(b"nonsense\r\n\r\n")
        assert [wire.read_chunk() for _ in range(10)] == [b"tick\n"] * 10


# Limits in time


@pytest.mark.parametrize(
    "sent",
    [
        b"G",
        b"GET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r",
        build_request("/")[:-4],
        b"GET /\r\n",
    ],
)
def test_a_head_that_never_ends_is_told_so(hasty, sent):
    assert send_request(hasty.port, sent).problem["status"] == 408


@pytest.mark.parametrize(
    "sent",
    [
        build_post(b"Content-Length: 5", body=b"hell"),
        build_post(CHUNKED_HEADER, body=b"5\r\nhel"),
        build_post(CHUNKED_HEADER),
        build_post(CHUNKED_HEADER, body=b"0\r\n"),
    ],
)
def test_a_body_that_never_ends_is_told_so(hasty, sent):
    assert send_request(hasty.port, sent).problem["status"] == 408


def test_a_byte_now_and_then_does_not_move_the_deadline(hasty):
    with RawConnection(hasty.port) as wire:
        wire.send_bytes(build_request("/")[:-4])
        ended = time.monotonic() + WAIT_TIMEOUT_S
        while wire.send_bytes(b"\r\nX: y") and time.monotonic() < ended:
            time.sleep(0.05)
        assert time.monotonic() < ended
        assert wire.read_response().status == 408


def test_a_deadline_is_the_requests_not_the_connections(on_loop):
    with RawConnection(on_loop(PatientProtocol).port) as wire:
        for _ in range(4):  # 1.6 s in all
            wire.send_bytes(build_request("/echo", b"Content-Length: 2")[:-3])
            time.sleep(0.4)
            wire.send_bytes(b"\n\r\nhi")
            assert json.loads(wire.read_response().body) == {"body": 2}


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
def test_a_connection_that_asks_nothing_is_closed_without_a_word(hasty, sent):
    with RawConnection(hasty.port) as wire:
        wire.send_bytes(sent)
        wire.read_close()


def test_empty_lines_do_not_keep_a_connection(hasty):
    with RawConnection(hasty.port) as wire:
        wire.send_bytes(build_request("/"))
        assert wire.read_response().status == 200
        ended = time.monotonic() + WAIT_TIMEOUT_S
        while wire.send_bytes(b"\r\n") and time.monotonic() < ended:
            time.sleep(0.05)
        assert time.monotonic() < ended


def test_streams_and_slow_answers_have_no_deadline(hasty):
    with RawConnection(hasty.port) as wire:
        wire.send_bytes(build_request("/stream"))
        assert wire.read_head().status == 200
        assert [wire.read_chunk() for _ in range(40)] == [b"tick\n"] * 40  # 0.8 s


def test_a_stream_whose_request_body_never_ends_is_closed(hasty):
    with RawConnection(hasty.port) as wire:
        wire.send_bytes(build_request("/stream", b"Content-Length: 5"))
        assert wire.read_head().status == 200
        with pytest.raises((AssertionError, ConnectionReset)):
            for _ in range(1000):
                wire.read_chunk()
        wait_until(lambda: not hasty.connections, "the connection stays")


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_a_response_that_begins_after_a_half_close_has_limited_time(hasty, version):
    with RawConnection(hasty.port) as wire:
        wire.send_bytes(build_request("/late").replace(b"HTTP/1.1", b"HTTP/" + version))
        wire.socket.shutdown(socket.SHUT_WR)
        wait_until(lambda: find_connections(hasty, wire), "it does not connect")
        wait_until(lambda: not find_connections(hasty, wire), "it stays, perhaps for nobody")


@on_both_loops
@pytest.mark.parametrize("way", ["memory", "half-closed", "error"])
def test_a_response_of_http_1_0_that_is_cut_short_is_reset(hasty, way):
    """It ends with the connection, and so seemed complete."""
    with RawConnection(hasty.port) as wire:
        path = b"/broken" if way == "error" else b"/stream"
        wire.send_bytes(b"GET %b HTTP/1.0\r\n\r\n" % path)
        if way == "half-closed":
            wire.socket.shutdown(socket.SHUT_WR)
        elif way == "memory":
            wire.read_until(b"tick\n")
            (connection,) = find_connections(hasty, wire)
            hasty.loop.call_soon_threadsafe(connection.release_memory)
        with pytest.raises(ConnectionReset):
            while True:
                wire.read_until(b"\n")


def test_an_application_is_told_when_its_request_is_refused(hasty):
    """/never returns only when receive() says the client is gone."""
    assert send_request(hasty.port, build_post(b"Content-Length: 5", path="/never")).status == 408
    wait_until(lambda: not hasty.server.server_state.tasks, "the application still waits")


def test_whoever_does_not_close_after_a_refusal_is_cut(hasty):
    with RawConnection(hasty.port) as wire:
        wire.send_bytes(b"nonsense\r\n\r\n")
        assert wire.read_response().status == 400
        wait_until(lambda: not hasty.connections, "the connection lingers for ever")


def test_a_request_behind_a_large_response_is_answered_after_a_half_close(hasty):
    """The connection was closed as if its response took too long, and the request was carried out
    all the same: its client would repeat it."""
    with RawConnection(hasty.port, receive_buffer=4096) as wire:
        wire.send_bytes(build_request("/large") + build_request("/behind"))
        wire.socket.shutdown(socket.SHUT_WR)
        time.sleep(2 * ImpatientProtocol.HALF_CLOSED_TIMEOUT_S)
        assert wire.read_response().body == LARGE_BODY
        assert json.loads(wire.read_response().body)["path"] == "/behind"


class CountingProtocol(GatewayProtocol):
    CLIENT_MEMORY = ClientMemory()


def test_pipelined_requests_count_until_they_are_answered(on_loop):
    """They counted until none was open, so that who pipelines without a pause was taken for one
    who holds most."""
    size = 30_000
    post = build_post(b"Content-Length: %d" % size, path="/slow", body=bytes(size))
    with RawConnection(on_loop(CountingProtocol).port) as wire:
        wire.send_bytes(post)
        for _ in range(6):
            wire.send_bytes(post)  # behind one that is open
            assert wire.read_response().status == 200
            assert CountingProtocol.CLIENT_MEMORY.by_part[HeldPart.RECEIVED] < 3 * len(post)


def test_small_headers_count_as_what_they_take(on_loop):
    """Their bytes on the wire counted: 22 times less, and none of a head of 4 KiB."""
    with RawConnection(on_loop(CountingProtocol).port) as wire:
        wire.send_bytes(build_request("/never", *[b"ab:"] * 200))
        memory = CountingProtocol.CLIENT_MEMORY
        wait_until(lambda: memory.by_part[HeldPart.RECEIVED] > 200 * 100, "it does not count")


def test_malformed_requests_are_not_logged_one_by_one(served, caplog):
    """100 of them a second were 1 GB of the log a day, and hid all other lines."""
    with caplog.at_level(logging.INFO), caplog.at_level(logging.INFO, "uvicorn.error"):
        for _ in range(20):
            send_request(served.port, b"nonsense\r\n\r\n")
    lines = [each for each in caplog.records if each.getMessage().startswith("refused 127")]
    assert len(lines) < 20


class OwningApp:
    """A co-hosted app that has all paths."""

    def owns_path(self, path: str) -> bool:
        return True

    def get_body_limits(self, path: str, content_type: bytes) -> tuple[float, float]:
        return 1000, 10.0


class CoHostingProtocol(CountingProtocol):
    CLIENT_MEMORY = ClientMemory()
    CO_HOSTED_APP = OwningApp()  # type: ignore[assignment]


@on_both_loops
def test_unread_responses_of_a_co_hosted_app_count(on_loop):
    """24 clients that did not read answers of the sidecar had 1 GB, beyond `memory`."""
    memory = CoHostingProtocol.CLIENT_MEMORY
    with RawConnection(on_loop(CoHostingProtocol).port, receive_buffer=4096) as wire:
        wire.send_bytes(build_request("/large"))
        wait_until(lambda: memory.by_part[HeldPart.UNSENT] > 1 << 20, "they do not count")
    wait_until(lambda: not memory.total, "they count for ever")


class ForgettingNothing(GatewayProtocol):
    """Its timers never end by themselves."""

    HEAD_TIMEOUT_S = BODY_TIMEOUT_S = LINGER_S = HALF_CLOSED_TIMEOUT_S = 3600.0


@on_both_loops
@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
def test_nothing_of_a_connection_outlives_it(on_loop, is_reset):
    """A timer held one that its client had reset, with the head of its last request, for 75 s."""
    served = on_loop(ForgettingNothing)
    for sent, is_half_closed, is_answered in (
        (b"", False, False),
        (b"GET", False, False),
        (build_post(b"Content-Length: 5"), False, False),
        (build_request("/"), False, True),
        (build_request("/stream"), False, True),
        (build_request("/late"), True, True),
        (b"nonsense\r\n\r\n", False, True),
    ):
        with RawConnection(served.port) as wire:
            wire.send_bytes(sent)
            if is_half_closed:
                wire.socket.shutdown(socket.SHUT_WR)
            if is_answered:
                wire.read_until(b"\r\n\r\n")
            wait_until(lambda: find_connections(served, wire), "it does not connect")
            left = [weakref.ref(each) for each in find_connections(served, wire)]
            if is_reset:
                reset = struct.pack("ii", 1, 0)
                wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        wait_until(
            lambda left=left: gc.collect() >= 0 and not any(each() for each in left),
            f"{sent!r}: {left}",
        )
    assert not served.errors


# Limits in memory


def test_more_than_sixteen_pipelined_requests_are_not_queued(served):
    with RawConnection(served.port) as wire:
        wire.send_bytes(build_request("/slow") + build_request("/") * 5000)
        assert wire.read_response().body == b"slow"
        assert [wire.read_response().status for _ in range(16)] == [200] * 16
        assert wire.read_last_response().problem["status"] == 429


def test_large_heads_behind_an_unanswered_request_are_not_queued(served):
    with RawConnection(served.port) as wire:
        large = build_request("/", b"X: " + 5000 * b"x")
        wire.send_bytes(build_request("/slow") + 2 * large)
        assert wire.read_response().body == b"slow"
        assert wire.read_response().status == 200
        assert wire.read_last_response().problem["status"] == 429


@on_both_loops
def test_requests_behind_a_stream_are_left_in_the_socket(served):
    with RawConnection(served.port) as wire:
        wire.send_bytes(build_request("/stream"))
        assert wire.read_head().status == 200
        wire.socket.settimeout(1)
        with pytest.raises(TimeoutError):
            wire.socket.sendall(build_request("/") * 1_000_000)
        (connection,) = find_connections(served, wire)
        assert len(connection.pipeline) <= GatewayProtocol.MAX_PIPELINED_REQUESTS
        assert connection.flow.read_paused


def test_a_body_is_not_collected_for_an_application_that_does_not_read(served):
    with RawConnection(served.port) as wire:
        wire.send_bytes(build_post(CHUNKED_HEADER, path="/slow") + b"1\r\nx\r\n" * 200_000)
        assert wire.read_last_response().status in (200, 413)


# The socket


@on_both_loops
def test_a_peer_that_acknowledges_nothing_is_given_up(hasty, served):
    def option(server: RunningServer, name: int) -> int:
        with RawConnection(server.port) as wire:
            wire.send_bytes(build_request("/stream"))
            wire.read_head()
            (connection,) = find_connections(server, wire)
            peer = connection.transport.get_extra_info("socket")
            return peer.getsockopt(socket.IPPROTO_TCP, name)

    assert option(hasty, socket.TCP_USER_TIMEOUT) == 1000
    assert option(served, socket.TCP_USER_TIMEOUT) == 60_000
    assert option(served, socket.TCP_NODELAY)


@on_both_loops
def test_a_client_that_reads_nothing_is_cut_by_the_kernel(hasty):
    with RawConnection(hasty.port, receive_buffer=4096) as wire:
        wire.send_bytes(build_request("/flood"))
        wait_until(lambda: find_connections(hasty, wire), "it does not connect")
        wait_until(lambda: not find_connections(hasty, wire), "it is not cut")


def find_connections(server: RunningServer, wire: RawConnection) -> list[GatewayProtocol]:
    return [c for c in server.connections if c.client and c.client[1] == wire.local_port]


def test_a_refusal_can_be_read_through_tls(tmp_path):
    """TLS cannot close one side alone: the client sees the end when we have lingered."""
    authority = CertificateAuthority(tmp_path)
    certificate = authority.issue_certificate("server")
    with (
        running_server(app, ImpatientProtocol, uvloop.new_event_loop, certificate) as served,
        RawConnection(served.port) as wire,
    ):
        wire.socket = authority.create_client_context().wrap_socket(
            wire.socket, server_hostname="localhost"
        )
        wire.send_bytes(build_request("/"))
        assert wire.read_response().status == 200
        wire.send_bytes(build_request("/", b"X: " + b"a" * 1024 * KIB))
        assert wire.read_response().problem["status"] == 431
        wait_until(lambda: not served.connections, "it lingers for ever")


# Any bytes


class RecordingTransport(asyncio.Transport):
    """A transport that nobody reads from; `written` is what was sent to the client."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = False

    def write(self, data) -> None:
        assert not self.closing
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def can_write_eof(self) -> bool:
        return False

    abort = close

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


PIECES = [
    *[request for _, request in BAD_REQUESTS.values() if len(request) < KIB],
    *[
        build_request("/"),
        build_request("/echo"),
        build_post(b"Content-Length: 3", body=b"abc"),
        build_request("/", method="HEAD"),
    ],
    *[
        build_post(CHUNKED_HEADER, body=b"3\r\nabc\r\n0\r\n\r\n"),
        build_post(CHUNKED_HEADER),
        build_request("http://a/b"),
    ],
    *[b"\r\n", b"\n", b"\0", b"\xff", b" ", b"0\r\n\r\n", b"GET ", b"Host: a\r\n", b"X: y\r\n\r\n"],
    build_request("/", b"Connection: Upgrade", b"Upgrade: h2c"),
]


def get_answers(pieces: list[bytes]) -> bytes:
    """What a connection says to these, when all came before the application has run."""

    async def run_connection() -> bytes:
        config = uvicorn.Config(app, lifespan="off", access_log=False, log_config=None)
        protocol = GatewayProtocol(config, ServerState(), {})
        transport = RecordingTransport()
        protocol.connection_made(transport)
        for piece in pieces:
            if not transport.closing:
                protocol.data_received(piece)
        for _ in range(60):
            await asyncio.sleep(0)
        protocol.connection_lost(None)
        await asyncio.gather(*protocol.tasks, return_exceptions=True)
        return transport.written

    return asyncio.run(run_connection())


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=9), max_size=6), st.data())
def test_any_bytes_get_the_same_answers_however_they_are_cut(pieces, data):
    sent = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    cut = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    whole = get_answers([sent])
    assert get_answers(cut) == whole
    assert whole.count(b"HTTP/1.1 ") <= len(pieces) * 3
    for line in whole.split(b"\r\n"):
        if line.startswith(b"HTTP/1.1 "):
            assert line.split()[1] in (b"200", b"400", b"404", b"413", b"501", b"505"), line
