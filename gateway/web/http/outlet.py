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


class Taker(Protocol):
    """Whose stream it is."""

    def drained(self) -> None:
        """The outlet was full, and no longer is."""

    def close(self) -> None:
        """The connection is lost."""

    def hand_over(self) -> None:
        """The client that wrote writes nothing more; another is to go on."""

    def probe(self) -> None:
        """Write something that whoever is there passes over."""


def take_over(scope: MutableMapping[str, Any], client: Taker) -> HttpOutlet | None:
    """The connection for `client`, to be asked for after `http.response.start` was sent; the
    application sends nothing more and returns.

    None if it cannot be had: another server; a middleware that holds the start of the response
    back; HEAD, HTTP/1.0 or a response that is not in chunks; a request that has not come whole,
    or has others behind it; a client that is gone.
    """
    offer = scope.get("extensions", {}).get(TAKEOVER)
    return None if offer is None else cast("HttpOutlet | None", offer(client))


def corked(scope: MutableMapping[str, Any]) -> Cork:
    """For the block in which a response is begun and taken over."""
    offer = scope.get("extensions", {}).get(TAKEOVER)
    return Cork(None if offer is None else offer.cycle)


class Cork:
    """Stands for the transport of a response while it is entered: its head leaves together with
    what follows, in one write: 4 us of a connect."""

    __slots__ = ("_cycle", "_held", "_transport")

    def __init__(self, cycle: RequestResponseCycle | None) -> None:
        self._cycle = cycle
        self._held = b""

    def __enter__(self) -> Self:
        if self._cycle is not None:
            self._transport = self._cycle.transport
            self._cycle.transport = cast("asyncio.Transport", self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._cycle is not None:
            self._cycle.transport = self._transport
        if self._held and not self._transport.is_closing():
            self._transport.write(self._held)

    def drawn(self) -> bytes:
        """What was written meanwhile, for the caller to write."""
        held, self._held = self._held, b""
        return held

    # to uvicorn's cycle

    def write(self, data: bytes) -> None:
        self._held += data

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._transport.write(self.drawn())
        self._transport.close()


class Offer:
    """What a scope has as TAKEOVER, until its request is over."""

    __slots__ = ("_protocol",)

    def __init__(self, protocol: GatewayProtocol) -> None:
        self._protocol: GatewayProtocol | None = protocol

    def __call__(self, client: Taker) -> HttpOutlet | None:
        return None if self._protocol is None else self._protocol.give_away(client)

    @property
    def cycle(self) -> RequestResponseCycle | None:
        """Of the request, while it is offered and runs."""
        return None if self._protocol is None else self._protocol.running

    def withdraw(self) -> None:
        self._protocol = None


class _Gone(asyncio.Transport):
    """Stands for a transport that is lost, or that HTTP has back."""

    def is_closing(self) -> bool:
        return True


GONE = _Gone()


class HttpOutlet(asyncio.Protocol):
    """The protocol of a connection that was taken over; an outlet of the hub.

    full:  something waits in the transport's buffer, above 64 KiB under TLS.
    lasts: the connection goes on after the stream.
    """

    __slots__ = (
        "_app_state",
        "_client",
        "_config",
        "_http",
        "_kept",
        "_lasts",
        "_server_state",
        "_transport",
        "full",
    )

    KEPT_BYTES = 64 * 1024
    """Of requests behind the stream; after more the connection ends with it."""

    PROBES_SECONDS = 0.1, 0.5, 2.0
    """After which a client that has ended its side is written to again."""

    # `_kept`: what came behind the stream's request; None if it was too much.
    # `_http`: makes the protocol that goes on.

    def __init__(self, before: GatewayProtocol, client: Taker, *, lasts: bool) -> None:
        self._http = type(before)
        self._config = before.config
        self._server_state = before.server_state
        self._app_state = before.app_state
        self._client: Taker | None = client
        self._lasts = lasts
        self._kept: bytes | None = b""
        self._transport = transport = before.transport
        transport.set_protocol(self)
        # With TLS, asyncio and uvloop pause at `high`, else above it.
        transport.set_write_buffer_limits(high=1 if before.scheme == "https" else 0)
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
        transport, kept, full = self._transport, self._kept, self.full
        self._forget()
        if transport.is_closing():
            return
        self._server_state.total_requests += 1
        if self._lasts:
            self._server_state.connections.discard(self)
            http = self._http(self._config, self._server_state, self._app_state)
            http.go_on(transport, kept, full=full)
        else:
            transport.close()

    def hand_over(self) -> None:
        if self._client is not None:
            self._client.hand_over()

    def shutdown(self) -> None:
        """The server ends; the hub ends the stream."""
        self._lasts = False

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        # Not told from in here: asyncio loses a connection twice if a write fails meanwhile.
        self.full = False
        asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        if self._client is not None and not self.full:
            self._client.drained()

    def data_received(self, data: bytes) -> None:
        if self._kept is None:
            return
        if len(self._kept) + len(data) <= self.KEPT_BYTES:
            self._kept += data
        else:
            self._kept = None
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Return whether the connection stays open although the client says nothing more, as
        `GatewayProtocol.eof_received` does: the stream goes on for one that ended its side only."""
        transport = self._transport
        if self._client is None or transport.get_extra_info("sslcontext") is not None:
            return False
        if not self._lasts and self._kept is None:
            return True  # said before: reading was paused and went on
        self._lasts, self._kept = False, None
        self._probe()
        loop = asyncio.get_running_loop()
        for seconds in self.PROBES_SECONDS:
            loop.call_later(seconds, self._probe)
        return True

    def _probe(self) -> None:
        if self._client is not None and not self.full:
            self._client.probe()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(self)
        client = self._client
        self._forget()
        if client is not None:
            client.close()

    def _forget(self) -> None:
        self._transport = GONE
        self._client = self._kept = None
