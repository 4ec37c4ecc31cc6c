"""Retry requests to a server that does not answer, with delays that grow to 2 s."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from gateway.core.log.recovery import Backoff, Cause

log = logging.getLogger(__name__)

MAX_RETRY_DELAY_S = 2.0


class OutageBackoff:
    """The delays between requests to one server, and the log lines about its outages.

    Each `LookupTable` and each loader of a table has one. An outage is logged when the second
    request in a row has failed, and when the server answers again.
    """

    def __init__(
        self,
        display_name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._display_name, self._clock, self._sleep = display_name, clock, sleep
        self._backoff = Backoff(max_delay=MAX_RETRY_DELAY_S, random=random.random)
        self._started_at = 0.0

    @property
    def is_outage(self) -> bool:
        """Return whether the server has failed more than once.

        A single failure may just be an idle connection that the server has closed.
        """
        return self._backoff.attempts >= 2

    def wait_for_retry(self, error: Exception, consequence: str) -> None:
        """Wait before a request is repeated. The log gets the consequence of an outage."""
        if self._backoff.attempts == 0:
            self._started_at = self._clock()
        delay = self._backoff.next_delay(Cause.CONNECTION)
        if self._backoff.attempts == 2:
            log.warning("%s is away (%s); %s", self._display_name, error, consequence)
        self._sleep(delay)

    def reset(self) -> None:
        if self.is_outage:
            log.warning(
                "%s answers again, after %.1f s",
                self._display_name,
                self._clock() - self._started_at,
            )
        self._backoff.reset()
