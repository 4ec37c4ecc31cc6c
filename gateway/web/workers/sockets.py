"""Bind the port, for one process or for several that share it.

Each of several workers has a listening socket of its own (SO_REUSEPORT). The kernel distributes
connections among them, and none waits for a lock or is woken for nothing. Closing a socket resets
the connections that are not accepted from it yet, so the process that outlives the workers holds
the sockets, too.
"""

from __future__ import annotations

import socket

from gateway.config import Settings
from gateway.config.checks.sidecar import EXPOSED_MESSAGE
from gateway.config.types.address import is_loopback
from gateway.errors import GatewayError

LISTEN_BACKLOG = 2048  # connections that wait to be accepted


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket on a port that no other process can share by accident."""
    return _start_listening(_bind_exclusive(host, port))


def bind_shared(host: str, port: int, count: int) -> list[socket.socket]:
    """Return this many listening sockets on one port, which no other gateway shares."""
    if not hasattr(socket, "SO_REUSEPORT"):
        raise GatewayError(
            "this system has no SO_REUSEPORT, by which workers share a port; set listen.workers: 1"
        )
    # Bound before it allows sharing: a port that somebody else has, shared or not, is refused.
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
    """Return one more listening socket on a shared port."""
    sock = _create_socket(host, port)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return _start_listening(_bind_socket(sock, host, port))


def refuse_exposed_sidecar(settings: Settings, listening_socket: socket.socket) -> None:
    """Refuse to serve an unguarded sidecar to other machines.

    The address that was bound is checked, because a name such as localhost may mean any address.
    The configuration is refused in the same way if it names such an address.
    """
    host = listening_socket.getsockname()[0]
    if settings.sidecar is not None and settings.sidecar.is_open and not is_loopback(host):
        listening_socket.close()
        raise GatewayError(f"{EXPOSED_MESSAGE} (listen.host {settings.listen.host} is {host})")


def format_url(listening_socket: socket.socket, *, tls: bool) -> str:
    host, port = listening_socket.getsockname()[:2]
    url_host = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{url_host}:{port}"


def _create_socket(host: str, port: int) -> socket.socket:
    """Return a socket of the address family of a host, for IPv4 if a name has addresses of both.

    `::` is every address of both families, as it is for systemd.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family = min(address[0] for address in found)  # AF_INET is the lesser one
        sock = socket.socket(family)
    except OSError as exc:
        raise _build_bind_error(host, port, exc) from None
    # SO_REUSEADDR lets a restarted gateway bind while old connections are in TIME_WAIT.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
    return sock


def _bind_exclusive(host: str, port: int) -> socket.socket:
    return _bind_socket(_create_socket(host, port), host, port)


def _bind_socket(sock: socket.socket, host: str, port: int) -> socket.socket:
    try:
        sock.bind((host, port))
    except OSError as exc:
        sock.close()
        raise _build_bind_error(host, port, exc) from None
    return sock


def _start_listening(sock: socket.socket) -> socket.socket:
    """Listen on a bound socket; of two that bound the same port at once, the second fails here."""
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
