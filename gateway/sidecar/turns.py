"""Let other tasks run while the records of one request are converted."""

from __future__ import annotations

import asyncio
from time import perf_counter

TURN_S = 0.02  # of one request, after which the others get their turn


class Turns:
    """The time that a loop over records has used since other tasks ran.

    A codec may take 0.5 s for one record, such as a JSON Schema with many branches. A request may
    have thousands of them.
    """

    def __init__(self) -> None:
        self._ends_at = perf_counter() + TURN_S

    def is_over(self) -> bool:
        return perf_counter() >= self._ends_at

    async def pass_on(self) -> None:
        await asyncio.sleep(0)
        self._ends_at = perf_counter() + TURN_S
