"""The gateway as a process: uvicorn around the application, and an end without a loss."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from types import FrameType

from gateway.config import Logs, Settings
from gateway.hub.fanout.hubs import Hubs
from gateway.telemetry import logs
from gateway.web.admin import listener
from gateway.web.admin.listener import bind_admin_socket
from gateway.web.http.certificate import TlsContext
from gateway.web.http.edge import EdgeServer, create_tls_listener, create_uvicorn_config
from gateway.web.http.hosts import get_allowed_names
from gateway.web.http.transport import GatewayProtocol
from gateway.web.routing.limits import Limits
from gateway.web.websocket.connection import WebSocketConnection
from gateway.web.websocket.protocol import WebSocketProtocol
from gateway.web.workers.sockets import bind, format_url, refuse_exposed_sidecar
from gateway.web.workers.supervisor import supervise

from .app import Application, Startup, create_app
from .co_hosted_app import CoHostedAppFactory
from .reload import SettingsLoader, reload_on_hangup

log = logging.getLogger(__name__)


class Server(EdgeServer):
    """Ends the streams, with a word and a time to come back, before it closes."""

    hubs: Hubs

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Told to end, it ends with status 0. uvicorn would raise the signal again at last, and
        a supervisor would see a process killed by it."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Who asks whether it is ready hears that it is not, before it takes nobody any more."""
        self.hubs.stop_accepting()
        super().handle_exit(sig, frame)

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
) -> int:
    """Serve until SIGTERM or SIGINT, in as many processes as `listen.workers` says. The exit
    status.

    debug:   rooms (`kafka`, `hub`, `web`) that log in detail.
    pages, startup: as of `create_app`; with them it is one process.
    load:  the configuration as it is by now, to be taken over at SIGHUP.
    beside: as of `create_app`.
    Raises GatewayError when the address cannot be bound or the certificate not be used, ConfigError
    as `create_app`.
    """
    configure_logging(settings.telemetry.logs, debug)
    with run_embedded_kafka(settings) as ready:
        if ready.listen.tls is not None:
            TlsContext(ready.listen.tls)  # one that cannot be used is told once, and nothing begun
        again = None if load is None else partial(_load_with_embedded_kafka, load, ready)
        if ready.listen.workers > 1 and not (pages or startup):
            create_app(
                ready, beside=co_hosted_app_factory
            )  # what it refuses is said once, and nothing started
            return supervise(ready, debug, again, co_hosted_app_factory)
        app = create_app(ready, pages=pages, startup=startup, beside=co_hosted_app_factory)
        if again is not None:
            app.add_startup(partial(reload_on_hangup, app, again))
            app.admin.reload_coordinator.load = again
        listening = bind(ready.listen.host, ready.listen.port)
        refuse_exposed_sidecar(ready, listening)
        admin = bind_admin_socket(ready)
        print(f"listening on {format_url(listening, tls=ready.listen.tls is not None)}", flush=True)
        run_server(app, ready, listening, admin)
        return 0


def run_server(
    app: Application,
    settings: Settings,
    listening_socket: socket.socket,
    admin_socket: socket.socket | None = None,
) -> None:
    """Serve in this process until it is told to end. admin: where operators come in. Raises
    GatewayError for a certificate that cannot be used."""
    listen = settings.listen
    tls = None if listen.tls is None else TlsContext(listen.tls)
    tls_listener = None
    if tls is not None:
        app.add_startup(tls.watch)
        tls_listener = create_tls_listener(listening_socket, tls, settings, app.state.limits)
        app.state.metrics.collectors += [tls.collect_metrics, tls_listener.collect_metrics]
    if admin_socket is not None:
        limits: Limits = app.state.limits
        app.add_startup(
            partial(listener.serve_admin, app.admin.app, settings, admin_socket, tls, limits)
        )
    config = create_uvicorn_config(
        app,
        settings,
        app.co_hosted_app,
        allowed_names=get_allowed_names(listen),
        ws=_build_websocket_protocol(listen.drain_timeout),
        ws_per_message_deflate=listen.websocket.compression,
        lifespan="on",
        timeout_graceful_shutdown=listen.drain_timeout,  # for asyncio.wait_for
    )
    GatewayProtocol.configure_socket(listening_socket)
    server = Server(config, tls_listener)
    server.hubs = app.gateway.hubs
    runner = asyncio.Runner(loop_factory=config.get_loop_factory())
    _tune_garbage_collector()
    with runner, contextlib.suppress(KeyboardInterrupt):
        runner.run(server.serve([listening_socket]))


def _tune_garbage_collector() -> None:
    """Keep garbage collections rare and short.

    What exists when serving starts is frozen, and never walked over again. Nearly all that comes
    after is freed by its reference count, so a full collection, 17 ms beside 10,000 clients, is
    rare. One of generation 1 walks over at most 50,000 objects: with 200,000 it took 24 ms
    beside 8,000 streams with filters of their own.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 5, 400)


def _build_websocket_protocol(drain_timeout: float) -> type[WebSocketProtocol]:
    """Sockets to which the application said nothing are closed before time is up."""
    peer = type(
        "WebSocketConnection",
        (WebSocketConnection,),
        {"__slots__": (), "DRAIN_TIMEOUT_S": 0.8 * drain_timeout},
    )
    return type("WebSocketProtocol", (WebSocketProtocol,), {"CONNECTION_CLASS": peer})


@contextlib.contextmanager
def run_embedded_kafka(settings: Settings) -> Iterator[Settings]:
    """`servers: embedded` brings a Kafka within the process, with the topics of the file."""
    found = {n: k for n, k in settings.clusters.items() if k.servers == "embedded"}
    if not found:
        yield settings
        return
    from gateway.kafka.embedded import EmbeddedKafka

    with contextlib.ExitStack() as stack:
        made = dict(settings.clusters)
        for name, kafka in found.items():
            topics = {topic.name: EMBEDDED_PARTITIONS for topic in kafka.topics}
            own = stack.enter_context(EmbeddedKafka(topics=topics))
            of = f" {name}" if name else ""
            print(f"embedded Kafka{of} on {','.join(own.bootstrap)}", flush=True)
            made[name] = kafka.model_copy(update={"servers": tuple(own.bootstrap)})
        yield settings.model_copy(update={"kafka": made.get("", made)})


def _load_with_embedded_kafka(load: SettingsLoader, running: Settings) -> Settings:
    """A Kafka within the process is still the one that was started with it."""
    written = load()
    made = dict(written.clusters)
    for name, kafka in written.clusters.items():
        if kafka.servers == "embedded" and name in running.clusters:
            made[name] = kafka.model_copy(update={"servers": running.clusters[name].servers})
    return written.model_copy(update={"kafka": made.get("", made)})


EMBEDDED_PARTITIONS = 12


def configure_logging(section: Logs, debug: AbstractSet[str], worker: int | None = None) -> None:
    """debug: rooms that log in detail, whatever is configured. worker: its number goes into every
    line, where there are several."""
    levels = {str(room): str(level) for room, level in section.levels.items()}
    levels |= dict.fromkeys(debug, "debug")
    logs.configure(section.format, section.level, levels, worker=worker)
