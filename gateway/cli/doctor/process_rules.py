"""Recognize faults of the gateway's own processes, its back ends and its version."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.hub.fanout.hub import PINNED_MEMORY_DIVISOR, PINNED_PARTS
from gateway.telemetry import catalog

from .observation import Observation, Rule, format_count, format_list

_MIB = 1024 * 1024
# The least effects that make something a cause.
MAX_LOOP_SHARE = 0.2  # of the time; about half of a pause is seen, at four measurements per second
MAX_MEMORY_SHARE = 0.9
MAX_FILE_SHARE = 0.9
MIN_CERTIFICATE_SECONDS = 7 * 86_400.0


def find_missing_workers(observation: Observation) -> Iterator[str]:
    before = observation.before.sum(catalog.WORKERS_MISSING)
    missing = observation.after.sum(catalog.WORKERS_MISSING)
    if before and missing:
        names = format_list(map(str, observation.missing))
        which = f" (number {names})" if names else ""
        yield f"{format_count(missing, 'worker')} did not answer within a second{which}"


def find_restarts(observation: Observation) -> Iterator[str]:
    for labels, started in observation.after.iter_series(catalog.PROCESS_START_TIME_SECONDS):
        before = observation.before.get(catalog.PROCESS_START_TIME_SECONDS, labels)
        if before is not None and before != started:
            age = observation.now - started
            yield f"worker {labels['worker']} was started again {age:.0f} s ago"


def find_loop_lag(observation: Observation) -> Iterator[str]:
    for labels, lag in observation.iter_growth(catalog.EVENT_LOOP_LAG_SECONDS, "_sum"):
        if lag < MAX_LOOP_SHARE * observation.seconds:
            continue
        worker = labels["worker"]
        cpu = observation.growth(catalog.PROCESS_CPU_SECONDS, worker=worker) / observation.seconds
        yield (
            f"worker {worker}: what was due waited {lag:.1f} s in {observation.seconds:.0f} s, all "
            f"together; its process used {cpu:.0%} of a core"
        )


def find_full_memory(observation: Observation) -> Iterator[str]:
    limit = observation.after.sum(catalog.MEMORY_LIMIT_BYTES)
    if not limit:
        return
    before, used = (
        scrape.sum(catalog.MEMORY_BYTES) for scrape in (observation.before, observation.after)
    )
    parts: dict[str, float] = {}
    for labels, value in observation.after.iter_series(catalog.MEMORY_BYTES):
        parts[labels["part"]] = parts.get(labels["part"], 0.0) + value
    pinned = sum(parts.get(part, 0.0) for part in PINNED_PARTS)
    if pinned > limit / PINNED_MEMORY_DIVISOR:
        yield (
            f"{pinned / _MIB:,.1f} of {limit / _MIB:,.1f} MiB cannot be freed; above half of it, "
            "new clients are refused"
        )
    elif min(before, used) < MAX_MEMORY_SHARE * limit:
        return
    largest = sorted(parts.items(), key=lambda part: -part[1])[:3]
    yield f"{used / _MIB:,.1f} of {limit / _MIB:,.1f} MiB are used: " + ", ".join(
        f"{name} {value / _MIB:,.1f} MiB" for name, value in largest if value
    )
    from_kafka = observation.growth(catalog.CATCHUP_RECORDS, source="kafka")
    if from_kafka:
        yield f"clients read {format_count(from_kafka, 'record')} from Kafka instead of the cache"


def find_absent_backends(observation: Observation) -> Iterator[str]:
    for labels, grown in observation.iter_growth(catalog.REACTIVE_BATCHES, verdict="away"):
        waiting = observation.after.sum(catalog.REACTIVE_WAITING_RECORDS, group=labels["group"])
        yield (
            f"group {labels['group']}: the back end did not answer {format_count(grown, 'batch')}, "
            f"{format_count(waiting, 'record')} wait"
        )
    for labels, _, lanes in observation.iter_lasting(catalog.REACTIVE_HELD_UP_LANES):
        yield f"group {labels['group']}: {format_count(lanes, 'lane')} wait for the next try"
    for labels, running in observation.after.iter_series(catalog.KSQLDB_QUERY_RUNNING):
        before = observation.before.get(catalog.KSQLDB_QUERY_RUNNING, labels)
        if not running and not before:
            yield f"query {labels['query']} of ksqlDB does not run"


def find_dead_letters(observation: Observation) -> Iterator[str]:
    for labels, grown in observation.iter_growth(catalog.REACTIVE_RECORDS, outcome="dead"):
        yield (
            f"group {labels['group']}: {format_count(grown, 'record')} of {labels['topic']} became "
            "dead letters"
        )
    for labels, grown in observation.iter_growth(catalog.CONSUMER_MISSING_RECORDS):
        yield (
            f"group {labels['group']}: Kafka deleted {format_count(grown, 'record')} before they "
            "were read"
        )


def find_full_files(observation: Observation) -> Iterator[str]:
    for labels, used in observation.after.iter_series(catalog.PROCESS_OPEN_FDS):
        limit = observation.after.get(catalog.PROCESS_MAX_FDS, labels)
        if limit and used >= MAX_FILE_SHARE * limit:
            yield f"worker {labels['worker']} uses {used:,.0f} of {limit:,.0f} file descriptors"


def find_expiring_certificate(observation: Observation) -> Iterator[str]:
    for _, expiry in observation.after.iter_series(catalog.CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS):
        seconds = expiry - observation.now
        if expiry and seconds < MIN_CERTIFICATE_SECONDS:
            days = abs(seconds) / 86_400
            yield (
                f"the certificate expires in {days:.1f} days"
                if seconds > 0
                else f"the certificate expired {days:.1f} days ago"
            )


def find_mixed_versions(observation: Observation) -> Iterator[str]:
    versions = {labels["version"] for labels, _ in observation.after.iter_series(catalog.INFO)}
    if len(versions) > 1:
        yield f"workers run {format_list(sorted(versions))}"


WORKER_RULES = (
    Rule(
        "worker-missing",
        "workers do not answer",
        find_missing_workers,
        ("listen.workers", "the host"),
        "Its clients wait. A worker that is stopped or swapped out answers no more; `kill` it, and "
        "the supervisor starts another one.",
    ),
    Rule(
        "worker-restarts",
        "workers crash and are started again",
        find_restarts,
        ("the gateway's log", "the memory of the host"),
        "The log has the exit status; -9 is mostly the kernel, out of memory. Clients resume "
        "without loss, but all at once.",
    ),
)
"""Processes that are not there."""

LOAD_RULES = (
    Rule(
        "loop-lag",
        "the event loop is busy, so everything waits",
        find_loop_lag,
        ("listen.workers", "routes[].with.interval", "more replicas"),
        "Let more workers share the clients, send less often (interval) or less (filters, fields). "
        "If it used little of a core, the host has no CPU left for it.",
    ),
    Rule(
        "memory-full",
        "what `memory` limits is used up",
        find_full_memory,
        ("memory", "kafka.topics[].cache"),
        "Raise memory, or keep less (cache). While the cache is too small, clients that come back "
        "read from Kafka, which is slower; nothing is lost.",
    ),
    Rule(
        "backend-away",
        "the back end does not take its records",
        find_absent_backends,
        ("sidecar", "the back end"),
        "The gateway tries again without limit. /health/ready of the sidecar and its log say what "
        "the back end answered.",
    ),
)
"""What makes everything slow that a process does."""

CARE_RULES = (
    Rule(
        "dead-letters",
        "records could not be processed",
        find_dead_letters,
        ("gateway dlq", "the back end"),
        "`gateway dlq` shows dead letters with their errors, and delivers them again.",
    ),
    Rule(
        "files-full",
        "file descriptors run out",
        find_full_files,
        ("ulimit -n, or LimitNOFILE of systemd",),
        "Each client takes one. Raise the limit and restart, or add workers.",
    ),
    Rule(
        "certificate-expires",
        "the certificate of listen.tls expires",
        find_expiring_certificate,
        ("listen.tls",),
        "Replace the files; they are loaded when they change, without a reload.",
    ),
    Rule(
        "versions-differ",
        "workers run different versions",
        find_mixed_versions,
        ("a restart",),
        "The files were replaced while the gateway ran, and a worker was started again since. "
        "Restart the gateway.",
    ),
)
"""What is to be looked after."""
