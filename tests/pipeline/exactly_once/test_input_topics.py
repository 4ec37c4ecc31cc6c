from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from support.brokers import KafkaCluster
from support.waiting import block_until

from gateway.errors import PipelineError, PipelineUnavailable
from gateway.pipeline.checkpoint.files import LocalFiles
from gateway.pipeline.clusters import NO_TOPIC_ID, TopicDescription
from gateway.pipeline.exactly_once.input_topics import (
    ALERT_AFTER_S,
    InputTopics,
    LogEnd,
    OpenTransactions,
    check_topics,
    verify_topics,
)
from gateway.pipeline.reports import Reports
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

OLD = {"eu": TopicDescription("orders", "A"), "us": TopicDescription("clicks", "B")}
NEW = OLD | {"us": TopicDescription("clicks", "C")}


def test_a_checkpoint_of_a_topic_with_another_id_is_refused_at_each_start(tmp_path: Path):
    """Also a job that was corrected, to read the right topic, after its first start had failed."""
    held = LocalFiles(tmp_path)
    for topics in (NEW, OLD, OLD):
        verify_topics(held, topics)
    held.write("offsets/0", b"")
    for _ in range(2):
        with pytest.raises(PipelineError, match=r"topic clicks was .*; start again with --fresh$"):
            verify_topics(held, NEW)
    verify_topics(held, OLD)


def test_a_topic_gets_its_id_when_its_brokers_are_updated(tmp_path: Path):
    """The zeros that brokers before 2.8 answer were an id: each topic was taken for another."""
    held = LocalFiles(tmp_path)
    before = {name: each._replace(id=NO_TOPIC_ID) for name, each in OLD.items()}
    for topics in (before, OLD, before):
        verify_topics(held, topics)


def test_a_recreated_topic_is_found_in_each_way_of_asking_and_a_missing_one_is_none(
    kafka: KafkaCluster,
):
    topic = kafka.create_unique_topic()
    now = [0.0]
    inputs = InputTopics(
        {"from": ({"bootstrap.servers": kafka.bootstrap_servers}, topic)}, lambda: now[0]
    )

    def find_recreated() -> PipelineError | None:
        now[0] += 1
        return inputs.find_recreated()

    try:
        assert find_recreated() is None
        kafka.admin.delete_topic(topic)
        inputs.check()
        check_topics(inputs.read_topics)
        kafka.create_topic(topic)
        block_until(lambda: find_recreated() is not None, "an error")
        for check in (inputs.check, lambda: check_topics(inputs.read_topics)):
            with pytest.raises(PipelineError, match=topic) as raised:
                check()
            assert not isinstance(raised.value, PipelineUnavailable)  # another try does not help
    finally:
        inputs.close()


def test_the_ends_of_streams_and_tables_show_an_open_transaction(kafka: KafkaCluster):
    """One in the topic of a table, or in a partition that was added, was no alert."""
    client_config = {"bootstrap.servers": kafka.bootstrap_servers}
    topic, other, now = kafka.create_unique_topic(2), kafka.create_unique_topic(), [0.0]
    producer = Producer(client_config | {"transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=1)
    assert producer.flush(30) == 0
    read = {"from": (client_config, other), "table": (client_config, topic)}
    inputs = InputTopics(read, lambda: now[0], tables={"table"})

    def fetch_ends() -> dict[int, tuple[int, int]]:
        now[0] += 1
        assert inputs.find_recreated() is None
        ends = inputs.fetch_ends() or {}
        return {partition: end for (at, partition), end in ends.items() if at.name == topic}

    try:
        block_until(lambda: fetch_ends() == {0: (0, 0), 1: (0, 1)}, "the open transaction")
        producer.abort_transaction(30)
        block_until(lambda: fetch_ends() == {0: (0, 0), 1: (2, 2)}, "its end")
        kafka.admin.add_partitions(topic, 3)
        block_until(lambda: 2 in fetch_ends(), "the partition that was added")
        kafka.admin.delete_topic(topic)
        kafka.create_topic(topic)
        block_until(lambda: fetch_ends() == {0: (0, 0)}, "the ends of the table's new topic")
    finally:
        inputs.close()


def test_topics_are_asked_for_with_the_credentials_of_their_own_input(kafka: KafkaCluster):
    """Inputs of one cluster shared the client of the first, whatever user they named."""
    client_config = {"bootstrap.servers": kafka.bootstrap_servers}
    inputs = InputTopics({"from": (client_config, kafka.create_unique_topic())})
    inputs.close()
    check_topics(inputs.read_topics)
    (read_topic,) = inputs.read_topics
    other = read_topic._replace(client_config={**client_config, "sasl.mechanisms": "none such"})
    with pytest.raises(KafkaException, match=r"sasl\.mechanisms|none such"):
        check_topics([other])


def test_a_transaction_that_stays_open_is_an_alert_and_what_waits_behind_it_counts():
    """A job that read nothing behind one had no backlog, and no other sign of it. Then a topic of
    the same name in another cluster hid it."""
    topic, same_name = TopicDescription("orders", "id"), TopicDescription("orders", "other")
    now = [0.0]
    reports = Reports()
    transactions = OpenTransactions("paid", reports, lambda: now[0])

    def update(stable: int, end: int) -> tuple[float, list[str]]:
        ends = {(topic, 0): LogEnd(7, 7), (topic, 1): LogEnd(stable, end)}
        transactions.update({**ends, (same_name, 1): LogEnd(3, 3)})
        samples = MetricSamples()
        reports.collect_metrics(samples)
        behind = samples[catalog.PIPELINE_BEHIND_OFFSETS]["paid", "orders"]
        return behind, list(reports.get_alerts("paid").values())

    assert update(5, 15) == (10, [])
    now[0] += ALERT_AFTER_S
    assert update(20, 30) == (10, [])  # another one
    now[0] += ALERT_AFTER_S
    behind, (message,) = update(20, 40)
    assert behind == 20
    assert "topic orders partition 1 offset 20" in message
    assert update(40, 40) == (0, [])
