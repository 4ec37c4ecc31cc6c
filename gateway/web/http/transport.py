"""Serve HTTP/1.1 by uvicorn's protocol, with limits that uvicorn and httptools do not set.

    head       64 KiB and 256 headers (431, or 414 for the request line alone), complete within
               10 s (408)
    body       64 KiB (413), complete within 10 s (408); chunks, their framing and trailers count
    meaning    one Host, chunked or Content-Length, http targets, a known Expect (400, 417, 501,
               505); see `head`
    pipelining 16 requests behind an unanswered one, with heads of 8 KiB; more are refused (429)
    HTTP/1.0   no chunks: a response without Content-Length ends with the connection
               (RFC 9112 6.1, 6.3)
    half-close a client that closes its side after its request is answered; probes find out
               whether it is gone (`eof_received`)

A refusal is a problem (RFC 9457) that the client can read. It is sent after the responses to the
requests before it. Then the sending side is closed, and what still comes is read and discarded for
two seconds. If the connection were closed at once, the kernel would answer unread bytes with a
reset, and the client would lose the refusal (RFC 9112 9.6).

What it costs: a keep-alive GET with a browser's 11 headers takes 18 to 19 us in this protocol, and
13.5 to 14 us in uvicorn's own (on a fake transport, with uvloop). With Starlette's routing it takes
42 us of CPU instead of 36. A connect with its first GET takes 85 us of CPU in either protocol, as
the cost of the limits is saved at the socket (`edge.configure_socket`, `_attach_transport`). 0.5 us
of a GET is the offer to take its connection over (`outlet`). A stream that did so costs nothing
more.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import socket
import struct
import sys
from asyncio import TimerHandle
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.client_memory import MAX_UNCOUNTED_BYTES, ClientMemory, HeldPart
from gateway.errors import RequestError
from gateway.telemetry.logs import LogRateLimit
from gateway.web.access.x509 import TLS_EXTENSION, build_tls_extension

from . import head
from .assets import CoHostedApp
from .limits import OPEN_CONNECTION, OpenConnection, PortLimits
from .outlet import TAKEOVER, HttpOutlet, OutletOwner, TakeoverOffer, half_close, hold_unsent

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

log = logging.getLogger(__name__)
log.addFilter(LogRateLimit())


class Phase(Enum):
    """The part of a request that the next byte belongs to. The value is its name in messages."""

    IDLE = "between requests"
    HEAD = "head"
    BODY = "body"


IDLE, HEAD, BODY = Phase

RESET_AT_CLOSE = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""The value of SO_LINGER with which a closed socket resets its connection."""

DISCONNECT_AT_EOF = "gateway.gone_at_eof"
"""ASGI extension that an application sets to true in the scope of a request. A client that closes
its side of the connection then counts as disconnected. It is for responses that take something from
other clients, such as the records of a poll, and must not be sent to a client that is gone."""


class GatewayProtocol(HttpToolsProtocol):
    """The protocol of one HTTP connection, with limits on everything a client sends.

    uvicorn creates one for each connection (`uvicorn.Config(http=...)`), on listening sockets that
    `edge.configure_socket` has prepared. It serves the connection until that is lost, becomes a
    WebSocket, or is taken over by an `HttpOutlet`, which creates another protocol when its stream
    ends. To change a limit, derive a class with another constant. Upgrades require that uvicorn's
    `ws` is a `WebSocketProtocol`.

    Requests are answered one after the other. `running_cycle` is the one that the application is
    answering, `cycle` the latest one that was read, and `pipeline` has those in between.
    """

    MAX_HEAD_BYTES = 64 * 1024
    HEAD_TIMEOUT_S = 10.0
    MAX_BODY_BYTES = 64 * 1024
    BODY_TIMEOUT_S = 10.0
    LINGER_S = 2.0
    MAX_PIPELINED_REQUESTS = 16
    MAX_PIPELINED_BYTES = 8 * 1024  # of their heads: the request before them may be a stream
    HALF_CLOSED_TIMEOUT_S = 10.0  # how long a response goes on that had begun at a half-close
    FIRST_PROBE_DELAY_S = 0.01  # until the second probe after a half-close; doubled each time
    CO_HOSTED_APP: CoHostedApp | None = None
    """The co-hosted app of the port, which has its own limits on bodies."""
    PORT_LIMITS: PortLimits | None = None
    """The limits by which connections are counted."""
    CLIENT_MEMORY: ClassVar[ClientMemory] = ClientMemory()
    """Where the bytes count that connections hold."""

    phase = IDLE
    # Bytes that came behind the buffer in which the head, or the body, began.
    _part_bytes = 0
    # Bytes since the head began, with all of the buffer in which it began: an upper bound of its
    # size, so that the exact size is computed only where this is above the limit.
    _received_bytes = 0
    # Requests that were read and whose response is not complete.
    _open_requests = 0
    # Bytes of the heads that were read behind an unanswered request.
    _pipelined_bytes = 0
    # Bytes of large heads, and of bodies, of all open requests.
    _request_bytes = 0
    # The next request and its application, which start once the client has read what waits.
    _waiting_start: tuple[RequestResponseCycle, Any] | None = None
    # A request was refused, or the connection is a WebSocket: what comes is discarded.
    _ignores_input = False
    # The client has closed its side, and waits for a response.
    _is_half_closed = False
    # Whether the latest request is for a WebSocket; None until it is determined.
    _is_websocket_upgrade: bool | None = None
    # A refusal that waits until the requests before it are answered.
    _pending_refusal: RequestError | None = None
    # The request that the application is answering.
    running_cycle: RequestResponseCycle | None = None
    # The offer in the scope of the latest request.
    _takeover_offer: TakeoverOffer | None = None
    # The deadline of the head or body; in the end, that of lingering.
    deadline_timer: TimerHandle | None = None
    # The next probe of a client that has closed its side, or the end of its response.
    _half_close_timer: TimerHandle | None = None
    # Bytes and seconds for the body of the latest request, if it is for the co-hosted app.
    _body_limits: tuple[float, float] | None = None
    # The connection where it is counted, until another protocol has it.
    open_connection: OpenConnection | None = None
    on_handshake_done: Callable[[], None] | None = None
    """Called once: when the first head is complete, or when the connection is lost."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._attach_transport(transport)
        if self.PORT_LIMITS is not None and not self.PORT_LIMITS.leaves_descriptors(
            transport.get_extra_info("socket").fileno()
        ):
            transport.abort()
            return
        self._start_timer(self.HEAD_TIMEOUT_S)
        if self.PORT_LIMITS is not None:
            peer = self.client[0] if self.client else ""
            self.open_connection = self.PORT_LIMITS.open_connection(peer, self._on_refused)

    def _on_refused(self, stays: bool) -> None:
        """End the connection, which is one too many, unless a request of it is to be answered."""
        if not stays:
            self.transport.abort()
        elif self.timeout_keep_alive_task is not None:
            self.transport.close()

    def _attach_transport(self, transport: asyncio.Transport) -> None:
        """Do what uvicorn's `connection_made` does, without a socket object for each address.

        uvicorn creates two of them, which takes 4 us.
        """
        self.connections.add(self)
        self.transport = transport
        transport.set_write_buffer_limits(high=MAX_UNCOUNTED_BYTES)
        self.flow = FlowControl(transport)
        own, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        self.server = (own, None) if isinstance(own, str) else _parse_address(own)
        self.client = _parse_address(peer)
        self.scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
        self._tls_extension = build_tls_extension(transport) if self.scheme == "https" else None

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn cancels it only after an orderly end, and it holds this protocol.
        self._unset_keepalive_if_required()
        self._cancel_timer()
        self._cancel_half_close_timer()
        self.finish_handshake()
        self._withdraw_offer()
        self._waiting_start = None
        self._release_all_memory()
        # uvicorn notifies the latest request only, which may be pipelined behind the one that runs.
        running = self.running_cycle
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        self.running_cycle = None
        if self.open_connection is not None:
            self.open_connection()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self.flow.write_paused:  # its response would wait behind what the client does not read
            self._waiting_start = cycle, app
            return
        self.running_cycle = cycle
        if cycle.scope["http_version"] == "1.0":
            app = head.wrap_for_http10(app, cycle, self.abort_response)
        super()._start_asgi_task(cycle, app)

    # The bytes that it holds.

    def pause_writing(self) -> None:
        """Count the bytes that the client does not read."""
        super().pause_writing()
        hold_unsent(self.CLIENT_MEMORY, self, self.transport)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.CLIENT_MEMORY.release(HeldPart.UNSENT, self)
        if self._waiting_start is not None:
            (cycle, app), self._waiting_start = self._waiting_start, None
            if not self.transport.is_closing():  # or its response would be dropped
                self._start_asgi_task(cycle, app)

    def _count_received(self) -> None:
        """Count the bytes of requests, once they are more than a few."""
        if self._ignores_input:
            return
        size = self._request_bytes
        if self.phase is HEAD:
            size += self._received_bytes + head.HEADER_BYTES * len(self.headers)
        if size > MAX_UNCOUNTED_BYTES:
            self.CLIENT_MEMORY.hold(HeldPart.RECEIVED, self, size)

    def release_memory(self) -> None:
        """Disconnect the client. See `Holder`."""
        self.abort_response()

    def abort_response(self) -> None:
        """Disconnect the client, which must not take the response that runs for complete.

        One of HTTP/1.0 may end with the connection, so that only a reset says that it failed.
        """
        cycle = self.running_cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.scope["http_version"] == "1.0" and not self.transport.is_closing():
                connection = self.transport.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.abort()

    def _release_all_memory(self) -> None:
        self.CLIENT_MEMORY.release(HeldPart.RECEIVED, self)
        self.CLIENT_MEMORY.release(HeldPart.UNSENT, self)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether the connection stays open after the client has closed its side.

        The client may have closed only its side and wait for its response, or it may be gone. Both
        look the same until something is written: a peer that is gone answers that with a reset,
        which the write after it reports. So probes are written until the response begins.

        Under TLS a connection has no halves, and is closed.
        """
        awaits_response = self.phase is IDLE and self._open_requests and not self._ignores_input
        if not awaits_response or self.scheme == "https":
            return False
        running = self.running_cycle
        if running is not None and running.scope["extensions"].get(DISCONNECT_AT_EOF):
            return False
        if not self._is_half_closed:
            self._is_half_closed = True
            self.cycle.keep_alive = False
            self._half_close_timer = self.loop.call_later(
                self.FIRST_PROBE_DELAY_S, self._send_probe, 2 * self.FIRST_PROBE_DELAY_S
            )
        if running is not None and running.response_started and not running.response_complete:
            self._limit_half_closed(running)
        return True

    def _cancel_half_close_timer(self) -> None:
        if self._half_close_timer is not None:
            self._half_close_timer.cancel()
            self._half_close_timer = None

    def _limit_half_closed(self, cycle: RequestResponseCycle) -> None:
        """Limit the time of a response that has begun, as it cannot be probed."""
        self._cancel_half_close_timer()
        self._half_close_timer = self.loop.call_later(
            self.HALF_CLOSED_TIMEOUT_S, self._end_half_closed, cycle
        )

    def _end_half_closed(self, cycle: RequestResponseCycle) -> None:
        is_running = self.running_cycle is cycle and not cycle.response_complete
        if is_running and not self.transport.is_closing():
            self._close_within_response(cycle)

    def _close_within_response(self, cycle: RequestResponseCycle) -> None:
        """Send what waits of a response and close, if its client notices that more was to come."""
        if cycle.scope["http_version"] == "1.0":
            self.abort_response()
        else:
            self.transport.close()

    def _send_probe(self, delay: float) -> None:
        """Write interim responses, which clients ignore, until the response begins (RFC 9110 15.2).

        A client that is gone answers the first one with a reset, and writing the second one reports
        that. Its request is then disconnected: a poll would take records for nobody. `delay`, the
        seconds until the next one, doubles each time.
        """
        running = self.running_cycle
        if not self._open_requests or self.transport.is_closing():
            return
        if self._waiting_start is None and running is not None:
            if running.response_started:
                self._limit_half_closed(running)
                return
            if running.scope["http_version"] != "1.0":  # which has no interim responses
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._half_close_timer = self.loop.call_later(delay, self._send_probe, 2 * delay)

    def data_received(self, data: bytes) -> None:
        """Parse data, and refuse what is malformed or too much."""
        if self._ignores_input:
            return
        self._unset_keepalive_if_required()
        self._part_bytes += len(data)
        self._received_bytes = self._received_bytes + len(data) if self.phase is HEAD else len(data)
        trailing_data = None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._refuse(head.convert_parser_error(error))
            return
        except httptools.HttpParserUpgrade as upgrade:
            trailing_data = data[upgrade.args[0] :]
        # This is not done in the `except` block: Python would make HttpParserUpgrade the context of
        # any error in it, and `convert_parser_error` needs the context that httptools has set.
        if trailing_data is not None:
            self._handle_upgrade(trailing_data)
        self._count_received()
        # Without an open request it is checked while idle, too: line breaks may come, which begin
        # no message, and the client has to send its head in time all the same.
        if self.phase is not IDLE or not self._open_requests:
            self._check_progress()
        elif self.deadline_timer is not None:
            self._cancel_timer()

    def _handle_upgrade(self, trailing_data: bytes) -> None:
        if self._should_upgrade():
            self._switch_to_websocket(trailing_data)
        elif trailing_data:
            # Other protocols are not offered. The request is answered as HTTP/1.1 (RFC 9110 7.8;
            # curl --http2 asks for an upgrade), and the parser continues behind it. This cannot
            # recurse deeply, as an upgrade behind an unanswered request is refused.
            self.data_received(trailing_data)

    def _switch_to_websocket(self, trailing_data: bytes) -> None:
        """Give the connection to a `WebSocketProtocol`, with the head that was parsed.

        uvicorn would write the head again, for the WebSocket library to parse. The library's limits
        are lower than ours: a token of 9 KB would be too long.
        """
        self._cancel_timer()
        self._withdraw_offer()
        self._release_all_memory()
        self._ignores_input = True
        self.connections.discard(self)
        protocol_class = cast("type[Any]", self.ws_protocol_class)
        protocol = protocol_class(self.config, self.server_state, self.app_state)
        self.parser = None  # type: ignore[assignment]  # or it and this protocol would be a cycle
        protocol.start_handshake(
            self.transport,
            self.scope,
            self.url,
            trailing_data,
            self.hand_connection_over(),
            self.CLIENT_MEMORY,
        )
        self.transport.set_protocol(protocol)

    def hand_connection_over(self) -> OpenConnection | None:
        connection, self.open_connection = self.open_connection, None
        return None if connection is None else connection.hand_over()

    # Connections that streams take over (`outlet`).

    def create_outlet(self, owner: OutletOwner) -> HttpOutlet | None:
        """Give the connection to a stream; None if the response that runs cannot be taken over."""
        cycle = self.running_cycle
        if cycle is None or not self._can_take_over(cycle):
            return None
        self._withdraw_offer()
        self.flow.resume_reading()
        # To uvicorn it looks as if the client had disconnected after a complete response: what the
        # application still sends is dropped, and it may return without an error.
        cycle.disconnected = cycle.response_complete = True
        cycle.message_event.set()
        self.connections.discard(self)
        self._cancel_half_close_timer()
        self._release_all_memory()
        outlet = HttpOutlet(self, owner, keep_alive=cycle.keep_alive)
        if self._is_half_closed:
            self.loop.call_soon(outlet.eof_received)
        self.parser = None  # type: ignore[assignment]  # or it and this protocol would be a cycle
        return outlet

    def _can_take_over(self, cycle: RequestResponseCycle) -> bool:
        """Return whether a response has begun in chunks, and its request is complete.

        Complete requests behind it are no concern here, since they have withdrawn its offer.
        """
        may_have_chunks = cycle.scope["method"] != "HEAD" and cycle.scope["http_version"] == "1.1"
        if not (may_have_chunks and cycle.chunked_encoding) or cycle.response_complete:
            return False
        # `chunked_encoding` is set when the response begins. A phase other than idle means that the
        # body of the request, or a request behind it, is not complete.
        return self.phase is IDLE and not self.transport.is_closing()

    def resume_http(
        self,
        transport: asyncio.Transport,
        pipelined: bytes | None,
        *,
        full: bool,
        open_connection: OpenConnection | None,
    ) -> None:
        """Serve a connection again after a stream. Called by `HttpOutlet` on a new protocol.

        `pipelined` has the bytes behind the request of the stream; None if they were too many.
        """
        self.open_connection = open_connection
        self._attach_transport(transport)
        transport.set_protocol(self)
        if full:
            self.pause_writing()
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
        """Check an incomplete request: refuse it if it is too large, else set its deadline."""
        if self._ignores_input:
            return
        if self.phase is HEAD and self._part_bytes > self.MAX_HEAD_BYTES:
            self._refuse(head.build_too_large(self.url, self.MAX_HEAD_BYTES))
        elif self.phase is BODY and self._part_bytes > self._max_body_bytes + self.MAX_HEAD_BYTES:
            self._refuse(self._build_body_too_large())
        elif self.deadline_timer is None:  # the deadline stays where the first piece has set it
            seconds = self._body_timeout_s if self.phase is BODY else self.HEAD_TIMEOUT_S
            if seconds != math.inf:
                self._start_timer(seconds)

    # Callbacks of the parser. An error that is raised here leaves `feed_data` as the context of an
    # HttpParserError.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.phase, self._is_websocket_upgrade = HEAD, None
        self._part_bytes = 0
        if self.deadline_timer is not None:
            self._cancel_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        # As uvicorn does, but bounded: calling its method would take 1 us more of a head.
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        if len(self.headers) >= head.MAX_HEADERS:
            is_trailer = self.phase is BODY
            raise self._build_body_too_large() if is_trailer else head.build_too_many_headers()
        self.headers.append((name, value))

    def _should_upgrade(self) -> bool:
        if self._is_websocket_upgrade is None:  # kept, as uvicorn calls this four times
            self._is_websocket_upgrade = super()._should_upgrade()
        return self._is_websocket_upgrade

    def on_headers_complete(self) -> None:
        """Check a head, and start or queue its request."""
        if self.on_handshake_done is not None:
            self.finish_handshake()
        self._check_request()
        previous_cycle = self.cycle
        super().on_headers_complete()
        if self.cycle is previous_cycle:  # uvicorn creates none for a WebSocket
            return
        self.phase = BODY
        headers_bytes = head.HEADER_BYTES * len(self.headers)
        if max(self._received_bytes, headers_bytes) > MAX_UNCOUNTED_BYTES:
            self._request_bytes += head.head_size(self.url, self.headers) + headers_bytes
        self._part_bytes = self._body_size = 0
        if self.deadline_timer is not None:
            self._cancel_timer()
        self._open_requests += 1
        # A connection with another request behind the one that runs cannot be taken over.
        self._withdraw_offer()
        self._takeover_offer = TakeoverOffer(self)
        self.scope["extensions"] = {TAKEOVER: self._takeover_offer}  # type: ignore[dict-item]
        if self._tls_extension is not None:
            self.scope["extensions"][TLS_EXTENSION] = self._tls_extension  # type: ignore[assignment]
        if self.open_connection is not None:
            self.scope["extensions"][OPEN_CONNECTION] = self.open_connection  # type: ignore[assignment]
            if self.open_connection.refusal is not None:
                self.cycle.keep_alive = False
        # The parser reports trailers as headers, too. They go to a list of their own, since those
        # of the application are complete. An upgrade has no body, and so no trailers.
        if not self.parser.should_upgrade():
            self.headers = []

    def on_chunk_header(self) -> None:
        self._part_bytes += head.CHUNK_BYTES
        if self._part_bytes > self._max_body_bytes + self.MAX_HEAD_BYTES:
            raise self._build_body_too_large()

    def on_body(self, body: bytes) -> None:
        self._body_size += len(body)
        if self._body_size > self._max_body_bytes:
            raise self._build_body_too_large()
        # A stream is not kept, nor what comes after the response.
        if self._body_timeout_s != math.inf and not self.cycle.response_complete:
            self._request_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.phase = IDLE
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete:
            self._release_request()

    def on_response_complete(self) -> None:
        """Start the next request, or send the refusal that has waited."""
        self._open_requests -= 1
        super().on_response_complete()
        if self._open_requests:
            self._recount_requests()
        else:
            self._pipelined_bytes = 0
            self._release_request()
            if self.open_connection is not None and self.open_connection.refusal is not None:
                self.transport.close()
        if (
            self._pending_refusal is not None
            and not self._open_requests
            and not self.transport.is_closing()
        ):
            self._send_refusal(self._pending_refusal)

    def _recount_requests(self) -> None:
        """Count the requests that are not answered; none of their bodies was read yet."""
        cycles = [cycle for cycle, _ in self.pipeline]
        self._pipelined_bytes = sum(
            head.head_size(each["raw_path"] + each["query_string"], list(each["headers"]))
            for each in (cycle.scope for cycle in cycles)
        )
        next_cycle = self.running_cycle if self._waiting_start is None else self._waiting_start[0]
        if next_cycle is not None:
            cycles.append(next_cycle)
        if self._request_bytes:
            self._request_bytes = sum(len(each.body) for each in cycles)
            self.CLIENT_MEMORY.hold(HeldPart.RECEIVED, self, self._request_bytes)

    def _release_request(self) -> None:
        """Drop the request that was answered, which uvicorn keeps until the next one.

        That is up to 64 KiB of each connection, for as long as the connection is idle.
        """
        if self.phase is BODY:  # what is left of it is still to be read
            return
        if self._request_bytes:
            self._request_bytes = 0
            self.CLIENT_MEMORY.release(HeldPart.RECEIVED, self)
        self._withdraw_offer()
        self.cycle = self.running_cycle = None  # type: ignore[assignment]
        if self.phase is IDLE:  # or they are of the next request
            self.scope = self.headers = None  # type: ignore[assignment]
            self.url = b""

    def finish_handshake(self) -> None:
        """Call `on_handshake_done`, unless it was called before."""
        callback, self.on_handshake_done = self.on_handshake_done, None
        if callback is not None:
            callback()

    def _check_request(self) -> None:
        url = self.url
        if (
            self._received_bytes > self.MAX_HEAD_BYTES
            and head.head_size(url, self.headers) > self.MAX_HEAD_BYTES
        ):
            raise head.build_too_large(self.url, self.MAX_HEAD_BYTES)
        head.check_query(url)
        length = head.parse_body_length(self.parser.get_http_version(), self.headers)
        if url[:1] != b"/" or b"#" in url:
            self.url = head.to_origin_form(self.parser.get_method(), url, self.headers)
        if self.CO_HOSTED_APP is not None:
            self._body_limits = self._get_body_limits(self.CO_HOSTED_APP)
        if length is not None and length > self._max_body_bytes:
            raise self._build_body_too_large()
        if self._open_requests:
            self._check_pipelined()
        if self.parser.should_upgrade() and (length != 0 or self._open_requests):
            # The parser does not read the body of an upgrade: its bytes would be parsed as the next
            # request, which is a way to smuggle one.
            raise head.build_bad_request("an upgrade with a body or behind an unanswered request")

    def _check_pipelined(self) -> None:
        self._pipelined_bytes += head.head_size(self.url, self.headers)
        for count, limit, what in (
            (self._open_requests, self.MAX_PIPELINED_REQUESTS, "requests"),
            (self._pipelined_bytes, self.MAX_PIPELINED_BYTES, "bytes"),
        ):
            if count > limit:
                detail = f"more than {limit} {what} wait on this connection; open another"
                raise RequestError(429, "Too many pipelined requests", detail)

    def _get_body_limits(self, co_hosted_app: CoHostedApp) -> tuple[float, float] | None:
        """Return the co-hosted app's bytes and seconds for this body; None if it is not its own."""
        path = unquote(self.url.partition(b"?")[0].decode("latin-1"))
        if not co_hosted_app.owns_path(path):
            return None
        content_type = next((value for name, value in self.headers if name == b"content-type"), b"")
        return co_hosted_app.get_body_limits(path, content_type)

    @property
    def _max_body_bytes(self) -> float:
        return self.MAX_BODY_BYTES if self._body_limits is None else self._body_limits[0]

    @property
    def _body_timeout_s(self) -> float:
        return self.BODY_TIMEOUT_S if self._body_limits is None else self._body_limits[1]

    # Refusals, in the order of the requests.

    def _refuse(self, error: RequestError) -> None:
        """Read no more requests, send a problem behind the responses that are due, and close."""
        self._ignores_input = True
        self._cancel_timer()
        host, port = self.client or ("-", 0)
        log.info("refused %s:%d: %d %s: %s", host, port, error.status, error.title, error)
        if self.phase is BODY:
            self._refuse_body(error)
        elif self._open_requests:
            self._queue_refusal(error)
        else:
            self._send_refusal(error)

    def _refuse_body(self, error: RequestError) -> None:
        """Refuse a request that was started or queued already, as far as that is possible."""
        if self.cycle.response_complete:  # the application did not need the body
            self._linger()
        elif self._open_requests > 1:
            # It is queued behind another one: the newest is on the left. The refusal replaces it.
            self.pipeline.popleft()
            self._open_requests -= 1
            self._queue_refusal(error)
        elif self.cycle.response_started:
            # The head of another response is out. Only a broken connection says that it failed.
            self._close_within_response(self.cycle)
        else:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._send_refusal(error)

    def _queue_refusal(self, error: RequestError) -> None:
        self._pending_refusal = error
        self.flow.pause_reading()

    def _send_refusal(self, error: RequestError) -> None:
        if self._body_limits is not None and self.CO_HOSTED_APP is not None:
            content_type, body = self.CO_HOSTED_APP.format_error(error)
        else:
            problem = {"title": error.title, "status": error.status, "detail": str(error)}
            content_type, body = "application/problem+json", json.dumps(problem).encode()
        response_head = head.format_refusal(
            error.status, content_type, len(body), self.server_state.default_headers
        )
        if self.phase is not IDLE and self.parser.get_method() == b"HEAD":
            body = b""  # RFC 9110 9.3.2
        self.transport.write(response_head + body)
        self._linger()

    def _linger(self) -> None:
        """Close our side, and discard input until the client closes its own, or for `LINGER_S`."""
        self._unset_keepalive_if_required()
        half_close(self.transport)
        self.flow.resume_reading()
        self.deadline_timer = self.loop.call_later(self.LINGER_S, self.transport.abort)

    def _build_body_too_large(self) -> RequestError:
        detail = f"the body, or its chunk framing, is over {self._max_body_bytes} bytes; send less"
        return RequestError(413, "Content too large", detail)

    # Deadlines. A request that comes complete in one piece never starts a timer.

    def _start_timer(self, seconds: float) -> None:
        self.deadline_timer = self.loop.call_later(seconds, self._on_timeout)

    def _cancel_timer(self) -> None:
        if self.deadline_timer is not None:
            self.deadline_timer.cancel()
            self.deadline_timer = None

    def _on_timeout(self) -> None:
        self.deadline_timer = None
        if self.transport.is_closing():
            return
        # While reading is paused the client cannot complete its request: that is not its fault.
        if self.flow.read_paused:
            self._start_timer(self.HEAD_TIMEOUT_S)
        elif self.phase is IDLE:
            self.transport.close()
        else:
            part, seconds = self.phase.value, self.HEAD_TIMEOUT_S
            if self.phase is BODY:
                seconds = self._body_timeout_s
            detail = f"the request's {part} was not complete after {seconds:g} s; send it again"
            self._refuse(RequestError(408, "Request timeout", detail))


def _parse_address(sockaddr: Any) -> tuple[str, int] | None:
    if not isinstance(sockaddr, tuple):
        return None
    host = sockaddr[0]
    return (host.removeprefix("::ffff:") if "." in host else host), sockaddr[1]
