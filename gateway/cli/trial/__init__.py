"""What `gateway check --cluster` tries before a deployment: brokers, topics, other servers.

All tries run at the same time, each with a timeout of some seconds.
"""

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
    names = list(settings.clusters)
    of_kafka = asyncio.gather(*(_cluster(settings, name, steps) for name in names))
    others = await asyncio.gather(*tries(settings, steps))
    found = [finding for some in await of_kafka for finding in some]
    return [*found, *others, *certificates(settings)]


async def _cluster(settings: Settings, name: str, steps: Steps) -> list[Finding]:
    kafka = settings.clusters[name]
    found = await brokers(kafka, wants(settings, name), patterns(settings, name), steps)
    return [each._replace(subject=f"{name}: {each.subject}") if name else each for each in found]
