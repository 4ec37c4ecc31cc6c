"""What several workers notice of Kafka is logged once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from support.worker_buses import WorkerBuses, worker_buses

from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.client.outages import CLUSTER_LABEL
from gateway.web.workers.outage_log import forward_outages, serve_outages

CONTACT = "is connected: cluster c, 1 broker"


class Host:
    """The clusters of three workers, and the supervisor that logs for them."""

    def __init__(self, made: WorkerBuses, lines: pytest.LogCaptureFixture) -> None:
        self.made = made
        self.clusters = [Cluster(ClusterSettings(["b:1"])) for _ in made.buses]
        for cluster, bus in zip(self.clusters, made.buses, strict=True):
            forward_outages({"": cluster}, bus)
        self.now = 0.0
        serve_outages(made.relay, lambda: self.now)
        self._lines = lines

    async def reconnect(self, meanwhile: Callable[[], object]) -> None:
        """Cut the link of the first worker, and wait until there is another one."""
        bus, joined = self.made.buses[0], asyncio.Event()
        bus.join_callbacks.append(joined.set)
        bus.abort_link()
        meanwhile()
        await asyncio.wait_for(joined.wait(), 60)
        await self.made.wait_until_linked()

    async def check_lines(self, expected: Sequence[str]) -> None:
        """Check the lines after everything that was sent has arrived."""
        for bus in self.made.buses:
            if bus.is_linked:
                await bus.call_supervisor("arrived")
        assert self._lines.messages == expected


@pytest.fixture
async def host(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Host]:
    caplog.set_level(logging.INFO, "gateway.kafka.client.outages")
    async with worker_buses(3) as made:
        made.relay.add_handler("arrived", lambda worker, data: None)
        host = Host(made, caplog)
        await made.start()
        yield host


async def test_an_outage_is_logged_once_and_is_over_with_the_last_worker(host: Host):
    """With N workers there were N lines for each change."""
    for cluster in host.clusters:
        cluster.outages.report_failure(CLUSTER_LABEL, "connection", "refused")
    began = ["Kafka cause=connection: refused"]
    await host.check_lines(began)
    for cluster in host.clusters[:2]:
        cluster.outages.report_contact(CONTACT)
    await host.check_lines(began)
    host.clusters[2].outages.report_contact(CONTACT)
    await host.check_lines([*began, f"Kafka {CONTACT} after 0.0 s of cause=connection"])


async def test_the_first_contact_is_logged_once(host: Host):
    for cluster in host.clusters:
        cluster.outages.report_contact(CONTACT)
    await host.check_lines([f"Kafka {CONTACT}"])


async def test_what_only_one_worker_notices_is_logged(host: Host):
    host.clusters[1].outages.report_failure("topic=a", "access-denied", "allow it READ")
    await host.check_lines(["topic=a cause=access-denied: allow it READ"])
    host.clusters[1].outages.report_recovery("topic=a", "may be read")
    await host.check_lines(
        [
            "topic=a cause=access-denied: allow it READ",
            "topic=a may be read after 0.0 s of cause=access-denied",
        ]
    )


async def test_a_broker_that_one_worker_reaches_last_is_no_outage_of_its_own(host: Host):
    first, second, _ = host.clusters
    for cluster in (first, second):
        cluster.outages.report_failure(CLUSTER_LABEL, "connection", "refused")
        await host.check_lines(["Kafka cause=connection: refused"])
    second.outages.report_recovery(CLUSTER_LABEL)
    second.outages.report_failure("broker=1", "connection", "refused", broker=1)
    second.outages.report_recovery("broker=1")
    await host.check_lines(["Kafka cause=connection: refused"])
    first.outages.report_recovery(CLUSTER_LABEL)
    await host.check_lines(
        ["Kafka cause=connection: refused", "Kafka answers again after 0.0 s of cause=connection"]
    )
    first.outages.report_failure("broker=1", "connection", "refused", broker=1)
    await host.check_lines(
        [
            "Kafka cause=connection: refused",
            "Kafka answers again after 0.0 s of cause=connection",
            "broker=1 cause=connection: refused",
        ]
    )


async def test_a_worker_that_comes_back_repeats_what_got_lost(host: Host):
    host.clusters[0].outages.report_contact(CONTACT)
    await host.check_lines([f"Kafka {CONTACT}"])
    await host.reconnect(
        lambda: host.clusters[0].outages.report_failure(CLUSTER_LABEL, "timeout", "silence")
    )
    await host.check_lines([f"Kafka {CONTACT}", "Kafka cause=timeout: silence"])


async def test_the_outage_of_a_worker_that_ended_does_not_last(host: Host):
    """Its end must be logged although the worker that reported it is another process now."""
    for cluster in host.clusters[:2]:
        cluster.outages.report_failure(CLUSTER_LABEL, "connection", "refused")
    await host.check_lines(["Kafka cause=connection: refused"])
    # As the next process of this worker, which knows of no outage.
    await host.reconnect(host.clusters[0].outages.forget_all)
    host.clusters[1].outages.report_recovery(CLUSTER_LABEL)
    await host.check_lines(
        ["Kafka cause=connection: refused", "Kafka answers again after 0.0 s of cause=connection"]
    )


async def test_an_outage_is_over_for_those_that_are_left_when_a_worker_has_crashed(host: Host):
    """The worker that had crashed kept it from being logged as over, and its next process, which
    knew nothing of it, had it forgotten without a line."""
    for cluster in host.clusters[:2]:
        cluster.outages.report_failure("broker=1", "connection", "refused", broker=1)
    began = ["broker=1 cause=connection: refused"]
    await host.check_lines(began)
    await host.made.stop_worker(2)
    host.now = 20.0
    host.clusters[0].outages.report_recovery("broker=1")
    await host.check_lines([*began, "broker=1 answers again after 20.0 s of cause=connection"])


async def test_an_outage_that_only_a_crashed_worker_had_is_not_left_open(host: Host):
    host.clusters[1].outages.report_failure("broker=1", "connection", "refused", broker=1)
    began = ["broker=1 cause=connection: refused"]
    await host.check_lines(began)
    host.now = 20.0
    await host.made.stop_worker(2)
    await host.check_lines(
        [*began, "broker=1 no longer reported by any worker after 20.0 s of cause=connection"]
    )
