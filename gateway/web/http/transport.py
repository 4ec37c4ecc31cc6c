"""The HTTP edge: uvicorn's protocol with the limits that it and httptools do not set.

    head       64 KiB (431, or 414 for the request line alone), complete within 10 s (408)
    body       64 KiB (413), complete within 10 s (408); chunk framing and trailers count
    meaning    `head`: one Host, chunked or Content-Length, http targets (400, 501, 505)
    pipelining 16 requests behind an unanswered one, then no more are read (429 in its turn)
    HTTP/1.0   no chunks: what has no Content-Length ends with the connection (RFC 9112 6.1, 6.3)
    half-close a client that ends its side behind its request is answered; whether it has gone
               altogether, what is written to it tells (`eof_received`)

A refusal is a problem (RFC 9457) that the client can read: it is sent in its turn, the sending
side is closed, and what still comes is read and forgotten for two seconds. Closing at once
would have the kernel answer unread bytes with a reset, which eats the refusal. (RFC 9112 9.6)

The price: a keep-alive GET with a browser's 11 headers takes 18 to 19 us in here, uvicorn's own
13.5 to 14 (its protocol on a fake transport, uvloop); with Starlette's routing 42 us of CPU
instead of 36. A connect with its first GET takes 85 us of CPU in either: what the limits cost is
spared at the socket. 0.5 us of a GET are the offer to take its connection over (`outlet`); a stream
that did costs nothing more.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import sys
from asyncio import TimerHandle
from collections.abc import Callable
from enum import Enum
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.protocols.utils import is_ssl

from gateway.errors import RequestError
from gateway.web.app.co_hosted_app import CoHostedApp
from gateway.web.websocket.protocol import WebSocketProtocol

from . import client_certificate as tls
from . import head
from .outlet import TAKEOVER, HttpOutlet, OutletOwner, TakeoverOffer


class Phase(Enum):
    """Where in a request the next byte belongs."""

    IDLE = "between requests"
    HEAD = "head"
    BODY = "body"


IDLE, HEAD, BODY = Phase

DISCONNECT_AT_EOF = "gateway.gone_at_eof"
"""ASGI extension that an application sets to true for a request: a client that ends its side of the
connection is gone. It is for what is taken from others by being answered, as records of a poll."""


class GatewayProtocol(HttpToolsProtocol):
    """For `uvicorn.Config(http=...)`, on sockets that it did `prepare`. Another limit is a subclass
    with another constant.

    Upgrades are for a `ws` that is a WebSocketProtocol. Sizes in bytes, times in seconds.
    """

    MAX_HEAD_BYTES = 64 * 1024
    HEAD_TIMEOUT_S = 10.0
    MAX_BODY_BYTES = 64 * 1024
    BODY_TIMEOUT_S = 10.0
    LINGER_S = 2.0
    MAX_PIPELINED_REQUESTS = 16
    HALF_CLOSED_TIMEOUT_S = 10.0
    """For which an answer that has begun goes on for a client that ended its side."""

    FIRST_PROBE_DELAY_S = 0.01  # until the first probe of such a client; doubled each time
    # A peer that vanished (no FIN: a phone out of reach) holds its stream until the kernel
    # gives up on what it never acknowledged: 15 minutes by default. Two to four heartbeats
    # say it sooner. Linux counts a window that stays shut as well, so a client that reads
    # nothing for this long is cut; its resume token brings it back without loss.
    USER_TIMEOUT_S = 60.0
    CO_HOSTED_APP: CoHostedApp | None = None  # whose requests have bodies of other sizes

    _phase = IDLE
    _part_bytes = 0
    _received_bytes = 0
    _open_requests = 0
    _ignores_input = False
    _is_half_closed = False
    _is_websocket_upgrade: bool | None = None
    _pending_refusal: RequestError | None = None
    running_cycle: RequestResponseCycle | None = None
    _takeover_offer: TakeoverOffer | None = None
    _timer: TimerHandle | None = None
    _body_limits: tuple[float, float] | None = None
    on_handshake_done: Callable[[], None] | None = None
    """Called once, when the connection has asked for something or is lost."""

    # `_size`:    bytes that came after the buffer in which the head, or the body, began.
    # `_most`:    bytes since the buffer in which the head began, that buffer included.
    # `_open`:    requests handed to the application and not answered to the end.
    # `_deaf`:    a request was refused; no more are read from this connection.
    # `_half_closed`: the client has ended its side, and is owed an answer.
    # `_upgrades`: the latest request is for a WebSocket; None while nobody asked.
    # `_refusal`: it waits for the answers before it.
    # `running`:  the request that is being answered.
    # `_offer`:   made to the application for the latest request.
    # `_room`:    for the latest request's body, where that is for the neighbour.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._attach_transport(transport)
        self._start_timer(self.HEAD_TIMEOUT_S)

    def _attach_transport(self, transport: asyncio.Transport) -> None:
        """As uvicorn's own, which makes a socket for each address it asks for: 4 us more."""
        self.connections.add(self)
        self.transport = transport
        self.flow = FlowControl(transport)
        own, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        self.server = (own, None) if isinstance(own, str) else _parse_address(own)
        self.client = _parse_address(peer)
        self.scheme = "https" if is_ssl(transport) else "http"
        self._tls_extension = tls.build_tls_extension(transport) if self.scheme == "https" else None

    @classmethod
    def configure_socket(cls, listening_socket: socket.socket) -> None:
        """Set what connections take over from their listening socket: set on each of them, it
        would be 3 us of a connect."""
        if listening_socket.family == socket.AF_UNIX:
            return
        # asyncio turns Nagle off by itself, but not where the listening socket was handed to
        # it with protocol 0; small events would wait for the acknowledgement of the last.
        listening_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sys.platform == "linux":
            wait = int(cls.USER_TIMEOUT_S * 1000)
            listening_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, wait)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        self.finish_handshake()
        self._withdraw_offer()
        running = (
            self.running_cycle
        )  # uvicorn tells the last request only, which may wait behind it
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        self.running_cycle = None
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self.running_cycle = cycle
        old = cycle.scope["http_version"] == "1.0"
        super()._start_asgi_task(cycle, wrap_for_http10(app, cycle) if old else app)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether the connection stays open although the client says nothing more.

        It may have ended its side only, and wait for its answer, or have gone altogether. What is
        written tells: a peer that is gone answers with a reset, which is seen at the next write.
        Under TLS there is no half of a connection.
        """
        waits = self._phase is IDLE and self._open_requests and not self._ignores_input
        if not waits or self.scheme == "https":
            return False
        running = self.running_cycle
        if running is not None and running.scope["extensions"].get(DISCONNECT_AT_EOF):
            return False
        if running is not None and running.response_started:
            # An answer that has begun may write nothing more for long: it is not waited for.
            self.loop.call_later(self.HALF_CLOSED_TIMEOUT_S, self._end_half_closed, running)
        if not self._is_half_closed:
            self._is_half_closed = True
            self.cycle.keep_alive = False
            self.loop.call_later(
                self.FIRST_PROBE_DELAY_S, self._send_probe, 2 * self.FIRST_PROBE_DELAY_S
            )
        return True

    def _end_half_closed(self, cycle: RequestResponseCycle) -> None:
        if self.running_cycle is cycle and not self.transport.is_closing():
            self.transport.close()

    def _send_probe(self, delay: float) -> None:
        """Write what a client that waits passes over (RFC 9110 15.2), until its answer begins.

        The first is answered with a reset by a client that is gone, and the second finds that. A
        request whose client is gone must not live on: a poll would take records for nobody.
        """
        running = self.running_cycle
        if running is None or running.response_started or self.transport.is_closing():
            return
        if running.scope["http_version"] == "1.0":  # which knows no such answers
            return
        self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.loop.call_later(delay, self._send_probe, 2 * delay)

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        self._unset_keepalive_if_required()
        self._part_bytes += len(data)
        self._received_bytes = (
            self._received_bytes + len(data) if self._phase is HEAD else len(data)
        )
        behind = None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._refuse(_convert_parser_error(error))
            return
        except httptools.HttpParserUpgrade as stop:
            behind = data[stop.args[0] :]
        if behind is not None:  # not above: an error in there would lose its context
            self._handle_upgrade(behind)
        if self._phase is not IDLE or not self._open_requests:
            self._check_progress()
        elif self._timer is not None:
            self._cancel_timer()

    def _handle_upgrade(self, trailing_data: bytes) -> None:
        if self._should_upgrade():
            self._switch_to_websocket(trailing_data)
        elif trailing_data:
            # Other protocols are not offered: the request is answered as HTTP/1.1 (RFC 9110
            # 7.8; curl --http2 asks so), and the parser goes on behind it. It cannot go deeper
            # than PIPELINED.
            self.data_received(trailing_data)

    def _switch_to_websocket(self, trailing_data: bytes) -> None:
        """A WebSocket from here on. uvicorn writes the head anew for websockets to parse, which
        has lower limits than ours: a token of 9 KB would be too long."""
        self._cancel_timer()
        self._withdraw_offer()
        self._ignores_input = True
        self.connections.discard(self)
        of_ours = cast("type[WebSocketProtocol]", self.ws_protocol_class)
        protocol = of_ours(self.config, self.server_state, self.app_state)
        self.parser = None  # type: ignore[assignment]  # or each would keep the other
        protocol.start_handshake(self.transport, self.scope, self.url, trailing_data)
        self.transport.set_protocol(protocol)

    # Streams. (`outlet`)

    def create_outlet(self, owner: OutletOwner) -> HttpOutlet | None:
        """Leave the connection to a stream, if the response that runs has begun and can be one."""
        cycle = self.running_cycle
        if cycle is None or not self._can_take_over(cycle):
            return None
        self._withdraw_offer()
        self.flow.resume_reading()
        # As if the client had gone after its answer: what the application still says is not
        # sent, and uvicorn finds nothing amiss when it returns.
        cycle.disconnected = cycle.response_complete = True
        cycle.message_event.set()
        self.connections.discard(self)
        outlet = HttpOutlet(self, owner, keep_alive=cycle.keep_alive)
        if self._is_half_closed:
            self.loop.call_soon(outlet.eof_received)
        self.parser = None  # type: ignore[assignment]  # or each would keep the other
        return outlet

    def _can_take_over(self, cycle: RequestResponseCycle) -> bool:
        """It has begun, in chunks, and nothing has come behind its request: the offer of a request
        that has another behind it was withdrawn."""
        asked = cycle.scope["method"] != "HEAD" and cycle.scope["http_version"] == "1.1"
        if not (asked and cycle.chunked_encoding) or cycle.response_complete:
            return False
        return self._phase is IDLE and not self.transport.is_closing()

    def resume_http(
        self, transport: asyncio.Transport, pipelined: bytes | None, *, full: bool
    ) -> None:
        """Take the connection back after a stream. behind: what came meanwhile; None if that was
        too much."""
        self._attach_transport(transport)
        transport.set_protocol(self)
        transport.set_write_buffer_limits()
        if full:
            self.flow.pause_writing()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )
        if pipelined is None:
            transport.resume_reading()
            detail = (
                f"more than {HttpOutlet.MAX_PIPELINED_BYTES} bytes behind a stream; open another"
            )
            self._refuse(RequestError(429, "Too many pipelined requests", detail))
        elif pipelined:
            self.data_received(pipelined)

    def _withdraw_offer(self) -> None:
        if self._takeover_offer is not None:
            self._takeover_offer.withdraw()
            self._takeover_offer = None

    def _check_progress(self) -> None:
        """A piece came that ends no request: is it too much, or does the rest have to hurry?"""
        if self._ignores_input:
            return
        if self._phase is HEAD and self._part_bytes > self.MAX_HEAD_BYTES:
            self._refuse(self._build_head_too_large())
        elif self._phase is BODY and self._part_bytes > self._max_body_bytes + self.MAX_HEAD_BYTES:
            self._refuse(self._build_body_too_large())
        elif self._timer is None:
            seconds = self._body_timeout_s if self._phase is BODY else self.HEAD_TIMEOUT_S
            if seconds != math.inf:
                self._start_timer(seconds)

    # What the parser says. An error raised here comes out of `feed_data` as its context.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._phase, self._is_websocket_upgrade = HEAD, None
        self._part_bytes = 0
        if self._timer is not None:
            self._cancel_timer()

    def _should_upgrade(self) -> bool:
        if self._is_websocket_upgrade is None:  # uvicorn asks four times
            self._is_websocket_upgrade = super()._should_upgrade()
        return self._is_websocket_upgrade

    def on_headers_complete(self) -> None:
        if self.on_handshake_done is not None:
            self.finish_handshake()
        self._check_request()
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is before:  # a WebSocket
            return
        self._phase = BODY
        self._part_bytes = self._body_size = 0
        if self._timer is not None:
            self._cancel_timer()
        self._open_requests += 1
        self._withdraw_offer()
        self._takeover_offer = TakeoverOffer(self)
        self.scope["extensions"] = {TAKEOVER: self._takeover_offer}  # type: ignore[dict-item]
        if self._tls_extension is not None:
            self.scope["extensions"][tls.TLS_EXTENSION] = self._tls_extension  # type: ignore[assignment]
        if not self.parser.should_upgrade():
            self.headers = []  # for the trailers, which are none of the application's headers

    def on_body(self, body: bytes) -> None:
        self._body_size += len(body)
        if self._body_size > self._max_body_bytes:
            raise self._build_body_too_large()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._phase = IDLE
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._open_requests -= 1
        super().on_response_complete()
        if (
            self._pending_refusal is not None
            and not self._open_requests
            and not self.transport.is_closing()
        ):
            self._send_refusal(self._pending_refusal)

    def finish_handshake(self) -> None:
        """Call `leave`, unless that was done."""
        leave, self.on_handshake_done = self.on_handshake_done, None
        if leave is not None:
            leave()

    def _check_request(self) -> None:
        url = self.url
        if (
            self._received_bytes > self.MAX_HEAD_BYTES
            and head.head_size(url, self.headers) > self.MAX_HEAD_BYTES
        ):
            raise self._build_head_too_large()
        head.check_query(url)
        length = head.parse_body_length(self.parser.get_http_version(), self.headers)
        if url[:1] != b"/" or b"#" in url:
            self.url = head.to_origin_form(self.parser.get_method(), url, self.headers)
        if self.CO_HOSTED_APP is not None:
            self._body_limits = self._get_body_limits(self.CO_HOSTED_APP)
        if length is not None and length > self._max_body_bytes:
            raise self._build_body_too_large()
        if self._open_requests > self.MAX_PIPELINED_REQUESTS:
            detail = f"more than {self.MAX_PIPELINED_REQUESTS} requests wait on this connection; open another"
            raise RequestError(429, "Too many pipelined requests", detail)
        if self.parser.should_upgrade() and (length != 0 or self._open_requests):
            # The parser skips the body: its bytes would be read as the next request.
            raise head.build_bad_request("an upgrade with a body or behind an unanswered request")

    def _get_body_limits(self, co_hosted_app: CoHostedApp) -> tuple[float, float] | None:
        """What the neighbour has for this body; None for what is not its own."""
        path = unquote(self.url.partition(b"?")[0].decode("latin-1"))
        if not co_hosted_app.owns_path(path):
            return None
        kind = next((value for name, value in self.headers if name == b"content-type"), b"")
        return co_hosted_app.get_body_limits(kind)

    @property
    def _max_body_bytes(self) -> float:
        return self.MAX_BODY_BYTES if self._body_limits is None else self._body_limits[0]

    @property
    def _body_timeout_s(self) -> float:
        return self.BODY_TIMEOUT_S if self._body_limits is None else self._body_limits[1]

    # Refusing, in turn.

    def _refuse(self, error: RequestError) -> None:
        """Answer with a problem when its turn comes, read no more requests, and close."""
        self._ignores_input = True
        self._cancel_timer()
        host, port = self.client or ("-", 0)
        self.logger.info("refused %s:%d: %d %s: %s", host, port, error.status, error.title, error)
        if self._phase is BODY:
            self._refuse_body(error)
        elif self._open_requests:
            self._queue_refusal(error)
        else:
            self._send_refusal(error)

    def _refuse_body(self, error: RequestError) -> None:
        """The application has this request already: take it back if that is still possible."""
        if self.cycle.response_complete:
            self._linger()
        elif self._open_requests > 1:
            self.pipeline.popleft()
            self._open_requests -= 1
            self._queue_refusal(error)
        elif self.cycle.response_started:
            self.transport.close()
        else:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._send_refusal(error)

    def _queue_refusal(self, error: RequestError) -> None:
        self._pending_refusal = error
        self.flow.pause_reading()

    def _send_refusal(self, error: RequestError) -> None:
        kind, body = self._format_error(error)
        headers = [
            *self.server_state.default_headers,
            (b"content-type", kind),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            (b"connection", b"close"),
        ]
        lines = b"".join([b"%s: %s\r\n" % header for header in headers])
        if self._phase is not IDLE and self.parser.get_method() == b"HEAD":
            body = b""
        self.transport.write(STATUS_LINE[error.status] + lines + b"\r\n" + body)
        self._linger()

    def _format_error(self, error: RequestError) -> tuple[bytes, bytes]:
        """Content type and body of a refusal."""
        if self._body_limits is not None and self.CO_HOSTED_APP is not None:
            kind, content = self.CO_HOSTED_APP.format_error(error)
            return kind.encode(), content
        told = {"title": error.title, "status": error.status, "detail": str(error)}
        return b"application/problem+json", json.dumps(told).encode()

    def _linger(self) -> None:
        """Close our side and read the other's to its end, or for LINGER_SECONDS."""
        self._unset_keepalive_if_required()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._timer = self.loop.call_later(self.LINGER_S, self.transport.abort)

    def _build_head_too_large(self) -> RequestError:
        if head.head_size(self.url, []) > self.MAX_HEAD_BYTES:
            detail = f"the request line is over {self.MAX_HEAD_BYTES} bytes; send tokens as headers"
            return RequestError(414, "URI too long", detail)
        detail = (
            f"request line and headers are over {self.MAX_HEAD_BYTES} bytes; send fewer cookies"
        )
        return RequestError(431, "Request header fields too large", detail)

    def _build_body_too_large(self) -> RequestError:
        detail = f"the body, or its chunk framing, is over {self._max_body_bytes} bytes; send less"
        return RequestError(413, "Content too large", detail)

    # Deadlines. A request that comes whole in one piece never starts a timer.

    def _start_timer(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._on_timeout)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self.flow.read_paused:  # we keep the client waiting, not it us
            self._start_timer(self.HEAD_TIMEOUT_S)
        elif self._phase is IDLE:
            self.transport.close()
        else:
            part, seconds = self._phase.value, self.HEAD_TIMEOUT_S
            if self._phase is BODY:
                seconds = self._body_timeout_s
            detail = f"the request's {part} was not complete after {seconds:g} s; send it again"
            self._refuse(RequestError(408, "Request timeout", detail))


def wrap_for_http10(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """Return the application for a request of HTTP/1.0, whose answer has no chunks: where its
    length is not known it ends with the connection. uvicorn would chunk it all the same."""

    async def run_app(scope: Any, receive: Any, send: Any) -> None:
        has_length = False

        async def send_unchunked(message: Any) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                names = [name.lower() for name, _ in message.get("headers", ())]
                has_length = b"content-length" in names
                if not has_length:
                    cycle.chunked_encoding = False
            elif not has_length:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_unchunked)

    cycle.waiting_for_100_continue = False  # RFC 9110 10.1.1
    return run_app


def _parse_address(sockaddr: Any) -> tuple[str, int] | None:
    """None for a peer by a Unix socket."""
    return (sockaddr[0], sockaddr[1]) if isinstance(sockaddr, tuple) else None


def _convert_parser_error(error: httptools.HttpParserError) -> RequestError:
    if isinstance(error.__context__, RequestError):
        return error.__context__
    reason = str(error)
    if "PRI" in reason:  # HTTP/2's preface (RFC 9113 3.4)
        detail = "this port speaks HTTP/1.1; HTTP/2 is for a proxy in front of it"
        return RequestError(505, "HTTP version not supported", detail)
    return head.build_bad_request(f"not HTTP/1.1: {reason}")
