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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.config import Route, Settings
from gateway.config.sections.reload import apply_reload
from gateway.errors import GatewayError
from gateway.telemetry import catalog, logs
from gateway.telemetry.samples import MetricSamples
from gateway.web.access.admission import find_changed_guards

if TYPE_CHECKING:
    from gateway.api.gateway import Gateway
    from gateway.web.access.admission import Guards
    from gateway.web.routing.open_streams import StreamOutcomes
    from gateway.web.routing.routes import Routes

log = logging.getLogger(__name__)


class ReloadCounts:
    """The number of reloads, and how the last one ended.

    They are those of one process, or of a supervisor for all of its workers.
    """

    def __init__(self) -> None:
        self.applied = 0
        self.refused = 0
        self.is_last_successful = True

    def count_applied(self) -> None:
        self.applied += 1
        self.is_last_successful = True

    def count_refused(self) -> None:
        self.refused += 1
        self.is_last_successful = False

    def collect_metrics(self, samples: MetricSamples, *, is_one_of_several: bool = False) -> None:
        """Add the metrics of reloads; a supervisor counts those applied in several workers."""
        samples.add(catalog.RELOADS, 0 if is_one_of_several else self.applied, "applied")
        samples.add(catalog.RELOADS, self.refused, "refused")
        samples.add(catalog.LAST_RELOAD_SUCCESSFUL, self.is_last_successful)


MAX_LOGGED = 8  # routes of one kind of change that the log names
SAME, CHANGED, ADDED, REMOVED = "same", "changed", "added", "removed"

SettingsLoader = Callable[[], Settings]
"""Returns the configuration as it is now. May raise GatewayError or OSError."""


class RouteChange(NamedTuple):
    """The effect of a reload on a route, by its name before; streams by their outcome."""

    route: str
    change: str
    streams: dict[str, int]


class ReloadOutcome(NamedTuple):
    """The effect of one reload or preview: counts of routes, and of streams by outcome.

    `kept` are the changed options that need a restart and keep their old values.
    """

    same: int
    changed: int
    added: int
    removed: int
    streams: dict[str, int]
    seconds: float
    kept: tuple[str, ...]
    changes: tuple[RouteChange, ...] = ()

    def __str__(self) -> str:
        # In the words of the admin API and of `gateway reload`.
        routes = f"{self.same} same, {self.changed} changed, {self.added} added"
        streams = (
            ", ".join(f"{count} {outcome}" for outcome, count in self.streams.items()) or "none"
        )
        text = f"routes: {routes}, {self.removed} removed; streams: {streams}"
        for kind in (CHANGED, ADDED, REMOVED):
            names = [change.route for change in self.changes if change.change == kind]
            if names:
                more = f" and {len(names) - MAX_LOGGED} more" if len(names) > MAX_LOGGED else ""
                text += f"; {kind}: {', '.join(names[:MAX_LOGGED])}{more}"
        return f"{text}; until a restart as before: {', '.join(self.kept)}" if self.kept else text

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "changes": [change._asdict() for change in self.changes]}


@dataclass(eq=False)
class Reloader:
    """Apply changed configurations to one application.

    `applied_number` is that of the last message of the supervisor that was applied or previewed
    here, or sent to others before this process was started.
    """

    _gateway: Gateway
    _routes: Routes
    _guards: Guards
    _update_pages: Callable[[Settings], None]
    last_outcome: ReloadOutcome | None = None
    last_preview: ReloadOutcome | None = None
    applied_number: int = 0
    counts: ReloadCounts = field(default_factory=ReloadCounts)

    async def __call__(self, loaded: Settings) -> ReloadOutcome:
        """Apply a configuration to every stream, or raise `ConfigError` and change nothing."""
        started_at, running = time.perf_counter(), self._routes.settings
        # First all that can fail, so that a refused configuration changes nothing.
        settings, kept_options = apply_reload(running, loaded)
        guards = self._guards.apply_settings(settings)
        topics = self._gateway.adopt(settings)
        self._routes.apply_settings(settings)
        self._update_pages(settings)
        logs.set_levels(
            settings.telemetry.logs.level,
            {str(name): str(level) for name, level in settings.telemetry.logs.levels.items()},
        )
        streams = await self._routes.stream_registry.apply_reload(guards, topics)
        seconds = time.perf_counter() - started_at
        outcome = _build_outcome(running.routes, settings.routes, streams, seconds, kept_options)
        log.info("configuration reloaded in %.3f s: %s", outcome.seconds, outcome)
        self.last_outcome = outcome
        self.counts.count_applied()
        return outcome

    async def preview(self, loaded: Settings) -> ReloadOutcome:
        """Return what a configuration would change, and change nothing; raises as a reload."""
        started_at, running = time.perf_counter(), self._routes.settings
        settings, kept_options = apply_reload(running, loaded)
        self._guards.check_settings(settings)
        streams = await self._routes.stream_registry.predict_reload(
            self._routes.with_settings(settings),
            find_changed_guards(running.guards, settings.guards),
            self._gateway.hubs.find_changed_topics(settings),
        )
        seconds = time.perf_counter() - started_at
        return _build_outcome(running.routes, settings.routes, streams, seconds, kept_options)

    async def try_preview(self, loaded: Settings) -> ReloadOutcome | None:
        """Preview a configuration; None if that fails, and the log says why."""
        try:
            self.last_preview = await self.preview(loaded)
        except (GatewayError, OSError) as exc:
            log.error("configuration not previewed: %s", exc)
            return None
        return self.last_preview

    async def try_reload(self, load: SettingsLoader) -> ReloadOutcome | None:
        """Apply the result of `load`; None if that fails, and the log says why."""
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
    except Exception:  # a fault of the gateway: it goes on, and obeys the next signal
        counts.count_refused()
        log.exception("configuration not reloaded")


async def reload_on_hangup(reloader: Reloader, load: SettingsLoader) -> None:
    """Reload at each SIGHUP, one reload after the other, until cancelled."""
    loop, hangup_event = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, hangup_event.set)
    try:
        while True:
            await hangup_event.wait()
            hangup_event.clear()
            await reloader.try_reload(load)
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def _build_outcome(
    running: Sequence[Route],
    loaded: Sequence[Route],
    streams: StreamOutcomes,
    seconds: float,
    kept_options: tuple[str, ...],
) -> ReloadOutcome:
    changes = list(_iter_changes(running, loaded))
    counts = Counter(change for _, change in changes)
    totals: Counter[str] = Counter()
    by_route: dict[str, dict[str, int]] = {}
    for (route, outcome), count in streams.items():
        totals[outcome] += count
        by_route.setdefault(route, {})[outcome] = count
    return ReloadOutcome(
        counts[SAME],
        counts[CHANGED],
        counts[ADDED],
        counts[REMOVED],
        dict(totals),
        seconds,
        kept_options,
        tuple(
            RouteChange(name, change, by_route.get(name, {}) if change != ADDED else {})
            for name, change in changes
            if change != SAME
        ),
    )


def _iter_changes(running: Sequence[Route], loaded: Sequence[Route]) -> Iterator[tuple[str, str]]:
    """Yield the name of each route and what becomes of it.

    Two routes are the same route if they answer to a path and a method in common.
    """
    old_by_target = {target: route for route in running for target in _list_targets(route)}
    for route in loaded:
        old = [old_by_target[each] for each in _list_targets(route) if each in old_by_target]
        if not old:
            yield route.name, ADDED
        else:
            yield old[0].name, SAME if route in old else CHANGED
    new_targets = {target for route in loaded for target in _list_targets(route)}
    for route in running:
        if new_targets.isdisjoint(_list_targets(route)):
            yield route.name, REMOVED


def _list_targets(route: Route) -> list[tuple[str, str]]:
    return [(when.path, route.get_method(when)) for when in route.when]
