"""What of Kafka fails, in the log: once for each change of state."""

from __future__ import annotations

import logging

import pytest

from gateway.errors import AuthenticationFailed, BrokerUnavailable, UnknownTopic
from gateway.kafka.client.outages import (
    CLUSTER_LABEL,
    GRACE_S,
    REPEAT_INTERVAL_S,
    OutageReport,
    Outages,
    format_broker_label,
)


class FakeClock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def test_an_outage_is_said_once_however_often_it_is_tried(clock, lines):
    outages = Outages(clock)
    for _ in range(1000):
        outages.report_failure("Kafka", "connection", "refused")
        clock.time += 0.01
    assert lines.messages == ["Kafka cause=connection: refused"]
    assert lines.records[0].levelno == logging.WARNING


def test_it_is_said_again_once_a_minute_and_when_its_cause_changes(clock, lines):
    outages = Outages(clock)
    for _ in range(13):
        outages.report_failure("Kafka", "connection", "refused")
        clock.time += REPEAT_INTERVAL_S / 6
    outages.report_failure("Kafka", "authentication", "wrong password")
    assert lines.messages == [
        "Kafka cause=connection: refused",
        "Kafka cause=connection, for 60 s now: refused",
        "Kafka cause=connection, for 120 s now: refused",
        "Kafka cause=authentication: wrong password",
    ]


def test_its_end_is_said_once_and_only_where_it_began(clock, lines):
    outages = Outages(clock)
    outages.report_recovery("Kafka")
    assert lines.messages == []
    outages.report_failure("Kafka", "timeout", "silence")
    clock.time += 2.5
    outages.report_recovery("Kafka")
    outages.report_recovery("Kafka")
    assert lines.messages[1:] == ["Kafka answers again after 2.5 s of cause=timeout"]
    assert lines.records[1].levelno == logging.INFO


def test_what_fails_because_kafka_is_away_has_no_line_of_its_own(clock, lines):
    """Each bootstrap topic had a line, although the line about Kafka said the same."""
    outages = Outages(clock)
    for second in range(30):
        for number in range(40):
            outages.report_error(f"topic={number}", BrokerUnavailable("refused"))
        if second == 1:  # the metadata notice it a moment later
            outages.report_failure(CLUSTER_LABEL, "connection", "refused")
        clock.time += 1.0
    assert lines.messages == ["Kafka cause=connection: refused"]
    outages.report_recovery(CLUSTER_LABEL)
    for number in range(40):
        outages.report_recovery(f"topic={number}", "is read")
    assert lines.messages[1:] == ["Kafka answers again after 29.0 s of cause=connection"]


def test_what_fails_because_a_broker_is_away_has_no_line_of_its_own(clock, lines):
    outages = Outages(clock)
    outages.report_failure(format_broker_label(2), "connection", "refused")
    outages.report_failure(format_broker_label(3), "authentication", "wrong password")
    for _ in range(20):
        outages.report_error("group=a", BrokerUnavailable("refused", node=2))
        outages.report_error("group=b", AuthenticationFailed("wrong password"))
        outages.report_error("group=c", BrokerUnavailable("refused", node=1))
        clock.time += 1.0
    assert lines.messages[2:] == ["group=c cause=connection: refused"]


def test_a_part_that_fails_alone_has_a_line_after_a_while(clock, lines):
    """Commits may time out at a broker that answers everything else."""
    outages = Outages(clock)
    outages.report_error("commits", BrokerUnavailable("too late", timeout=True))
    clock.time += 1.0
    outages.report_recovery("commits")
    assert lines.messages == []
    for _ in range(20):
        outages.report_error("commits", BrokerUnavailable("too late", timeout=True))
        clock.time += GRACE_S / 10
    outages.report_recovery("commits", "work again")
    assert [text.partition(" after ")[0] for text in lines.messages] == [
        "commits cause=timeout: too late", "commits work again",
    ]  # fmt: skip


def test_another_reason_than_the_connection_is_said_at_once(clock, lines):
    outages = Outages(clock)
    outages.report_error("topic=a", BrokerUnavailable("refused"))
    outages.report_error("topic=a", UnknownTopic("no broker knows it", topic="a"))
    assert lines.messages == ["topic=a cause=unknown-topic: no broker knows it"]


def test_a_broker_that_refuses_and_then_is_silent_is_one_outage(clock, lines):
    """Servers that fail in different ways took turns, with a line for each."""
    outages = Outages(clock)
    for _ in range(10):
        outages.report_failure("Kafka", "connection", "refused")
        outages.report_failure("Kafka", "timeout", "silence")
    assert lines.messages == ["Kafka cause=connection: refused"]


def test_the_first_contact_is_said_with_how_long_it_took(clock, lines):
    outages = Outages(clock, cluster="east")
    outages.report_contact("is connected: cluster c, 3 brokers")
    assert lines.messages == ["east: Kafka is connected: cluster c, 3 brokers"]
    assert lines.records[0].levelno == logging.INFO
    late = Outages(clock)
    late.report_failure("Kafka", "connection", "refused")
    clock.time += 4.0
    late.report_contact("is connected: cluster c, 3 brokers")
    assert lines.messages[2:] == [
        "Kafka is connected: cluster c, 3 brokers after 4.0 s of cause=connection"
    ]


def test_reports_can_be_passed_on_and_repeated(clock: FakeClock, lines: pytest.LogCaptureFixture):
    outages, reports = Outages(clock), list[OutageReport]()
    outages.forward_to(reports.append)
    outages.report_contact("is connected")
    outages.report_failure("broker=1", "timeout", "silence", broker=1)
    outages.report_error("topic=a", BrokerUnavailable("silence", node=1))
    assert [(each.what, each.cause) for each in reports] == [
        ("Kafka", None),
        ("broker=1", "timeout"),
    ]
    assert list(outages.iter_reports()) == reports
    outages.report_recovery("broker=1")
    assert reports[2:] == [OutageReport("broker=1", None, "answers again")]
    assert list(outages.iter_reports()) == reports[:1]
    assert lines.messages == []
