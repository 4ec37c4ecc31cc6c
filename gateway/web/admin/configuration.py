"""Reload the configuration in all workers, and compare the one in effect with the file on disk.

Where there is a supervisor, it has read the file and reads it again; workers ask it. A comparison
shows no secret.
"""

from __future__ import annotations

import asyncio
import difflib
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.config import Settings
from gateway.config.sections.reload import apply_reload
from gateway.config.source.yaml_document import dumps
from gateway.errors import GatewayError, RequestError
from gateway.web.workers.bus import Bus, SupervisorUnavailable

from .reload import Reloader, ReloadOutcome, SettingsLoader

RELOAD_TOPIC = "reload"
RELOAD_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.05  # seconds between two questions to them
ROUTE_COUNTS = ("same", "changed", "added", "removed")
NOTHING_CHANGED = ReloadOutcome(0, 0, 0, 0, {}, 0.0, ())


class ReloadRefused(Exception):
    """The configuration was refused, and nothing has changed."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class ReloadCoordinator:
    """Reloads the configuration of all processes on a bus.

    `load` is None if the configuration cannot be loaded, or if there is a supervisor, which loads
    it.
    """

    def __init__(
        self, reloader: Reloader, bus: Bus, *, timeout_s: float = RELOAD_TIMEOUT_S
    ) -> None:
        self.load: SettingsLoader | None = None
        self._reloader = reloader
        self._bus = bus
        self._timeout_s = timeout_s
        bus.add_handler("admin-reloaded", self._handle_status)

    async def __call__(self, *, is_dry_run: bool = False) -> dict[str, Any]:
        """Reload in all workers, and return what became of routes and streams, as JSON.

        If the configuration is refused, nothing has changed. A dry run changes nothing.
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
        """Let the supervisor load the configuration, and wait until all workers applied it."""
        try:
            answer: list[str] | int = await self._bus.call_supervisor(
                RELOAD_TOPIC, is_dry_run, timeout_s=self._timeout_s
            )
        except SupervisorUnavailable as exc:
            raise RequestError(503, "Busy", f"{exc}; try again", retry_after=1.0) from None
        if not isinstance(answer, int):
            raise ReloadRefused(answer)
        loop = asyncio.get_running_loop()
        deadline, outcomes = loop.time() + self._timeout_s, dict[int, Any]()
        while len(outcomes) < self._bus.worker_count and loop.time() < deadline:
            await asyncio.sleep(POLL_INTERVAL_S)
            statuses = await self._bus.request("admin-reloaded", is_dry_run)
            outcomes = {
                worker: outcome
                for worker, (number, outcome) in statuses.by_worker.items()
                if number >= answer
            }
        return merge_outcomes(
            outcomes, [n for n in range(1, self._bus.worker_count + 1) if n not in outcomes]
        )

    def _handle_status(self, worker: int, data: Any) -> tuple[int, dict[str, Any]]:
        reloader, is_dry_run = self._reloader, data
        last = reloader.last_preview if is_dry_run else reloader.last_outcome
        # A worker that was started with the configuration has changed nothing.
        return reloader.applied_number, (last or NOTHING_CHANGED).to_json()


def merge_outcomes(outcomes: dict[int, dict[str, Any]], missing: list[int]) -> dict[str, Any]:
    """Return the outcome of a reload in all workers as JSON.

    Routes are the same in all workers, so those of one worker are reported; streams are added up.
    """
    streams: Counter[str] = Counter()
    by_route: dict[str, Counter[str]] = {}
    for outcome in outcomes.values():
        streams.update(outcome["streams"])
        for change in outcome["changes"]:
            by_route.setdefault(change["route"], Counter()).update(change["streams"])
    first = max(
        outcomes.values(),
        default=NOTHING_CHANGED.to_json(),
        # None in a worker that has just started.
        key=lambda outcome: sum(int(outcome[name]) for name in ROUTE_COUNTS),
    )
    return {
        "routes": {name: first[name] for name in ROUTE_COUNTS},
        "streams": dict(streams),
        "changes": [
            {**change, "streams": dict(by_route[change["route"]])} for change in first["changes"]
        ],
        "kept": list(first["kept"]),
        "seconds": max([outcome["seconds"] for outcome in outcomes.values()], default=0.0),
        "missing": missing,
    }


def list_problems(exc: Exception) -> list[str]:
    return list(getattr(exc, "problems", None) or [str(exc)])


FILE_TOPIC = "file-settings"
FILE_TIMEOUT_S = 10.0  # seconds for the supervisor to read and check the file


class FileSettings(NamedTuple):
    """The contents of the file on disk, as YAML with references in place of secrets.

    The text is empty if there is no file, or if it has mistakes. `is_same` compares secrets, too;
    `kept` are the changed options that need a restart.
    """

    text: str
    problems: list[str]
    is_same: bool
    is_reloadable: bool = False
    kept: Sequence[str] = ()


def read_file_settings(load: SettingsLoader | None, running: Settings) -> FileSettings:
    if load is None:
        return FileSettings("", [], is_same=False)
    try:
        loaded = load()
        # What a reload would say of it: it may refuse what is well by itself, such as a cluster.
        reloaded = apply_reload(running, loaded)
    except (GatewayError, OSError) as exc:
        return FileSettings("", list_problems(exc), is_same=False)
    is_reloadable = reloaded.settings != running
    return FileSettings(dumps(loaded), [], loaded == running, is_reloadable, reloaded.kept)


async def fetch_file_settings(
    coordinator: ReloadCoordinator, running: Settings, bus: Bus
) -> FileSettings:
    """Return the contents of the file, as this process or its supervisor reads it."""
    if bus.worker_count == 1:
        return await asyncio.to_thread(read_file_settings, coordinator.load, running)
    try:
        answer = await bus.call_supervisor(FILE_TOPIC, timeout_s=FILE_TIMEOUT_S)
    except SupervisorUnavailable as exc:
        raise RequestError(503, "Busy", f"{exc}; try again", retry_after=1.0) from None
    return FileSettings(*answer)


def build_report(running: Settings, file: FileSettings) -> dict[str, Any]:
    loaded = dumps(running)
    diff = (
        list(
            difflib.unified_diff(
                loaded.splitlines(), file.text.splitlines(), "in effect", "file", lineterm=""
            )
        )
        if file.text
        else []
    )
    if file.problems:
        state = "refused"
    elif not file.text:
        state = "no-file"
    elif file.is_same:
        state = "same"
    elif not file.is_reloadable:
        state = "restart"
    else:
        state = "differs" if diff else "secrets"
    return {
        "loaded": loaded,
        "diff": diff,
        "problems": file.problems,
        "state": state,
        "kept": list(file.kept),
    }
