"""Recognize faults between the gateway and its clients."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from gateway.telemetry import catalog

from .observation import Observation, Rule, format_count, iter_health

_BUSY_STATUSES = {"429": "too many requests or streams", "503": "busy"}
_ACCESS_STATUSES = {"401": "not authenticated", "403": "not allowed", "421": "unknown host"}
_POLICY_LOSES = frozenset({"skip", "conflate", "disconnect"})
# The least effects that make something a cause.
MIN_UNMATCHED_RECORDS = 20.0
MIN_REFUSALS = 5.0


def find_absent_guards(observation: Observation) -> Iterator[str]:
    names = [
        labels["guard"]
        for labels, ready in observation.after.iter_series(catalog.GUARD_READY)
        if not ready
    ]
    warnings = list(iter_health(observation, "warnings"))
    for name in names:
        # The health is that of one worker, which may have no problem.
        problems = [each for each in warnings if each.startswith(f"guard {name}: ")]
        yield problems[0] if problems else f"guard {name} cannot decide"


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
    opened = observation.growth(catalog.STREAMS_OPENED)
    least = max(MIN_REFUSALS, opened)
    yield from _iter_refusals(observation, _ACCESS_STATUSES, least)


def find_slow_clients(observation: Observation) -> Iterator[str]:
    evidence = list(_iter_slow_routes(observation))
    yield from evidence
    if evidence:
        yield from _iter_slow_streams(observation)


def _iter_slow_routes(observation: Observation) -> Iterator[str]:
    states = {"state": "slow"}
    for labels, _, clients in observation.iter_lasting(catalog.CLIENTS_BEHIND, **states):
        route = {"route": labels["route"], **states}
        before = observation.before.get(catalog.CLIENTS_BEHIND_RECORDS_MAX, route) or 0.0
        records = observation.after.get(catalog.CLIENTS_BEHIND_RECORDS_MAX, route) or 0.0
        if records >= before > 0:
            yield (
                f"{labels['route']}: the connections of {format_count(clients, 'client')} are "
                f"full, the last one is {records:,.0f} records behind ({before:,.0f} before)"
            )
    for labels, grown in observation.iter_growth(catalog.CLIENT_FALLS):
        effect = "leaves records out" if labels["policy"] in _POLICY_LOSES else "loses nothing"
        yield (
            f"{labels['route']}: clients fell behind {format_count(grown, 'time')} "
            f"(slowClient: {labels['policy']}, which {effect})"
        )


def _iter_slow_streams(observation: Observation) -> Iterator[str]:
    slow = [each for each in observation.streams or () if each["state"] == "slow"]
    slow.sort(key=lambda stream: -stream["behind"])
    for stream in islice(slow, 3):
        yield (
            f"stream {stream['id']} of {stream['address']} on {stream['route']}: "
            f"{stream['behind']:,} records behind"
        )


def find_self_limited_clients(observation: Observation) -> Iterator[str]:
    for state, reason in (
        ("no-credit", "asked for no more records (credit)"),
        ("max-rate", "get no more because of maxRate"),
    ):
        for labels, _, clients in observation.iter_lasting(catalog.CLIENTS_BEHIND, state=state):
            found = {"route": labels["route"], "state": state}
            before = observation.before.get(catalog.CLIENTS_BEHIND_RECORDS_MAX, found) or 0.0
            records = observation.after.get(catalog.CLIENTS_BEHIND_RECORDS_MAX, found) or 0.0
            if records >= before > 0:
                yield (
                    f"{labels['route']}: {format_count(clients, 'client')} {reason}; the last one "
                    f"is {records:,.0f} records behind"
                )


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


GUARD_RULES = (
    Rule(
        "guard-away",
        "a guard cannot decide about clients",
        find_absent_guards,
        ("guards", "the issuer of tokens, or the application that is asked"),
        "New clients get 503 until its keys can be fetched again; streams that run go on.",
    ),
)
"""Why nobody new is admitted."""

CLIENT_RULES = (
    Rule(
        "route-paused",
        "an operator paused a route",
        find_paused_routes,
        ("POST /routes/PATH/resume of the admin API",),
        "Its clients come back by themselves after that, and miss nothing.",
    ),
    Rule(
        "clients-refused",
        "limits refuse clients",
        find_refused_load,
        ("listen.limits", "memory", "more replicas"),
        "Raise the limit that is named, if the host has the memory, or add replicas. Clients try "
        "again by themselves.",
    ),
    Rule(
        "access-refused",
        "more clients are refused than served",
        find_refused_access,
        ("guards", "routes[].guarded", "listen.hosts"),
        "`gateway token` says what a guard thinks of a token. After a rotation of keys, look at "
        "the issuer; 421 names a host that is missing in listen.hosts.",
    ),
    Rule(
        "slow-clients",
        "connections of clients accept less than there is to send",
        find_slow_clients,
        ("routes[].with.slowClient", "maxRate", "interval", "filters and fields"),
        "The others are not affected. Send less (filters, fields, interval), or choose what "
        "happens to slow clients by slowClient; DELETE /streams/ID of the admin API ends one.",
    ),
)
"""What concerns clients, whichever records they ask for."""

CHOICE_RULES = (
    Rule(
        "clients-limited",
        "clients get no more than they, or their route, ask for",
        find_self_limited_clients,
        ("credit of the client", "routes[].with.maxRate"),
        "Let the client give credit sooner, or raise maxRate.",
    ),
    Rule(
        "filter-matches-none",
        "the filters of a route match no record",
        find_unmatched_filters,
        ("routes[].with.filters",),
        "Compare the filter with a record: `gateway tail` without a filter shows keys, headers and "
        "values. A filter with a parameter matches nothing if the client sends another value.",
    ),
)
"""What clients or routes chose, and what may be meant."""
