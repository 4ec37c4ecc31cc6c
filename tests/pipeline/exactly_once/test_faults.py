"""What befalls a transaction while it is open: its broker dies or freezes, or it takes too long.

Of minutes; the rules are tested by `test_writer_plan`, on the ledger by
`test_ledger`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from support.brokers import KafkaCluster
from support.pipelines import OutputTopic
from support.waiting import block_until

from gateway.config.sections import job as config
from gateway.errors import PipelineError
from gateway.pipeline.checkpoint.checkpoint import Checkpoint
from gateway.pipeline.exactly_once import ExactlyOnceOutput

pytestmark = [
    pytest.mark.needs("java17"),
    pytest.mark.night,
    pytest.mark.timeout(0),
]
ROWS = 400_000


@contextmanager
def opened(kafka: KafkaCluster, topic: str) -> Iterator[OutputTopic]:
    output = OutputTopic(kafka.bootstrap, topic, 2)
    try:
        yield output
    finally:
        output.close()


def write(
    kafka: KafkaCluster,
    spark: Any,
    topic: str,
    output: OutputTopic,
    timeout: float,
    fault: Callable[[], None],
) -> Counter[tuple[bytes | None, bytes | None]]:
    """Two epochs, the fault inside the first; what a restart would do is done where it ends."""
    to = config.Output.model_validate({"topic": topic, "transactionTimeout": f"{timeout:g}s"})
    query = uuid.uuid4().hex
    failed: list[BaseException] = []

    def epoch(number: int) -> None:
        rows = spark.range(number * ROWS, (number + 1) * ROWS, 1, 2)
        rows = rows.selectExpr("cast(id % 1000 as string) key", "cast(id as string) value")
        for _ in range(5):
            try:
                writer(rows, number)
                return
            except PipelineError as error:
                if "the next start finishes it" not in str(error):
                    failed.append(error)
                    return

    none = Checkpoint("/nowhere")  # its batches have no marks
    writer = ExactlyOnceOutput(
        query, to, {"bootstrap.servers": kafka.bootstrap_servers}, checkpoint=none
    )
    under_way = threading.Thread(target=epoch, args=(0,))
    under_way.start()
    block_until(output.has_open_transaction, "an open transaction", interval_s=0)
    fault()
    under_way.join(600)
    assert not under_way.is_alive()
    epoch(1)
    assert not failed
    return output.read_committed()


def expected() -> Counter[tuple[bytes | None, bytes | None]]:
    rows = range(2 * ROWS)
    return Counter((str(each % 1000).encode(), str(each).encode()) for each in rows)


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_a_broker_that_dies_or_freezes_inside_a_transaction_costs_no_row(kafka3, spark, fault):
    topic = kafka3.create_unique_topic(
        partitions=2, replication=3, configs={"min.insync.replicas": "2"}
    )
    assert kafka3.local_kafka is not None
    node = kafka3.local_kafka.get_node(kafka3.admin.get_leaders(topic)[0])
    with opened(kafka3, topic) as output:

        def fail() -> None:
            node.kill() if fault == "kill" else node.freeze()
            time.sleep(12)  # longer than a leader takes to be replaced
            kafka3.restore()

        assert write(kafka3, spark, topic, output, 30.0, fail) == expected()


def test_a_transaction_that_kafka_gave_up_is_written_again(kafka: KafkaCluster, spark: Any):
    topic = kafka.create_unique_topic(partitions=2)
    with opened(kafka, topic) as output:

        def stall() -> None:
            workers = [
                each.pid
                for each in psutil.Process().children(recursive=True)
                if each.status() != psutil.STATUS_ZOMBIE
                and "pyspark.daemon" in " ".join(each.cmdline())
            ]
            for pid in workers:
                os.kill(pid, signal.SIGSTOP)
            try:
                block_until(lambda: not output.has_open_transaction(), "Kafka to give it up")
            finally:
                for pid in workers:
                    os.kill(pid, signal.SIGCONT)

        assert write(kafka, spark, topic, output, 2.0, stall) == expected()
