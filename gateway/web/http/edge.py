"""Configure uvicorn for each port of a process.

A port speaks HTTP by our protocol and TLS by our listener. uvicorn's own logging, access log,
`Server` header and proxy headers are off. With a uvicorn that `uvicorn_internals` does not know, a
port speaks HTTP by uvicorn's protocol on h11, since the one on httptools has no limit on heads.
"""

from __future__ import annotations

import asyncio
import math
import socket
import sys
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from starlette.types import ASGIApp

from gateway.client_memory import ClientMemory
from gateway.config import Settings
from gateway.web.app.assets import CoHostedApp
from gateway.web.routing.limits import Limits, PortLimits
from gateway.web.workers.sockets import LISTEN_BACKLOG
from gateway.wire.message_reader import MessageReader

from .proxy_headers import ForwardedMiddleware, HostCheckMiddleware, TrustedProxies
from .tls_listener import TlsListener
from .uvicorn_internals import find_missing_internals

if TYPE_CHECKING:
    from gateway.web.websocket.protocol import WebSocketProtocol

FALLBACK_MAX_HEAD_BYTES = 64 * 1024  # as in `GatewayProtocol`
USER_TIMEOUT_S = 60.0
"""Seconds after which the kernel ends a connection whose peer acknowledges nothing.

A peer that vanished without a FIN (a phone out of reach) holds its stream until then, and for 15
minutes by default. This is two to four heartbeats. Linux also counts the time in which the peer's
receive window stays closed, so a client that reads nothing for this long is disconnected; its
resume token brings it back without loss."""


class EdgeServer(uvicorn.Server):
    """The uvicorn server of one port, whose TLS connections come from a `TlsListener`."""

    def __init__(self, config: uvicorn.Config, listener: TlsListener | None = None) -> None:
        super().__init__(config)
        self._listener = listener

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._listener is None:
            await super().startup(sockets)
            return
        # uvicorn starts without sockets. As one of its servers, the listener is closed and waited
        # for like those that uvicorn creates itself.
        await super().startup([])
        self._listener.start(self._create_protocol)
        self.servers.append(cast("Any", self._listener))

    def _create_protocol(self) -> asyncio.Protocol:
        """Return the protocol for a connection, as uvicorn creates it."""
        protocol_class: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = protocol_class(
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        return protocol


def configure_socket(listening_socket: socket.socket, user_timeout_s: float | None = None) -> None:
    """Set the options of a listening socket, which its connections inherit.

    To set them on each connection would take 3 us of a connect.
    """
    if listening_socket.family == socket.AF_UNIX:
        return
    # asyncio turns Nagle's algorithm off by itself, but not if the listening socket was created
    # with protocol 0. Small events would then wait for the acknowledgement of the last one.
    listening_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":
        timeout_ms = int((user_timeout_s or USER_TIMEOUT_S) * 1000)
        listening_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)


def create_port_limits(settings: Settings, limits: Limits, port: str = "") -> PortLimits:
    """Return the limits of a port.

    A trusted proxy is exempt from the limits of one address, as its connections are those of many
    clients.
    """
    proxies = settings.listen.forwarded
    return PortLimits(limits, port, TrustedProxies(() if proxies is False else proxies).is_trusted)


def create_uvicorn_config(
    app: ASGIApp,
    settings: Settings,
    co_hosted_app: CoHostedApp | None = None,
    *,
    port_limits: PortLimits | None = None,
    client_memory: ClientMemory | None = None,
    allowed_names: frozenset[str] | None = None,
    websocket_protocol: type[WebSocketProtocol] | None = None,
    **options: Any,
) -> uvicorn.Config:
    proxies = settings.listen.forwarded
    if proxies is not False:
        app = forwarded = ForwardedMiddleware(app, proxies)
    if allowed_names is not None:
        # Names that the operator listed are required of proxies, too.
        exempts_proxies = proxies is not False and not settings.listen.hosts
        # It wraps ForwardedMiddleware, so that it sees the address of the peer.
        app = HostCheckMiddleware(
            app,
            allowed_names,
            forwarded.proxies.is_trusted if exempts_proxies else lambda peer: False,
        )
    return uvicorn.Config(
        app,
        **_choose_protocols(
            co_hosted_app, port_limits, client_memory or ClientMemory(), websocket_protocol
        ),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=LISTEN_BACKLOG,
        timeout_keep_alive=math.ceil(settings.listen.keep_alive_timeout),
        **options,
    )


def _choose_protocols(
    co_hosted_app: CoHostedApp | None,
    port_limits: PortLimits | None,
    client_memory: ClientMemory,
    websocket_protocol: type[WebSocketProtocol] | None,
) -> dict[str, Any]:
    """Return uvicorn's options for our protocols, or for its own if it lacks what ours need."""
    if not find_missing_internals():
        # Only a uvicorn that is known can import it.
        from .transport import GatewayProtocol

        constants = {
            "CO_HOSTED_APP": co_hosted_app,
            "PORT_LIMITS": port_limits,
            "CLIENT_MEMORY": client_memory,
        }
        return {
            "http": type("Protocol", (GatewayProtocol,), constants),
            "ws": "none" if websocket_protocol is None else websocket_protocol,
        }
    return {
        "http": "h11",
        "h11_max_incomplete_event_size": FALLBACK_MAX_HEAD_BYTES,
        "ws": "none" if websocket_protocol is None else "auto",
        "ws_max_size": MessageReader.MAX_MESSAGE_BYTES,
    }
