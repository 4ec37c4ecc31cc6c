from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import ssl
import struct
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from random import Random
from typing import Any

import pytest
import uvloop
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from support.certificates import CertificateAuthority
from support.raw_http import RawConnection, RunningServer, build_request, running_server
from support.waiting import WAIT_TIMEOUT_S
from support.waiting import wait_until as wait_until_met
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.web.http.outlet import TAKEOVER, HttpOutlet, take_over
from gateway.web.http.transport import HEAD, GatewayProtocol

LOOPS = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
LAST = b"0\r\n\r\n"


def frame_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class OutletClient:
    """Whose stream it is. Call its methods in the server's loop only."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outlet: HttpOutlet | None = None
        self.pending_chunks: deque[bytes] = deque()
        self.drain_count = self.close_count = 0

    def push_chunks(self, *chunks: bytes) -> None:
        self.pending_chunks.extend(frame_chunk(chunk) for chunk in chunks)
        self._flush()

    def finish_stream(self) -> None:
        assert self.outlet is not None
        self.outlet.finish(b"".join([*self.pending_chunks, LAST]))
        self.pending_chunks.clear()

    def on_drained(self) -> None:
        self.drain_count += 1
        self._flush()

    def probe(self) -> None:
        assert self.outlet is not None
        self.outlet.write(frame_chunk(b"."))

    def close(self) -> None:
        self.close_count += 1

    def _flush(self) -> None:
        assert self.outlet is not None
        while self.pending_chunks and not self.outlet.full:
            self.outlet.write(self.pending_chunks.popleft())


class OutletApp:
    """`/take/<name>` is a stream by an outlet, or by `send` if there is none; so are some others,
    in their ways; the rest say what they are."""

    cut_connection: Callable[[], None]

    def __init__(self) -> None:
        self.clients: dict[str, OutletClient] = {}
        self.descriptors: list[int] = []
        self.send_streams: list[str] = []
        self.takeover_offers: list[Any] = []
        self.extra_headers: dict[str, list[tuple[bytes, bytes]]] = {}

    async def __call__(self, scope, receive, send) -> None:
        self.takeover_offers.append(scope.get("extensions", {}).get(TAKEOVER))
        kind, _, name = scope["path"].strip("/").partition("/")
        if kind in ("take", "slow", "late", "fail", "chatty", "cut", "whole"):
            await self.serve_stream(scope, receive, send, kind, name)
            return
        if kind == "chunks":
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": b"whole"})
            return
        body = json.dumps({"path": scope["path"]}).encode()
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def serve_stream(self, scope, receive, send, kind: str, name: str) -> None:
        client = OutletClient(name)
        assert take_over(scope, client) is None  # nothing has begun
        headers = [(b"content-type", b"text/plain"), *self.extra_headers.get(name, [])]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if kind == "slow":
            await asyncio.sleep(0.1)
        if kind == "whole":
            cycle = scope["extensions"][TAKEOVER].cycle
            await wait_until_met(lambda: not cycle.more_body, "the body is complete")
        if kind == "late":
            body = b"x" * 500_000
            await send({"type": "http.response.body", "body": body, "more_body": True})
        if kind == "cut":
            self.cut_connection()
        if kind == "chatty":
            await receive()
            waiting = asyncio.create_task(receive())
            await asyncio.sleep(0)
        client.outlet = take_over(scope, client)
        if client.outlet is not None:
            self.clients[name] = client
            plain = client.outlet.transport.get_extra_info("socket")
            self.descriptors.append(plain.fileno())
            assert take_over(scope, client) is None  # it is gone
            if kind == "fail":
                raise LookupError("on purpose")
            if kind == "chatty":
                await send({"type": "http.response.body", "body": b"nobody", "more_body": True})
                await send({"type": "http.response.body", "body": b""})
                assert (await receive())["type"] == "http.disconnect"
                assert (await waiting)["type"] == "http.disconnect"
            return
        self.send_streams.append(name)
        for body in (b"one", b"two"):
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class SmallBufferProtocol(GatewayProtocol):
    """What does not fit into a small buffer has to wait."""

    USER_TIMEOUT_S = 3.0  # on a busy machine a client that reads may stand still for a second
    LINGER_S = 0.3
    MAX_BODY_BYTES = 200_000

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


class OutletServer:
    """A running server, its application, and a way to do something in its loop."""

    def __init__(self, served: RunningServer, app: OutletApp) -> None:
        self.served, self.app = served, app

    @property
    def state(self) -> Any:
        return self.served.server.server_state

    def run_in_loop(self, function: Callable[..., Any], *args: Any) -> Any:
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(function(*args))
            except BaseException as error:
                done.set_exception(error)

        self.served.loop.call_soon_threadsafe(run)
        return done.result(WAIT_TIMEOUT_S)

    def get_client(self, name: str) -> OutletClient:
        wait_until(lambda: name in self.app.clients, f"{name} is not taken over")
        return self.app.clients[name]

    def push_chunks(self, name: str, *chunks: bytes) -> None:
        self.run_in_loop(self.get_client(name).push_chunks, *chunks)

    def finish_stream(self, name: str) -> None:
        self.run_in_loop(self.get_client(name).finish_stream)

    def has_only_outlets(self) -> bool:
        return not self.state.tasks and all(
            isinstance(each, HttpOutlet) for each in self.served.connections
        )


@contextmanager
def running_outlet_server(
    protocol: type[HttpToolsProtocol], loop: str, wrap=None, **options
) -> Iterator[OutletServer]:
    app = OutletApp()
    options = {"timeout_keep_alive": 2, "log_level": "info", "log_config": None} | options
    with running_server(wrap(app) if wrap else app, protocol, LOOPS[loop], **options) as served:
        yield OutletServer(served, app)


@pytest.fixture(scope="module", params=LOOPS)
def loop(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def servers(loop) -> Iterator[Callable[[type[HttpToolsProtocol]], OutletServer]]:
    with ExitStack() as stack:
        made: dict[type[HttpToolsProtocol], OutletServer] = {}

        def start(protocol: type[HttpToolsProtocol]) -> OutletServer:
            if protocol not in made:
                made[protocol] = stack.enter_context(running_outlet_server(protocol, loop))
            return made[protocol]

        yield start


@pytest.fixture
def server(servers) -> OutletServer:
    return servers(GatewayProtocol)


@pytest.fixture
def tight(servers) -> OutletServer:
    return servers(SmallBufferProtocol)


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(autouse=True)
def complaints(caplog) -> Iterator[list[str]]:
    """What uvicorn and asyncio may complain of; a test that expects more adds it."""
    told = ["timeout graceful shutdown exceeded"]  # `serving` waits for nobody
    yield told
    for record in caplog.get_records("call"):
        if record.levelno >= logging.WARNING and record.name.startswith(("uvicorn", "asyncio")):
            message = record.getMessage()
            assert any(each in message for each in told), message


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def begin_stream(wire: RawConnection, path: str, *headers: bytes) -> None:
    wire.send_bytes(build_request(path, *headers))
    head = wire.read_head()
    assert head.status == 200 and head.headers["transfer-encoding"] == "chunked", head


def get_protocol(server: OutletServer, wire: RawConnection) -> GatewayProtocol:
    def find_protocols() -> list[GatewayProtocol]:
        return [
            each
            for each in server.served.connections
            if isinstance(each, GatewayProtocol)
            and each.client
            and each.client[1] == wire.local_port
        ]

    if threading.current_thread() is threading.main_thread():  # which does not serve
        wait_until(find_protocols, "it is not connected")
    return find_protocols()[0]


def read_rest(wire: RawConnection) -> bytes:
    body = b""
    while chunk := wire.read_chunk():
        body += chunk
    return body


def reset_connection(wire: RawConnection) -> None:
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.socket.close()


# A stream, and HTTP behind it


def test_what_is_written_comes_and_then_http_goes_on(server):
    before = server.state.total_requests
    with RawConnection(server.served.port) as wire:
        for n in range(3):
            begin_stream(wire, f"/take/on-{n}")
            server.push_chunks(f"on-{n}", b"hello", b"there")
            assert (wire.read_chunk(), wire.read_chunk()) == (b"hello", b"there")
            server.finish_stream(f"on-{n}")
            assert wire.read_chunk() == b""
            wire.send_bytes(build_request(f"/after/{n}"))
            assert json.loads(wire.read_response().body) == {"path": f"/after/{n}"}
        wait_until(lambda: server.state.total_requests == before + 6, "all are counted")
        assert [server.get_client(f"on-{n}").close_count for n in range(3)] == [0, 0, 0]


def test_no_task_runs_while_a_stream_does(server):
    with RawConnection(server.served.port) as wire:
        begin_stream(wire, "/take/alone")
        wait_until(server.has_only_outlets, "the application's task goes on")
        server.push_chunks("alone", b"x")
        assert wire.read_chunk() == b"x"


def test_what_an_application_sends_behind_an_outlet_is_not_heard(server):
    with RawConnection(server.served.port) as wire:
        begin_stream(wire, "/chatty/chatty")
        wait_until(server.has_only_outlets, "the application's task goes on")
        server.push_chunks("chatty", b"x")
        server.finish_stream("chatty")
        assert read_rest(wire) == b"x"


def test_deadlines_of_its_request_do_not_end_a_stream(server):
    with RawConnection(server.served.port) as wire:
        wire.send_bytes(build_request("/take/later")[:-9])
        wait_until(lambda: get_protocol(server, wire).phase is HEAD, "nothing has come")
        timer = get_protocol(server, wire).deadline_timer
        assert timer is not None and not timer.cancelled()
        wire.send_bytes(build_request("/take/later")[-9:])
        assert wire.read_head().status == 200
        server.get_client("later")
        assert timer.cancelled()


def test_a_client_whose_body_nobody_read_is_heard_to_leave(tight):
    """uvicorn reads no more when 64 KiB of it wait."""
    with RawConnection(tight.served.port) as wire:
        begin_stream(wire, "/whole/heavy", b"Content-Length: 70000\r\n\r\n" + b"x" * 60_000)
        wire.send_bytes(b"x" * 9_996)  # by itself: reading ends with the part that passes 64 KiB
        client = tight.get_client("heavy")
    wait_until(lambda: client.close_count, "nobody is told")


def test_headers_of_the_application_and_of_uvicorn_are_there(server):
    server.app.extra_headers["head"] = [(b"x-mine", b"yes")]
    with RawConnection(server.served.port) as wire:
        wire.send_bytes(build_request("/take/head"))
        head = wire.read_head()
        assert head.headers["x-mine"] == "yes" and "date" in head.headers
        server.finish_stream("head")
        assert read_rest(wire) == b""


def test_a_connection_is_closed_after_the_stream_if_the_client_asks_so(server):
    with RawConnection(server.served.port) as wire:
        begin_stream(wire, "/take/last", b"Connection: close")
        server.push_chunks("last", b"x")
        server.finish_stream("last")
        assert read_rest(wire) == b"x"
        wire.read_close()
    wait_until(
        lambda: server.get_client("last").outlet not in server.served.connections, "it stays"
    )


def test_a_connection_is_closed_after_the_stream_if_the_application_says_so(server):
    server.app.extra_headers["said"] = [(b"connection", b"close")]
    with RawConnection(server.served.port) as wire:
        begin_stream(wire, "/take/said")
        server.finish_stream("said")
        assert read_rest(wire) == b""
        wire.read_close()


def test_a_connection_that_is_idle_after_the_stream_is_closed(server):
    """uvicorn's keep-alive, 2 s here."""
    with RawConnection(server.served.port) as wire:
        begin_stream(wire, "/take/idle")
        server.finish_stream("idle")
        assert read_rest(wire) == b""
        wire.read_close()


def test_limits_of_http_hold_behind_a_stream(tight):
    with RawConnection(tight.served.port) as wire:
        begin_stream(wire, "/take/limits")
        tight.finish_stream("limits")
        assert read_rest(wire) == b""
        wire.send_bytes(build_request("/", b"X: " + b"a" * 65536))
        assert wire.read_response().problem["status"] == 431


def test_after_its_end_an_outlet_writes_nothing_more(server):
    with RawConnection(server.served.port) as wire:
        begin_stream(wire, "/take/ended")
        client = server.get_client("ended")
        server.run_in_loop(client.finish_stream)
        server.run_in_loop(client.push_chunks, b"too late")
        server.run_in_loop(client.finish_stream)
        assert read_rest(wire) == b""
        wire.send_bytes(build_request("/clean"))
        assert json.loads(wire.read_response().body) == {"path": "/clean"}


def test_an_application_that_fails_after_it_took_over_ends_the_connection(server, complaints):
    complaints.append("Exception in ASGI application")
    with RawConnection(server.served.port) as wire:
        begin_stream(wire, "/fail/failed")
        wire.read_close()
    wait_until(lambda: server.get_client("failed").close_count, "nobody is told")


# Requests before and behind


def test_requests_behind_a_stream_are_answered_after_it_in_order(server):
    requests = [build_request("/a", b"X: " + b"a" * 500), build_request("/b"), build_request("/c")]
    with RawConnection(server.served.port) as wire:
        begin_stream(wire, "/take/behind")
        server.get_client("behind")
        for piece in b"".join(requests)[:-2], b"":
            wire.send_bytes(piece)
        server.push_chunks("behind", b"x")
        assert wire.read_chunk() == b"x"
        server.finish_stream("behind")
        assert read_rest(wire) == b""
        wire.send_bytes(b"\r\n")
        assert [json.loads(wire.read_response().body)["path"] for _ in "abc"] == ["/a", "/b", "/c"]


def test_a_stream_behind_a_stream_comes_after_it(server):
    with RawConnection(server.served.port) as wire:
        begin_stream(wire, "/take/first")
        server.get_client("first")
        wire.send_bytes(build_request("/take/second"))
        server.push_chunks("first", b"1")
        server.finish_stream("first")
        assert read_rest(wire) == b"1"
        assert wire.read_head().status == 200
        server.push_chunks("second", b"2")
        server.finish_stream("second")
        assert read_rest(wire) == b"2"


@pytest.mark.parametrize("cut", [0, 2, 30])
def test_a_stream_with_requests_behind_it_from_the_start_is_sent_by_asgi(server, cut):
    name, behind = f"crowd-{cut}", build_request("/b") + build_request("/c", b"X: " + b"x" * 40)
    now, later = behind[: len(behind) - cut], behind[len(behind) - cut :]
    with RawConnection(server.served.port) as wire:
        wire.send_bytes(build_request(f"/take/{name}") + now)
        assert wire.read_response().body == b"onetwo"
        assert json.loads(wire.read_response().body) == {"path": "/b"}
        wire.send_bytes(later)
        assert json.loads(wire.read_response().body) == {"path": "/c"}
        assert name in server.app.send_streams


@pytest.mark.parametrize("behind", [b"nonsense\r\n\r\n", b"\0", b"G\0", b"GET \r\n"])
def test_nonsense_behind_a_stream_from_the_start_is_refused_after_it(server, behind):
    with RawConnection(server.served.port) as wire:
        wire.send_bytes(build_request("/take/rude") + behind)
        assert wire.read_response().body == b"onetwo"
        assert wire.read_last_response().problem["status"] == 400


def test_a_stream_behind_a_request_is_taken_when_its_turn_comes(server):
    with RawConnection(server.served.port) as wire:
        wire.send_bytes(build_request("/a") + build_request("/take/turn"))
        assert json.loads(wire.read_response().body) == {"path": "/a"}
        assert wire.read_head().status == 200
        server.push_chunks("turn", b"x")
        server.finish_stream("turn")
        assert read_rest(wire) == b"x"


def test_a_stream_whose_request_is_not_whole_is_sent_by_asgi(server):
    with RawConnection(server.served.port) as wire:
        wire.send_bytes(build_request("/take/half", b"Content-Length: 5") + b"hell")
        assert wire.read_response().body == b"onetwo"
        wire.send_bytes(b"o" + build_request("/next"))
        assert json.loads(wire.read_response().body) == {"path": "/next"}


def test_what_comes_behind_a_stream_is_not_kept(server):
    """64 KiB of each stream were kept as long as it lasted, and counted nowhere."""
    with RawConnection(server.served.port) as wire:
        begin_stream(wire, "/take/behind-much")
        server.get_client("behind-much")
        wire.send_bytes(build_request("/a", b"X: " + b"a" * 30_000))
        outlet = server.get_client("behind-much").outlet
        wait_until(lambda: not outlet.transport.is_reading(), "it is read on")
        server.push_chunks("behind-much", b"x")
        assert wire.read_chunk() == b"x"
        server.finish_stream("behind-much")
        assert read_rest(wire) == b""
        assert wire.read_last_response().problem["status"] == 429


def test_what_comes_behind_a_stream_is_bounded(tight):
    """More than that: no more is read, and the connection ends with the stream."""
    with RawConnection(tight.served.port) as wire:
        begin_stream(wire, "/take/flood")
        tight.get_client("flood")
        wire.socket.settimeout(1)
        with pytest.raises(TimeoutError):
            wire.socket.sendall(build_request("/") * 1_000_000)
        wire.socket.settimeout(WAIT_TIMEOUT_S)
        tight.push_chunks("flood", b"still here")
        assert wire.read_chunk() == b"still here"

        def finish() -> bool:
            tight.get_client("flood").finish_stream()
            return bool(get_protocol(tight, wire).transport.is_reading())

        assert tight.run_in_loop(finish)  # or a reset would eat the refusal
        assert wire.read_chunk() == b""
        assert wire.read_response().problem["status"] == 429
        wait_until(lambda: not tight.served.connections, "it stays")


def test_nonsense_behind_a_stream_is_refused_after_it(server):
    with RawConnection(server.served.port) as wire:
        begin_stream(wire, "/take/nonsense")
        server.get_client("nonsense")
        wire.send_bytes(b"nonsense\r\n\r\n")
        server.push_chunks("nonsense", b"x")
        server.finish_stream("nonsense")
        assert read_rest(wire) == b"x"
        assert wire.read_last_response().problem["status"] == 400


# What cannot be taken


def test_head_and_http_1_0_are_not_taken(server):
    with RawConnection(server.served.port) as wire:
        wire.send_bytes(build_request("/take/method", method="HEAD") + build_request("/next"))
        assert wire.read_head().status == 200
        assert json.loads(wire.read_response().body) == {"path": "/next"}
    server.app.extra_headers["chunked"] = [(b"transfer-encoding", b"chunked")]
    with RawConnection(server.served.port) as wire:
        wire.send_bytes(build_request("/take/chunked", method="HEAD"))
        assert wire.read_head().status == 200
        wire.send_bytes(build_request("/next"))
        assert json.loads(wire.read_response().body) == {"path": "/next"}
    with RawConnection(server.served.port) as wire:
        wire.send_bytes(b"GET /take/old HTTP/1.0\r\n\r\n")
        assert "transfer-encoding" not in wire.read_head().headers
        assert wire.read_exactly(6) == b"onetwo"
        wire.read_close()
    assert {"method", "chunked", "old"} <= set(server.app.send_streams)


def test_a_response_with_a_length_is_not_taken(server):
    server.app.extra_headers["length"] = [(b"content-length", b"6")]
    with RawConnection(server.served.port) as wire:
        wire.send_bytes(build_request("/take/length"))
        assert wire.read_response().body == b"onetwo"
    assert "length" in server.app.send_streams


def test_an_offer_is_for_its_own_request_alone(server):
    """Kept by an application for longer, it would take the connection from another answer."""
    with RawConnection(server.served.port) as wire:
        wire.send_bytes(build_request("/chunks"))
        assert wire.read_response().body == b"whole"
        early = server.app.takeover_offers[-1]
        assert server.run_in_loop(early, OutletClient("thief")) is None
        wire.send_bytes(build_request("/slow/mine"))
        assert wire.read_head().status == 200
        assert server.run_in_loop(early, OutletClient("thief")) is None
        server.push_chunks("mine", b"x")
        server.finish_stream("mine")
        assert read_rest(wire) == b"x"


@pytest.mark.parametrize(
    "middleware",
    [
        lambda app: BaseHTTPMiddleware(app, dispatch=lambda request, call_next: call_next(request)),
        lambda app: GZipMiddleware(app, minimum_size=1),
    ],
    ids=["BaseHTTPMiddleware", "GZip"],
)
def test_behind_a_middleware_that_holds_the_start_back_it_goes_by_asgi(loop, middleware):
    with (
        running_outlet_server(GatewayProtocol, loop, wrap=middleware) as server,
        RawConnection(server.served.port) as wire,
    ):
        wire.send_bytes(build_request("/take/held") + build_request("/next"))
        assert wire.read_response().body == b"onetwo"
        assert json.loads(wire.read_response().body) == {"path": "/next"}
        assert server.app.send_streams == ["held"]


def test_a_middleware_that_adds_headers_is_heard(loop):
    with (
        running_outlet_server(
            GatewayProtocol, loop, wrap=lambda app: CORSMiddleware(app, allow_origins=["*"])
        ) as server,
        RawConnection(server.served.port) as wire,
    ):
        wire.send_bytes(build_request("/take/cors", b"Origin: https://elsewhere.example"))
        assert wire.read_head().headers["access-control-allow-origin"] == "*"
        server.push_chunks("cors", b"x")
        server.finish_stream("cors")
        assert read_rest(wire) == b"x"


def test_under_uvicorns_own_protocol_it_goes_by_asgi(loop):
    with (
        running_outlet_server(HttpToolsProtocol, loop) as server,
        RawConnection(server.served.port) as wire,
    ):
        wire.send_bytes(build_request("/take/plain"))
        assert wire.read_response().body == b"onetwo"
        assert server.app.send_streams == ["plain"]


# The end of a connection


def test_a_connection_that_is_being_closed_is_not_taken(server, loop, authority):
    """With TLS its protocol's end is under way already, and a new one would never be told."""
    certificate = authority.issue_certificate("server")
    with running_outlet_server(GatewayProtocol, loop, certificate=certificate) as secure:
        for each in server, secure:
            with RawConnection(each.served.port) as wire:
                each.app.cut_connection = partial(abort_connection, each, wire)
                if each is secure:
                    context = authority.create_client_context()
                    wire.socket = context.wrap_socket(wire.socket, server_hostname="localhost")
                wire.send_bytes(build_request("/cut/cut"))
                wait_until(lambda each=each: "cut" in each.app.send_streams, "it is not asked for")
            wait_until(lambda each=each: not each.state.tasks, "the application goes on")


def abort_connection(server: OutletServer, wire: RawConnection) -> None:
    get_protocol(server, wire).transport.abort()


@pytest.mark.parametrize("way", ["FIN", "RST", "half-closed"])
def test_a_client_that_leaves_is_told_of_once(server, way):
    """One that only says that it will send no more has its stream go on until it has gone: that was
    the end of the stream, as uvicorn has it."""
    name = f"leaves-{way}"
    with RawConnection(server.served.port) as wire:
        begin_stream(wire, f"/take/{name}")
        client = server.get_client(name)
        if way == "RST":
            reset_connection(wire)
        elif way == "FIN":
            wire.socket.close()
        else:
            wire.socket.shutdown(socket.SHUT_WR)
            assert wire.read_chunk() == b".", "it is asked whether it is there"
            server.run_in_loop(client.push_chunks, b"goes on")
            while (said := wire.read_chunk()) != b"goes on":
                assert said == b"."
            assert not client.close_count
            wire.socket.close()
        wait_until(lambda: client.close_count, "nobody is told")
    wait_until(lambda: client.outlet not in server.served.connections, "it stays")
    server.run_in_loop(client.push_chunks, b"to nobody")
    server.run_in_loop(client.finish_stream)
    assert client.close_count == 1 and not client.outlet.full


def test_a_write_that_fails_ends_the_connection(server):
    """The client has gone, and the server has not heard of it yet."""
    with RawConnection(server.served.port) as wire:
        begin_stream(wire, "/take/broken")
        client = server.get_client("broken")

        def leave_and_write() -> None:
            reset_connection(wire)
            for _ in range(5):
                client.outlet.write(frame_chunk(b"x"))

        server.run_in_loop(leave_and_write)
        wait_until(lambda: client.close_count == 1, "nobody is told")


def test_a_client_that_reads_nothing_is_cut_by_the_kernel(tight):
    with RawConnection(tight.served.port, receive_buffer=4096) as wire:
        begin_stream(wire, "/take/stuck")
        tight.push_chunks("stuck", *[b"x" * 1000] * 1000)
        client = tight.get_client("stuck")
        assert client.outlet.full
        wait_until(lambda: client.close_count, "it is not cut")


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def test_the_server_ends_when_its_streams_have(loop):
    with running_outlet_server(GatewayProtocol, loop, timeout_graceful_shutdown=60) as server:
        with RawConnection(server.served.port) as one, RawConnection(server.served.port) as two:
            begin_stream(one, "/take/one")
            begin_stream(two, "/take/two")
            server.get_client("one"), server.get_client("two")
            server.served.server.should_exit = True
            wait_until(lambda: not is_listening(server.served.port), "it is not told to end")
            server.push_chunks("one", b"still")
            assert one.read_chunk() == b"still"
            for name, wire in (("one", one), ("two", two)):
                server.finish_stream(name)
                assert read_rest(wire) == b""
                wire.read_close()
        wait_until(lambda: not server.served.loop.is_running(), "it waits for somebody")


def test_a_stream_that_never_ends_does_not_keep_the_server(loop):
    with (
        running_outlet_server(GatewayProtocol, loop, timeout_graceful_shutdown=1) as server,
        RawConnection(server.served.port) as wire,
    ):
        begin_stream(wire, "/take/forever")
        server.get_client("forever")
        server.served.server.should_exit = True
        wait_until(lambda: not server.served.loop.is_running(), "it waits for the stream")


# What is left


def test_nothing_of_a_request_is_left_without_the_collector_of_garbage(server):
    with RawConnection(server.served.port) as wire:
        gc.collect()
        gc.disable()
        try:
            wire.send_bytes(build_request("/slow/lean"))
            assert wire.read_head().status == 200
            left = server.run_in_loop(list_objects, server, wire)
            assert len(left) == 4
            server.get_client("lean")
            wait_until(server.has_only_outlets, "the application's task goes on")
            wait_until(lambda: not any(each() for each in left), str(left))
            server.finish_stream("lean")
            assert read_rest(wire) == b""
            wire.send_bytes(build_request("/chunks"))
            assert wire.read_response().body == b"whole"
            http = server.run_in_loop(list_objects, server, wire)
            wire.socket.close()
            wait_until(lambda: not any(each() for each in http), str(http))
        finally:
            gc.enable()


def list_objects(server: OutletServer, wire: RawConnection) -> list[weakref.ref[Any]]:
    protocol = get_protocol(server, wire)
    cycle = protocol.running_cycle
    things = [protocol, protocol.flow]
    if cycle is not None and not cycle.response_complete:
        things += [cycle, cycle.message_event]
    return [weakref.ref(each) for each in things]


def test_an_outlet_is_small(server):
    with RawConnection(server.served.port) as wire:
        begin_stream(wire, "/take/small")
        outlet = server.get_client("small").outlet
        assert not hasattr(outlet, "__dict__")
        assert sys.getsizeof(outlet) + sys.getsizeof(outlet.data_received) <= 250


# Full


@pytest.mark.parametrize("size", [7, 1000, 100_000])
def test_bytes_come_whole_and_in_order_through_a_small_buffer(tight, size):
    total = 700_000
    name = f"order-{size}"
    sent = b"".join(b"%07d" % n for n in range(total // 7))
    with RawConnection(tight.served.port, receive_buffer=4096) as wire:
        begin_stream(wire, f"/take/{name}")
        tight.push_chunks(name, *(sent[at : at + size] for at in range(0, total, size)))
        client = tight.get_client(name)
        wait_until(lambda: client.outlet.full and client.pending_chunks, "it is never full")
        assert b"".join(wire.read_chunk() for _ in range(-(-total // size))) == sent
        wait_until(lambda: client.drain_count and not client.outlet.full, "it stays full")
        tight.finish_stream(name)
        assert read_rest(wire) == b""


def test_what_is_written_to_a_full_outlet_comes_all_the_same(tight):
    with RawConnection(tight.served.port, receive_buffer=4096) as wire:
        begin_stream(wire, "/take/more")
        tight.push_chunks("more", b"x" * 1_000_000)
        client = tight.get_client("more")
        assert client.outlet.full
        tight.run_in_loop(client.outlet.write, frame_chunk(b"y"))
        tight.finish_stream("more")
        wire.send_bytes(build_request("/next"))
        http = get_protocol(tight, wire)
        assert http.flow.write_paused
        assert read_rest(wire) == b"x" * 1_000_000 + b"y"
        wait_until(lambda: not http.flow.write_paused, "it stays paused")
        assert json.loads(wire.read_response().body) == {"path": "/next"}
        assert not client.drain_count


def test_a_full_outlet_whose_client_leaves_is_told_of(tight):
    with RawConnection(tight.served.port, receive_buffer=4096) as wire:
        begin_stream(wire, "/take/full")
        tight.push_chunks("full", *[b"x" * 1000] * 1000)
        client = tight.get_client("full")
        assert client.outlet.full
        reset_connection(wire)
        wait_until(lambda: client.close_count == 1, "nobody is told")
        assert client.pending_chunks


def test_a_write_that_fails_when_there_is_room_again_loses_the_connection_once(tight):
    """asyncio lost it twice, and complained, when that came to pass within `resume_writing`."""
    room, left = threading.Event(), threading.Event()
    with RawConnection(tight.served.port, receive_buffer=4096) as wire:
        begin_stream(wire, "/take/room")
        client = tight.get_client("room")

        def write_to_nobody() -> None:
            room.set()
            assert left.wait(WAIT_TIMEOUT_S)
            for _ in range(3):
                client.outlet.write(frame_chunk(b"x"))

        client.on_drained = write_to_nobody
        tight.push_chunks("room", b"x" * 300_000)
        assert client.outlet.full
        while not room.is_set():
            wire.socket.settimeout(0.05)
            with suppress(TimeoutError):
                wire.socket.recv(65536)
        reset_connection(wire)
        left.set()
        wait_until(lambda: client.close_count, "nobody is told")
    assert client.close_count == 1 and not tight.served.errors


def test_a_stream_that_begins_behind_bytes_that_wait_comes_after_them(tight):
    with RawConnection(tight.served.port, receive_buffer=4096) as wire:
        begin_stream(wire, "/late/late")
        client = tight.get_client("late")
        assert client.outlet.full
        tight.push_chunks("late", b"y")
        assert client.pending_chunks
        tight.finish_stream("late")
        assert read_rest(wire) == b"x" * 500_000 + b"y"


# TLS


@pytest.fixture(scope="module")
def secure(loop, authority) -> Iterator[OutletServer]:
    certificate = authority.issue_certificate("server")
    with running_outlet_server(SmallBufferProtocol, loop, certificate=certificate) as server:
        yield server


@pytest.fixture
def secret(secure, authority) -> Iterator[RawConnection]:
    with RawConnection(secure.served.port, receive_buffer=16384) as wire:
        plain = wire.socket
        with authority.create_client_context().wrap_socket(
            plain, server_hostname="localhost"
        ) as wire.socket:
            yield wire


def test_a_stream_through_tls_and_http_behind_it(secure, secret):
    for name in ("tls-1", "tls-2"):
        begin_stream(secret, f"/take/{name}")
        wait_until(secure.has_only_outlets, "the application's task goes on")
        secure.push_chunks(name, b"hello")
        assert secret.read_chunk() == b"hello"
        secret.send_bytes(build_request("/behind"))
        secure.push_chunks(name, b"there")
        secure.finish_stream(name)
        assert read_rest(secret) == b"there"
        assert json.loads(secret.read_response().body) == {"path": "/behind"}


def test_a_stream_through_tls_closes_if_it_is_asked_to(secure, secret):
    begin_stream(secret, "/take/tls-last", b"Connection: close")
    secure.finish_stream("tls-last")
    assert read_rest(secret) == b""
    secret.read_close()


@pytest.mark.parametrize("size", [1000, 100_000])
def test_bytes_come_whole_and_in_order_through_tls(secure, secret, size):
    total, name = 2_100_000, f"tls-order-{size}"
    sent = b"".join(b"%07d" % n for n in range(total // 7))
    begin_stream(secret, f"/take/{name}")
    secure.push_chunks(name, *(sent[at : at + size] for at in range(0, total, size)))
    client = secure.get_client(name)
    assert client.outlet.full and client.pending_chunks
    assert b"".join(secret.read_chunk() for _ in range(total // size)) == sent
    wait_until(lambda: client.drain_count and not client.outlet.full, "it stays full")
    secure.finish_stream(name)
    assert read_rest(secret) == b""


@pytest.mark.parametrize("way", ["FIN", "RST"])
def test_a_client_that_leaves_tls_is_told_of_once(secure, secret, way):
    begin_stream(secret, f"/take/tls-{way}")
    client = secure.get_client(f"tls-{way}")
    (reset_connection if way == "RST" else RawConnection.__exit__)(secret)
    wait_until(lambda: client.close_count, "nobody is told")
    secure.run_in_loop(client.push_chunks, b"to nobody")
    secure.run_in_loop(client.finish_stream)
    assert client.close_count == 1


# Many of them


class SmallSocketProtocol(GatewayProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


async def write_randomly(clients: dict[str, OutletClient], seed: int) -> None:
    """Write to everybody, the dead included, and end some."""
    random = Random(seed)
    while True:
        for client in list(clients.values()):
            outlet = client.outlet
            for _ in range(3):
                if not outlet.full:
                    outlet.write(frame_chunk(client.name.encode() * random.choice((1, 50, 700))))
            dice = random.random()
            if client.close_count or dice > 0.05:
                continue
            if dice < 0.03:
                outlet.finish(LAST)
            elif not outlet.transport.is_closing():
                outlet.transport.close() if dice < 0.04 else outlet.transport.abort()
        await asyncio.sleep(0.001)  # the visitors, in another thread, need the interpreter, too


class StreamVisitor:
    """One connection, and what must come over it."""

    def __init__(self, port: int, context: ssl.SSLContext | None, seed: int) -> None:
        self._random = Random(seed)
        self._names = (f"{seed:05d}-{n}" for n in count())
        self._connect_options = {"host": "127.0.0.1", "port": port, "ssl": context}
        if context is not None:
            self._connect_options["server_hostname"] = "localhost"
        self.chunk_count = self.stream_count = 0

    async def run_visit(self) -> None:
        reader, writer = await asyncio.open_connection(**self._connect_options)
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # the server has ended it
            while await self._read_stream(reader, writer):
                pass
        if self._random.random() < 0.5:
            writer.transport.abort()
        else:
            writer.close()

    async def _read_stream(self, reader, writer) -> bool:
        """True if it ended well, and the connection goes on."""
        name = next(self._names)
        writer.write(build_request(f"/take/{name}"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and head.count(b"HTTP/") == 1, head
        self.stream_count += 1
        for _ in range(self._random.randrange(1, 12)):
            line = await reader.readuntil(b"\r\n")
            size = int(line, 16)
            data = await reader.readexactly(size + 2)
            assert data == name.encode() * (size // len(name)) + b"\r\n", (name, line, data[:99])
            self.chunk_count += 1
            if not size:
                return True
        return False


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_no_byte_of_a_stream_reaches_another_connection(loop, tls, authority, complaints):
    """Connections come and go at both ends while all are written to, so that the numbers of
    their descriptors are in use again at once."""
    certificate = authority.issue_certificate("server") if tls else None
    context = authority.create_client_context() if tls else None
    total = 150 if tls else 400
    with running_outlet_server(SmallSocketProtocol, loop, certificate=certificate) as server:
        talking = asyncio.run_coroutine_threadsafe(
            write_randomly(server.app.clients, seed=7), server.served.loop
        )
        visitors = [StreamVisitor(server.served.port, context, n) for n in range(total)]
        at_once = asyncio.Semaphore(30)

        async def visit(visitor: StreamVisitor) -> None:
            async with at_once, asyncio.timeout(60):
                await visitor.run_visit()

        await asyncio.gather(*(visit(each) for each in visitors))
        assert not talking.done(), talking.exception()
        talking.cancel()
        streams = sum(each.stream_count for each in visitors)
        assert streams >= total and sum(each.chunk_count for each in visitors) > total
        assert tls or len(set(server.app.descriptors)) < streams / 2
