from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.config import Kafka
from gateway.config.sections.job import Input, Output
from gateway.core.log.record import TopicPartition
from gateway.errors import CheckpointRefused, PipelineError
from gateway.pipeline.checkpoint.checkpoint import BatchOffsets, Checkpoint
from gateway.pipeline.exactly_once.driver import ExactlyOnceOutput
from gateway.pipeline.exactly_once.ledger import ledger_topic, open_ledger, writer_key
from gateway.pipeline.exactly_once.producers import LedgerProducer, TransactionInterrupted
from gateway.pipeline.exactly_once.side_output import (
    WATERMARK_COLUMN,
    SideOutput,
    add_raw_records,
    add_watermarks,
    build_late_records,
    build_side_records,
    offset_ranges,
)
from gateway.pipeline.inputs.source import parse_records

RAW = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)
STRING = {"model": "string"}
NOON, ONE = (datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (12, 13))


def test_ranges_are_those_of_one_topic_that_hold_anything():
    start = {("a", 0): 5, ("a", 1): 7, ("b", 0): 1}
    end = {("a", 0): 9, ("a", 1): 7, ("a", 2): 3, ("b", 0): 4}
    wanted = {TopicPartition("a", 0): (5, 9), TopicPartition("a", 2): (0, 3)}
    assert offset_ranges("a", [start], [end]) == wanted


def test_a_topic_of_two_sources_is_read_from_the_slower_ones_place():
    found = offset_ranges("a", [{("a", 0): 5}, {("a", 0): 3}], [{("a", 0): 9}, {("a", 0): 8}])
    assert found == {TopicPartition("a", 0): (3, 9)}


def test_a_process_that_still_runs_writes_no_late_records_once_another_has_asked_how_far_it_was(
    kafka,
):
    """It committed the late records of batch 3 after the next process had read that there were
    none, and that one wrote batches 3 and 4 together: those of batch 3 were there twice."""
    cluster, topic = Kafka(servers=[kafka.bootstrap_servers]), kafka.create_unique_topic()
    ledger = open_ledger(topic, 1, 30.0, {"bootstrap.servers": kafka.bootstrap_servers})

    def start_process() -> SideOutput:
        job_input = Input.model_validate({"topic": "clicks"})
        none = Checkpoint("/nowhere")  # its batches have no digests
        to = Output(topic=topic)
        place = topic, "from", job_input, cluster, to, cluster, none, {}
        return SideOutput(None, *place, select_late=lambda rows, _: rows)

    name = f"{topic}/late//clicks/from"

    def create_producer() -> LedgerProducer:
        return LedgerProducer(f"{name}-0", ledger.client_config, ledger.topic, 30.0)

    def commit(producer: LedgerProducer, epoch: int) -> None:
        place = ledger.topic, ledger.writer_partition(0), writer_key(name, 0)
        producer.write_entry(*place, {"epoch": epoch, "writers": 1})
        producer.commit()

    try:
        assert start_process().read_last_batch(3) == -1
        running = create_producer()
        running.begin()
        assert start_process().read_last_batch(4) == -1
        with pytest.raises(TransactionInterrupted):
            commit(running, 3)
        following = create_producer()
        following.begin()
        commit(following, 4)
        assert start_process().read_last_batch(4) == 4
        with pytest.raises(CheckpointRefused, match="the ledger is at batch 4"):
            start_process().read_last_batch(3)
    finally:
        kafka.admin.delete_topic(ledger_topic(topic))


@pytest.mark.parametrize("has_run", [True, False])
def test_late_records_are_of_the_process_that_has_taken_the_job_over_last(kafka, has_run):
    """One that was replaced fenced the process that ran the job, as it ended, and nobody ran it any
    more. And one that had only begun fenced it: that took the side output back, and wrote once more
    what the other had written."""
    cluster, topic = Kafka(servers=[kafka.bootstrap_servers]), kafka.create_unique_topic()
    none, to = Checkpoint("/nowhere"), Output(topic=topic)
    client_config = {"bootstrap.servers": kafka.bootstrap_servers}

    def start_process(*, has_run: bool = True) -> SideOutput:
        main = ExactlyOnceOutput(topic, to, client_config, checkpoint=none)
        if has_run:
            main.prepare(3)
        place = topic, "from", Input.model_validate({"topic": "clicks"}), cluster, to, cluster
        return SideOutput(None, *place, none, {}, ensure_main=main.ensure_ownership)

    try:
        older, newer = start_process(), start_process(has_run=has_run)
        if not has_run:
            assert newer.read_last_batch(3) == -1
        with pytest.raises(PipelineError, match="another process runs this job"):
            older.read_last_batch(3)
        assert newer.read_last_batch(3) == -1
    finally:
        kafka.admin.delete_topic(ledger_topic(topic))


@pytest.mark.needs("java17")
def test_a_letter_is_the_record_as_it_was_and_says_where_and_why(spark: Any):
    from pyspark.sql import functions as F

    rows = [
        (bytearray(b"k"), bytearray(b"v"), "orders", 3, 42, NOON, [("own", bytearray(b"h"))]),
        (None, bytearray(b"w"), "orders", 0, 7, NOON, None),
    ]
    raw = spark.createDataFrame(rows, RAW)
    first, second = build_side_records(raw, F.lit("no JSON"), "left").collect()
    assert (bytes(first.key), bytes(first.value), second.key) == (b"k", b"v", None)
    assert [(each.key, bytes(each.value)) for each in first.headers] == [
        ("own", b"h"),
        ("X-Origin-Topic", b"orders"),
        ("X-Origin-Partition", b"3"),
        ("X-Origin-Offset", b"42"),
        ("X-Origin-Timestamp", b"1767268800000"),
        ("X-Origin-Input", b"left"),
        ("X-Reason", b"no JSON"),
    ]
    assert len(second.headers) == 6


@pytest.mark.needs("java17")
def test_only_the_records_of_late_rows_are_sent_each_with_what_it_was_held_against(spark: Any):
    """The rows of a large batch did not fit into a broadcast, and the job could not start again."""
    from pyspark.sql import functions as F

    value, own = b'{ "n": 1 }\xff', [("own", bytearray(b"h"))]
    rows = [(b"\xfe", value, "orders", 0, offset, NOON, own) for offset in range(4)]
    raw = add_raw_records(spark.createDataFrame(rows, RAW))
    typed = parse_records(raw, Input.model_validate({"topic": "orders", "value": STRING}))
    held = F.when(F.col("_offset") == 3, F.lit(ONE)).otherwise(F.lit(NOON)).alias(WATERMARK_COLUMN)
    late = typed.select("*", held).where("_offset IN (1, 3)")
    found = build_late_records(late, "from").collect()
    assert {(bytes(row.key), bytes(row.value), bytes(row.headers[0].value)) for row in found} == {
        (b"\xfe", value, b"h")
    }
    assert [(int(row.headers[3].value), bytes(row.headers[-1].value)) for row in found] == [
        (1, b"it came later than the watermark, 2026-01-01T12:00:00.000Z"),
        (3, b"it came later than the watermark, 2026-01-01T13:00:00.000Z"),
    ]


@pytest.mark.needs("java17")
def test_rows_of_several_batches_are_held_against_what_their_own_was(spark: Any):
    places = [(partition, offset) for partition in (0, 1) for offset in range(6)]
    rows = spark.createDataFrame(places, "_partition int, _offset bigint")
    start, between, end = (
        ({("orders", 0): first, ("orders", 1): second},)
        for first, second in ((1, 0), (3, 0), (5, 2))
    )
    batches = [BatchOffsets(7, start, between, 1000), BatchOffsets(8, between, end, 2000)]
    found = add_watermarks(rows, "orders", batches).collect()
    columns = [(row["_partition"], row["_offset"], row["_held"].timestamp()) for row in found]
    assert sorted(columns) == [
        (0, 1, 1.0),
        (0, 2, 1.0),
        (0, 3, 2.0),
        (0, 4, 2.0),
        (1, 0, 2.0),
        (1, 1, 2.0),
    ]
    first = add_watermarks(rows, "orders", [batches[0]._replace(watermark_ms=0)]).collect()
    assert [row["_held"].timestamp() for row in first] == [0.0, 0.0]
    # A second source of the topic is one batch behind: its records are compared once.
    behind = [
        BatchOffsets(7, (*start, {}), (*between, *start), 1000),
        BatchOffsets(8, (*between, *start), (*end, *between), 2000),
    ]
    twice = add_watermarks(rows, "orders", behind).where("_partition = 0").collect()
    assert sorted((row["_offset"], row["_held"].timestamp()) for row in twice) == [
        *((offset, 2.0) for offset in range(1, 5)),
    ]
