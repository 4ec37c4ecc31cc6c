from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.brokers import KafkaCluster
from support.dead_letters import get_header, read_committed
from support.pipelines import OutputTopic

from gateway.pipeline.exactly_once import producers
from gateway.pipeline.exactly_once.ledger import open_ledger
from gateway.pipeline.exactly_once.task import WriteTask
from gateway.pipeline.exactly_once.writer_plan import WriterPlan
from gateway.pipeline.job_settings import get_dead_letter_topic

MAX_BYTES = 100_000


CreateTask = Callable[..., WriteTask]


@pytest.fixture
def create_task(kafka: KafkaCluster) -> Iterator[CreateTask]:
    """Tasks of a query that has the name of its topic."""
    queries = []

    def create(topic: str, max_bytes: int = MAX_BYTES) -> WriteTask:
        queries.append(topic)
        ledger = open_ledger(topic, 1, 30.0, {"bootstrap.servers": kafka.bootstrap_servers})
        plan, letters = WriterPlan(0, 1), get_dead_letter_topic(topic)
        return WriteTask(topic, topic, ledger, plan, 0, "m", 30.0, {}, max_bytes, letters)

    yield create
    for query in queries:
        producers.drop_query_producers(query)


def text_rows(keys: Sequence[bytes | None], values: Sequence[bytes]) -> Any:
    """Rows with texts of Spark, which may have any bytes."""
    import pyarrow as pa

    columns = [pa.array(each, pa.binary()).view(pa.string()) for each in (keys, values)]
    return pa.RecordBatch.from_arrays(columns, ["key", "value"])


def test_a_key_of_any_bytes_is_written_as_it_is(kafka: KafkaCluster, create_task: CreateTask):
    """A text of Spark's may be no UTF-8, such as a key cast to a string: it ended the job."""
    topic = kafka.create_unique_topic()
    rows = text_rows([b"\xff\xfe", "ä".encode(), None], [b"1", b"2", b"3"])
    assert create_task(topic).write(0, [rows]).rows == 3
    output = OutputTopic(kafka.bootstrap, topic, 1)
    try:
        assert set(output.read_committed()) == {
            (b"\xff\xfe", b"1"),
            ("ä".encode(), b"2"),
            (None, b"3"),
        }
    finally:
        output.close()


def test_a_task_that_spark_repeats_in_the_same_process_writes_its_rows_once(
    kafka: KafkaCluster, create_task: CreateTask
):
    """The process had the writer's last producer, so it did not ask the ledger, and committed the
    rows again. Spark repeats a task whose result it has lost."""
    topic = kafka.create_unique_topic()
    rows = [text_rows([b"k"], [b"v"])]
    first = create_task(topic)
    assert first.write(0, rows).written
    second = replace(first, epoch=1, processes_by_writer={0: producers.get_process_name()})
    assert second.write(0, rows).written
    assert not second.write(0, rows).written
    output = OutputTopic(kafka.bootstrap, topic, 1)
    try:
        assert output.read_committed() == {(b"k", b"v"): 2}
    finally:
        output.close()


@pytest.mark.parametrize("suffix", ["", ".late"])
def test_a_single_row_of_about_the_largest_size_is_written_or_a_dead_letter(
    kafka: KafkaCluster, create_task: CreateTask, suffix: str
):
    """A record of Kafka is larger than the row that Arrow has: Kafka refused it, and the job ended
    with every start."""
    topic = kafka.create_unique_topic(configs={"max.message.bytes": str(MAX_BYTES)}) + suffix
    if suffix:
        kafka.create_topic(topic, configs={"max.message.bytes": str(MAX_BYTES)})
    task = create_task(topic)
    sizes = [MAX_BYTES - less for less in (110, 90, 70, 50, 30, 10, 0)]
    large = 0
    for epoch, size in enumerate(sizes):
        for key, writer in ((None, 0), (b"0123456789", 1)):
            value = os.urandom(size - len(key or b""))  # of which compression makes no less
            large += replace(task, epoch=epoch).write(writer, [text_rows([key], [value])]).large
    written = read_committed(kafka, topic)
    letters = written if suffix else read_committed(kafka, f"{topic}.dlq")
    assert large == len([each for each in letters if each.headers()]) == 2 * len(sizes[1:])
    assert len(written) == (2 * len(sizes) if suffix else 2)
    kafka.admin.delete_topic(topic if suffix else f"{topic}.dlq")


def test_keys_of_any_bytes_are_written_in_a_batch_that_is_larger_than_one_record_may_be(
    kafka: KafkaCluster, create_task: CreateTask
):
    """Only rows of small batches were taken as bytes."""
    topic = kafka.create_unique_topic(configs={"max.message.bytes": str(MAX_BYTES)})
    rows = text_rows([b"\xff\x80", b"ok", b"\xff"], [b"a" * 60_000, b"b" * 60_000, b"c" * 200_000])
    result = create_task(topic).write(0, [rows])
    assert (result.rows, result.large) == (3, 1)
    assert [each.key() for each in read_committed(kafka, topic)] == [b"\xff\x80", b"ok"]
    assert [each.key() for each in read_committed(kafka, f"{topic}.dlq")] == [b"\xff"]


def test_a_row_that_the_schema_refuses_is_cut_if_the_topic_of_dead_letters_takes_less(
    kafka: KafkaCluster, create_task: CreateTask
):
    """Kafka refused the dead letter, and the job ended with every start."""
    import pyarrow as pa

    topic = kafka.create_unique_topic(configs={"max.message.bytes": "3000000"})
    kafka.create_topic(f"{topic}.dlq", configs={"max.message.bytes": str(MAX_BYTES)})
    values = [os.urandom(size) for size in (1_000, 2_000_000)]
    rows = {"key": [b"small", b"large"], "value": values, "topic": [f"{topic}.dlq"] * 2}
    reason = [{"key": "X-Reason", "value": b"amount: is null"}]
    headers = pa.array(
        [reason] * 2, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    batch = pa.RecordBatch.from_pydict(rows).append_column("headers", headers)
    assert create_task(topic, 3_000_000).write(0, [batch]).refused == 2
    letters = {each.key(): each for each in read_committed(kafka, f"{topic}.dlq")}
    assert letters[b"small"].value() == values[0]
    assert values[1].startswith(letters[b"large"].value())
    assert Counter(name for name, _ in letters[b"large"].headers())["X-Reason"] == 2
    assert get_header(letters[b"large"], "X-Reason") == b"amount: is null"
