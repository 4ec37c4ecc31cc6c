"""Change what is logged while the gateway runs, in all of its workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.config.source.substitution import safe_repr, suggest
from gateway.telemetry import logs

from .bus import Bus

BUS_TOPIC = "log-levels"


class LogLevels:
    """The log levels of all processes on a bus. Created by `create_app`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        bus.add_handler(BUS_TOPIC, self._handle_levels)

    @property
    def current_levels(self) -> Mapping[str, str]:
        """The level of each logger of this process; `""` stands for all others."""
        return logs.get_levels()

    def set_levels(self, level: str, levels: Mapping[str, str]) -> None:
        """Set the levels of all workers; a wrong one is a `ValueError` and changes nothing."""
        for name in levels:
            if not logs.is_logger(name):
                # Log lines show the names of loggers, which have this prefix.
                near = suggest(name.removeprefix("gateway."), (*logs.COMPONENTS, *logs.LIBRARIES))
                raise ValueError(f"no component or library logs as {safe_repr(name)}; {near}")
        logs.set_levels(level, levels)
        self._bus.broadcast(BUS_TOPIC, [level, dict(levels)])

    def _handle_levels(self, worker: int, data: Any) -> None:
        level, levels = data
        logs.set_levels(level, levels)
