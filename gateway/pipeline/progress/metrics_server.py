"""Serve the metrics of jobs to Prometheus.

Jobs run in a process without the gateway, which serves its own metrics.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from gateway.errors import PipelineError
from gateway.telemetry.prometheus import expose
from gateway.telemetry.samples import MetricSamples

MAX_CONNECTIONS = 16
REQUEST_TIMEOUT_S = 10.0


class MetricsServer:
    """An HTTP server in threads that answers `GET /metrics` while its context is entered.

    Its clients share threads and file descriptors with the jobs. So there are at most
    `max_connections`, each for at most `timeout_s` seconds, and others are closed.
    """

    def __init__(
        self,
        host: str,
        port: int,
        collect_metrics: Callable[[], MetricSamples],
        *,
        max_connections: int = MAX_CONNECTIONS,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """Bind the port (0: a free one). `collect_metrics` runs in the thread of each request."""
        try:
            self._server = _BoundedServer(
                (host, port), _create_handler(collect_metrics), max_connections, timeout_s
            )
        except OSError as error:
            problem = f"pipelines.progress cannot listen on {host}:{port}: {error.strerror}"
            raise PipelineError(f"{problem}; use another port, or 0 for a free one") from None
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="scrape", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _BoundedServer(ThreadingHTTPServer):
    def __init__(
        self, address: tuple[str, int], handler: Any, max_connections: int, timeout_s: float
    ) -> None:
        super().__init__(address, handler)
        self._slots = threading.BoundedSemaphore(max_connections)
        self._timeout_s = timeout_s

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # A timeout of the socket would begin again with each byte.
        timer = threading.Timer(self._timeout_s, _shut_down, (request,))
        timer.daemon = True
        timer.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # which is the end of the connection
            super().handle_error(request, client_address)


def _shut_down(request: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        request.shutdown(socket.SHUT_RDWR)


def _create_handler(collect_metrics: Callable[[], MetricSamples]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "see /metrics")
                return
            media_type, pieces = expose(collect_metrics(), self.headers.get("Accept", ""))
            body = b"".join(pieces)
            self.send_response(200)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: the default writes a line to stderr for each request."""

    return Handler
