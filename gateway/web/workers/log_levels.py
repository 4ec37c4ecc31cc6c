"""What is logged, changed while the gateway runs: in all of its workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.telemetry import logs

from .bus import Bus

BUS_TOPIC = "log-levels"


class LogLevels:
    """Of the processes on a bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        bus.add_handler(BUS_TOPIC, self._handle_levels)

    @property
    def current_levels(self) -> Mapping[str, str]:
        """What this process logs, by room; `""` is of all others."""
        return logs.get_levels()

    def set_levels(self, level: str, levels: Mapping[str, str]) -> None:
        """From now on, here and in all other workers; those not named log what all do.

        Raises ValueError for what is no level.
        """
        logs.set_levels(level, levels)
        self._bus.broadcast(BUS_TOPIC, [level, dict(levels)])

    def _handle_levels(self, worker: int, data: Any) -> None:
        level, levels = data
        logs.set_levels(level, levels)
