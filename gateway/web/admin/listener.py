"""The port of operators, beside that of clients, in the same process."""

from __future__ import annotations

import asyncio
import socket

from starlette.types import ASGIApp

from gateway.config import Settings
from gateway.config.checks.guards import is_loopback
from gateway.errors import GatewayError
from gateway.web.http.certificate import TlsContext
from gateway.web.http.edge import EdgeServer, edge, listen_tls
from gateway.web.http.transport import GatewayProtocol
from gateway.web.routing.limits import Limits
from gateway.web.workers.listening import address, bind


def open_port(settings: Settings) -> socket.socket | None:
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
    print(f"admin on {address(listening, tls=is_secure(settings))}", flush=True)
    return listening


def is_secure(settings: Settings) -> bool:
    """With the certificate of `listen`, where others come than this machine."""
    admin, tls = settings.admin, settings.listen.tls
    return tls is not None and admin is not None and not is_loopback(admin.host)


class _Server(EdgeServer):
    """Beside another, which has the process's signals and says that it runs."""

    def _log_started_message(self, listeners: object) -> None:
        pass


async def serve(
    app: ASGIApp,
    settings: Settings,
    listening: socket.socket,
    tls: TlsContext | None,
    limits: Limits,
) -> None:
    """Until it is cancelled; then what is under way is answered, for a second."""
    tls_listener = None
    if tls is not None and is_secure(settings):
        tls_listener = listen_tls(listening, tls, settings, limits, port="admin")
    config = edge(app, settings, ws="none", lifespan="off", timeout_graceful_shutdown=1)
    config.load()
    GatewayProtocol.prepare(listening)
    server = _Server(config, tls_listener)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listening])
    running = asyncio.create_task(server.main_loop())
    try:
        await asyncio.shield(running)
    finally:
        server.should_exit = True
        await running
        await server.shutdown(sockets=[listening])
