"""A stream's way past HTTP: its connection, and nothing else that a request takes.

A response that has begun, in chunks, can be taken over: uvicorn's protocol, parser, cycle, scope
and task go, and the connection belongs to an outlet (`hub.outlet`), which writes what it is given
to the socket. When the stream is finished, HTTP goes on with what came meanwhile.

An application asks by the ASGI extension TAKEOVER, best through `take_over`. Without it, and where
a response cannot be taken, the stream's bytes go by `send` as ever.

A stream that was taken holds 170 bytes beside its transport. A write of 290 bytes takes 1.59 us,
1.53 of them in uvloop. `os.write` past the transport takes 1.38, but lets go of the interpreter's
lock: beside one thread that computes in Python it came back after 1500.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from .transport import GatewayProtocol

TAKEOVER = "gateway.takeover"
"""The ASGI extension, a callable: see `take_over`."""


class OutletOwner(Protocol):
    """Whose stream it is."""

    def on_drained(self) -> None:
        """The outlet was full, and no longer is."""

    def close(self) -> None:
        """The connection is lost."""

    def hand_over(self) -> None:
        """The client that wrote writes nothing more; another is to go on."""

    def probe(self) -> None:
        """Write something that whoever is there passes over."""


def take_over(scope: MutableMapping[str, Any], owner: OutletOwner) -> HttpOutlet | None:
    """The connection for `client`, to be asked for after `http.response.start` was sent; the
    application sends nothing more and returns.

    None if it cannot be had: another server; a middleware that holds the start of the response
    back; HEAD, HTTP/1.0 or a response that is not in chunks; a request that has not come whole,
    or has others behind it; a client that is gone.
    """
    offer = scope.get("extensions", {}).get(TAKEOVER)
    return None if offer is None else cast("HttpOutlet | None", offer(owner))


def buffer_head(scope: MutableMapping[str, Any]) -> BufferedHead:
    """For the block in which a response is begun and taken over."""
    offer = scope.get("extensions", {}).get(TAKEOVER)
    return BufferedHead(None if offer is None else offer.cycle)


class BufferedHead:
    """Stands for the transport of a response while it is entered: its head leaves together with
    what follows, in one write: 4 us of a connect."""

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
        """What was written meanwhile, for the caller to write."""
        held, self._buffer = self._buffer, b""
        return held

    # to uvicorn's cycle

    def write(self, data: bytes) -> None:
        self._buffer += data

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._transport.write(self.take_bytes())
        self._transport.close()


class TakeoverOffer:
    """What a scope has as TAKEOVER, until its request is over."""

    __slots__ = ("_protocol",)

    def __init__(self, protocol: GatewayProtocol) -> None:
        self._protocol: GatewayProtocol | None = protocol

    def __call__(self, owner: OutletOwner) -> HttpOutlet | None:
        return None if self._protocol is None else self._protocol.create_outlet(owner)

    @property
    def cycle(self) -> RequestResponseCycle | None:
        """Of the request, while it is offered and runs."""
        return None if self._protocol is None else self._protocol.running_cycle

    def withdraw(self) -> None:
        self._protocol = None


class _ClosedTransport(asyncio.Transport):
    """Stands for a transport that is lost, or that HTTP has back."""

    def is_closing(self) -> bool:
        return True


CLOSED_TRANSPORT = _ClosedTransport()


class HttpOutlet(asyncio.Protocol):
    """The protocol of a connection that was taken over; an outlet of the hub.

    full:  something waits in the transport's buffer, above 64 KiB under TLS.
    lasts: the connection goes on after the stream.
    """

    __slots__ = (
        "_app_state",
        "_config",
        "_keep_alive",
        "_owner",
        "_pipelined",
        "_protocol_class",
        "_server_state",
        "_transport",
        "full",
    )

    MAX_PIPELINED_BYTES = 64 * 1024
    """Of requests behind the stream; after more the connection ends with it."""

    PROBE_DELAYS_S = 0.1, 0.5, 2.0
    """After which a client that has ended its side is written to again."""

    # `_kept`: what came behind the stream's request; None if it was too much.
    # `_http`: makes the protocol that goes on.

    def __init__(self, protocol: GatewayProtocol, owner: OutletOwner, *, keep_alive: bool) -> None:
        self._protocol_class = type(protocol)
        self._config = protocol.config
        self._server_state = protocol.server_state
        self._app_state = protocol.app_state
        self._owner: OutletOwner | None = owner
        self._keep_alive = keep_alive
        self._pipelined: bytes | None = b""
        self._transport = transport = protocol.transport
        transport.set_protocol(self)
        # With TLS, asyncio and uvloop pause at `high`, else above it.
        transport.set_write_buffer_limits(high=1 if protocol.scheme == "https" else 0)
        self.full = transport.get_write_buffer_size() > 0
        self._server_state.connections.add(self)  # type: ignore[arg-type]

    @property
    def transport(self) -> asyncio.Transport:
        return self._transport

    def write(self, data: bytes) -> None:
        """Never blocks, never raises; what the socket does not take at once waits."""
        transport = self._transport
        if not transport.is_closing():
            transport.write(data)

    def finish(self, data: bytes) -> None:
        """The last bytes, the end of the chunks included. The client is not told anything from
        here on."""
        self.write(data)
        transport, kept, full = self._transport, self._pipelined, self.full
        self._detach()
        if transport.is_closing():
            return
        self._server_state.total_requests += 1
        if self._keep_alive:
            self._server_state.connections.discard(self)
            http = self._protocol_class(self._config, self._server_state, self._app_state)
            http.resume_http(transport, kept, full=full)
        else:
            transport.close()

    def hand_over(self) -> None:
        if self._owner is not None:
            self._owner.hand_over()

    def shutdown(self) -> None:
        """The server ends; the hub ends the stream."""
        self._keep_alive = False

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        # Not told from in here: asyncio loses a connection twice if a write fails meanwhile.
        self.full = False
        asyncio.get_running_loop().call_soon(self._notify_drained)

    def _notify_drained(self) -> None:
        if self._owner is not None and not self.full:
            self._owner.on_drained()

    def data_received(self, data: bytes) -> None:
        if self._pipelined is None:
            return
        if len(self._pipelined) + len(data) <= self.MAX_PIPELINED_BYTES:
            self._pipelined += data
        else:
            self._pipelined = None
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Return whether the connection stays open although the client says nothing more, as
        `GatewayProtocol.eof_received` does: the stream goes on for one that ended its side only."""
        transport = self._transport
        if self._owner is None or transport.get_extra_info("sslcontext") is not None:
            return False
        if not self._keep_alive and self._pipelined is None:
            return True  # said before: reading was paused and went on
        self._keep_alive, self._pipelined = False, None
        self._send_probe()
        loop = asyncio.get_running_loop()
        for seconds in self.PROBE_DELAYS_S:
            loop.call_later(seconds, self._send_probe)
        return True

    def _send_probe(self) -> None:
        if self._owner is not None and not self.full:
            self._owner.probe()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(self)
        client = self._owner
        self._detach()
        if client is not None:
            client.close()

    def _detach(self) -> None:
        self._transport = CLOSED_TRANSPORT
        self._owner = self._pipelined = None
