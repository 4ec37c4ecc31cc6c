"""Jobs on a Spark cluster: by `submit`, and by `run` with its master. Same input, same rows.

The nodes' Python has no gateway: what runs there is what the job brought.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Partition
from support.spark_cluster import LEAN, spark_cluster

pytestmark = [pytest.mark.needs("java17"), pytest.mark.timeout(600)]
PATIENCE = 180.0  # s
EVENTS = 400
GAP = 10  # s
LAST = 1_000_000  # s of event time, later than all: sessions end


class Command:
    """`gateway pipeline ...` as a process, in a session of its own."""

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

    def ended(self) -> int:
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        try:
            below = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return
        for each in [self.process, *below]:
            each.kill()
        self.process.wait()


@contextmanager
def pipeline(*words: object, log: Path, **variables: object) -> Iterator[Command]:
    command = Command(list(words), log, **variables)
    try:
        yield command
    finally:
        command.close()


def settings(directory: Path, kafka, topic: str, to: str, *, master="local[2]", trigger):
    job = {
        "name": "visits",
        "type": "sessions",
        "from": {
            "topic": topic,
            "time": "at",
            "watermark": "5s",
            "maxRecords": EVENTS // 2 + 8,
            "value": {"fields": {"user": "string", "at": "timestamp", "amount": "int"}},
        },
        "by": ["user"],
        "gap": f"{GAP}s",
        "measures": {"total": "sum(amount)"},
        "to": {"topic": to, "partitions": 2},
        "trigger": trigger,
    }
    conf = {f"spark.{each}.extraJavaOptions": LEAN for each in ("driver", "executor")}
    # Compiling what runs for a few rows takes longer than they do.
    conf |= {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    spark = {"master": master, "conf": {**conf, "spark.driver.host": "127.0.0.1"}}
    where = {"checkpoints": str(directory / "checkpoints" / to), "spark": spark, "jobs": [job]}
    file = directory / f"{to}.yaml"
    file.write_text(json.dumps({"kafka": {"servers": [kafka.servers]}, "pipelines": where}))
    return file


def events():
    """Two users in each of ten minutes, and who ends their sessions."""
    made = [(f"u{n % 20}", 60 * (n // 40) + n % 7, n) for n in range(EVENTS)]
    return made, [(f"end{n}", LAST, 0) for n in range(8)]


def sessions(made):
    """The oracle: (user, events, total), as often as each comes."""
    open_, found = {}, []
    for user, at, amount in sorted(made, key=lambda event: event[1]):
        if user in open_ and at - open_[user][0] > GAP:
            found.append((user, *open_.pop(user)[1:]))
        _, count, total = open_.get(user, (at, 0, 0))
        open_[user] = (at, count + 1, total + amount)
    return Counter([*found, *((user, *each[1:]) for user, each in open_.items())])


def produce(kafka, topic):
    producer = Producer({"bootstrap.servers": kafka.servers})
    made, ends = events()
    for user, at, amount in [*made, *ends]:
        value = {"user": user, "at": at, "amount": amount}
        producer.produce(topic, json.dumps(value), user)
    assert producer.flush(30) == 0


def committed(kafka, topic, enough, command):
    """Rows of a topic for readers of committed records, once there are so many."""
    options = {"bootstrap.servers": kafka.servers, "group.id": "t", "enable.auto.commit": False}
    consumer = Consumer(options)
    consumer.assign([Partition(topic, each, 0) for each in range(2)])
    found = Counter()
    until = time.monotonic() + PATIENCE
    try:
        while found.total() < enough:
            assert time.monotonic() < until, command.tail()
            assert command.process.poll() in (None, 0), command.tail()
            message = consumer.poll(0.2)
            if message is not None and not message.error():
                row = json.loads(message.value())
                found[(row["user"], row["events"], row["total"])] += 1
        assert consumer.poll(1) is None
    finally:
        consumer.close()
    return found


@pytest.fixture
def topic(kafka):
    name = kafka.topic(2)
    for way in ("submitted", "run", "ended"):
        kafka.create_topic(f"{name}-{way}", 2)
    produce(kafka, name)
    return name


def alive(process: psutil.Process) -> bool:
    """Not even a zombie that nobody has asked for yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def batches(checkpoints: Path) -> tuple[list[str], list[str]]:
    """The numbers of batches that were begun, and of those that are complete."""
    (place,) = checkpoints.glob("visits/v1")
    found = [
        sorted(each.name for each in (place / log).iterdir() if each.name.isdigit())
        for log in ("offsets", "commits")
    ]
    return found[0], found[1]


def test_a_job_brings_its_code_to_a_cluster_and_its_rows_are_those_of_one_machine(
    kafka, topic, tmp_path
):
    wanted = sessions(events()[0])
    to = f"{topic}-submitted"
    file = settings(tmp_path, kafka, topic, to, trigger="available-now")
    with pipeline("submit", "all", "-c", file, log=tmp_path / f"{to}.log") as local:
        assert local.ended() == 0, local.tail()
        assert committed(kafka, to, wanted.total(), local) == wanted
    with spark_cluster(tmp_path) as cluster:
        to, where = f"{topic}-run", {"master": cluster.url}
        file = settings(tmp_path, kafka, topic, to, trigger="available-now", **where)
        log, python = tmp_path / f"{to}.log", {"PYSPARK_PYTHON": cluster.python}
        with pipeline("run", "all", "-c", file, log=log, **python) as run:
            assert run.ended() == 0, run.tail()
            assert committed(kafka, to, wanted.total(), run) == wanted
        (name,), same = cluster.brought()
        assert same == [name]  # both workers ran an executor, which was sent the package

        to = f"{topic}-ended"
        file = settings(tmp_path, kafka, topic, to, trigger="1s")
        words = ("submit", "visits", "-c", file, "--master", cluster.url)
        with pipeline(*words, log=tmp_path / f"{to}.log", **python) as submitted:
            assert committed(kafka, to, wanted.total(), submitted) == wanted
            below = psutil.Process(submitted.process.pid).children(recursive=True)
            submitted.process.send_signal(signal.SIGTERM)
            assert submitted.ended() == 0, submitted.tail()
            assert not [each for each in below if alive(each)]
        begun, complete = batches(tmp_path / "checkpoints" / to)
        assert begun == complete
