"""Collect the metrics of all workers for a scrape, or send those of each worker to a back end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from starlette.requests import Request
from starlette.responses import Response

from gateway.config import Influx, Settings
from gateway.hub import metrics as hub_metrics
from gateway.hub.fanout.hubs import Hubs
from gateway.hub.metrics import add_zero_series
from gateway.telemetry import catalog, logs
from gateway.telemetry.process import LoopLag, collect_process_metrics, run_in_thread
from gateway.telemetry.prometheus import expose
from gateway.telemetry.samples import MetricSamples, reset_counters, select_counters
from gateway.version import __version__
from gateway.web.http import problems
from gateway.web.http.limits import Limits
from gateway.web.http.shared_counts import LimitKind
from gateway.web.workers.bus import Bus, SupervisorUnavailable

log = logging.getLogger(__name__)

BUS_TOPIC = "figures"
SUPERVISOR_TOPIC = "supervisor-figures"
BUS_TIMEOUT_S = 1.0  # seconds for the other workers to answer
REFUSING_LIMITS = (
    LimitKind.ALL, LimitKind.ADDRESS, LimitKind.IDENTITY, LimitKind.RATE, LimitKind.DESCRIPTORS,
)  # fmt: skip
# The statuses of problems that have a series from the start.
EXPECTED_STATUSES = (400, 401, 403, 404, 405, 406, 409, 412, 413, 415, 422, 428, 429, 431, 500,
                     502, 503, 504)  # fmt: skip
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


class MetricsExporter(Protocol):
    url: str

    def send(self, samples: MetricSamples) -> bool:
        """Send metrics and return whether they arrived. It blocks."""

    def close(self) -> None: ...


class Metrics:
    """The metrics of the gateway; `collectors` add their own to every collection."""

    def __init__(self, hubs: Hubs, settings: Settings, limits: Limits, bus: Bus) -> None:
        self._hubs = hubs
        self._settings = settings
        self._limits = limits
        self._bus = bus
        self._started_at = time.monotonic()  # what tells this process from others of its number
        self.loop_lag = LoopLag()
        self.collectors: list[Callable[[MetricSamples], None]] = []
        bus.add_handler(BUS_TOPIC, self._handle_query)

    def collect_own(self) -> MetricSamples:
        samples, worker = MetricSamples(), self._bus.worker
        hub_metrics.collect_all_metrics(self._hubs, samples)
        samples.add_counts(catalog.REFUSED_CONNECTIONS, self._limits.refused_counts)
        samples.add_counts(catalog.REFUSED_REQUESTS, problems.problem_counts)
        samples.add_counts(catalog.LOG_LINES, logs.line_counts)
        samples.add_histogram(catalog.EVENT_LOOP_LAG_SECONDS, self.loop_lag.seconds, worker)
        samples.add(catalog.INFO, 1, self._settings.name, __version__)
        collect_process_metrics(samples, worker)
        for collect in self.collectors:
            collect(samples)
        return samples

    async def collect_all(self) -> MetricSamples:
        """Return the metrics of all workers that answer in time, and how many did not."""
        responses = await self._bus.request(BUS_TOPIC, timeout_s=BUS_TIMEOUT_S)
        samples = MetricSamples()
        totals = await self._add_supervisor_series(samples, build_report(responses.by_worker))
        for _ in merge_answers(responses.by_worker, totals, samples):
            await asyncio.sleep(0)  # let the event loop serve clients meanwhile
        samples.add(catalog.WORKERS, len(responses.by_worker))
        samples.add(catalog.WORKERS_MISSING, len(responses.missing))
        await self._add_zeros(samples)
        return samples

    async def _add_supervisor_series(
        self, samples: MetricSamples, report: Sequence[Any] | None = None
    ) -> WorkerTotals:
        """Add the supervisor's series; return its totals for the report of a scrape."""
        if self._bus.worker_count == 1:
            samples.add(catalog.WORKER_RESTARTS, 0, self._bus.worker)
            return ()
        try:
            series, totals = await self._bus.call_supervisor(
                SUPERVISOR_TOPIC, report, timeout_s=BUS_TIMEOUT_S
            )
        except SupervisorUnavailable:
            return ()  # a supervisor that is away, or busy, costs only what it knows
        samples.merge(series)
        return cast(WorkerTotals, totals)

    async def _add_zeros(self, samples: MetricSamples) -> None:
        for _ in add_zero_series(self._hubs, samples):
            await asyncio.sleep(0)
        samples.add_zeros(catalog.REFUSED_CONNECTIONS, REFUSING_LIMITS)
        samples.add_zeros(catalog.REFUSED_REQUESTS, EXPECTED_STATUSES)
        samples.add_zeros(catalog.LOG_LINES, LOG_LEVELS)

    def _handle_query(self, worker: int, data: Any) -> ProcessSamples:
        return ProcessSamples(self._started_at, time.monotonic(), self.collect_own().to_json())

    async def scrape(self, request: Request) -> Response:
        """Answer a scrape in the requested format; the event loop goes on between its chunks."""
        exposition = expose(await self.collect_all(), request.headers.get("accept", ""))
        chunks: list[bytes] = []
        for chunk in exposition.pieces:
            chunks.append(chunk)
            await asyncio.sleep(0)
        headers = {"Cache-Control": "no-store", "Content-Type": exposition.media_type}
        return Response(b"".join(chunks), headers=headers)

    async def run(self) -> None:
        """Measure the event loop and send metrics to the configured back ends, until cancelled."""
        section = self._settings.telemetry.metrics
        async with asyncio.TaskGroup() as group:
            group.create_task(self.loop_lag.run())
            if section.otlp is not None:
                group.create_task(
                    self._export(
                        partial(self._create_otlp_exporter, section.otlp), section.interval
                    )
                )
            if section.influx is not None:
                group.create_task(
                    self._export(
                        partial(self._create_influx_exporter, section.influx),
                        section.influx.interval,
                    )
                )

    async def _export(
        self, create_exporter: Callable[[], MetricsExporter], interval_s: float
    ) -> None:
        # Importing an exporter's library takes long enough to delay clients: not in the event loop.
        exporter = await asyncio.to_thread(create_exporter)
        try:
            while True:
                await asyncio.sleep(interval_s)
                samples = self.collect_own()
                if self._bus.worker == 1:
                    await self._add_supervisor_series(samples)
                    await self._add_zeros(samples)
                if not await run_in_thread(partial(exporter.send, samples), "metrics"):
                    log.warning("the metrics of this interval did not arrive at %s", exporter.url)
        finally:
            exporter.close()

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


CounterReport: TypeAlias = Iterable[tuple[int, float, float, Mapping[str, Iterable[Any]]]]
"""The number of a worker, and the fields of a `ProcessSamples` with only its counters; as JSON,
arrays."""

WorkerTotals: TypeAlias = Iterable[tuple[int, Mapping[str, Iterable[Any]]]]
"""The number of a worker, and the counters of all its processes; as JSON, arrays."""


class ProcessSamples(NamedTuple):
    """The answer of one process of a worker to a scrape. As JSON it is an array.

    Times are of `time.monotonic`, which is one clock for all processes of a host.
    """

    started_at: float
    collected_at: float
    samples: Mapping[str, Iterable[Any]]


class CounterHistory:
    """The counters of the workers of a gateway, as of the last scrape that they answered.

    Between calls, `_last` has the latest answer of each worker, whether that process still runs or
    not, and `_ended` the sums of the worker's processes before it.
    """

    def __init__(self) -> None:
        self._last: dict[int, ProcessSamples] = {}
        self._ended: dict[int, MetricSamples] = {}

    def update(self, report: CounterReport) -> WorkerTotals:
        """Remember the counters of a scrape, and return the totals that replace them in its sums.

        Returns:
            The totals of the workers whose answer is not all that they have counted: it is missing,
            or older than one of another scrape, or the worker had another process before.
        """
        complete: set[int] = set()
        for worker, started_at, collected_at, counters in report:
            current = ProcessSamples(started_at, collected_at, counters)
            last = self._last.get(worker)
            if last is not None and current[:2] < last[:2]:
                continue  # another scrape was faster, and has a later answer
            if last is not None and current.started_at > last.started_at:
                self._ended.setdefault(worker, MetricSamples()).merge(last.samples)
            self._last[worker] = current
            if worker not in self._ended:
                complete.add(worker)
        return [(worker, self._add_up(worker)) for worker in self._last if worker not in complete]

    def _add_up(self, worker: int) -> dict[str, list[Any]]:
        total = MetricSamples()
        if worker in self._ended:
            total.merge(self._ended[worker].to_json())
        total.merge(self._last[worker].samples)
        return total.to_json()


def build_report(answers: Mapping[int, Sequence[Any]]) -> list[Any]:
    """Return the counters of `ProcessSamples` by worker as JSON of a `CounterReport`."""
    return [
        [worker, started_at, collected_at, select_counters(samples)]
        for worker, (started_at, collected_at, samples) in answers.items()
    ]


def merge_answers(
    answers: Mapping[int, Sequence[Any]], totals: WorkerTotals, samples: MetricSamples
) -> Iterator[None]:
    """Add the samples of one worker after the other; yield after each, as it takes long."""
    totals_by_worker = dict(totals)
    for worker in sorted(answers.keys() | totals_by_worker.keys()):
        total = totals_by_worker.get(worker)
        if worker in answers:
            _, _, answer = answers[worker]
            samples.merge(answer if total is None else reset_counters(answer))
        if total is not None:
            samples.merge(total)
        yield
