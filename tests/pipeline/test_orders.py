"""Backups, restores, kills, copies put back, other numbers of writers and two runners at once, in
random order: no row is lost and none is there twice, or the checkpoint is refused with nothing
written.

Each record of the input is one row of its own, also of the jobs that keep state: an id comes twice,
too far apart for one batch, and the row of a record says which time of its id it is. So state that
is older or newer than the offsets beside it is told by rows that are missing and others in excess.

An order is its seed's, and so is the kind of its job. By night three run, or GATEWAY_ORDERS=50,
from GATEWAY_ORDERS_SEED on.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from support.brokers import KafkaCluster
from support.dead_letters import read_committed
from support.jobs import JOB_TIMEOUT_S
from support.pipelines import JobHistory, OutputTopic, kill_while_writing
from support.spark import NO_PYTHON_WORKER
from support.waiting import block_until
from support.worker_groups import SPARK_TEST_TIMEOUT_S

from gateway.config import loads
from gateway.config.sections.pipelines import Pipelines
from gateway.pipeline.checkpoint import maintenance
from gateway.pipeline.checkpoint.checkpoint import Checkpoint
from gateway.pipeline.checkpoint.files import LocalFiles
from gateway.pipeline.checkpoint.job_checkpoint import prepare_checkpoint
from gateway.pipeline.exactly_once.ledger import ledger_topic
from gateway.pipeline.run import query
from gateway.pipeline.spark.session import build_job_conf, create_job_session

DAY_SEED = 37
"""Of a short order: copies are put back, and two run at once. `test_kills` kills by day."""
FIRST = int(os.environ.get("GATEWAY_ORDERS_SEED", "1"))
NIGHT_SEEDS = range(FIRST, FIRST + int(os.environ.get("GATEWAY_ORDERS", "3")))
STEPS = {
    **{"run_on": 2, "kill": 3, "back_up": 2, "restore": 2, "copy": 2, "put_back": 3},
    **{"start_afresh": 1},
}
"""The weights of the steps that are drawn; `run_twice` is a step of each order beside them."""
DRAWN = 5
PARTITIONS = 2
RECORDS = 300  # of one step
PART = RECORDS // PARTITIONS  # of one step and partition
BATCH = 150  # records, at most: an id comes again after PART of its partition
JOB = "orders"
UPDATES = {"by": ["id"], "emit": "updates"}
KINDS: dict[str, dict[str, Any]] = {
    "query": {"sql": "SELECT id, n FROM t"},
    "aggregate": {**UPDATES, "window": {"size": "1h"}, "measures": {"n": "count(*)"}},
    "sessions": {**UPDATES, "gap": "1h"},
}
TIME = 1_700_000_000_000  # of all events: none is late, and no session or window ends
SAID = ("put back to another state", "has written the job's rows since", "another process runs")


@dataclass
class History:
    """A job whose checkpoint is copied, put back and begun anew, and the rows that are due.

    Attributes:
        kind: Of the job, of `KINDS`.
        before: How often each row was committed before the query of now began.
        begin: The offset by partition at which that query began.
        sent: How many records each partition of the input has.
        copies: Copies of checkpoints, and how many queries there were before theirs.
        backups: Directories of backups.
        queries: How many queries there were before the one of now.
    """

    kafka: KafkaCluster
    spark: Any
    directory: Path
    kind: str
    clicks: str
    to: str
    chance: random.Random
    before: Counter[str] = field(default_factory=Counter)
    begin: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    sent: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    copies: list[tuple[Path, int]] = field(default_factory=list)
    backups: list[Path] = field(default_factory=list)
    queries: int = 0
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        fields = {"id": "string", "n": "int", "at": "timestamp_ms"}
        read = {"topic": self.clicks, "time": "at", "watermark": "1m", "maxRecords": BATCH}
        read["value"] = {"fields": fields}
        job = {
            **{"name": JOB, "type": self.kind, "to": {"topic": self.to, "key": ["id"]}},
            **({"tables": {"t": read}} if self.kind == "query" else {"from": read}),
            **KINDS[self.kind],
            "state": {"partitions": 2},
        }
        self.story = JobHistory(job, self.kafka.bootstrap, self.directory)

    @property
    def root(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def current(self) -> Path:
        """The checkpoint in use: the highest version."""
        found = (self.root / JOB).glob("v*")
        return max(found, key=lambda each: int(each.name.removeprefix("v")))

    def due(self) -> Counter[str]:
        """Return how often each row must be committed once all of the input was read."""
        places = ((p, at) for p in range(PARTITIONS) for at in range(self.begin[p], self.sent[p]))
        return self.before + Counter(_name(*_record(*place)) for place in places)

    def rows(self) -> Counter[str]:
        found = read_committed(self.kafka, self.to, PARTITIONS)
        rows = [json.loads(each.value()) for each in found]
        return Counter(_name(row["id"], row["n" if "n" in row else "events"]) for row in rows)

    def produce(self) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for partition in range(PARTITIONS):
            for at in range(self.sent[partition], self.sent[partition] + PART):
                name, n = _record(partition, at)
                value = json.dumps({"id": name, "n": n, "at": TIME})
                producer.produce(self.clicks, value, partition=partition)
            self.sent[partition] += PART
        assert producer.flush(60) == 0

    def run(self, *, fresh: bool = False, root: Path | None = None) -> bool:
        """Run the job to the end of its input; False where it is refused or taken over."""
        settings = loads(json.dumps(self.story.build_settings(writers=self.chance.randint(1, 4))))
        assert isinstance(settings.pipelines, Pipelines)
        job = settings.pipelines.jobs[0]
        try:
            place = prepare_checkpoint(str(root or self.root), job, self.spark, fresh=fresh)
            session = create_job_session(self.spark, build_job_conf(job))
            self._run_query(lambda: query.QueryContext(session, job, settings, place))
        except Exception as error:
            if any(each in str(error) for each in SAID):
                return False
            raise
        return True

    @staticmethod
    def _run_query(open_context: Callable[[], query.QueryContext]) -> None:
        """Run a query to its end; start it again where Spark was too busy, as `run` does."""
        from pyspark.errors import StreamingQueryException

        while True:
            context = open_context()
            try:
                assert query.start_query(context).awaitTermination(JOB_TIMEOUT_S)
            except StreamingQueryException as error:
                if NO_PYTHON_WORKER not in str(error):
                    raise
            else:
                return
            finally:
                context.close()

    # The steps. Each leaves the checkpoint in use that wrote the newest rows.

    def run_on(self) -> None:
        self.produce()
        assert self.run()

    def kill(self) -> None:
        self.produce()
        output = OutputTopic(self.kafka.bootstrap, self.to, PARTITIONS)
        try:
            with self.story.running_job(writers=self.chance.randint(1, 4)) as process:
                kill_while_writing(
                    process, output, self.chance, in_transaction=self.chance.random() < 0.5
                )
        finally:
            output.close()

    def back_up(self) -> None:
        target = self.directory / f"backup-{len(self.backups)}"
        maintenance.create_backup(LocalFiles(self.current), LocalFiles(target), JOB)
        self.backups.append(target)

    def restore(self) -> None:
        if not self.backups:
            return self.back_up()
        source, version = self.chance.choice(self.backups), self.current.name.removeprefix("v")
        following = self.root / JOB / f"v{int(version) + 1}"
        copy = maintenance.restore_backup(
            LocalFiles(source), LocalFiles(self.directory / "restoring"), str(following)
        )
        (end,) = Checkpoint(str(following)).read_batch(copy.batch).end
        self._begin_query([end.get((self.clicks, each), 0) for each in range(PARTITIONS)])
        self.run_on()

    def start_afresh(self) -> None:
        self.produce()
        self._begin_query([0] * PARTITIONS)
        assert self.run(fresh=True)

    def copy(self) -> None:
        target = self.directory / f"copy-{len(self.copies)}"
        shutil.copytree(self.current, target)
        self.copies.append((target, self.queries))

    def put_back(self) -> None:
        """Run by a copy: refused, or of what was written last."""
        if not self.copies:
            return self.copy()
        self.produce()
        copy, queries = self.chance.choice(self.copies)
        current, aside = self.current, self.directory / "aside"
        current.rename(aside)
        shutil.copytree(copy, current)
        before = self.rows()
        if self.run():
            assert queries == self.queries, "an earlier checkpoint was taken"
            self.log.append("taken")
            shutil.rmtree(aside)
        else:
            assert self.rows() == before, "a checkpoint was refused, and rows were written"
            self.log.append("refused")
            shutil.rmtree(current)
            aside.rename(current)
        return None

    def run_twice(self) -> None:
        """By the checkpoint and a copy of it, at once; one of them goes on.

        The copy begins when the query of the other has begun, or has written its first rows.
        """
        for _ in range(2):
            self.produce()
        other = self.directory / "other"
        shutil.copytree(self.current, other / JOB / "v1")
        output = OutputTopic(self.kafka.bootstrap, self.to, PARTITIONS)
        before, met = output.get_end_offset(), self.chance.choice(["begun", "written"])
        try:
            with self.story.running_job(writers=self.chance.randint(1, 4)) as process:

                def is_due() -> bool:
                    begun = (
                        process.has_logged("begins [")
                        if met == "begun"
                        else output.get_end_offset() > before
                    )
                    return process.is_ended or begun

                block_until(is_due, met)
                went_on = self.run(root=other)
                block_until(lambda: process.is_ended, "the end of the other runner")
                stopped = not went_on or any(process.has_logged(each) for each in SAID)
        finally:
            output.close()
        self.log.append(f"{met}, {'one' if stopped else 'none'} was stopped")
        if not self.run():
            current = self.current
            shutil.rmtree(current)
            shutil.copytree(other / JOB / "v1", current)
            assert self.run(), "neither of two runners can go on"
            self.log.append("the copy")
        shutil.rmtree(other)

    def _begin_query(self, begin: list[int]) -> None:
        self.before, self.begin = self.rows(), begin
        self.queries += 1


def draw_steps(seed: int) -> list[str]:
    """Return the order of a seed."""
    chance = random.Random(seed)
    steps = chance.choices(list(STEPS), list(STEPS.values()), k=DRAWN)
    steps.insert(chance.randint(0, DRAWN), "run_twice")
    return steps


def kind_of(seed: int) -> str:
    """Return the kind of the job of a seed."""
    return list(KINDS)[seed % len(KINDS)]


def _record(partition: int, at: int) -> tuple[str, int]:
    """Return the id of a record, and which time it comes."""
    again = at // PART % 2
    return f"{partition}-{at - again * PART}", 1 + again


def _name(name: str, n: int) -> str:
    return f"{name} {n}"


@pytest.mark.needs("java17")
@pytest.mark.parametrize(
    "seed", [DAY_SEED, *(pytest.param(seed, marks=pytest.mark.night) for seed in NIGHT_SEEDS)]
)
@pytest.mark.timeout(SPARK_TEST_TIMEOUT_S)
def test_whatever_happens_to_a_checkpoint_each_row_is_written_once_or_it_is_refused(
    kafka, spark, tmp_path, seed
):
    clicks, to = (kafka.create_unique_topic(PARTITIONS) for _ in range(2))
    kind = kind_of(seed)
    history = History(kafka, spark, tmp_path, kind, clicks, to, random.Random(seed))
    try:
        history.run_on()
        history.copy()
        history.back_up()
        for name in draw_steps(seed):
            history.log.append(name)
            getattr(history, name)()
        history.run_on()
        found, due = history.rows(), history.due()
    finally:
        kafka.admin.delete_topic(ledger_topic(to))
    lost, twice = due - found, found - due
    print(
        f"seed {seed}: {kind}: {', '.join(history.log)}: {found.total()} rows, "
        f"{lost.total()} lost, {twice.total()} twice"
    )
    assert not lost, f"seed {seed}: {history.log}"
    assert not twice, f"seed {seed}: {history.log}"
