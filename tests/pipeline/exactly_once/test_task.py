from __future__ import annotations

from dataclasses import replace

import pytest
from support.brokers import KafkaCluster
from support.pipelines import OutputTopic

from gateway.pipeline.exactly_once import producers
from gateway.pipeline.exactly_once.ledger import open_ledger
from gateway.pipeline.exactly_once.task import WriteTask
from gateway.pipeline.exactly_once.writer_plan import WriterPlan


@pytest.mark.needs("java17")
def test_a_key_of_any_bytes_is_written_as_it_is(kafka: KafkaCluster):
    """A text of Spark's may be no UTF-8, such as a key cast to a string: it ended the job."""
    import pyarrow as pa

    topic = kafka.create_unique_topic(partitions=1)
    ledger = open_ledger(topic, 1, 30.0, {"bootstrap.servers": kafka.bootstrap_servers})
    keys = pa.array([b"\xff\xfe", "ä".encode(), None], pa.binary()).view(pa.string())
    rows = pa.RecordBatch.from_arrays([keys, pa.array(["1", "2", "3"])], ["key", "value"])
    plan = WriterPlan(generation=0, writers=1)
    task = WriteTask("q", topic, ledger, plan, 0, "m", 30.0, {}, 1 << 20, f"{topic}.dlq")
    outcome = task.write(0, [rows])
    assert outcome.rows == 3
    output = OutputTopic(kafka.bootstrap, topic, 1)
    try:
        assert set(output.read_committed()) == {
            (b"\xff\xfe", b"1"),
            ("ä".encode(), b"2"),
            (None, b"3"),
        }
    finally:
        output.close()


@pytest.mark.needs("java17")
def test_a_task_that_spark_repeats_in_the_same_process_writes_its_rows_once(kafka: KafkaCluster):
    """The process had the writer's last producer, so it did not ask the ledger, and committed the
    rows again. Spark repeats a task whose result it has lost."""
    import pyarrow as pa

    topic = kafka.create_unique_topic(partitions=1)
    ledger = open_ledger(topic, 1, 30.0, {"bootstrap.servers": kafka.bootstrap_servers})
    rows = [pa.RecordBatch.from_pydict({"key": ["k"], "value": ["v"]})]
    plan = WriterPlan(generation=0, writers=1)
    first = WriteTask(topic, topic, ledger, plan, 0, "m", 30.0, {}, 1 << 20, f"{topic}.dlq")
    assert first.write(0, rows).written
    second = replace(first, epoch=1, processes_by_writer={0: producers.get_process_name()})
    assert second.write(0, rows).written
    assert not second.write(0, rows).written
    output = OutputTopic(kafka.bootstrap, topic, 1)
    try:
        assert output.read_committed() == {(b"k", b"v"): 2}
    finally:
        output.close()
