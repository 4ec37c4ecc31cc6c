from __future__ import annotations

import socket
from contextlib import ExitStack, closing
from typing import Any

import pytest

from gateway.config import loads
from gateway.errors import GatewayError
from gateway.web.workers.sockets import (
    bind,
    bind_additional,
    bind_shared,
    format_url,
    refuse_exposed_sidecar,
)


def get_port(listening: socket.socket) -> int:
    return int(listening.getsockname()[1])


@pytest.mark.parametrize("count", [1, 3])
def test_a_shared_port_is_no_other_gateways(count: int):
    """Two that share one by accident would each serve half of the clients."""
    with ExitStack() as stack:
        ours = [stack.enter_context(closing(s)) for s in bind_shared("127.0.0.1", 0, count)]
        assert len({get_port(each) for each in ours}) == 1
        for others in (bind, lambda host, number: bind_shared(host, number, 3)):
            with pytest.raises(GatewayError, match=r"cannot listen on 127\.0\.0\.1"):
                others("127.0.0.1", get_port(ours[0]))


def test_a_port_of_one_process_is_not_shared():
    with (
        closing(bind("127.0.0.1", 0)) as ours,
        pytest.raises(GatewayError, match=r"free it, or set listen\.port"),
    ):
        bind_shared("127.0.0.1", get_port(ours), 2)


def test_connections_go_to_all_who_share_and_none_is_lost():
    with ExitStack() as stack:
        ours = [stack.enter_context(closing(s)) for s in bind_shared("127.0.0.1", 0, 3)]
        for _ in range(120):
            stack.enter_context(socket.create_connection(("127.0.0.1", get_port(ours[0]))))
        taken = []
        for each in ours:
            taken.append(0)
            while True:
                try:
                    stack.enter_context(closing(each.accept()[0]))
                except BlockingIOError:
                    break
                taken[-1] += 1
        assert sum(taken) == 120 and all(taken), taken


def test_one_that_was_closed_comes_back_beside_the_others():
    with ExitStack() as stack:
        first, second = bind_shared("127.0.0.1", 0, 2)
        first.close()
        stack.enter_context(closing(second))
        stack.enter_context(closing(bind_additional("127.0.0.1", get_port(second))))


def test_a_system_without_shared_ports_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(socket, "SO_REUSEPORT")
    with pytest.raises(GatewayError, match=r"no SO_REUSEPORT.*set listen\.workers: 1"):
        bind_shared("127.0.0.1", 0, 2)


def test_an_address_is_shown_as_a_url():
    with closing(bind("127.0.0.1", 0)) as ours:
        assert format_url(ours, tls=False) == f"http://127.0.0.1:{get_port(ours)}"
        assert format_url(ours, tls=True) == f"https://127.0.0.1:{get_port(ours)}"


def test_every_address_is_that_of_both_families():
    """`::` was of IPv6 alone, so that nothing served both."""
    with closing(bind("::", 0)) as ours:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, get_port(ours))).close()


class FakeSocket:
    """A socket that turned out to be bound there."""

    def __init__(self, host: str) -> None:
        self.host, self.is_closed = host, False

    def getsockname(self) -> tuple[str, int]:
        return self.host, 8080

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("sidecar", "host", "refused"),
    [
        ("{producer: {}}", "127.0.0.1", False),
        ("{producer: {}}", "10.0.0.7", True),
        ("{admin: {}}", "0.0.0.0", True),
        ("{consumer: {}, exposed: true}", "10.0.0.7", False),
        ("{consumer: {}, guarded: {g: []}}", "10.0.0.7", False),
        ("{}", "10.0.0.7", False),
    ],
)
def test_an_unguarded_sidecar_is_refused_by_the_address_that_was_bound(sidecar, host, refused):
    """The name of the host was looked at, if at all: localhost is what /etc/hosts says."""
    guards = "guards: {g: {type: jwt, keys: 'http://k'}}"
    kafka = "kafka: {servers: [a:9092]}"
    settings = loads(f"{kafka}\n{guards}\nlisten: {{host: localhost}}\nsidecar: {sidecar}\n")
    bound: Any = FakeSocket(host)
    if refused:
        with pytest.raises(GatewayError, match="exposed: true"):
            refuse_exposed_sidecar(settings, bound)
    else:
        refuse_exposed_sidecar(settings, bound)
    assert bound.is_closed == refused
