"""Serve operators on a port of their own, in the process that serves clients."""

from __future__ import annotations

import asyncio
import socket

from starlette.types import ASGIApp

from gateway.config import Settings
from gateway.config.types.address import is_loopback
from gateway.errors import GatewayError
from gateway.telemetry.logs import announce
from gateway.web.http.certificate import TlsContext
from gateway.web.http.edge import (
    EdgeServer,
    configure_socket,
    create_port_limits,
    create_uvicorn_config,
)
from gateway.web.http.tls_listener import TlsListener
from gateway.web.routing.limits import Limits
from gateway.web.workers.sockets import bind, format_url


def bind_admin_socket(
    settings: Settings, inherited: socket.socket | None = None
) -> socket.socket | None:
    """Bind the port of operators, and print its URL; None if there is no admin API.

    A port that other machines reach must have guards.
    """
    admin = settings.admin
    if admin is None:
        return None
    try:
        listening = bind(admin.host, admin.port) if inherited is None else inherited
    except GatewayError as exc:
        raise GatewayError(str(exc).replace("listen.port", "admin.port")) from None
    host = listening.getsockname()[0]
    # Checked after binding: localhost may be any address, by /etc/hosts.
    if not admin.guarded and not is_loopback(host):
        listening.close()
        raise GatewayError(
            f"admin.host {admin.host} is {host}, which lets other machines in, and nobody is asked "
            "who they are; add admin.guarded, or use 127.0.0.1"
        )
    announce(f"admin on {format_url(listening, tls=uses_tls(settings))}")
    return listening


def uses_tls(settings: Settings) -> bool:
    """Return whether the port has TLS, with the certificate of `listen`; not on loopback."""
    admin, tls = settings.admin, settings.listen.tls
    return tls is not None and admin is not None and not is_loopback(admin.host)


class _AdminServer(EdgeServer):
    """A server without signal handlers and start message, which the server of clients has."""

    def _log_started_message(self, listeners: object) -> None:
        pass


async def serve_admin(
    app: ASGIApp,
    settings: Settings,
    listening_socket: socket.socket,
    tls: TlsContext | None,
    limits: Limits,
) -> None:
    """Serve operators until cancelled; then requests in progress have one more second."""
    tls_listener = None
    port_limits = create_port_limits(settings, limits, "admin")
    if tls is not None and uses_tls(settings):
        tls_listener = TlsListener(listening_socket, tls.context, port_limits)
    config = create_uvicorn_config(
        app, settings, port_limits=port_limits, lifespan="off", timeout_graceful_shutdown=1
    )
    config.load()
    configure_socket(listening_socket)
    server = _AdminServer(config, tls_listener)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listening_socket])
    # uvicorn's `serve` would install signal handlers; these are the other steps of it.
    main_loop = asyncio.create_task(server.main_loop())
    try:
        await asyncio.shield(main_loop)
    finally:
        # It exits by its flag and is not cancelled, so that its last tick is complete.
        server.should_exit = True
        await main_loop
        await server.shutdown(sockets=[listening_socket])
