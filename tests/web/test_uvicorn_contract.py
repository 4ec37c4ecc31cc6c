"""What the edge takes for granted of uvicorn, uvloop and asyncio, none of which promises it.

A failure here means that a new version does otherwise: read what the message names before
`TESTED_VERSIONS` in gateway/web/http/edge.py is moved.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import httptools
import pytest
import uvicorn
import uvloop
from support.certificates import CertificateAuthority
from support.raw_http import build_request
from support.used_names import list_declared_names, list_imports, list_used_names
from support.waiting import WAIT_TIMEOUT_S, wait_until
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from gateway.internals import find_missing
from gateway.web.http.edge import (
    PROTOCOL_INTERNALS,
    SERVER_INTERNALS,
    describe_fallback,
)
from gateway.web.http.outlet import BufferedHead
from gateway.web.http.transport import GatewayProtocol
from gateway.web.workers.sockets import bind

LOOPS = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
HTTP = f"uvicorn {uvicorn.__version__} does otherwise; read gateway/web/http/transport.py: "
LEAN = HTTP + "`create_outlet`, `resume_http`: "
LOOP = f"uvloop {uvloop.__version__}, or asyncio, does otherwise; read gateway/web/http/outlet.py: "


# Names

PROTOCOLS = ("web/http/transport", "web/http/head", "web/http/outlet", "web/websocket/protocol")
SERVERS = ("web/http/edge", "web/app/server")
ALL_INTERNALS = (*PROTOCOL_INTERNALS, *SERVER_INTERNALS)
CONFIG = uvicorn.Config(None, lifespan="off", log_config=None, ws="none")


def test_uvicorn_has_what_the_gateway_checks_at_start():
    assert find_missing(ALL_INTERNALS) == [], HTTP
    assert describe_fallback() is None


def test_all_that_is_imported_from_uvicorn_is_checked_at_start():
    declared = {f"{each.module}.{each.name}" for each in ALL_INTERNALS}
    assert list_imports({"uvicorn"}) - {"uvicorn"} <= declared


@pytest.mark.parametrize(
    "name, modules, receivers, create",
    [
        (
            "HttpToolsProtocol",
            ["web/http/transport"],
            ["self"],
            lambda: HttpToolsProtocol(CONFIG, ServerState(), {}),
        ),
        (
            "RequestResponseCycle",
            PROTOCOLS,
            ["cycle", "running", "running_cycle", "_cycle"],
            lambda: RequestResponseCycle(*[None] * 11),
        ),
        ("FlowControl", PROTOCOLS, ["flow"], lambda: FlowControl(None)),
        ("ServerState", PROTOCOLS, ["server_state", "_server_state"], ServerState),
        ("Config", [*PROTOCOLS, *SERVERS], ["config", "_config"], lambda: CONFIG),
        ("Server", SERVERS, ["self", "server"], lambda: uvicorn.Server(CONFIG)),
    ],
)
async def test_all_that_is_used_of_uvicorn_is_checked_at_start(name, modules, receivers, create):
    """The public callbacks of a protocol and what every object has are no concern."""
    if not CONFIG.loaded:
        CONFIG.load()
    made = create()
    # A start message that a version does not log needs no override.
    unneeded = {*dir(asyncio.Protocol), "_", "_log_started_message"}
    theirs = {*dir(made), *("servers", "lifespan")} - unneeded
    used = list_used_names(modules, receivers) & theirs
    assert used, "it finds nothing: the code calls the object by another name"
    assert used - list_declared_names(ALL_INTERNALS, name) == set()


def test_the_parser_keeps_the_cause_of_a_refusal():
    class FailingProtocol:
        def on_headers_complete(self) -> None:
            raise LookupError("why")

    parser = httptools.HttpRequestParser(FailingProtocol())
    with pytest.raises(httptools.HttpParserCallbackError) as told:
        parser.feed_data(build_request("/"))
    assert isinstance(told.value.__context__, LookupError), (
        "httptools; read `head.convert_parser_error`"
    )


# A protocol by itself


class RecordingTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class ProtocolStage:
    """uvicorn's protocol with one connection, and an app that does what a test says."""

    def __init__(self, app: Any) -> None:
        self.config = uvicorn.Config(app, lifespan="off", log_config=None, timeout_keep_alive=60)
        self.state = ServerState()
        self.protocol = HttpToolsProtocol(self.config, self.state, {})
        self.transport = RecordingTransport()
        self.protocol.connection_made(self.transport)

    async def send_request(self, *headers: bytes, method: str = "GET") -> RequestResponseCycle:
        self.protocol.data_received(build_request("/", *headers, method=method))
        cycle = self.protocol.cycle
        tasks = set(self.state.tasks)
        assert len(tasks) == 1, HTTP + "server_state.tasks"
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await asyncio.gather(*tasks)
        return cycle


START = {"type": "http.response.start", "status": 200, "headers": []}
MORE = {"type": "http.response.body", "body": b"x", "more_body": True}


async def test_a_connection_has_the_state_that_is_read_and_set():
    stage = ProtocolStage(None)
    protocol, state = stage.protocol, stage.state
    assert state.connections == {protocol}, LEAN + "server_state.connections"
    assert state.total_requests == 0, LEAN + "server_state.total_requests"
    assert state.default_headers == [], HTTP + "server_state.default_headers"
    assert isinstance(protocol.parser, httptools.HttpRequestParser), HTTP + "parser"
    assert isinstance(protocol.flow, FlowControl), HTTP + "flow"
    assert (protocol.flow.read_paused, protocol.flow.write_paused) == (False, False), HTTP + "flow"
    for name in ("pause_reading", "resume_reading", "pause_writing", "resume_writing"):
        assert hasattr(FlowControl, name), HTTP + f"flow.{name}"
    assert (protocol.scheme, protocol.timeout_keep_alive) == ("http", 60), LEAN + "scheme"
    assert protocol.timeout_keep_alive_task is None, LEAN + "timeout_keep_alive_task"
    assert len(protocol.pipeline) == 0 and protocol.cycle is None, HTTP + "pipeline, cycle"
    for name in ("config", "app_state", "loop", "logger", "ws_protocol_class", "transport"):
        assert hasattr(protocol, name), HTTP + name
    protocol.on_message_begin()
    assert protocol.url == b"" and protocol.scope["headers"] is protocol.headers, HTTP + "scope"
    assert "extensions" not in protocol.scope, HTTP + "scope's extensions are ours alone"
    handed_over = {"server", "client", "scheme", "root_path", "http_version", "headers", "state"}
    assert handed_over <= protocol.scope.keys(), (
        HTTP + "scope; `websocket/protocol.py` builds on it"
    )


async def test_a_client_of_a_socket_for_both_families_has_its_own_address():
    """Networks of proxies, loopback checks and logs would not know it as ::ffff:127.0.0.1."""
    config = uvicorn.Config(None, lifespan="off", log_config=None)
    config.load()
    made: list[GatewayProtocol] = []

    def make() -> GatewayProtocol:
        made.append(GatewayProtocol(config, ServerState(), {}))
        return made[0]

    listening = bind("::", 0)
    server = await asyncio.get_running_loop().create_server(make, sock=listening)
    with socket.create_connection(("127.0.0.1", listening.getsockname()[1])):
        await wait_until(lambda: made and made[0].transport, "the connection")
        assert made[0].client is not None and made[0].client[0] == "127.0.0.1"
    server.close()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "a path"])
def test_a_connection_is_known_by_the_addresses_that_uvicorn_finds(loop, host, tmp_path):
    """`_attach_transport` stands for its `connection_made`."""

    async def connect_protocol(protocol: type[HttpToolsProtocol]) -> dict[str, Any]:
        config = uvicorn.Config(None, lifespan="off", log_config=None)
        config.load()
        made: list[HttpToolsProtocol] = []
        loop, at = asyncio.get_running_loop(), str(tmp_path / protocol.__name__)

        def make() -> HttpToolsProtocol:
            made.append(protocol(config, ServerState(), {}))
            return made[0]

        if host == "a path":
            server = await loop.create_unix_server(make, at)
            wire = socket.socket(socket.AF_UNIX)
            wire.connect(at)
        else:
            server = await loop.create_server(make, host)
            wire = socket.create_connection(server.sockets[0].getsockname()[:2])
        with wire:
            await wait_until(lambda: made and made[0].transport, HTTP + "connection_made")
            (one,) = made
            assert one.server_state.connections == {one}
            seen = {name: type(value).__name__ for name, value in vars(one).items()}
            named = wire.getsockname(), wire.getpeername()
        server.close()
        mine, theirs = (tuple(name[:2]) for name in named) if one.client else (None, (at, None))
        assert (one.client, one.server) == (mine, theirs), HTTP + "its addresses"
        return seen | {"scheme": one.scheme}

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        uvicorns = runner.run(connect_protocol(HttpToolsProtocol))
        ours = runner.run(connect_protocol(GatewayProtocol))
    assert {name: ours[name] for name in uvicorns} == uvicorns, HTTP + "connection_made"


@pytest.mark.parametrize("leaves", [True, False])
async def test_the_head_of_a_response_can_be_held_back(leaves):
    """`outlet.BufferedHead`, in the place of its transport."""

    async def app(scope, receive, send) -> None:
        cycle = stage.protocol.cycle
        with BufferedHead(cycle) as cork:
            await send(START)
            assert stage.transport.written == b"", LEAN + "cycle.transport"
            head = cork.take_bytes() if leaves else b""
        assert cycle.transport is stage.transport
        stage.transport.write(head)
        assert stage.transport.written.startswith(b"HTTP/1.1 200 "), LEAN + "cycle.transport"
        await send({**MORE, "more_body": False})

    stage = ProtocolStage(app)
    await stage.send_request()
    assert stage.transport.written.count(b"HTTP/1.1 200 ") == 1
    assert stage.transport.written.endswith(b"\r\n\r\n1\r\nx\r\n0\r\n\r\n")


async def test_requests_wait_in_the_pipeline_in_order():
    async def never(scope, receive, send) -> None:
        await asyncio.sleep(0)
        raise asyncio.CancelledError

    stage = ProtocolStage(never)
    for _ in range(3):
        stage.protocol.data_received(build_request("/"))
    waiting = list(stage.protocol.pipeline)
    told = HTTP + "`_refuse_body` takes the latest from the left"
    assert len(waiting) == 2 and waiting[0][0] is stage.protocol.cycle, told
    assert stage.protocol.flow.read_paused, HTTP + "reading goes on behind a request"
    await asyncio.gather(*stage.state.tasks, return_exceptions=True)


@pytest.mark.parametrize(
    "method, headers, chunked",
    [("GET", [], True), ("HEAD", [], None), ("GET", [(b"a", b"b")], True)],
)
async def test_chunks_are_known_by_the_start_of_a_response(method, headers, chunked):
    seen: list[object] = []

    async def app(scope, receive, send) -> None:
        cycle = stage.protocol.cycle
        seen.append(cycle.chunked_encoding)
        await send({**START, "headers": headers})
        seen.append(cycle.chunked_encoding)
        assert stage.transport.written.startswith(b"HTTP/1.1 200 "), (
            LEAN + "the start is written late"
        )
        await send({**MORE, "more_body": False})

    stage = ProtocolStage(app)
    await stage.send_request(method=method)
    assert seen == [None, chunked], LEAN + "cycle.chunked_encoding"


@pytest.fixture
def complaints(caplog) -> Iterator[list[str]]:
    told: list[str] = []
    caplog.set_level(logging.INFO, "uvicorn.error")  # whatever a server before this one set
    yield told
    said = [
        each.getMessage() for each in caplog.get_records("call") if each.levelno >= logging.WARNING
    ]
    assert len(said) == len(told) and all(a in b for a, b in zip(told, said, strict=True)), said


async def test_a_cycle_that_was_left_ends_quietly(complaints):
    async def app(scope, receive, send) -> None:
        await receive()
        await send(START)
        cycle = stage.protocol.cycle
        before = stage.transport.written
        cycle.disconnected = cycle.response_complete = True
        cycle.message_event.set()
        await send(MORE)
        await send({**MORE, "more_body": False})
        assert (await receive())["type"] == "http.disconnect", LEAN + "receive"
        assert stage.transport.written == before, LEAN + "something was written"

    stage = ProtocolStage(app)
    cycle = await stage.send_request()
    assert not stage.transport.is_closed, LEAN + "the connection was closed"
    assert stage.state.total_requests == 0, LEAN + "it was counted: the outlet counts as well"
    assert getattr(cycle.on_response, "__self__", None) is None, LEAN + "it keeps the protocol"
    assert not stage.state.tasks, LEAN + "the task is kept"


async def test_a_cycle_that_was_not_left_does_not(complaints):
    """Or the test above shows nothing."""

    async def app(scope, receive, send) -> None:
        await send(START)

    complaints.append("without completing response")
    stage = ProtocolStage(app)
    await stage.send_request()
    assert stage.transport.is_closed


async def test_a_cycle_that_fails_after_its_start_closes_the_connection(complaints):
    async def app(scope, receive, send) -> None:
        await send(START)
        stage.protocol.cycle.disconnected = stage.protocol.cycle.response_complete = True
        raise LookupError("on purpose")

    complaints.append("Exception in ASGI application")
    stage = ProtocolStage(app)
    await stage.send_request()
    assert stage.transport.is_closed, LEAN + "a stream whose client never came would stay for ever"


@pytest.mark.parametrize("header, kept", [(b"X: y", True), (b"Connection: close", False)])
async def test_a_cycle_knows_whether_its_connection_lasts(header, kept):
    async def app(scope, receive, send) -> None:
        await send(START)
        await send({**MORE, "more_body": False})

    cycle = await ProtocolStage(app).send_request(header)
    assert cycle.keep_alive is kept, LEAN + "cycle.keep_alive"


async def test_an_idle_connection_has_a_timer_that_a_request_stops():
    async def app(scope, receive, send) -> None:
        await send(START)
        await send({**MORE, "more_body": False})

    stage = ProtocolStage(app)
    await stage.send_request()
    timer = stage.protocol.timeout_keep_alive_task
    assert timer is not None and not timer.cancelled(), LEAN + "timeout_keep_alive_task"
    assert stage.state.total_requests == 1, LEAN + "server_state.total_requests"
    stage.protocol.data_received(b"G")
    assert timer.cancelled(), LEAN + "_unset_keepalive_if_required"


async def test_a_server_tells_every_connection_to_end_and_waits_for_all():
    class FakeConnection:
        shutdown_count = 0

        def shutdown(self) -> None:
            self.shutdown_count += 1

    one = FakeConnection()
    server = uvicorn.Server(uvicorn.Config(None, lifespan="off", log_config=None))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    server.servers = []
    server.server_state.connections.add(one)  # type: ignore[arg-type]
    ending = asyncio.create_task(server.shutdown())
    await wait_until(lambda: one.shutdown_count, LEAN + "Server.shutdown")
    done, _ = await asyncio.wait([ending], timeout=0.5)
    assert not done, LEAN + "it does not wait for server_state.connections"
    server.server_state.connections.clear()
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await ending
    assert one.shutdown_count == 1


# Transports


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


class FlowProtocol(asyncio.Protocol):
    """Notes what its transport tells, and whether that was within a write.

    tls: asyncio may pause out of a write then, when it hands on what waited for the socket. An
         outlet hears of that as well.
    """

    def __init__(self, *, uses_tls: bool = False) -> None:
        self.uses_tls = uses_tls
        self.transport: asyncio.Transport | None = None
        self.violations: list[str] = []
        self.is_full = self.is_writing = False
        self.received = b""

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def write(self, data) -> None:
        self.is_writing = True
        self.transport.write(data)
        self.is_writing = False
        if self.transport.get_write_buffer_size() and not self.is_full:
            self.violations.append("something is left, and it was not paused")

    def pause_writing(self) -> None:
        self.is_full = True
        if not self.is_writing and not self.uses_tls:
            self.violations.append("paused out of a write")

    def resume_writing(self) -> None:
        self.is_full = False
        if self.transport.get_write_buffer_size():
            self.violations.append("resumed before all was sent")

    def connection_lost(self, error) -> None:
        self.transport = None


class ReaderThread(threading.Thread):
    """A client that reads to the end once it may. With less of a buffer the kernel would wait for
    0.2 s before each piece."""

    def __init__(self, port: int, context: ssl.SSLContext | None) -> None:
        super().__init__(daemon=True)
        self.port, self.context = port, context
        self.may_read = threading.Event()
        self.received = b""

    def run(self) -> None:
        with socket.socket() as plain:
            plain.settimeout(WAIT_TIMEOUT_S)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
            plain.connect(("127.0.0.1", self.port))
            wire: socket.socket = plain
            if self.context is not None:
                wire = self.context.wrap_socket(plain, server_hostname="localhost")
            with wire:
                wire.sendall(b"hello")
                self.may_read.wait(WAIT_TIMEOUT_S)
                while data := wire.recv(65536):
                    self.received += data


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_transport_pauses_within_write_and_resumes_when_all_is_sent(loop, tls, authority):
    """With `high` 0, or 1 for TLS."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(running_flow(authority if tls else None))


async def running_flow(authority: CertificateAuthority | None) -> None:
    flow, sent = (
        FlowProtocol(uses_tls=authority is not None),
        b"".join(b"%08d" % n for n in range(60_000)),
    )
    context = None
    if authority is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(str(authority.issue_certificate("server")))
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: flow, sock=listener, ssl=context)
    reader = ReaderThread(
        listener.getsockname()[1], authority.create_client_context() if authority else None
    )
    reader.start()
    try:
        await wait_until(lambda: flow.received == b"hello")
        flow.transport.set_write_buffer_limits(high=0 if authority is None else 1)
        assert not flow.is_full, LOOP + "limits pause a transport that has nothing to write"
        await push_pieces(flow, sent, reader)
        flow.transport.close()
        await asyncio.to_thread(reader.join, WAIT_TIMEOUT_S)
    finally:
        reader.may_read.set()
        server.close()
    assert reader.received == sent, LOOP + "bytes in another order"
    assert not flow.violations, LOOP + flow.violations[0]


async def push_pieces(flow: FlowProtocol, sent: bytes, reader: ReaderThread) -> None:
    pauses = 0
    for at in range(0, len(sent), 1000):
        flow.write(sent[at : at + 1000])
        if flow.is_full:
            pauses += 1
            reader.may_read.set()
            await wait_until(lambda: not flow.is_full, LOOP + "it is not resumed", interval_s=0.001)
    assert pauses, "it was never paused: the test shows nothing"


@pytest.mark.parametrize("end", ["close", "abort"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_transport_says_at_once_that_it_closes(loop, end):
    """What is written to one that is closed raises with uvloop."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(end_connection(end))


async def end_connection(end: str) -> None:
    flow, loop = FlowProtocol(), asyncio.get_running_loop()
    server = await loop.create_server(lambda: flow, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()):
        await wait_until(lambda: flow.transport)
        transport = flow.transport
        getattr(transport, end)()
        assert transport.is_closing(), LOOP + "is_closing comes late"
        await wait_until(lambda: flow.transport is None, LOOP + "connection_lost")
        assert transport.is_closing(), LOOP + "is_closing ends"
    server.close()


@pytest.mark.parametrize("loop", LOOPS)
def test_another_protocol_hears_what_comes_next(loop):
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(hand_over_transport())


async def hand_over_transport() -> None:
    first, second = FlowProtocol(), FlowProtocol()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: first, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as wire:
        wire.sendall(b"a")
        await wait_until(lambda: first.received == b"a")
        second.connection_made(first.transport)
        first.transport.set_protocol(second)
        wire.sendall(b"b")
        await wait_until(lambda: second.received == b"b", LOOP + "set_protocol")
    await wait_until(lambda: second.transport is None, LOOP + "set_protocol")
    server.close()
    assert first.transport is not None and first.received == b"a", LOOP + "set_protocol"
