"""Jobs in processes of their own, to be killed; and what they left in Kafka."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from support.spark_jvm import WORKER_CONF, build_spark_conf
from support.waiting import BLOCK_TIMEOUT_S, block_until

JOB_TIMEOUT_S = 600.0  # s; Spark starts in 6 to 60 s
SENT_COMMIT_S = 1.0  # in which Kafka has done what it was asked, by far


@dataclass
class JobProcess:
    """A driver, its JVM and its Python workers: one process group."""

    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def is_ended(self) -> bool:
        return self.process.poll() is not None

    def has_logged(self, text: str) -> bool:
        return text in self.log_path.read_text(errors="replace")

    def list_process_tree(self) -> list[int]:
        """The workers of Python first, then its daemon, the JVM, the process itself."""
        try:
            below = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [*(each.pid for each in reversed(below)), self.process.pid]

    def kill_tree(self, known_pids: Sequence[int] = ()) -> None:
        """The whole tree at once, whatever groups its parts have. known: those to begin with,
        found before: looking for them takes longer than a transaction."""
        _signal_all([*known_pids, *self.list_process_tree()], signal.SIGKILL)
        self.process.wait(30)

    def read_log_tail(self) -> str:
        return self.log_path.read_text(errors="replace")[-4000:]


@dataclass
class JobHistory:
    """One job from its first start to its end. directory: of its files and its checkpoint."""

    job: Mapping[str, Any]
    servers: list[str]
    directory: Path
    start_count: int = field(default=0)

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def build_settings(self, **output_options: Any) -> dict[str, Any]:
        """The file's. changed: of the job's output."""
        job = {**self.job, "to": {**self.job["to"], **output_options}, "trigger": "available-now"}
        pipelines = {"checkpoints": str(self.checkpoints), "jobs": [job]}
        spark = {"master": "local[2]", "conf": {**build_spark_conf(), **WORKER_CONF}}
        return {"kafka": {"servers": self.servers}, "pipelines": {**pipelines, "spark": spark}}

    @contextmanager
    def running_job(self, **output_options: Any) -> Iterator[JobProcess]:
        """Started; killed with the block if it runs still. changed: of the job's output."""
        self.start_count += 1
        file = self.directory / "gateway.yaml"
        file.write_text(json.dumps(self.build_settings(**output_options)))  # JSON is YAML
        log = self.directory / f"run-{self.start_count}.log"
        command = [sys.executable, "-m", "gateway", "pipeline", "run", "all", "-c", str(file)]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=Path(__file__).parents[2],
                start_new_session=True,
            )
        run = JobProcess(process, log)
        try:
            yield run
        finally:
            if not run.is_ended:
                run.kill_tree()

    def run_to_end(self, **output_options: Any) -> None:
        """Runs it to the end of its input."""
        with self.running_job(**output_options) as run:
            block_until(lambda: run.is_ended, "the end of the job", 4 * JOB_TIMEOUT_S)
            assert run.process.returncode == 0, run.read_log_tail()


class OutputTopic:
    """A topic, as readers of committed and of all records see it."""

    def __init__(self, servers: list[str], topic: str, partitions: int) -> None:
        options = {"bootstrap.servers": ",".join(servers), "group.id": "kills"}
        options |= {"enable.partition.eof": True, "enable.auto.commit": False}
        self._committed_consumer = Consumer({**options, "isolation.level": "read_committed"})
        self._uncommitted_consumer = Consumer({**options, "isolation.level": "read_uncommitted"})
        self._partitions = [TopicPartition(topic, each, 0) for each in range(partitions)]

    def close(self) -> None:
        self._committed_consumer.close()
        self._uncommitted_consumer.close()

    def has_open_transaction(self) -> bool:
        """Is there an open transaction with records of this topic?"""
        return any(
            self._fetch_end(self._committed_consumer, each)
            < self._fetch_end(self._uncommitted_consumer, each)
            for each in self._partitions
        )

    def get_end_offset(self) -> int:
        """Of committed records, all partitions together."""
        return sum(self._fetch_end(self._committed_consumer, each) for each in self._partitions)

    def _fetch_end(self, consumer: Consumer, partition: TopicPartition) -> int:
        """A broker may know a topic for some moments before it leads its partitions."""
        deadline = time.monotonic() + BLOCK_TIMEOUT_S
        while True:
            try:
                return consumer.get_watermark_offsets(partition, timeout=10)[1]
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def read_committed(self) -> Counter[tuple[bytes | None, bytes | None]]:
        return _read_topic(self._committed_consumer, self._partitions)

    def count_all(self) -> int:
        """How many records there are, those of aborted transactions too."""
        return _read_topic(self._uncommitted_consumer, self._partitions).total()


class KillResult(NamedTuple):
    """was: it had not ended by itself. inside: a transaction was left open."""

    was_killed: bool
    is_transaction_open: bool


def kill_while_writing(
    job: JobProcess, output: OutputTopic, rng: random.Random, *, in_transaction: bool
) -> KillResult:
    """SIGKILL at a random moment after something new was written, or inside an open transaction."""
    before = output.get_end_offset()
    block_until(lambda: job.is_ended or output.get_end_offset() > before, "something written")
    tree = job.list_process_tree()
    if in_transaction:
        block_until(
            lambda: job.is_ended or _stop_in_transaction(tree, output),
            "an open transaction",
            interval_s=0,
        )
    else:
        time.sleep(rng.uniform(0, 1.5))  # not to wait for something: to be anywhere
    if job.is_ended:
        assert job.process.returncode == 0, job.read_log_tail()
        return KillResult(False, False)
    job.kill_tree(tree)
    return KillResult(True, output.has_open_transaction())


def _stop_in_transaction(pids: Sequence[int], output: OutputTopic) -> bool:
    """Is a transaction open, with all who could end it stopped? A short one ends meanwhile, and
    Kafka ends one whose commit was already sent."""
    if not output.has_open_transaction():
        return False
    _signal_all(pids, signal.SIGSTOP)
    time.sleep(SENT_COMMIT_S)
    if output.has_open_transaction():
        return True
    _signal_all(pids, signal.SIGCONT)
    return False


def _signal_all(pids: Sequence[int], signal_number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal_number)


def _read_topic(consumer: Any, partitions: list[Any]) -> Counter[tuple[bytes | None, bytes | None]]:
    consumer.assign(partitions)
    found: Counter[tuple[bytes | None, bytes | None]] = Counter()
    left = len(partitions)
    deadline = time.monotonic() + JOB_TIMEOUT_S
    while left and time.monotonic() < deadline:
        for message in consumer.consume(10_000, 0.5):
            if message.error() is None:
                found[(message.key(), message.value())] += 1
            elif message.error().code() == KafkaError._PARTITION_EOF:
                left -= 1
    consumer.unassign()
    assert not left, "the topic cannot be read to its end"
    return found
