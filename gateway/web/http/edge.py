"""Configure uvicorn for each port of a process.

A port speaks HTTP by our protocol and TLS by our listener. uvicorn's own logging, access log,
`Server` header and proxy headers are off. Operators have a port of their own, in the process that
serves clients.

`GatewayProtocol` (`transport`) derives from uvicorn's HTTP protocol, and takes connections over
from it. uvicorn does not promise the methods and attributes that this needs. A version that lacks
one of them serves by its own protocols instead, as any other ASGI server would: streams send by
ASGI's `send`, and the limits of `transport` do not apply. A port then speaks HTTP by uvicorn's
protocol on h11, since the one on httptools has no limit on heads.

Every version must have the steps of `uvicorn.Server`, from which `EdgeServer` derives.
tests/web/test_uvicorn_contract.py tests the meaning of the names here.
"""

from __future__ import annotations

import asyncio
import math
import socket
import sys
from functools import cache
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from gateway.client_memory import ClientMemory
from gateway.config import Settings
from gateway.config.types.address import is_loopback
from gateway.errors import GatewayError
from gateway.internals import Internals, find_missing
from gateway.telemetry.logs import announce
from gateway.web.workers.sockets import LISTEN_BACKLOG, bind, format_url
from gateway.wire.message_reader import MessageReader

from .asgi_middleware import (
    ForwardedMiddleware,
    HostCheckMiddleware,
    TrustedProxies,
)
from .assets import CoHostedApp
from .certificate import TlsContext
from .limits import Limits, PortLimits
from .tls import TlsListener

FALLBACK_MAX_HEAD_BYTES = 64 * 1024  # as in `GatewayProtocol`
USER_TIMEOUT_S = 60.0
"""Seconds after which the kernel ends a connection whose peer acknowledges nothing.

A peer that vanished without a FIN (a phone out of reach) holds its stream until then, and for 15
minutes by default. This is two to four heartbeats. Linux also counts the time in which the peer's
receive window stays closed, so a client that reads nothing for this long is disconnected; its
resume token brings it back without loss."""


class EdgeServer(uvicorn.Server):
    """The uvicorn server of one port, whose TLS connections come from a `TlsListener`."""

    def __init__(self, config: uvicorn.Config, listener: TlsListener | None = None) -> None:
        super().__init__(config)
        self._listener = listener

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._listener is None:
            await super().startup(sockets)
            return
        # uvicorn starts without sockets. As one of its servers, the listener is closed and waited
        # for like those that uvicorn creates itself.
        await super().startup([])
        self._listener.start(self._create_protocol)
        self.servers.append(cast("Any", self._listener))

    def _create_protocol(self) -> asyncio.Protocol:
        """Return the protocol for a connection, as uvicorn creates it."""
        protocol_class: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = protocol_class(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol


def configure_socket(listening_socket: socket.socket, user_timeout_s: float | None = None) -> None:
    """Set the options of a listening socket, which its connections inherit.

    To set them on each connection would take 3 us of a connect.
    """
    if listening_socket.family == socket.AF_UNIX:
        return
    # asyncio turns Nagle's algorithm off by itself, but not if the listening socket was created
    # with protocol 0. Small events would then wait for the acknowledgement of the last one.
    listening_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":
        timeout_ms = int((user_timeout_s or USER_TIMEOUT_S) * 1000)
        listening_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)


def create_port_limits(settings: Settings, limits: Limits, port: str = "") -> PortLimits:
    """Return the limits of a port.

    A trusted proxy is exempt from the limits of one address, as its connections are those of many
    clients.
    """
    proxies = settings.listen.forwarded
    return PortLimits(limits, port, TrustedProxies(() if proxies is False else proxies).is_trusted)


def create_uvicorn_config(
    app: ASGIApp,
    settings: Settings,
    co_hosted_app: CoHostedApp | None = None,
    *,
    port_limits: PortLimits | None = None,
    client_memory: ClientMemory | None = None,
    allowed_names: frozenset[str] | None = None,
    websocket_protocol: type[asyncio.Protocol] | None = None,
    **options: Any,
) -> uvicorn.Config:
    proxies = settings.listen.forwarded
    if proxies is not False:
        app = forwarded = ForwardedMiddleware(app, proxies)
    if allowed_names is not None:
        # Names that the operator listed are required of proxies, too.
        exempts_proxies = proxies is not False and not settings.listen.hosts
        # It wraps ForwardedMiddleware, so that it sees the address of the peer.
        app = HostCheckMiddleware(
            app,
            allowed_names,
            forwarded.proxies.is_trusted if exempts_proxies else lambda peer: False,
        )
    return uvicorn.Config(
        app,
        **_choose_protocols(
            co_hosted_app, port_limits, client_memory or ClientMemory(), websocket_protocol
        ),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=LISTEN_BACKLOG,
        timeout_keep_alive=math.ceil(settings.listen.keep_alive_timeout),
        **options,
    )


def _choose_protocols(
    co_hosted_app: CoHostedApp | None,
    port_limits: PortLimits | None,
    client_memory: ClientMemory,
    websocket_protocol: type[asyncio.Protocol] | None,
) -> dict[str, Any]:
    """Return uvicorn's options for our protocols, or for its own if it lacks what ours need."""
    if not find_missing_internals():
        # Only a uvicorn that is known can import it.
        from gateway.web.http.transport import GatewayProtocol

        constants = {
            "CO_HOSTED_APP": co_hosted_app,
            "PORT_LIMITS": port_limits,
            "CLIENT_MEMORY": client_memory,
        }
        return {
            "http": type("Protocol", (GatewayProtocol,), constants),
            "ws": "none" if websocket_protocol is None else websocket_protocol,
        }
    return {
        "http": "h11",
        "h11_max_incomplete_event_size": FALLBACK_MAX_HEAD_BYTES,
        "ws": "none" if websocket_protocol is None else "auto",
        "ws_max_size": MessageReader.MAX_MESSAGE_BYTES,
    }


TESTED_VERSIONS = "0.45 to 0.54"

_PROTOCOLS = "uvicorn.protocols.http"

SERVER_INTERNALS = (
    Internals(
        "uvicorn",
        "Server",
        methods={
            "handle_exit": None,  # sse-starlette replaces it by a function of other parameters
            "main_loop": "",
            "serve": "sockets",
            "shutdown": "sockets",
            "startup": "sockets",
        },
        state={
            "__init__": "config server_state should_exit force_exit",
            "startup": "servers lifespan",
        },
    ),
    Internals(
        "uvicorn",
        "Config",
        methods={"load": "", "get_loop_factory": ""},
        state={"load": "http_protocol_class lifespan_class loaded_app"},
    ),
)

PROTOCOL_INTERNALS = (
    Internals(
        f"{_PROTOCOLS}.httptools_impl",
        "HttpToolsProtocol",
        methods={
            "__init__": "config server_state app_state _loop",
            "connection_made": "transport",
            "connection_lost": "exc",
            "data_received": "data",
            "on_message_begin": "",
            "on_header": "name value",
            "on_headers_complete": "",
            "on_body": "body",
            "on_message_complete": "",
            "on_response_complete": "",
            "shutdown": "",
            "timeout_keep_alive_handler": "",
            "_should_upgrade": "",
            "_start_asgi_task": "cycle app",
            "_unset_keepalive_if_required": "",
        },
        state={
            "__init__": "config server_state app_state connections loop logger parser transport "
            "flow server client scheme pipeline scope headers cycle ws_protocol_class "
            "timeout_keep_alive timeout_keep_alive_task",
            "on_message_begin": "url expect_100_continue",
        },
    ),
    Internals(
        f"{_PROTOCOLS}.httptools_impl",
        "RequestResponseCycle",
        state={
            "__init__": "scope transport message_event on_response disconnected keep_alive "
            "waiting_for_100_continue response_started response_complete chunked_encoding "
            "expected_content_length"
        },
    ),
    Internals(
        f"{_PROTOCOLS}.flow_control",
        "FlowControl",
        methods={
            "__init__": "transport",
            "pause_reading": "",
            "resume_reading": "",
            "pause_writing": "",
        },
        state={"__init__": "read_paused write_paused"},
    ),
    Internals(
        "uvicorn.server",
        "ServerState",
        state={"__init__": "connections tasks total_requests default_headers"},
    ),
    Internals(
        "uvicorn",
        "Config",
        state={"__init__": "asgi_version ws_per_message_deflate", "load": "ws_protocol_class"},
    ),
)


@cache
def find_missing_internals() -> tuple[str, ...]:
    """Return the members that `GatewayProtocol` needs and the installed uvicorn lacks."""
    return tuple(find_missing(PROTOCOL_INTERNALS))


def describe_fallback() -> str | None:
    """Return the log line on the cost of an unknown uvicorn; raise if it cannot serve at all."""
    missing_steps = find_missing(SERVER_INTERNALS)
    if missing_steps:
        raise GatewayError(
            f"uvicorn {uvicorn.__version__} cannot serve the gateway: it has no "
            f"{', '.join(missing_steps)}; install uvicorn {TESTED_VERSIONS}, or serve `create_app` "
            "by another ASGI server"
        )
    missing = find_missing_internals()
    if not missing:
        return None
    return (
        f"uvicorn {uvicorn.__version__} is not one that this version of the gateway knows (it has "
        f"no {', '.join(missing)}), so uvicorn's own protocols serve: each client costs a task and "
        "more memory and CPU, and requests have no deadline, which a proxy in front should set; "
        f"install uvicorn {TESTED_VERSIONS}"
    )


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
