"""The port of operators, beside that of clients, in the same process."""

from __future__ import annotations

import asyncio
import socket

from starlette.types import ASGIApp

from gateway.config import Settings
from gateway.config.checks.guards import is_loopback
from gateway.errors import GatewayError
from gateway.web.http.certificate import TlsContext
from gateway.web.http.edge import EdgeServer, create_tls_listener, create_uvicorn_config
from gateway.web.http.transport import GatewayProtocol
from gateway.web.routing.limits import Limits
from gateway.web.workers.sockets import bind, format_url


def bind_admin_socket(settings: Settings) -> socket.socket | None:
    """Bound, and said; None where there is none. Raises GatewayError when it cannot be bound, or
    lets in other machines without guards."""
    admin = settings.admin
    if admin is None:
        return None
    try:
        listening = bind(admin.host, admin.port)
    except GatewayError as exc:
        raise GatewayError(str(exc).replace("listen.port", "admin.port")) from None
    host = listening.getsockname()[0]
    if not admin.guarded and not is_loopback(host):  # localhost may be any, by /etc/hosts
        listening.close()
        what = f"admin.host {admin.host} is {host}, which lets other machines in, and nobody is"
        raise GatewayError(f"{what} asked who they are; add admin.guarded, or use 127.0.0.1")
    print(f"admin on {format_url(listening, tls=uses_tls(settings))}", flush=True)
    return listening


def uses_tls(settings: Settings) -> bool:
    """With the certificate of `listen`, where others come than this machine."""
    admin, tls = settings.admin, settings.listen.tls
    return tls is not None and admin is not None and not is_loopback(admin.host)


class _AdminServer(EdgeServer):
    """Beside another, which has the process's signals and says that it runs."""

    def _log_started_message(self, listeners: object) -> None:
        pass


async def serve_admin(
    app: ASGIApp,
    settings: Settings,
    listening_socket: socket.socket,
    tls: TlsContext | None,
    limits: Limits,
) -> None:
    """Until it is cancelled; then what is under way is answered, for a second."""
    tls_listener = None
    if tls is not None and uses_tls(settings):
        tls_listener = create_tls_listener(listening_socket, tls, settings, limits, port="admin")
    config = create_uvicorn_config(
        app, settings, ws="none", lifespan="off", timeout_graceful_shutdown=1
    )
    config.load()
    GatewayProtocol.configure_socket(listening_socket)
    server = _AdminServer(config, tls_listener)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listening_socket])
    running = asyncio.create_task(server.main_loop())
    try:
        await asyncio.shield(running)
    finally:
        server.should_exit = True
        await running
        await server.shutdown(sockets=[listening_socket])
