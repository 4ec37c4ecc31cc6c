"""Write a stream directly to its connection, past ASGI and uvicorn.

A response that has begun, in chunks, can be taken over. uvicorn's protocol, parser, cycle, scope
and task are then freed, and the connection belongs to an `HttpOutlet`, which writes the bytes that
the hub gives it to the socket. When the stream ends, a new protocol serves the requests that came
in the meantime.

An application asks for the connection by the ASGI extension `TAKEOVER`, best through `take_over`.
Without the extension, and where a response cannot be taken over, the application sends the bytes
of the stream by ASGI's `send`.

`run_while_connected` is for responses that are not taken over: it ends work with its connection.

A stream that was taken over holds 170 bytes beside its transport. A write of 290 bytes takes
1.59 us, 1.53 of them in uvloop. `os.write` past the transport takes 1.38 us, but it releases the
interpreter's lock: beside one thread that computes in Python it returned after 1500 us.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, MutableMapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

from starlette.requests import Request

from gateway.background_tasks import run_unless
from gateway.client_memory import ClientMemory, HeldPart, Holder
from gateway.core.client.terms import EndReason

from .tls import TlsTransport

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from .transport import GatewayProtocol


T = TypeVar("T")

TAKEOVER = "gateway.takeover"
"""Name of the ASGI extension. Its value is a callable that `take_over` calls."""


def hold_unsent(
    memory: ClientMemory, holder: Holder, transport: asyncio.Transport, data: bytes | None = None
) -> None:
    """Count the bytes that wait for a connection, after a write that it has not taken whole.

    uvloop keeps the bytes that were written, which many connections may share. TLS encrypts a few
    for each, and asyncio joins all that waits.
    """
    waiting = transport.get_write_buffer_size()
    if isinstance(transport, TlsTransport):
        copied = transport.copied_bytes
    else:
        copied = 0 if type(transport).__module__.startswith("uvloop") else waiting
    memory.hold_unsent(holder, waiting, copied, data)


def half_close(transport: asyncio.Transport) -> None:
    """Close our side and leave the client's open, which TLS cannot."""
    if transport.can_write_eof():
        with suppress(OSError):  # the client's socket is closed, and has answered with a reset
            transport.write_eof()


class OutletOwner(Protocol):
    """The stream that an outlet belongs to, as far as the outlet knows it."""

    def end(self, reason: EndReason) -> None: ...

    def on_drained(self) -> None:
        """Go on writing: the outlet was full, and no longer is."""

    def close(self) -> None: ...

    def hand_over(self) -> None:
        """Continue with another client: the present one writes nothing more."""

    def probe(self) -> None:
        """Write something that a client ignores, so that a peer that is gone is noticed."""


def take_over(scope: MutableMapping[str, Any], owner: OutletOwner) -> HttpOutlet | None:
    """Take the connection of a request over for a stream.

    To be called after `http.response.start` was sent. If it succeeds, the application must send
    nothing more and return.

    Returns:
        The outlet; None if the connection cannot be taken over. That is so with another ASGI
        server, with a middleware that holds the start of the response back, for HEAD, HTTP/1.0 and
        responses that are not in chunks, if the request is not complete or others are pipelined
        behind it, and if the client is gone.
    """
    offer = scope.get("extensions", {}).get(TAKEOVER)
    return None if offer is None else cast("HttpOutlet | None", offer(owner))


def abort_response(scope: MutableMapping[str, Any]) -> bool:
    """End a response that has begun, so that its client does not take it for complete.

    What is still sent is dropped. Return whether it was done, for which the server must be ours.
    """
    offer = scope.get("extensions", {}).get(TAKEOVER)
    return offer is not None and offer.abort_response()


def buffer_head(scope: MutableMapping[str, Any]) -> BufferedHead:
    """Return the context manager in which a response is begun and taken over."""
    offer = scope.get("extensions", {}).get(TAKEOVER)
    return BufferedHead(None if offer is None else offer.cycle)


class BufferedHead:
    """Hold the head of a response back, so that it is written together with the first event.

    While the context is entered it replaces the transport of uvicorn's cycle. One write instead of
    two saves 4 us of a connect. On exit, bytes that nobody took are written. Without the `TAKEOVER`
    extension it does nothing.
    """

    __slots__ = ("_buffer", "_cycle", "_transport")

    def __init__(self, cycle: RequestResponseCycle | None) -> None:
        self._cycle = cycle
        self._buffer = b""

    def __enter__(self) -> Self:
        if self._cycle is not None:
            self._transport = self._cycle.transport
            self._cycle.transport = cast("asyncio.Transport", self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._cycle is not None:
            self._cycle.transport = self._transport
        if self._buffer and not self._transport.is_closing():
            self._transport.write(self._buffer)

    def take_bytes(self) -> bytes:
        """Return the bytes that were held back. The caller must write them."""
        buffered, self._buffer = self._buffer, b""
        return buffered

    # The methods of a transport that uvicorn's cycle calls.

    def write(self, data: bytes) -> None:
        self._buffer += data

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._transport.write(self.take_bytes())
        self._transport.close()


class TakeoverOffer:
    """The value of the `TAKEOVER` extension in the scope of one request.

    Created by `GatewayProtocol`, which withdraws it when the request can no longer be taken over.
    A middleware may keep the scope for longer than that, so the offer then refers to nothing.
    """

    __slots__ = ("_protocol",)

    def __init__(self, protocol: GatewayProtocol) -> None:
        self._protocol: GatewayProtocol | None = protocol

    def __call__(self, owner: OutletOwner) -> HttpOutlet | None:
        return None if self._protocol is None else self._protocol.create_outlet(owner)

    def abort_response(self) -> bool:
        if self._protocol is None:
            return False
        self._protocol.abort_response()
        return True

    @property
    def cycle(self) -> RequestResponseCycle | None:
        """The cycle that runs on the connection; None once the offer was withdrawn."""
        return None if self._protocol is None else self._protocol.running_cycle

    def withdraw(self) -> None:
        self._protocol = None


class _ClosedTransport(asyncio.Transport):
    def is_closing(self) -> bool:
        return True

    def abort(self) -> None:
        """Do nothing; a timer may come after the end."""


CLOSED_TRANSPORT = _ClosedTransport()
"""Replaces a transport that is lost or was given back, so that a late write does nothing."""


class HttpOutlet(asyncio.Protocol):
    """The protocol of a connection that was taken over; an `Outlet` of the hub.

    Created by `GatewayProtocol.create_outlet`, and owned by its transport. It has an owner and a
    transport until the stream is finished or the connection is lost, and neither afterwards.

    Attributes:
        full: Whether bytes wait in the transport.
    """

    __slots__ = (
        "_app_state", "_config", "_keep_alive", "_open_connection", "_owner", "_pipelined",
        "_protocol_class", "_server_state", "_transport", "full",
    )  # fmt: skip

    MAX_PIPELINED_BYTES = 1024
    """How many bytes of further requests are kept for after the stream, as long as that is, and
    uncounted. If more come, none are kept, and the connection is closed with the stream."""

    PROBE_DELAYS_S = 0.1, 0.4, 1.5
    """When to write further probes to a client that has closed its side, each after the one before.
    Most clients are gone at the first."""

    def __init__(self, protocol: GatewayProtocol, owner: OutletOwner, *, keep_alive: bool) -> None:
        # These four create the protocol for the time after the stream, as uvicorn would.
        self._protocol_class = type(protocol)
        self._config = protocol.config
        self._server_state = protocol.server_state
        self._app_state = protocol.app_state
        self._owner: OutletOwner | None = owner
        self._keep_alive = keep_alive
        self._open_connection = protocol.hand_connection_over()
        # What the client sent behind the request of the stream; None once it was too much.
        self._pipelined: bytes | None = b""
        self._transport = transport = protocol.transport
        transport.set_protocol(self)
        transport.set_write_buffer_limits(high=0)  # full as soon as one byte waits
        self.full = transport.get_write_buffer_size() > 0
        if self.full:
            hold_unsent(protocol.CLIENT_MEMORY, self, transport)
        # uvicorn's server calls `shutdown` of all its connections, and waits for them.
        self._server_state.connections.add(self)  # type: ignore[arg-type]

    @property
    def transport(self) -> asyncio.Transport:
        """The connection; `CLOSED_TRANSPORT` when it is gone."""
        return self._transport

    def write(self, data: bytes) -> None:
        """Write bytes, or buffer those that the socket does not take at once.

        It never blocks and never raises. Without a connection it does nothing.
        """
        transport = self._transport
        if not transport.is_closing():
            transport.write(data)
            if self.full:
                hold_unsent(self._protocol_class.CLIENT_MEMORY, self, transport, data)

    def finish(self, data: bytes) -> None:
        """Write the last bytes of the stream, and give the connection back to HTTP or close it.

        The owner is not called from here on. `data` includes the last chunk of the response (RFC
        9112 7.1).
        """
        self.write(data)
        transport, pipelined, full = self._transport, self._pipelined, self.full
        self._detach()
        if transport.is_closing():
            return
        self._transport = transport  # until it is closed, or another protocol has it
        self._server_state.total_requests += 1
        if self._keep_alive:
            self._server_state.connections.discard(self)
            protocol = self._protocol_class(self._config, self._server_state, self._app_state)
            connection, self._open_connection = self._open_connection, None
            self._transport = CLOSED_TRANSPORT
            self._release_unsent()
            protocol.resume_http(transport, pipelined, full=full, open_connection=connection)
        else:
            transport.close()

    def hand_over(self) -> None:
        if self._owner is not None:
            self._owner.hand_over()

    def shutdown(self) -> None:
        """Close the connection after the stream. Called by uvicorn when the server shuts down.

        The hub ends the stream itself, as it drains.
        """
        self._keep_alive = False

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        """Mark the outlet as drained, and notify the owner."""
        self.full = False
        self._release_unsent()
        # The owner will write. If a write failed within this call, asyncio would call
        # `connection_lost` twice, so it is notified in the next turn of the loop.
        asyncio.get_running_loop().call_soon(self._notify_drained)

    def _release_unsent(self) -> None:
        self._protocol_class.CLIENT_MEMORY.release(HeldPart.UNSENT, self)

    def release_memory(self) -> None:
        """Disconnect a client that reads nothing. It resumes from the last id it has received."""
        if self._owner is not None:
            self._owner.end(EndReason.SLOW)
        self._transport.abort()

    def _notify_drained(self) -> None:
        if self._owner is not None and not self.full:
            self._owner.on_drained()

    def data_received(self, data: bytes) -> None:
        """Keep the requests that the client pipelines behind the stream."""
        if self._pipelined is None:
            return
        if len(self._pipelined) + len(data) <= self.MAX_PIPELINED_BYTES:
            self._pipelined += data
        else:
            self._pipelined = None
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Return whether the connection stays open after the client has closed its side.

        The stream continues for a client that has only closed its side; one that is gone is found
        by probes, as in `GatewayProtocol.eof_received`.
        """
        transport = self._transport
        if self._owner is None or transport.get_extra_info("sslcontext") is not None:
            return False
        if not self._keep_alive and self._pipelined is None:
            # This was called before: the transport reports EOF once more if reading was paused
            # and resumed.
            return True
        self._keep_alive, self._pipelined = False, None
        self._send_probe(self.PROBE_DELAYS_S)
        return True

    def _send_probe(self, next_delays_s: Sequence[float]) -> None:
        if self._owner is None:
            return
        if not self.full:
            self._owner.probe()
        if next_delays_s:
            first, *others = next_delays_s
            asyncio.get_running_loop().call_later(first, self._send_probe, others)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(self)
        owner = self._owner
        self._detach()
        self._release_unsent()
        if self._open_connection is not None:
            self._open_connection()
        if owner is not None:
            owner.close()

    def _detach(self) -> None:
        """Drop the connection and the owner, which also breaks the reference cycle with them."""
        self._transport = CLOSED_TRANSPORT
        self._owner = self._pipelined = None


async def run_while_connected(request: Request, work: Awaitable[T]) -> T:
    """Return the result of work; raise `Interrupted` if the client disconnects.

    The body of the request must have been read.
    """
    return await run_unless(work, _wait_for_disconnect(request))


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
