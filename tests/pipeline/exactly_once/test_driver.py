"""Who may write for a query: on a real Kafka, and where rows are written with Spark."""

from __future__ import annotations

import json
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from support.brokers import KafkaCluster
from support.dead_letters import get_header, read_committed
from support.pipelines import OutputTopic
from support.waiting import block_until

from gateway.config.sections.job import Output
from gateway.config.sections.pipelines import Query
from gateway.errors import CheckpointRefused, PipelineError, PipelineUnavailable
from gateway.pipeline.checkpoint.checkpoint import Checkpoint
from gateway.pipeline.checkpoint.job_checkpoint import prepare_checkpoint
from gateway.pipeline.exactly_once import ExactlyOnceOutput
from gateway.pipeline.exactly_once.driver import MAX_DRIVER_COLUMN_BYTES, choose_writer
from gateway.pipeline.exactly_once.ledger import Ledger, ledger_topic, open_ledger, writer_key
from gateway.pipeline.exactly_once.producers import LedgerProducer, drop_query_producers

WRITERS = 2


@pytest.fixture
def output(kafka: KafkaCluster) -> Iterator[Output]:
    topic = kafka.create_unique_topic()
    yield Output.model_validate({"topic": topic, "writers": WRITERS})
    kafka.admin.delete_topic(ledger_topic(topic))


@pytest.fixture
def ledger(kafka: KafkaCluster, output: Output) -> Ledger:
    return open_ledger(output.topic, WRITERS, 10.0, {"bootstrap.servers": kafka.bootstrap_servers})


@pytest.fixture
def query() -> Iterator[str]:
    id = uuid.uuid4().hex
    yield id
    drop_query_producers(id)


def checkpoint(directory: Path, *ends: int) -> Checkpoint:
    """One of batches that end at these offsets."""
    (directory / "offsets").mkdir(parents=True)
    for number, end in enumerate(ends):
        text = f"v1\n{{}}\n{json.dumps({'orders': {'0': end}})}"
        (directory / "offsets" / str(number)).write_text(text)
    return Checkpoint(str(directory))


def commit(
    ledger: Ledger, query: str, number: int, epoch: int, held: Checkpoint, writers: int = WRITERS
) -> None:
    """The entry that a writer leaves with its rows of a batch."""
    producer = LedgerProducer(f"{query}-{number}", ledger.client_config, ledger.topic, 10.0)
    producer.begin()
    value = {"epoch": epoch, "writers": writers, "mark": held.compute_digest(epoch)}
    producer.write_entry(
        ledger.topic, ledger.writer_partition(number), writer_key(query, number), value
    )
    producer.commit()


def writer(
    output: Output, query: str, ledger: Ledger, held: Checkpoint, job: str = ""
) -> ExactlyOnceOutput:
    return ExactlyOnceOutput(query, output, ledger.client_config, checkpoint=held, job=job)


def test_a_checkpoint_that_was_put_back_is_refused_before_the_plan_is_changed(
    output, query, ledger, tmp_path
):
    """Each writer asked for itself, in its own task: those that had an older entry, or none, had
    committed rows of the wrong batch when the other one refused."""
    newer = checkpoint(tmp_path / "newer", 10, 20)
    writer(output, query, ledger, newer).prepare(1)
    plan = ledger.read_plan(query)
    commit(ledger, query, 0, 0, newer)
    commit(ledger, query, 1, 1, newer)
    for number, ends in enumerate([(10, 21), (11, 20, 30), (11, 20)]):
        other = checkpoint(tmp_path / str(number), *ends)
        with pytest.raises(CheckpointRefused, match="put back to another state"):
            writer(output, query, ledger, other).prepare(len(ends) - 1)
    with pytest.raises(CheckpointRefused, match="the ledger is at batch 1"):
        writer(output, query, ledger, newer).prepare(0)
    assert ledger.read_plan(query) == plan
    writer(output, query, ledger, newer).prepare(1)
    # The checkpoint has gone on, too: another process runs the job, and nothing was put back.
    (tmp_path / "newer" / "commits").mkdir()
    (tmp_path / "newer" / "commits" / "1").write_text("v1")
    with pytest.raises(PipelineUnavailable, match="another process runs this job"):
        writer(output, query, ledger, newer).prepare(0)


def test_a_checkpoint_from_before_batches_of_dead_letters_only_is_refused(
    output, query, ledger, tmp_path
):
    """Rows were written, and dead letters were not, since the ledger had theirs of later batches.
    Only the first start ended with an error."""
    newer, older = checkpoint(tmp_path / "newer", 10, 20), checkpoint(tmp_path / "older", 10, 30)
    commit(ledger, query, 0, 0, newer)
    commit(ledger, f"{query}/dlq//clicks/from", 0, 1, newer)
    for epoch, held in ((0, newer), (1, older)):
        with pytest.raises(CheckpointRefused, match="the ledger is at batch 1"):
            writer(output, query, ledger, held).prepare(epoch)
    writer(output, query, ledger, newer).prepare(1)


def test_a_transaction_that_a_killed_process_left_is_ended_and_not_waited_for(
    kafka, output, query, ledger, tmp_path
):
    """The next start waited for it for the whole transactionTimeout, without a word."""
    held = checkpoint(tmp_path / "held", 10)
    writer(output, query, ledger, held).prepare(0)
    killed = LedgerProducer(f"{query}-0", ledger.client_config, ledger.topic, 900.0)
    killed.begin()
    killed.write_entry(
        ledger.topic, 1, writer_key(query, 0), {"epoch": 0, "writers": WRITERS, "mark": ""}
    )
    with closing(OutputTopic(kafka.bootstrap, ledger.topic, 2)) as entries:
        block_until(entries.has_open_transaction, "the entry")
        writer(output, query, ledger, held).prepare(0)
        assert not entries.has_open_transaction()


def test_a_batch_that_kafka_interrupts_is_not_tried_again_once_the_job_is_to_stop(
    output, query, ledger
):
    """Five more attempts were begun after the signal, each as long as Kafka did not answer."""
    attempts = []

    class Interrupted(Checkpoint):
        def compute_digest(self, number: int) -> str:
            attempts.append(number)
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "away"))

    stop = threading.Event()
    stop.set()
    held = Interrupted("/nowhere")
    write = ExactlyOnceOutput(query, output, ledger.client_config, checkpoint=held, stop_event=stop)
    with pytest.raises(PipelineUnavailable, match="the next start finishes it"):
        write(None, 0)
    assert attempts == [0]


def test_an_output_that_is_deleted_under_a_running_job_is_named(kafka, output, query, ledger):
    """Six attempts took minutes, and said that one message had failed."""
    attempts = []

    class Interrupted(Checkpoint):
        def compute_digest(self, number: int) -> str:
            attempts.append(number)
            kafka.admin.delete_topic(output.topic)
            raise KafkaException(KafkaError(KafkaError._INCONSISTENT, "1 message(s) failed"))

    write = writer(output, query, ledger, Interrupted("/nowhere"))
    with pytest.raises(PipelineUnavailable, match=f"topic {output.topic} does not exist"):
        write(None, 0)
    assert attempts == [0]


def test_a_ledger_that_is_created_again_under_a_running_job_is_named(
    kafka, output, query, ledger, tmp_path
):
    """It was said that another process runs the job, or the client waited for it for minutes."""
    held = checkpoint(tmp_path / "held", 10)
    interruptions = iter([KafkaException(KafkaError(KafkaError._TRANSPORT, "away"))])

    class Interrupted(Checkpoint):
        def compute_digest(self, number: int) -> str:
            for error in interruptions:
                kafka.admin.delete_topic(ledger.topic)
                kafka.create_topic(ledger.topic, 9, configs={"cleanup.policy": "compact"})
                raise error
            return held.compute_digest(number)

    write = writer(output, query, ledger, Interrupted(str(tmp_path / "held")))
    with pytest.raises(CheckpointRefused, match=rf"topic {ledger.topic} was deleted, .* --fresh"):
        write(None, 0)


def test_the_number_of_writers_changes_with_the_first_batch_that_nobody_has_begun(
    output, query, ledger, tmp_path
):
    held = checkpoint(tmp_path / "held", 10, 20)
    writer(output, query, ledger, held).prepare(0)
    commit(ledger, query, 1, 0, held)
    fewer = Output.model_validate({"topic": output.topic, "writers": 1})
    again = writer(fewer, query, ledger, held)
    for epoch, writers in enumerate([WRITERS, 1]):
        again.prepare(epoch)
        plan = ledger.read_plan(query)
        assert plan is not None and plan.writers == writers


def test_a_batch_keeps_its_number_of_writers_after_a_copy_has_changed_it_for_the_next(
    output, query, ledger, tmp_path
):
    """The batch was repeated with the number of the plan, and rows were written again by a writer
    that had no entry."""
    held, copy = checkpoint(tmp_path / "held", 10), checkpoint(tmp_path / "copy", 10, 20)
    one = Output.model_validate({"topic": output.topic, "writers": 1})
    writer(one, query, ledger, copy).prepare(0)
    commit(ledger, query, 0, 0, copy, writers=1)
    writer(output, query, ledger, copy).prepare(1)
    plan = ledger.read_plan(query)
    assert plan is not None and plan.writers == WRITERS
    behind = writer(output, query, ledger, held)
    for epoch, writers in enumerate([1, WRITERS]):
        behind.prepare(epoch)
        plan = ledger.read_plan(query)
        assert plan is not None and plan.writers == writers


def test_a_checkpoint_from_before_a_fresh_start_is_refused(output, query, ledger, tmp_path):
    """It went on by its own entries, which are as they were, and wrote the job's rows again."""
    earlier, fresh = checkpoint(tmp_path / "earlier", 10, 20), checkpoint(tmp_path / "fresh", 20)
    later = uuid.uuid4().hex
    writer(output, query, ledger, earlier, "orders").prepare(1)
    commit(ledger, query, 0, 0, earlier)
    writer(output, later, ledger, fresh, "orders").prepare(0)
    plan = ledger.read_plan(query)
    for epoch in (0, 1):
        with pytest.raises(CheckpointRefused, match=rf"query {later} has written .* --fresh"):
            writer(output, query, ledger, earlier, "orders").prepare(epoch)
    assert ledger.read_plan(query) == plan
    writer(output, query, ledger, earlier, "another job").prepare(1)
    writer(output, later, ledger, fresh, "orders").prepare(0)


def test_a_job_whose_checkpoint_is_missing_writes_its_rows_again_only_with_fresh(
    output, ledger, tmp_path
):
    """Another working directory, or a volume that was not mounted, was taken for a first run: all
    rows came twice, and the right checkpoint was refused from then on."""
    tables = {"clicks": {"topic": "clicks", "value": {"fields": {"n": "int"}}}}
    job = Query.model_validate(
        {"name": "orders", "type": "query", "sql": "SELECT n FROM clicks", "tables": tables}
        | {"to": {"topic": output.topic}}
    )

    def prepare(root: str, *, fresh: bool = False) -> None:
        place = prepare_checkpoint(str(tmp_path / root), job, fresh=fresh)
        writer(output, place.query_id, ledger, Checkpoint(place.location), "orders").prepare(0)

    prepare("mounted")
    for _ in range(2):  # the version that the first start has begun is refused, too
        with pytest.raises(CheckpointRefused, match=r"other/orders/v1 was begun: .* --fresh"):
            prepare("other")
    prepare("mounted")
    prepare("other", fresh=True)


@pytest.mark.needs("java17")
def test_a_fresh_checkpoint_fences_a_process_that_still_runs_by_the_earlier_one(
    kafka, spark, output, query, ledger, tmp_path
):
    """Only one that started later was refused; the one that ran wrote its rows beside."""
    held = checkpoint(tmp_path / "held", 1, 2)
    rows = spark.createDataFrame([(each, each) for each in "abcd"], "key string, value string")
    running = writer(output, query, ledger, held, "orders")
    assert running(rows, 0) == 4
    fresh = writer(output, uuid.uuid4().hex, ledger, held, "orders")
    fresh.prepare(0)
    with pytest.raises(PipelineError, match=r"another process runs this job|was replaced"):
        running(rows, 1)
    assert fresh(rows, 0) == 4
    values = Counter(each.value() for each in read_committed(kafka, output.topic))
    assert values == Counter({each.encode(): 2 for each in "abcd"})


@pytest.mark.needs("java17")
def test_a_refused_batch_is_written_by_no_writer_and_of_two_processes_the_later_one_writes(
    kafka, spark, output, query, ledger, tmp_path
):
    """A checkpoint was put back by one batch: the writer of that batch refused, and the other one
    committed its row, which came once more with the right checkpoint."""

    def rows(*keys: str) -> Any:
        return spark.createDataFrame([(each, each) for each in keys], "key string, value string")

    newer = checkpoint(tmp_path / "newer", 1, 2, 3)
    right = writer(output, query, ledger, newer)
    assert right(rows("a"), 0) == 1
    assert right(rows("a"), 1) == 1
    older = checkpoint(tmp_path / "older", 1, 3)
    with pytest.raises(CheckpointRefused):
        writer(output, query, ledger, older)(rows("a", "b", "c", "d"), 1)
    assert right(rows("b", "c", "d"), 2) == 3  # nobody has fenced it
    overtaken = writer(output, query, ledger, newer)
    assert overtaken(rows("b", "c", "d"), 2) == 0
    with pytest.raises(PipelineError, match="another process runs this job"):
        right(rows("b", "c", "d"), 2)
    values = Counter(each.value() for each in read_committed(kafka, output.topic))
    assert values == Counter({b"a": 2, b"b": 1, b"c": 1, b"d": 1})


@pytest.mark.needs("java17")
def test_a_row_that_is_too_large_for_the_output_is_a_dead_letter(kafka, spark, query, tmp_path):
    """It was tried again for ever, and the rows beside it never came."""
    topic = kafka.create_unique_topic(configs={"max.message.bytes": "20000"})
    rows = [(str(n), "x" * size) for n, size in enumerate([1_000, 19_000, 20_000, 2_000_000])]
    rows += [("many", "y" * 1_000)] * 100  # more than the topic takes in one batch
    given = spark.createDataFrame(rows, "key string, value string")
    output = Output.model_validate({"topic": topic, "writers": WRITERS})
    options = {"bootstrap.servers": kafka.bootstrap_servers}
    write = ExactlyOnceOutput(query, output, options, checkpoint=checkpoint(tmp_path / "held", 1))
    try:
        assert write(given, 0) == len(rows)
        found = Counter((each.key(), len(each.value())) for each in read_committed(kafka, topic))
        letters = {each.key(): each for each in read_committed(kafka, f"{topic}.dlq")}
    finally:
        for name in (ledger_topic(topic), f"{topic}.dlq"):
            kafka.admin.delete_topic(name)
    assert found == {(b"0", 1_000): 1, (b"1", 19_000): 1, (b"many", 1_000): 100}
    assert letters.keys() == {b"2", b"3"}
    assert get_header(letters[b"3"], "X-Origin-Topic") == topic.encode()
    assert b"2,000,101 bytes" in get_header(letters[b"3"], "X-Reason")
    assert set(letters[b"3"].value()) == set(b"x")


@pytest.mark.needs("java17")
def test_what_kafka_refuses_for_good_is_not_tried_again(kafka, spark, query, tmp_path):
    """Every error of Kafka was taken for one that may pass."""
    topic = kafka.create_unique_topic(configs={"cleanup.policy": "compact"})
    output = Output.model_validate({"topic": topic, "writers": WRITERS})
    options = {"bootstrap.servers": kafka.bootstrap_servers}
    write = ExactlyOnceOutput(query, output, options, checkpoint=checkpoint(tmp_path / "held", 1))
    rows = spark.createDataFrame([(None, "x")], "key string, value string")
    try:
        with pytest.raises(PipelineError, match=rf"{topic} \[0\].*set to\.key") as caught:
            write(rows, 0)
    finally:
        kafka.admin.delete_topic(ledger_topic(topic))
    assert not isinstance(caught.value, PipelineUnavailable)
    assert "\n" not in str(caught.value)


@pytest.mark.needs("java17")
@pytest.mark.parametrize("max_driver_rows", [0, 5])
def test_small_and_large_batches_are_written_once_by_the_driver_and_by_the_workers(
    kafka, spark, output, query, ledger, tmp_path, max_driver_rows
):
    held = checkpoint(tmp_path / "held", *range(5))
    write = ExactlyOnceOutput(
        query, output, ledger.client_config, checkpoint=held, max_driver_rows=max_driver_rows
    )
    counts = [5, 5, 40, 5]  # the third one turns out to be too large for the driver
    for epoch, count in enumerate(counts):
        keys = [None, *(f"k{number}" for number in range(count - 1))]
        given = [(key, f"{epoch}-{key}") for key in keys]
        rows = spark.createDataFrame(given, "key string, value string").repartition(2)
        assert write(rows, epoch) == count
    again = ExactlyOnceOutput(query, output, ledger.client_config, checkpoint=held)
    assert again(rows, len(counts) - 1) == 0
    values = Counter(each.value() for each in read_committed(kafka, output.topic))
    assert len(values) == sum(counts) and set(values.values()) == {1}


@pytest.mark.needs("java17")
@pytest.mark.parametrize("large", ["key", "value", "headers"])
def test_a_batch_with_a_large_row_is_not_collected(
    kafka, spark, output, query, ledger, tmp_path, large
):
    """Only rows were counted: 360 of 0.9 MB ended Spark's JVM, and all jobs with it. Then only
    values were: 1,500 rows with keys of 300 KB did, or as many dead letters with such headers."""
    held, repeated = checkpoint(tmp_path / "held", *range(3)), []
    write = ExactlyOnceOutput(
        query,
        output,
        ledger.client_config,
        checkpoint=held,
        on_repeat=lambda: repeated.append(True),
    )
    for epoch, size in enumerate([1, MAX_DRIVER_COLUMN_BYTES // 2, MAX_DRIVER_COLUMN_BYTES + 1]):
        assert not repeated
        text = "x" * size
        row = {"key": "k", "value": "v", "headers": [("h", b"1")]}
        row[large] = [("h", text.encode())] if large == "headers" else text
        types = "key string, value string, headers array<struct<key:string,value:binary>>"
        assert write(spark.createDataFrame([tuple(row.values())], types), epoch) == 1
    assert repeated
    written = read_committed(kafka, output.topic)
    parts = [{"key": r.key(), "value": r.value(), "headers": r.headers()[0][1]} for r in written]
    assert sorted(len(each[large]) for each in parts)[-1] == MAX_DRIVER_COLUMN_BYTES + 1


@pytest.mark.needs("java17")
def test_rows_with_too_many_bytes_for_the_driver_are_written_by_the_workers(
    kafka, spark, output, query, ledger, tmp_path, monkeypatch
):
    """The error is planted: the setting is of the whole Spark context."""
    held = checkpoint(tmp_path / "held", *range(4))
    write = ExactlyOnceOutput(query, output, ledger.client_config, checkpoint=held)
    rows = spark.createDataFrame([("k", "v")], "key string, value string")
    assert write(rows, 0) == 1

    asked: list[Any] = []

    def refuse(self: Any) -> None:
        asked.append(self)
        raise RuntimeError("results are bigger than spark.driver.maxResultSize (1024.0 MiB)")

    monkeypatch.setattr(type(rows), "toArrow", refuse)
    assert write(rows, 1) == 1
    assert write(rows, 2) == 1
    assert len(asked) == 1
    values = Counter(each.value() for each in read_committed(kafka, output.topic))
    assert values == {b"v": 3}


@pytest.mark.needs("java17")
@pytest.mark.parametrize("writers", [1, 2, 7])
def test_the_driver_gives_a_writer_the_rows_that_spark_would_give_it(spark: Any, writers: int):
    """A batch that was begun by the workers may be finished by the driver."""
    from pyspark.sql import functions as F

    keys = [(key,) for key in [None, "", *map(str, range(200)), "ä", "x" * 5000]]
    key = F.col("key").cast("binary")
    found = (
        spark.createDataFrame(keys, "key string")
        .repartition(writers, key)
        .select(F.spark_partition_id().alias("spark"), choose_writer(key, writers).alias("driver"))
        .collect()
    )
    assert len(found) == len(keys)
    assert all(row.spark == row.driver for row in found)
