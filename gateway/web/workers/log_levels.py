"""What is logged, changed while the gateway runs: in all of its workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.telemetry import logs

from .bus import Bus

TOPIC = "log-levels"


class Levels:
    """Of the processes on a bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        bus.on(TOPIC, self._heard)

    @property
    def current(self) -> Mapping[str, str]:
        """What this process logs, by room; `""` is of all others."""
        return logs.current_levels()

    def set(self, level: str, levels: Mapping[str, str]) -> None:
        """From now on, here and in all other workers; those not named log what all do.

        Raises ValueError for what is no level.
        """
        logs.set_levels(level, levels)
        self._bus.say(TOPIC, [level, dict(levels)])

    def _heard(self, worker: int, said: Any) -> None:
        level, levels = said
        logs.set_levels(level, levels)
