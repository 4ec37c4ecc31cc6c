"""Recognize faults between the gateway and Kafka."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

from gateway.core.log.recovery import Cause
from gateway.telemetry import catalog
from gateway.telemetry.counts import TOO_OLD_CAUSE

from .observation import (
    Observation,
    Rule,
    format_cluster,
    format_count,
    format_partitions,
    iter_health,
)

_AWAY_CAUSES = (Cause.CONNECTION, Cause.TIMEOUT)
_REFUSED_CAUSES = (Cause.AUTHENTICATION, Cause.DENIED)
# A broker may lack others, without which only some answers are poorer.
_NEEDED_APIS = ("Fetch", "ListOffsets", "Metadata")
_DAMAGE_CAUSES = (Cause.CORRUPT, Cause.STORAGE, Cause.UNEXPECTED)
# The least effects that make something a cause.
MIN_LAG_RECORDS = 1000.0
MIN_HELD_SECONDS = 5.0
MIN_THROTTLED_SHARE = 0.05


def find_absent_brokers(observation: Observation) -> Iterator[str]:
    for labels, value in observation.after.iter_series(catalog.KAFKA_REACHABLE):
        if not value:
            yield f"no broker{format_cluster(labels)} answers"
    yield from find_unreadable_partitions(observation, _AWAY_CAUSES)
    failures = {
        labels["cause"]: grown
        for labels, grown in observation.iter_growth(catalog.BROKER_CONNECT_FAILURES)
        if labels["cause"] in _AWAY_CAUSES
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
    yield from find_unreadable_partitions(observation, _REFUSED_CAUSES)
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
    by_topic: dict[str, list[dict[str, str]]] = {}
    lags: dict[str, tuple[float, float]] = {}
    for labels, before, value in observation.iter_lasting(catalog.PARTITION_LAG_RECORDS):
        topic = labels["topic"]
        old, new = lags.get(topic, (0.0, 0.0))
        lags[topic] = old + before, new + value
        by_topic.setdefault(topic, []).append(labels)
    for topic, (before, value) in lags.items():
        fetched = observation.growth(catalog.FETCHED_RECORDS, topic=topic, reader="tail")
        if value >= max(before, fetched, MIN_LAG_RECORDS):
            yield (
                f"the read of {format_partitions(by_topic[topic])} is {value:,.0f} records behind, "
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


def find_unreadable_partitions(observation: Observation, causes: Collection[str]) -> Iterator[str]:
    """Yield a line for each of these causes that kept partitions from being read at both scrapes.

    The first scrape may have another cause: causes of one fault take turns, such as a lost
    connection and a missing leader.
    """
    unreadable = {
        (labels["topic"], labels["partition"])
        for labels, _ in observation.before.iter_series(catalog.PARTITION_RECOVERING)
    }
    by_cause: dict[str, list[dict[str, str]]] = {}
    for labels, _ in observation.after.iter_series(catalog.PARTITION_RECOVERING):
        if labels["cause"] in causes and (labels["topic"], labels["partition"]) in unreadable:
            by_cause.setdefault(labels["cause"], []).append(labels)
    for cause, partitions in by_cause.items():
        yield f"cannot be read, cause {cause}: {format_partitions(partitions)}"


KAFKA_FAULT_RULES = (
    Rule(
        "broker-old",
        "a broker does not speak the gateway's versions",
        find_old_brokers,
        ("kafka.servers", "the brokers"),
        "Use Kafka 2.3 or later, or name other brokers. The gateway speaks no older versions.",
    ),
    Rule(
        "broker-away",
        "brokers do not answer",
        find_absent_brokers,
        ("kafka.servers", "the brokers", "the network"),
        "`gateway check --cluster` tries every broker by name, port and TLS, and says which one "
        "fails. Streams stay open, and go on without loss when the broker is back.",
    ),
    Rule(
        "broker-refuses",
        "brokers refuse the gateway",
        find_refusing_brokers,
        ("kafka.security", "ACLs of the gateway's principal"),
        "`gateway check --cluster` says which credential or right is missing. The gateway tries "
        "again by itself.",
    ),
    Rule(
        "partition-leaderless",
        "partitions have no leader",
        partial(find_unreadable_partitions, causes=(Cause.NO_LEADER,)),
        ("the brokers", "replication of the topics", "unclean.leader.election.enable"),
        "Start the brokers that hold their replicas; `gateway topics TOPIC` shows them. Other "
        "partitions are served meanwhile.",
    ),
    Rule(
        "topic-missing",
        "a topic does not exist",
        partial(find_unreadable_partitions, causes=(Cause.UNKNOWN_TOPIC,)),
        ("kafka.topics", "routes[].with.topic"),
        "Create the topic, or correct its name; `gateway topics` lists those that there are.",
    ),
    Rule(
        "partition-damaged",
        "brokers answer with what cannot be read",
        partial(find_unreadable_partitions, causes=_DAMAGE_CAUSES),
        ("the brokers' disks",),
        "The brokers' logs say which file it is. After some tries the gateway skips a damaged "
        "batch, and sends a gap.",
    ),
    Rule(
        "registry-away",
        "the schema registry does not answer",
        partial(find_unreadable_partitions, causes=(Cause.REGISTRY,)),
        ("catalogs", "the registry"),
        "Records of schemas that are not known yet wait for it. `gateway check --cluster` asks it.",
    ),
)
"""Faults of Kafka that explain others."""

KAFKA_LOAD_RULES = (
    Rule(
        "open-transaction",
        "a producer holds a transaction open",
        find_open_transactions,
        ("the producer", "isolation: read_uncommitted in kafka.topics"),
        "End the transaction: `kafka-transactions.sh find-hanging` finds it, `abort` ends it. "
        "Records from the last stable offset on are sent after that, unless the topic is read "
        "uncommitted.",
    ),
    Rule(
        "kafka-throttles",
        "a quota of Kafka throttles the gateway",
        find_throttling,
        ("consumer_byte_rate and request_percentage of the gateway's client id or user",),
        "Raise the quota (`kafka-configs.sh --entity-type clients`), or read less: fewer "
        "`listen.workers`, as each worker reads on its own, and a larger `cache`.",
    ),
)
"""What keeps records from being read, though brokers answer."""

READ_RULES = (
    Rule(
        "read-behind",
        "records arrive faster than they are read",
        find_read_backlog,
        ("kafka.fetch", "listen.workers"),
        "A CPU that is busy shows in process_cpu_seconds_total; then fewer topics per gateway "
        "help. Otherwise the network or the broker limits the read.",
    ),
    Rule(
        "gaps",
        "records were gone before they were read",
        find_gaps,
        ("retention.ms and retention.bytes of the topic", "offsetOutOfRange"),
        "Keep records for longer than clients stay away. Clients got a gap event with the offsets; "
        "reasons other than retention are in the docs on resuming.",
    ),
    Rule(
        "records-invalid",
        "records do not match the model of their topic",
        find_invalid_records,
        ("kafka.topics[].value", "kafka.topics[].onInvalid", "the producers"),
        "Correct the producer or the schema; `gateway tail` shows such records with their error.",
    ),
    Rule(
        "writes-fail",
        "records of clients are not written",
        find_refused_writes,
        ("the brokers", "min.insync.replicas", "ACLs of the gateway's principal"),
        "refused: Kafka said why in the gateway's log. doubtful: no answer came, so the record may "
        "be there. unsent: too many were waiting.",
    ),
)
"""What keeps single records from arriving."""
