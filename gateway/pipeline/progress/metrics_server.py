"""Serve the metrics of jobs to Prometheus.

Jobs run in a process without the gateway, which serves its own metrics.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from gateway.errors import PipelineError
from gateway.telemetry.prometheus import expose
from gateway.telemetry.samples import MetricSamples


class MetricsServer:
    """An HTTP server in threads that answers `GET /metrics` while its context is entered."""

    def __init__(self, host: str, port: int, collect_metrics: Callable[[], MetricSamples]) -> None:
        """Bind the port (0: a free one). `collect_metrics` runs in the thread of each request."""
        try:
            self._server = ThreadingHTTPServer((host, port), _create_handler(collect_metrics))
        except OSError as error:
            problem = f"pipelines.progress cannot listen on {host}:{port}: {error.strerror}"
            raise PipelineError(f"{problem}; use another port, or 0 for a free one") from None
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="scrape", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _create_handler(collect_metrics: Callable[[], MetricSamples]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds, for clients that send or read nothing

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
