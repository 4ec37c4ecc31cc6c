"""What the first scrape of a gateway and a sidecar holds: a series of all that can be counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.brokers import embedded_kafka
from support.gateways import build_config
from support.in_process_gateway import running_in_process_gateway
from support.scrape import OPENMETRICS_TYPE, MetricsScrape, fetch_metrics

from gateway.cli.sidecar import create_sidecar
from gateway.core.client.terms import EndReason
from gateway.core.log.record import GapReason
from gateway.core.log.recovery import Cause
from gateway.kafka.embedded import EmbeddedKafka
from gateway.telemetry import catalog
from gateway.telemetry.catalog import METRICS, MetricKind

kafka = embedded_kafka({"orders": 2, "replies": 1}, scope="module")

EVENTS, PRODUCE = "/events/orders", "/orders"
ROUTES = [
    {"when": [{"path": EVENTS}], "with": {"topic": "orders", "slowClient": "skip"},
     "guarded": {"login": []}},
    {"when": [{"path": PRODUCE}],
     "with": {"capability": "produce", "topic": "orders", "replyTo": "replies"}},
]  # fmt: skip
SIDECAR: dict[str, Any] = {
    "producer": {},
    "consumer": {},
    "reactive": {
        "groups": [
            {
                "group": "billing",
                "topics": ["orders"],
                "backend": {"host": "http://127.0.0.1:9"},
                # A member by KIP-848 ends the process of the mock broker.
                "groupProtocol": "classic",
            }
        ]
    },
    "ksqldb": {
        "url": "http://127.0.0.1:9",
        "queries": [
            {
                "name": "totals",
                "query": "SELECT * FROM TOTALS EMIT CHANGES;",
                "backend": {"host": "http://127.0.0.1:9"},
            }
        ],
    },
    "admin": {"chaos": True},
    "audit": {"to": "off"},
    "deadLetter": {},
    "replay": {},
}

ABSENT = {
    catalog.PARTITION_RECOVERING: "only a partition that cannot be read has a cause",
    catalog.PARTITION_OPEN_TRANSACTION_SECONDS: "only a partition that a transaction holds has it",
    catalog.TLS_HANDSHAKES: "of a listener with TLS",
    catalog.TLS_HANDSHAKES_REFUSED: "of a listener with TLS",
    catalog.CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS: "of a listener with TLS",
    catalog.CONSUMER_RECORDS: "clients choose the topics",
    catalog.CONSUMER_BYTES: "clients choose the topics",
}
"""Counters and gauges that a first scrape lacks, and why. Those of jobs are another process's."""


@pytest.fixture
async def url(kafka: EmbeddedKafka) -> AsyncIterator[str]:
    config = build_config(
        kafka.bootstrap,
        [{"name": "orders", "value": {"model": "int"}}, "replies"],
        ROUTES,
        kafka={"bootstrap": ["orders"]},
        guards={"login": {"type": "jwt", "keys": "http://127.0.0.1:9/keys", "issuer": "test"}},
        sidecar=SIDECAR,
    )
    async with running_in_process_gateway(config, co_hosted_app_factory=create_sidecar) as (url, _):
        yield url


def find_absent(scrape: MetricsScrape) -> set[str]:
    return {
        metric.exposed_name
        for metric in METRICS
        if metric.kind is not MetricKind.HISTOGRAM
        and metric not in ABSENT
        and not metric.name.startswith("gateway_pipeline_")
        and metric.exposed_name not in scrape.metric_names
    }


async def test_every_counter_and_gauge_has_a_series_before_anything_happens(url: str):
    """Counters came with their first event, so that Prometheus saw no increase from 0 to 1."""
    async with asyncio.timeout(30):
        scrape = await fetch_metrics(url, accept=OPENMETRICS_TYPE)
        # The partitions of a bootstrap topic are known once a broker has told of them.
        while "gateway_partition_lag_records" not in scrape.metric_names:
            await asyncio.sleep(0.02)
            scrape = await fetch_metrics(url, accept=OPENMETRICS_TYPE)
    assert find_absent(scrape) == set()


async def test_reasons_causes_and_wires_have_a_series_each(url: str):
    scrape = await fetch_metrics(url)
    for reason in GapReason:
        labels = {"topic": "orders", "reason": reason}
        assert scrape.has_series("gateway_gaps_total", labels)
        assert scrape.has_series("gateway_gap_records_total", labels)
    for cause in Cause:
        labels = {"topic": "orders", "cause": cause}
        assert scrape.has_series("gateway_partition_reconnects_total", labels)
    for wire in ("sse", "ndjson", "websocket"):
        labels = {"route": EVENTS, "wire": wire}
        assert scrape.has_series("gateway_client_stalls_total", labels)
        assert scrape.has_series("gateway_client_falls_total", {**labels, "policy": "skip"})
        for reason in EndReason:
            assert scrape.has_series("gateway_streams_ended_total", {**labels, "reason": reason})
    for limit in ("connections", "perAddress", "perIdentity", "rate"):
        assert scrape.has_series("gateway_refused_connections_total", {"limit": limit})
    for status in (401, 403, 404, 503):
        assert scrape.has_series("gateway_refused_requests_total", {"status": status})
    labels = {"topic": "orders", "outcome": "error"}
    assert scrape.has_series("gateway_invalid_records_total", labels)
    labels = {"group": "billing", "topic": "orders", "outcome": "dead"}
    assert scrape.has_series("gateway_reactive_records_total", labels)
    for outcome in ("applied", "refused"):
        assert scrape.has_series("gateway_reloads_total", {"outcome": outcome})
    assert scrape["gateway_last_reload_successful", {}] == 1
