"""Checkpoints that are edited by what is in a real Kafka; without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event

import pytest
from confluent_kafka import Producer
from support.brokers import KafkaCluster

from gateway.config import Kafka
from gateway.config.sections.job import Input
from gateway.errors import PipelineError, PipelineUnavailable
from gateway.pipeline.checkpoint.checkpoint import Checkpoint, Sources
from gateway.pipeline.run.failures import UnreadableOffset
from gateway.pipeline.state.files import LocalFiles
from gateway.pipeline.topics import TopicDescription
from gateway.pipeline.unreadable.offsets import UnfinishedBatch, find_unfinished_batch
from gateway.pipeline.unreadable.skip import InputSource, skip_records

pytestmark = pytest.mark.night

ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
BEYOND = 2**60


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    """Of three partitions, where x is a record that Spark cannot read: "..xx.", "xx.x", "..."."""
    topic = kafka.create_unique_topic(3, configs=ANY_TIME)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for partition, records in enumerate(("..xx.", "xx.x", "...")):
        for each in records:
            producer.produce(topic, each, partition=partition, timestamp=BEYOND * (each == "x"))
    assert producer.flush(60) == 0
    return topic


def unfinished_of(root: Path, topic: str) -> UnfinishedBatch:
    """Return the first batch of a checkpoint, which has all records of the topic."""
    held, sources = LocalFiles(root), Sources(("t",), ("t",))
    if not held.list_sizes():
        held.write("sources/0/0", b"\0v1\n" + json.dumps({topic: dict.fromkeys("012", 0)}).encode())
        ends = json.dumps({topic: {"0": 5, "1": 4, "2": 3}})
        held.write("offsets/0", f"v1\n{{}}\n{ends}".encode())
    found = find_unfinished_batch(held, Checkpoint(str(root)), sources)
    assert found is not None
    return found


def source(kafka: KafkaCluster, topic: str, on_invalid: str = "skip") -> dict[str, InputSource]:
    made = Input.model_validate({"topic": topic, "onInvalid": on_invalid})
    cluster = Kafka.model_validate({"servers": kafka.bootstrap})
    return {"t": InputSource(made, cluster, TopicDescription(topic, "A", 3), None)}


def test_one_start_passes_over_what_each_partition_has_next(kafka, topic, tmp_path):
    """Each partition's record took two starts of its own."""
    found = UnreadableOffset(topic, 0, 2, BEYOND)
    skip_records("job", source(kafka, topic), unfinished_of(tmp_path, topic), found, Event())
    ranges = unfinished_of(tmp_path, topic).list_ranges()
    assert [(each.start, each.end) for each in ranges] == [(0, 2), (2, 3), (0, 3)]


def test_a_record_that_the_batch_starts_with_moves_it(kafka, topic, tmp_path):
    found = UnreadableOffset(topic, 1, 0, BEYOND)
    skip_records("job", source(kafka, topic), unfinished_of(tmp_path, topic), found, Event())
    assert [each.start for each in unfinished_of(tmp_path, topic).list_ranges()] == [0, 2, 0]


def test_a_record_that_must_not_be_passed_over_changes_nothing(kafka, topic, tmp_path):
    """Another process that runs the job may have passed over it: then another try may help."""
    unfinished = unfinished_of(tmp_path, topic)
    files = {name: unfinished.files.read(name) for name in unfinished.files.list_sizes()}
    for on_invalid, found, batch, transient in (
        ("fail", UnreadableOffset(topic, 0, 2, BEYOND), unfinished, False),
        ("skip", UnreadableOffset("other", 0, 2, BEYOND), unfinished, False),
        ("skip", UnreadableOffset(topic, 0, 9, BEYOND), unfinished, True),
        ("skip", UnreadableOffset(topic, 0, 2, BEYOND), None, True),
    ):
        with pytest.raises(PipelineError, match=f"topic {found.topic} partition 0") as raised:
            skip_records("job", source(kafka, topic, on_invalid), batch, found, Event())
        assert isinstance(raised.value, PipelineUnavailable) is transient
    assert {name: unfinished.files.read(name) for name in unfinished.files.list_sizes()} == files


@pytest.mark.parametrize("limit", ["ending", "time"])
def test_a_long_run_is_passed_over_in_parts_with_one_line_each(kafka, tmp_path, limit, caplog):
    """All of it was read before the job could be ended, with a line of each thousand."""
    long = kafka.create_unique_topic(3, configs=ANY_TIME)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for _ in range(5000):
        producer.produce(long, b"x", partition=0, timestamp=BEYOND)
    assert producer.flush(60) == 0
    ending = Event()
    if limit == "ending":
        ending.set()
    found = UnreadableOffset(long, 0, 0, BEYOND)
    seconds = 0.0 if limit == "time" else 60.0
    skip_records("job", source(kafka, long), unfinished_of(tmp_path, long), found, ending, seconds)
    assert [each.start for each in unfinished_of(tmp_path, long).list_ranges()] == [1, 0, 0]
    skip_records(
        "job", source(kafka, long), unfinished_of(tmp_path, long), found._replace(offset=1), Event()
    )
    assert [each.start for each in unfinished_of(tmp_path, long).list_ranges()] == [5000, 0, 0]
    said = [each.getMessage() for each in caplog.records if "passes over" in each.getMessage()]
    assert [each.split(", as")[0] for each in said] == [
        f"job job passes over 1 records of {long}, partition 0, offsets 0 to 0",
        f"job job passes over 4999 records of {long}, partition 0, offsets 1 to 4999",
    ]


def test_a_record_that_is_gone_is_no_reason_to_end(kafka: KafkaCluster, topic: str, tmp_path: Path):
    """Retention took it since: the query begins again, and tells the gap."""
    kafka.admin.delete_records(topic, {1: 1})
    found = UnreadableOffset(topic, 1, 0, BEYOND)
    skip_records("job", source(kafka, topic), unfinished_of(tmp_path, topic), found, Event())
    range = unfinished_of(tmp_path, topic).list_ranges()[1]
    assert (range.start, range.end) == (0, 1)  # the record behind it is one more
