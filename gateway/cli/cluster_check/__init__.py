"""Try everything that a configuration needs, before it is deployed.

`gateway check --cluster` calls `check_cluster`. `brokers` connects to Kafka, `requirements` decides
what topics must allow, `servers` sends requests to issuers, applications, registries and telemetry
back ends and reads the files of TLS, and `front` asks the gateway through its proxy. All checks run
concurrently with timeouts of some seconds, and each returns a `Finding`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import chain

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
    clusters = [_check_one_cluster(settings, name, steps) for name in settings.clusters]
    fronts = [] if front is None else [check_front(front, settings, steps)]
    kafka, others, proxies = await asyncio.gather(
        asyncio.gather(*clusters),
        asyncio.gather(*iter_checks(settings, steps)),
        asyncio.gather(*fronts),
    )
    return [*chain(*kafka, others, *proxies), *check_certificates(settings)]


async def _check_one_cluster(settings: Settings, name: str, steps: CheckProgress) -> list[Finding]:
    kafka = settings.clusters[name]
    findings = await check_brokers(
        name, kafka, list_requirements(settings, name), list_patterns(settings, name), steps
    )
    return [each._replace(subject=f"{name}: {each.subject}") if name else each for each in findings]
