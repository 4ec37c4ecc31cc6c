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

PATIENCE = 300.0  # s; Spark starts in 6 to 60 s, on a cluster in more
LEAN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
CONF = {
    "spark.driver.extraJavaOptions": LEAN,
    "spark.executor.extraJavaOptions": LEAN,
    "spark.driver.host": "127.0.0.1",
    # Compiling what runs for a few rows takes longer than they do.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


class Process:
    """In a session of its own, as a terminal would start it. log: what it says."""

    def __init__(self, words: list[object], log: Path, **variables: object) -> None:
        self.log = log
        given = {name: str(value) for name, value in variables.items()}
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "pipeline", *map(str, words)],
                stdout=out,
                stderr=out,
                env={**os.environ, **given},
                start_new_session=True,
            )

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-5000:]

    def below(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def signal(self, number: int) -> int:
        """Its exit code, once it ended."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            for each in [self.process, *self.below()]:
                each.kill()
            self.process.wait()


@contextmanager
def pipeline(*words: object, log: Path, **variables: object) -> Iterator[Process]:
    """Killed with the block, and all below it, if it runs still. variables: of its environment."""
    process = Process(list(words), log, **variables)
    try:
        yield process
    finally:
        process.close()


def alive(process: psutil.Process) -> bool:
    """Not even a zombie that nobody has asked for yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def configured(
    file: Path, servers: str, job: Mapping[str, Any], *, checkpoints: object,
    master: str = "local[2]", conf: Mapping[str, str] | None = None,
) -> Path:  # fmt: skip
    """Writes a configuration with one job (JSON is YAML)."""
    spark = {"master": master, "conf": {**CONF, **(conf or {})}}
    where = {"checkpoints": str(checkpoints), "spark": spark, "jobs": [job]}
    file.write_text(json.dumps({"kafka": {"servers": [servers]}, "pipelines": where}, indent=1))
    return file


def produce(servers: str, topic: str, values: list[dict[str, Any]], key: str) -> None:
    """JSON records, by the key that a column has."""
    producer = Producer({"bootstrap.servers": servers})
    for each in values:
        producer.produce(topic, json.dumps(each), str(each[key]))
    assert producer.flush(30) == 0


class Rows:
    """Of a topic with two partitions, for readers of committed records."""

    def __init__(self, servers: str, topic: str) -> None:
        options = {"bootstrap.servers": servers, "group.id": "t", "enable.auto.commit": False}
        self._consumer = Consumer(options)
        self._consumer.assign([Partition(topic, each, 0) for each in range(2)])
        self.found: list[dict[str, Any]] = []
        self.keys: list[str] = []

    def until(self, enough: int, process: Process) -> list[dict[str, Any]]:
        """As soon as there are so many; not one more comes within a second."""
        deadline = time.monotonic() + PATIENCE
        while len(self.found) < enough:
            assert time.monotonic() < deadline, process.tail()
            assert process.process.poll() in (None, 0), process.tail()
            self._take(0.2)
        self._take(1)
        return self.found

    def close(self) -> None:
        self._consumer.close()

    def _take(self, seconds: float) -> None:
        message = self._consumer.poll(seconds)
        if message is not None and not message.error():
            self.found.append(json.loads(message.value() or b"null"))
            self.keys.append((message.key() or b"").decode())


@contextmanager
def rows(servers: str, topic: str) -> Iterator[Rows]:
    found = Rows(servers, topic)
    try:
        yield found
    finally:
        found.close()
