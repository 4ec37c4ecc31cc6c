"""Recognize faults of the gateway's own: its processes, and what is between it and its clients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from gateway.cli.output import format_count, format_list
from gateway.hub.fanout.hub import PINNED_MEMORY_DIVISOR, PINNED_PARTS
from gateway.telemetry import catalog

from .observation import FindEvidence, Observation, iter_health

_BUSY_STATUSES = {"429": "too many requests or streams", "503": "busy"}
_ACCESS_STATUSES = {"401": "not authenticated", "403": "not allowed", "421": "unknown host"}
_POLICY_LOSES = frozenset({"skip", "conflate", "disconnect"})
_MIB = 1024 * 1024
# The least effects that make something a cause.
MAX_LOOP_SHARE = 0.2  # of the time; about half of a pause is seen, at four measurements per second
MAX_MEMORY_SHARE = 0.9
MAX_FILE_SHARE = 0.9
MIN_CERTIFICATE_SECONDS = 7 * 86_400.0
MIN_UNMATCHED_RECORDS = 20.0
MIN_REFUSALS = 5.0


def find_missing_workers(observation: Observation) -> Iterator[str]:
    for _, _, missing in observation.iter_lasting(catalog.WORKERS_MISSING):
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
    parts: defaultdict[str, float] = defaultdict(float)
    for labels, value in observation.after.iter_series(catalog.MEMORY_BYTES):
        parts[labels["part"]] += value
    pinned = sum(parts[part] for part in PINNED_PARTS)
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


def find_absent_guards(observation: Observation) -> Iterator[str]:
    warnings = list(iter_health(observation, "warnings"))
    for labels, ready in observation.after.iter_series(catalog.GUARD_READY):
        if not ready:
            name = labels["guard"]
            # The health is that of one worker, which may have no problem.
            problems = (each for each in warnings if each.startswith(f"guard {name}: "))
            yield next(problems, f"guard {name} cannot decide")


def find_paused_routes(observation: Observation) -> Iterator[str]:
    for route in observation.routes or ():
        if route["paused"]:
            pause = route["paused"]
            yield f"{route['route']} is paused since {pause['since']} by {pause['by']}"


def find_refused_load(observation: Observation) -> Iterator[str]:
    for labels, grown in observation.iter_growth(catalog.REFUSED_CONNECTIONS):
        limit = labels["limit"]
        cause = "ulimit -n" if limit == "descriptors" else f"listen.limits, {limit}"
        yield f"{format_count(grown, 'connection')} refused by {cause}"
    yield from _iter_refusals(observation, _BUSY_STATUSES, 1.0)


def find_refused_access(observation: Observation) -> Iterator[str]:
    served = map(observation.growth, (catalog.STREAMS_OPENED, catalog.PRODUCED_RECORDS))
    least = max(MIN_REFUSALS, sum(served))
    yield from _iter_refusals(observation, _ACCESS_STATUSES, least)


def find_slow_clients(observation: Observation) -> Iterator[str]:
    evidence = list(_iter_slow_routes(observation))
    yield from evidence
    slow = [each for each in observation.streams or () if each["state"] == "slow"]
    slow.sort(key=lambda stream: -stream["behind"])
    for stream in slow[:3] if evidence else ():
        yield (
            f"stream {stream['id']} of {stream['address']} on {stream['route']}: "
            f"{stream['behind']:,} records behind"
        )


def _iter_slow_routes(observation: Observation) -> Iterator[str]:
    for route, clients, before, records in _iter_routes_behind(observation, "slow"):
        yield (
            f"{route}: the connections of {clients} are full, the last one is {records:,.0f} "
            f"records behind ({before:,.0f} before)"
        )
    for labels, grown in observation.iter_growth(catalog.CLIENT_FALLS):
        effect = "leaves records out" if labels["policy"] in _POLICY_LOSES else "loses nothing"
        yield (
            f"{labels['route']}: clients fell behind {format_count(grown, 'time')} "
            f"(slowClient: {labels['policy']}, which {effect})"
        )


def _iter_routes_behind(
    observation: Observation, state: str
) -> Iterator[tuple[str, str, float, float]]:
    """Yield each route whose clients in a state do not catch up.

    With it go their number as text, and how far the last one is behind at both scrapes.
    """
    for labels, _, clients in observation.iter_lasting(catalog.CLIENTS_BEHIND, state=state):
        found = {"route": labels["route"], "state": state}
        before, records = (
            scrape.get(catalog.CLIENTS_BEHIND_RECORDS_MAX, found) or 0.0
            for scrape in (observation.before, observation.after)
        )
        if records >= before > 0:
            yield labels["route"], format_count(clients, "client"), before, records


def find_self_limited_clients(observation: Observation) -> Iterator[str]:
    for state, reason in (
        ("no-credit", "asked for no more records (credit)"),
        ("max-rate", "get no more because of maxRate"),
    ):
        for route, clients, _, records in _iter_routes_behind(observation, state):
            yield f"{route}: {clients} {reason}; the last one is {records:,.0f} records behind"


def find_unmatched_filters(observation: Observation) -> Iterator[str]:
    for route in observation.routes or ():
        if not route["filtered"]:
            continue
        name = route["route"]
        clients = sum(
            value for _, _, value in observation.iter_lasting(catalog.CLIENTS, route=name)
        )
        read = sum(
            observation.growth(catalog.FETCHED_RECORDS, topic=topic, reader="tail")
            for topic in route["topics"]
        )
        delivered = observation.growth(catalog.DELIVERIES, route=name)
        if clients and not delivered and read >= MIN_UNMATCHED_RECORDS:
            yield (
                f"{name}: {format_count(clients, 'client')} got none of the {read:,.0f} records "
                f"that were read from {', '.join(route['topics'])}"
            )


def _iter_refusals(
    observation: Observation, meanings: dict[str, str], least: float
) -> Iterator[str]:
    for labels, grown in observation.iter_growth(catalog.REFUSED_REQUESTS):
        meaning = meanings.get(labels["status"])
        if meaning is not None and grown >= least:
            yield f"{format_count(grown, 'answer')} {labels['status']} ({meaning})"


GATEWAY_EVIDENCE: Mapping[str, FindEvidence] = {
    "worker-missing": find_missing_workers,
    "worker-restarts": find_restarts,
    "guard-away": find_absent_guards,
    "loop-lag": find_loop_lag,
    "memory-full": find_full_memory,
    "backend-away": find_absent_backends,
    "route-paused": find_paused_routes,
    "clients-refused": find_refused_load,
    "access-refused": find_refused_access,
    "slow-clients": find_slow_clients,
    "clients-limited": find_self_limited_clients,
    "filter-matches-none": find_unmatched_filters,
    "dead-letters": find_dead_letters,
    "files-full": find_full_files,
    "certificate-expires": find_expiring_certificate,
    "versions-differ": find_mixed_versions,
}
"""The evidence of each rule."""
