from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer
from support.brokers import KafkaCluster
from support.pipelines import OutputTopic

from gateway.pipeline.exactly_once.gaps import GapReporter, InputGap, find_gaps, log_gaps
from gateway.pipeline.exactly_once.ledger import Ledger, open_ledger

A, B = ("orders", 0), ("orders", 1)


def test_what_the_log_no_longer_has_is_a_gap():
    assert find_gaps({A: 100, B: 50}, {A: 150, B: 50}, {}) == [InputGap("orders", 0, 100, 150)]


def test_a_log_that_begins_before_what_is_read_next_is_whole():
    assert find_gaps({A: 100}, {A: 0}, {}) == []


def test_what_was_told_is_not_told_again_and_what_is_new_is():
    assert find_gaps({A: 100}, {A: 150}, {A: 150}) == []
    assert find_gaps({A: 100}, {A: 170}, {A: 150}) == [InputGap("orders", 0, 150, 170)]


def test_a_partition_that_is_gone_is_no_gap():
    assert find_gaps({A: 100}, {}, {}) == []


def test_a_job_without_gap_records_has_its_gaps_in_the_log(
    kafka: KafkaCluster, caplog: pytest.LogCaptureFixture
):
    """Records that were deleted while a job with at-least-once was stopped were nowhere."""
    orders, client = kafka.create_unique_topic(), {"bootstrap.servers": kafka.bootstrap_servers}
    producer = Producer(client)
    for number in range(20):
        producer.produce(orders, str(number), partition=0)
    producer.flush(30)
    kafka.admin.delete_records(orders, {0: 15})
    log_gaps("sums", {(orders, 0): 15}, client)
    log_gaps("sums", {}, client)
    assert not caplog.messages
    log_gaps("sums", {(orders, 0): 10}, client)
    (told,) = caplog.messages
    assert told.startswith("job sums did not read records") and "'from': 10, 'to': 15" in told


def _looker(name: str, gaps: str, ledger: Ledger) -> GapReporter:
    return GapReporter(
        "job", "query", name, gaps, ledger, input_config=ledger.client_config, timeout_s=10.0
    )


def test_a_gap_is_found_and_told_once_by_whoever_looks(kafka: KafkaCluster):
    """Two lookers, as before and after a restart: the second finds it told. The other side of a
    join reads the same topic from another place: what it lacks was taken for told, too."""
    orders, to, gaps = (
        kafka.create_unique_topic(),
        kafka.create_unique_topic(),
        kafka.create_unique_topic(),
    )
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(200):
        producer.produce(orders, str(number))
    producer.flush(30)
    kafka.admin.delete_records(orders, {0: 150})
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    ledger = open_ledger(to, 2, 10.0, client)
    lookers = [_looker(name, gaps, ledger) for name in ("left", "left", "right")]
    try:
        assert lookers[0].report_gaps({(orders, 0): 100}) == [InputGap(orders, 0, 100, 150)]
        assert lookers[1].report_gaps({(orders, 0): 100}) == []
        assert lookers[1].report_gaps({(orders, 0): 180}) == []
        kafka.admin.delete_records(orders, {0: 190})
        assert lookers[1].report_gaps({(orders, 0): 180}) == [InputGap(orders, 0, 180, 190)]
        assert lookers[2].report_gaps({(orders, 0): 185}) == [InputGap(orders, 0, 185, 190)]
    finally:
        for each in lookers:
            each.close()
        kafka.admin.delete_topic(ledger.topic)
    output = OutputTopic(kafka.bootstrap, gaps, 1)
    told = sorted(
        (json.loads(value or b"") for _, value in output.read_committed()),
        key=lambda each: each["from"],
    )
    output.close()
    assert [(each["from"], each["to"], each["reason"], each["input"]) for each in told] == [
        (100, 150, "retention", "left"),
        (180, 190, "retention", "left"),
        (185, 190, "retention", "right"),
    ]
    assert told[0]["topic"] == orders and told[0]["job"] == "job"
