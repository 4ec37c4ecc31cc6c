from __future__ import annotations

import json
import time

import pytest
from confluent_kafka import Producer
from support.brokers import KafkaCluster
from support.dead_letters import read_committed
from support.pipelines import OutputTopic

from gateway.config import Kafka, Settings
from gateway.config.sections.job import Input, Output
from gateway.pipeline.checkpoint.checkpoint import BatchOffsets, Checkpoint, Sources
from gateway.pipeline.exactly_once.gaps import (
    RETENTION_IN_BATCH,
    GapReporter,
    InputGap,
    add_partitions,
    find_gaps,
    log_gaps,
    log_removed_tombstones,
)
from gateway.pipeline.exactly_once.ledger import Ledger, open_ledger
from gateway.pipeline.exactly_once.side_outputs import SideOutputs
from gateway.pipeline.reports import Reports

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


def test_a_partition_that_was_added_is_read_from_its_beginning():
    """What retention had deleted of it, while the job was away, was no gap."""
    assert find_gaps(add_partitions({A: 100}, [A, B]), {A: 100, B: 5}, {}) == [
        InputGap("orders", 1, 0, 5)
    ]


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
    log_gaps("sums", {(orders, 0): 15}, client, Reports())
    log_gaps("sums", {}, client, Reports())
    assert not caplog.messages
    log_gaps("sums", {(orders, 0): 10}, client, Reports())
    (told,) = caplog.messages
    assert told.startswith("job sums did not read records") and "'from': 10, 'to': 15" in told
    kafka.admin.add_partitions(orders, 2)
    producer = Producer(client)  # which knows the new partition
    for number in range(20):
        producer.produce(orders, str(number), partition=1)
    producer.flush(30)
    kafka.admin.delete_records(orders, {1: 5})
    log_gaps("sums", {(orders, 0): 15}, client, Reports())
    assert "'partition': 1, 'from': 0, 'to': 5" in caplog.messages[-1]


def test_tombstones_that_compaction_may_have_removed_unread_are_in_the_log(
    kafka: KafkaCluster, caplog: pytest.LogCaptureFixture
):
    """Rows that were deleted while `load` was stopped stayed in Redis, and nothing said so."""
    client, now_ms = {"bootstrap.servers": kafka.bootstrap_servers}, int(time.time() * 1000)
    users = kafka.create_unique_topic(configs={"cleanup.policy": "compact"})
    producer = Producer(client)
    producer.produce(users, "ann", "1")
    producer.flush(30)
    log_removed_tombstones("load", {(users, 0): 0}, now_ms, client, Reports())
    log_removed_tombstones("load", {(users, 0): 1}, 0, client, Reports())
    assert not caplog.messages
    log_removed_tombstones("load", {(users, 0): 0}, 0, client, Reports())
    assert "for longer than its delete.retention.ms" in caplog.text


def test_records_deleted_before_and_during_a_batch_are_reported(kafka, tmp_path, caplog):
    """Those that were deleted while a batch read were in no gap record, metric or log line. Nor
    was there a word of the hours that a small `maxRecords` lets Spark take for what is gone."""
    orders, to = kafka.create_unique_topic(), kafka.create_unique_topic()
    kafka.admin.add_partitions(orders, 2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(10):
        producer.produce(orders, str(number), partition=1)
    producer.flush(30)
    kafka.admin.delete_records(orders, {1: 5})

    class Batches(Checkpoint):
        def read_batch(self, number: int) -> BatchOffsets:
            start = {(orders, 0): 0}
            return BatchOffsets(number, (start,), ({**start, (orders, 1): 10},), 0)

    outputs = SideOutputs(
        None,  # type: ignore[arg-type]
        "job",
        to,
        {"from": Input.model_validate({"topic": orders, "onInvalid": "skip", "maxRecords": 2})},
        Output(topic=to),
        Settings(kafka=Kafka(servers=[kafka.bootstrap_servers])),
        Batches(str(tmp_path)),
        sources=Sources(("from",), ("from",)),
        late_filters={},
        get_counts=lambda _: None,
    )
    try:
        with outputs.enter_batch(1):
            pass
        with outputs.enter_batch(1):
            kafka.admin.delete_records(orders, {1: 8})
    finally:
        outputs.close()
    told = [json.loads(each.value()) for each in read_committed(kafka, f"{to}.gaps")]
    assert [(gap["partition"], gap["from"], gap["to"], gap["reason"]) for gap in told] == [
        (1, 0, 5, "retention"),
        (1, 5, 8, RETENTION_IN_BATCH),
    ]
    assert ["about 2 batches" in text for text in caplog.messages].count(True) == 1
    for topic in (f"{to}.gaps", f"{to}.ledger"):
        kafka.admin.delete_topic(topic)


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
