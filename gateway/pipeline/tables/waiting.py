"""Asking again what is away: after delays that grow to 2 s, with a line when it is worth one."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from gateway.core.log.recovery import Backoff, Cause

log = logging.getLogger(__name__)

LONGEST = 2.0  # s between two requests


class Waiting:
    """What one server has let us wait for. shown: its name in lines of the log."""

    def __init__(
        self,
        shown: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._shown, self._clock, self._sleep = shown, clock, sleep
        self._backoff = Backoff(ceiling=LONGEST, random=random.random)
        self._since = 0.0

    @property
    def long(self) -> bool:
        """It failed more than once: not only an idle connection that was closed."""
        return self._backoff.attempts >= 2

    def failed(self, error: Exception, then: str) -> None:
        """Wait. then: what happens meanwhile, for the log."""
        if self._backoff.attempts == 0:
            self._since = self._clock()
        delay = self._backoff.delay(Cause.CONNECTION)
        if self._backoff.attempts == 2:
            log.warning("%s is away (%s); %s", self._shown, error, then)
        self._sleep(delay)

    def succeeded(self) -> None:
        if self.long:
            log.warning("%s answers again, after %.1f s", self._shown, self._clock() - self._since)
        self._backoff.succeeded()
