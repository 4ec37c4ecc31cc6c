"""Try everything that a configuration needs, before it is deployed.

`gateway check --cluster` calls `check_cluster`. `brokers` connects to Kafka, `requirements` decides
what topics must allow, `servers` sends requests to issuers, applications, registries and telemetry
back ends, `front` asks the gateway through its proxy, and `certificates` reads the files of TLS.
All checks run concurrently with timeouts of some seconds, and each returns a `Finding`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gateway.config import Settings

from .brokers import check_brokers
from .finding import CheckProgress, Finding, FindingState
from .front import FrontAddress, check_front
from .requirements import list_patterns, list_requirements
from .servers import check_certificates, iter_checks

__all__ = ["CheckProgress", "Finding", "FindingState", "FrontAddress", "check_cluster"]


def check_cluster(
    settings: Settings,
    on_progress: Callable[[CheckProgress], None] | None = None,
    front: FrontAddress | None = None,
) -> list[Finding]:
    # A handler keeps aiokafka's errors off stderr; the findings report them.
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())
    return asyncio.run(_run_checks(settings, CheckProgress(on_progress), front))


async def _run_checks(
    settings: Settings, steps: CheckProgress, front: FrontAddress | None
) -> list[Finding]:
    names = list(settings.clusters)
    kafka_checks = asyncio.gather(*(_check_one_cluster(settings, name, steps) for name in names))
    front_check = asyncio.ensure_future(_check_front(settings, steps, front))
    others = await asyncio.gather(*iter_checks(settings, steps))
    kafka_findings = [finding for some in await kafka_checks for finding in some]
    return [*kafka_findings, *others, *await front_check, *check_certificates(settings)]


async def _check_front(
    settings: Settings, steps: CheckProgress, front: FrontAddress | None
) -> list[Finding]:
    return [] if front is None else await check_front(front, settings, steps)


async def _check_one_cluster(settings: Settings, name: str, steps: CheckProgress) -> list[Finding]:
    kafka = settings.clusters[name]
    findings = await check_brokers(
        name, kafka, list_requirements(settings, name), list_patterns(settings, name), steps
    )
    return [each._replace(subject=f"{name}: {each.subject}") if name else each for each in findings]
