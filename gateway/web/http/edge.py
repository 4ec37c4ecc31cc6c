"""Configure uvicorn for each port of a process.

A port speaks HTTP by our protocol and TLS by our listener. uvicorn's own logging, access log,
`Server` header and proxy headers are off.
"""

from __future__ import annotations

import socket
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from gateway.config import Settings
from gateway.web.app.co_hosted_app import CoHostedApp
from gateway.web.routing.limits import Limits
from gateway.web.workers.sockets import LISTEN_BACKLOG

from .certificate import TlsContext
from .hosts import HostCheckMiddleware
from .proxy_headers import ForwardedMiddleware, TrustedProxies
from .tls_listener import TlsListener
from .transport import GatewayProtocol


class EdgeServer(uvicorn.Server):
    """The uvicorn server of one port, whose TLS connections come from a `TlsListener`.

    `web/app/server.py` and `web/admin/listener.py` derive their servers from it.
    """

    def __init__(self, config: uvicorn.Config, listener: TlsListener | None = None) -> None:
        """Prepare a server, which does not listen yet.

        Args:
            config: The configuration by `create_uvicorn_config`.
            listener: The listener of the port, if it has TLS.
        """
        super().__init__(config)
        self._listener = listener

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, by uvicorn or by the TLS listener. Called by uvicorn."""
        if self._listener is None:
            await super().startup(sockets)
            return
        # uvicorn starts without sockets. As one of its servers, the listener is closed and waited
        # for like those that uvicorn creates itself.
        await super().startup([])
        self._listener.start(self._create_protocol)
        self.servers.append(cast("Any", self._listener))

    def _create_protocol(self) -> GatewayProtocol:
        """Return the protocol for a connection, as uvicorn creates it."""
        protocol_class = cast("type[GatewayProtocol]", self.config.http_protocol_class)
        return protocol_class(
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )


def create_tls_listener(
    listening_socket: socket.socket,
    tls_context: TlsContext,
    settings: Settings,
    limits: Limits,
    *,
    port: str = "",
) -> TlsListener:
    """Return the listener that accepts the connections of a port with TLS.

    A trusted proxy is exempt from the limits of one address, as its connections are those of many
    clients.

    Args:
        listening_socket: The bound socket.
        tls_context: The certificate.
        settings: The settings of the gateway, for the trusted proxies.
        limits: The limits that count the handshakes.
        port: A name for the port, where the process has several.
    """
    proxies = settings.listen.forwarded
    is_proxy = TrustedProxies(() if proxies is False else proxies).is_trusted
    return TlsListener(listening_socket, tls_context.context, limits, port=port, is_proxy=is_proxy)


def create_uvicorn_config(
    app: ASGIApp,
    settings: Settings,
    co_hosted_app: CoHostedApp | None = None,
    *,
    allowed_names: frozenset[str] | None = None,
    **options: Any,
) -> uvicorn.Config:
    """Return the configuration of uvicorn for a port.

    Args:
        app: The application of the port.
        settings: The settings of the gateway.
        co_hosted_app: A co-hosted app that `app` serves too, whose requests may have other bodies.
        allowed_names: The names that `Host` may have, as `get_allowed_names` returns them; None
            for any.
        options: Further options of `uvicorn.Config`.
    """
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
        http=type("Protocol", (GatewayProtocol,), {"CO_HOSTED_APP": co_hosted_app}),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=LISTEN_BACKLOG,
        **options,
    )
