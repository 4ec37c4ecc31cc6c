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
from gateway.web.admin.listener import open_port
from gateway.web.http.certificate import TlsContext
from gateway.web.http.edge import EdgeServer, edge, listen_tls
from gateway.web.http.hosts import allowed_names
from gateway.web.http.transport import GatewayProtocol
from gateway.web.routing.limits import Limits
from gateway.web.websocket.connection import Peer
from gateway.web.websocket.protocol import WebSocketProtocol
from gateway.web.workers.listening import address, bind, refuse_exposed
from gateway.web.workers.supervisor import supervise

from .app import Application, Startup, create_app
from .beside import Beside
from .reload import Load, reload_on_hangup

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
        self.hubs.refuse()
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
    load: Load | None = None,
    beside: Beside | None = None,
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
    with embedded(settings) as ready:
        if ready.listen.tls is not None:
            TlsContext(ready.listen.tls)  # one that cannot be used is told once, and nothing begun
        again = None if load is None else partial(_as_served, load, ready)
        if ready.listen.workers > 1 and not (pages or startup):
            create_app(ready, beside=beside)  # what it refuses is said once, and nothing started
            return supervise(ready, debug, again, beside)
        app = create_app(ready, pages=pages, startup=startup, beside=beside)
        if again is not None:
            app.beside(partial(reload_on_hangup, app, again))
            app.admin.reloading.load = again
        listening = bind(ready.listen.host, ready.listen.port)
        refuse_exposed(ready, listening)
        admin = open_port(ready)
        print(f"listening on {address(listening, tls=ready.listen.tls is not None)}", flush=True)
        run(app, ready, listening, admin)
        return 0


def run(
    app: Application,
    settings: Settings,
    listening: socket.socket,
    admin: socket.socket | None = None,
) -> None:
    """Serve in this process until it is told to end. admin: where operators come in. Raises
    GatewayError for a certificate that cannot be used."""
    listen = settings.listen
    tls = None if listen.tls is None else TlsContext(listen.tls)
    tls_listener = None
    if tls is not None:
        app.beside(tls.watch)
        tls_listener = listen_tls(listening, tls, settings, app.state.limits)
        app.state.metrics.more += [tls.read, tls_listener.read]
    if admin is not None:
        limits: Limits = app.state.limits
        app.beside(partial(listener.serve, app.admin.app, settings, admin, tls, limits))
    config = edge(
        app,
        settings,
        app.neighbour,
        names=allowed_names(listen),
        ws=_websockets(listen.drain_timeout),
        ws_per_message_deflate=listen.websocket.compression,
        lifespan="on",
        timeout_graceful_shutdown=listen.drain_timeout,  # for asyncio.wait_for
    )
    GatewayProtocol.prepare(listening)
    server = Server(config, tls_listener)
    server.hubs = app.gateway.hubs
    runner = asyncio.Runner(loop_factory=config.get_loop_factory())
    _tune_garbage_collector()
    with runner, contextlib.suppress(KeyboardInterrupt):
        runner.run(server.serve([listening]))


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


def _websockets(drain_timeout: float) -> type[WebSocketProtocol]:
    """Sockets to which the application said nothing are closed before time is up."""
    peer = type("Peer", (Peer,), {"__slots__": (), "DRAIN_SECONDS": 0.8 * drain_timeout})
    return type("WebSocketProtocol", (WebSocketProtocol,), {"PEER": peer})


@contextlib.contextmanager
def embedded(settings: Settings) -> Iterator[Settings]:
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


def _as_served(load: Load, ready: Settings) -> Settings:
    """A Kafka within the process is still the one that was started with it."""
    written = load()
    made = dict(written.clusters)
    for name, kafka in written.clusters.items():
        if kafka.servers == "embedded" and name in ready.clusters:
            made[name] = kafka.model_copy(update={"servers": ready.clusters[name].servers})
    return written.model_copy(update={"kafka": made.get("", made)})


EMBEDDED_PARTITIONS = 12


def configure_logging(configured: Logs, debug: AbstractSet[str], worker: int | None = None) -> None:
    """debug: rooms that log in detail, whatever is configured. worker: its number goes into every
    line, where there are several."""
    levels = {str(room): str(level) for room, level in configured.levels.items()}
    levels |= dict.fromkeys(debug, "debug")
    logs.configure(configured.format, configured.level, levels, worker=worker)
