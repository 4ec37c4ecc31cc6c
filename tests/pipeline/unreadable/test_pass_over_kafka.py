"""Checkpoints that are edited by what is in a real Kafka; without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.brokers import Broker

from gateway.config import Kafka
from gateway.config.sections.pipeline import Input
from gateway.errors import PipelineError
from gateway.pipeline.checkpoint.checkpoint import Checkpoint, Sources
from gateway.pipeline.run.failures import Unreadable
from gateway.pipeline.state.files import Local
from gateway.pipeline.unreadable.offsets import Unfinished, find_unfinished
from gateway.pipeline.unreadable.skip import Source, pass_over

ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
BEYOND = 2**60


@pytest.fixture
def topic(kafka: Broker) -> str:
    """Of three partitions, where x is a record that Spark cannot read: "..xx.", "xx.x", "..."."""
    topic = kafka.topic(3, configs=ANY_TIME)
    producer = Producer({"bootstrap.servers": kafka.servers})
    for partition, records in enumerate(("..xx.", "xx.x", "...")):
        for each in records:
            producer.produce(topic, each, partition=partition, timestamp=BEYOND * (each == "x"))
    assert producer.flush(60) == 0
    return topic


def unfinished_of(root: Path, topic: str) -> Unfinished:
    """Return the first batch of a checkpoint, which has all records of the topic."""
    held, sources = Local(root), Sources(("t",), ("t",))
    if not held.sizes():
        held.write("sources/0/0", b"\0v1\n" + json.dumps({topic: dict.fromkeys("012", 0)}).encode())
        ends = json.dumps({topic: {"0": 5, "1": 4, "2": 3}})
        held.write("offsets/0", f"v1\n{{}}\n{ends}".encode())
    found = find_unfinished(held, Checkpoint(str(root)), sources)
    assert found is not None
    return found


def source(kafka: Broker, topic: str, on_invalid: str = "skip") -> dict[str, Source]:
    made = Input.model_validate({"topic": topic, "onInvalid": on_invalid})
    return {"t": Source(made, Kafka.model_validate({"servers": kafka.bootstrap}), None)}


def test_one_start_passes_over_what_each_partition_has_next(
    kafka: Broker, topic: str, tmp_path: Path
):
    """Each partition's record took two starts of its own."""
    found = Unreadable(topic, 0, 2, BEYOND)
    pass_over("job", source(kafka, topic), unfinished_of(tmp_path, topic), found)
    ranges = unfinished_of(tmp_path, topic).all_ranges()
    assert [(each.start, each.end) for each in ranges] == [(0, 2), (2, 3), (0, 3)]


def test_a_record_that_the_batch_starts_with_moves_it(kafka: Broker, topic: str, tmp_path: Path):
    found = Unreadable(topic, 1, 0, BEYOND)
    pass_over("job", source(kafka, topic), unfinished_of(tmp_path, topic), found)
    assert [each.start for each in unfinished_of(tmp_path, topic).all_ranges()] == [0, 2, 0]


def test_a_record_that_must_end_the_job_or_is_none_of_the_batch_changes_nothing(
    kafka: Broker, topic: str, tmp_path: Path
):
    unfinished = unfinished_of(tmp_path, topic)
    files = {name: unfinished.held.read(name) for name in unfinished.held.sizes()}
    for on_invalid, found in (
        ("fail", Unreadable(topic, 0, 2, BEYOND)),
        ("skip", Unreadable(topic, 0, 9, BEYOND)),
        ("skip", Unreadable("other", 0, 2, BEYOND)),
    ):
        with pytest.raises(PipelineError, match=f"topic {found.topic} partition 0"):
            pass_over("job", source(kafka, topic, on_invalid), unfinished, found)
    with pytest.raises(PipelineError, match=r"kafka-delete-records\.sh"):
        pass_over("job", source(kafka, topic), None, Unreadable(topic, 0, 2, BEYOND))
    assert {name: unfinished.held.read(name) for name in unfinished.held.sizes()} == files


def test_a_record_that_is_gone_is_no_reason_to_end(kafka: Broker, topic: str, tmp_path: Path):
    """Retention took it since: the query begins again, and tells the gap."""
    kafka.admin.delete_records(topic, {1: 1})
    pass_over(
        "job", source(kafka, topic), unfinished_of(tmp_path, topic), Unreadable(topic, 1, 0, BEYOND)
    )
    range = unfinished_of(tmp_path, topic).all_ranges()[1]
    assert (range.start, range.end) == (0, 1)  # the record behind it is one more
