"""What a configuration needs of others, tried before it is deployed: everything at once, and
within some seconds each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gateway.config import Settings

from .brokers import brokers
from .certificates import certificates
from .finding import Finding, State, Steps
from .servers import tries
from .wants import patterns, wants

__all__ = ["Finding", "State", "Steps", "trial"]


def trial(settings: Settings, told: Callable[[Steps], None] | None = None) -> list[Finding]:
    """told: called whenever something begins or ends to be tried."""
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())  # it is told as a finding
    return asyncio.run(_trial(settings, Steps(told)))


async def _trial(settings: Settings, steps: Steps) -> list[Finding]:
    of_kafka, *others = await asyncio.gather(
        brokers(settings.kafka, wants(settings), patterns(settings), steps), *tries(settings, steps)
    )
    return [*of_kafka, *others, *certificates(settings)]
