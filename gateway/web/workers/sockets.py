"""The port, of one process or shared by several.

Each of several has a listening socket of its own (SO_REUSEPORT): the kernel deals connections out
among them, and none waits for a lock or is woken in vain. Closing one resets the connections that
nobody took from it yet, so whoever is to outlive the processes holds the sockets too.
"""

from __future__ import annotations

import socket

from gateway.config import Settings
from gateway.config.checks.guards import is_loopback
from gateway.config.checks.sidecar import EXPOSED_MESSAGE
from gateway.errors import GatewayError

LISTEN_BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; several gateways may not share one by accident.

    Raises GatewayError when it cannot be.
    """
    return _start_listening(_bind_exclusive(host, port))


def bind_shared(host: str, port: int, count: int) -> list[socket.socket]:
    """So many listening sockets on one port, 0 for a free one, and no other gateway's beside them.

    Raises GatewayError when that cannot be.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        raise GatewayError(
            "this system has no SO_REUSEPORT, by which workers share a port; set listen.workers: 1"
        )
    # Bound before it lets others in: a port that somebody has, shared or not, is refused.
    first = _bind_exclusive(host, port)
    first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    _start_listening(first)
    try:
        port = first.getsockname()[1]
        return [first, *(bind_additional(host, port) for _ in range(count - 1))]
    except GatewayError:
        first.close()
        raise


def bind_additional(host: str, port: int) -> socket.socket:
    """One more of a shared port. Raises GatewayError."""
    made = _create_socket(host)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return _start_listening(_bind_socket(made, host, port))


def refuse_exposed_sidecar(settings: Settings, listening_socket: socket.socket) -> None:
    """Refuse to serve an unguarded sidecar to other machines, by the address that `listen.host`
    turned out to be: a name such as localhost may be any.

    Raises:
        GatewayError: As the configuration is refused that names such an address.
    """
    host = listening_socket.getsockname()[0]
    if settings.sidecar is not None and settings.sidecar.is_open and not is_loopback(host):
        listening_socket.close()
        raise GatewayError(f"{EXPOSED_MESSAGE} (listen.host {settings.listen.host} is {host})")


def format_url(listening_socket: socket.socket, *, tls: bool) -> str:
    """Where it is reached, as a URL."""
    host, port = listening_socket.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{port}"


def _create_socket(host: str) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if made.family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return made


def _bind_exclusive(host: str, port: int) -> socket.socket:
    return _bind_socket(_create_socket(host), host, port)


def _bind_socket(sock: socket.socket, host: str, port: int) -> socket.socket:
    try:
        sock.bind((host, port))
    except OSError as exc:
        sock.close()
        raise _build_bind_error(host, port, exc) from None
    return sock


def _start_listening(sock: socket.socket) -> socket.socket:
    """Two that bound at once learn here that only one may have it."""
    host, port = sock.getsockname()[:2]
    try:
        sock.listen(LISTEN_BACKLOG)
    except OSError as exc:
        sock.close()
        raise _build_bind_error(host, port, exc) from None
    sock.setblocking(False)
    return sock


def _build_bind_error(host: str, port: int, exc: OSError) -> GatewayError:
    return GatewayError(
        f"cannot listen on {host}:{port} ({exc.strerror}); "
        "free it, or set listen.port (0 for any free one)"
    )
