"""Run the gateway as a process: uvicorn around the application, and a graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from types import FrameType

from gateway.config import Logs, Settings
from gateway.config.sections.guards import X509
from gateway.errors import GatewayError
from gateway.extras import find_missing_modules, format_install_command
from gateway.hub.fanout.hubs import Hubs
from gateway.telemetry import logs
from gateway.telemetry.logs import announce
from gateway.web.admin.reload import SettingsLoader, reload_on_hangup
from gateway.web.http import edge
from gateway.web.http.asgi_middleware import get_allowed_names
from gateway.web.http.assets import CoHostedAppFactory
from gateway.web.http.certificate import TlsContext
from gateway.web.http.edge import (
    EdgeServer,
    bind_admin_socket,
    configure_socket,
    create_port_limits,
    create_uvicorn_config,
    describe_fallback,
)
from gateway.web.http.limits import Limits
from gateway.web.http.tls import TlsListener
from gateway.web.websocket.connection import WebSocketConnection
from gateway.web.websocket.protocol import WebSocketProtocol
from gateway.web.workers.sockets import (
    InheritedSockets,
    bind,
    format_url,
    refuse_exposed_sidecar,
    require_free_port,
    take_inherited_sockets,
)

from .app import Application, Startup, collect_garbage_forever, create_app, tune_garbage_collector
from .supervisor import supervise

log = logging.getLogger(__name__)


class Server(EdgeServer):
    """A server that ends its streams with an `end` event and a retry time before it closes.

    Created by `run_server`, one per process.
    """

    hubs: Hubs

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Report that the gateway is not ready, before it stops accepting connections.

        uvicorn's own method also keeps the signal, to raise it again in the end. A process manager
        would then see a process that was killed, and not status 0.
        """
        self.hubs.stop_accepting()
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        else:
            self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.hubs.drain()
        await super().shutdown(sockets)


def serve(
    settings: Settings,
    *,
    debug: AbstractSet[str] = frozenset(),
    pages: Mapping[str, Path] | None = None,
    startup: Sequence[Startup] = (),
    load: SettingsLoader | None = None,
    co_hosted_app_factory: CoHostedAppFactory | None = None,
    notes: Iterable[str] = (),
) -> int:
    """Serve until SIGTERM or SIGINT, in as many processes as `listen.workers` says.

    Args:
        load: Returns the configuration as it is now, to be applied at SIGHUP.
        notes: Lines to announce first, unless the port is in use.

    Raises:
        GatewayError: The address cannot be bound, the certificate cannot be used, or the installed
            uvicorn cannot serve the settings.
        ConfigError: This version cannot serve the settings.
    """
    configure_logging(settings.telemetry.logs, debug)
    _check_uvicorn(settings)
    inherited = take_inherited_sockets(settings)
    if not inherited.clients:
        require_free_port(settings.listen.host, settings.listen.port)
    for note in notes:
        announce(note)
    with run_embedded_kafka(inherited.apply_to(settings)) as ready:
        if ready.listen.tls is not None:
            # A certificate that cannot be used is reported once, and no worker is started.
            TlsContext(ready.listen.tls)
        load_again = None if load is None else partial(_load_again, load, ready, inherited)
        if ready.listen.workers > 1 and not (pages or startup):
            # Likewise for settings that `create_app` refuses; this application never runs.
            create_app(ready, co_hosted_app_factory=co_hosted_app_factory)
            return supervise(ready, debug, load_again, co_hosted_app_factory, inherited)
        app = create_app(
            ready, pages=pages, startup=startup, co_hosted_app_factory=co_hosted_app_factory
        )
        if load_again is not None:
            app.add_startup(partial(reload_on_hangup, app.reload, load_again))
            app.admin.reload_coordinator.load = load_again
        if inherited.clients:
            listening = inherited.clients[0]
        else:
            listening = bind(ready.listen.host, ready.listen.port)
        refuse_exposed_sidecar(ready, listening)
        admin = bind_admin_socket(ready, inherited.admin)
        announce(inherited.describe(format_url(listening, tls=ready.listen.tls is not None)))
        run_server(app, ready, listening, admin)
        return 0


def _check_uvicorn(settings: Settings) -> None:
    """Log what the installed libraries cost, and refuse settings that they cannot serve."""
    _refuse_unreadable_certificates(settings)
    fallback = describe_fallback()
    if fallback is not None:
        log.warning("%s", fallback)
    if sys.platform != "win32" and find_missing_modules("server"):
        command = format_install_command("server")
        log.debug("uvloop, a faster event loop, is not installed; %s", command)


def _refuse_unreadable_certificates(settings: Settings) -> None:
    """Refuse guards for client certificates, which uvicorn's own protocols do not pass on."""
    fallback = describe_fallback()
    if fallback is None:
        return
    for name, guard in settings.guards.items():
        if isinstance(guard, X509) and not guard.forwarded:
            raise GatewayError(f"guard '{name}' cannot read client certificates: {fallback}")


def run_server(
    app: Application,
    settings: Settings,
    listening_socket: socket.socket,
    admin_socket: socket.socket | None = None,
) -> None:
    server = create_server(app, settings, listening_socket, admin_socket)
    runner = asyncio.Runner(loop_factory=server.config.get_loop_factory())
    tune_garbage_collector()
    with runner, contextlib.suppress(KeyboardInterrupt):
        runner.run(server.serve([listening_socket]))


def create_server(
    app: Application,
    settings: Settings,
    listening_socket: socket.socket,
    admin_socket: socket.socket | None = None,
) -> Server:
    """Create a server whose `serve([listening_socket])` runs the application."""
    listen = settings.listen
    tls = None if listen.tls is None else TlsContext(listen.tls)
    tls_listener = None
    limits: Limits = app.state.limits
    port_limits = create_port_limits(settings, limits)
    if tls is not None:
        app.add_startup(tls.watch)
        tls_listener = TlsListener(
            listening_socket, tls.context, port_limits, app.gateway.hubs.client_memory
        )
        app.state.metrics.collectors += [tls.collect_metrics, tls_listener.collect_metrics]
    if admin_socket is not None:
        app.add_startup(
            partial(edge.serve_admin, app.admin.app, settings, admin_socket, tls, limits)
        )
    app.add_startup(partial(collect_garbage_forever, app.gateway.hubs))
    config = create_uvicorn_config(
        app,
        settings,
        app.co_hosted_app,
        port_limits=port_limits,
        client_memory=app.gateway.hubs.client_memory,
        allowed_names=get_allowed_names(listen),
        websocket_protocol=_build_websocket_protocol(listen.drain_timeout),
        ws_per_message_deflate=listen.websocket.compression,
        lifespan="on",
        timeout_graceful_shutdown=listen.drain_timeout,  # a float works: asyncio.wait_for gets it
    )
    configure_socket(listening_socket)
    server = Server(config, tls_listener)
    server.hubs = app.gateway.hubs
    return server


def _build_websocket_protocol(drain_timeout: float) -> type[WebSocketProtocol]:
    """Return a protocol that closes sockets without a stream before uvicorn cuts them."""
    connection_class = type(
        "WebSocketConnection",
        (WebSocketConnection,),
        {"__slots__": (), "DRAIN_TIMEOUT_S": 0.8 * drain_timeout},
    )
    return type("WebSocketProtocol", (WebSocketProtocol,), {"CONNECTION_CLASS": connection_class})


@contextlib.contextmanager
def run_embedded_kafka(settings: Settings) -> Iterator[Settings]:
    """Run a Kafka within the process for `servers: embedded`; yield settings with its address."""
    embedded = {n: k for n, k in settings.clusters.items() if k.servers == "embedded"}
    if not embedded:
        yield settings
        return
    from gateway.kafka.embedded import EmbeddedKafka

    with contextlib.ExitStack() as stack:
        clusters = dict(settings.clusters)
        for name, kafka in embedded.items():
            topics = {topic.name: EMBEDDED_PARTITIONS for topic in kafka.topics}
            broker = stack.enter_context(EmbeddedKafka(topics=topics))
            label = f" {name}" if name else ""
            announce(f"embedded Kafka{label} on {','.join(broker.bootstrap)}")
            clusters[name] = kafka.model_copy(update={"servers": tuple(broker.bootstrap)})
        yield settings.model_copy(update={"kafka": clusters.get("", clusters)})


def _load_again(load: SettingsLoader, running: Settings, inherited: InheritedSockets) -> Settings:
    """Load the configuration; an embedded Kafka is still the one that was started before.

    So are the addresses of inherited sockets, which the file may name otherwise.
    """
    loaded = load()
    _refuse_unreadable_certificates(loaded)
    clusters = dict(loaded.clusters)
    for name, kafka in loaded.clusters.items():
        if kafka.servers == "embedded" and name in running.clusters:
            clusters[name] = kafka.model_copy(update={"servers": running.clusters[name].servers})
    return inherited.apply_to(loaded.model_copy(update={"kafka": clusters.get("", clusters)}))


EMBEDDED_PARTITIONS = 12  # partitions of each topic of an embedded Kafka


def configure_logging(section: Logs, debug: AbstractSet[str], worker: int | None = None) -> None:
    """Configure the log of this process; `debug` overrides the section."""
    # The longest name decides, so a level of `kafka.fetch` would win over `--debug kafka`.
    levels: dict[str, str] = {
        name: level
        for name, level in section.levels.items()
        if not any(name.startswith(f"{component}.") for component in debug)
    }
    levels |= dict.fromkeys(debug, "debug")
    logs.configure(section.format, section.level, levels, worker=worker)
    if section.format == "json":
        logs.capture_stray_lines()
