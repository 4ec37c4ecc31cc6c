"""A configuration that was written anew, taken over while streams run.

Streams whose route shows them the same go on untouched. Those that it shows something else go on
in place, as that, from where they stand. Those whose route is gone, or whose client may not be
here any more, end and say so; so do those of guards that were changed, which have to be asked anew.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from gateway.config import Route, Settings
from gateway.config.checks.reload import apply_reload
from gateway.errors import GatewayError
from gateway.telemetry import logs

if TYPE_CHECKING:
    from gateway.web.access.guards import Guards
    from gateway.web.routing.routes import Routes

    from .app import Application

log = logging.getLogger(__name__)

SettingsLoader = Callable[[], Settings]


class ReloadOutcome(NamedTuple):
    """Of one reload, by what became of routes and streams. kept: options that need a restart."""

    same: int
    changed: int
    added: int
    removed: int
    streams: dict[str, int]
    seconds: float
    kept: tuple[str, ...]

    def __str__(self) -> str:
        routes = f"{self.same} the same, {self.changed} changed, {self.added} new"
        streams = ", ".join(f"{count} {what}" for what, count in self.streams.items()) or "none"
        told = f"routes: {routes}, {self.removed} gone; streams: {streams}"
        return f"{told}; until a restart as before: {', '.join(self.kept)}" if self.kept else told


class Reloader:
    """Of one application.

    show: has its pages say what is configured now.
    count, last: how many were taken over, and what came of the last.
    """

    def __init__(
        self,
        app: Application,
        routes: Routes,
        guards: Guards,
        update_pages: Callable[[Settings], None],
    ) -> None:
        self._app = app
        self._routes = routes
        self._guards = guards
        self._update_pages = update_pages
        self.reload_count = 0
        self.last_outcome: ReloadOutcome | None = None

    async def __call__(self, loaded: Settings) -> ReloadOutcome:
        """Take it over; returns once each stream was told or left alone. Raises ConfigError, and
        all is as it was."""
        began, running = time.perf_counter(), self._routes.settings
        settings, kept = apply_reload(running, loaded)
        guards = self._guards.apply_settings(settings)
        topics = self._app.gateway.adopt(settings)
        self._routes.apply_settings(settings)
        self._update_pages(settings)
        logs.set_levels(
            settings.telemetry.logs.level,
            {str(room): str(level) for room, level in settings.telemetry.logs.levels.items()},
        )
        streams = await self._routes.stream_registry.apply_reload(guards, topics)
        counts = _count_changes(running.routes, settings.routes)
        outcome = ReloadOutcome(*counts, streams, time.perf_counter() - began, kept)
        log.info("configuration reloaded in %.3f s: %s", outcome.seconds, outcome)
        self.reload_count, self.last_outcome = self.reload_count + 1, outcome
        return outcome

    async def try_reload(self, load: SettingsLoader) -> ReloadOutcome | None:
        """Of what is loaded now; None where that cannot be, and the log says why."""
        with log_reload_errors():
            return await self(load())
        return None


@contextmanager
def log_reload_errors() -> Iterator[None]:
    """Have what cannot be taken over said in the log."""
    try:
        yield
    except (GatewayError, OSError) as exc:
        log.error("configuration not reloaded, all stays as it was: %s", exc)


async def reload_on_hangup(app: Application, load: SettingsLoader) -> None:
    """At each SIGHUP, one after the other, until it is cancelled."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, asked.set)
    try:
        while True:
            await asked.wait()
            asked.clear()
            await app.reload.try_reload(load)
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def _count_changes(running: Iterable[Route], loaded: Iterable[Route]) -> tuple[int, int, int, int]:
    """Routes that are the same, changed, new and gone: those with a path in common are one."""
    old = {when.path: route for route in running for when in route.when}
    new = list(loaded)
    found = [[old[when.path] for when in route.when if when.path in old] for route in new]
    same = sum(route in known for route, known in zip(new, found, strict=True))
    added = sum(not known for known in found)
    paths = {when.path for route in new for when in route.when}
    gone = sum(all(w.path not in paths for w in route.when) for route in running)
    return same, len(new) - same - added, added, gone
