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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from confluent_kafka import Consumer, KafkaError, TopicPartition

PATIENCE = 240.0  # s; Spark starts in 6 to 60 s
CONF = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    "spark.driver.host": "127.0.0.1",
}


@dataclass
class Running:
    """A driver, its JVM and its Python workers: one process group."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def said(self, what: str) -> bool:
        return what in self.log.read_text(errors="replace")

    def tree(self) -> list[int]:
        """The workers of Python first, then its daemon, the JVM, the process itself."""
        try:
            below = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [*(each.pid for each in reversed(below)), self.process.pid]

    def kill(self, known: Sequence[int] = ()) -> None:
        """The whole tree at once, whatever groups its parts have. known: those to begin with,
        found before: looking for them takes longer than a transaction."""
        _all([*known, *self.tree()], signal.SIGKILL)
        self.process.wait(30)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


@dataclass
class Story:
    """One job from its first start to its end. directory: of its files and its checkpoint."""

    job: Mapping[str, Any]
    servers: list[str]
    directory: Path
    starts: int = field(default=0)

    def settings(self, **changed: Any) -> dict[str, Any]:
        """The file's. changed: of the job's output."""
        job = {**self.job, "to": {**self.job["to"], **changed}, "trigger": "available-now"}
        pipelines = {"checkpoints": str(self.directory / "checkpoints"), "jobs": [job]}
        spark = {"master": "local[2]", "conf": CONF}
        return {"kafka": {"servers": self.servers}, "pipelines": {**pipelines, "spark": spark}}

    @contextmanager
    def running(self, **changed: Any) -> Iterator[Running]:
        """Started; killed with the block if it runs still. changed: of the job's output."""
        self.starts += 1
        file = self.directory / "gateway.yaml"
        file.write_text(json.dumps(self.settings(**changed)))  # JSON is YAML
        log = self.directory / f"run-{self.starts}.log"
        command = [sys.executable, "-m", "gateway", "pipeline", "run", "all", "-c", str(file)]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=Path(__file__).parents[2],
                start_new_session=True,
            )
        run = Running(process, log)
        try:
            yield run
        finally:
            if not run.ended:
                run.kill()

    def finish(self, **changed: Any) -> None:
        """Runs it to the end of its input."""
        with self.running(**changed) as run:
            wait(lambda: run.ended, "the end of the job", 4 * PATIENCE)
            assert run.process.returncode == 0, run.tail()


class Output:
    """A topic, as readers of committed and of all records see it."""

    def __init__(self, servers: list[str], topic: str, partitions: int) -> None:
        options = {"bootstrap.servers": ",".join(servers), "group.id": "kills"}
        options |= {"enable.partition.eof": True, "enable.auto.commit": False}
        self._committed = Consumer({**options, "isolation.level": "read_committed"})
        self._all = Consumer({**options, "isolation.level": "read_uncommitted"})
        self._partitions = [TopicPartition(topic, each, 0) for each in range(partitions)]

    def close(self) -> None:
        self._committed.close()
        self._all.close()

    def open(self) -> bool:
        """Is there an open transaction with records of this topic?"""
        return any(
            self._committed.get_watermark_offsets(each, timeout=10)
            < self._all.get_watermark_offsets(each, timeout=10)
            for each in self._partitions
        )

    def end(self) -> int:
        """Of committed records, all partitions together."""
        ends = [
            self._committed.get_watermark_offsets(each, timeout=10) for each in self._partitions
        ]
        return sum(high for _, high in ends)

    def committed(self) -> Counter[tuple[bytes | None, bytes | None]]:
        return _read(self._committed, self._partitions)

    def everything(self) -> int:
        """How many records there are, those of aborted transactions too."""
        return _read(self._all, self._partitions).total()


class Killed(NamedTuple):
    """was: it had not ended by itself. inside: a transaction was left open."""

    was: bool
    inside: bool


def kill_at(run: Running, output: Output, seed: random.Random, *, inside: bool) -> Killed:
    """SIGKILL at a random moment after something new was written, or inside an open transaction."""
    before = output.end()
    wait(lambda: run.ended or output.end() > before, "something written")
    tree = run.tree()
    if inside:
        wait(lambda: run.ended or _held(tree, output), "an open transaction", every=0)
    else:
        time.sleep(seed.uniform(0, 1.5))  # not to wait for something: to be anywhere
    if run.ended:
        assert run.process.returncode == 0, run.tail()
        return Killed(False, False)
    run.kill(tree)
    return Killed(True, output.open())


def _held(tree: Sequence[int], output: Output) -> bool:
    """Is a transaction open, with all who could end it stopped? A short one ends meanwhile."""
    if not output.open():
        return False
    _all(tree, signal.SIGSTOP)
    if output.open():
        return True
    _all(tree, signal.SIGCONT)
    return False


def _all(tree: Sequence[int], number: signal.Signals) -> None:
    for pid in tree:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def wait(
    met: Callable[[], object], what: str, within: float = PATIENCE, every: float = 0.02
) -> None:
    deadline = time.monotonic() + within
    while not met():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {within:.0f} s")
        time.sleep(every)


def _read(consumer: Any, partitions: list[Any]) -> Counter[tuple[bytes | None, bytes | None]]:
    consumer.assign(partitions)
    found: Counter[tuple[bytes | None, bytes | None]] = Counter()
    left = len(partitions)
    deadline = time.monotonic() + PATIENCE
    while left and time.monotonic() < deadline:
        for message in consumer.consume(10_000, 0.5):
            if message.error() is None:
                found[(message.key(), message.value())] += 1
            elif message.error().code() == KafkaError._PARTITION_EOF:
                left -= 1
    consumer.unassign()
    assert not left, "the topic cannot be read to its end"
    return found
