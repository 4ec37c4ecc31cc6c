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
from gateway.hub import figures as of_hubs
from gateway.hub.fanout.hubs import Hubs
from gateway.telemetry import catalog, logs
from gateway.telemetry.aside import aside
from gateway.telemetry.figures import Figures
from gateway.telemetry.lateness import Lateness
from gateway.telemetry.process import process
from gateway.telemetry.prometheus import expose
from gateway.version import __version__
from gateway.web.http import problems
from gateway.web.routing.limits import Limits
from gateway.web.workers.bus import Bus

log = logging.getLogger(__name__)

TOPIC = "figures"
WITHIN = 1.0  # seconds for the other workers to answer
END = 3.0  # seconds that the gateway's end may take for the last figures


class Push(Protocol):
    """What figures are sent by, to its `url`. `send` blocks, and says if they arrived."""

    url: str

    def send(self, figures: Figures) -> bool: ...

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
        self._lateness = Lateness()
        self.more: list[Callable[[Figures], None]] = []
        bus.on(TOPIC, self._answer)

    def own(self) -> Figures:
        """Of this process."""
        figures, worker = Figures(), self._bus.worker
        of_hubs.read_all(self._hubs, figures)
        figures.count(catalog.REFUSED_CONNECTIONS, self._limits.refused)
        figures.count(catalog.REFUSED_REQUESTS, problems.answered)
        figures.count(catalog.LOGGED, logs.lines)
        figures.observed(catalog.LOOP_LAG, self._lateness.seconds, worker)
        figures.add(catalog.INFO, 1, self._settings.name, __version__)
        process(figures, worker)
        for read in self.more:
            read(figures)
        return figures

    async def of_all(self) -> Figures:
        """Of all workers that answer in time; it says how many did not."""
        answers = await self._bus.ask(TOPIC, within=WITHIN)
        figures = Figures()
        for plain in answers.said.values():
            figures.merge(plain)
            await asyncio.sleep(0)
        figures.add(catalog.WORKERS, len(answers.said))
        figures.add(catalog.MISSING, len(answers.missing))
        return figures

    def _answer(self, worker: int, data: Any) -> Any:
        return self.own().plain()

    async def scrape(self, request: Request) -> Response:
        """In the format that is asked for; others have their turn between its pieces."""
        exposition = expose(await self.of_all(), request.headers.get("accept", ""))
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
            group.create_task(self._lateness.run())
            if told.otlp is not None:
                group.create_task(self._send(partial(self._otlp, told.otlp), told.interval))
            if told.influx is not None:
                group.create_task(
                    self._send(partial(self._influx, told.influx), told.influx.interval)
                )

    async def _send(self, made: Callable[[], Push], interval: float) -> None:
        push = await asyncio.to_thread(made)
        try:
            while True:
                await asyncio.sleep(interval)
                figures = self.own()
                if not await aside(partial(push.send, figures), "metrics"):
                    log.warning("the figures of this interval did not arrive at %s", push.url)
        finally:
            push.close()

    def _otlp(self, url: str) -> Push:
        from gateway.telemetry.otlp import Push, resource

        headers = self._settings.telemetry.headers
        plain = {name: secret.get_secret_value() for name, secret in headers.items()}
        return Push(url, plain, resource(self._settings.name, __version__))

    def _influx(self, told: Influx) -> Push:
        from gateway.telemetry.influx import Push, endpoint

        token = None if told.token is None else told.token.get_secret_value()
        url = endpoint(told.url, told.org, told.bucket, told.db)
        return Push(url, token, self._settings.name)
