"""Take over listening sockets that a service manager has bound: systemd's socket activation.

The manager passes sockets as file descriptors from 3 on. LISTEN_FDS says how many, LISTEN_PID for
which process, and LISTEN_FDNAMES their names (sd_listen_fds(3)). It keeps them open while the
gateway restarts, so that clients wait in the queue of the kernel instead of being refused, and the
gateway needs no right to bind the port. PyPI's systemd-python does the same, but has to be compiled
against libsystemd.

A socket named `admin` is for operators. The others are for clients: one that all workers share, or
one per worker, which `ReusePort=yes` and a `ListenStream=` for each make.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping, Sequence
from typing import NamedTuple

from gateway.config import Settings
from gateway.config.checks.reload import check_combination
from gateway.errors import GatewayError

from .sockets import format_url

FIRST_FD = 3  # SD_LISTEN_FDS_START
ADMIN_NAME = "admin"
_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


class InheritedSockets(NamedTuple):
    """The listening sockets of a service manager; the gateway binds those that are missing."""

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
