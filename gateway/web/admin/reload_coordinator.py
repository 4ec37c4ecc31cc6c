"""A reload that is asked for, in all workers, and what came of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from gateway.errors import GatewayError, RequestError
from gateway.web.app.reload import Reloader, ReloadOutcome, SettingsLoader
from gateway.web.workers.bus import Bus, SupervisorUnavailable

BUS_TOPIC = "reload"
RELOAD_TIMEOUT_S = 30.0  # seconds for all workers to have taken it over
POLL_INTERVAL_S = 0.05  # seconds between asking them


class ReloadRefused(Exception):
    """The configuration, as it is by now. problems: a line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class ReloadCoordinator:
    """Of all processes on a bus.

    load: the configuration as it is by now; where there is a supervisor, that one loads it.
    """

    def __init__(self, reloader: Reloader, bus: Bus) -> None:
        self.load: SettingsLoader | None = None
        self._reloader = reloader
        self._bus = bus
        bus.add_handler("admin-reloaded", self._handle_status)

    async def __call__(self) -> dict[str, Any]:
        """What became of routes and streams, in all workers. Raises Unfit where all stays as it
        was, and RequestError where nothing can be loaded."""
        if self._bus.worker_count > 1:
            return await self._reload_by_supervisor()
        if self.load is None:
            what = "this gateway was not started from a file; start it with `gateway run`"
            raise RequestError(409, "Conflict", what)
        try:
            return merge_outcomes({1: (await self._reloader(self.load()))._asdict()}, [])
        except (GatewayError, OSError) as exc:
            raise ReloadRefused(list_problems(exc)) from None

    async def _reload_by_supervisor(self) -> dict[str, Any]:
        before = await self._get_reload_counts()
        try:
            problems = await self._bus.call_supervisor(BUS_TOPIC, timeout_s=RELOAD_TIMEOUT_S)
        except SupervisorUnavailable as exc:
            raise RequestError(503, "Busy", f"{exc}; try again", retry_after=1.0) from None
        if problems:
            raise ReloadRefused(problems)
        loop = asyncio.get_running_loop()
        deadline, done = loop.time() + RELOAD_TIMEOUT_S, dict[int, Any]()
        while len(done) < self._bus.worker_count and loop.time() < deadline:
            await asyncio.sleep(POLL_INTERVAL_S)
            now = await self._get_reload_counts()
            done = {worker: said[1] for worker, said in now.items() if said[0] > before[worker][0]}
        return merge_outcomes(
            done, [n for n in range(1, self._bus.worker_count + 1) if n not in done]
        )

    async def _get_reload_counts(self) -> dict[int, tuple[int, Any]]:
        """By worker: how many reloads it has done, and what came of the last."""
        none = dict.fromkeys(range(1, self._bus.worker_count + 1), (0, None))
        return none | dict((await self._bus.request("admin-reloaded")).by_worker)

    def _handle_status(self, worker: int, data: Any) -> tuple[int, dict[str, Any] | None]:
        last = self._reloader.last_outcome
        return self._reloader.reload_count, None if last is None else last._asdict()


def merge_outcomes(outcomes: dict[int, dict[str, Any]], missing: list[int]) -> dict[str, Any]:
    """Of routes what one worker says, which they all do; of streams those of all. missing: workers
    that did not take it over in time."""
    streams: Counter[str] = Counter()
    for told in outcomes.values():
        streams.update(told["streams"])
    first = next(iter(outcomes.values()), ReloadOutcome(0, 0, 0, 0, {}, 0.0, ())._asdict())
    return {
        "routes": {name: first[name] for name in ("same", "changed", "added", "removed")},
        "streams": dict(streams),
        "kept": list(first["kept"]),
        "seconds": max([told["seconds"] for told in outcomes.values()], default=0.0),
        "missing": missing,
    }


def list_problems(exc: Exception) -> list[str]:
    """A line each."""
    return list(getattr(exc, "problems", None) or [str(exc)])
