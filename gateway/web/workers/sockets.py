"""Bind the port, for one process or for several that share it, or take it from systemd.

Each of several workers has a listening socket of its own (SO_REUSEPORT). The kernel distributes
connections among them, and none waits for a lock or is woken for nothing. Closing a socket resets
the connections that are not accepted from it yet, so the process that outlives the workers holds
the sockets, too.

A service manager may have bound the sockets before (systemd's socket activation). It passes them as
file descriptors from 3 on. LISTEN_FDS says how many, LISTEN_PID for which process, and
LISTEN_FDNAMES their names (sd_listen_fds(3)). It keeps them open while the gateway restarts, so
that clients wait in the queue of the kernel instead of being refused, and the gateway needs no
right to bind the port. PyPI's systemd-python does the same, but has to be compiled against
libsystemd.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping, Sequence
from typing import NamedTuple

from gateway.config import Settings
from gateway.config.sections.component_checks import EXPOSED_MESSAGE
from gateway.config.sections.reload import check_combination
from gateway.config.types.address import is_loopback
from gateway.errors import GatewayError

LISTEN_BACKLOG = 2048  # connections that wait to be accepted


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket on a port that no other process can share by accident."""
    return _start_listening(_bind_exclusive(host, port))


def require_free_port(host: str, port: int) -> None:
    """Refuse a port that another process has, before anything is started or announced."""
    _bind_exclusive(host, port).close()


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


FIRST_FD = 3  # SD_LISTEN_FDS_START
ADMIN_NAME = "admin"
_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


class InheritedSockets(NamedTuple):
    """The listening sockets of a service manager; the gateway binds those that are missing.

    The socket named `admin` is for operators. The others are for clients: one that all workers
    share, or one per worker, which `ReusePort=yes` and a `ListenStream=` for each make.
    """

    clients: Sequence[socket.socket] = ()
    admin: socket.socket | None = None

    def describe(self, url: str) -> str:
        return f"listening on {url}{', passed by the service manager' if self.clients else ''}"

    def apply_to(self, settings: Settings) -> Settings:
        """Return the settings with the addresses of the sockets in place of those of the file.

        A `ConfigError` refuses, for example, a guard for development where other machines can
        connect.
        """
        changes: dict[str, object] = {}
        if self.clients:
            changes["listen"] = settings.listen.model_copy(update=_read_address(self.clients[0]))
        if self.admin is not None and settings.admin is not None:
            changes["admin"] = settings.admin.model_copy(update=_read_address(self.admin))
        applied = settings.model_copy(update=changes)
        if changes:
            host = applied.listen.host
            check_combination(applied, f"the service manager passed a socket of {host}")
        return applied


NO_SOCKETS = InheritedSockets()


def take_inherited_sockets(
    settings: Settings, environ: MutableMapping[str, str] | None = None
) -> InheritedSockets:
    """Return the sockets that were passed to this process, and forget that they were.

    The variables are removed from `environ`, so that workers do not take the sockets once more.
    """
    environ = os.environ if environ is None else environ
    pid, count, names = (environ.get(name, "") for name in _VARIABLES)
    if pid != str(os.getpid()):  # none, or they are for the process that started this one
        return NO_SOCKETS
    for name in _VARIABLES:
        environ.pop(name, None)
    if not count.isdecimal():
        raise GatewayError(f"LISTEN_FDS is '{count}', which is no number of sockets")
    named = dict(enumerate(names.split(":")))
    clients: list[socket.socket] = []
    admin: socket.socket | None = None
    for index in range(int(count)):
        sock = _open_socket(FIRST_FD + index)
        if named.get(index) == ADMIN_NAME:
            if admin is not None:
                raise GatewayError(
                    f"two listening sockets named {ADMIN_NAME} were passed, and only one is used; "
                    "pass one"
                )
            admin = sock
        else:
            clients.append(sock)
    _check_sockets(settings, clients, admin)
    return InheritedSockets(clients, admin)


def copy_socket(clients: Sequence[socket.socket], worker: int) -> socket.socket:
    """Return the socket of one of several workers, which can be closed on its own."""
    return clients[(worker - 1) % len(clients)].dup()


def _check_sockets(
    settings: Settings, clients: Sequence[socket.socket], admin: socket.socket | None
) -> None:
    workers = settings.listen.workers
    if len(clients) not in (0, 1, workers):
        # Clients of a socket that no worker accepts from would wait for ever.
        raise GatewayError(
            f"{len(clients)} listening sockets were passed for {workers} workers; pass one, or one "
            "per worker (ListenStream=, with ReusePort=yes)"
        )
    addresses = sorted({format_url(sock, tls=False) for sock in clients})
    if len(addresses) > 1:
        # Each worker accepts from its own: clients of an address would have a part of the workers.
        raise GatewayError(
            f"the listening sockets of the workers have different addresses, {', '.join(addresses)}"
            "; pass one address, once or with ReusePort=yes for each worker"
        )
    if admin is not None and settings.admin is None:
        raise GatewayError(
            f"a listening socket named {ADMIN_NAME} was passed, but there is no section admin; "
            "add it, or disable the socket's unit"
        )


def _open_socket(fd: int) -> socket.socket:
    try:
        os.set_inheritable(fd, False)
        sock = socket.socket(fileno=fd)
    except OSError as exc:
        raise GatewayError(
            f"the file descriptor {fd}, which was passed as a socket, is none ({exc.strerror})"
        ) from None
    is_tcp = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
    if not is_tcp or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        sock.detach()
        raise GatewayError(
            f"the socket that was passed as file descriptor {fd} listens on no TCP port; the "
            "socket's unit needs ListenStream=PORT and Accept=no"
        )
    sock.setblocking(False)
    return sock


def _read_address(sock: socket.socket) -> dict[str, object]:
    host, port = sock.getsockname()[:2]
    return {"host": host, "port": port}
