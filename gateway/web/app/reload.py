"""Apply a changed configuration while streams run.

Streams whose route shows them the same records go on untouched. Streams whose route shows something
else go on in place, with that, from their position. Streams end with a reason if their route is
gone or their client may not have them any more, and also if one of their guards changed: the new
one has to admit the client first.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gateway.config import Route, Settings
from gateway.config.checks.reload import apply_reload
from gateway.errors import GatewayError
from gateway.telemetry import logs

from .reload_counts import ReloadCounts

if TYPE_CHECKING:
    from gateway.api.gateway import Gateway
    from gateway.web.access.guards import Guards
    from gateway.web.routing.routes import Routes

log = logging.getLogger(__name__)

SettingsLoader = Callable[[], Settings]
"""Returns the configuration as it is now. May raise GatewayError or OSError."""


class ReloadOutcome(NamedTuple):
    """What one reload changed.

    Attributes:
        same: The number of routes that are the same.
        changed: The number of routes that changed.
        added: The number of new routes.
        removed: The number of routes that are gone.
        streams: The number of streams, by what became of them.
        seconds: How long the reload took.
        kept: The changed options that need a restart and keep their old values.
    """

    same: int
    changed: int
    added: int
    removed: int
    streams: dict[str, int]
    seconds: float
    kept: tuple[str, ...]

    def __str__(self) -> str:
        """Return the text of the log line."""
        # In the words of the admin API and of `gateway reload --admin`.
        routes = f"{self.same} same, {self.changed} changed, {self.added} added"
        streams = (
            ", ".join(f"{count} {outcome}" for outcome, count in self.streams.items()) or "none"
        )
        text = f"routes: {routes}, {self.removed} removed; streams: {streams}"
        return f"{text}; until a restart as before: {', '.join(self.kept)}" if self.kept else text


class ReloadableApp(Protocol):
    """Define what a reload needs of the `Application`.

    Attributes:
        gateway: The gateway, which adopts the new settings.
    """

    gateway: Gateway

    @property
    def reload(self) -> Reloader:
        """Return what applies changed configurations."""


class Reloader:
    """Apply changed configurations to one application.

    Created by `create_app`.

    Attributes:
        reload_count: The number of configurations that were applied.
        last_outcome: What the last of them changed.
        counts: How many were applied and refused, for metrics.
    """

    def __init__(
        self,
        app: ReloadableApp,
        routes: Routes,
        guards: Guards,
        update_pages: Callable[[Settings], None],
    ) -> None:
        """Create the reloader.

        Args:
            app: The application.
            routes: The routes of its streams.
            guards: Its guards.
            update_pages: Called with the new settings, to serve pages that fit them.
        """
        self._app = app
        self._routes = routes
        self._guards = guards
        self._update_pages = update_pages
        self.reload_count = 0
        self.last_outcome: ReloadOutcome | None = None
        self.counts = ReloadCounts()

    async def __call__(self, loaded: Settings) -> ReloadOutcome:
        """Apply a configuration, and return once every stream was handled.

        Args:
            loaded: The new configuration.

        Raises:
            ConfigError: It cannot be applied; nothing has changed.
        """
        started_at, running = time.perf_counter(), self._routes.settings
        # First all that can fail, so that a refused configuration changes nothing.
        settings, kept_options = apply_reload(running, loaded)
        guards = self._guards.apply_settings(settings)
        topics = self._app.gateway.adopt(settings)
        self._routes.apply_settings(settings)
        self._update_pages(settings)
        logs.set_levels(
            settings.telemetry.logs.level,
            {str(name): str(level) for name, level in settings.telemetry.logs.levels.items()},
        )
        streams = await self._routes.stream_registry.apply_reload(guards, topics)
        counts = _count_changes(running.routes, settings.routes)
        outcome = ReloadOutcome(*counts, streams, time.perf_counter() - started_at, kept_options)
        log.info("configuration reloaded in %.3f s: %s", outcome.seconds, outcome)
        self.reload_count, self.last_outcome = self.reload_count + 1, outcome
        self.counts.count_applied()
        return outcome

    async def try_reload(self, load: SettingsLoader) -> ReloadOutcome | None:
        """Apply what `load` returns; None if that fails, and the log says why."""
        with log_reload_errors(self.counts):
            return await self(load())
        return None


@contextmanager
def log_reload_errors(counts: ReloadCounts) -> Iterator[None]:
    """Count and log why a configuration cannot be applied, instead of raising it."""
    try:
        yield
    except (GatewayError, OSError) as exc:
        counts.count_refused()
        log.error("configuration not reloaded, all stays as it was: %s", exc)


async def reload_on_hangup(app: ReloadableApp, load: SettingsLoader) -> None:
    """Reload at each SIGHUP, one reload after the other, until cancelled.

    Args:
        app: The application.
        load: Returns the configuration as it is now.
    """
    loop, hangup_event = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, hangup_event.set)
    try:
        while True:
            await hangup_event.wait()
            hangup_event.clear()
            await app.reload.try_reload(load)
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def _count_changes(running: Iterable[Route], loaded: Iterable[Route]) -> tuple[int, int, int, int]:
    """Count the routes that are the same, changed, new and gone.

    Two routes are the same route if they have a path in common.
    """
    old_by_path = {when.path: route for route in running for when in route.when}
    new_routes = list(loaded)
    old_routes = [
        [old_by_path[when.path] for when in route.when if when.path in old_by_path]
        for route in new_routes
    ]
    same = sum(route in old for route, old in zip(new_routes, old_routes, strict=True))
    added = sum(not old for old in old_routes)
    new_paths = {when.path for route in new_routes for when in route.when}
    gone = sum(all(when.path not in new_paths for when in route.when) for route in running)
    return same, len(new_routes) - same - added, added, gone
