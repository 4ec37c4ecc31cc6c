"""What `gateway check --cluster` tries before a deployment: brokers, topics, other servers.

All tries run at the same time, each with a timeout of some seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gateway.config import Settings

from .brokers import check_brokers
from .certificates import check_certificates
from .finding import CheckProgress, Finding, FindingState
from .requirements import list_patterns, list_requirements
from .servers import iter_checks

__all__ = ["CheckProgress", "Finding", "FindingState", "check_cluster"]


def check_cluster(
    settings: Settings, on_progress: Callable[[CheckProgress], None] | None = None
) -> list[Finding]:
    """told: called whenever something begins or ends to be tried."""
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())  # it is told as a finding
    return asyncio.run(_run_checks(settings, CheckProgress(on_progress)))


async def _run_checks(settings: Settings, steps: CheckProgress) -> list[Finding]:
    names = list(settings.clusters)
    of_kafka = asyncio.gather(*(_check_one_cluster(settings, name, steps) for name in names))
    others = await asyncio.gather(*iter_checks(settings, steps))
    found = [finding for some in await of_kafka for finding in some]
    return [*found, *others, *check_certificates(settings)]


async def _check_one_cluster(settings: Settings, name: str, steps: CheckProgress) -> list[Finding]:
    kafka = settings.clusters[name]
    found = await check_brokers(
        kafka, list_requirements(settings, name), list_patterns(settings, name), steps
    )
    return [each._replace(subject=f"{name}: {each.subject}") if name else each for each in found]
