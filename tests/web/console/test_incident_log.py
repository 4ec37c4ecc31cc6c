"""What happened while nobody watched, as an operator reads it later."""

from __future__ import annotations

import logging

from gateway.errors import BrokerUnavailable
from gateway.web.console.partition_watch import Transition
from gateway.web.console.worker_report import (
    MAX_INCIDENTS,
    MAX_TEXT_CHARS,
    IncidentHandler,
    IncidentKind,
    IncidentLog,
)

GAP = IncidentKind.GAP


def get_texts(incidents: IncidentLog) -> list[tuple[str, str, str]]:
    return [(each.kind, each.subject, each.text) for each in incidents.list_since(0)]


def test_lost_and_recovered_partitions_are_named():
    incidents = IncidentLog()
    incidents.add_transitions(
        [
            Transition("", "orders", (1, 5), "leaderless", "no-leader"),
            Transition("east", "stock", tuple(range(12)), "stalled", None),
            Transition("", "orders", (1,), "ready", None),
            Transition("", "new", (1,), "resolving", None),
        ],
        7.0,
    )
    assert get_texts(incidents) == [
        ("partition-lost", "orders", "1, 5: leaderless (no-leader)"),
        ("partition-lost", "east/stock", "0, 1, 2, 3, 4, 5, 6, 7 and 4 more: stalled"),
        ("partition-back", "orders", "1: read again"),
    ]


def test_a_cluster_that_is_lost_and_answers_again_is_told_once_each():
    """Only the warning of the log was there, and not that it was over."""
    incidents = IncidentLog()
    refused = BrokerUnavailable("no broker answers")
    for error in (None, refused, refused, None, None):
        incidents.add_clusters({"": error, "east": None}, 7.0)
    assert get_texts(incidents) == [
        ("kafka-lost", "Kafka", "no broker answers"),
        ("kafka-back", "Kafka", "answers again"),
    ]


def test_gaps_are_told_once_each():
    incidents = IncidentLog()
    counts, offsets = {("orders", "retention"): 1}, {("orders", "retention"): 12}
    incidents.add_gaps(GAP, counts, offsets, 7.0)
    incidents.add_gaps(GAP, counts, offsets, 8.0)
    incidents.add_gaps(GAP, {("orders", "retention"): 3}, offsets, 9.0)
    incidents.add_gaps(IncidentKind.CLIENT_GAP, {("/events", "dropped"): 2}, {}, 9.0)
    assert get_texts(incidents) == [
        ("gap", "orders", "retention: 1 gap of 12 offsets"),
        ("gap", "orders", "retention: 2 gaps"),
        ("client-gap", "/events", "dropped: 2 gaps"),
    ]


def test_the_latest_are_kept_and_asked_for_by_number():
    incidents = IncidentLog()
    for n in range(MAX_INCIDENTS + 10):
        incidents.add(GAP, "orders", str(n), 7.0)
    assert len(incidents.list_since(0)) == MAX_INCIDENTS
    (last,) = incidents.list_since(incidents.last_number - 1)
    assert (last.text, last.number) == (str(MAX_INCIDENTS + 9), incidents.last_number)


def test_warnings_of_the_log_are_incidents_without_their_secrets():
    incidents = IncidentLog()
    logger = logging.Logger("gateway.kafka.client")
    logger.addHandler(IncidentHandler(incidents))
    logger.info("not this one")
    logger.warning("asked with Bearer abcdefghijkl\x1b[1m and %s", "more")
    logger.error("x" * (MAX_TEXT_CHARS + 1))
    warning, error = get_texts(incidents)
    assert warning == ("warning", "kafka.client", "asked with Bearer ***\\x1b[1m and more")
    assert error[0] == "error" and len(error[2]) == MAX_TEXT_CHARS + 1


def test_a_line_that_cannot_be_formatted_ends_nothing(capsys):
    incidents = IncidentLog()
    logger = logging.Logger("gateway.kafka")
    logger.addHandler(IncidentHandler(incidents))
    logger.warning("%d", "no number")
    assert incidents.list_since(0) == []
