"""What each port of a process is to uvicorn: HTTP by our protocol, TLS by our listener, and no
words of its own."""

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
    """A server of one port, whose connections over TLS come from a listener of ours."""

    def __init__(self, config: uvicorn.Config, listener: TlsListener | None = None) -> None:
        """Serve nothing yet.

        Args:
            config: As of `edge`.
            listener: Of the port, if it has TLS.
        """
        super().__init__(config)
        self._listener = listener

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._listener is None:
            await super().startup(sockets)
            return
        await super().startup([])
        self._listener.start(self._create_protocol)
        self.servers.append(cast("Any", self._listener))

    def _create_protocol(self) -> GatewayProtocol:
        """Return one for a connection, as uvicorn does."""
        create = cast("type[GatewayProtocol]", self.config.http_protocol_class)
        return create(
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
    """Return what accepts the connections of a port with this certificate.

    A proxy that is believed has no bound of its own: its connections are those of many clients.
    """
    proxies = settings.listen.forwarded
    believes = TrustedProxies(() if proxies is False else proxies).is_trusted
    return TlsListener(listening_socket, tls_context.context, limits, port=port, is_proxy=believes)


def create_uvicorn_config(
    app: ASGIApp,
    settings: Settings,
    co_hosted_app: CoHostedApp | None = None,
    *,
    allowed_names: frozenset[str] | None = None,
    **options: Any,
) -> uvicorn.Config:
    """neighbour: what else the application serves. names: by which it may be asked for; any where
    there are none. options: further ones of `uvicorn.Config`."""
    proxies = settings.listen.forwarded
    if proxies is not False:
        app = forwarded = ForwardedMiddleware(app, proxies)
    if allowed_names is not None:
        # Whoever listed the names means them of proxies, too.
        by_proxy = proxies is not False and not settings.listen.hosts
        app = HostCheckMiddleware(
            app, allowed_names, forwarded.proxies.is_trusted if by_proxy else lambda peer: False
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
