"""What a worker tells whoever knows some of it already."""

from __future__ import annotations

import asyncio
import logging

from support.waiting import WAIT_TIMEOUT_S, wait_until

from gateway.config import loads
from gateway.hub.fanout.hubs import Hubs
from gateway.telemetry.process import LoopLag
from gateway.web.console.worker_report import KNOWN_NOTHING, WorkerReport
from gateway.web.workers.bus import Bus

SETTINGS = loads('{"kafka": {"servers": ["127.0.0.1:1"], "topics": ["orders"]}}', name="test")


async def test_incidents_are_told_once_also_if_all_rows_are_told_again():
    """All of them were told again when only the rows had become unknown."""
    report = WorkerReport(Hubs({}, SETTINGS), LoopLag(), Bus())
    log, handlers = logging.getLogger("gateway"), list(logging.getLogger("gateway").handlers)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(report.run())
        await wait_until(lambda: log.handlers != handlers, "its handler", WAIT_TIMEOUT_S)
        log.warning("a disk is full")
        task.cancel()
    first = report.build_report(*KNOWN_NOTHING)
    assert [each.text for each in first["incidents"]] == ["a disk is full"]
    for instance, incident_log, count in (
        (first["instance"], first["incidentLog"], 0),
        ("", first["incidentLog"], 0),
        ("of-before", first["incidentLog"], 0),
        (first["instance"], "of-another-process", 1),
    ):
        again = report.build_report(instance, first["version"], incident_log, first["incident"], 0)
        assert len(again["incidents"]) == count
