"""What the rules of the doctor make of two scrapes, without a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gateway.cli.doctor.diagnosis import diagnose, render_text, to_json
from gateway.cli.doctor.observation import Observation, Scrape
from gateway.core.log.recovery import Cause
from gateway.telemetry import catalog
from gateway.telemetry.counts import Histogram
from gateway.telemetry.faults import FAULTS, RULES
from gateway.telemetry.prometheus import expose
from gateway.telemetry.samples import MetricSamples

SECONDS, NOW = 5.0, 1_800_000_000.0
DAY = 86_400.0

Series = Mapping[Any, Mapping[tuple[str, ...], float | Histogram]]


def scrape(series: Series) -> Scrape:
    """What a gateway with these series would answer, and a worker that is well."""
    samples = MetricSamples()
    samples.add(catalog.WORKERS, 1)
    samples.add(catalog.KAFKA_REACHABLE, 1)
    samples.add_histogram(catalog.EVENT_LOOP_LAG_SECONDS, Histogram(), 1)
    for metric, values in series.items():
        for labels, value in values.items():
            add = samples.add_histogram if isinstance(value, Histogram) else samples.add
            add(metric, value, *labels)  # type: ignore[arg-type]
    return Scrape.parse(b"".join(expose(samples, "").pieces).decode())


def observe(before: Series, after: Series, **more: Any) -> Observation:
    return Observation("http://gateway", SECONDS, NOW, scrape(before), scrape(after), **more)


def names(before: Series, after: Series, **more: Any) -> list[str]:
    return [cause.name for cause in diagnose(observe(before, after, **more)).causes]


HELD = catalog.PARTITION_OPEN_TRANSACTION_SECONDS
P0 = ("orders", "0")
LIMITED = ("/events", "max-rate")
LEADERLESS = {catalog.PARTITION_RECOVERING: {(*P0, "no-leader"): 1}}
FULL = {catalog.MEMORY_LIMIT_BYTES: {(): 1 << 20}, catalog.MEMORY_BYTES: {("cache",): 1_040_000}}
MISSING = {catalog.WORKERS_MISSING: {(): 1}}
LATE = Histogram()
LATE.observe(0.5, times=8)

PLANTED: dict[str, tuple[Series, Series]] = {
    "partition-leaderless": (LEADERLESS, LEADERLESS),
    "gaps": (
        {},
        {
            catalog.GAPS: {("orders", "retention"): 1},
            catalog.GAP_RECORDS: {("orders", "retention"): 20},
        },
    ),
    "guard-away": ({}, {catalog.GUARD_READY: {("login",): 0}}),
    "memory-full": (FULL, FULL),
    "loop-lag": ({}, {catalog.EVENT_LOOP_LAG_SECONDS: {("2",): LATE}}),
    "worker-missing": (MISSING, MISSING),
    "worker-restarts": (
        {catalog.PROCESS_START_TIME_SECONDS: {("1",): NOW - DAY}},
        {catalog.PROCESS_START_TIME_SECONDS: {("1",): NOW - 3}},
    ),
    "broker-refuses": (
        {catalog.PARTITION_RECOVERING: {(*P0, "access-denied"): 1}},
        {catalog.PARTITION_RECOVERING: {(*P0, "access-denied"): 1}},
    ),
    "partition-damaged": (
        {catalog.PARTITION_RECOVERING: {(*P0, "corrupt"): 1}},
        {catalog.PARTITION_RECOVERING: {(*P0, "corrupt"): 1}},
    ),
    "registry-away": (
        {catalog.PARTITION_RECOVERING: {(*P0, "schema-registry"): 1}},
        {catalog.PARTITION_RECOVERING: {(*P0, "schema-registry"): 1}},
    ),
    "read-behind": (
        {
            catalog.PARTITION_LAG_RECORDS: {P0: 4000},
            catalog.FETCHED_RECORDS: {("orders", "tail"): 9},
        },
        {
            catalog.PARTITION_LAG_RECORDS: {P0: 9000},
            catalog.FETCHED_RECORDS: {("orders", "tail"): 2000},
        },
    ),
    "records-invalid": (
        {catalog.INVALID_RECORDS: {("orders", "skip"): 1}},
        {catalog.INVALID_RECORDS: {("orders", "skip"): 4}},
    ),
    "writes-fail": (
        {catalog.PRODUCED_RECORDS: {("orders", "written"): 1}},
        {catalog.PRODUCED_RECORDS: {("orders", "written"): 5, ("orders", "refused"): 2}},
    ),
    "clients-limited": (
        {catalog.CLIENTS_BEHIND: {LIMITED: 1}, catalog.CLIENTS_BEHIND_RECORDS_MAX: {LIMITED: 10}},
        {catalog.CLIENTS_BEHIND: {LIMITED: 1}, catalog.CLIENTS_BEHIND_RECORDS_MAX: {LIMITED: 50}},
    ),
    "access-refused": (
        {catalog.REFUSED_REQUESTS: {("401",): 3}},
        {catalog.REFUSED_REQUESTS: {("401",): 30}, catalog.STREAMS_OPENED: {("/events", "sse"): 2}},
    ),
    "dead-letters": (
        {},
        {catalog.REACTIVE_RECORDS: {("billing", "orders", "dead"): 2}},
    ),
    "files-full": (
        {},
        {catalog.PROCESS_OPEN_FDS: {("1",): 1000}, catalog.PROCESS_MAX_FDS: {("1",): 1024}},
    ),
    "certificate-expires": (
        {},
        {catalog.CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS: {(): NOW + DAY}},
    ),
    "versions-differ": (
        {},
        {catalog.INFO: {("gateway", "1.0"): 1, ("gateway", "1.1"): 1}},
    ),
    "open-transaction": ({HELD: {P0: 10}}, {HELD: {P0: 15}}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_each_cause_is_found_by_its_series_alone(name: str):
    assert names(*PLANTED[name]) == [name]


def test_each_cause_that_lasts_has_a_fault():
    passing = {Cause.NOT_LEADER, Cause.OUT_OF_RANGE}
    assert {cause for fault in FAULTS for cause in fault.causes} == set(Cause) - passing


HEALTHY: dict[str, tuple[Series, Series]] = {
    "a partition that was leaderless for a moment": (
        {}, {catalog.PARTITION_RECOVERING: {(*P0, "no-leader"): 1}},
    ),
    "transactions one after the other": ({HELD: {P0: 8}}, {HELD: {P0: 6}}),
    "a read that catches up": (
        {catalog.PARTITION_LAG_RECORDS: {P0: 9000}},
        {catalog.PARTITION_LAG_RECORDS: {P0: 4000}},
    ),
    "a wrong token now and then": ({}, {catalog.REFUSED_REQUESTS: {("401",): 2}}),
    "some wrong tokens among many writes": (
        {},
        {
            catalog.REFUSED_REQUESTS: {("401",): 9},
            catalog.PRODUCED_RECORDS: {("orders", "written"): 5000},
        },
    ),
    "slow clients that catch up": (
        {
            catalog.CLIENTS_BEHIND: {("/events", "slow"): 3},
            catalog.CLIENTS_BEHIND_RECORDS_MAX: {("/events", "slow"): 90},
        },
        {
            catalog.CLIENTS_BEHIND: {("/events", "slow"): 1},
            catalog.CLIENTS_BEHIND_RECORDS_MAX: {("/events", "slow"): 10},
        },
    ),
    "a certificate of some weeks": (
        {}, {catalog.CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS: {(): NOW + 30 * DAY}},
    ),
    "gaps of yesterday": (
        {catalog.GAP_RECORDS: {("orders", "retention"): 5}},
        {catalog.GAP_RECORDS: {("orders", "retention"): 5}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_what_passes_is_no_cause(name: str):
    assert names(*HEALTHY[name]) == []


def test_a_filter_that_matches_some_records_is_no_cause():
    route = {"route": "/own", "filtered": True, "topics": ["orders"], "paused": None}
    before: Series = {catalog.CLIENTS: {("/own", "sse"): 5}}
    read: Series = {catalog.FETCHED_RECORDS: {("orders", "tail"): 5000}}
    some: Series = {catalog.DELIVERIES: {("/own", "sse"): 1}}
    assert names(before, {**before, **read}, routes=[route]) == ["filter-matches-none"]
    assert names(before, {**before, **read, **some}, routes=[route]) == []


def test_what_was_lost_before_is_told_as_past():
    (told,) = diagnose(observe(*HEALTHY["gaps of yesterday"])).past
    assert told.startswith("records in gaps: 5 (")


def test_a_root_cause_comes_before_what_it_causes():
    away = {catalog.PARTITION_RECOVERING: {(*P0, "connection"): 1}}
    slow = {
        catalog.CLIENTS_BEHIND: {("/events", "slow"): 1},
        catalog.CLIENTS_BEHIND_RECORDS_MAX: {("/events", "slow"): 50},
    }
    assert names({**away, **slow}, {**away, **slow}) == ["broker-away", "slow-clients"]


def test_a_counter_that_began_again_counts_from_zero():
    """A worker that was restarted made counters go back, so their growth was below 0."""
    seen = observe(
        {catalog.DELIVERIES: {("/e", "sse"): 900}}, {catalog.DELIVERIES: {("/e", "sse"): 100}}
    )
    assert seen.growth(catalog.DELIVERIES) == 100


def test_partitions_of_several_clusters_are_told_apart():
    series = {catalog.PARTITION_RECOVERING: {(*P0, "no-leader", "eu"): 1}}
    (cause,) = diagnose(observe(series, series)).causes
    assert "orders 0 (eu)" in cause.evidence[0]


def test_text_and_json_say_the_same():
    diagnosis = diagnose(observe(*PLANTED["records-invalid"]))
    text, data = render_text(diagnosis), to_json(diagnosis)
    (cause,) = data["causes"]
    assert f"1. {cause['name']}: {cause['title']}" in text
    assert all(each in text for each in (*cause["evidence"], *cause["settings"], cause["advice"]))
    assert set(data["unseen"]) <= set(RULES)
