"""`gateway pipeline ...` as a process, and the topic it fills."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Partition
from support.spark_jvm import build_spark_conf

PROCESS_TIMEOUT_S = 600.0  # s; Spark starts in 6 to 60 s, on a cluster in more


class PipelineProcess:
    """In a session of its own, as a terminal would start it. log: what it says."""

    def __init__(self, arguments: list[object], log_path: Path, **environment: object) -> None:
        self.log_path = log_path
        given = {name: str(value) for name, value in environment.items()}
        with log_path.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "pipeline", *map(str, arguments)],
                stdout=out,
                stderr=out,
                env={**os.environ, **given},
                start_new_session=True,
            )

    def read_log_tail(self) -> str:
        return self.log_path.read_text(errors="replace")[-5000:]

    def list_descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def send_signal(self, signal_number: int) -> int:
        """Its exit code, once it ended."""
        self.process.send_signal(signal_number)
        return self.wait_ended()

    def wait_ended(self) -> int:
        return self.process.wait(PROCESS_TIMEOUT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            for each in [self.process, *self.list_descendants()]:
                each.kill()
            self.process.wait()


@contextmanager
def running_pipeline(
    *arguments: object, log: Path, **environment: object
) -> Iterator[PipelineProcess]:
    """Killed with the block, and all below it, if it runs still. variables: of its environment."""
    process = PipelineProcess(list(arguments), log, **environment)
    try:
        yield process
    finally:
        process.close()


def is_alive(process: psutil.Process) -> bool:
    """Not even a zombie that nobody has asked for yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def write_config(
    config_path: Path, servers: str, job: Mapping[str, Any], *, checkpoints: object,
    master: str = "local[2]", conf: Mapping[str, str] | None = None,
) -> Path:  # fmt: skip
    """Writes a configuration with one job (JSON is YAML)."""
    spark = {"master": master, "conf": {**build_spark_conf(), **(conf or {})}}
    where = {"checkpoints": str(checkpoints), "spark": spark, "jobs": [job]}
    config_path.write_text(
        json.dumps({"kafka": {"servers": servers.split(",")}, "pipelines": where}, indent=1)
    )
    return config_path


def produce_values(servers: str, topic: str, values: list[dict[str, Any]], key_column: str) -> None:
    """JSON records, by the key that a column has."""
    producer = Producer({"bootstrap.servers": servers})
    for each in values:
        producer.produce(topic, json.dumps(each), str(each[key_column]))
    assert producer.flush(30) == 0


class RowReader:
    """Of a topic with two partitions, for readers of committed records."""

    def __init__(self, servers: str, topic: str) -> None:
        options = {"bootstrap.servers": servers, "group.id": "t", "enable.auto.commit": False}
        self._consumer = Consumer(options)
        self._consumer.assign([Partition(topic, each, 0) for each in range(2)])
        self.values: list[dict[str, Any]] = []
        self.keys: list[str] = []

    def read_until(self, row_count: int, process: PipelineProcess) -> list[dict[str, Any]]:
        """As soon as there are so many; not one more comes within a second."""
        deadline = time.monotonic() + PROCESS_TIMEOUT_S
        while len(self.values) < row_count:
            assert time.monotonic() < deadline, process.read_log_tail()
            assert process.process.poll() in (None, 0), process.read_log_tail()
            self._poll_record(0.2)
        self._poll_record(1)
        return self.values

    def close(self) -> None:
        self._consumer.close()

    def _poll_record(self, seconds: float) -> None:
        message = self._consumer.poll(seconds)
        if message is not None and not message.error():
            self.values.append(json.loads(message.value() or b"null"))
            self.keys.append((message.key() or b"").decode())


@contextmanager
def open_row_reader(servers: str, topic: str) -> Iterator[RowReader]:
    found = RowReader(servers, topic)
    try:
        yield found
    finally:
        found.close()
