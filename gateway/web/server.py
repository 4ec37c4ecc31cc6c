"""The gateway as a process: uvicorn around the application, and an end without a loss."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import uvicorn

from ..config import Settings
from ..errors import GatewayError
from ..hub.hub import Hub
from .app import Startup, create_app
from .transport import GatewayProtocol
from .upgraded import WebSocketProtocol

log = logging.getLogger(__name__)

DRAIN = 5  # seconds for clients to take the end of their streams; then they are cut
BACKLOG = 2048


class Server(uvicorn.Server):
    """Ends the streams, with a word and a time to come back, before it closes."""

    hub: Hub

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Told to end, it ends with status 0. uvicorn would raise the signal again at last, and
        a supervisor would see a process killed by it."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.hub.drain()
        await super().shutdown(sockets)


def serve(
    settings: Settings,
    *,
    debug: AbstractSet[str] = frozenset(),
    pages: Mapping[str, Path] | None = None,
    startup: Sequence[Startup] = (),
) -> None:
    """Serve until SIGTERM or SIGINT.

    debug: rooms (`kafka`, `hub`, `web`) that log in detail.
    Raises GatewayError when the address cannot be bound, ConfigError as `create_app`.
    """
    configure_logging(debug)
    with embedded(settings) as ready:
        app = create_app(ready, pages=pages, startup=startup)
        listening = bind(ready.listen.host, ready.listen.port)
        tls = ready.listen.tls
        config = uvicorn.Config(
            app,
            http=GatewayProtocol,
            ws=WebSocketProtocol,
            ws_per_message_deflate=ready.listen.websocket.compression,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_graceful_shutdown=DRAIN,
            ssl_certfile=tls.certificate if tls else None,
            ssl_keyfile=tls.key if tls else None,
        )
        server = Server(config)
        server.hub = app.state.hub
        host, port = listening.getsockname()[:2]
        scheme = "https" if tls else "http"
        shown = f"[{host}]" if ":" in host else host
        print(f"listening on {scheme}://{shown}:{port}", flush=True)
        runner = asyncio.Runner(loop_factory=config.get_loop_factory())
        with runner, contextlib.suppress(KeyboardInterrupt):
            runner.run(server.serve([listening]))


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; several processes may not share one by accident."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as exc:
        raise GatewayError(
            f"cannot listen on {host}:{port} ({exc.strerror}); "
            "free it, or set listen.port (0 for any free one)"
        ) from None
    listening.setblocking(False)
    return listening


@contextlib.contextmanager
def embedded(settings: Settings) -> Iterator[Settings]:
    """`servers: embedded` brings a Kafka within the process, with the topics of the file."""
    if settings.kafka.servers != "embedded":
        yield settings
        return
    from ..kafka.embedded import EmbeddedKafka

    topics = {topic.name: EMBEDDED_PARTITIONS for topic in settings.kafka.topics}
    with EmbeddedKafka(topics=topics) as kafka:
        print(f"embedded Kafka on {','.join(kafka.bootstrap)}", flush=True)
        own = settings.kafka.model_copy(update={"servers": tuple(kafka.bootstrap)})
        yield settings.model_copy(update={"kafka": own})


EMBEDDED_PARTITIONS = 12


def configure_logging(debug: AbstractSet[str]) -> None:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("aiokafka").setLevel(logging.WARNING)
    for room in debug:
        logging.getLogger(f"gateway.{room}").setLevel(logging.DEBUG)
