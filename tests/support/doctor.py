"""A gateway that is observed by the doctor while a test does something to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from support.admin_api import open_admin_api
from support.gateways import GatewayProcess
from support.waiting import WAIT_TIMEOUT_S

from gateway.cli.admin import AdminAddress
from gateway.cli.doctor.diagnosis import GatewayDiagnosis, diagnose
from gateway.cli.doctor.observation import observe_gateway
from gateway.telemetry.diagnosed_cause import DiagnosedCause


async def diagnose_gateway(
    gateway: GatewayProcess, *meanwhile: Awaitable[object], interval_s: float = 2.0
) -> GatewayDiagnosis:
    """What the doctor says. meanwhile: done while it observes; cancelled if it takes longer."""
    tasks = [asyncio.ensure_future(each) for each in meanwhile]
    try:
        observed = await observe_gateway(AdminAddress(gateway.admin_url), interval_s)
    finally:
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
    for result in done:
        if isinstance(result, Exception):
            raise result
    return diagnose(observed)


def describe(diagnosis: GatewayDiagnosis) -> dict[str, list[str]]:
    """The evidence of each cause, in order."""
    return {cause.name: list(cause.evidence) for cause in diagnosis.causes}


def get_first_cause(diagnosis: GatewayDiagnosis) -> DiagnosedCause:
    """The likeliest cause; the event loop's lag only if there is no other.

    On a busy machine a loop lags whatever the test does.
    """
    assert diagnosis.causes, "it found nothing"
    found = (cause for cause in diagnosis.causes if cause.name != "loop-lag")
    return next(found, diagnosis.causes[0])


def get_first(diagnosis: GatewayDiagnosis) -> str:
    """The name of the likeliest cause."""
    return get_first_cause(diagnosis).name


async def wait_for_metric(gateway: GatewayProcess, text: str) -> None:
    """Until a scrape has this text."""
    async with open_admin_api(gateway) as http, asyncio.timeout(WAIT_TIMEOUT_S):
        while text not in (await http.get("/metrics")).text:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
