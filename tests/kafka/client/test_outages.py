"""What of Kafka fails, in the log: once for each change of state."""

from __future__ import annotations

import logging

import pytest

from gateway.kafka.client.outages import REPEAT_INTERVAL_S, Outages


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


def test_an_outage_is_said_once_however_often_it_is_tried(
    clock: FakeClock, lines: pytest.LogCaptureFixture
):
    outages = Outages(clock)
    for _ in range(1000):
        outages.report_failure("Kafka", "connection", "refused")
        clock.time += 0.01
    assert lines.messages == ["Kafka cause=connection: refused"]
    assert lines.records[0].levelno == logging.WARNING


def test_it_is_said_again_once_a_minute_and_when_its_cause_changes(
    clock: FakeClock, lines: pytest.LogCaptureFixture
):
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


def test_its_end_is_said_once_and_only_where_it_began(
    clock: FakeClock, lines: pytest.LogCaptureFixture
):
    outages = Outages(clock)
    outages.report_recovery("Kafka")
    assert lines.messages == []
    outages.report_failure("Kafka", "timeout", "silence")
    clock.time += 2.5
    outages.report_recovery("Kafka")
    outages.report_recovery("Kafka")
    assert lines.messages[1:] == ["Kafka answers again after 2.5 s of cause=timeout"]
    assert lines.records[1].levelno == logging.INFO
