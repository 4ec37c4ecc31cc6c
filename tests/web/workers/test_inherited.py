"""Sockets of a service manager, taken in a process of its own: its file descriptors begin at 3."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from gateway.config import loads
from gateway.web.workers.sockets import NO_SOCKETS, copy_socket, take_inherited_sockets

pytestmark = pytest.mark.needs("process")

# Takes the sockets, and says what it got: the names of what is left, and the addresses.
PROGRAM = """
import os, sys
os.environ["LISTEN_PID"] = os.environ.get("LISTEN_PID") or str(os.getpid())
from gateway.config import loads
from gateway.errors import GatewayError
from gateway.web.workers.sockets import take_inherited_sockets
settings = loads(sys.argv[1])
try:
    taken = take_inherited_sockets(settings)
except GatewayError as exc:
    sys.exit(str(exc))
applied = taken.apply_to(settings)
print([name for name in os.environ if name.startswith("LISTEN_")])
print([(each.getsockname()[1], each.gettimeout()) for each in taken.clients])
print(applied.listen.host, applied.listen.port, applied.admin and applied.admin.port)
print([os.get_inheritable(each.fileno()) for each in taken.clients])
"""
CONFIG = "{kafka: {servers: ['k:9092']}, listen: {host: 0.0.0.0, port: 80, workers: %d}%s}"


def take(
    sockets: list[socket.socket], *, names: str = "", count: str = "", workers: int = 1,
    sections: str = "", pid: str = "", config: str = "",
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run PROGRAM with these sockets as file descriptors from 3 on."""
    with ExitStack() as stack:
        # The descriptors of the sockets may be among their targets: high ones are not.
        high = [stack.enter_context(closing(_duplicate_high(each))) for each in sockets]
        moves = "".join(f" {3 + n}<&{each.fileno()}" for n, each in enumerate(high))
        return subprocess.run(
            ["bash", "-c", f'exec "$@"{moves}', "bash", sys.executable, "-c", PROGRAM,
             config or CONFIG % (workers, sections)],
            pass_fds=[each.fileno() for each in high], capture_output=True, text=True, timeout=120,
            env={**os.environ, "LISTEN_FDS": count or str(len(sockets)), "LISTEN_FDNAMES": names,
                 "LISTEN_PID": pid},
        )  # fmt: skip


def _duplicate_high(sock: socket.socket) -> socket.socket:
    return socket.socket(fileno=fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, 100))


def listen() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def get_port(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def test_the_address_is_the_sockets_and_nobody_takes_it_twice():
    """The address decides which Host headers are allowed, and whether a sidecar is exposed."""
    with closing(listen()) as sock:
        done = take([sock])
        assert done.stdout.splitlines() == [
            "[]",
            f"[({get_port(sock)}, 0.0)]",
            f"127.0.0.1 {get_port(sock)} None",
            "[False]",
        ], done.stderr


def test_operators_have_the_socket_that_is_named_for_them():
    with closing(listen()) as first, closing(listen()) as second:
        done = take([first, second], names="admin:gateway.socket", sections=", admin: {}")
        assert f"127.0.0.1 {get_port(second)} {get_port(first)}" in done.stdout, done.stderr
        done = take([first], names="admin")
        assert done.returncode == 1 and "there is no section admin; add it" in done.stderr


def test_each_worker_has_a_socket_of_its_own_or_all_have_one():
    shared = {"reuse_port": True}
    with (
        closing(socket.create_server(("127.0.0.1", 0), **shared)) as first,
        closing(socket.create_server(first.getsockname(), **shared)) as second,
    ):
        assert take([first, second], workers=2).returncode == 0
        assert take([first], workers=2).returncode == 0
        done = take([first, second], workers=4)
    assert "2 listening sockets were passed for 4 workers; pass one, or one per" in done.stderr


def test_what_is_no_listening_tcp_socket_is_refused_with_what_to_do(tmp_path: Path):
    """`Accept=yes` passes a connection, and a path a Unix socket."""
    with closing(socket.socket()) as idle, closing(socket.socket(socket.AF_UNIX)) as unix:
        unix.bind(str(tmp_path / "socket"))
        unix.listen()
        for each in (idle, unix):
            done = take([each])
            assert done.returncode == 1
            assert "needs ListenStream=PORT and Accept=no" in done.stderr
    assert "which is no number of sockets" in take([], count="some").stderr


def test_sockets_of_another_process_are_left_alone():
    """A shell that was activated starts a gateway: the sockets were for the shell."""
    with closing(listen()) as sock:
        done = take([sock], pid="1")
        assert "0.0.0.0 80 None" in done.stdout, done.stderr
    settings = loads(CONFIG % (1, ""))
    assert take_inherited_sockets(settings, {}) is NO_SOCKETS
    assert NO_SOCKETS.apply_to(settings).listen.port == 80


def test_a_copy_is_closed_without_the_others():
    with closing(listen()) as sock, closing(copy_socket([sock], 3)) as kept:
        copy_socket([sock], 1).close()
        with socket.create_connection(("127.0.0.1", get_port(sock))):
            kept.settimeout(30)
            kept.accept()[0].close()


def test_what_a_file_may_not_have_on_such_an_address_is_refused():
    """The file's host was looked at, which the socket replaces: an `inline` guard let in whoever
    reached the socket."""
    guards = ", guards: {g: {type: inline, users: {ada: {password: p}}}}, listen: {port: 1}"
    with closing(socket.create_server(("0.0.0.0", 0))) as sock:
        done = take([sock], config=f"{{kafka: {{servers: ['k:9092']}}{guards}}}")
        assert done.returncode != 0
        assert "guards.g" in done.stderr and "passed a socket of 0.0.0.0" in done.stderr
    with closing(listen()) as sock:
        assert take([sock], config=f"{{kafka: {{servers: ['k:9092']}}{guards}}}").returncode == 0


def test_workers_with_sockets_of_different_addresses_are_refused():
    """Only the first was asked whether other machines reach it."""
    with closing(listen()) as first, closing(socket.create_server(("0.0.0.0", 0))) as second:
        done = take([first, second], workers=2)
        assert done.returncode != 0 and "different addresses" in done.stderr


def test_a_second_socket_of_operators_is_refused():
    """Nobody accepted from the first one."""
    with closing(listen()) as first, closing(listen()) as second:
        sections = ", admin: {}"
        done = take([first, second], names="admin:admin", sections=sections)
        assert done.returncode != 0 and "two listening sockets named admin" in done.stderr
