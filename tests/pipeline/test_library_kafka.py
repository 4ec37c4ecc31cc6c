"""Programs that use the pipeline as a library, with a real Kafka.

`make kills RECORDS=200000 KILLS=5 JOB=program` is the large form of the first one.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.dead_letters import read_committed
from support.pipelines import (
    JOB_TIMEOUT_S,
    JobProcess,
    KillResult,
    OutputTopic,
    kill_while_writing,
)
from support.spark import NO_PYTHON_WORKER
from support.spark_jvm import WORKER_CONF, build_spark_conf
from support.waiting import block_until
from support.worker_groups import SPARK_TEST_TIMEOUT_S

from gateway.pipeline import read_topic, write_exactly_once
from gateway.pipeline.spark.spark_home import link_spark_home

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline" / "visits.py"
RECORDS = int(os.environ.get("GATEWAY_KILLS_RECORDS", "5000"))
KILLS = int(os.environ.get("GATEWAY_KILLS", "1"))
LARGE = "GATEWAY_KILLS" in os.environ
USERS, PARTITIONS = 50, 2
MAX_STARTS = 5  # after the kills; Spark may not start a worker in time on a busy machine


@contextmanager
def running_example(directory: Path, start: int, *arguments: str) -> Iterator[JobProcess]:
    """Run the example in a process group of its own, by default settings of Spark in a file."""
    conf = {**build_spark_conf(), **WORKER_CONF, "spark.sql.shuffle.partitions": "2"}
    conf |= {"spark.master": "local[2]", "spark.ui.enabled": "false"}
    lines = [f"{name} {value}\n" for name, value in conf.items()]
    (directory / "spark-defaults.conf").write_text("".join(lines))
    variables = {"SPARK_CONF_DIR": str(directory), "SPARK_HOME": str(link_spark_home())}
    variables |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    log = directory / f"run-{start}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLE), *arguments],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | variables,
            start_new_session=True,
        )
    run = JobProcess(process, log)
    try:
        yield run
    finally:
        if not run.is_ended:
            run.kill_tree()


@pytest.mark.needs("java17")
@pytest.mark.timeout(0 if LARGE else SPARK_TEST_TIMEOUT_S)
def test_a_state_processor_that_is_killed_in_a_transaction_writes_each_row_once(kafka, tmp_path):
    clicks, visits = (kafka.create_unique_topic(partitions=PARTITIONS) for _ in range(2))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(RECORDS):
        value = json.dumps({"user": f"user-{number % USERS}"})
        producer.produce(clicks, value, partition=number % PARTITIONS)
        producer.poll(0)
    producer.flush(60)
    arguments = (kafka.bootstrap_servers, clicks, visits, str(tmp_path / "checkpoints"))
    output, chance = OutputTopic(kafka.bootstrap, visits, PARTITIONS), random.Random(1)
    killed: list[KillResult] = []
    try:
        for count in range(KILLS):
            with running_example(tmp_path, count, *arguments) as run:
                in_transaction = count % 2 == 0
                killed.append(
                    kill_while_writing(run, output, chance, in_transaction=in_transaction)
                )
        for start in range(KILLS, KILLS + MAX_STARTS):
            with running_example(tmp_path, start, *arguments) as run:
                timeout_s = JOB_TIMEOUT_S + RECORDS / 50
                block_until(lambda run=run: run.is_ended, "the end of the query", timeout_s)
            if run.process.returncode == 0 or not run.has_logged(NO_PYTHON_WORKER):
                break
        assert run.process.returncode == 0, run.read_log_tail()
        found = output.read_committed()
        aborted = output.count_all() - found.total()
    finally:
        output.close()
    expected = Counter(
        (f"user-{user}".encode(), json.dumps(row, separators=(",", ":")).encode())
        for user in range(USERS)
        for row in (
            {"user": f"user-{user}", "visit": visit + 1} for visit in range(RECORDS // USERS)
        )
    )
    inside = sum(each.is_transaction_open for each in killed)
    lost, twice = expected - found, found - expected
    print(
        f"program: {expected.total()} rows, {len(killed)} kills, {inside} inside a transaction, "
        f"{aborted} records aborted, {lost.total()} lost, {twice.total()} twice"
    )
    assert all(each.was_killed for each in killed)
    assert inside >= len(killed[::2])
    assert aborted > 0
    assert found == expected


@pytest.mark.needs("java17")
@pytest.mark.timeout(SPARK_TEST_TIMEOUT_S)
def test_a_stream_has_rows_and_invalid_records_and_a_query_writes_both(kafka, spark, tmp_path):
    clicks, visits = (kafka.create_unique_topic(partitions=1) for _ in range(2))
    servers = kafka.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(clicks, '{"user": "ada"}', "1", headers=[("page", b"home")])
    producer.produce(clicks, "oops", "2")
    producer.flush(60)

    stream = read_topic(spark, clicks, servers=servers, fields={"user": "string"}, headers=True)
    query = write_exactly_once(
        stream.rows.selectExpr("user", "CAST(_headers[0].value AS string) AS page", "_offset"),
        visits,
        servers=servers,
        key=["user"],
        checkpoint=str(tmp_path),
        name="visits",
        trigger="available-now",
    )
    assert query.awaitTermination(SPARK_TEST_TIMEOUT_S)

    assert [(m.key(), m.value()) for m in read_committed(kafka, visits)] == [
        (b"ada", b'{"user":"ada","page":"home"}')
    ]
    assert [m.value() for m in read_committed(kafka, f"{clicks}.dlq")] == [b"oops"]
    invalid = stream.invalid.writeStream.format("memory").queryName("invalid")
    invalid.trigger(availableNow=True).start().awaitTermination()
    found = spark.table("invalid").selectExpr("CAST(key AS string) AS key", "_reason").collect()
    assert [row.key for row in found] == ["2"]
    assert found[0]._reason
