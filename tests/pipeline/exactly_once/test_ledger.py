from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from support.brokers import KafkaCluster
from support.pipelines import OutputTopic
from support.waiting import WAIT_TIMEOUT_S, block_until

from gateway.config.sections.job import Output
from gateway.errors import CheckpointRefused, PipelineError
from gateway.pipeline.checkpoint.checkpoint import Checkpoint
from gateway.pipeline.clusters import fetch_max_message_bytes
from gateway.pipeline.exactly_once.ledger import (
    MIN_WRITER_PARTITIONS,
    Ledger,
    fetch_log_range,
    ledger_topic,
    open_ledger,
    verify_ledger,
    writer_key,
)
from gateway.pipeline.exactly_once.producers import (
    LedgerProducer,
    TransactionInterrupted,
    WriteRefused,
)
from gateway.pipeline.exactly_once.writer_plan import LedgerEntry, WriterPlan


@pytest.fixture
def ledger(kafka: KafkaCluster) -> Iterator[Ledger]:
    output = f"out-{uuid.uuid4().hex[:8]}"
    yield open_ledger(output, 2, 10.0, {"bootstrap.servers": kafka.bootstrap_servers})
    kafka.admin.delete_topic(ledger_topic(output))


def create_checkpoint(directory: Path) -> Checkpoint:
    checkpoint = Checkpoint(str(directory))
    checkpoint.files.write("metadata", b'{"id": "q"}')
    return checkpoint


def writer(ledger: Ledger, number: int) -> LedgerProducer:
    return LedgerProducer(f"q-{number}", ledger.client_config, ledger.topic, 30.0)


def put(ledger: Ledger, producer: LedgerProducer, number: int, epoch: int) -> None:
    value = {"epoch": epoch, "writers": 2, "mark": "m"}
    producer.write_entry(
        ledger.topic, ledger.writer_partition(number), writer_key("q", number), value
    )


def commit(ledger: Ledger, producer: LedgerProducer, number: int, epoch: int) -> None:
    producer.begin()
    put(ledger, producer, number, epoch)
    producer.commit()


def test_the_last_committed_entry_of_a_writer_is_found_in_the_tail_or_behind_it(ledger: Ledger):
    assert ledger.read_plan_and_entry("q", 0) == (None, None)
    first, other = writer(ledger, 0), writer(ledger, MIN_WRITER_PARTITIONS)
    commit(ledger, first, 0, 6)
    commit(ledger, first, 0, 7)
    assert ledger.read_plan_and_entry("q", 0) == (None, LedgerEntry(7, 2, "m"))
    for epoch in range(50):  # another writer of the same partition, beyond the tail
        commit(ledger, other, MIN_WRITER_PARTITIONS, epoch)
    own, of_side_outputs = ledger.read_entries("q")
    assert (set(own), of_side_outputs) == ({LedgerEntry(7, 2, "m"), LedgerEntry(49, 2, "m")}, [])
    assert ledger.read_entries("other") == ([], [])


@pytest.mark.parametrize(
    ("partitions", "policy"), [(1, "compact"), (9, "delete"), (9, "compact,delete")]
)
def test_a_topic_that_cannot_be_a_ledger_is_named_with_what_it_needs(kafka, partitions, policy):
    """One partition ended the job with "integer modulo by zero". Where records are deleted, it
    forgot after a week what was committed."""
    topic = ledger_topic(output := f"out-{uuid.uuid4().hex[:8]}")
    kafka.create_topic(topic, partitions, configs={"cleanup.policy": policy})
    with pytest.raises(PipelineError, match=rf"{partitions} partitions and .*={policy}; it needs"):
        open_ledger(output, 2, 10.0, {"bootstrap.servers": kafka.bootstrap_servers})


def test_a_ledger_that_was_deleted_is_refused_to_a_checkpoint_with_batches(kafka, tmp_path):
    """An empty one was created, and the rows of an interrupted batch were written twice."""
    options = {"bootstrap.servers": kafka.bootstrap_servers}
    output, other = (Output(topic=f"out-{uuid.uuid4().hex[:8]}") for _ in range(2))
    checkpoint, topic = create_checkpoint(tmp_path), ledger_topic(output.topic)
    refused = pytest.raises(CheckpointRefused, match=rf"{topic} was deleted.*remove ledger.json")
    try:
        verify_ledger(checkpoint, output, options)
        kafka.admin.delete_topic(topic)
        verify_ledger(checkpoint, output, options)  # there is no batch yet
        checkpoint.files.write("offsets/0", b"v1")
        verify_ledger(checkpoint, output, options)
        kafka.admin.delete_topic(topic)
        with refused:
            verify_ledger(checkpoint, output, options)
        assert not kafka.admin.topic_exists(topic)
        open_ledger(output.topic, 2, 10.0, options)
        renamed = output.model_copy(update={"kafka": "another name of the cluster"})
        for each in (output, renamed):
            with refused:
                verify_ledger(checkpoint, each, options)
        verify_ledger(checkpoint, other, options)  # the output may change
    finally:
        for each in (output, other):
            kafka.admin.delete_topic(ledger_topic(each.topic))


def test_the_output_may_not_change_while_a_batch_is_interrupted(kafka, ledger: Ledger, tmp_path):
    """Rows of the batch were in both topics."""
    options, checkpoint = ledger.client_config, create_checkpoint(tmp_path)
    output = Output(topic=ledger.topic.removesuffix(".ledger"))
    other = Output(topic=f"out-{uuid.uuid4().hex[:8]}")
    verify_ledger(checkpoint, output, options)
    commit(ledger, writer(ledger, 0), 0, 4)
    for committed in (None, 3):
        if committed is not None:
            checkpoint.files.write(f"commits/{committed}", b"v1")
        with pytest.raises(
            CheckpointRefused, match=rf"rows are in {output.topic}, .*take to\.topic"
        ):
            verify_ledger(checkpoint, other, options)
    checkpoint.files.write("commits/4", b"v1")
    try:
        verify_ledger(checkpoint, other, options)
    finally:
        kafka.admin.delete_topic(ledger_topic(other.topic))


def test_what_is_aborted_is_no_entry(ledger: Ledger):
    producer = writer(ledger, 1)
    commit(ledger, producer, 1, 3)
    producer.begin()
    put(ledger, producer, 1, 4)
    producer.abort()
    assert ledger.read_plan_and_entry("q", 1)[1] == LedgerEntry(3, 2, "m")


@pytest.mark.parametrize("timeout", [1.0, 900.0])
def test_the_shortest_and_the_longest_transaction_are_taken(ledger: Ledger, timeout: float):
    producer = LedgerProducer("q-0", ledger.client_config, ledger.topic, timeout)
    commit(ledger, producer, 0, 1)
    assert ledger.read_plan_and_entry("q", 0)[1] == LedgerEntry(1, 2, "m")


def test_settings_that_kafkas_client_refuses_are_not_tried_again(ledger: Ledger):
    with pytest.raises(PipelineError, match=r"does not take its settings: .*no\.such") as caught:
        LedgerProducer("q-0", {**ledger.client_config, "no.such": 1}, ledger.topic, 1.0)
    assert not isinstance(caught.value, TransactionInterrupted)


def test_a_topic_with_any_limit_of_bytes_has_a_producer(kafka, ledger: Ledger):
    """Where it was above 1e9, the first invalid record ended the job for ever."""
    options = ledger.client_config
    topic = kafka.create_unique_topic(configs={"max.message.bytes": str(2**31 - 1)})
    producer = LedgerProducer(
        "q-0", options, ledger.topic, 30.0, fetch_max_message_bytes(options, topic)
    )
    commit(ledger, producer, 0, 1)


@pytest.mark.parametrize("code", [KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH])
def test_a_leader_that_was_elected_is_asked_again(code: int):
    """The query ended, after its rows were written, and its state was loaded again."""
    answers: list[Any] = [KafkaException(KafkaError(code)), (3, 7)]

    def answer(*_: Any, **__: Any) -> Any:
        if isinstance(found := answers.pop(0), Exception):
            raise found
        return found

    consumer = SimpleNamespace(get_watermark_offsets=answer)
    assert fetch_log_range(consumer, TopicPartition("clicks", 0)) == (3, 7)


def test_a_producer_whose_rows_are_refused_leaves_no_transaction_open(kafka, ledger: Ledger):
    """All readers of the topic waited for the whole timeout, as the job had ended."""
    topic = kafka.create_unique_topic(configs={"max.message.bytes": "10000"})
    producer = LedgerProducer("q-0", ledger.client_config, ledger.topic, 600.0)
    with closing(OutputTopic(kafka.bootstrap, topic, 1)) as output:
        producer.begin()
        producer.write_rows([topic], ["k"], ["fits"], [None])
        block_until(output.has_open_transaction, "the row that fits")
        producer.write_rows([topic], ["k"], [os.urandom(20_000)], [None])
        with pytest.raises(WriteRefused):
            producer.commit()
        block_until(lambda: not output.has_open_transaction(), "its end", timeout_s=WAIT_TIMEOUT_S)


def test_a_transaction_that_takes_longer_than_its_timeout_is_named(kafka, ledger: Ledger):
    """It was said that another instance had fenced the producer."""
    topic = kafka.create_unique_topic()
    producer = LedgerProducer("q-0", ledger.client_config, ledger.topic, 1.0)
    with closing(OutputTopic(kafka.bootstrap, topic, 1)) as output:
        producer.begin()
        producer.write_rows([topic], ["k"], ["v"], [None])
        block_until(output.has_open_transaction, "the row")
        block_until(lambda: not output.has_open_transaction(), "its end", timeout_s=WAIT_TIMEOUT_S)
        with pytest.raises(TransactionInterrupted, match=r"after transactionTimeout \(1 s\)"):
            producer.commit()


def test_a_plan_is_found_beside_entries(ledger: Ledger):
    producer = LedgerProducer("q-plan", ledger.client_config, ledger.topic, 30.0)
    producer.begin()
    producer.write_entry(ledger.topic, 0, "q", {"generation": 3, "writers": 2})
    producer.commit()
    assert ledger.read_plan("q") == WriterPlan(3, 2)


def test_an_entry_behind_a_siblings_open_transaction_is_waited_for(kafka, ledger):
    """Reading to the last stable offset at hand says that nothing is there, and its rows would be
    written twice."""
    sibling, own = writer(ledger, MIN_WRITER_PARTITIONS), writer(ledger, 0)
    sibling.begin()
    put(ledger, sibling, MIN_WRITER_PARTITIONS, 5)
    entries = OutputTopic(kafka.bootstrap, ledger.topic, ledger.writer_partition(0) + 1)
    block_until(entries.has_open_transaction, "the sibling's entry")
    entries.close()
    commit(ledger, own, 0, 5)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(ledger.read_plan_and_entry, "q", 0)
        with pytest.raises(TimeoutError):
            reading.result(1.0)
        sibling.abort()
        assert reading.result(30) == (None, LedgerEntry(5, 2, "m"))


def test_a_new_producer_fences_the_one_before_and_ends_what_it_left_open(ledger: Ledger):
    before = writer(ledger, 0)
    before.begin()
    put(ledger, before, 0, 9)
    writer(ledger, 0)
    with pytest.raises(TransactionInterrupted):
        before.commit()
    assert ledger.read_plan_and_entry("q", 0) == (None, None)
