"""Compare the configuration in effect with the file on disk, without any secret.

Where there is a supervisor, it has read the file and reads it again; workers ask it.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.config import Settings
from gateway.config.sections.reload import apply_reload
from gateway.config.source.yaml_document import dumps
from gateway.errors import GatewayError, RequestError
from gateway.web.admin.reload_coordinator import ReloadCoordinator, list_problems
from gateway.web.app.reload import SettingsLoader
from gateway.web.workers.bus import Bus, SupervisorUnavailable

BUS_TOPIC = "file-settings"
BUS_TIMEOUT_S = 10.0  # seconds for the supervisor to read and check the file


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
        answer = await bus.call_supervisor(BUS_TOPIC, timeout_s=BUS_TIMEOUT_S)
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
