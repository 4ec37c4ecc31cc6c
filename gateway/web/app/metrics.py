"""The figures of all workers, in one scrape; or sent to a back end, each worker's by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from gateway.config import Influx, Settings
from gateway.hub import metrics as of_hubs
from gateway.hub.fanout.hubs import Hubs
from gateway.telemetry import catalog, logs
from gateway.telemetry.loop_lag import LoopLag
from gateway.telemetry.process import collect_process_metrics
from gateway.telemetry.prometheus import expose
from gateway.telemetry.samples import MetricSamples
from gateway.telemetry.threads import run_in_thread
from gateway.version import __version__
from gateway.web.http import problems
from gateway.web.routing.limits import Limits
from gateway.web.workers.bus import Bus

log = logging.getLogger(__name__)

BUS_TOPIC = "figures"
BUS_TIMEOUT_S = 1.0  # seconds for the other workers to answer
SHUTDOWN_TIMEOUT_S = 3.0  # seconds that the gateway's end may take for the last figures


class MetricsExporter(Protocol):
    """What figures are sent by, to its `url`. `send` blocks, and says if they arrived."""

    url: str

    def send(self, samples: MetricSamples) -> bool: ...

    def close(self) -> None: ...


class Metrics:
    """See the module. `run` beside the application; `scrape` answers Prometheus.

    more: who else has figures, and adds them.
    """

    def __init__(self, hubs: Hubs, settings: Settings, limits: Limits, bus: Bus) -> None:
        self._hubs = hubs
        self._settings = settings
        self._limits = limits
        self._bus = bus
        self._loop_lag = LoopLag()
        self.collectors: list[Callable[[MetricSamples], None]] = []
        bus.add_handler(BUS_TOPIC, self._handle_query)

    def collect_own(self) -> MetricSamples:
        """Of this process."""
        figures, worker = MetricSamples(), self._bus.worker
        of_hubs.collect_all_metrics(self._hubs, figures)
        figures.add_counts(catalog.REFUSED_CONNECTIONS, self._limits.refused_counts)
        figures.add_counts(catalog.REFUSED_REQUESTS, problems.problem_counts)
        figures.add_counts(catalog.LOG_LINES, logs.line_counts)
        figures.add_histogram(catalog.EVENT_LOOP_LAG_SECONDS, self._loop_lag.seconds, worker)
        figures.add(catalog.INFO, 1, self._settings.name, __version__)
        collect_process_metrics(figures, worker)
        for read in self.collectors:
            read(figures)
        return figures

    async def collect_all(self) -> MetricSamples:
        """Of all workers that answer in time; it says how many did not."""
        answers = await self._bus.request(BUS_TOPIC, timeout_s=BUS_TIMEOUT_S)
        figures = MetricSamples()
        for plain in answers.by_worker.values():
            figures.merge(plain)
            await asyncio.sleep(0)
        figures.add(catalog.WORKERS, len(answers.by_worker))
        figures.add(catalog.WORKERS_MISSING, len(answers.missing))
        return figures

    def _handle_query(self, worker: int, data: Any) -> Any:
        return self.collect_own().to_json()

    async def scrape(self, request: Request) -> Response:
        """In the format that is asked for; others have their turn between its pieces."""
        exposition = expose(await self.collect_all(), request.headers.get("accept", ""))
        pieces: list[bytes] = []
        for piece in exposition.pieces:
            pieces.append(piece)
            await asyncio.sleep(0)
        headers = {"Cache-Control": "no-store", "Content-Type": exposition.media_type}
        return Response(b"".join(pieces), headers=headers)

    async def run(self) -> None:
        """Until cancelled: look at the loop, and send figures where that is configured."""
        told = self._settings.telemetry.metrics
        async with asyncio.TaskGroup() as group:
            group.create_task(self._loop_lag.run())
            if told.otlp is not None:
                group.create_task(
                    self._export(partial(self._create_otlp_exporter, told.otlp), told.interval)
                )
            if told.influx is not None:
                group.create_task(
                    self._export(
                        partial(self._create_influx_exporter, told.influx), told.influx.interval
                    )
                )

    async def _export(
        self, create_exporter: Callable[[], MetricsExporter], interval_s: float
    ) -> None:
        push = await asyncio.to_thread(create_exporter)
        try:
            while True:
                await asyncio.sleep(interval_s)
                figures = self.collect_own()
                if not await run_in_thread(partial(push.send, figures), "metrics"):
                    log.warning("the figures of this interval did not arrive at %s", push.url)
        finally:
            push.close()

    def _create_otlp_exporter(self, url: str) -> MetricsExporter:
        from gateway.telemetry.otlp import OtlpExporter, build_resource

        headers = self._settings.telemetry.headers
        plain = {name: secret.get_secret_value() for name, secret in headers.items()}
        return OtlpExporter(url, plain, build_resource(self._settings.name, __version__))

    def _create_influx_exporter(self, section: Influx) -> MetricsExporter:
        from gateway.telemetry.influx import InfluxExporter, build_write_url

        token = None if section.token is None else section.token.get_secret_value()
        url = build_write_url(section.url, section.org, section.bucket, section.db)
        return InfluxExporter(url, token, self._settings.name)
