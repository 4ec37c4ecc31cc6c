"""Recognize faults between the gateway and Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from gateway.cli.output import format_count
from gateway.core.log.recovery import Cause
from gateway.telemetry import catalog
from gateway.telemetry.counts import TOO_OLD_CAUSE
from gateway.telemetry.faults import RULES

from .observation import (
    FindEvidence,
    Observation,
    format_cluster,
    format_partitions,
    iter_health,
)

# A broker may lack others, without which only some answers are poorer.
_NEEDED_APIS = ("Fetch", "ListOffsets", "Metadata")
# The least effects that make something a cause.
MIN_LAG_RECORDS = 1000.0
MIN_HELD_SECONDS = 5.0
MIN_THROTTLED_SHARE = 0.05


def find_absent_brokers(observation: Observation) -> Iterator[str]:
    for labels, value in observation.after.iter_series(catalog.KAFKA_REACHABLE):
        if not value:
            yield f"no broker{format_cluster(labels)} answers"
    yield from find_unreadable_partitions(observation, "broker-away")
    failures = {
        labels["cause"]: grown
        for labels, grown in observation.iter_growth(catalog.BROKER_CONNECT_FAILURES)
        if labels["cause"] in RULES["broker-away"].causes
    }
    if failures:
        tries = ", ".join(f"{grown:.0f} x {cause}" for cause, grown in failures.items())
        yield f"connections to brokers failed in {observation.seconds:.0f} s: {tries}"
        yield from iter_health(observation, "reasons")


def find_old_brokers(observation: Observation) -> Iterator[str]:
    for labels, grown in observation.iter_growth(
        catalog.KAFKA_REQUEST_FAILURES, cause=TOO_OLD_CAUSE
    ):
        if labels["api"] in _NEEDED_APIS:
            yield (
                f"a broker{format_cluster(labels)} speaks no version of {labels['api']} that fits "
                f"({format_count(grown, 'attempt')})"
            )


def find_refusing_brokers(observation: Observation) -> Iterator[str]:
    yield from find_unreadable_partitions(observation, "broker-refuses")
    failures = observation.growth(catalog.BROKER_CONNECT_FAILURES, cause=Cause.AUTHENTICATION)
    if failures:
        yield f"brokers refused the credentials of {format_count(failures, 'connection')}"
        yield from iter_health(observation, "reasons")


def find_open_transactions(observation: Observation) -> Iterator[str]:
    held = [
        (labels, seconds)
        for labels, before, seconds in observation.iter_lasting(
            catalog.PARTITION_OPEN_TRANSACTION_SECONDS
        )
        if seconds >= MIN_HELD_SECONDS and seconds > before
    ]
    if held:
        longest = max(seconds for _, seconds in held)
        names = format_partitions(labels for labels, _ in held)
        yield f"the last stable offset of {names} has not moved for up to {longest:.0f} s"


def find_throttling(observation: Observation) -> Iterator[str]:
    for labels, grown in observation.iter_growth(catalog.KAFKA_THROTTLED_SECONDS):
        if grown >= MIN_THROTTLED_SHARE * observation.seconds:
            yield (
                f"brokers{format_cluster(labels)} throttled the gateway for {grown:.1f} s "
                f"in {observation.seconds:.0f} s"
            )


def find_read_backlog(observation: Observation) -> Iterator[str]:
    by_topic: dict[str, list[tuple[dict[str, str], float, float]]] = {}
    for series in observation.iter_lasting(catalog.PARTITION_LAG_RECORDS):
        by_topic.setdefault(series[0]["topic"], []).append(series)
    for topic, found in by_topic.items():
        partitions, befores, values = zip(*found, strict=True)
        before, value = sum(befores), sum(values)
        fetched = observation.growth(catalog.FETCHED_RECORDS, topic=topic, reader="tail")
        if value >= max(before, fetched, MIN_LAG_RECORDS):
            yield (
                f"the read of {format_partitions(partitions)} is {value:,.0f} records behind, "
                f"{before:,.0f} before; {fetched / observation.seconds:,.0f} records per second "
                "are read"
            )


def find_gaps(observation: Observation) -> Iterator[str]:
    for labels, grown in observation.iter_growth(catalog.GAPS):
        records = observation.growth(catalog.GAP_RECORDS, **labels)
        yield (
            f"{format_count(grown, 'gap')} of {format_count(records, 'record')} in "
            f"{labels['topic']}, reason {labels['reason']}"
        )


def find_invalid_records(observation: Observation) -> Iterator[str]:
    for labels, grown in observation.iter_growth(catalog.INVALID_RECORDS):
        what = (
            "had no JSON for filters and transforms to look into"
            if labels["outcome"] == "not-json"
            else f"did not match the model (onInvalid: {labels['outcome']})"
        )
        yield f"{format_count(grown, 'record')} of {labels['topic']} {what}"


def find_refused_writes(observation: Observation) -> Iterator[str]:
    for labels, grown in observation.iter_growth(catalog.PRODUCED_RECORDS):
        if labels["outcome"] != "written":
            yield f"{format_count(grown, 'record')} for {labels['topic']}: {labels['outcome']}"


def find_unreadable_partitions(observation: Observation, rule: str) -> Iterator[str]:
    """Yield a line for each cause of a rule that kept partitions from being read at both scrapes.

    The first scrape may have another cause: causes of one fault take turns, such as a lost
    connection and a missing leader.
    """
    unreadable = {
        (labels["topic"], labels["partition"])
        for labels, _ in observation.before.iter_series(catalog.PARTITION_RECOVERING)
    }
    by_cause: dict[str, list[dict[str, str]]] = {}
    for labels, _ in observation.after.iter_series(catalog.PARTITION_RECOVERING):
        if (
            labels["cause"] in RULES[rule].causes
            and (labels["topic"], labels["partition"]) in unreadable
        ):
            by_cause.setdefault(labels["cause"], []).append(labels)
    for cause, partitions in by_cause.items():
        yield f"cannot be read, cause {cause}: {format_partitions(partitions)}"


KAFKA_EVIDENCE: Mapping[str, FindEvidence] = {
    "broker-old": find_old_brokers,
    "broker-away": find_absent_brokers,
    "broker-refuses": find_refusing_brokers,
    "open-transaction": find_open_transactions,
    "kafka-throttles": find_throttling,
    "read-behind": find_read_backlog,
    "gaps": find_gaps,
    "records-invalid": find_invalid_records,
    "writes-fail": find_refused_writes,
    **{
        rule: partial(find_unreadable_partitions, rule=rule)
        for rule in ("partition-leaderless", "topic-missing", "partition-damaged", "registry-away")
    },
}
"""The evidence of each rule."""
