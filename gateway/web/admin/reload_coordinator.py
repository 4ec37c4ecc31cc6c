"""Reload the configuration in all workers, and report what changed."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from gateway.errors import GatewayError, RequestError
from gateway.web.app.reload import Reloader, ReloadOutcome, SettingsLoader
from gateway.web.workers.bus import Bus, SupervisorUnavailable

BUS_TOPIC = "reload"
RELOAD_TIMEOUT_S = 30.0  # seconds until all workers must have applied it
POLL_INTERVAL_S = 0.05  # seconds between two questions to them


class ReloadRefused(Exception):
    """The configuration was refused, and nothing has changed."""

    def __init__(self, problems: list[str]) -> None:
        """Create the error.

        Args:
            problems: The problems, a line each.
        """
        super().__init__("\n".join(problems))
        self.problems = problems


class ReloadCoordinator:
    """Reloads the configuration of all processes on a bus.

    Created by `AdminApi`.

    Attributes:
        load: Returns the configuration as it is now. None if it cannot be loaded, or if there is a
            supervisor, which loads it.
    """

    def __init__(self, reloader: Reloader, bus: Bus) -> None:
        """Create the coordinator.

        Args:
            reloader: Reloads the configuration of this process.
            bus: The connection to the other processes.
        """
        self.load: SettingsLoader | None = None
        self._reloader = reloader
        self._bus = bus
        bus.add_handler("admin-reloaded", self._handle_status)

    async def __call__(self, *, is_dry_run: bool = False) -> dict[str, Any]:
        """Reload in all workers, and return what became of routes and streams, as JSON.

        Args:
            is_dry_run: Change nothing, and return what would become of them.

        Raises:
            ReloadRefused: The configuration is refused, and nothing has changed.
            RequestError: The configuration cannot be loaded again.
        """
        if self._bus.worker_count > 1:
            return await self._reload_by_supervisor(is_dry_run)
        if self.load is None:
            detail = "this gateway was not started from a file; start it with `gateway run`"
            raise RequestError(409, "Conflict", detail)
        try:
            apply = self._reloader.preview if is_dry_run else self._reloader
            return merge_outcomes({1: (await apply(self.load())).to_json()}, [])
        except (GatewayError, OSError) as exc:
            if not is_dry_run:
                self._reloader.counts.count_refused()
            raise ReloadRefused(list_problems(exc)) from None

    async def _reload_by_supervisor(self, is_dry_run: bool) -> dict[str, Any]:
        """Let the supervisor load the configuration, and wait until all workers applied it.

        A worker has applied it, or previewed it, once it counts more reloads than before.
        """
        statuses_before = await self._get_reload_counts(is_dry_run)
        try:
            problems = await self._bus.call_supervisor(
                BUS_TOPIC, is_dry_run, timeout_s=RELOAD_TIMEOUT_S
            )
        except SupervisorUnavailable as exc:
            raise RequestError(503, "Busy", f"{exc}; try again", retry_after=1.0) from None
        if problems:
            raise ReloadRefused(problems)
        loop = asyncio.get_running_loop()
        deadline, outcomes = loop.time() + RELOAD_TIMEOUT_S, dict[int, Any]()
        while len(outcomes) < self._bus.worker_count and loop.time() < deadline:
            await asyncio.sleep(POLL_INTERVAL_S)
            statuses = await self._get_reload_counts(is_dry_run)
            outcomes = {
                worker: outcome
                for worker, (count, outcome) in statuses.items()
                if count > statuses_before[worker][0] and outcome is not None
            }
        return merge_outcomes(
            outcomes, [n for n in range(1, self._bus.worker_count + 1) if n not in outcomes]
        )

    async def _get_reload_counts(self, is_dry_run: bool) -> dict[int, tuple[int, Any]]:
        """Return how many reloads each worker has done, and what the last one changed."""
        none = dict.fromkeys(range(1, self._bus.worker_count + 1), (0, None))
        return none | dict((await self._bus.request("admin-reloaded", is_dry_run)).by_worker)

    def _handle_status(self, worker: int, data: Any) -> tuple[int, dict[str, Any] | None]:
        reloader, is_dry_run = self._reloader, data
        last = reloader.last_preview if is_dry_run else reloader.last_outcome
        count = reloader.preview_count if is_dry_run else reloader.reload_count
        return count, None if last is None else last.to_json()


def merge_outcomes(outcomes: dict[int, dict[str, Any]], missing: list[int]) -> dict[str, Any]:
    """Return the outcome of a reload in all workers as JSON.

    Routes are the same in all workers, so those of one worker are reported; streams are added up.

    Args:
        outcomes: The `ReloadOutcome` of each worker, as JSON.
        missing: The workers that did not apply the configuration in time.
    """
    streams: Counter[str] = Counter()
    by_route: dict[str, Counter[str]] = {}
    for outcome in outcomes.values():
        streams.update(outcome["streams"])
        for change in outcome["changes"]:
            by_route.setdefault(change["route"], Counter()).update(change["streams"])
    first = next(iter(outcomes.values()), ReloadOutcome(0, 0, 0, 0, {}, 0.0, ()).to_json())
    return {
        "routes": {name: first[name] for name in ("same", "changed", "added", "removed")},
        "streams": dict(streams),
        "changes": [
            {**change, "streams": dict(by_route[change["route"]])} for change in first["changes"]
        ],
        "kept": list(first["kept"]),
        "seconds": max([outcome["seconds"] for outcome in outcomes.values()], default=0.0),
        "missing": missing,
    }


def list_problems(exc: Exception) -> list[str]:
    """Return the problems of an error, a line each."""
    return list(getattr(exc, "problems", None) or [str(exc)])
