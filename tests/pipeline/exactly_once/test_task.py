from __future__ import annotations

import pyarrow as pa
from support.brokers import Broker
from support.pipelines import Output

from gateway.pipeline.exactly_once.ledger import opened
from gateway.pipeline.exactly_once.plan import Plan
from gateway.pipeline.exactly_once.task import Task


def test_a_key_of_any_bytes_is_written_as_it_is(kafka: Broker):
    """A text of Spark's may be no UTF-8, such as a key cast to a string: it ended the job."""
    topic = kafka.topic(partitions=1)
    ledger = opened(topic, 1, 30.0, {"bootstrap.servers": kafka.servers})
    keys = pa.array([b"\xff\xfe", "ä".encode(), None], pa.binary()).view(pa.string())
    rows = pa.RecordBatch.from_arrays([keys, pa.array(["1", "2", "3"])], ["key", "value"])
    plan = Plan(generation=0, writers=1)
    task = Task("q", topic, ledger, plan, 0, "m", 30.0, {}, 1 << 20, f"{topic}.dlq")
    outcome = task.write(0, [rows])
    assert outcome.rows == 3
    output = Output(kafka.bootstrap, topic, 1)
    try:
        assert set(output.committed()) == {(b"\xff\xfe", b"1"), ("ä".encode(), b"2"), (None, b"3")}
    finally:
        output.close()
